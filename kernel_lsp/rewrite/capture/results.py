"""Objects among the results of a target: dataclasses, named tuples and ordered dicts that its own
file can make again.

`known_classes(result, names)` registers their classes with torch's pytrees, so that torch.export
takes them apart, and says how the target's file calls each. Refused: a class that the file has no
name for, an object that its constructor would not make of its fields alone, and fields that hold
other objects (a cache that grows)."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kernel_lsp.errors import CaptureError
from kernel_lsp.rewrite.capture.functions import PLAIN
from kernel_lsp.rewrite.capture.overriding import expression
from kernel_lsp.rewrite.capture.recorded import take_apart


class ResultError(CaptureError):
    """A result that a graph cannot give."""

    def __init__(self, cause: str, remedy: str, name: str | None = None) -> None:
        """``name``: of the local that holds it, among the results of a part."""
        super().__init__(cause, remedy)
        self.name = name


def require_plain(entry: str, names: Sequence[str], result: Any) -> None:
    """Raises ResultError where one of the locals that statements hand on is neither a tensor nor
    a plain value, nor a tuple of them: somebody else may hold the object, and a graph makes a new
    one."""
    values = result if len(names) > 1 else (result,)
    for name, value in zip(names, values, strict=True):
        todo = [value]
        while todo:
            one = todo.pop()
            if type(one) is tuple:
                todo += one
            elif not isinstance(one, (torch.Tensor, *PLAIN)):
                raise ResultError(
                    f"a part of {entry} hands on a {type(one).__name__}",
                    "hand on tensors and tuples of them",
                    name,
                )


def known_classes(entry: str, result: Any, names: Mapping[str, Any]) -> dict[type, str]:
    """Class -> its name in the target's file. ``names``: what names there stand for. Raises
    CaptureError."""
    found: dict[type, str] = {}
    for thing in _objects_in(result):
        kind = type(thing)
        named = expression(kind, names)
        if named is None or not (kind is OrderedDict or is_record(kind)):
            raise ResultError(
                f"{entry} returns a {_name_of(kind)}",
                "return a tensor, tuple, list, dict, dataclass or named tuple of them",
            )
        if is_record(kind) and not _is_made_of_its_fields(thing):
            raise ResultError(
                f"{entry} returns a {kind.__name__}, which holds more than its constructor is "
                f"given",
                "return a tensor, tuple, list or dict of them",
            )
        found[kind] = named
    if found:
        take_apart(result)
    return found


def is_record(kind: type) -> bool:
    """A dataclass or a named tuple."""
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def fields_of(thing: Any) -> dict[str, Any]:
    """What the constructor of a dataclass or named tuple is given, by name."""
    if isinstance(thing, tuple):
        return dict(zip(thing._fields, thing, strict=True))  # type: ignore[attr-defined]
    return {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing) if f.init}


def _objects_in(value: Any) -> Iterator[Any]:
    """Everything that is no tensor, plain value, tuple, list or dict, the outermost first.
    OrderedDict is among it: a file may have no name for it."""
    if isinstance(value, torch.Tensor) or type(value) in PLAIN:
        return
    if type(value) is dict:
        items = list(value.values())
    elif type(value) in (tuple, list):
        items = list(value)
    else:
        yield value
        items = _items_of(value)
    for item in items:
        yield from _objects_in(item)


def _items_of(thing: Any) -> list[Any]:
    if type(thing) is OrderedDict:
        return list(thing.values())
    return list(fields_of(thing).values()) if is_record(type(thing)) else []


def _name_of(kind: type) -> str:
    own = f"{kind.__module__}." if kind.__module__.startswith("torch") else ""
    return f"{own}{kind.__name__}"


def _is_made_of_its_fields(thing: Any) -> bool:
    try:
        made = type(thing)(**fields_of(thing))
    except Exception:  # a constructor of the user's
        return False
    return type(made) is type(thing) and _content(made) == _content(thing)


def _content(thing: Any) -> list[tuple[str, Any]]:
    """Everything on an object, each value by its identity where it is not plain."""
    own = {**getattr(thing, "__dict__", {}), **fields_of(thing)}
    items = list(own.items())
    if isinstance(thing, dict):
        items += [(f"[{key!r}]", value) for key, value in thing.items()]
    return [(name, value if type(value) in PLAIN else id(value)) for name, value in items]
