"""Calls of functions at the top level of the workspace's files: losses, samplers, preparation of
tensors.

A function that a file defines is found after the file was imported, and replaced in every file of
the workspace that holds it by one that watches its calls; `torch.compile` traces past that. The
program's own identity tests and pickles by name go on working, because a function that anything
but a file's names refers to (a registry, a loader, a partial) is left alone.

Standard library alone; torch is the program's. Not covered: functions inside of functions and
classes, generators, what a file imports after its first calls under a name that it had before."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from . import describe
from .calls import named_arguments
from .recording import ProcessRecording
from .sites import Look

MAX_SCANS = 8
"""Looks at the files that are imported; one takes some milliseconds, and the heap's size
decides."""
FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
DEEP = 2
"""How deep tensors are looked for in lists and dicts of arguments."""


class FunctionRecorder:
    """Functions of the workspace that are watched."""

    def __init__(self, torch: Any, recording: ProcessRecording) -> None:
        self._torch, self._recording = torch, recording
        self.modules = 0
        """How many modules were imported when the files were looked at last."""
        self._scans = 0
        self._known: dict[FunctionType, Callable[..., Any] | None] = {}
        """Function -> what watches it; None: it is left alone."""

    def scan(self) -> None:
        """Watch what was defined since the last look. Cheap where nothing was imported."""
        count = len(sys.modules)
        if count == self.modules:
            return
        self.modules, self._scans = count, self._scans + 1
        if self._scans > MAX_SCANS:
            return
        files = [
            vars(module) for module in list(sys.modules.values()) if self._path(module) is not None
        ]
        found = {
            value: name
            for names in files
            for name, value in list(names.items())
            if self._may_be_watched(value, name, names) and value not in self._known
        }
        alone = held_by_names_alone(found, files)
        made = {function: self._watching(function, found[function]) for function in alone}
        self._known.update(dict.fromkeys(found))
        self._known.update(made)
        replace({function: made[function] or function for function in alone}, files)

    def _path(self, module: Any) -> str | None:
        if not isinstance(module, ModuleType):
            return None
        return self._recording.within(vars(module).get("__file__"))

    def _may_be_watched(self, value: Any, name: str, names: dict[str, Any]) -> bool:
        if not isinstance(value, FunctionType) or value.__code__.co_flags & FLAGS:
            return False
        is_own = value.__module__ == names.get("__name__") and value.__qualname__ == name
        code = value.__code__
        takes_any = bool(code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
        return is_own and (takes_any or code.co_argcount + code.co_kwonlyargcount > 0)

    def _watching(self, function: FunctionType, name: str) -> Callable[..., Any] | None:
        path = self._recording.within(
            getattr(sys.modules.get(function.__module__), "__file__", None)
        )
        if path is None:
            return None
        site = self._recording.site("function", path, name, function)
        tensor, is_compiling = self._torch.Tensor, self._torch.compiler.is_compiling
        watch = self._recording.watch

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not _holds_tensor((*args, *kwargs.values()), tensor, DEEP):
                return function(*args, **kwargs)
            shape = args[0].shape if args and type(args[0]) is tensor else None
            glance = site.glance((None, shape))
            glance.calls += 1
            if glance.calls < glance.due:
                return function(*args, **kwargs)
            return watch(
                site,
                glance,
                lambda: _FunctionCall(self._torch, self._recording.calls, watched, args, kwargs),
                lambda: function(*args, **kwargs),
            )

        return watched


class _FunctionCall(Look):
    """One call of one function."""

    def __init__(
        self, torch: Any, calls: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._calls, self._function = calls, function
        self._given = args, kwargs
        self._named = named_arguments(function, args, kwargs)
        self._specs = [describe.spec(value, torch) for _, value in self._named]
        self.tensors = {
            name: value
            for name, value in self._named
            if name and describe.is_ordinary(value, torch)
        }
        self.on_cuda = any(value.is_cuda for value in self.tensors.values())
        self._device = "cuda" if self.on_cuda else "cpu"
        enabled = torch.is_autocast_enabled(self._device)
        dtype = (
            str(torch.get_autocast_dtype(self._device)).removeprefix("torch.") if enabled else None
        )
        self._setting = {"autocast": dtype, "gradients": bool(torch.is_grad_enabled())}
        arguments = tuple(
            (name, describe.key(one))
            for (name, _), one in zip(self._named, self._specs, strict=True)
        )
        self.key = (*self._setting.values(), arguments)

    def about(self) -> dict[str, Any]:
        """What is kept of a call of a function, as a way of its site."""
        arguments = [
            {**({"name": name} if name else {}), **spec}
            for (name, _), spec in zip(self._named, self._specs, strict=True)
        ]
        kept = self._calls.keep(self._function, *self._given, self._device) if self._calls else {}
        return {**self._setting, "arguments": arguments, **kept}


def replace(functions: dict[FunctionType, Callable[..., Any]], files: list[dict[str, Any]]) -> None:
    """Give the names of files that hold these functions others."""
    for names in files:
        for name, value in list(names.items()):
            if type(value) is FunctionType and value in functions:  # some warn of questions
                names[name] = functions[value]


def held_by_names_alone(
    found: dict[FunctionType, str], files: list[dict[str, Any]]
) -> set[FunctionType]:
    """Those that nothing but the names of files refers to: other holders would go on calling the
    original, and might pickle it by a name that is another's then."""
    free = set(found)
    ours = {id(free), id(found), *map(id, files)}
    for holder in gc.get_referrers(*free) if free else ():
        if id(holder) not in ours and not inspect.isframe(holder):
            free.difference_update(
                one for one in gc.get_referents(holder) if isinstance(one, FunctionType)
            )
    return free


def _holds_tensor(values: Any, tensor: type, depth: int) -> bool:
    for value in values:
        if isinstance(value, tensor):
            return True
        if (
            depth
            and isinstance(value, (list, tuple))
            and _holds_tensor(value[:8], tensor, depth - 1)
        ):
            return True
        if (
            depth
            and isinstance(value, dict)
            and _holds_tensor(list(value.values())[:8], tensor, depth - 1)
        ):
            return True
    return False
