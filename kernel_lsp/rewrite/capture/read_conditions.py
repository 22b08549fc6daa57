"""What a captured forward has read, as conditions in source: it is still as it was read.

Not covered: which conditions a rewritten forward needs (printing/guard.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernel_lsp.rewrite.capture.functions import HeldFunction
from kernel_lsp.rewrite.capture.observing import ArrayContent, CalledObject, Items, SameObject


def self_path(path: str) -> str:
    """``layers.0.weight`` as source: ``self.layers[0].weight``. ``table[3]`` stays as it is."""
    parts = ["self"]
    for part in path.split(".") if path else ():
        if part.partition("[")[0].isidentifier():
            parts.append(f".{part}")
        else:
            parts.append(f"[{part}]" if part.isdigit() else f"[{part!r}]")
    return "".join(parts)


def equals(source: str, value: Any) -> str:
    """A condition: what ``source`` names has this plain value."""
    if value is None or isinstance(value, bool):
        return f"{source} is {value}"
    if isinstance(value, float):
        if value != value:
            return f"{source} != {source}"
        # A parameter of one element would compare equal too, and lose its gradient.
        return f"isinstance({source}, float) and {source} == {literal(value)}"
    return f"{source} == {literal(value)}"


def unchanged(source: str, read: Any, named: Callable[[str], str]) -> str:
    """A condition: what ``source`` names is what was read there while the target was captured.
    ``named``: the source of a path."""
    if isinstance(read, SameObject):
        return f"{source} is {named(read.path)}"
    if isinstance(read, ArrayContent):
        # torch.compile does not follow the content of an array: it takes the original path.
        same_kind = f'str(getattr({source}, "dtype", None)) == "{read.dtype}"'
        same_content = f"{same_kind} and {source}.tolist() == {literal(read.values)}"
        return f"not torch.compiler.is_compiling() and {same_content}"
    if isinstance(read, HeldFunction):
        return _same_function(source, read)
    if isinstance(read, CalledObject):
        return f'type({source}).__qualname__ == "{read.kind}"'
    if not isinstance(read, Items):
        return equals(source, read)
    if read.kind is dict:
        return f"isinstance({source}, dict) and list({source}) == {literal(list(read.keys))}"
    return f"isinstance({source}, {read.kind.__name__}) and len({source}) == {len(read.keys)}"


def _same_function(source: str, read: HeldFunction) -> str:
    asked = []
    if read.code is not None:
        named = f'getattr(getattr({source}, "__code__", None), "co_qualname", None)'
        asked.append(f'{named} == "{read.code}"')
    if read.code != read.name:
        asked.append(f'getattr({source}, "__qualname__", None) == "{read.name}"')
    if read.is_own_method:
        asked.append(f"{source}.__self__ is {source.rpartition('.')[0]}")
    elif read.module:
        module = "__name__" if read.is_of_own_file else f'"{read.module}"'
        asked.append(f"{source}.__module__ == {module}")
    if read.defaults:
        asked.append(f"{source}.__defaults__ == {literal(read.defaults)}")
    return " and ".join(asked)


def literal(value: Any) -> str:
    """Python source of a plain value; infinities have no literal of their own."""
    if isinstance(value, float):
        return repr(float(value)) if value - value == 0.0 else f'float("{float(value)}")'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    return str(value) if isinstance(value, torch.dtype) else repr(value)
