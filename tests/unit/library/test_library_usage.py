"""Verified skills at work: what is counted, once, and when one has stopped helping."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.library.usage import PROPOSER, UsageStatistics, helps_no_more, skill_of
from kernel_lsp.records import (
    EvalStatus,
    Evaluation,
    Proposal,
    UsageStats,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from tests.unit.pipeline.test_pipeline_tournament import candidate, evaluation


def proposal(
    name: str, proposer: str, speed: float | None, verdict: Verdict = Verdict.CORRECT
) -> Proposal:
    """``speed`` over eager; None: its values were wrong."""
    found = (
        Evaluation(status=EvalStatus.WRONG_RESULT, device="cpu")
        if speed is None
        else evaluation(eager=speed)
    )
    made = candidate(name)
    return Proposal(
        id=name,
        fingerprint="before",
        fingerprint_after="after",
        qualname="Model",
        workload=Workload(name="w", origin=WorkloadOrigin.PRAGMA),
        candidate=type(made)(id=name, edit=None, program="", entry="Model", proposer=proposer),
        evaluation=found,
        verdict=verdict,
        created="2026-11-21T12:00:00",
    )


MINE = f"{PROPOSER}learned-a"


def test_a_use_is_a_win_when_it_is_the_offer_and_a_pair_when_something_stood_beside_it(
    tmp_path: Path,
) -> None:
    usage = UsageStatistics(tmp_path)
    assert usage.stats() == ()
    usage.count(
        [proposal("x", MINE, 3.0, Verdict.FASTER), proposal("y", "plan/2", 1.5)], "cuda:sm_90"
    )
    usage.count(
        [proposal("p", "plan/2", 4.0, Verdict.FASTER), proposal("q", MINE, 2.0)], "cuda:sm_90"
    )
    usage.count([proposal("alone", MINE, 2.0, Verdict.FASTER)], "cuda:sm_90")
    usage.count([proposal("elsewhere", MINE, None)], "cpu")
    (here, there) = sorted(usage.stats(), key=lambda one: -one.uses)
    assert (here.skill, here.hardware, here.uses, here.wins, here.pairs) == (
        "learned-a",
        "cuda:sm_90",
        3,
        2,
        2,
    )
    assert here.uplift_sum == pytest.approx(math.log(2) - math.log(2))
    assert here.uplift_squares == pytest.approx(2 * math.log(2) ** 2)
    assert (there.hardware, there.uses, there.wins, there.pairs) == ("cpu", 1, 0, 0)


def test_what_is_told_twice_counts_once(tmp_path: Path) -> None:
    told = [proposal("x", MINE, 2.0), proposal("y", "plan/2", 1.0)]
    for _ in range(3):
        UsageStatistics(tmp_path).count(told, "cpu")
    assert UsageStatistics(tmp_path).stats()[0].uses == 1


def test_wrong_or_slower_is_what_the_program_was(tmp_path: Path) -> None:
    UsageStatistics(tmp_path).count(
        [proposal("y", "plan/2", 1.5), proposal("x", MINE, None)], "cpu"
    )
    assert UsageStatistics(tmp_path).stats()[0].uplift_sum == pytest.approx(-math.log(1.5))


def test_what_was_timed_before_it_was_refused_is_what_the_program_was(tmp_path: Path) -> None:
    """And what is right and was not timed."""
    mine = proposal("x", MINE, 9.0)
    refused = replace(mine, evaluation=replace(mine.evaluation, status=EvalStatus.CHEATED))
    untimed = replace(mine, evaluation=replace(mine.evaluation, speedups={}))
    for one in (refused, untimed):
        usage = UsageStatistics(tmp_path / one.evaluation.status)
        usage.count([proposal("y", "plan/2", 1.5), one], "cpu")
        assert usage.stats()[0].uplift_sum == pytest.approx(-math.log(1.5))


def test_a_damaged_file_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "library" / "usage.db"
    path.parent.mkdir()
    path.write_bytes(b"no database" * 100)
    usage = UsageStatistics(tmp_path)
    assert usage.stats() == ()
    for name in ("x", "y"):
        usage.count([proposal(name, MINE, 2.0)], "cpu")
    assert usage.stats()[0].uses == 1 and path.with_suffix(".damaged").exists()


def stats(uses: int, wins: int, uplifts: list[float]) -> UsageStats:
    return UsageStats(
        skill="a",
        hardware="cpu",
        uses=uses,
        wins=wins,
        pairs=len(uplifts),
        uplift_sum=sum(uplifts),
        uplift_squares=sum(one**2 for one in uplifts),
    )


@pytest.mark.parametrize(
    ("found", "retired"),
    [
        (stats(8, 0, [-0.2] * 8), True),
        (stats(8, 0, [0.0] * 8), True),  # it changes nothing for the better
        (stats(8, 2, [-0.2] * 4), True),  # in a quarter of the jobs, and just enough pairs
        (stats(7, 0, [-0.2] * 7), False),  # too few
        (stats(8, 3, [-0.2] * 5), False),  # it is the offer often enough
        (stats(8, 2, [-0.2] * 3), False),  # too few pairs
        # Mean -0.05, deviation 0.3464 * 0.5 = 0.1732: 1.895 / sqrt(8) of it is 0.116, so the bound
        # is 0.066.
        (stats(8, 1, [-0.2, 0.1] * 4), False),
    ],
)
def test_retired_when_seldom_the_offer_and_surely_no_better(
    found: UsageStats, retired: bool
) -> None:
    assert (helps_no_more(found) is not None) == retired


def test_whose_candidate_it_is() -> None:
    assert skill_of(proposal("x", MINE, 2.0)) == "learned-a"
    assert skill_of(proposal("x", "plan/2", 2.0)) is None
