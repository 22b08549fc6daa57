"""What is wrong with an output besides its values, seen where the candidate runs.

Covers: tensors of another class or with attributes of their own (lazily evaluated, or lying to
whoever asks them), containers of another class, outputs in an input's memory. Does not cover:
values, dtypes, shapes and strides, which the judge compares from raw bytes."""

from __future__ import annotations

from typing import Any

import torch

from kernel_lsp.evaluator.tensors import leaves

OutputNote = dict[str, str]
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
PLAIN_MARKS = (set, frozenset, dict, tuple, list, bool, int, type(None))
"""What such a mark may be: nothing that runs code when it is read."""


def output_problems(result: Any, arguments: Any, aliases: bool) -> list[OutputNote]:
    """Notes on ``result``. ``aliases``: the reference returns inputs too."""
    found = [_lazy(kind) for kind in _strange_containers(result)]
    if found:  # a container with behavior of its own is not walked any further
        return found
    inputs = (leaf for _, leaf in leaves(arguments) if isinstance(leaf, torch.Tensor))
    mine = {_address(tensor) for tensor in inputs} - {None}
    for _, leaf in leaves(result):
        if not isinstance(leaf, torch.Tensor):
            continue
        if type(leaf) not in PLAIN_TENSORS or not _are_marks_of_compiler(vars(leaf)):
            found.append(_lazy(type(leaf)))
        elif not aliases and _address(leaf) in mine:
            detail = "the output shares memory with an input; the reference's does not"
            found.append({"name": "outputs-own-memory", "detail": detail})
    return found


def _are_marks_of_compiler(attributes: dict[str, Any]) -> bool:
    """Which sizes torch.compile found to change, as plain numbers: it writes that on results."""
    return all(
        name.startswith("_dynamo_") and type(value) in PLAIN_MARKS
        for name, value in attributes.items()
    )


def _address(tensor: torch.Tensor) -> int | None:
    """Where a tensor's memory starts; None for one without (sparse, empty)."""
    held = tensor.layout is torch.strided and tensor.numel() > 0
    return int(tensor.untyped_storage().data_ptr()) if held else None


def _lazy(kind: type) -> OutputNote:
    detail = f"the output is a {kind.__name__} with its own behavior, not a plain tensor"
    return {"name": "plain-outputs", "detail": detail}


def _strange_containers(value: Any) -> list[type]:
    """Classes of lists, tuples and dictionaries that the candidate itself has defined with
    methods."""
    if isinstance(value, torch.Tensor) or not isinstance(value, (list, tuple, dict)):
        return []
    overridden = {"__getitem__", "__iter__", "__len__", "items", "values", "keys"} & _own_names(
        type(value)
    )
    if overridden:
        return [type(value)]
    items = value.values() if isinstance(value, dict) else value
    return [kind for item in items for kind in _strange_containers(item)]


def _own_names(kind: type) -> set[str]:
    """Names that a class and its bases define outside of the standard library."""
    return {
        name
        for base in kind.__mro__
        if base.__module__.startswith("program_")
        for name in vars(base)
    }
