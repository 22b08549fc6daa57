"""Zygotes fork children that die with all they started, and are replaced when they die
themselves."""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from worker_helpers import loading

from kernel_lsp import scratch
from kernel_lsp.confinement import Confinement, Limits
from kernel_lsp.errors import WorkerLost
from kernel_lsp.evaluator import tensors
from kernel_lsp.evaluator.processes import zygote
from kernel_lsp.evaluator.processes.pool import ZygotePool
from kernel_lsp.evaluator.processes.warm import UnfitInterpreter, ZygoteClient, warm_up
from kernel_lsp.evaluator.processes.zygote import driver_unasked
from kernel_lsp.process import Child

pytestmark = [
    pytest.mark.torch,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="zygotes are Linux only"),
]
WORKER = "kernel_lsp.evaluator.running.worker"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[ZygotePool]:
    pool = ZygotePool()
    yield pool
    await pool.close()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In the room that the zygote sees."""
    with scratch.folder("test") as folder:
        yield folder


async def start(pool: ZygotePool, scratch: Path, *, imports: str = "", **limits: int) -> Child:
    return await pool.start(
        WORKER,
        "cpu",
        python=sys.executable,
        limits=Limits(**limits),
        confinement=Confinement(scratch=scratch),
        environment={},
        imports=imports,
    )


async def run(child: Child, code: str, timeout_s: float = 60) -> str:
    """What running ``code`` raised, as the worker tells it."""
    out = tensors.TensorOutbox()
    init = tensors.encode([(), {}], out)
    source = (
        "import os, signal, subprocess, time\n"
        + textwrap.dedent(code)
        + "\ndef target():\n    pass\n"
    )
    reply, _ = await child.ask(loading(source, init), out.blobs, timeout_s=timeout_s)
    return str(reply.get("error", ""))


def below(pid: int) -> set[int]:
    """Every process below ``pid`` that is not only waiting to be buried."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found - {pid}


async def host(pool: ZygotePool, scratch: Path) -> int:
    """The process number of the pool's zygote."""
    child = await start(pool, scratch)
    zygote = parent(parent(child.process.pid))  # in between is the guardian
    await child.kill()
    return zygote


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def until_gone(pids: set[int]) -> bool:
    end = time.monotonic() + 60
    while (left := pids & running()) and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return not left


def running() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


@pytest.mark.parametrize(
    "code, words",
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "SIGABRT|SIGSEGV"),  # the first process of a tree ignores its own signals
        ("os._exit(0)", "exited with 0"),
        ("os.write(max(map(int, os.listdir('/proc/self/fd'))) - 1, bytes(100))", "out of turn"),
    ],
    ids=["crash", "abort", "exit", "forged"],
)
async def test_a_death_is_named(code: str, words: str, pool: ZygotePool, tmp_path: Path) -> None:
    child = await start(pool, tmp_path)
    with pytest.raises(WorkerLost, match=words):
        await run(child, code)
    assert not child.alive


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n    os.fork()",
        "while True:\n    if os.fork() == 0:\n        os.setsid()",
        "subprocess.Popen(['sleep', '90'], start_new_session=True)\ntime.sleep(90)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\ntime.sleep(90)",
    ],
    ids=["loop", "fork bomb", "fork bomb in sessions", "stray", "deaf"],
)
async def test_what_hangs_is_ended_with_all_it_started(
    code: str, pool: ZygotePool, tmp_path: Path
) -> None:
    zygote = await host(pool, tmp_path)
    before = below(zygote)
    child = await start(pool, tmp_path)
    try:
        said = await run(child, code, timeout_s=2)
    except WorkerLost:
        assert not child.alive
    else:  # a bomb may also be told that it has reached the bound on processes
        assert "os.fork" in code and "BlockingIOError" in said
    await child.kill()
    assert await until_gone(below(zygote) - before)
    again = await start(pool, tmp_path)
    assert await run(again, "pass") == ""
    await again.kill()


async def test_memory_beyond_the_limit_is_a_memory_error(pool: ZygotePool, tmp_path: Path) -> None:
    child = await start(pool, tmp_path, memory_bytes=6 * 1024**3)
    assert "MemoryError" in await run(child, "bytearray(8 * 1024**3)")
    await child.kill()


async def test_children_of_one_zygote_do_not_share_random_numbers(
    pool: ZygotePool, tmp_path: Path
) -> None:
    code = "import random, numpy\nraise ValueError(f'{random.random()} {numpy.random.rand()}')"
    said = []
    for _ in range(2):
        child = await start(pool, tmp_path)
        said.append((await run(child, code)).split()[-2:])
        await child.kill()
    assert said[0][0] != said[1][0] and said[0][1] != said[1][1]


async def test_a_child_sees_neither_secrets_nor_descriptors_of_the_zygote(
    pool: ZygotePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "secret")
    child = await start(pool, tmp_path)
    code = """
    seen = open('/proc/self/environ').read() + str(dict(os.environ))
    sockets = [n for n in os.listdir('/proc/self/fd') if int(n) > 2]
    kinds = [os.readlink(f'/proc/self/fd/{n}') for n in sockets if os.path.exists(f'/proc/self/fd/{n}')]
    raise ValueError(('secret' in seen, sum(kind.startswith('socket') for kind in kinds)))
    """
    assert "(False, 2)" in await run(child, code)  # its own two ends of the protocol
    await child.kill()


async def test_a_zygote_that_dies_takes_its_children_along_and_is_replaced(tmp_path: Path) -> None:
    pool = ZygotePool()
    zygote = await host(pool, tmp_path)
    child = await start(pool, tmp_path)
    inside = below(zygote)
    asking = asyncio.create_task(run(child, "time.sleep(90)"))
    await asyncio.sleep(0.2)
    os.kill(zygote, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        await asking
    assert await until_gone(inside)
    again = await start(pool, tmp_path)
    assert await run(again, "pass") == ""
    assert await host(pool, tmp_path) != zygote
    await pool.close()
    assert not again.alive
    await again.kill()


async def test_cancelling_a_start_leaves_no_process(pool: ZygotePool, tmp_path: Path) -> None:
    zygote = await host(pool, tmp_path)
    for delay_ms in (0, 1, 2, 4, 8, 16):
        # A fork takes about 17 ms: one that is quicker is ended here.
        starting = asyncio.create_task(start(pool, tmp_path))
        await asyncio.sleep(delay_ms / 1000)
        starting.cancel()
        (child,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(child, Child):
            await child.kill()
    assert await until_gone(below(zygote))


async def test_an_interpreter_that_cannot_be_warmed_up_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(UnfitInterpreter):
        await warm_up(str(broken), {})


async def test_a_branch_that_cannot_be_had_leaves_its_children_forked_and_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unfit(self: ZygoteClient, variant: str) -> ZygoteClient:
        raise UnfitInterpreter(f"importing {variant} opened a driver")

    monkeypatch.setattr(ZygoteClient, "branch", unfit)
    pool = ZygotePool()
    child = await start(pool, tmp_path, imports="compiler")
    try:
        assert "seccomp" in child.confined and "not forked" not in child.confined
    finally:
        await child.kill()
        await pool.close()


async def test_a_child_that_is_not_forked_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unfit(*_: object) -> ZygoteClient:
        raise UnfitInterpreter("importing torch left 2 threads")

    monkeypatch.setattr("kernel_lsp.evaluator.processes.pool.warm_up", unfit)
    pool = ZygotePool()
    child = await start(pool, tmp_path)
    await child.kill()
    assert "not forked: importing torch left 2 threads" in child.confined


async def test_what_is_imported_learns_of_gpus_without_asking_a_driver(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    before = torch.cuda._device_count_nvml
    with driver_unasked(tmp_path):
        assert torch.cuda._device_count_nvml() == 2
    assert torch.cuda._device_count_nvml is before


@pytest.mark.parametrize(
    ("module", "hashes"),
    [("kernel_lsp.evaluator.running.timer", 1), ("kernel_lsp.rewrite.engine", 0)],
    ids=["who compiles", "who does not"],
)
async def test_what_a_compiling_child_would_hash_is_hashed_before_it_is_forked(
    module: str, hashes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the next one knows it, too; nobody else waits for it."""
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(zygote, "HASHED", {"json": "a_hash", "no.such.module": "another"})
    monkeypatch.setattr(zygote, "_hash", lambda *what: seen.append(what))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    ended = subprocess.Popen(["true"])  # noqa: ASYNC220
    monkeypatch.setattr(os, "fork", lambda: ended.pid)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        warm = zygote.Zygote(theirs)
        for number in (1, 2):
            ours.send(json.dumps({"id": number, "module": module}).encode())
            assert warm._obey(select.poll())
        for guardian in warm.guardians:
            os.close(guardian)
    ended.wait()
    assert seen == [("json", "a_hash")] * hashes


async def test_where_kernels_are_interpreted_nothing_is_hashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zygote, "HASHED", {"json": "a_hash"})
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert zygote.Zygote(theirs).unknown == []


@pytest.mark.parametrize("imports", ["", "compiler"])
async def test_children_collect_garbage_again(
    imports: str, pool: ZygotePool, tmp_path: Path
) -> None:
    child = await start(pool, tmp_path, imports=imports)
    said = await run(child, "import gc\nraise ValueError(gc.isenabled())")
    await child.kill()
    assert "ValueError" in said and said.endswith("True")


async def test_who_differentiates_finds_what_torch_imports_for_that() -> None:
    """Sympy and more, 0.9 s of CPU time in each judge and worker."""
    text = f"""
import importlib, sys
for name in {zygote.IMPORTS}:
    importlib.import_module(name)
import torch
before = set(sys.modules)
x = torch.ones(2, requires_grad=True)
torch.autograd.grad([(x * x).sin()], [x], [torch.ones(2)])
sys.exit(" ".join(set(sys.modules) - before))
"""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stderr=subprocess.PIPE)
    _, said = await child.communicate()
    assert not said.strip(), said
