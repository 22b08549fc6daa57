"""Compiled kernels are kept by content, moved with their paths, and never grow without bound."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from kernel_lsp.evaluator.processes import compiled
from kernel_lsp.evaluator.processes.compiled import CompiledKernels


def compile_something(scratch: Path, name: str = "add.cubin") -> None:
    folder = scratch / "triton" / "HASH"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"code")
    (folder / "__grp__add.json").write_text(json.dumps({"child_paths": {name: str(folder / name)}}))


def test_an_entry_comes_back_with_paths_of_its_new_place(tmp_path: Path) -> None:
    store = CompiledKernels(tmp_path / "store")
    compile_something(tmp_path / "one")
    store.take_in("key", tmp_path / "one")
    assert store.lay_out("key", tmp_path / "two")
    group = json.loads((tmp_path / "two/triton/HASH/__grp__add.json").read_text())
    path = Path(group["child_paths"]["add.cubin"])
    assert path == tmp_path / "two/triton/HASH/add.cubin" and path.read_bytes() == b"code"


def test_what_nobody_compiled_is_not_there(tmp_path: Path) -> None:
    store = CompiledKernels(tmp_path / "store")
    store.take_in("key", tmp_path / "empty")
    assert not store.lay_out("key", tmp_path / "two") and not (tmp_path / "two").exists()


def test_another_source_is_another_key() -> None:
    assert (
        len(
            {
                CompiledKernels.key("candidate", "x", "y"),
                CompiledKernels.key("candidate", "xy", ""),
                CompiledKernels.key("a", "x", "y"),
            }
        )
        == 3
    )


def test_links_and_other_files_of_the_scratch_folder_stay_behind(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    compile_something(tmp_path / "one")
    os.symlink(tmp_path / "secret", tmp_path / "one/triton/HASH/link")
    os.symlink(tmp_path, tmp_path / "one/inductor")
    (tmp_path / "one/note").write_text("I ran before")
    store = CompiledKernels(tmp_path / "store")
    store.take_in("key", tmp_path / "one")
    kept = {path.name for path in (tmp_path / "store/key").rglob("*") if path.is_file()}
    assert kept == {"add.cubin", "__grp__add.json", "used"}


def test_a_large_entry_is_not_kept_and_the_longest_unused_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "MAX_ENTRY_BYTES", 200)
    monkeypatch.setattr(compiled, "MAX_STORE_BYTES", 400)
    store = CompiledKernels(tmp_path / "store")
    for number in range(4):
        scratch = tmp_path / str(number)
        (scratch / "inductor").mkdir(parents=True)
        (scratch / "inductor/code").write_bytes(b"x" * (150 if number else 250))
        store.take_in(f"key{number}", scratch)
        os.utime(tmp_path / "store" / f"key{number}" / "used", (number, number)) if number else None
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["key2", "key3"]


def test_a_full_disk_only_means_compiling_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    compile_something(tmp_path / "one")
    CompiledKernels(tmp_path / "file" / "store").take_in("key", tmp_path / "one")


async def test_of_several_who_need_an_entry_one_makes_it(tmp_path: Path) -> None:
    store, made = CompiledKernels(tmp_path), list[str]()

    async def need(name: str) -> None:
        async with store.made_once("key", patience_s=60):
            if not store.holds("key"):
                made.append(name)
                await asyncio.sleep(0.01)
                (tmp_path / "key").mkdir()

    await asyncio.gather(*(need(name) for name in "abc"))
    assert made == ["a"]


async def test_who_waits_too_long_makes_the_entry_too_and_a_failure_lets_the_next_one_try(
    tmp_path: Path,
) -> None:
    store, order, came = CompiledKernels(tmp_path), list[str](), asyncio.Event()

    async def slow() -> None:
        async with store.made_once("key", patience_s=60):
            order.append("slow begins")
            await came.wait()
            order.append("slow fails")
            raise OSError("no kernels")

    async def other(name: str, patience_s: float) -> None:
        async with store.made_once("key", patience_s=patience_s):
            order.append(name)
            came.set()

    await asyncio.gather(
        slow(), other("impatient", 0.01), other("patient", 60), return_exceptions=True
    )
    assert order == ["slow begins", "impatient", "slow fails", "patient"]
