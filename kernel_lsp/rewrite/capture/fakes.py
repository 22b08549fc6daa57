"""What fake tensors refuse although devices compute it.

torch's description of a grouped matrix product (the experts of a mixture) takes bfloat16 alone
(2.9 to 2.14), its kernels for the CPU and GPUs take float32 as well: a mixture of experts trained
under autocast keeps its weights so. Whoever captures calls ``describe_operations`` first."""

from __future__ import annotations

import functools
from typing import Any

import torch

DESCRIBED = (torch.bfloat16, torch.float16)


@functools.cache
def describe_operations() -> None:
    """Teaches torch's fake tensors what operations yield that torch does not describe, once in a
    process. A torch without the operation is left alone."""
    operation = getattr(torch.ops.aten, "_grouped_mm", None)
    if operation is not None:
        from torch._subclasses.fake_impls import register_op_impl

        register_op_impl(operation.default)(_grouped_product)


def _grouped_product(
    fake_mode: Any, _operation: Any, a: torch.Tensor, b: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """``a``: (rows, k) or (groups, rows, k); ``b``: (k, columns) or (groups, k, columns). Where one
    of them has no groups, ``offs`` says where each ends."""
    if a.dtype in DESCRIBED or a.dtype != b.dtype or not {a.dim(), b.dim()} <= {2, 3}:
        return NotImplemented
    shape: tuple[int, ...]
    offs = args[0] if args else kwargs.get("offs")
    out_dtype = args[2] if len(args) > 2 else kwargs.get("out_dtype")
    if a.dim() == b.dim() == 2:
        assert offs is not None
        shape = (len(offs), a.shape[0], b.shape[1])
    elif a.dim() == b.dim():
        shape = (*a.shape[:2], b.shape[2])
    else:
        shape = (a.shape[-2], b.shape[-1])
    with fake_mode:
        return a.new_empty(shape, dtype=out_dtype)
