"""A gate keeps what is costly to make, replaces what has died, and leaves nothing behind."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest
import pytest_asyncio

from kernel_lsp import phases, scratch
from kernel_lsp.errors import Withdrawn
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, Gate
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus

OF_OTHERS = ("multiprocessing.resource_tracker", "codegen_child.py", "training_child.py")
"""Processes that other tests leave in this one, for as long as it lives."""
pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]
REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + 1

def get_inputs():
    return [torch.rand(32, 16)]
"""


def request(body: str = "pass") -> EvaluationRequest:
    text = REFERENCE.replace("        return", f"        {body}\n        return")
    asked = request_from_files(REFERENCE, text, device="cpu")
    call_s = 5 if "while True" in body else 60
    return replace(asked, require_speed=False, budget=EvaluationBudget(call_s=call_s))


def children(name: str = "") -> list[psutil.Process]:
    """What the gate has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
            is_of_others = any(one in command for one in OF_OTHERS)
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            if name in command and not is_of_others and is_alive:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gate]:
    """Torch is imported once for all of these tests; closed, nothing of it is left."""
    folder = tmp_path_factory.mktemp("scratch")
    scratch.room()  # of this process, and lives as long: not in the folder that ends empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        async with Gate(
            device_sharing=DeviceSharing(SharingRules(data_dir=str(folder / "data"))), idle_s=60
        ) as gate:
            yield gate
        assert not children()
        assert not list(folder.glob("kernel-lsp-*"))


@pytest_asyncio.fixture(loop_scope="module")
async def gate(warm: Gate) -> AsyncIterator[Gate]:
    """With no reference open; what a test has asked of it has ended."""
    yield warm
    assert not children("evaluator.running")
    await warm._judges.close()
    assert not children("evaluator.judging")
    assert not [
        name for name in os.listdir(tempfile.gettempdir()) if name.startswith("kernel-lsp-")
    ]


async def test_the_judge_of_a_reference_stays_and_workers_go(gate: Gate) -> None:
    judges = []
    for _ in range(2):
        assert (await gate.evaluate(request())).status is EvalStatus.PASSED
        judges.append([process.pid for process in children("evaluator.judging.judge")])
        assert not children("evaluator.running.worker")
    assert judges[0] == judges[1] != []


@pytest.mark.parametrize(
    "body, status",
    [
        ("raise SystemExit", EvalStatus.RUNTIME_ERROR),
        ("x.untyped_storage().resize_(0); x.add_(1)", EvalStatus.RUNTIME_ERROR),
        ("while True: pass", EvalStatus.TIMED_OUT),
        ("x = x[:, :8]", EvalStatus.WRONG_RESULT),
    ],
    ids=["exit", "crash", "hang", "wrong"],
)
async def test_the_next_candidate_is_judged_rightly(
    body: str, status: EvalStatus, gate: Gate
) -> None:
    assert (await gate.evaluate(request(body))).status is status
    assert (await gate.evaluate(request())).status is EvalStatus.PASSED


async def test_who_is_not_wanted_any_more_is_not_timed_and_leaves_the_judge_to_others(
    gate: Gate,
) -> None:
    asked = replace(
        request(), require_speed=True, budget=EvaluationBudget(compile_s=0.0, timing_s=0.1)
    )
    with phases.collect_phases() as spent, pytest.raises(Withdrawn):
        await gate.evaluate(asked, wanted=lambda: False)
    assert "judge.compare" in spent.spans and "timer.prepare" in spent.spans
    assert not {"timer.baseline", "timer.load", "timer.time"} & spent.spans.keys()
    judges = [process.pid for process in children("evaluator.judging.judge")]
    assert not children("evaluator.running")
    assert (await gate.evaluate(request())).status is EvalStatus.PASSED
    assert judges == [process.pid for process in children("evaluator.judging.judge")] != []


async def test_a_judge_and_a_zygote_that_died_are_replaced(gate: Gate) -> None:
    assert (await gate.evaluate(request())).status is EvalStatus.PASSED
    for name in ("evaluator.judging.judge", "evaluator.processes.zygote"):
        for process in children(name):
            os.kill(process.pid, signal.SIGKILL)
        while children(name):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        assert (await gate.evaluate(request())).status is EvalStatus.PASSED


async def test_a_judge_of_whose_death_nobody_knows_yet_is_replaced(gate: Gate) -> None:
    assert (await gate.evaluate(request())).status is EvalStatus.PASSED
    zygotes = children("evaluator.processes.zygote")
    for zygote in zygotes:  # who would say so
        zygote.suspend()
    for judge in children("evaluator.judging.judge"):
        judge.kill()
    judging = asyncio.create_task(gate.evaluate(request()))
    await asyncio.sleep(0.5)
    for zygote in zygotes:
        zygote.resume()
    assert (await judging).status is EvalStatus.PASSED


async def test_cancelling_ends_the_judge_that_may_be_busy(gate: Gate) -> None:
    judging = asyncio.create_task(gate.evaluate(request("while True: pass")))
    while not children("evaluator.running.worker"):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    judging.cancel()
    await asyncio.gather(judging, return_exceptions=True)
    assert not children("evaluator.running.worker") and not children("evaluator.judging.judge")


async def test_an_idle_gate_holds_no_process(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_idle_s", 0.1)
    assert (await gate.evaluate(request())).status is EvalStatus.PASSED
    while children():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert (await gate.evaluate(request())).status is EvalStatus.PASSED
