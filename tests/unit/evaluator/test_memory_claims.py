"""Jobs of several processes are admitted by memory; who waits says for whom, and nothing stays
behind."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.evaluator import EvaluationBudget, Gate
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.evaluator.sharing.memory_claims import GIB, MemoryClaims, MemoryNeed
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus, Progress

LONG_S = 60.0
HOLDER = """
import asyncio, sys
from pathlib import Path
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.evaluator.sharing.memory_claims import MemoryNeed
GIB = 2**30
async def main():
    sharing = DeviceSharing(SharingRules(data_dir=sys.argv[1]))
    need = MemoryNeed(needed_bytes=8 * GIB, total_bytes=16 * GIB, purpose="Block")
    report = lambda progress: None
    async with sharing.memory("cpu", need, report), sharing.turn("cpu", purpose="Block"):
        print("in", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, whose job has half of the memory and the CPU."""
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"in\n"
        yield process
        process.kill()


def need(gib: float, purpose: str = "Model") -> MemoryNeed:
    return MemoryNeed(needed_bytes=int(gib * GIB), total_bytes=16 * GIB, purpose=purpose)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def sharing(folder: Path) -> DeviceSharing:
    return DeviceSharing(SharingRules(data_dir=str(folder)))


def claims_in(folder: Path) -> list[str]:
    """Files of claims, their locks too."""
    found = [path.name for path in folder.rglob("*.claims/*") if path.name != "admission.lock"]
    return sorted(found)


def end(holder: subprocess.Popen[bytes]) -> None:
    holder.communicate(b"\n")


@pytest.mark.parametrize("ending", ["done", "killed"])
async def test_what_does_not_fit_waits_for_whom_it_names_until_that_is_done_or_dead(
    ending: str, tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    said: list[Progress] = []
    entered = asyncio.Event()

    async def wait() -> None:
        async with sharing(tmp_path).memory("cpu", need(6), said.append):
            entered.set()
            assert len(claims_in(tmp_path)) == 2

    waiting = asyncio.create_task(wait())
    await until(lambda: said)
    assert said[0].phase == "queue" and said[0].message == (
        "waiting for memory: Model needs about 6.0 GiB; "
        f"kernel-lsp (pid {holder.pid}) has 8.0 GiB for Block"
    )
    assert not entered.is_set()
    if ending == "done":
        end(holder)
    else:
        holder.send_signal(signal.SIGKILL)
    await asyncio.wait_for(waiting, LONG_S)
    assert len(said) == 1 and not claims_in(tmp_path)


async def test_what_fits_or_is_small_waits_for_nobody(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    said: list[Progress] = []
    ours = sharing(tmp_path)
    async with (
        asyncio.timeout(LONG_S),
        ours.memory("cpu", need(4), said.append),
        ours.memory("cpu", need(0.1), said.append),
    ):
        assert len(claims_in(tmp_path)) == 4
    assert not said and len(claims_in(tmp_path)) == 2


async def test_one_job_alone_is_admitted_whatever_it_needs(tmp_path: Path) -> None:
    async with asyncio.timeout(LONG_S), sharing(tmp_path).memory("cpu", need(99), print):
        assert len(claims_in(tmp_path)) == 2


async def test_who_stops_waiting_leaves_nothing_and_the_next_goes_on(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    said: list[Progress] = []

    async def wait(gib: float) -> None:
        async with sharing(tmp_path).memory("cpu", need(gib, f"of {gib}"), said.append):
            pass

    first = asyncio.create_task(wait(12))
    await until(lambda: said)
    second = asyncio.create_task(wait(2))  # it would fit, and is behind
    await until(lambda: len(said) == 2)
    assert not second.done() and "Block" in said[1].message
    first.cancel()
    await asyncio.wait_for(second, LONG_S)
    assert first.cancelled() and len(claims_in(tmp_path)) == 2
    end(holder)
    async with asyncio.timeout(LONG_S), sharing(tmp_path).memory("cpu", need(12), said.append):
        pass
    assert not claims_in(tmp_path)


async def test_a_folder_that_holds_no_files_is_no_reason_not_to_judge(tmp_path: Path) -> None:
    place = tmp_path / "claims"
    place.write_text("a file where the folder should be")
    async with asyncio.timeout(LONG_S), MemoryClaims(place).claimed(need(8), print):
        pass


PROGRAM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + {one}

def get_inputs():
    return [torch.rand(32, 16)]
"""


@pytest.mark.torch
async def test_a_judgement_waits_for_the_cpu_and_says_for_whom_and_what(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    made = request_from_files(PROGRAM.format(one="1"), PROGRAM.format(one="1.0"), device="cpu")
    budget = EvaluationBudget(compile_s=0, timing_s=0.3)
    said: list[Progress] = []
    async with Gate(device_sharing=sharing(tmp_path)) as gate:
        judging = asyncio.create_task(gate.evaluate(replace(made, budget=budget), said.append))
        await until(lambda: any(one.phase == "queue" for one in said))
        assert (
            f"waiting for kernel-lsp (pid {holder.pid}), which judges Block, on the same device"
            in [one.message for one in said]
        )
        end(holder)
        assert (await judging).status is EvalStatus.PASSED
    assert not claims_in(tmp_path)


@pytest.mark.torch
async def test_a_judgement_behind_another_of_its_process_says_so() -> None:
    made = request_from_files(PROGRAM.format(one="1"), PROGRAM.format(one="1.0"), device="cpu")
    asked = replace(made, require_speed=False)
    said: list[Progress] = []
    async with Gate() as gate:
        first = asyncio.create_task(gate.evaluate(asked))
        await asyncio.sleep(0.1)
        await asyncio.gather(first, gate.evaluate(asked, said.append))
    assert said[0].phase == "queue" and said[0].message == "waiting until Model is judged"
