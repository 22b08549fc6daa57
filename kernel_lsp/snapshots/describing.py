"""A tensor of a recorded call as plain values, and whether its numbers are kept.

Weights and activations are described and never kept. What carries meaning is kept by value:
integers, booleans and tensors of few distinct values (masks), and buffers, while they are small
when compressed. Relative imports and the standard library alone: torch is the program's own and is
handed in."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

MAX_KEPT_BYTES = 2**20
"""Of one tensor's values, compressed: a causal mask of 4096 x 4096 takes 16 kB."""
MAX_SCANNED = 1 << 24
"""Integers that are all looked at; of more a sample is."""
MAX_RAW_BYTES = 64 * 2**20
MAX_ALL_BYTES = 4 * 2**20
"""Of all values in one snapshot."""
SAMPLED = 1 << 15
"""Elements that a summary reads at most, evenly spread."""
PLAIN = (bool, int, float, str, type(None))


class NotDescribed(Exception):
    """A tensor that a snapshot cannot stand for; the message says what it is."""


@dataclass
class Tensors:
    """The tensors of one snapshot, in the order in which its pickles name them."""

    torch: Any
    specs: list[dict[str, Any]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    _places: dict[int, int] = field(default_factory=dict)
    """id -> place in ``specs``."""
    _alive: list[Any] = field(default_factory=list)
    _storages: dict[int, int] = field(default_factory=dict)
    _room: int = MAX_ALL_BYTES

    def place(self, tensor: Any, kind: str) -> int:
        """The tensor's number; one that was met before keeps its first. Raises NotDescribed."""
        known = self._places.get(id(tensor))
        if known is not None:
            return known
        spec = self._described(tensor, kind)
        self._places[id(tensor)] = len(self.specs)
        self._alive.append(tensor)
        self.specs.append(spec)
        return len(self.specs) - 1

    def _described(self, tensor: Any, kind: str) -> dict[str, Any]:
        torch = self.torch
        if torch.nn.parameter.is_lazy(tensor):
            raise NotDescribed("a lazy parameter whose size is not known yet")
        parameter = isinstance(tensor, torch.nn.Parameter)
        buffer = not parameter and isinstance(tensor, getattr(torch.nn, "Buffer", ()))
        spec: dict[str, Any] = {
            "kind": kind,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
            "storage": self._storage(tensor),
            "device": str(tensor.device),
            "requires_grad": tensor.requires_grad,
            "leaf": tensor.is_leaf,
            "class": "parameter" if parameter else "buffer" if buffer else "tensor",
        }
        if attributes := _attributes(tensor):
            spec["attributes"] = attributes
        with torch.no_grad():
            self._look(tensor.detach(), spec, parameter)
        return spec

    def _storage(self, tensor: Any) -> int:
        """Equal for tensors that share memory."""
        address = tensor.untyped_storage()._cdata
        return self._storages.setdefault(address, len(self._storages))

    def _look(self, tensor: Any, spec: dict[str, Any], parameter: bool) -> None:
        if tensor.is_meta or not tensor.numel():
            return
        if not tensor.is_complex():
            spec["values"] = summary(tensor, self.torch)
        inexact = tensor.is_floating_point() or tensor.is_complex()
        activation = spec["kind"] == "argument" and inexact and not _is_mask(tensor)
        if parameter or activation:
            return
        blob = self._packed(tensor)
        if blob is None:
            if not inexact:
                spec["structure"] = structure(tensor)
            return
        name = f"values {len(self.specs)}"
        self.blobs[name] = blob
        spec["blob"] = name
        self._room -= len(blob)

    def _packed(self, tensor: Any) -> bytes | None:
        """Its values in row-major order, compressed; None where they take too much room."""
        core = _unexpanded(tensor)
        if core.numel() * core.element_size() > MAX_RAW_BYTES:
            return None
        flat = core.resolve_conj().resolve_neg().cpu().contiguous()
        # What was expanded keeps strides that view() refuses.
        flat = flat.as_strided((flat.numel(),), (1,))
        raw = bytes(flat.clone().view(self.torch.uint8).untyped_storage())
        packed = zlib.compress(raw, 1)
        return packed if len(packed) <= min(MAX_KEPT_BYTES, self._room) else None


def summary(tensor: Any, torch: Any) -> dict[str, Any]:
    """Range, mean and spread of its finite values, and the share of zeros, of a sample."""
    sample = _sample_values(tensor).to(torch.float64)
    finite = sample.isfinite()
    count = finite.sum()
    kept = sample.masked_fill(~finite, 0.0)
    mean = kept.sum() / count
    spread = ((kept - mean).masked_fill(~finite, 0.0).square().sum() / count).sqrt()
    low = sample.masked_fill(~finite, math.inf).min()
    high = sample.masked_fill(~finite, -math.inf).max()
    zeros = (sample == 0).double().mean()
    share = finite.double().mean()
    numbers = torch.stack([low, high, mean, spread, zeros, share]).tolist()
    names = ("low", "high", "mean", "std", "zeros", "finite")
    return {
        name: number for name, number in zip(names, numbers, strict=True) if math.isfinite(number)
    }


def _unexpanded(tensor: Any) -> Any:
    """Without its rows that are one and the same memory: `flatten` would copy each of them."""
    core = tensor
    for dim, step in enumerate(tensor.stride()):
        if step == 0:
            core = core.narrow(dim, 0, min(1, core.shape[dim]))
    return core


def structure(tensor: Any) -> dict[str, Any]:
    """What integers that are not kept have in common: their range, and whether they never fall."""
    flat = _unexpanded(tensor)
    if flat.numel() > MAX_SCANNED:
        flat = _sample_values(flat)
    flat = flat.flatten()
    low, high = int(flat.min()), int(flat.max())
    found: dict[str, Any] = {"low": low, "high": high}
    if flat.numel() > 1 and not tensor.dtype.is_complex and str(tensor.dtype) != "torch.bool":
        found["monotone"] = bool((flat[1:] >= flat[:-1]).all())
    return found


def _sample_values(tensor: Any) -> Any:
    while tensor.numel() > SAMPLED:
        dim = max(range(tensor.dim()), key=tensor.size)
        step = min(tensor.size(dim), -(-tensor.numel() // SAMPLED))
        tensor = tensor[(slice(None),) * dim + (slice(None, None, step),)]
    return tensor


def _is_mask(tensor: Any) -> bool:
    """Whether it has at most two distinct values, and more than two elements: an additive mask
    does."""
    if (
        tensor.is_complex()
        or tensor.numel() <= 2
        or tensor.numel() * tensor.element_size() > MAX_RAW_BYTES
    ):
        return False
    values = tensor.detach()
    low, high = values.amin(), values.amax()
    return bool(((values == low) | (values == high)).all()) and bool(low != high)


def _attributes(tensor: Any) -> dict[str, Any]:
    """Plain attributes that the program has set on the tensor itself."""
    own = getattr(tensor, "__dict__", None) or {}
    return {name: value for name, value in own.items() if type(value) in PLAIN}
