"""What a call does besides its values: whose memory it returns, and what it drew from the
generators.

Used by judge (reference) and worker (candidate) alike, so that the two descriptions can be
compared. Does not cover: relations to tensors that are neither argument, state nor output; random
generators other than torch's."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from kernel_lsp.evaluator.tensors import tensor_leaves


def relations(result: Any, arguments: Any, state: dict[str, torch.Tensor]) -> list[list[str]]:
    """For each output tensor what it shares elements with: ``input 0``, ``state 'w'``, ``output
    1``.

    Outputs are related to earlier outputs only. Views of one storage that share no element are
    unrelated."""
    others = [(f"input {i}", tensor) for i, tensor in enumerate(tensor_leaves(arguments))]
    others += [(f"state {key!r}", tensor) for key, tensor in state.items()]
    found = []
    for number, tensor in enumerate(tensor_leaves(result)):
        found.append([name for name, other in others if overlap(tensor, other)])
        others.append((f"output {number}", tensor))
    return found


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the two tensors have a memory location in common."""
    if not one.numel() or not other.numel() or one.device != other.device:
        return False
    storage = one.untyped_storage()
    if storage.data_ptr() != other.untyped_storage().data_ptr():
        return False
    if one.element_size() != other.element_size():
        return _first(one) < _end(other) and _first(other) < _end(one)
    if _first(one) >= _end(other) or _first(other) >= _end(one):
        return False
    # Interleaved views (two halves of every row) can only be told apart element by element.
    count = storage.nbytes() // one.element_size()
    touched = torch.zeros(count, dtype=torch.bool, device=one.device)
    touched.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(touched.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def _first(tensor: torch.Tensor) -> int:
    return tensor.storage_offset() * tensor.element_size()


def _end(tensor: torch.Tensor) -> int:
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return _first(tensor) + (last + 1) * tensor.element_size()


def generators(place: str) -> dict[str, str]:
    """Digests of the generators' states: equal before and after means that nothing was drawn."""
    states = {"cpu": torch.get_rng_state()}
    if place == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    return {
        name: hashlib.sha256(bytes(state.tolist())).hexdigest() for name, state in states.items()
    }
