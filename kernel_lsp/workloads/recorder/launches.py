"""Launches of the workspace's Triton kernels: ``JITFunction.run``, or the interpreter's.

Launches by ``triton.autotune`` while it tries configurations are left out. Not covered: launches
from C++, and kernels that torch.compile has taken into its own code."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from typing import Any

from . import describe
from .recording import ProcessRecording
from .sites import CallSite, CallWay, Look

MAX_FRAMES = 24
OPTIONS = ("num_warps", "num_stages", "num_ctas")


def install(kind: type, recording: ProcessRecording) -> None:
    """``kind`` has ``fn``, ``arg_names`` and ``run(*args, grid, warmup, **kwargs)``."""
    _LaunchObserver(kind, recording).install()


def leave_out(autotuner: type, recording: ProcessRecording) -> None:
    """Nothing is recorded while configurations are timed; then what they wrote into is not as it
    was."""
    bench = autotuner._bench  # type: ignore[attr-defined]

    @functools.wraps(bench)
    def unrecorded(self_: Any, *args: Any, **kwargs: Any) -> Any:
        recording.paused += 1
        try:
            return bench(self_, *args, **kwargs)
        finally:
            recording.paused -= 1
            recording.tuned = True

    autotuner._bench = unrecorded  # type: ignore[attr-defined]


class _LaunchObserver:
    def __init__(self, kind: Any, recording: ProcessRecording) -> None:
        self.kind, self.recording = kind, recording
        self.sites: dict[int, tuple[weakref.ref[Any], CallSite | None]] = {}
        """By identity, which a later kernel may have again; its hash would be computed from its
        source."""

    def install(self) -> None:
        """Put a recording `run` in the place of the kind's own."""
        run, sites, recording = self.kind.run, self.sites, self.recording

        @functools.wraps(run)
        def recorded_run(self_: Any, /, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            intact, recording.tuned = not recording.tuned, False  # whoever's kernel was tuned
            known = sites.get(id(self_))
            if known is not None and known[0]() is self_:
                site = known[1]
            else:
                site = recording.safely(lambda: self.site_of(self_))
            if site is None or warmup or recording.paused or recording.torch is None:
                return run(self_, *args, grid=grid, warmup=warmup, **kwargs)
            tensor = recording.torch.Tensor
            key = tuple([value.shape for value in args[:3] if type(value) is tensor])
            glance = site.glances.get(key) or site.glance(key)
            glance.calls += 1
            if glance.calls < glance.due:
                return run(self_, *args, grid=grid, warmup=warmup, **kwargs)
            watched = _Grid(grid)
            return recording.watch(
                site,
                glance,
                lambda: _Launch(recording, self_, watched, args, kwargs, intact),
                lambda: run(self_, *args, grid=watched.given, warmup=warmup, **kwargs),
            )

        self.kind.run = recorded_run

    def site_of(self, kernel: Any) -> CallSite | None:
        """The kernel's place in the recording; None where it lies outside of what is recorded, or
        in a function."""
        # Also where what follows fails: once is enough.
        self.sites[id(kernel)] = (weakref.ref(kernel), None)
        path = self.recording.within(kernel.fn.__code__.co_filename)
        qualname = kernel.fn.__qualname__
        if path is None or "<locals>" in qualname:
            return None
        site = self.recording.site("launch", path, qualname, kernel)
        self.sites[id(kernel)] = weakref.ref(kernel), site
        return site


class _Grid:
    """A grid whose evaluation, where it is a function, is listened to and not repeated."""

    def __init__(self, given: Any) -> None:
        self.size: tuple[int, ...] | None = None
        self.given = given
        if callable(given):
            self.given = lambda meta: self._heard(given(meta))
        else:
            self._heard(given)

    def _heard(self, size: Any) -> Any:
        self.size = (
            tuple(int(extent) for extent in size) if isinstance(size, (list, tuple)) else None
        )
        return size


class _Launch(Look):
    """One launch of one kernel."""

    def __init__(
        self,
        recording: ProcessRecording,
        kernel: Any,
        grid: _Grid,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        intact: bool,
    ) -> None:
        self.intact = intact
        torch = self.torch = recording.torch
        self.recording, self.kernel, self.grid = recording, kernel, grid
        signature = inspect.signature(kernel.fn)
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        constants = _constants(kernel.fn)
        filled = {n: given.get(n, p.default) for n, p in signature.parameters.items()}
        self.constants = {name: _constant(filled[name]) for name in filled if name in constants}
        self.arguments = {name: value for name, value in filled.items() if name not in constants}
        self.specs = {name: describe.spec(value, torch) for name, value in self.arguments.items()}
        self.options = {name: kwargs[name] for name in OPTIONS if isinstance(kwargs.get(name), int)}
        ordinary = {n: v for n, v in self.arguments.items() if describe.is_ordinary(v, torch)}
        self.tensors = {n: v.detach() for n, v in ordinary.items()}
        self.on_cuda = any(value.is_cuda for value in self.tensors.values())
        self.key = (
            tuple((name, describe.key(spec)) for name, spec in self.specs.items()),
            tuple((name, describe.key({"value": value})) for name, value in self.constants.items()),
            tuple(self.options.items()),
            grid.size,
        )

    def about(self) -> dict[str, Any]:
        """What is kept of a launch, as a way of its site."""
        frame, autotuned = self._came_from(sys._getframe(1))
        launcher = None if frame is None else self._name(frame)
        called = (
            {} if frame is None or launcher is None else {"called_with": self._called_with(frame)}
        )
        return {
            "arguments": [{"name": name, **spec} for name, spec in self.specs.items()],
            "constants": self.constants,
            "aliases": self._aliases(),
            "autotuned": autotuned,
            "launcher": launcher,
            **called,
            **self.options,
        }

    def after(self, way: CallWay, result: Any) -> None:
        """The grid, and what the compiler was asked for where the launch did not say it."""
        if self.grid.size is not None:
            way.about["grid"] = list(self.grid.size)
        metadata = getattr(result, "metadata", None)
        for name in OPTIONS:
            if name not in way.about and isinstance(getattr(metadata, name, None), int):
                way.about[name] = getattr(metadata, name)

    def _aliases(self) -> list[list[str]]:
        by_memory: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            by_memory.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
        return [names for memory, names in by_memory.items() if memory and len(names) > 1]

    def _came_from(self, frame: Any) -> tuple[Any | None, bool]:
        """The frame of the workspace that launched it, and whether autotune stands between."""
        autotuned = False
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            autotuned = autotuned or (
                code.co_name == "run" and code.co_filename.endswith("autotuner.py")
            )
            if self.recording.within(code.co_filename) is not None:
                return frame, autotuned
            frame = frame.f_back
        return None, autotuned

    def _name(self, frame: Any) -> str | None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # Python 3.11
        return None if name == "<module>" else f"{self.recording.within(code.co_filename)}::{name}"

    def _called_with(self, frame: Any) -> list[dict[str, Any]]:
        """The launcher's own arguments, as they are when it launches: a kernel is judged by
        calling it."""
        code, held = frame.f_code, frame.f_locals
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return [{"name": name, **describe.spec(held.get(name), self.torch)} for name in names]


def _constants(function: Any) -> set[str]:
    """Parameters that are marked as constexpr, as an object or as text."""
    return {name for name, note in function.__annotations__.items() if "constexpr" in str(note)}


def _constant(value: Any) -> Any:
    """What TOML can hold as it is, else its repr."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    return value if isinstance(value, (bool, int, float, str)) else repr(value)[:80]
