"""How far a policy is from a frozen one, and how sure it is: estimates from its own samples.

Shapes as in losses.py. Pure functions of tensors. Not covered: what is done with it."""

from __future__ import annotations

import torch
from torch import Tensor


def k3(logprobs: Tensor, frozen: Tensor) -> Tensor:
    """r - 1 - ln r with r = frozen / policy, per token, (R, T): never negative, 0 where both agree.

    Its mean over tokens that the policy sampled is KL(policy || frozen) without bias (Schulman
    2020, "approximating KL divergence"); the KL term of GRPO (arXiv 2402.03300, equation 4)."""
    gap = frozen - logprobs
    return torch.expm1(gap) - gap


def sampled_entropy(logprobs: Tensor, mask: Tensor) -> Tensor:
    """H = -mean ln p over sampled tokens, in nats a token: the policy's entropy without bias, where
    these tokens were sampled at the temperature that their probabilities are of."""
    return -(logprobs * mask).sum() / mask.sum().clamp(min=1)
