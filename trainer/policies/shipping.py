"""The last step of a shipped policy: a trainer's checkpoint as what `kernel-lsp models use` takes.

    python -m trainer.policies.shipping CHECKPOINT FOLDER --name NAME --version 1 --held-out check.json

Leaves out what only training needs, rounds the weights to bfloat16 (27 MB) and seals them with the
held-out check (`kernel_lsp.models.HeldOut` as JSON), with which they are taken or refused. FOLDER
under ``kernel_lsp/models/`` goes into the wheel. Not covered: measuring the check (evaluate.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from kernel_lsp import wire
from kernel_lsp.agents.backbones.small import shape as shapes
from kernel_lsp.agents.backbones.small.shape import NetworkShape
from kernel_lsp.agents.prompt_encoding import tokenizer
from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.models import HeldOut, Manifest, manifest, seal
from kernel_lsp.models.manifest import verify


def pack(
    checkpoint: Path,
    folder: Path,
    *,
    name: str,
    version: str,
    held_out: HeldOut | None,
    devices: tuple[str, ...] = ("cuda",),
    margin: float = 0.0,
    weighs: bool = False,
    targets: tuple[str, ...] = ("graph",),
    unasked: bool = True,
    notes: str = "",
) -> Manifest:
    """Raises ConfigError for what is no checkpoint of the compact form, OSError."""
    if (folder / manifest.NAME).exists():
        raise ConfigError(f"{folder} holds a policy already", "name another folder")
    try:
        shape = shapes.read(checkpoint)
        weights = load_file(checkpoint / "model.safetensors")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{checkpoint} is no checkpoint that can be shipped: {error}") from error
    kept = {
        key: tensor.bfloat16().contiguous()
        for key, tensor in weights.items()
        if _is_needed(key, shape)
    }
    if not all(bool(torch.isfinite(tensor).all()) for tensor in kept.values()):
        raise ConfigError(f"{checkpoint} holds NaN or infinity", "take an earlier checkpoint")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shapes.config(shape), indent=1) + "\n")
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.write(folder)
    made = seal(
        folder,
        name=name,
        version=version,
        held_out=held_out,
        devices=devices,
        margin=margin,
        weighs=weighs,
        targets=targets,
        unasked=unasked,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=notes,
    )
    verify(folder, made)
    return made


def _is_needed(key: str, shape: NetworkShape) -> bool:
    return not (shape.tied and key == "lm_head.weight")


def main(arguments: Sequence[str] | None = None) -> int:
    """Seals the checkpoint; the exit code: 2 where it cannot be taken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument(
        "--held-out", type=Path, help="JSON; without one it can be packed and never used"
    )
    parser.add_argument(
        "--device", action="append", help="cuda, cpu: whose rewards it learned from (cuda)"
    )
    parser.add_argument(
        "--margin", type=float, default=0.0, help="evaluate's: to leave the rule's plan"
    )
    parser.add_argument("--weighs", action="store_true", help="it has learned to weigh plans")
    parser.add_argument("--target", action="append", help="graph, kernel: what it plans (graph)")
    parser.add_argument("--asked", action="store_true", help="only who chooses it gets it")
    parser.add_argument("--notes", type=Path, help="the model card's text")
    options = parser.parse_args(arguments)
    try:
        made = pack(
            options.checkpoint,
            options.folder,
            name=options.name,
            version=options.version,
            held_out=_check(options.held_out),
            devices=tuple(options.device or ("cuda",)),
            margin=options.margin,
            weighs=options.weighs,
            targets=tuple(options.target or ("graph",)),
            unasked=not options.asked,
            notes=options.notes.read_text(encoding="utf-8") if options.notes else "",
        )
    except (KernelLspError, OSError) as error:
        print(f"shipping: {error}", file=sys.stderr)
        return 2
    print(f"{made.id}, hash {made.digest}: {made.held_out or 'never checked'}")
    return 0


def _check(file: Path | None) -> HeldOut | None:
    """Raises ConfigError, OSError."""
    if file is None:
        return None
    try:
        return wire.from_json(HeldOut, json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{file} is no held-out check: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
