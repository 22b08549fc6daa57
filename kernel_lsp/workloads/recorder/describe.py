"""Arguments as plain values: what a tensor is like, and numbers and short words as they are.

A spec is a dictionary: ``dtype``, ``shape``, ``stride`` (absent: contiguous), ``requires_grad``,
``device`` of a tensor; ``value`` of a number, ``tuple`` beside it for a sequence that was one;
``unknown`` with words for what a workload cannot hold; empty for None. Text is kept only where it
looks like a name."""

from __future__ import annotations

import re
from typing import Any

NAME = re.compile(r"[A-Za-z_][\w.-]{0,31}")
MAX_ITEMS = 16


def spec(value: Any, torch: Any) -> dict[str, Any]:
    """A value of a call as plain JSON: a tensor's shape and dtype, a small value as it is, else
    words."""
    if isinstance(value, torch.Tensor):
        return _tensor(value, torch)
    if value is None:
        return {}
    if _plain(value):
        return {"value": value}
    if isinstance(value, (list, tuple)) and len(value) <= MAX_ITEMS and all(map(_plain, value)):
        return {"value": list(value)} | ({"tuple": True} if isinstance(value, tuple) else {})
    return {"unknown": _words(value)}


def is_ordinary(value: Any, torch: Any) -> bool:
    """A strided tensor with memory of its own, of no class that redefines what tensors do."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_nested
    )


def key(found: dict[str, Any]) -> Any:
    """Hashable, and equal for equal specs."""
    return tuple((name, _hashable(value)) for name, value in sorted(found.items()))


def _tensor(value: Any, torch: Any) -> dict[str, Any]:
    if not is_ordinary(value, torch):
        return {"unknown": _words(value)}
    found: dict[str, Any] = {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "device": value.device.type,
    }
    if not value.is_contiguous():
        found["stride"] = list(value.stride())
    if value.requires_grad:
        found["requires_grad"] = True
    return found


def _plain(value: Any) -> bool:
    if isinstance(value, str):
        return NAME.fullmatch(value) is not None
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) in (bool, float)


def _words(value: Any) -> str:
    """What it is, and nothing of what it holds."""
    name = type(value).__name__
    return f"{name} of {len(value)}" if isinstance(value, (list, tuple, dict)) else name


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
