"""Tensors and nested values as JSON plus raw bytes, and back. Never pickle, never numpy.

A pickle from a worker would run the candidate's code in whoever reads it; numpy may be missing
in the project's interpreter. Large blobs travel as files: a worker can only read the judge's
(`TensorOutbox`), and a worker's (`DeferredOutbox`) are fetched by the parent, who tells the judge
where they lie now. On an H200's host an output of 134 MB took 0.7 s from a worker to the judge
through the parent's pipes, twenty times a judgement."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import operator
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernel_lsp.errors import EvaluationError

TensorSpec = dict[str, Any]
Blobs = Sequence[bytes | Path]
"""A path: the bytes are in that file, which the parent has named."""
PLAIN = (int, float, str, bool, type(None))
OFFSETS = 64
"""Storage offsets travel modulo this many elements: what matters is alignment, not whose part it
was."""
FILE_BYTES = 4 * 1024 * 1024
"""Blobs above this go through a file when the writer has a folder for them."""
LEFT_BYTES = 2**30
"""Of all files of one answer: a process may have no more than twice as much on disk
(sandbox.DISK_BYTES)."""
STAGE_BYTES = 16 * 1024 * 1024


@dataclass
class TensorOutbox:
    """Where encoded bytes are collected; with a folder, big ones become files in it."""

    folder: Path | None = None
    blobs: list[bytes] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def put(self, tensor: torch.Tensor) -> TensorSpec:
        """Keeps the tensor's bytes, in a file where they are many and a disk takes them, and
        returns how its reader finds them."""
        if self.folder is None or _size(tensor) <= FILE_BYTES:
            self.blobs.append(raw_bytes(tensor))
            return {"blob": len(self.blobs) - 1}
        path = self.folder / f"{secrets.token_hex(8)}.bin"
        try:
            write(tensor, path)
        except OSError:  # a full disk, or a file larger than it may be: then through the pipe
            path.unlink(missing_ok=True)
            self.blobs.append(raw_bytes(tensor))
            return {"blob": len(self.blobs) - 1}
        self.files.append(path)
        return {"file": str(path)}

    def clear(self) -> None:
        """Deletes the files, which their reader has read."""
        for path in self.files:
            path.unlink(missing_ok=True)


@dataclass
class DeferredOutbox(TensorOutbox):
    """What a candidate's process answers: big blobs are empty, and lie in its folder until they
    are fetched.

    No message of it names a file: the parent knows the folder, and who reads hears from the
    parent."""

    left: dict[str, str] = field(default_factory=dict)
    """Number of a blob -> name of its file."""
    _bytes: int = 0

    def put(self, tensor: torch.Tensor) -> TensorSpec:
        """Keeps the tensor's bytes and returns their number; many bytes are left in the folder, as
        far as it has room for them."""
        size = _size(tensor)
        if self.folder is not None and FILE_BYTES < size <= LEFT_BYTES - self._bytes:
            path = self.folder / f"{secrets.token_hex(8)}.bin"
            try:
                write(tensor, path)
            except OSError:  # a full disk: then through the pipe
                path.unlink(missing_ok=True)
            else:
                self._bytes += size
                self.blobs.append(b"")
                self.left[str(len(self.blobs) - 1)] = path.name
                return {"blob": len(self.blobs) - 1}
        self.blobs.append(raw_bytes(tensor))
        return {"blob": len(self.blobs) - 1}


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The values of a strided tensor, row-major."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return (
        ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())
        if flat.numel()
        else b""
    )


def write(tensor: torch.Tensor, path: Path) -> None:
    """The values of a strided tensor, row-major, into a new file. Raises OSError."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
    with path.open("xb") as file:
        for part in flat.split(STAGE_BYTES):
            near = part if part.device.type == "cpu" else stage()[: part.numel()].copy_(part)
            file.write(_memory(near))


def read(path: Path, dtype: torch.dtype, shape: Sequence[int], device: str) -> torch.Tensor:
    """The inverse of :func:`write`, on ``device``. Raises ValueError when the file has another
    size."""
    size = math.prod(shape) * dtype.itemsize
    with path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != size:
            raise ValueError("a file of another size than its tensor")
        flat = torch.empty(size, dtype=torch.uint8, device=device)
        for part in flat.split(STAGE_BYTES):
            near = part if device == "cpu" else stage()[: part.numel()]
            if file.readinto(_memory(near)) != part.numel():
                raise ValueError("a file that ends before its tensor does")
            if near is not part:
                part.copy_(near)
    return flat.view(dtype).reshape(tuple(shape))


@functools.cache
def stage() -> torch.Tensor:
    """Memory that a GPU copies from and to at full speed, where the machine lends such."""
    try:
        return torch.empty(STAGE_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError:  # pages cannot be pinned here
        return torch.empty(STAGE_BYTES, dtype=torch.uint8, device="cpu")


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, for as long as it lives."""
    return memoryview((ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())).cast("B")


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def encode(value: Any, out: TensorOutbox) -> TensorSpec:
    """A nested value as JSON; raises EvaluationError on a type that cannot travel."""
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, out)
    if isinstance(value, PLAIN):
        return {"kind": "plain", "value": value}
    if isinstance(value, (list, tuple)):
        name = "list" if isinstance(value, list) else "tuple"
        return {
            "kind": name,
            "type": type(value).__name__,
            "items": [encode(item, out) for item in value],
        }
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise EvaluationError("could not judge: a dictionary has keys that are not strings")
        return {"kind": "dict", "items": {key: encode(item, out) for key, item in value.items()}}
    if isinstance(value, (torch.dtype, torch.device)):
        return {"kind": type(value).__name__, "value": str(value)}
    raise EvaluationError(
        f"could not judge: a value of type {type(value).__name__} cannot be sent between processes",
        "use tensors, numbers, strings, and lists, tuples or dictionaries of them",
    )


def _encode_tensor(tensor: torch.Tensor, out: TensorOutbox) -> TensorSpec:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise EvaluationError(
            f"could not judge: tensors of layout {tensor.layout} are not supported"
        )
    return {
        "kind": "tensor",
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "offset": tensor.storage_offset() % OFFSETS,
        "device": tensor.device.type,
        "requires_grad": tensor.requires_grad,
        **out.put(tensor),
    }


def decode(spec: TensorSpec, blobs: Blobs, device: str = "cpu") -> Any:
    """The inverse of :func:`encode`, on ``device``, with the strides and the offset it had.

    Raises ValueError on bytes that do not fit their description.
    """
    return _decode(spec, blobs, device, trusted=True)


def decode_values(spec: TensorSpec, blobs: Blobs, device: str = "cpu") -> Any:
    """The value that a candidate's process says, like :func:`decode`: values alone, contiguous, no
    file is opened.

    A stranger's strides could ask for any amount of memory and its file names for any file."""
    return _decode(spec, blobs, device, trusted=False)


def tensor_specs(spec: TensorSpec) -> list[TensorSpec]:
    """The descriptions of all tensors in an encoded value, in the order of
    :func:`tensor_leaves`."""
    if spec["kind"] == "tensor":
        return [spec]
    items = spec.get("items", ())
    inner = items.values() if isinstance(items, dict) else items
    return [found for item in inner for found in tensor_specs(item)]


def _decode(spec: TensorSpec, blobs: Blobs, device: str, trusted: bool) -> Any:
    kind = spec["kind"]
    if kind == "tensor":
        flat = _values(spec, blobs, trusted, device)
        if not trusted:
            return flat
        plain = list(flat.stride()) == spec["stride"] and not spec.get("offset", 0)
        tensor = (
            flat if plain else _with_stride(flat, spec["stride"], spec.get("offset", 0), device)
        )
        return tensor.requires_grad_() if spec.get("requires_grad") else tensor
    if kind == "plain":
        return spec["value"]
    if kind in ("list", "tuple"):
        items = [_decode(item, blobs, device, trusted) for item in spec["items"]]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: _decode(item, blobs, device, trusted) for key, item in spec["items"].items()}
    if kind == "dtype":
        return getattr(torch, spec["value"].removeprefix("torch."))
    if kind == "device":
        return torch.device(device)
    raise ValueError(f"unknown kind {kind!r}")


def _values(spec: TensorSpec, blobs: Blobs, trusted: bool, device: str) -> torch.Tensor:
    """Contiguous and in memory of its own."""
    dtype, shape = getattr(torch, spec["dtype"]), spec["shape"]
    if not trusted and "file" in spec:
        raise ValueError("a candidate's process may not name files")
    data = Path(spec["file"]) if "file" in spec else blobs[spec["blob"]]
    if isinstance(data, Path):
        return read(data, dtype, shape, device)
    if not data:
        if math.prod(shape):  # what lay in our memory before is no answer
            raise ValueError("a tensor without its values")
        return torch.empty(shape, dtype=dtype, device=device)
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape).to(device)
    )


def _with_stride(flat: torch.Tensor, stride: list[int], offset: int, device: str) -> torch.Tensor:
    """A fresh tensor on ``device`` with the values of ``flat``; zero strides become an expand."""
    if flat.is_contiguous() and list(flat.stride()) == stride and not offset:
        return flat.to(device, copy=True)
    core = flat
    for dim, step in enumerate(stride):
        if step == 0:
            core = core.narrow(dim, 0, min(1, core.shape[dim]))
    steps = [step or 1 for step in stride]
    room = torch.empty(offset + span(core.shape, steps), dtype=flat.dtype, device=device)
    return room.as_strided(core.shape, steps, offset).copy_(core).expand(flat.shape)


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last of a tensor of this shape and stride, both included."""
    if 0 in shape:
        return 0
    return sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1


def strided_copy(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy on ``device`` with the strides, the offset and the requires_grad of the original."""
    offset = tensor.storage_offset() % OFFSETS
    made = _with_stride(tensor.detach(), list(tensor.stride()), offset, device)
    return made.requires_grad_(tensor.requires_grad)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bytes, NaN included; compared where they are."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    one, other = (t.detach().resolve_conj().resolve_neg().contiguous().flatten() for t in (a, b))
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def with_arithmetic(values: torch.Tensor) -> torch.Tensor:
    """The values in float32 where torch can only store them: types of 8 bits."""
    return values.float() if is_storage(values.dtype) else values


def is_storage(dtype: torch.dtype) -> bool:
    """Whether torch has no arithmetic for a floating type."""
    return dtype.is_floating_point and dtype.itemsize == 1


def as_stored(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``values`` in this type; of 8 bits, the largest number for what does not fit (float8_e4m3fn
    has no infinity, and NaN among inputs would say nothing)."""
    if is_storage(dtype):
        largest = torch.finfo(dtype).max
        return values.clamp(-largest, largest).to(dtype)
    return values.to(dtype)


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every tensor and plain value of a nested output, with its path, e.g. ``[0]['loss']``."""
    if isinstance(value, (list, tuple)):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, f"{path}[{i}]")]
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}[{key!r}]")]
    return [(path, value)]


def tensor_leaves(value: Any) -> list[torch.Tensor]:
    """All tensors in a nested value, in its order."""
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def portable(value: Any, around: tuple[int, ...] = ()) -> Any:
    """A result whose data classes are dictionaries of their fields, and whose dictionaries have
    strings as keys; what needs no change is the same object.

    Fields are called after their class, and keys that are no strings begin with a null byte, so
    that none passes for another. ``around``: ids of what holds the value; what holds itself stays
    as it is."""
    if isinstance(value, (torch.Tensor, *PLAIN)) or id(value) in around:
        return value
    around = (*around, id(value))
    if isinstance(value, (list, tuple)):
        return _portable_items(value, around)
    if isinstance(value, dict):
        return _portable_entries(value, around)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _portable_fields(value, around)
    return value


def _portable_items(value: Any, around: tuple[int, ...]) -> Any:
    items = [portable(item, around) for item in value]
    if all(map(operator.is_, items, value)):
        return value
    return items if isinstance(value, list) else tuple(items)


def _portable_entries(value: dict[Any, Any], around: tuple[int, ...]) -> dict[Any, Any]:
    held = {key: portable(item, around) for key, item in value.items()}
    if all(type(key) is str and held[key] is item for key, item in value.items()):
        return value
    return {_key(key): item for key, item in held.items()}


def _portable_fields(value: Any, around: tuple[int, ...]) -> dict[str, Any]:
    """Read past what its class may have put in the way."""
    names = [field.name for field in dataclasses.fields(value)]
    held = {name: object.__getattribute__(value, name) for name in names}
    kind = type(value).__qualname__
    return {f"{kind}.{name}": portable(item, around) for name, item in held.items()}


def _key(key: Any) -> Any:
    return f"\0{key!r}" if isinstance(key, (int, float, bool, type(None))) else key


def map_tensors(function: Any, value: Any) -> Any:
    """``value`` with every tensor replaced by ``function(tensor)``."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        items = [map_tensors(function, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: map_tensors(function, item) for key, item in value.items()}
    return value
