"""Baselines are made once for a job: before its first candidate, and again only where one was
loaded."""

import asyncio
import gc
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest
import pytest_asyncio

from kernel_lsp import phases, scratch
from kernel_lsp.errors import EvaluationError, Withdrawn
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, Gate
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus, Evaluation, Evidence

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
REFERENCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16))

    def forward(self, x):
        return torch.tanh(x * self.weight) + 1

def get_inputs():
    return [torch.rand(32, 16)]
"""
FULL = EvaluationBudget(compile_s=200, timing_s=0.2)
NO_COMPILER = replace(FULL, compile_s=0.1)
"""Torch.compile is asked for and takes longer: as costly as nothing, and as complete."""


def request(body: str = "pass", budget: EvaluationBudget = NO_COMPILER) -> EvaluationRequest:
    text = REFERENCE.replace("        return", f"        {body}\n        return")
    return replace(
        request_from_files(REFERENCE, text, device="cpu", timeout_s=500.0), budget=budget
    )


def timers() -> list[int]:
    return running("timer")


def running(name: str) -> list[int]:
    """Process ids of the children of this sort."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if f"evaluator.running.{name}" in " ".join(process.cmdline()):
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


async def until_ready(gate: Gate) -> None:
    async with asyncio.timeout(240):
        while not (gate._judges._benches and timers() and not _making(gate)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _making(gate: Gate) -> bool:
    return any(bench.timers.making for bench in gate._judges._benches.values())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gate]:
    """Torch is imported once for all of these tests."""
    folder = tmp_path_factory.mktemp("scratch")
    scratch.room()  # of this process, and lives as long: not in the folder that ends empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        async with Gate(
            device_sharing=DeviceSharing(SharingRules(data_dir=str(folder / "data"))), idle_s=60
        ) as gate:
            yield gate
        assert not list(folder.glob("kernel-lsp-*"))


@pytest_asyncio.fixture(loop_scope="module")
async def gate(warm: Gate) -> AsyncIterator[Gate]:
    """With no reference open."""
    yield warm
    assert not timers() and not running("worker")
    await warm._judges.close()


async def judged(gate: Gate, asked: EvaluationRequest) -> tuple[Evaluation, Evidence]:
    kept: list[Evidence] = []
    return await gate.evaluate(asked, keep=kept.append), kept[0]


async def test_what_was_made_before_the_first_candidate_serves_it_and_after_a_refusal_the_next(
    gate: Gate,
) -> None:
    with phases.collect_phases() as spent:
        async with gate.expecting(request(budget=FULL)):
            await until_ready(gate)
            assert "timer.prepare" in spent.spans and "judge.trial" not in spent.spans
            made = timers()
            with pytest.raises(Withdrawn):
                await gate.evaluate(request(budget=FULL), wanted=lambda: False)
            assert "timer.renew" not in spent.spans  # it had the session that was waiting
            wrong, first = await judged(gate, request("x = x + 1", FULL))
            assert wrong.status is EvalStatus.WRONG_RESULT and timers() == made
            right, second = await judged(gate, request(budget=FULL))
        assert not timers()
    assert len(spent.spans["timer.prepare"]) == len(spent.spans["judge.open"]) == 1
    assert "timer.renew" in spent.spans
    assert right.status is EvalStatus.PASSED and set(right.speedups) == {"eager", "compile"}
    assert any(check.name == "timed-outputs" and check.passed for check in right.checks)
    assert first.seed != second.seed


async def test_a_timer_where_a_candidate_was_loaded_serves_no_other_and_its_session_is_forgotten(
    gate: Gate,
) -> None:
    with phases.collect_phases() as spent:
        async with gate.expecting(request()):
            for _ in range(2):
                assert (await gate.evaluate(request())).status is EvalStatus.PASSED
                assert not timers()
                gc.collect()  # a session is over when nobody holds it
    assert len(spent.spans["judge.close"]) == 1  # when the second began
    assert len(spent.spans["timer.prepare"]) == 2 and "timer.renew" not in spent.spans


async def test_candidates_that_are_judged_at_once_have_sessions_and_seeds_of_their_own(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gate._places, "cpu", asyncio.Semaphore(2))
    async with gate.expecting(request()):
        await until_ready(gate)
        found = await asyncio.gather(*(judged(gate, request()) for _ in range(2)))
    assert {evaluation.status for evaluation, _ in found} == {EvalStatus.PASSED}
    assert len({kept.seed for _, kept in found}) == 2


async def test_giving_up_ends_what_is_being_made_and_a_candidate_may_come_all_the_same(
    gate: Gate,
) -> None:
    async with gate.expecting(request()) as give_up:
        while not timers():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        give_up()
        while timers():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert (await gate.evaluate(request())).status is EvalStatus.PASSED


async def test_a_spare_that_died_is_replaced(gate: Gate) -> None:
    async with gate.expecting(request()):
        await until_ready(gate)
        for pid in timers():
            psutil.Process(pid).kill()
        assert (await gate.evaluate(request())).status is EvalStatus.PASSED


async def test_a_reference_that_cannot_be_judged_by_is_refused_when_a_candidate_comes(
    gate: Gate,
) -> None:
    asked = request()
    broken = replace(asked.reference, source=asked.reference.source.replace("tanh(x", "tanhh(x"))
    asked = replace(asked, reference=broken)
    async with gate.expecting(asked):
        await asyncio.sleep(1)
        with pytest.raises(EvaluationError, match="tanhh"):
            await gate.evaluate(asked)


async def test_the_worker_of_the_first_candidate_is_there_before_it(gate: Gate) -> None:
    with phases.collect_phases() as spent:
        async with gate.expecting(request()):
            await until_ready(gate)
            while not spent.spans.get("worker.start"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            for _ in range(2):
                assert (await gate.evaluate(request())).status is EvalStatus.PASSED
            wrong, _ = await judged(gate, request("x = x + 1"))
    assert wrong.status is EvalStatus.WRONG_RESULT
    begun = [begin for begin, _ in spent.spans["worker.start"]]
    loaded = [begin for begin, _ in spent.spans["worker.load"]]
    assert len(begun) == len(loaded) == 3  # one process serves one candidate
    assert begun[1] > loaded[0]


async def test_a_worker_that_died_while_it_waited_is_replaced(gate: Gate) -> None:
    with phases.collect_phases() as spent:
        async with gate.expecting(request()):
            await until_ready(gate)
            while not running("worker"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            for pid in running("worker"):
                psutil.Process(pid).kill()
            assert (await gate.evaluate(request())).status is EvalStatus.PASSED
    assert len(spent.spans["worker.start"]) == 2 and not running("worker")
