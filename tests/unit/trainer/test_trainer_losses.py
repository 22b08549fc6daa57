"""Losses and rejection masks against numbers worked by hand."""

import math

import pytest
import torch

from trainer.algorithms import advantages, losses
from trainer.algorithms.advantages import AdvantageRow
from trainer.records import Agent

pytestmark = pytest.mark.torch
MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values])


def test_aggregates() -> None:
    loss = torch.tensor([[1.0, 2.0, 100.0], [4.0, 100.0, 100.0], [100.0, 100.0, 100.0]])
    # The last row is rejected whole: it is no row for sum_rows, and one for constant_length.
    assert losses.sum_rows(loss, MASK, MASK) == pytest.approx((3 + 4) / 2 / 1000)
    assert losses.constant_length(loss, MASK, MASK) == pytest.approx(7 / 3 / 1000)
    assert losses.mean_tokens(loss, MASK, MASK) == pytest.approx(7 / 3)


@pytest.mark.parametrize("name", losses.AGGREGATES)
def test_parts_of_a_step_add_up_to_the_step(name: str) -> None:
    loss, aggregate = torch.rand(3, 3), losses.AGGREGATES[name]
    parts = [aggregate(loss[i : i + 1], MASK[i : i + 1], MASK) for i in range(3)]
    assert sum(parts) == pytest.approx(aggregate(loss, MASK, MASK))


@pytest.mark.parametrize("name", losses.AGGREGATES)
def test_nothing_left_is_zero_and_has_a_gradient(name: str) -> None:
    loss = torch.ones(2, 3, requires_grad=True)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    value = losses.AGGREGATES[name](loss, nothing, nothing)
    value.backward()  # type: ignore[no-untyped-call]
    assert value == 0 and loss.grad is not None and not loss.grad.any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.5, 2.0, -2.0 * 1.28, True),  # clip-higher
        (0.5, 2.0, -1.0, False),  # a good token that became rarer is pushed back whole
        (0.5, -2.0, 2.0 * 0.8, True),
        (1.5, -2.0, 3.0, False),
        (10.0, -2.0, 6.0, True),  # dual clip: -A * 3
    ],
)
def test_clip_and_dual_clip(ratio: float, advantage: float, expected: float, clipped: bool) -> None:
    found = losses.clipped_loss(row(math.log(ratio)), row(0.0), torch.tensor([advantage]))
    assert found.loss.item() == pytest.approx(expected)
    assert found.clipped.item() is clipped


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    logprobs = row(-0.5, -1.5).requires_grad_()
    losses.clipped_loss(logprobs, logprobs.detach(), torch.tensor([3.0])).loss.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None and logprobs.grad.tolist() == [[-3.0, -3.0]]


def test_a_dual_clipped_token_has_no_gradient() -> None:
    logprobs = row(math.log(10.0)).requires_grad_()
    losses.clipped_loss(logprobs, row(0.0), torch.tensor([-1.0])).loss.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None and logprobs.grad.item() == 0.0


def test_importance_weights_are_truncated_and_constant() -> None:
    trained = row(math.log(0.5), math.log(5.0)).requires_grad_()
    weight = losses.truncated_importance(trained, row(0.0, 0.0))
    assert weight.tolist() == [[pytest.approx(0.5), 2.0]] and not weight.requires_grad


def test_the_band_is_of_whole_trajectories() -> None:
    """One turn strays by +0.2 %, its trajectory's other turn makes up for it; by token, not by
    row: w = exp((0.004 + 0 - 0.004) / 3) = 1, and exp(0.002) = 1.002 > 1.001 alone."""
    trained = torch.tensor([[0.004, 0.0, 9.0], [-0.004, 9.0, 9.0], [0.002, 0.002, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, False]])
    sampled = torch.zeros(3, 3)
    assert losses.in_band(trained, sampled, mask, ["a", "a", "b"]).tolist() == [True, True, False]
    assert losses.in_band(trained, sampled, mask, ["a", "b", "c"]).tolist() == [False, False, False]


def test_a_trajectory_whose_tokens_are_all_masked_stays() -> None:
    keep = losses.in_band(
        torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool), [0]
    )
    assert keep.tolist() == [True]


def test_one_impossible_token_vetoes_its_row() -> None:
    trained = torch.log(torch.tensor([[0.5, 0.9e-4], [0.5, 1.1e-4], [0.5, 0.9e-4]]))
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    assert losses.not_vetoed(trained, torch.zeros(3, 2), mask).tolist() == [False, True, True]


def test_profiling_keeps_failures_and_decoys_and_thins_out_lazy_ones() -> None:
    """Fault 4: a decoy is not right, so its low coverage must not save it from its zero."""
    coverage = [0.2, 0.34, 0.36, 0.5, 0.0, None]
    correct = [True, True, True, True, False, True]
    draws = [0.0, 0.5, 0.5, 0.999, 0.999, 0.999]
    assert losses.profile_filter(coverage, correct, draws) == [False, False, True, True, True, True]


def test_a_rejected_row_still_counts_in_its_group() -> None:
    """The order of arXiv 2602.05885: masks hide tokens, they do not change the others'
    advantages."""
    rows = [
        AdvantageRow(agent=Agent.POLICY, task="t", rollout=name, reward=reward)
        for name, reward in (("a", 0.0), ("b", 2.0), ("c", 4.0))
    ]
    found = torch.tensor(advantages.trloo(rows))
    mask = torch.tensor([[True], [True], [False]])  # c was rejected
    logprobs = torch.zeros(3, 1, requires_grad=True)
    loss = 1000 * losses.sum_rows(
        losses.clipped_loss(logprobs, torch.zeros(3, 1), found).loss, mask, mask
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert found.tolist() == [-3.0, 0.0, 3.0]  # not (-2, 2), which is what a and b alone would get
    assert logprobs.grad is not None and logprobs.grad.flatten().tolist() == [1.5, 0.0, 0.0]


def test_advantage_weights_are_exponential_and_capped() -> None:
    loss = losses.advantage_weighted(torch.full((3, 1), -2.0), torch.tensor([0.0, 1.0, 50.0]))
    assert loss.flatten().tolist() == pytest.approx([2.0, 2.0 * math.e, 40.0])


def test_only_best_steps_are_copied() -> None:
    loss = losses.best_step(torch.full((2, 2), -1.0), torch.tensor([True, False]))
    assert loss.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_preference() -> None:
    zero = torch.zeros(1)
    assert losses.preference(zero, zero, zero, zero).item() == pytest.approx(math.log(2))
    learned = losses.preference(torch.tensor([5.0]), torch.tensor([-5.0]), zero, zero, beta=0.1)
    assert learned.item() == pytest.approx(math.log(1 + math.exp(-1.0)))


def test_the_pull_of_a_pair_is_the_gradient_of_its_preference() -> None:
    values = [torch.randn(4) for _ in range(4)]
    accepted, rejected = values[0].requires_grad_(), values[1].requires_grad_()
    losses.preference(accepted, rejected, *values[2:], beta=0.7).sum().backward()  # type: ignore[no-untyped-call]
    found = losses.pull(accepted.detach(), rejected.detach(), *values[2:], beta=0.7)
    assert accepted.grad is not None and rejected.grad is not None
    assert torch.allclose(found, accepted.grad) and torch.allclose(-found, rejected.grad)
