"""Where float32 products have no certain answer: what uses an operand at the edge of its type.

A library may compute a float32 product on tensor cores, as sums of products of parts: a value is
split into what TF32 holds and the rest. Of an infinity, and of the largest values, which TF32
rounds to infinity, the rest is inf - inf. So PyTorch's own attention in float32 gives NaN on an
H200 where written-out attention has a score of -inf and a result (2026-11-28, torch 2.11: the
honest candidate `library_attention` was refused for it). Runs in the judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TF32_LIMIT = torch.finfo(torch.float32).max * (1 - 2.0**-12)
"""From here on values round to infinity in TF32, whose significand has 11 bits."""
FIRST_TWO, BEHIND_ADDEND, FIRST_THREE = (0, 1), (1, 2), (0, 1, 2)
OPERANDS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul", "linear"), FIRST_TWO),
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d"), FIRST_TWO),
    **dict.fromkeys(("addmm", "addmv", "addbmm", "baddbmm"), BEHIND_ADDEND),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_attention_math",
        ),
        FIRST_THREE,
    ),
}
"""Arguments that are multiplied; not what is added: a bias, a mask of an attention."""


class SplitProducts(TorchDispatchMode):
    """Inside the block, a float32 product is NaN wherever it uses an operand at the edge."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        places = OPERANDS.get(func.overloadpacket.__name__, ())
        split = [split_value(one) if place in places else one for place, one in enumerate(args)]
        return func(*split, **(kwargs or {}))


def split_value(value: Any) -> Any:
    """The tensor with NaN for what its two parts cannot hold; anything but float32 as it is."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return value
    at_edge = ~(value.abs() < TF32_LIMIT)
    return value.masked_fill(at_edge, torch.nan) if bool(at_edge.any()) else value
