"""Layers that a rewritten forward calls as they are: torch's own with hooks, or with weights that a
parametrization computes.

A hook may do anything, so nothing of such a layer is taken apart: what its call computes is traced,
for the shapes and facts behind it, and printed as the call again (printing/statements.py), hooks
and all. `OpaqueLayers(entry, module)` finds them before a capture, `calls(graph, called)` marks
their operations after it, `conditions(…)` are what the guard asks. Refused when called: hooks on
other modules, and layers that are called twice or with more than one tensor. Backward hooks are
refused in any case (refusals.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

from kernel_lsp.errors import CaptureError
from kernel_lsp.rewrite.capture.observing import attribute, is_called_simply, single_call
from kernel_lsp.rewrite.capture.overriding import same_class
from kernel_lsp.rewrite.capture.refusals import name_of_hook
from kernel_lsp.rewrite.capture.structure import is_library
from kernel_lsp.rewrite.graph import Graph, ModuleCall

HOOKS = {"_forward_hooks": "forward hook", "_forward_pre_hooks": "forward pre-hook"}
LOST = "a rewritten forward would run twice or not at all"
REMEDY = "remove it while the target is rewritten, or write what it does into forward"


class OpaqueLayers:
    """Of one module. Make it before anything of ours is registered there."""

    def __init__(self, entry: str, module: nn.Module | None) -> None:
        """Raises CaptureError for hooks of the module itself."""
        self.entry, self._module = entry, module
        self._why: dict[str, str] = {}
        """Path -> what is special about it."""
        self._layers: list[str] = []
        """Those among it that can be called as they are."""
        for path, part in module.named_modules() if module is not None else ():
            if (why := _speciality(part)) is not None:
                if not path:
                    raise self._refusal(path, why, LOST)
                self._why[path] = why
                if is_library(part) and not _has_layers(part):
                    self._layers.append(path)
        self._hooks = {path: _hooks_of(attribute(module, path)) for path in self._layers}

    def require_unread(self, called: Collection[str]) -> None:
        """Checks that no hook which the graph does not show is part of the target's own operations.
        ``called``: paths of modules that were. Raises CaptureError for one with a hook that is no
        layer of torch: its own operations would be rewritten."""
        for path, why in self._why.items():
            if path not in self._layers and path in called:
                raise self._refusal(path, why, LOST)

    def calls(self, graph: Graph, called: list[tuple[str, bool]]) -> tuple[ModuleCall, ...]:
        """Marks the operations of these layers. Raises CaptureError."""
        found = []
        for path in self._layers:
            nodes = [node for node in graph.nodes if path in _stack_of(node)]
            if not nodes and all(known != path for known, _ in called):
                continue
            call = single_call(graph, path, nodes) if is_called_simply(path, called) else None
            if call is None:
                raise self._refusal(
                    path, self._why[path], "more is done with than one call of one tensor"
                )
            for node in nodes:
                node.meta["opaque"] = path
            found.append(call)
        return tuple(found)

    def conditions(
        self,
        calls: Collection[ModuleCall],
        names: Mapping[str, Any],
        source_of: Callable[[str], str],
    ) -> Iterator[str]:
        """Expressions, all true while the layers are of the same classes and have the same hooks
        and parametrizations."""
        for call in calls:
            layer, source = attribute(self._module, call.path), source_of(call.path)
            yield same_class(source, type(layer), names)
            for name, hooks in self._hooks[call.path].items():
                called = 'getattr(hook, "__qualname__", type(hook).__qualname__)'
                yield f"[{called} for hook in {source}.{name}.values()] == {hooks!r}"
            for name, computed in getattr(layer, "parametrizations", {}).items():
                kinds = [type(one).__qualname__ for one in computed]
                place = f"{source}.parametrizations.{name}"
                yield f"[type(one).__qualname__ for one in {place}] == {kinds!r}"

    def _refusal(self, path: str, why: str, problem: str) -> CaptureError:
        name = f"{self.entry}.{path}" if path else self.entry
        return CaptureError(f"{name} has {why}, which {problem}", REMEDY)


def _speciality(part: nn.Module) -> str | None:
    for attribute_name, kind in HOOKS.items():
        if hooks := getattr(part, attribute_name, None):
            return f"a {kind} ({name_of_hook(next(iter(hooks.values())))})"
    if torch.nn.utils.parametrize.is_parametrized(part):
        return f"a parametrization of {', '.join(part.parametrizations)}"
    return None


def _hooks_of(part: nn.Module) -> dict[str, list[str]]:
    """Names of all its hooks."""
    return {
        name: [getattr(hook, "__qualname__", type(hook).__qualname__) for hook in hooks.values()]
        for name in HOOKS
        if (hooks := getattr(part, name, None)) is not None
    }


def _has_layers(part: nn.Module) -> bool:
    return any(name != "parametrizations" for name, _ in part.named_children())


def _stack_of(node: fx.Node) -> set[str]:
    """Paths of the modules that the node was traced in."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return {str(path).split("@")[0] for path, _ in stack}
