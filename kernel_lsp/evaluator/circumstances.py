"""Circumstances in which a program calls a target although its workload does not: the other mode
(eval() between steps of a training, train() of what was recorded in evaluation), an autocast that
nobody recorded, inference_mode.

A rewrite stays in the file when they come, so one trial each is made in them. The same for
reference and candidate: runs in judge and worker. Not covered: two of them at once; autocast that
was recorded and is off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

OTHER_MODE, AUTOCAST, INFERENCE = "other_mode", "autocast", "inference"
CIRCUMSTANCES = (OTHER_MODE, AUTOCAST, INFERENCE)
AUTOCAST_DTYPE = torch.bfloat16


@contextlib.contextmanager
def within(name: str, target: Any, place: str) -> Iterator[None]:
    """One call in the circumstance of this name; empty: as the workload has it."""
    if name == OTHER_MODE:
        with _other_mode(module_of(target)):
            yield
    elif name == AUTOCAST:
        with torch.autocast(place, dtype=AUTOCAST_DTYPE):
            yield
    elif name == INFERENCE:
        with torch.inference_mode():
            yield
    else:
        yield


def module_of(target: Any) -> torch.nn.Module | None:
    """The module whose mode a call depends on: the target, or the one that a method belongs to;
    None: neither."""
    owner = getattr(target, "__self__", target)
    return owner if isinstance(owner, torch.nn.Module) else None


def in_words(name: str, target: Any) -> str:
    """The circumstances as a part of a sentence; empty where nothing is special."""
    if name == OTHER_MODE:
        module = module_of(target)
        return f"in {'eval' if module is not None and module.training else 'train'}()"
    return {AUTOCAST: "under autocast", INFERENCE: "under inference_mode"}.get(name, "")


@contextlib.contextmanager
def _other_mode(module: torch.nn.Module | None) -> Iterator[None]:
    if module is None:
        yield
        return
    modes = {part: part.training for part in module.modules()}
    module.train(not module.training)
    try:
        yield
    finally:
        module.train(not module.training)  # what a module does on a change of mode, it undoes
        for part, training in modes.items():
            part.training = training
