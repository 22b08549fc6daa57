"""A summary of a tensor's values: range, share of zeros, finiteness. Values themselves are never
kept.

On a GPU it is computed there and fetched when it has arrived, so that the program never waits. At
most `MAX_INSPECTED_ELEMENTS` elements are read, evenly spread over the tensor: a range is what was
seen, not a bound."""

from __future__ import annotations

import math
from typing import Any

MAX_INSPECTED_ELEMENTS = 1 << 18


def in_transform(torch: Any) -> bool:
    """Inside of vmap, grad and the like tensors stand for others: neither shapes nor addresses are
    theirs."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_capturing(torch: Any) -> bool:
    """Whether a CUDA graph is being captured: then even a question about an event can make the
    capture fail."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def may_compute(torch: Any) -> bool:
    """Would an operation of ours stay unnoticed? Not in a trace or a mode that sees or counts
    operations."""
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    return not modes and torch._C._get_tracing_state() is None


class ArgumentValues:
    """Of one argument, over all calls that were looked into."""

    __slots__ = ("_elements", "_finite", "_high", "_integers", "_low", "_pending", "_zeros")

    def __init__(self) -> None:
        self._low, self._high = math.inf, -math.inf
        self._zeros = self._elements = 0.0
        self._finite = True
        self._integers = False
        self._pending: list[tuple[Any, Any, int]] = []

    def look(self, tensor: Any, torch: Any) -> None:
        """Adds one tensor's values to the summary; those of a GPU arrive later, since nobody waits
        for them."""
        if tensor.is_complex() or not tensor.numel() or tensor.is_meta:
            return
        with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
            found, count = _reduce_tensor(tensor.detach(), torch)
            self._integers = not tensor.is_floating_point()
            if found.device.type != "cuda":
                self._add(found.tolist(), count)
                return
            host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            host.copy_(found, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            self._pending.append((host, arrived, count))

    def _add(self, found: list[float], count: int) -> None:
        low, high, zeros, finite = found
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._zeros, self._elements = self._zeros + zeros, self._elements + count
        self._finite = self._finite and finite == count

    def to_record(self) -> dict[str, Any]:
        """Rounded so that no value can be read from it: bounds of real numbers outward to powers
        of two."""
        try:
            while self._pending and self._pending[0][1].query():
                host, _, count = self._pending.pop(0)
                self._add(host.tolist(), count)
        except RuntimeError:  # the device is lost; what had arrived before is still known
            self._pending.clear()
        if not self._elements:
            return {}
        record: dict[str, Any] = {
            "zeros": round(self._zeros / self._elements, 1),
            "finite": self._finite,
        }
        if self._low <= self._high:
            low, high = (int, int) if self._integers else (below, above)
            record |= {"low": low(self._low), "high": high(self._high)}
        return record


def _reduce_tensor(tensor: Any, torch: Any) -> tuple[Any, int]:
    """(lowest and highest finite value, zeros, finite values) as one float64 tensor, and of how
    many."""
    while tensor.numel() > MAX_INSPECTED_ELEMENTS:
        dim = max(range(tensor.dim()), key=tensor.size)
        tensor = tensor[
            (slice(None),) * dim
            + (
                slice(
                    None, None, min(tensor.size(dim), -(-tensor.numel() // MAX_INSPECTED_ELEMENTS))
                ),
            )
        ]
    values = tensor.to(torch.float64) if tensor.device.type != "mps" else tensor.to(torch.float32)
    finite = values.isfinite()
    low = values.masked_fill(~finite, math.inf).min()
    high = values.masked_fill(~finite, -math.inf).max()
    zeros, whole = (values == 0).sum().to(values.dtype), finite.sum().to(values.dtype)
    return torch.stack((low, high, zeros, whole)), tensor.numel()


def above(bound: float) -> float:
    """The next power of two (or its negative, or zero) that is not below."""
    if bound <= 0:
        return -below(-bound) if bound else 0.0
    mantissa, exponent = math.frexp(bound)
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


def below(bound: float) -> float:
    """The next power of two (or its negative, or zero) that is not above."""
    if bound <= 0:
        return -above(-bound) if bound else 0.0
    return math.ldexp(1.0, math.frexp(bound)[1] - 1)
