"""Who is judged how thoroughly, and what may be called faster: hand-made evaluations, no
processes."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.evaluator import evidence
from kernel_lsp.evaluator.findings import PartialEvaluation
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline import tournament
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.pipeline.tournament import FULL, QUICK, Tournament, saved_microseconds, verdict
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    Interval,
    Job,
    Progress,
    SearchJudgement,
    SourceEdit,
    Timing,
    Verdict,
)

TEXT = (
    "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
    "    def forward(self, x):\n        return x.sum(1)\n\n\n"
    "def get_inputs():\n    return [torch.ones(2, 2)]\n"
)


def evaluation(
    *, eager: float | None = 2.0, compiled: float | None = None, low: float = 0.9, ms: float = 1.0
) -> Evaluation:
    """A passed evaluation: candidate ``ms``, speedups as given, lower bound ``low`` times the
    middle."""
    speedups = {"eager": eager, "compile": compiled}
    known = {
        k: Interval(low=v * low, mid=v, high=v * 1.1) for k, v in speedups.items() if v is not None
    }
    times = {"candidate": ms, **{k: ms * v.mid for k, v in known.items()}}
    timings = tuple(
        Timing(provider=k, median_ms=v, p20_ms=v, p80_ms=v, num_reps=10, cold_cache=True)
        for k, v in times.items()
    )
    return Evaluation(status=EvalStatus.PASSED, device="cpu", timings=timings, speedups=known)


def prepared() -> PreparedJob:
    found = prepare(Job(text=TEXT, path="model.py", qualname="Model"))
    assert isinstance(found, PreparedJob)
    return found


def candidate(name: str) -> Candidate:
    body = (
        f'class Model(nn.Module):\n    def forward(self, x):\n        "{name}"\n        return '
        f"x.sum(-1)\n"
    )
    edit = SourceEdit(qualname="Model", target=body)
    return Candidate(id=name, edit=edit, program="", entry="Model", summary=name)


async def play(
    results: dict[tuple[str, bool], Evaluation],
) -> tuple[list[tuple[str, bool]], list[str], list[str]]:
    """(what was judged and whether in full, the final order, what was announced as verified)."""
    judged: list[tuple[str, bool]] = []
    announced: list[str] = []

    async def judge(request: tournament.EvaluationRequest, *_: object) -> Evaluation:
        name = request.candidate_source.split('"')[1]
        judged.append((name, request.budget is FULL))
        return results[judged[-1]]

    def report(progress: Progress) -> None:
        if progress.proposal:
            announced.append(progress.proposal.candidate.id)

    names = list(dict.fromkeys(name for name, _ in results))
    arena = Tournament(
        prepared=prepared(),
        probe=Probe(python="python"),
        device="cpu",
        settings=Settings(),
        judge=judge,
        report=report,
    )
    ranked = await arena.run([candidate(name) for name in names])
    return judged, [f"{p.candidate.id} {p.verdict.value}" for p in ranked], announced


async def test_only_the_first_guess_is_judged_in_full_when_no_other_looks_better() -> None:
    results = {
        ("a", True): evaluation(eager=2.0, compiled=1.5),
        ("b", False): evaluation(eager=2.05),
    }
    judged, ranked, announced = await play(results)
    assert judged == [("a", True), ("b", False)]
    assert ranked == ["a faster", "b correct"]
    assert announced == ["a"]


async def test_what_looks_better_is_judged_again_and_only_the_second_number_counts() -> None:
    results = {
        ("a", True): evaluation(eager=2.0, compiled=1.5),
        ("b", False): evaluation(eager=4.0),
        ("b", True): evaluation(eager=1.8, compiled=1.4),
    }
    judged, ranked, _ = await play(results)
    assert judged == [("a", True), ("b", False), ("b", True)]
    assert ranked == ["a faster", "b faster"]


@pytest.mark.parametrize(("device", "most"), [("cpu", 1), ("cuda", 4)])
async def test_quick_judgements_run_side_by_side_on_a_gpu_only(device: str, most: int) -> None:
    running, highest = 0, 0

    async def judge(request: tournament.EvaluationRequest, *_: object) -> Evaluation:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(0.01)
        running -= 1
        return evaluation(eager=1.0)

    names = [f"c{number}" for number in range(7)]
    made = Tournament(
        prepared=prepared(),
        probe=Probe(python="python"),
        device=device,
        settings=Settings(),
        judge=judge,
        report=lambda progress: None,
    )
    found = await made.run([candidate(name) for name in names])
    assert highest == most and sorted(p.candidate.id for p in found) == names


async def test_a_quick_result_alone_is_never_offered() -> None:
    wrong = Evaluation(status=EvalStatus.WRONG_RESULT, device="cpu")
    results = {("a", True): wrong, ("b", False): evaluation(eager=3.0), ("b", True): wrong}
    _, ranked, announced = await play(results)
    assert ranked == ["a rejected", "b rejected"]
    assert announced == []


async def test_challenges_are_bounded() -> None:
    slow = evaluation(eager=0.9, compiled=0.9)
    results = {("a", True): slow}
    for name in "bcde":
        results |= {(name, False): evaluation(eager=3.0), (name, True): slow}
    judged, _, _ = await play(results)
    assert sum(full for _, full in judged) == 1 + tournament.MAX_CHALLENGES


async def test_an_edit_that_loses_the_target_is_rejected_without_running_anything() -> None:
    async def never(*_: object) -> Evaluation:
        raise AssertionError("nothing may be run")

    arena = Tournament(
        prepared=prepared(),
        probe=Probe(python="python"),
        device="cpu",
        settings=Settings(),
        judge=never,
        report=lambda progress: None,
    )
    lost = Candidate(
        id="x", edit=SourceEdit(qualname="Model", target="x = 1\n"), program="", entry="Model"
    )
    (proposal,) = await arena.run([lost])
    assert proposal.verdict is Verdict.REJECTED


@pytest.mark.parametrize(
    ("result", "complete", "expected"),
    [
        (evaluation(eager=2.0, compiled=1.5), True, Verdict.FASTER),
        (evaluation(eager=2.0, compiled=1.5), False, Verdict.CORRECT),
        (evaluation(eager=2.0, compiled=1.0), True, Verdict.FASTER),  # as fast as torch.compile
        (evaluation(eager=2.0, compiled=0.9), True, Verdict.CORRECT),  # which is the better offer
        (evaluation(eager=1.15, compiled=1.15), True, Verdict.CORRECT),  # lower bound 1.035 < 1.05
        (
            evaluation(eager=2.0, compiled=2.0, ms=0.001),
            True,
            Verdict.CORRECT,
        ),  # saves 1 us of the 2 asked for
        (evaluation(eager=None), True, Verdict.CORRECT),
        (Evaluation(status=EvalStatus.NOT_RUN, device="cpu"), True, Verdict.UNKNOWN),
        (Evaluation(status=EvalStatus.CHEATED, device="cpu"), True, Verdict.REJECTED),
    ],
)
def test_faster_is_against_how_it_runs_now_never_behind_torch_compile_and_saves_something(
    result: Evaluation, complete: bool, expected: Verdict
) -> None:
    assert verdict(result, Settings(), complete=complete) is expected


def test_without_torch_compile_it_is_no_offer_and_no_bar() -> None:
    without, behind = Settings(torch_compile=False), evaluation(eager=2.0, compiled=0.5)
    assert verdict(behind, without, complete=True) is Verdict.FASTER
    assert verdict(behind, without, complete=True, compiles=True) is Verdict.CORRECT
    assert verdict(behind, Settings(), complete=True, compiles=True) is Verdict.FASTER


def test_the_saving_is_against_how_it_runs_now() -> None:
    assert saved_microseconds(evaluation(eager=3.0, compiled=1.5, ms=2.0)) == pytest.approx(4000.0)
    assert saved_microseconds(evaluation(eager=None)) is None


def test_quick_means_no_compiled_baseline() -> None:
    assert QUICK.compile_s == 0.0 < FULL.compile_s


def test_the_background_gets_more_time_and_the_same_thoroughness() -> None:
    def request(background: bool) -> tournament.EvaluationRequest:
        found = prepared()
        arena = Tournament(
            prepared=dataclasses.replace(
                found, job=dataclasses.replace(found.job, background=background)
            ),
            probe=Probe(python="python"),
            device="cpu",
            settings=Settings(evaluate_timeout_s=100),
            judge=lambda *_: asyncio.sleep(0, evaluation()),
            report=lambda progress: None,
        )
        return arena._request(candidate("a"), FULL)

    asked, behind = request(False), request(True)
    assert asked.budget is FULL and asked.timeout_s == 100 and behind.timeout_s == 400
    assert behind.budget.call_s == 4 * FULL.call_s and behind.budget.timing_s == FULL.timing_s


def kept(tmp_path: Path, judged: list[bool]) -> Tournament:
    """A tournament whose judge leaves evidence and notes whether it was asked in full."""

    async def judge(request: Any, report: Any, keep: Any, wanted: Any) -> Evaluation:
        judged.append(request.budget is FULL)
        found = evaluation(eager=2.0, compiled=1.5 if request.budget is FULL else None)
        keep(evidence.gather(evidence.with_seed(request), PartialEvaluation(), found))
        return found

    return Tournament(
        prepared=prepared(),
        probe=Probe(python="python"),
        device="cpu",
        settings=Settings(data_dir=str(tmp_path)),
        judge=judge,
        report=lambda progress: None,
    )


def damaged(judged: SearchJudgement) -> None:
    Path(str(judged.proposal.evidence)).write_text("{")


async def test_a_search_gets_the_verdict_with_what_it_rests_on(tmp_path: Path) -> None:
    asked: list[bool] = []
    arena = kept(tmp_path, asked)
    made = dataclasses.replace(
        candidate("a"), proposer="vllm:m", move="refine", turn=3, search="0f#7"
    )
    quick, full = await arena.judged(made, full=False), await arena.judged(made, full=True)
    assert asked == [False, True]
    assert (quick.proposal.verdict, full.proposal.verdict) == (Verdict.CORRECT, Verdict.FASTER)
    assert full.evidence is not None and full.evidence.provenance == made.provenance
    assert full.proposal.evidence is not None
    assert evidence.read(Path(full.proposal.evidence)) == full.evidence


async def test_a_verdict_is_recalled_for_its_own_attempt_and_thoroughness_alone(
    tmp_path: Path,
) -> None:
    arena = kept(tmp_path, [])
    made = dataclasses.replace(candidate("a"), search="0f#7")
    assert arena.recalled(made, full=True) is None
    judged = await arena.judged(made, full=True)
    again = arena.recalled(made, full=True)
    assert again is not None and again.evidence == judged.evidence
    assert dataclasses.replace(again.proposal, created="") == dataclasses.replace(
        judged.proposal, created=""
    )
    assert arena.recalled(made, full=False) is None
    assert arena.recalled(dataclasses.replace(made, search="0f#8"), full=True) is None
    assert arena.recalled(dataclasses.replace(made, search=None), full=True) is None
    other = dataclasses.replace(made, edit=candidate("b").edit)  # the file was edited meanwhile
    assert arena.recalled(other, full=True) is None
    damaged(judged)
    assert arena.recalled(made, full=True) is None


async def test_an_edit_that_loses_the_target_is_a_verdict_without_evidence(tmp_path: Path) -> None:
    asked: list[bool] = []
    lost = Candidate(
        id="x", edit=SourceEdit(qualname="Model", target="x = 1\n"), program="", entry="Model"
    )
    found = await kept(tmp_path, asked).judged(lost, full=False)
    assert found.proposal.evaluation.status is EvalStatus.COMPILE_ERROR
    assert found.evidence is None and asked == []
