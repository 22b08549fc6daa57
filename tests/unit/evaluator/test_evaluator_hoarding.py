"""A process that takes more memory or disk than it may is noticed, whatever rlimits count."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_lsp import leftovers
from kernel_lsp.evaluator.processes import hoarding

MIB = 2**20


@contextlib.contextmanager
def running(code: str, folder: Path) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


async def told(pid: int, folder: Path, memory: int = 10**12, disk: int = 10**12) -> str:
    watching = hoarding.until_too_much(pid, folder, memory_bytes=memory, disk_bytes=disk)
    return await asyncio.wait_for(watching, 200)


async def test_touched_memory_counts(tmp_path: Path) -> None:
    with running("kept = bytearray(b'x') * 200_000_000; input()", tmp_path) as pid:
        assert "0.1 GiB of memory" in await told(pid, tmp_path, memory=100 * MIB)


async def test_reserved_memory_does_not_count(tmp_path: Path) -> None:
    code = (
        "import mmap; kept = mmap.mmap(-1, 2**34); open('ready', 'wb').write(bytes(MIB)); input()"
    )
    with running(code.replace("MIB", str(MIB)), tmp_path) as pid:
        # It is ready then.
        assert "scratch" in await told(pid, tmp_path, memory=100 * MIB, disk=MIB // 2)
        resident = hoarding.resident_bytes(pid)
        assert resident is not None and resident < 100 * MIB


async def test_many_small_files_count_together(tmp_path: Path) -> None:
    code = "for i in range(20): open(f'f{i}', 'wb').write(bytes(range(256)) * 4096)\ninput()"
    with running(code, tmp_path) as pid:
        assert "scratch folder" in await told(pid, tmp_path, disk=10 * MIB)


async def test_folders_nested_deeper_than_any_compiler_does_are_too_much(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(2000): os.mkdir('d'); os.chdir('d')\ninput()"
    with running(code, tmp_path) as pid:
        assert "nested folders" in await told(pid, tmp_path)
    assert leftovers.remove(tmp_path)


async def test_a_process_that_ends_by_itself_has_taken_nothing(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
    assert await told(process.pid, tmp_path) == ""
    assert await process.wait() == 0


@pytest.mark.parametrize("size", [0, 3 * MIB])
def test_a_sparse_file_costs_what_it_takes(tmp_path: Path, size: int) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"x" * size)
        file.truncate(2**33)
    assert size <= leftovers.bytes_below(tmp_path) <= size + MIB
