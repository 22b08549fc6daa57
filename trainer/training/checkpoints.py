"""Checkpoints: everything a run needs to go on exactly as if it had never stopped.

A checkpoint is a folder ``step-00000040`` that transformers and vLLM can load (config, tokenizer,
safetensors) with the trainer's state beside it. It is written next to its place, flushed, renamed,
and the manifest with every file's size and hash comes last: a folder without a manifest that holds
true is no checkpoint. Older ones go only after that, so a full disk or a kill at any point loses
nothing complete. `restore` refuses what would be trained on silently wrong: another tokenizer,
another recipe, NaN, a file that changed. Tensors are safetensors, the rest is JSON: nothing is
unpickled. Not covered: checkpoints of other trainers; partial (sharded) files: state is gathered
first."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.records import Json
from trainer.policies import models

FORMAT = 1
MANIFEST, WEIGHTS, STATE, TENSORS = (
    "manifest.json",
    "model.safetensors",
    "trainer.json",
    "trainer.safetensors",
)
_NAME = re.compile(r"step-(\d{8})")


class CheckpointError(KernelLspError):
    """A checkpoint that cannot be written, or must not be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """Of a run after ``step`` steps, beside the weights."""

    step: int
    recipe: str
    """`Recipe.fingerprint`: another one's checkpoint does not continue this run."""
    position: Json
    """Of the data: what comes next."""
    scheduler: Json
    tensors: dict[str, Tensor]
    """Of the optimizer, by names of parameters."""
    optimizer: Json
    """Its numbers, by names of parameters."""


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"step-{step:08d}"


def find_checkpoints(root: Path) -> list[Path]:
    """Complete checkpoints, the newest first. Unfinished ones are not among them."""
    if not root.is_dir():
        return []
    places = [place for place in root.iterdir() if _NAME.fullmatch(place.name)]
    return [place for place in sorted(places, reverse=True) if (place / MANIFEST).is_file()]


def save(
    root: Path,
    model: Any,
    tokenizer: Any,
    weights: Mapping[str, Tensor],
    state: TrainingState,
    keep: int,
) -> Path:
    """Write one and remove all but the newest ``keep``. ``weights``: gathered, on the CPU.

    Raises CheckpointError when it could not be written, for example because the disk is full; then
    what was there before is there still, and nothing half is."""
    place = folder_of(root, state.step)
    drafted = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        drafted.mkdir()
        _write(drafted, model, tokenizer, weights, state)
        listed = {path.name: _describe(path) for path in sorted(drafted.iterdir())}
        if place.exists():  # of a run that was stopped before its manifest, or is repeated
            shutil.rmtree(place)
        drafted.rename(place)
        _flush(root)
        about = {
            "format": FORMAT,
            "step": state.step,
            "recipe": state.recipe,
            "tokenizer": models.vocabulary_hash(tokenizer),
            "files": listed,
        }
        replace_file(place / MANIFEST, (json.dumps(about, indent=1) + "\n").encode())
    except Exception as error:
        # The disk, safetensors and transformers have an error of their own each.
        shutil.rmtree(drafted, ignore_errors=True)
        if place.exists() and not (place / MANIFEST).exists():
            shutil.rmtree(place, ignore_errors=True)
        cause = f"step {state.step} could not be saved in {root}: {error}"
        raise CheckpointError(cause, "make room; older checkpoints are as they were") from error
    for old in find_checkpoints(root)[keep:]:
        _remove(old)
    return place


def _write(
    place: Path, model: Any, tokenizer: Any, weights: Mapping[str, Tensor], state: TrainingState
) -> None:
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    causal.config.save_pretrained(place)
    if causal.generation_config is not None:
        causal.generation_config.save_pretrained(place)
    tokenizer.save_pretrained(place)
    save_file(_unshare(weights), place / WEIGHTS, metadata={"format": "pt"})
    rng, numbers = _random_state()
    save_file(
        _unshare({**{f"optimizer/{k}": v for k, v in state.tensors.items()}, **rng}),
        place / TENSORS,
    )
    record = {
        "step": state.step,
        "position": state.position,
        "scheduler": state.scheduler,
        "optimizer": state.optimizer,
        "random": numbers,
    }
    (place / STATE).write_text(json.dumps(record))
    for path in place.iterdir():
        _flush(path)
    _flush(place)


def _unshare(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous, and each memory once: tied matrices are saved under their first name (as
    transformers)."""
    kept: dict[int, str] = {}
    result = {}
    for name, tensor in tensors.items():
        if tensor.numel() and kept.setdefault(tensor.data_ptr(), name) != name:
            continue
        result[name] = tensor.contiguous()
    return result


def _describe(path: Path) -> Json:
    with path.open("rb") as stream:
        return {
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(stream, "sha256").hexdigest(),
        }


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(root: Path) -> None:
    """Drafts of runs that were killed."""
    for draft in root.glob(".step-*"):
        shutil.rmtree(draft, ignore_errors=True)


def _remove(place: Path) -> None:
    """The manifest first: half a checkpoint is none."""
    with contextlib.suppress(OSError):
        (place / MANIFEST).unlink()
        shutil.rmtree(place, ignore_errors=True)


# --- reading --------------------------------------------------------------------------------------


def check(place: Path, tokenizer: Any | None = None) -> Json:
    """The manifest of a checkpoint whose files are all as they were written.

    Raises CheckpointError with what is wrong: no manifest, a changed or missing file, another
    tokenizer, or weights that are not finite."""
    try:
        about: Json = json.loads((place / MANIFEST).read_text())
        files, theirs = dict(about["files"]), str(about["tokenizer"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{place} is no complete checkpoint: {error}", "take an older one"
        ) from error
    if about.get("format") != FORMAT:
        raise CheckpointError(
            f"{place} has format {about.get('format')}", f"this trainer reads {FORMAT}"
        )
    for name, expected in files.items():
        path = place / name
        if not path.is_file() or _describe(path) != expected:
            raise CheckpointError(f"{path} is missing or was changed", "take an older checkpoint")
    if tokenizer is not None and models.vocabulary_hash(tokenizer) != theirs:
        raise CheckpointError(
            f"{place} belongs to another tokenizer ({theirs}, not "
            f"{models.vocabulary_hash(tokenizer)})",
            "its numbers of tokens would mean other words: name the tokenizer's own checkpoint",
        )
    if broken := next(not_finite(load_file(place / WEIGHTS)), None):
        raise CheckpointError(
            f"{place} holds NaN or infinity in {broken}", "take an older checkpoint"
        )
    return about


def not_finite(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Names of tensors with NaN or infinity."""
    return (name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all()))


def weights_of(place: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint."""
    return load_file(place / WEIGHTS)


def restore(place: Path, recipe: str, tokenizer: Any) -> TrainingState:
    """The run's state, with all random generators set. Raises CheckpointError."""
    about = check(place, tokenizer)
    if about["recipe"] != recipe:
        raise CheckpointError(
            f"{place} is of another recipe ({about['recipe']}, not {recipe})",
            "give this run an output of its own, or start from those weights with model.path",
        )
    data: Json = json.loads((place / STATE).read_text())
    tensors = load_file(place / TENSORS)
    _set_random_state(tensors, data["random"])
    own = {
        k.removeprefix("optimizer/"): v for k, v in tensors.items() if k.startswith("optimizer/")
    }
    return TrainingState(
        step=data["step"],
        recipe=recipe,
        position=data["position"],
        scheduler=data["scheduler"],
        tensors=own,
        optimizer=data["optimizer"],
    )


def _random_state() -> tuple[dict[str, Tensor], Json]:
    tensors = {"random/torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors |= {
            f"random/cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())
        }
    version, numbers, gauss = random.getstate()
    return tensors, {"python": [version, list(numbers), gauss]}


def _set_random_state(tensors: Mapping[str, Tensor], numbers: Json) -> None:
    torch.set_rng_state(tensors["random/torch"])
    states = [tensors[name] for name in sorted(tensors) if name.startswith("random/cuda")]
    if states and torch.cuda.device_count() == len(states):
        torch.cuda.set_rng_state_all(states)
    version, python_state, gauss = numbers["python"]
    random.setstate((version, tuple(python_state), gauss))
