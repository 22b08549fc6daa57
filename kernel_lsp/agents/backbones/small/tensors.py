"""Reads a safetensors file with torch alone, and refuses a damaged one.

    8 bytes: length of the header, little endian | header: JSON | data

The format is Hugging Face's. Every offset is checked against the file before anything is made of
it, so a cut or forged file is refused and never read beyond its end. Not covered: sharded
checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from kernel_lsp.agents.backbones.small.shape import UnfitCheckpoint

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MAX_HEADER = 16 * 2**20


def load(file: Path) -> dict[str, torch.Tensor]:
    """Tensors by name, on the CPU, as float32. Raises Unfit, OSError."""
    content = bytearray(file.read_bytes())  # torch warns of memory that may not be written to
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 0 < length <= min(MAX_HEADER, len(content) - 8):
        raise UnfitCheckpoint(f"{file.name} is no safetensors file, or was cut")
    try:
        header: dict[str, Any] = json.loads(content[8 : 8 + length])
        record = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _tensor(name, entry, content, 8 + length) for name, entry in record.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UnfitCheckpoint):
            raise
        raise UnfitCheckpoint(f"{file.name}: its header cannot be read: {error}") from error


def _tensor(name: str, entry: dict[str, Any], content: bytearray, base: int) -> torch.Tensor:
    dtype = DTYPES.get(entry["dtype"])
    if dtype is None:
        raise UnfitCheckpoint(f"{name} is {entry['dtype']}; {', '.join(DTYPES)} can be read")
    shape, (begin, end) = [int(size) for size in entry["shape"]], entry["data_offsets"]
    needed = math.prod(shape) * dtype.itemsize
    if min([begin, *shape], default=0) < 0 or end - begin != needed or base + end > len(content):
        raise UnfitCheckpoint(
            f"{name}: its bytes {begin} to {end} are not in the file, or not {needed}"
        )
    if not needed:
        return torch.zeros(shape)
    found = torch.frombuffer(content, dtype=dtype, count=math.prod(shape), offset=base + begin)
    return found.reshape(shape).float()
