"""Which layers a module has: what a guard asks before it reads anything of them.

A graph is made for one instance. Another one of the same class may have more layers in a list, a
layer or a bias that is None, or a layer of another class, and a person's forward decides by that
without a trace in the graph: ``for block in self.blocks``, ``if self.bias is not None``.
`Structure` collects what such code met, and `conditions` are the questions, outermost first."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from kernel_lsp.rewrite.capture.overriding import same_class

LISTS = (nn.ModuleList, nn.Sequential, nn.ParameterList)
DICTS = (nn.ModuleDict, nn.ParameterDict)
ENUMERATING = {"children": False, "named_children": False, "modules": True, "named_modules": True}
"""Methods of every module by which a forward meets layers that it does not name; whether they go
into these layers too."""
DECIDING = re.compile(r"\b(None|isinstance|issubclass|hasattr|getattr|type)\b")
"""Words of a class that treats what it has by what it is."""
SETTINGS = (bool, int, float, str)


class Structure:
    """The layers, parameters and buffers of a module that its users' code met in one call. Paths
    are dotted, as `get_submodule` takes them; "" is the module itself."""

    def __init__(self, module: nn.Module | None) -> None:
        self._module = module
        self._met: dict[str, None] = {}
        self._enumerated: dict[str, bool] = {}

    def meet(self, path: str) -> None:
        """A layer, parameter or buffer was read."""
        self._met.setdefault(path)

    def enumerate(self, path: str, method: str) -> None:
        """Notes that all layers of the module at ``path`` were asked for, by one of
        `ENUMERATING`."""
        self._enumerated[path] = ENUMERATING[method] or self._enumerated.get(path, False)

    def conditions(
        self,
        names: Mapping[str, Any],
        source_of: Callable[[str], str],
        equals: Callable[[str, Any], str],
    ) -> Iterator[str]:
        """Expressions, all true while the same layers are there. ``names``: what the names of the
        target's file stand for; ``source_of``: the source of a path; ``equals``: the comparison of
        a source with a plain value."""
        if self._module is None:
            return
        enumerated = self._all_enumerated()
        settings = _settings_read({type(part) for part in self._module.modules()})
        for path in sorted(
            self._reached(enumerated), key=lambda path: (path != "", path.count("."))
        ):
            thing, source = self._found(path), source_of(path)
            if isinstance(thing, torch.Tensor):
                if self._is_decided_by(path):
                    yield f"{source} is not None"
                continue
            may_be_exchanged = is_library(thing) and not _calls_others(thing)
            if path and (not may_be_exchanged or self._is_decided_by(path)):
                yield same_class(source, type(thing), names)
            if path in enumerated:
                yield f"[*{source}._modules] == {list(thing._modules)!r}"
            yield from _questions(thing, source)
            if is_library(thing):
                for name in sorted(settings & vars(thing).keys()):
                    if isinstance(value := vars(thing)[name], SETTINGS):
                        yield equals(f"{source}.{name}", value)

    def _found(self, path: str) -> Any:
        found: Any = self._module
        for name in path.split(".") if path else ():
            found = getattr(found, name)
        return found

    def _all_enumerated(self) -> list[str]:
        found = list(self._enumerated)
        for path in [path for path, into in self._enumerated.items() if into]:
            inner = [name for name, _ in self._found(path).named_modules() if name]
            found += [f"{path}.{name}" if path else name for name in inner]
        return found

    def _reached(self, enumerated: list[str]) -> list[str]:
        """What was met, and what containers and layers of torch among it hold: their own code
        calls that without a trace."""
        found = self._met | dict.fromkeys(enumerated)
        todo = list(found)
        while todo:
            path = todo.pop()
            thing = self._found(path)
            if not isinstance(thing, nn.Module):
                continue
            if path in enumerated or is_library(thing) or isinstance(thing, LISTS + DICTS):
                inner = [f"{path}.{name}" if path else name for name, _ in thing.named_children()]
                todo += [one for one in inner if one not in found]
                found |= dict.fromkeys(inner)
        return list(found)

    def _is_decided_by(self, path: str) -> bool:
        """The user's class that has this layer, parameter or buffer asks whether such things are
        there, or of which class, or its text is unknown. Elsewhere another layer of torch in its
        place is called like this one: adapters that replace a layer keep the fast path."""
        owner: Any = None
        while path and (owner is None or is_library(owner)):
            path = path.rpartition(".")[0]
            owner = self._found(path)
        texts = [_text(kind) for kind in _own_classes([type(owner)])]
        return any(text is None or DECIDING.search(text) for text in texts)


def is_library(module: Any) -> bool:
    """A layer of torch itself: its code does not change under the user's hands."""
    return type(module).__module__.startswith(("torch.nn.modules", "torch.nn.utils.param"))


def reader(depth: int) -> str:
    """The module of the function ``depth`` calls above: torch reads attributes while it captures
    that no forward reads."""
    return str(sys._getframe(depth + 1).f_globals.get("__name__"))


def is_own_code(reader: str) -> bool:
    """Whether the code is neither torch's nor this package's."""
    return reader.split(".")[0] not in ("torch", "kernel_lsp")


def is_forward(reader: str) -> bool:
    """The user's own code, or a layer of torch that a class inherits from."""
    return is_own_code(reader) or reader.startswith("torch.nn.modules")


def _questions(thing: nn.Module, source: str) -> Iterator[str]:
    """How many layers a container has; hooks of what calls other layers by itself."""
    if isinstance(thing, LISTS):
        yield f"len({source}) == {len(thing)}"
    elif isinstance(thing, DICTS):
        yield f"[*{source}.keys()] == {list(thing.keys())!r}"
    if is_library(thing) and _calls_others(thing):
        yield f"not ({source}._forward_hooks or {source}._forward_pre_hooks)"


def _calls_others(thing: nn.Module) -> bool:
    """Its own forward calls the layers that it has."""
    has_layers = any(True for _ in thing.children())
    return has_layers and not isinstance(thing, (nn.ModuleList, nn.ModuleDict))


def _settings_read(kinds: Iterable[type]) -> frozenset[str]:
    """Names of attributes that users' classes read of something other than ``self``."""
    found = frozenset[str]()
    for kind in _own_classes(kinds):
        found |= _attributes_in(_text(kind) or "")
    return found


@lru_cache(maxsize=256)
def _attributes_in(text: str) -> frozenset[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    )


def _own_classes(kinds: Iterable[type]) -> set[type]:
    """The classes and what they inherit from, without those of torch and Python."""
    every = {base for kind in kinds for base in kind.__mro__}
    return {kind for kind in every if kind.__module__.split(".")[0] not in ("torch", "builtins")}


def _text(kind: type) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return None
