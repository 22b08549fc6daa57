"""Functions, methods and constants of the process, before and after a candidate was loaded.

Covers: functions and classes of torch, Python's clocks and streams of random numbers, and every
module of this package: replaced, added to, or given other code or defaults;
modules put in another's place; constants and tables of this package changed.
Does not cover: a change that is undone before anybody looks; objects that are reachable only
through closures; native code. Such a candidate can lie here, not to the judge (values) or the
parent (clock)."""

from __future__ import annotations

import _thread
import gc
import inspect
import random
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from kernel_lsp.evaluator.running.watch.events import CANDIDATE, TORCH_FOLDER

NAMESPACES: tuple[Any, ...] = (
    torch, torch.nn.functional, torch.Tensor, torch.nn.Module, torch.cuda, torch.autograd,
    torch.linalg,
    torch._C, torch._C._nn, torch.nn.modules.module, torch.autograd.graph, torch.nn.init,
    torch.random,
    time, gc, sys, inspect, random, threading, _thread, torch.cuda.Event, torch.cuda.Stream,
)  # fmt: skip
SKIPPED = frozenset(
    {
        "last_traceback",
        "last_value",
        "last_type",
        "last_exc",
        "stdin",
        "stdout",
        "stderr",
        "modules",
    }
)
UNREAD = frozenset({"__triton_launcher"})
"""Names in sys.modules that nobody looks up: each launcher that Triton 3.6 compiles replaces the
one before, because C extensions of the old kind enter themselves."""
COMPILED = "torch._inductor.runtime.compile_tasks."
"""Modules that torch's compiler wrote. It never looks them up by these names, and enters another
module of the same text when the same kernel is compiled for another program (torch 2.11: a quarter
of 60 training tasks were refused for it on an H100)."""
REBOUND_BY = "torch._dynamo"
"""torch's compiler puts wrappers around Module.__init__ and manual_seed when it is first used."""
KnownState = tuple[Any, Any, Any, Any]


class WatchedFunctions:
    """What every watched name meant at construction; :meth:`changes` names what means something
    else."""

    def __init__(self) -> None:
        self._spaces = dict(_spaces())
        self._known = {key: _meaning(value) for key, value in self._functions()}
        self._modules = dict(sys.modules)
        self._constants = dict(_constants())

    def changes(self) -> list[str]:
        """The dotted names of watched functions that are others now, each with what happened to
        it."""
        now = dict(self._functions())
        found = [f"{where}.{name}" for (where, name), old in self._known.items()
                 if not _still(old, now.get((where, name)))]  # fmt: skip
        found += [f"{where}.{name}" for (where, name), value in now.items()
                  if (where, name) not in self._known and _is_candidates(value)]  # fmt: skip
        found += [f"sys.modules[{name!r}]" for name, old in self._modules.items()
                  if sys.modules.get(name, old) is not old and _is_looked_up(name)]  # fmt: skip
        constants = dict(_constants())
        return found + [name for name, old in self._constants.items() if constants.get(name) != old]

    def _functions(self) -> Iterator[tuple[tuple[str, str], Any]]:
        for label, space in self._spaces.items():
            for name, value in list(vars(space).items()):
                if name not in SKIPPED and (
                    callable(value) or isinstance(value, (staticmethod, classmethod))
                ):
                    yield (label, name), value


def _is_looked_up(module: str) -> bool:
    return module not in UNREAD and not module.startswith(COMPILED)


def _spaces() -> Iterator[tuple[str, Any]]:
    yield from ((_label(space), space) for space in NAMESPACES)
    yield "builtins", sys.modules["builtins"]
    for name, kind in vars(torch.nn).items():
        if isinstance(kind, type):
            yield f"torch.nn.{name}", kind
    for module in _own_modules():
        yield module.__name__, module
        for name, kind in vars(module).items():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                yield f"{module.__name__}.{name}", kind


def _own_modules() -> list[ModuleType]:
    names = [name for name in sys.modules if name.split(".")[0] == "kernel_lsp"]
    return [sys.modules[name] for name in [*names, "__main__"]]


def _label(space: Any) -> str:
    return str(getattr(space, "__qualname__", None) or getattr(space, "__name__", space))


def _meaning(value: Any) -> KnownState:
    """The object itself and what a function does, which can be replaced under the same object."""
    plain = inspect.unwrap(value) if callable(value) else getattr(value, "__func__", value)
    code = getattr(plain, "__code__", None)
    return value, code, getattr(plain, "__defaults__", None), getattr(plain, "__kwdefaults__", None)


def _still(old: KnownState, value: Any) -> bool:
    if value is None:
        return False
    new = _meaning(value)
    same = all(a is b for a, b in zip(old, new, strict=True))
    return same or (new[0] is not old[0] and _rebound_by_torch(old, new))


def _rebound_by_torch(old: KnownState, new: KnownState) -> bool:
    """Whether this is torch's own doing: its compiler's wrapper, or its own module's function."""
    module = getattr(new[0], "__module__", None) or ""
    own = new[1] is not None and new[1].co_filename.startswith(TORCH_FOLDER)
    return own and (module.startswith(REBOUND_BY) or module == getattr(old[0], "__module__", None))


def _is_candidates(value: Any) -> bool:
    code = _meaning(value)[1]
    named = str(getattr(value, "__module__", None) or type(value).__module__)
    return named.startswith(CANDIDATE[1:]) or (
        code is not None and code.co_filename.startswith(CANDIDATE)
    )


def _constants() -> Iterator[tuple[str, str]]:
    """Upper-case names of this package and what they hold, as text."""
    for module in _own_modules():
        for name, value in list(vars(module).items()):
            if name.isupper() and not isinstance(value, ModuleType):
                yield f"{module.__name__}.{name}", repr(value)
