"""Tensors for an opened call: real memory on one device, with numbers like those that were
recorded.

Everything is drawn from one seed, so that every process that opens the same snapshot gets the same
numbers. Devices: what lay on a GPU lies on the device that judges, what lay on the CPU of such a
program stays there."""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.snapshots.opening import ValueSpec, dtype_of

ALIGNED_ELEMENTS = 64
"""Offsets into a storage travel modulo this many elements: what matters is alignment."""
MAX_DRAWN = 2.0**15
"""Half floats end at 65,504; what was recorded beyond is memory that nobody had written yet."""


class Drawn:
    """A `Maker` of tensors with memory on ``place`` (``cpu`` or ``cuda``)."""

    def __init__(self, place: str, seed: int, *, widened: bool = False) -> None:
        """``widened``: floating numbers in float64, complex ones in complex128."""
        self.place, self._seed, self._widened = place, seed, widened

    def device(self, name: str) -> torch.device:
        """Where a tensor of this device is made: GPUs are the one of `place`."""
        return torch.device(self.place) if name.startswith("cuda") else torch.device(name)

    def make(self, place: int, spec: ValueSpec, room: torch.Tensor | None) -> torch.Tensor:
        """A tensor as described, not filled; in the room of a storage that others share, where one
        is given."""
        return make_strided(spec, self._dtype(spec), room, self.device(spec["device"]))

    def fill(self, tensor: torch.Tensor, spec: ValueSpec, values: torch.Tensor | None) -> None:
        """Write the kept values, or draw such as were seen, by a seed of their storage."""
        core = one_of_each(tensor)
        if values is not None:
            core.copy_(one_of_each(values.as_strided(tensor.shape, _strides_of(values, tensor))))
        else:
            generator = torch.Generator(tensor.device).manual_seed(self._seed + spec["storage"])
            core.copy_(draw_values(spec, core, generator))

    def _dtype(self, spec: ValueSpec) -> torch.dtype:
        dtype = dtype_of(spec)
        if not self._widened:
            return dtype
        return (
            torch.complex128
            if dtype.is_complex
            else torch.float64
            if dtype.is_floating_point
            else dtype
        )


def make_strided(
    spec: ValueSpec, dtype: torch.dtype, room: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """An empty tensor of the recorded shape, strides and alignment; in ``room``, where it shares
    memory."""
    shape, stride, offset = spec["shape"], spec["stride"], spec["offset"]
    if room is not None and dtype == dtype_of(spec):
        return (
            room[: room.numel() // dtype.itemsize * dtype.itemsize]
            .view(dtype)
            .as_strided(shape, stride, offset)
        )
    offset %= ALIGNED_ELEMENTS
    if not offset:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    last = (
        0
        if 0 in shape
        else sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
    )
    return torch.empty(offset + last, dtype=dtype, device=device).as_strided(shape, stride, offset)


def one_of_each(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its repetitions: one row of each expanded dimension, to write into."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _strides_of(values: torch.Tensor, like: torch.Tensor) -> tuple[int, ...]:
    """Strides of ``values``, zero where those of ``like`` are."""
    return tuple(0 if b == 0 else a for a, b in zip(values.stride(), like.stride(), strict=True))


def draw_values(spec: ValueSpec, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers with the recorded range, mean, spread and share of zeros, in the shape of
    ``like``."""
    if not (like.is_floating_point() or like.is_complex()):
        return _integers(spec.get("structure", {}), like, generator)
    seen: dict[str, Any] = spec.get("values", {})
    dtype = like.dtype if like.is_complex() else torch.float32
    made = torch.randn(like.shape, dtype=dtype, device=like.device, generator=generator)
    low, high = seen.get("low"), seen.get("high")
    if low is None or high is None or made.is_complex() or max(-low, high) > MAX_DRAWN:
        return made
    made = (seen["mean"] + seen["std"] * made).clamp_(low, high)
    if (zeros := seen.get("zeros", 0.0)) > 0.01:
        chosen = torch.rand(like.shape, device=like.device, generator=generator)
        made.masked_fill_(chosen < zeros, 0.0)
    return made


def _integers(
    structure: dict[str, Any], like: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    low, high = int(structure.get("low", 0)), int(structure.get("high", 0))
    made = torch.randint(low, high + 1, like.shape, device=like.device, generator=generator)
    if structure.get("monotone"):
        made = made.flatten().sort().values.reshape(like.shape)
    return made.to(like.dtype)
