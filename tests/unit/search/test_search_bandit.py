"""What has paid: statistics on disk, their order, and under which bottleneck they are kept."""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import search_helpers as helpers
from search_helpers import attempt, candidate, proposal, step, verdict

from kernel_lsp import tallies
from kernel_lsp.records import (
    ArmStats,
    Attempt,
    Bottleneck,
    EvalStatus,
    Evaluation,
    Timing,
    Verdict,
)
from kernel_lsp.search import bottleneck
from kernel_lsp.search.bandit import FILE, BanditArms, upper

MEMORY, COMPUTE, LAUNCH = Bottleneck.MEMORY, Bottleneck.COMPUTE, Bottleneck.LAUNCH
DEVICE = "cuda:sm_90"


def tried(name: str, speed: float | None, *skills: str, **more: Any) -> Attempt:
    """Judged once, under a name of its own."""
    made = replace(candidate([step(skill) for skill in skills], name=name), **more)
    found = attempt(0, speed, made)
    return found


def test_gains_are_shared_among_the_skills_of_a_candidate(tmp_path: Path) -> None:
    arms = BanditArms(tmp_path)
    arms.learn(tried("one", math.e**2, "f", "g"), MEMORY, DEVICE)
    arms.learn(tried("two", 0.5, "f"), MEMORY, DEVICE)  # right, and slower: gain 0
    arms.learn(tried("three", None, "f"), MEMORY, DEVICE)  # wrong
    f, g = arms.stats()
    assert (f.skill, f.tries, f.wins) == ("f", 3, 1) and f.gain_sum == pytest.approx(1.0)
    assert (g.skill, g.tries, g.wins) == ("g", 1, 1) and g.gain_squares == pytest.approx(1.0)
    assert f.mean_gain == pytest.approx(1 / 3)


def test_a_judgement_is_learned_once_however_often_it_is_told(tmp_path: Path) -> None:
    for _ in range(3):
        BanditArms(tmp_path).learn(tried("one", 2.0, "f"), MEMORY, DEVICE)
    assert [arm.tries for arm in BanditArms(tmp_path).stats()] == [1]


def test_what_a_model_wrote_counts_for_the_skills_that_it_had_read(tmp_path: Path) -> None:
    arms = BanditArms(tmp_path)
    arms.learn(tried("one", 2.0, advice=("f", "f")), COMPUTE, DEVICE)
    arms.learn(tried("two", 2.0), COMPUTE, DEVICE)  # none took part
    assert [(a.skill, a.tries, a.wins) for a in arms.stats()] == [("f", 1, 1)]


def test_what_was_not_judged_teaches_nothing(tmp_path: Path) -> None:
    arms = BanditArms(tmp_path)
    arms.learn(replace(tried("one", 2.0, "f"), proposal=None, complaint="no call"), MEMORY, DEVICE)
    assert arms.stats() == ()


def test_untried_skills_come_first_then_those_that_pay(tmp_path: Path) -> None:
    arms = BanditArms(tmp_path)
    for number in range(40):
        arms.learn(tried(f"good{number}", 2.0, "good"), MEMORY, DEVICE)
        arms.learn(tried(f"bad{number}", None, "bad"), MEMORY, DEVICE)
    assert arms.order(["bad", "good", "new", "newer"], MEMORY, DEVICE) == [
        "new",
        "newer",
        "good",
        "bad",
    ]
    assert arms.order(["bad", "good"], COMPUTE, DEVICE) == ["bad", "good"]  # nothing is known there
    assert arms.order(["bad", "good"], MEMORY, "cpu") == ["bad", "good"]


def test_the_bonus_of_ucb1_tuned_by_hand() -> None:
    """4 tries with gains 0, 0, 1, 1: mean 0.5, variance 0.25; among 100 tries ln(100) / 4 =
    1.151."""
    arm = ArmStats(
        skill="f", bottleneck=MEMORY, device=DEVICE, tries=4, gain_sum=2.0, gain_squares=2.0
    )
    often = math.log(100) / 4
    assert upper(arm, 100) == pytest.approx(0.5 + math.sqrt(often * 0.25))
    sure = ArmStats(
        skill="g", bottleneck=MEMORY, device=DEVICE, tries=1000, gain_sum=500.0, gain_squares=250.0
    )
    often = math.log(2000) / 1000
    assert upper(sure, 2000) == pytest.approx(0.5 + math.sqrt(often * math.sqrt(2 * often)))


def test_a_skill_tried_once_in_vain_gets_another_chance(tmp_path: Path) -> None:
    arms = BanditArms(tmp_path)
    arms.learn(tried("unlucky", None, "unlucky"), MEMORY, DEVICE)
    for number in range(200):
        arms.learn(tried(f"mild{number}", 1.06, "mild"), MEMORY, DEVICE)
    assert arms.order(["mild", "unlucky"], MEMORY, DEVICE) == ["unlucky", "mild"]


def _learn(folder: Path, first: int) -> None:
    tallies.PATIENCE_S = 120.0  # three may wait for each other as long as a slow disk takes
    for number in range(20):
        BanditArms(folder).learn(tried(f"{first}-{number}", 2.0, "f"), MEMORY, DEVICE)


def test_several_processes_add_to_one_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_learn, args=(tmp_path, n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(240)
        assert worker.exitcode == 0
    assert [arm.tries for arm in BanditArms(tmp_path).stats()] == [60]


def test_a_damaged_file_costs_the_statistics_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    arms = BanditArms(tmp_path)
    arms.learn(tried("one", 2.0, "f"), MEMORY, DEVICE)
    assert arms.stats() == () and arms.order(["b", "a"], MEMORY, DEVICE) == ["b", "a"]
    arms.learn(tried("two", 2.0, "f"), MEMORY, DEVICE)  # it has begun anew
    assert [arm.tries for arm in arms.stats()] == [1]


def test_reading_makes_no_file(tmp_path: Path) -> None:
    assert BanditArms(tmp_path / "new").stats() == ()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("status", [EvalStatus.NOT_RUN, EvalStatus.PASSED])
def test_what_was_not_timed_is_no_failure(tmp_path: Path, status: EvalStatus) -> None:
    found = tried("one", 2.0, "f")
    assert found.proposal is not None
    untimed = Evaluation(status=status, device="interpreter")
    BanditArms(tmp_path).learn(
        replace(found, fitness=None, proposal=replace(found.proposal, evaluation=untimed)),
        MEMORY,
        "cpu",
    )
    assert BanditArms(tmp_path).stats() == ()


# --- bottlenecks --------------------------------------------------------------------------------


def timed(call_ms: float, device_ms: float | None = None) -> Evaluation:
    def times(ms: float) -> tuple[Timing, ...]:
        return (
            Timing(
                provider="eager", median_ms=ms, p20_ms=ms, p80_ms=ms, num_reps=9, cold_cache=True
            ),
        )

    found = replace(verdict(2.0), timings=times(call_ms))
    return replace(found, device_timings=times(device_ms)) if device_ms else found


GB = 10**9


@pytest.mark.parametrize(
    ("read", "words", "evaluation", "expected"),
    [
        (None, ("add",), None, Bottleneck.UNKNOWN),
        (GB, ("add", "relu"), None, MEMORY),
        (GB, ("linear", "relu"), None, COMPUTE),
        (2**19, ("linear",), None, LAUNCH),  # half a megabyte
        (GB, ("linear",), timed(1.0, 0.4), LAUNCH),  # 60 % of the call are gone without launches
        (GB, ("linear",), timed(1.0, 0.9), COMPUTE),  # 4.8 TB/s move it in 0.21 ms
        (GB, ("linear",), timed(0.5, 0.45), MEMORY),  # ... which is 46 % of 0.45 ms
        (GB, ("add",), timed(9.0, 8.0), MEMORY),  # many kernels, each of which moves it all
    ],
)
def test_what_limits_a_target(
    read: int | None, words: tuple[str, ...], evaluation: Evaluation | None, expected: Bottleneck
) -> None:
    task = helpers.task(
        "cuda", device_name="NVIDIA H200", words=words, read_bytes=read, written_bytes=0
    )
    assert bottleneck.of(task, evaluation) is expected


def test_a_cpu_has_no_launches() -> None:
    assert bottleneck.of(helpers.task(words=("add",), read_bytes=100), None) is MEMORY


def test_helpers_tell_verified_from_right() -> None:
    assert proposal(candidate(name="x"), verdict(2.0)).verdict is Verdict.FASTER
    assert proposal(candidate(name="x"), verdict(2.0, full=False)).verdict is Verdict.CORRECT
