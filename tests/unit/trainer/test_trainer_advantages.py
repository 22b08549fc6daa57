"""Advantages against numbers worked by hand; their sums and scales as properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.algorithms import advantages, rollout_credit
from trainer.algorithms.advantages import ADVANTAGES, AdvantageRow
from trainer.config import Rl
from trainer.records import Agent


def policy(
    rollout: str, *rewards: float, task: str = "t", final: float | None = None
) -> list[AdvantageRow]:
    return [
        AdvantageRow(
            agent=Agent.POLICY, task=task, rollout=rollout, step=step, reward=reward, final=final
        )
        for step, reward in enumerate(rewards)
    ]


def other(agent: Agent, *rewards: float, task: str = "t") -> list[AdvantageRow]:
    return [
        AdvantageRow(agent=agent, task=task, rollout=f"{agent}{i}", reward=r)
        for i, r in enumerate(rewards)
    ]


def test_returns_credit_what_a_turn_made_possible() -> None:
    assert advantages.discounted_returns([1.0, 2.0, 3.0], 1.0) == [6.0, 5.0, 3.0]
    assert advantages.discounted_returns([1.0, 2.0, 3.0], 0.4) == pytest.approx([2.28, 3.2, 3.0])


def test_trloo_compares_with_the_mean_of_the_others_turn_by_turn() -> None:
    # Returns: a (3, 1), b (1, 1), c (2, -): turn 0 has three rows, turn 1 two.
    rows = [*policy("a", 2, 1), *policy("b", 0, 1), *policy("c", 2)]
    found = advantages.trloo(rows)
    assert found == pytest.approx([3 - 1.5, 0.0, 1 - 2.5, 0.0, 2 - 2.0])


def test_trloo_groups_over_all_schemes_of_a_task() -> None:
    """Fault 3: not by scheme. Two rollouts of each of two schemes are one group of four."""
    rows = [*policy("s1/a", 1), *policy("s1/b", 1), *policy("s2/a", 3), *policy("s2/b", 3)]
    assert advantages.trloo(rows) == pytest.approx([-4 / 3, -4 / 3, 4 / 3, 4 / 3])


def test_tasks_are_never_compared() -> None:
    rows = [*policy("a", 1, task="x"), *policy("b", 3, task="x"), *policy("a", 100, task="y")]
    assert advantages.trloo(rows) == pytest.approx([-2, 2, 100])  # alone: A = G


def test_selection_and_summary_leave_one_out_with_their_weights() -> None:
    rows = [*other(Agent.SELECTION, 1, 2, 6), *other(Agent.SUMMARY, 0, 2)]
    expected = [0.3 * (1 - 4), 0.3 * (2 - 3.5), 0.3 * (6 - 1.5), 0.5 * -2, 0.5 * 2]
    for scheme in ("trloo", "grpo", "kevin"):
        assert ADVANTAGES[scheme](rows, 1.0) == pytest.approx(expected)


def test_a_selection_alone_teaches_nothing() -> None:
    assert advantages.trloo(other(Agent.SELECTION, 5.0)) == [0.0]


def test_grpo_has_the_row_itself_in_its_mean() -> None:
    rows = [
        row for name, reward in zip("abc", (1, 2, 3), strict=True) for row in policy(name, reward)
    ]
    assert advantages.grpo(rows) == pytest.approx([-1, 0, 1], abs=1e-5)


def test_kevin_scores_all_turns_of_all_rollouts_together() -> None:
    rows = [*policy("a", 1.0, 0.0), *policy("b", 0.0, 2.0)]
    returns = [1.0, 0.0, 0.8, 2.0]  # gamma 0.4
    mean, deviation = 0.95, math.sqrt(sum((r - 0.95) ** 2 for r in returns) / 3)
    assert advantages.kevin(rows) == pytest.approx(
        [(r - mean) / deviation for r in returns], abs=1e-5
    )


def test_a_recipe_that_names_no_gamma_has_the_papers() -> None:
    """Kevin's returns are discounted by 0.4: 1 + 0.4 x 2 = 1.8 against 2 and 0 + 0.4 x 0 = 0, 0."""
    rows = [*policy("a", 1.0, 2.0), *policy("b", 0.0, 0.0)]
    told = rollout_credit.weigh_rows(rows, Rl(advantage="kevin"))
    # mean 0.95, deviation sqrt((0.85^2 + 1.05^2 + 0.95^2 + 0.95^2) / 3) = 1.0999
    assert told == pytest.approx([0.7728, 0.9546, -0.8637, -0.8637], abs=1e-3)
    assert told == advantages.kevin(rows, 0.4)
    assert rollout_credit.weigh_rows(rows, Rl(advantage="kevin", gamma=1.0)) == advantages.kevin(
        rows, 1.0
    )
    assert rollout_credit.weigh_rows(rows, Rl(advantage="trloo")) == pytest.approx([3, 2, -3, -2])


def test_shared_credits_every_agent_of_a_rollout_alike() -> None:
    selection = AdvantageRow(agent=Agent.SELECTION, task="t", rollout="1", reward=0.0, final=4.0)
    rows = [selection, *policy("1", 1, 4, final=4.0), *policy("2", 1, 0, final=1.0)]
    found = advantages.shared_advantages(rows)
    assert found[0] == found[1] == found[2] == pytest.approx(5 / 4 * (4 - 2.8))
    assert found[3] == found[4] == pytest.approx(5 / 4 * (1 - 2.8))


def test_rollouts_with_one_id_are_refused() -> None:
    """Fault 1 again: their turns would become one rollout of twice the length."""
    with pytest.raises(ValueError, match="unique"):
        advantages.trloo([*policy("a", 1, 2), *policy("a", 3)])


def test_scaling_by_the_mean_size_leaves_selections_alone() -> None:
    rows = [*policy("a", 0), *policy("b", 0), *other(Agent.SELECTION, 0)]
    assert advantages.mean_absolute([-1.0, 3.0, 7.0], rows) == pytest.approx([-0.5, 1.5, 7.0])
    assert advantages.mean_absolute([0.0, 0.0, 7.0], rows) == [0.0, 0.0, 7.0]


def test_a_task_is_informative_when_any_turn_differs() -> None:
    rows = [*policy("a", 1, 5, task="x"), *policy("b", 2, 5, task="x"), *policy("a", 1, task="y")]
    assert advantages.informative(rows) == {"x"}


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12), st.sampled_from(sorted(ADVANTAGES)))
def test_a_group_sums_to_zero(values: list[float], scheme: str) -> None:
    rows = [row for i, value in enumerate(values) for row in policy(str(i), value)]
    assert math.fsum(ADVANTAGES[scheme](rows, 1.0)) == pytest.approx(0.0, abs=1e-6)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12), st.floats(-50, 50))
def test_trloo_does_not_see_a_constant(values: list[float], shift: float) -> None:
    def found(by: float) -> list[float]:
        return advantages.trloo([r for i, v in enumerate(values) for r in policy(str(i), v + by)])

    assert found(shift) == pytest.approx(found(0.0), abs=1e-6)


@given(st.floats(-5, 5), st.integers(2, 9), st.sampled_from(["trloo", "grpo", "kevin"]))
def test_a_group_that_is_all_alike_teaches_nothing(value: float, count: int, scheme: str) -> None:
    rows = [row for i in range(count) for row in policy(str(i), value)]
    assert ADVANTAGES[scheme](rows, 1.0) == pytest.approx([0.0] * count, abs=1e-6)
