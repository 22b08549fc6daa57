"""What a call does besides its values: whose memory it returns, what it left on its inputs and
parameters, and what it drew from the generators.

Used by judge (reference) and worker (candidate) alike, so that the two descriptions can be
compared. Does not cover: relations to tensors that are neither argument, state nor output; random
generators other than torch's, Python's and numpy's."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import random
import sys
from array import array
from collections.abc import Iterator
from typing import Any

import torch

from kernel_lsp.evaluator.tensors import tensor_leaves

_OTHERS = torch.version.cuda or torch.version.hip or getattr(torch.version, "xpu", None)
_seed_torch = torch.manual_seed if _OTHERS else torch.default_generator.manual_seed
"""Where torch is built for the CPU alone, its own function notes a traceback for each device that
it lacks: a third of a small verdict's CPU time in the judge."""
_seed_python = random.seed
MAX_HELD = 2**20
"""Parameters' elements up to which they have gradients before a call; a call of more takes long
enough without."""


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
    # Interleaved views (two halves of every row) can only be kept apart element by element.
    count = storage.nbytes() // one.element_size()
    touched = torch.zeros(count, dtype=torch.bool, device=one.device)
    touched.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(touched.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def _first(tensor: torch.Tensor) -> int:
    return tensor.storage_offset() * tensor.element_size()


def _end(tensor: torch.Tensor) -> int:
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return _first(tensor) + (last + 1) * tensor.element_size()


@contextlib.contextmanager
def held_gradients(target: Any) -> Iterator[list[str]]:
    """Inside the block each parameter has a gradient of ones, as it has one where steps are
    accumulated, if they have few elements; the list has afterwards those that lost or changed it,
    as marks of a call."""
    named = dict(target.named_parameters()) if isinstance(target, torch.nn.Module) else {}
    held = {name: one for name, one in named.items() if one.requires_grad}
    if sum(one.numel() for one in held.values()) > MAX_HELD:
        held = {}
    given = {name: torch.ones_like(one, requires_grad=False) for name, one in held.items()}
    left: list[str] = []
    for name, one in held.items():
        one.grad = given[name]
    try:
        yield left
    finally:
        for name, one in held.items():
            if one.grad is not given[name] or not bool((given[name] == 1).all()):
                left.append(f"parameter {name!r}: not the gradient that it had")
            one.grad = None if one.grad is given[name] else one.grad


def marks(arguments: Any, target: Any, required: list[bool]) -> list[str]:
    """What a call has left on its inputs and parameters besides values: a gradient, an attribute,
    another requires_grad than they had (``required``, of the inputs); and the mode of a module.
    torch.compile's own marks are left to it."""
    found = []
    for number, (tensor, had) in enumerate(zip(tensor_leaves(arguments), required, strict=True)):
        name = f"input {number}"
        if tensor.requires_grad != had:
            found.append(f"{name}: requires_grad is {tensor.requires_grad}")
        names = [str(key)[:60] for key in vars(tensor) if not str(key).startswith("_dynamo_")]
        found += [f"{name}: the attribute {key!r}" for key in names]
        if tensor.is_leaf and tensor.grad is not None:
            found.append(f"{name}: a gradient")
    if isinstance(target, torch.nn.Module):
        held = [key for key, parameter in target.named_parameters() if parameter.grad is not None]
        found += [f"parameter {key!r}: a gradient" for key in held]
        found.append(f"the module in {'train' if target.training else 'eval'}()")
    return found


def requirements(arguments: Any) -> list[bool]:
    """Which tensors require a gradient, before a call."""
    return [tensor.requires_grad for tensor in tensor_leaves(arguments)]


def names(result: Any) -> list[list[str]]:
    """For each tuple of a result the names by which its items are read, where its class gives
    them; torch's own classes are left out, whose results programs unpack."""
    if isinstance(result, (list, tuple)):
        inner = [found for item in result for found in names(item)]
        own = getattr(type(result), "_fields", ())
        return [list(map(str, own)), *inner] if isinstance(result, tuple) else inner
    if isinstance(result, dict):
        return [found for item in result.values() for found in names(item)]
    return []


def seed(number: int) -> None:
    """Set the generators that a program may draw from."""
    _seed_torch(number)
    _seed_python(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number % 2**32)


def generators(place: str) -> dict[str, str]:
    """Digests of the generators' states: equal before and after means that nothing was drawn."""
    states = {"cpu": _bytes(torch.get_rng_state())}
    if place == "cuda":
        states["cuda"] = _bytes(torch.cuda.get_rng_state())
    version, numbers, more = random.getstate()
    states["Python"] = array("Q", numbers).tobytes() + repr((version, more)).encode()
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = _content(numpy.random.get_state(legacy=False))
    return {name: hashlib.sha256(state).hexdigest() for name, state in states.items()}


def _bytes(state: torch.Tensor) -> bytes:
    """Of a generator's state. As a list of numbers it takes 0.1 ms, some 300 times in a verdict."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _content(state: Any) -> bytes:
    """All that is in a state of numpy's. Not its ``repr``, which takes 2 ms, 160 times in a
    verdict, and is what a program has numpy print of an array."""
    if isinstance(state, dict):
        return b"".join(name.encode() + _content(state[name]) for name in sorted(state))
    return state.tobytes() if hasattr(state, "tobytes") else repr(state).encode()
