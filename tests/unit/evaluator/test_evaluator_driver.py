"""What is built once for a machine is kept by itself, and built anew when compiler or torch are
others."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, measure
from kernel_lsp.evaluator.processes.compiled import CompiledKernels
from kernel_lsp.evaluator.processes.sandbox import Party, Sandbox
from kernel_lsp.evaluator.verify import request_from_files

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + 1

def get_inputs():
    return [torch.rand(32, 16)]
"""


def request(**changes: Any) -> EvaluationRequest:
    asked = replace(
        request_from_files(REFERENCE, REFERENCE, device="cpu"),
        budget=EvaluationBudget(compile_s=100, load_s=100),
    )
    return replace(asked, **changes)


class Timer:
    """Says that it has built something, and leaves that in its folder."""

    def __init__(self, sandbox: Sandbox, built: bool) -> None:
        self.sandbox, self.built = sandbox, built
        self.asked: list[str] = []

    async def ask(
        self, do: str, timeout_s: float, blobs: Any = None, **fields: Any
    ) -> tuple[Any, Any]:
        self.asked.append(do)
        if self.built:
            place = self.sandbox.root / "timer/inductor/isa.so"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"code")
        return {"built": self.built}, []


async def opened(
    asked: EvaluationRequest, store: CompiledKernels | None, *, built: bool
) -> tuple[list[str], set[str]]:
    """What a timer was asked for, and what lies in its folder before it compiles the reference."""
    async with Sandbox(asked, store=store) as sandbox:
        folder = sandbox._folder("timer")
        sandbox._lay_out(sandbox._baselines_key, "timer")
        timer = Timer(sandbox, built)
        await measure._open_driver(asked, sandbox, timer)  # type: ignore[arg-type]
        return timer.asked, {path.name for path in folder.rglob("*.so")}


def has_amx() -> bool:
    """Torch.compile tries out what the compiler knows of it."""
    return os.uname().machine == "x86_64" and "amx_tile" in Path("/proc/cpuinfo").read_text()


def keep(store: CompiledKernels, key: str, name: str, scratch: Path) -> None:
    (scratch / "inductor").mkdir(parents=True, exist_ok=True)
    (scratch / "inductor" / name).write_bytes(b"code")
    store.take_in(key, scratch)


def names(store: CompiledKernels, key: str) -> set[str]:
    return {path.name for path in (store.folder / key).rglob("*.so")}


async def test_it_is_built_once_and_kept_without_anything_of_a_reference(tmp_path: Path) -> None:
    store, asked = CompiledKernels(tmp_path / "store"), request()
    async with Sandbox(asked, store=store) as sandbox:
        driver, baselines = sandbox._driver_key, sandbox._baselines_key
    keep(store, baselines, "baseline.so", tmp_path / "earlier")
    assert await opened(asked, store, built=True) == (["open_driver"], {"isa.so", "baseline.so"})
    assert names(store, driver) == {"isa.so"}
    assert await opened(asked, store, built=False) == (["open_driver"], {"isa.so", "baseline.so"})
    assert names(store, driver) == {"isa.so"}


async def test_where_nothing_is_to_be_built_the_baselines_are_found_all_the_same(
    tmp_path: Path,
) -> None:
    store, asked = CompiledKernels(tmp_path / "store"), request()
    async with Sandbox(asked, store=store) as sandbox:
        keep(store, sandbox._baselines_key, "baseline.so", tmp_path / "earlier")
    assert await opened(asked, store, built=False) == (["open_driver"], {"baseline.so"})


async def test_another_compiler_has_it_built_anew_by_itself(tmp_path: Path) -> None:
    store, asked = CompiledKernels(tmp_path / "store"), request()
    async with Sandbox(asked, store=store) as sandbox:
        driver = sandbox._driver_key
        keep(store, driver, "of-the-old-compiler.so", tmp_path / "old")
        keep(store, sandbox._baselines_key, "baseline.so", tmp_path / "earlier")
    await opened(asked, store, built=True)
    assert not store.holds(driver)  # it lay beside the baselines there
    await opened(asked, store, built=True)
    assert names(store, driver) == {"isa.so"}


@pytest.mark.parametrize(
    "changes",
    [{"device": "interpreter"}, {"budget": EvaluationBudget(compile_s=0)}, {"device": "cuda"}],
    ids=["interpreter", "no torch.compile", "a GPU without Triton"],
)
async def test_nobody_is_asked_who_needs_none(changes: dict[str, Any], tmp_path: Path) -> None:
    assert (await opened(request(**changes), CompiledKernels(tmp_path), built=True))[0] == []


async def test_without_a_store_nothing_is_built_ahead() -> None:
    assert (await opened(request(), None, built=True))[0] == []


async def compiled(store: CompiledKernels, reference: str) -> set[str] | None:
    """The headers that a timer finds; one that is asked for is compiled. None: not asked for."""
    asked = request()
    asked = replace(asked, reference=replace(asked.reference, source=reference))
    async with Sandbox(asked, store=store) as sandbox:
        folder, wanted = sandbox._folder("timer"), sandbox.wants_header
        headers = folder / "headers"
        headers.mkdir()
        store.lay_out(sandbox._header_key, folder)
        found = {path.name for path in headers.iterdir()}
        if wanted:
            (headers / "common.h.gch").write_bytes(b"the same for all kernels")
        await sandbox.keep_header(made=wanted)
        keep(store, sandbox._baselines_key, "baseline.so", folder)
        assert names(store, sandbox._baselines_key) == {"baseline.so"}
        assert not (store.folder / sandbox._baselines_key / "headers").exists()
        return found if wanted else None


async def test_what_kernels_begin_with_is_compiled_for_the_second_and_kept_apart(
    tmp_path: Path,
) -> None:
    store = CompiledKernels(tmp_path / "store")
    assert await compiled(store, "the first") is None
    assert await compiled(store, "the second") == set()
    assert await compiled(store, "the second") is None  # its kernels are there
    assert await compiled(store, "the third") == {"common.h.gch"}


@pytest.mark.torch
async def test_a_timer_says_what_it_has_built(tmp_path: Path) -> None:
    """The real one: what it has built once, the next finds in its own folder."""
    store, told = CompiledKernels(tmp_path / "store"), list[bool]()
    for _ in range(2):
        async with Sandbox(request(), store=store) as sandbox:
            timer: Party = await sandbox.timer()
            reply, _ = await timer.ask("open_driver", 200)
            told.append(reply["built"])
            sandbox.keep_driver()
            built = {path.name for path in (sandbox.root / "timer/inductor").rglob("*.so")}
            assert built == names(store, sandbox._driver_key)
    assert not told[1]
    assert told[0] or not has_amx()
