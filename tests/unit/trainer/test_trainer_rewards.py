"""Rewards against numbers worked by hand; faults of released code that are not repeated."""

import math
from dataclasses import replace

import pytest

from kernel_lsp.records import EvalStatus, Evaluation, Interval
from trainer.algorithms import rewards
from trainer.algorithms.rewards import JudgedTurn, RewardedRollout
from trainer.data.reading import outcome_of
from trainer.records import Agent, Human, ModelTurn, TurnOutcome, TurnStatus

FAILED = JudgedTurn(correct=False)
GOOD = JudgedTurn(
    correct=True,
    speedup=2.0,
    lower=1.5,
    over_eager=1.9,
    over_compile=1.2,
    coverage=0.6,
    parent=1.25,
)


def turn(
    status: TurnStatus, correct: bool | None = True, human: Human | None = None, **speedups: float
) -> ModelTurn:
    intervals = {
        name: Interval(low=mid * 0.9, mid=mid, high=mid * 1.1) for name, mid in speedups.items()
    }
    outcome = TurnOutcome(status=status, correct=correct, speedups=intervals, coverage=0.5)
    return ModelTurn(number=0, agent=Agent.POLICY, outcome=outcome, human=human)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("davinci", 0.5 + 0.5 * 2.0 + 0.5 * 0.6),
        ("dr_kernel", 1 + 2.0 + 0.6),
        ("kevin", 0.3 + 2.0),
        ("parent_relative", 2.0 / 1.25),
        ("milestone", 3.0),
        ("bound", 0.5 + math.log(1.5)),
    ],
)
def test_a_good_turn(name: str, expected: float) -> None:
    terms = rewards.REWARDS[name](GOOD)
    assert terms is not None and rewards.total(terms) == pytest.approx(expected)


@pytest.mark.parametrize("name", rewards.REWARDS)
def test_a_failed_turn_earns_least_and_is_known(name: str) -> None:
    terms = rewards.REWARDS[name](FAILED)
    assert terms is not None and rewards.total(terms) == (-1.0 if name == "milestone" else 0.0)


@pytest.mark.parametrize("name", rewards.REWARDS)
def test_right_and_not_timed_is_unknown_not_zero(name: str) -> None:
    assert rewards.REWARDS[name](JudgedTurn(correct=True)) is None


def test_speedups_are_capped_where_the_paper_caps_them() -> None:
    fast = JudgedTurn(correct=True, speedup=50.0, lower=50.0, coverage=1.0)
    assert rewards.davinci(fast) == {"correct": 0.5, "speed": 3.0, "coverage": 0.5}
    assert rewards.dr_kernel(fast) == {"correct": 1.0, "speed": 3.0, "coverage": 1.0}
    assert rewards.kevin(fast) == {"correct": 0.3, "speed": 50.0}
    assert rewards.bound(fast) == {"correct": 0.5, "speed": pytest.approx(math.log(6))}


def test_a_slow_right_one_never_earns_less_than_a_failure() -> None:
    slow = rewards.bound(JudgedTurn(correct=True, lower=0.01))
    assert slow is not None and rewards.total(slow) == 0.0


@pytest.mark.parametrize(
    ("eager", "compiled", "expected"),
    [(1.05, 2.0, 1.0), (1.06, 1.05, 2.0), (1.06, 1.06, 3.0), (0.5, None, 1.0)],
)
def test_milestones_are_strict(eager: float, compiled: float | None, expected: float) -> None:
    found = JudgedTurn(correct=True, over_eager=eager, over_compile=compiled)
    assert rewards.milestone(found) == {"milestone": expected}


def test_a_milestone_that_was_not_measured_is_unknown() -> None:
    assert rewards.milestone(JudgedTurn(correct=True, over_eager=1.5)) is None


@pytest.mark.parametrize("correct", [True, False])
def test_the_human_outcome_is_a_named_term(correct: bool) -> None:
    found = {
        human: rewards.bound(JudgedTurn(correct=correct, lower=1.0, human=human))
        for human in (*Human, None)
    }
    assert found[None] is not None and "human" not in found[None]
    ranked = [Human.KEPT, Human.ACCEPTED, Human.DISMISSED, Human.REVERTED]
    values = [found[human]["human"] for human in ranked]  # type: ignore[index]
    assert values == [0.25, 0.1, -0.1, -0.25]


def test_a_kept_rewrite_does_not_beat_one_that_is_half_again_as_fast() -> None:
    kept = rewards.bound(JudgedTurn(correct=True, lower=1.0, human=Human.KEPT))
    fast = rewards.bound(JudgedTurn(correct=True, lower=1.5))
    assert kept and fast and rewards.total(kept) < rewards.total(fast)


def test_a_turn_becomes_numbers() -> None:
    found = rewards.judge_turn(
        turn(TurnStatus.PASSED, eager=2.0, compile=1.5), turn(TurnStatus.PASSED, eager=1.6)
    )
    assert found == JudgedTurn(
        correct=True,
        speedup=2.0,
        lower=pytest.approx(1.35),
        over_eager=pytest.approx(1.8),
        over_compile=pytest.approx(1.35),
        coverage=0.5,
        parent=1.6,
    )


def test_a_decoy_is_not_right_whatever_its_values_were() -> None:
    found = rewards.judge_turn(turn(TurnStatus.CHEATED, correct=True, eager=9.0))
    assert found is not None and not found.correct
    for reward in rewards.REWARDS.values():
        assert rewards.total(reward(found) or {}) <= 0.0


@pytest.mark.parametrize("status", [TurnStatus.NOT_RUN, TurnStatus.NONE])
def test_what_nobody_could_judge_has_no_reward(status: TurnStatus) -> None:
    assert rewards.judge_turn(turn(status, correct=None)) is None


def test_a_parent_that_failed_is_no_parent() -> None:
    found = rewards.judge_turn(
        turn(TurnStatus.PASSED, eager=2.0), turn(TurnStatus.WRONG_RESULT, correct=False)
    )
    assert found is not None and rewards.parent_relative(found) == {"speed": 2.0}


def test_a_stored_parent_is_divided_by() -> None:
    """Kernel-Smith: 1.8x from a parent of 1.5x earns 1.2."""
    stored = turn(TurnStatus.PASSED, eager=1.5).outcome
    child = replace(turn(TurnStatus.PASSED, eager=1.8), parent_outcome=stored)
    found = rewards.judge_turn(child)
    assert found is not None
    assert rewards.parent_relative(found) == {"speed": pytest.approx(1.2)}


@pytest.mark.parametrize(
    ("coverage", "triton", "known", "reward"),
    [
        (None, False, 0.0, 1 + 2.0 + 0.0),  # nothing of its own: no profile is needed for that
        (None, True, None, None),
        (None, None, None, None),
        (0.6, True, 0.6, 1 + 2.0 + 0.6),
    ],
)
def test_coverage_is_as_profiled_and_0_without_kernels(
    coverage: float | None, triton: bool | None, known: float | None, reward: float | None
) -> None:
    """Dr. Kernel: r = C + C min(s, 3) + C PR with s = 2; an unprofiled kernel is unknown."""
    passed = Evaluation(
        status=EvalStatus.PASSED,
        device="cuda",
        coverage=coverage,
        speedups={"eager": Interval(low=1.9, mid=2.0, high=2.1)},
    )
    outcome = outcome_of(passed, True, triton)
    assert outcome.coverage == known
    found = rewards.judge_turn(ModelTurn(number=0, agent=Agent.POLICY, outcome=outcome))
    assert found is not None
    terms = rewards.dr_kernel(found)
    assert (None if terms is None else rewards.total(terms)) == reward


def test_what_failed_has_no_coverage() -> None:
    wrong = Evaluation(status=EvalStatus.WRONG_RESULT, device="cuda", coverage=0.9)
    assert outcome_of(wrong, True, False).coverage is None


# --- selections ----------------------------------------------------------------------------------


def rollout(name: str, scheme: str, skills: str, *values: float) -> RewardedRollout:
    return RewardedRollout(id=name, scheme=scheme, skills=frozenset(skills), rewards=values)


def test_a_scheme_is_the_mean_of_its_rollouts_best_turns() -> None:
    rollouts = [rollout("a", "1", "x", 0.0, 3.0), rollout("b", "1", "x", 1.0, 0.5)]
    assert rewards.schemes(rollouts) == {"1": 2.0}
    assert rewards.schemes(rollouts, over_turns="first") == {"1": 0.5}
    assert rewards.schemes(rollouts, over_turns="mean", over_rollouts="max") == {"1": 1.5}


def test_every_rollout_of_a_scheme_counts() -> None:
    """Fault 1: a shared id keeps the last rollout alone."""
    with pytest.raises(ValueError, match="id of its own"):
        rewards.schemes([rollout("a", "1", "x", 1.0), rollout("a", "1", "x", 2.0)])


def test_the_null_scheme_is_among_the_schemes() -> None:
    """Fault 2: the released code leaves it out of the baseline."""
    found = rewards.schemes([rollout("a", "1", "x", 2.0), rollout("b", "null", "", 1.0)])
    assert found == {"1": 2.0, "null": 1.0}


def test_schemes_with_the_same_skills_are_pooled() -> None:
    found = rewards.schemes(
        [rollout("a", "1", "xy", 2.0), rollout("b", "2", "yx", 4.0), rollout("c", "3", "x", 1.0)]
    )
    assert found == {"1": 3.0, "2": 3.0, "3": 1.0}


def test_a_scheme_without_any_reward_is_not_zero() -> None:
    assert rewards.schemes([rollout("a", "1", "x"), rollout("b", "2", "y", 0.0)]) == {"2": 0.0}


def test_a_summary_earns_the_mean_uplift_of_its_best_draft_elsewhere() -> None:
    assert rewards.summary([[0.2, 0.4], [0.5, -0.3]]) == pytest.approx(0.3)
    assert rewards.summary([[-0.2]]) == 0.0
    assert rewards.summary([[]]) == rewards.summary([]) == 0.0
