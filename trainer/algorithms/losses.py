"""Losses over token log-probabilities and the masks that go before them. Pure functions of
tensors.

Shapes: R rows (one reply each), T tokens (padded). ``mask`` (R, T), bool: true on sampled tokens
that count; ``logprobs`` (R, T) of the present weights, with gradient; everything else is constant.
A row whose mask is empty counts in no mean. Log-probabilities are natural, in float32. Each
function names the paper that it comes from; what differs from it is said beside. Not covered:
rewards and advantages, which are numbers per row by now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

LOW, HIGH, DUAL = 0.2, 0.28, 3.0
SCALE = 1000.0
BAND = (0.999, 1.001)
VETO = 1e-4
PROFILED, PROFILED_WIDTH = 0.3, 0.1

Aggregate = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(loss (r, T), mask (r, T), mask of the whole step (R, T')) -> scalar: a step's parts add up to
the step."""


# --- from tokens to one number --------------------------------------------------------------------


def sum_rows(loss: Tensor, mask: Tensor, whole: Tensor) -> Tensor:
    """Sum over tokens, mean over the rows that still have an unmasked token, divided by 1000.

    daVinci-kernel and Dr. Kernel (arXiv 2606.16497 and arXiv 2602.05885). A row that was rejected
    whole does not shrink the others. Without any row: 0.
    """
    return (loss * mask).sum() / whole.any(dim=1).sum().clamp(min=1) / SCALE


def constant_length(loss: Tensor, mask: Tensor, whole: Tensor) -> Tensor:
    """Sum over tokens / (rows x 1000): no reward for being short. Dr. GRPO, as Kevin has it (arXiv
    2507.11948).

    All rows count, also rejected ones.
    """
    return (loss * mask).sum() / max(1, whole.shape[0]) / SCALE


def mean_tokens(loss: Tensor, mask: Tensor, whole: Tensor) -> Tensor:
    """Mean over all unmasked tokens of the step: the usual one of supervised training."""
    return (loss * mask).sum() / whole.sum().clamp(min=1)


AGGREGATES: dict[str, Aggregate] = {
    "sum_rows": sum_rows,
    "constant_length": constant_length,
    "mean_tokens": mean_tokens,
}


# --- on policy ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Clipped:
    """Token losses (R, T) and what was clipped, for the curves."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    """(R, T), bool: the clip or the dual clip decided."""


def clipped_loss(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    low: float = LOW,
    high: float = HIGH,
    dual: float = DUAL,
) -> Clipped:
    """PPO's token loss with clip-higher and dual clip.

    rho = exp(logprobs - old); L = max(-A rho, -A clip(rho, 1 - low, 1 + high)), and for A < 0 not
    above
    -A dual. ``old`` (R, T): of the weights that began this update; ``advantages`` (R,) or (R, T).
    daVinci-kernel and Dr. Kernel: 0.2, 0.28, 3 (arXiv 2606.16497); Kevin without the dual clip
    (dual = inf)."""
    spread = advantages if advantages.dim() == 2 else advantages[:, None]
    ratio = torch.exp(logprobs - old)
    plain, bounded = -spread * ratio, -spread * ratio.clamp(1 - low, 1 + high)
    loss = torch.maximum(plain, bounded)
    limit = -spread * dual
    dualed = (spread < 0) & (loss > limit)
    loss = torch.where(dualed, limit.expand_as(loss), loss)
    return Clipped(loss=loss, ratio=ratio.detach(), clipped=(dualed | (bounded > plain)).detach())


# --- off policy -----------------------------------------------------------------------------------


def truncated_importance(trained: Tensor, sampled: Tensor, cap: float = 2.0) -> Tensor:
    """w = min(exp(trained - sampled), cap) per token, (R, T), a constant factor of the token loss.

    Truncated importance sampling (Yao et al. 2025, "your efficient RL framework secretly brings
    you off-policy training"): for rollouts of another engine or of older weights. The published
    daVinci run has none (arXiv 2606.16497)."""
    return torch.exp(trained.detach() - sampled).clamp(max=cap)


def in_band(
    trained: Tensor,
    sampled: Tensor,
    mask: Tensor,
    trajectories: Sequence[object],
    low: float = BAND[0],
    high: float = BAND[1],
) -> Tensor:
    """Rows whose *trajectory* was sampled by nearly these weights, (R,), bool.

    w = exp(mean over all unmasked tokens of all rows of the trajectory of (trained - sampled)),
    kept when low <= w <= high (mismatch rejection sampling: arXiv 2602.05885). ``trajectories``: a
    key per row. The mean is over tokens, not of the rows' means. A trajectory without tokens is
    kept: it has nothing to be wrong."""
    numbers = {key: place for place, key in enumerate(dict.fromkeys(trajectories))}
    index = torch.tensor([numbers[key] for key in trajectories], device=mask.device)
    gap = ((trained.detach() - sampled) * mask).sum(dim=1)
    empty = torch.zeros(len(numbers), dtype=gap.dtype, device=gap.device)
    sums = empty.index_add(0, index, gap)
    counts = empty.index_add(0, index, mask.sum(dim=1).to(gap.dtype))
    weight = torch.exp(sums / counts.clamp(min=1))[index]
    return (weight >= low) & (weight <= high)


def not_vetoed(trained: Tensor, sampled: Tensor, mask: Tensor, least: float = VETO) -> Tensor:
    """Rows none of whose tokens has trained / sampled < 1e-4, (R,), bool (arXiv 2602.05885)."""
    ratio = torch.exp(trained.detach() - sampled)
    return ~((ratio < least) & mask).any(dim=1)


def profile_filter(
    coverage: Sequence[float | None],
    correct: Sequence[bool],
    draws: Sequence[float],
    start: float = PROFILED,
    width: float = PROFILED_WIDTH,
) -> list[bool]:
    """Which rows stay: of right ones with probability clip((PR - 0.3) / 0.1, 0, 1), of others all.

    Profiling rejection sampling (arXiv 2602.05885). ``draws``: uniform in [0, 1), one per row.
    ``correct`` is false for decoys (`rewards.Judged`), so that their zero is learned from; the
    released code asks for a flag that nobody writes (1.12, fault 4). An unknown coverage keeps the
    row."""
    kept: list[bool] = []
    for share, right, draw in zip(coverage, correct, draws, strict=True):
        chance = 1.0 if share is None else min(max((share - start) / width, 0.0), 1.0)
        kept.append(not right or draw < chance)
    return kept


# --- offline: sessions without log-probabilities --------------------------------------------------


def supervised_loss(logprobs: Tensor) -> Tensor:
    """Token losses of cross-entropy: -log p, (R, T)."""
    return -logprobs


def advantage_weighted(
    logprobs: Tensor, advantages: Tensor, temperature: float = 1.0, cap: float = 20.0
) -> Tensor:
    """-min(exp(A / temperature), cap) log p, (R, T); A (R,) or (R, T).

    Advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177): needs no probabilities of
    whoever sampled. The cap keeps one lucky row from being the batch."""
    weight = torch.exp(advantages / temperature).clamp(max=cap)
    return -(weight if weight.dim() == 2 else weight[:, None]) * logprobs


def best_step(logprobs: Tensor, best: Tensor) -> Tensor:
    """-log p of rows that are their trajectory's best step, 0 elsewhere; ``best`` (R,), bool.

    Kernel-Smith (arXiv 2603.28342): all steps leak (later prompts hold better kernels), first
    steps teach translation only. Mask the others too, so that they are in no mean."""
    return -logprobs * best[:, None]


def preference(
    accepted: Tensor,
    rejected: Tensor,
    accepted_start: Tensor,
    rejected_start: Tensor,
    beta: float = 0.1,
) -> Tensor:
    """-log sigmoid(beta ((a - a0) - (r - r0))), one per pair, (P,).

    Direct preference optimization (arXiv 2305.18290) of what a person kept against what they
    refused *for the same target*. All (P,): log-probabilities of whole replies, ``…_start`` under
    the model that training began with."""
    margin = (accepted - accepted_start) - (rejected - rejected_start)
    return -logsigmoid(beta * margin)


def pull(
    accepted: Tensor,
    rejected: Tensor,
    accepted_start: Tensor,
    rejected_start: Tensor,
    beta: float = 0.1,
) -> Tensor:
    """d preference / d accepted, (P,); of ``rejected`` it is the negative.

    With it a pair's gradient is the sum of its replies' own, so they need not be in memory
    together."""
    margin = (accepted - accepted_start) - (rejected - rejected_start)
    return -beta * torch.sigmoid(-beta * margin)
