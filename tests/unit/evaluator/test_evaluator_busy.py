"""Three answers about speed; and what other programs take of the processors is nobody's cheat."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from test_evaluator_vetoes import Scripted, claims, outside, times

from kernel_lsp.evaluator import EvaluationBudget, Gate
from kernel_lsp.evaluator.findings import PartialEvaluation, Rejected
from kernel_lsp.evaluator.sharing.competing import CompetingLoad, Load
from kernel_lsp.evaluator.trials import shapes_of
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.evaluator.vetoes import Disturbance
from kernel_lsp.presenter import verdicts
from kernel_lsp.records import EvalStatus, Evaluation, Interval, SpeedAnswer

QUIET = Load(seconds=1.0, others=0.01, waited=0.01)
BUSY = Load(seconds=1.0, others=0.5, waited=0.9)


class KnownLoad(CompetingLoad):
    """Others' load as the test has it."""

    def __init__(self, *loads: Load) -> None:
        self.left = list(loads)

    def restart(self) -> None:
        pass

    def load(self) -> Load:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


# --- answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "interval, unsure, answer",
    [
        ((1.2, 1.3, 1.4), "", SpeedAnswer.FASTER),
        ((1.2, 1.3, 1.4), "a busy machine", SpeedAnswer.FASTER),
        ((0.9, 1.0, 1.1), "", SpeedAnswer.NOT_FASTER),
        ((0.9, 1.0, 1.1), "a busy machine", SpeedAnswer.NOT_SURE),
        ((0.5, 0.6, 0.9), "a busy machine", SpeedAnswer.NOT_FASTER),
    ],
)
def test_a_right_candidate_is_faster_or_not_or_it_is_not_sure(
    interval: tuple[float, float, float], unsure: str, answer: SpeedAnswer
) -> None:
    low, mid, high = interval
    speedups = {"eager": Interval(low=low, mid=mid, high=high)}
    found = Evaluation(status=EvalStatus.PASSED, device="cpu", speedups=speedups, unsure=unsure)
    assert found.speed_answer() is answer
    assert found.disturbed is (answer is SpeedAnswer.NOT_SURE)
    assert any(unsure in line for line in verdicts.evaluation_lines(found))


def test_what_is_wrong_has_no_answer_about_speed() -> None:
    assert Evaluation(status=EvalStatus.WRONG_RESULT, device="cpu").speed_answer() is None


# --- vetoes ---------------------------------------------------------------------------------


async def sabotage(load: CompetingLoad | None) -> PartialEvaluation:
    found = claims()
    disturbance = Disturbance(
        Scripted(baseline=times(1.5)), Scripted(baseline=times(1.0)),
        times(1.0)()["clean_ms"], 10, found, load,
    )  # fmt: skip
    await disturbance.settle(1.5)
    return found


async def test_a_reference_that_is_slow_beside_the_candidate_is_no_cheat_on_a_busy_machine() -> (
    None
):
    found = await sabotage(KnownLoad(BUSY))
    assert "50%" in found.unsure and found.speedups["eager"].mid < 2.0


@pytest.mark.parametrize("load", [None, KnownLoad(QUIET), KnownLoad(BUSY, BUSY, QUIET)])
async def test_in_quiet_moments_it_is_one(load: CompetingLoad | None) -> None:
    with pytest.raises(Rejected, match="slows the reference"):
        await sabotage(load)


async def clocked(load: CompetingLoad) -> PartialEvaluation:
    return await outside(
        {"eager": 2e-3, "candidate": 8e-3}, {"eager": 2.5, "candidate": 2.0}, load=load
    )


async def test_the_parents_clock_condemns_in_quiet_moments_only() -> None:
    assert "while other programs" in (await clocked(KnownLoad(BUSY))).unsure
    with pytest.raises(Rejected, match="cannot be true"):
        await clocked(KnownLoad(QUIET))


# --- a real busy program --------------------------------------------------------------------


@contextlib.contextmanager
def a_busy_program() -> Iterator[None]:
    """All processors that this process may use are used by another one's children; it is not
    ours."""
    loop = "while True: pass"
    launcher = (
        "import subprocess, sys;"
        f"made = [subprocess.Popen([sys.executable, '-c', {loop!r}], stdout=subprocess.DEVNULL)"
        f" for _ in range({len(os.sched_getaffinity(0))})];"
        "print(*[one.pid for one in made], flush=True)"
    )
    told = subprocess.run(
        [sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True, check=True, timeout=30
    )
    pids = list(map(int, told.stdout.split()))
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def test_what_others_take_is_seen_and_what_is_ours_is_not() -> None:
    with a_busy_program():
        load = CompetingLoad(os.getpid())
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            sum(range(1000))
        assert load.load().busy


REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + 1

def get_inputs():
    return [torch.rand(256, 256)]
"""
HONEST = REFERENCE + "# the same in other words\n"
CHEAT = REFERENCE.replace(
    "        return torch", "        torch.set_num_threads(1)\n        return torch"
)
"""It slows its original down, which it is timed beside."""


def test_a_verdict_says_which_sizes_it_stands_for() -> None:
    one = {"kind": "tensor", "dtype": "float32", "shape": [8, 4], "file": "x"}
    encoded = {"kind": "list", "items": [{"kind": "list", "items": [one, {"kind": "int"}]}, []]}
    assert shapes_of(encoded) == ("float32[8, 4]",)
    found = Evaluation(
        status=EvalStatus.PASSED, device="cpu", shapes=(("float32[8, 4]",), ("float32[9, 4]",))
    )
    lines = list(verdicts.evaluation_lines(found))
    assert any("stands for float32[8, 4]; right also at float32[9, 4]" in line for line in lines)


@pytest.mark.torch
async def test_beside_a_busy_program_the_honest_is_no_cheat_and_a_cheat_is_refused() -> None:
    budget = EvaluationBudget(compile_s=0.0, timing_s=0.6)
    asked = [
        replace(request_from_files(REFERENCE, text, device="cpu", inference=True), budget=budget)
        for text in (HONEST, CHEAT)
    ]
    async with Gate() as gate:
        await gate.evaluate(replace(asked[0], require_speed=False))
        with a_busy_program():
            honest, cheat = [await gate.evaluate(request) for request in asked]
    assert honest.status is EvalStatus.PASSED
    assert honest.shapes[0] == ("float32[256, 256]",) and len(honest.shapes) > 2
    assert honest.speed_answer() in (SpeedAnswer.NOT_SURE, SpeedAnswer.NOT_FASTER)
    assert honest.environment["others_load"] > 0.1
    assert cheat.status is EvalStatus.CHEATED
