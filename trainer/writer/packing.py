"""A writer in a quarter of its bytes: whole numbers of 8 bits, with a scale for each row.

    packing.pack(work / "model", out)          # parts that travel, and the small files
    packing.unpack(out, work / "start")        # what transformers loads, in bfloat16

A row w of a matrix is s q with s = max |w| / 127 and q = round(w / s), so nothing is off by more
than s / 2. Vectors stay in float32. Not covered: running it (decoding.py)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

SMALL_FILES = "model-small-files.tar"
PART = "model-int8-{}.safetensors"
PART_BYTES = 12 * 2**20
SCALE = ".scale"


def pack(model: Path, out: Path) -> None:
    """Writes a model's weights, matrices with 8 bits a number, in parts of at most `PART_BYTES`,
    and its other files as one archive."""
    out.mkdir(parents=True, exist_ok=True)
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for file in sorted(model.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            packed = _packed(name, tensor.float())
            size += sum(one.nbytes for one in packed.values())
            if size > PART_BYTES and parts[-1]:
                parts.append({})
                size = sum(one.nbytes for one in packed.values())
            parts[-1] |= packed
    for number, part in enumerate(parts):
        save_file(part, out / PART.format(number))
    with tarfile.open(out / SMALL_FILES, "w") as tar:
        for file in sorted(model.iterdir()):
            if "safetensors" not in file.name:
                tar.add(file, arcname=file.name)


def unpack(packed: Path, model: Path) -> None:
    """Writes a packed model as transformers loads it, in bfloat16. Raises OSError where no packed
    model lies."""
    model.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor
        for file in sorted(packed.glob(PART.format("*")))
        for name, tensor in load_file(file).items()
    }
    with tarfile.open(packed / SMALL_FILES) as tar:
        tar.extractall(model, filter="data")
    whole = {
        name: (tensor.float() * tensors[name + SCALE] if name + SCALE in tensors else tensor)
        for name, tensor in tensors.items()
        if not name.endswith(SCALE)
    }
    save_file(
        {name: tensor.to(torch.bfloat16) for name, tensor in whole.items()},
        model / "model.safetensors",
        metadata={"format": "pt"},
    )


def _packed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    if tensor.dim() != 2:
        return {name: tensor}
    scale = tensor.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
    return {name: (tensor / scale).round().to(torch.int8), name + SCALE: scale}
