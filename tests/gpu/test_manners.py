"""Manners on a real GPU beside a real neighbor: seen, waited for, noticed during a turn; memory
capped and given back. Needs no pytest plugin."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.gate import Gate  # noqa: E402
from kernel_lsp.evaluator.sharing import nvml  # noqa: E402
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, Disturbed, SharingRules  # noqa: E402
from kernel_lsp.evaluator.sharing.nvml import Gpu, Neighborhood  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402
from kernel_lsp.records import EvalStatus, Evaluation, Progress, Report  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LONG_S = 60.0

NEIGHBOR = """
import sys, time, torch
from pathlib import Path
folder = Path(sys.argv[1])
x = torch.rand(4096, 4096, device="cuda")
(x @ x).sum().item()
(folder / "ready").touch()
end = time.monotonic() + 120
while time.monotonic() < end:
    if (folder / "burn").exists():
        for _ in range(50):
            y = x @ x
        torch.cuda.synchronize()
    else:
        time.sleep(0.02)
"""

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1

def get_inputs():
    return [torch.rand(64, 1024)]
"""

CANDIDATE = """
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        {extra}
        return torch.relu(x) * 2 + 1
"""
EXTRA = "torch.empty({mb} << 20, dtype=torch.uint8, device=x.device)"


class Neighbor:
    """Another process on the GPU, no descendant of ours: it rests until `burns` is told True."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.last_burnt = folder, 0.0
        argv = [
            "sh",
            "-c",
            '"$@" >/dev/null 2>&1 & echo $!',
            "sh",
            sys.executable,
            "-c",
            NEIGHBOR,
            str(folder),
        ]
        environment = {key: value for key, value in os.environ.items() if key != nvml.MARK}
        done = subprocess.run(argv, env=environment, capture_output=True, check=True)
        self.pid = int(done.stdout)

    def burns(self, on: bool) -> None:
        path = self.folder / "burn"
        if on:
            path.touch()
        elif path.exists():
            path.unlink()
            self.last_burnt = time.monotonic()


@pytest.fixture(scope="module")
def neighbor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neighbor]:
    started = Neighbor(tmp_path_factory.mktemp("neighbor"))
    try:
        end = time.monotonic() + LONG_S
        while not (started.folder / "ready").exists():
            assert time.monotonic() < end, "the neighbor did not start"
            time.sleep(0.05)
        yield started
    finally:
        os.kill(started.pid, signal.SIGKILL)


@pytest.fixture
def resting(neighbor: Neighbor) -> Neighbor:
    neighbor.burns(False)
    # What the driver has counted is old.
    time.sleep(max(0.0, neighbor.last_burnt + 2.5 - time.monotonic()))
    return neighbor


def device_sharing(folder: Path, **changes: Any) -> DeviceSharing:
    return DeviceSharing(SharingRules(data_dir=str(folder), **changes))


def run(work: Callable[[], Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(LONG_S):
            return await work()

    return asyncio.run(limited())


def test_the_driver_says_what_belongs_into_the_evidence(tmp_path: Path) -> None:
    sample = run(lambda: device_sharing(tmp_path).sample("cuda"))
    print(f"\nsample: {sample}")
    assert sample["driver"] and sample["uuid"] and sample["sm_mhz"] > 0 and sample["free_mb"] > 0


def test_a_resting_neighbor_is_seen_and_not_waited_for(tmp_path: Path, resting: Neighbor) -> None:
    gpu = nvml.find()
    assert isinstance(gpu, Gpu), gpu
    neighborhood = Neighborhood(gpu)
    seen = neighborhood.look()
    print(f"\nNVML's own numbers: {neighborhood.sees_all}; seen: {[str(n) for n in seen]}")
    assert resting.pid in [n.pid for n in seen]

    async def work() -> float:
        async with device_sharing(tmp_path, when_busy="skip").turn("cuda") as turn:
            return turn.waited_s

    assert run(work) < LONG_S


def test_a_busy_neighbor_is_waited_for_until_it_rests(tmp_path: Path, resting: Neighbor) -> None:
    said: list[Progress] = []

    async def work() -> bool:
        resting.burns(True)
        await asyncio.sleep(1.5)
        turn = asyncio.create_task(_one_turn(device_sharing(tmp_path), said))
        while not said:
            assert not turn.done(), "nobody was waited for"
            await asyncio.sleep(0.05)
        early = turn.done()
        resting.burns(False)
        await turn
        return early

    assert run(work) is False
    print(f"\n{said[0].message}")
    assert said[0].message.startswith("waiting for the GPU")


async def _one_turn(its: DeviceSharing, said: list[Progress]) -> None:
    async with its.turn("cuda", report=said.append):
        pass


def test_a_neighbor_that_becomes_busy_during_a_turn_ends_it(
    tmp_path: Path, resting: Neighbor
) -> None:
    async def work() -> float:
        start = time.monotonic()
        with pytest.raises(Disturbed, match=str(resting.pid)):
            async with device_sharing(tmp_path).turn("cuda"):
                start = time.monotonic()
                resting.burns(True)
                await asyncio.sleep(LONG_S)
        return time.monotonic() - start

    seconds = run(work)
    resting.burns(False)
    print(f"\nnoticed after {seconds:.2f} s")
    assert seconds < 10


def _judged(
    gate: Gate, extra: str, report: Report | None = None
) -> Coroutine[Any, Any, Evaluation]:
    request = request_from_files(REFERENCE, CANDIDATE.format(extra=extra), inference=True)
    return gate.evaluate(replace(request, device="cuda", require_speed=False), report)


def test_an_evaluation_that_is_disturbed_yields_and_is_repeated(
    tmp_path: Path, resting: Neighbor
) -> None:
    said: list[str] = []

    def report(progress: Progress) -> None:
        said.append(progress.message)
        if progress.message.startswith("checking values"):
            resting.burns(not any("became busy" in message for message in said))
        elif progress.phase == "queue":
            resting.burns(False)

    async def work() -> Evaluation:
        async with Gate(device_sharing=device_sharing(tmp_path)) as gate:
            return await _judged(gate, "for _ in range(10_000_000): pass", report)  # 0.2 s a call

    evaluation = run(work)
    print("\n" + "\n".join(said))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert any("became busy" in message for message in said)


def ours_on_the_gpu() -> set[int]:
    """Our children with a CUDA context; other programs of ours may be at work on other GPUs."""
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    return children.intersection(nvml.compute_processes())


def test_memory_is_capped_and_none_is_held_after_closing(tmp_path: Path, resting: Neighbor) -> None:
    most: set[int] = set()

    async def work() -> tuple[Evaluation, Evaluation]:
        async with Gate(device_sharing=device_sharing(tmp_path, memory_mb=1024)) as gate:
            judging = asyncio.create_task(_judged(gate, EXTRA.format(mb=64)))
            while not judging.done():
                most.update(ours_on_the_gpu())
                await asyncio.sleep(0.1)
            return await judging, await _judged(gate, EXTRA.format(mb=2048))

    within, beyond = run(work)
    print(f"\nwithin: {within.status} {within.detail}; beyond: {beyond.status} {beyond.detail}")
    assert within.status is EvalStatus.PASSED, within.detail
    assert beyond.status is EvalStatus.RUNTIME_ERROR and "memory" in beyond.detail
    assert most, "none of ours was seen while it was judging: the next line would prove nothing"
    assert not ours_on_the_gpu()
