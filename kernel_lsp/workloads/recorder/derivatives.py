"""Calls of ``torch.autograd.Function`` subclasses: a forward and its backward, written by hand.

Each class of the workspace (and, where snapshots are kept, of installed packages) has its
``forward`` replaced by one that counts, times and describes calls, whatever calls its ``apply``;
`torch.compile` traces past that. No snapshot is kept: `REASON` says why none would be opened.

Standard library alone; torch is the program's. Not covered: classes within functions, and those
that inherit their ``forward``; the time of the backward is the profiler's (profiling.py)."""

from __future__ import annotations

import functools
import sys
from typing import Any

from . import describe
from .calls import named_arguments, setting_of
from .recording import ProcessRecording
from .sites import Look, is_hidden

METHODS = (staticmethod, classmethod)
KIND = "autograd"
"""Of such a target in a recording."""
REASON = (
    "its backward is written by hand, and no rewrite is proposed that would keep both directions; "
    "let PyTorch derive the backward of plain operations, or write a pair of your own and have "
    "`kernel-lsp verify` judge its values and gradients"
)


class DerivativeRecorder:
    """Autograd Functions that are watched."""

    def __init__(self, torch: Any, recording: ProcessRecording) -> None:
        self._torch, self._recording = torch, recording
        self._known: set[type] = set()

    def scan(self) -> None:
        """Watch what was defined since the last look."""
        waiting = list(self._torch.autograd.Function.__subclasses__())
        while waiting:
            kind = waiting.pop()
            waiting += type.__subclasses__(kind)
            if kind not in self._known:
                self._known.add(kind)
                self._watch(kind)

    def _watch(self, kind: type) -> None:
        written = vars(kind).get("forward")
        if not isinstance(written, METHODS) or "<locals>" in kind.__qualname__:
            return
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        path = self._recording.within(file) or self._recording.library(file, kind.__module__)
        if path is not None and not is_hidden(kind):
            watched = self._watching(kind, written, path)
            kind.forward = type(written)(watched)  # type: ignore[attr-defined]

    def _watching(self, kind: type, written: Any, path: str) -> Any:
        """``written``: the static or class method that ``forward`` is."""
        forward = written.__func__
        torch, watch = self._torch, self._recording.watch
        is_compiling, tensor = torch.compiler.is_compiling, torch.Tensor
        site = self._recording.site(KIND, path, kind.__qualname__, kind)
        # a forward beside a setup_context is given no context, a class method its class
        first = int(_takes_context(kind, torch)) + isinstance(written, classmethod)

        def observed(*args: Any, **kwargs: Any) -> Any:
            given = args[first:]
            shape = given[0].shape if given and type(given[0]) is tensor else None
            glance = site.glance((None, shape))
            glance.calls += 1
            if glance.calls < glance.due:
                return forward(*args, **kwargs)
            return watch(
                site,
                glance,
                lambda: _AppliedCall(torch, kind, named_arguments(forward, args, kwargs)[first:]),
                lambda: forward(*args, **kwargs),
            )

        @functools.wraps(forward)
        def watched_forward(*args: Any, **kwargs: Any) -> Any:
            # torch.compile takes what this refers to into its graph: functions alone; names are
            # given by the forward of a class that inherits from this one
            return forward(*args, **kwargs) if is_compiling() else observed(*args, **kwargs)

        return watched_forward


class _AppliedCall(Look):
    """What one ``apply`` was given."""

    def __init__(self, torch: Any, kind: type, named: list[tuple[str | None, Any]]) -> None:
        self._kind = kind
        self._specs = [describe.spec(value, torch) for _, value in named]
        self.tensors = {
            name: value for name, value in named if name and describe.is_ordinary(value, torch)
        }
        self.on_cuda = any(value.is_cuda for value in self.tensors.values())
        self._setting = setting_of(torch, "cuda" if self.on_cuda else "cpu")
        del self._setting["gradients"]  # they are off within every forward
        self.key = tuple(map(describe.key, self._specs))

    def about(self) -> dict[str, Any]:
        """What is kept of a call of `Function.apply`, as a way of its site."""
        # apply takes no names
        return {
            "arguments": self._specs,
            "setting": self._setting,
            "module": self._kind.__module__,
            "class": self._kind.__qualname__,
            "not_kept": REASON,
        }


def _takes_context(kind: type, torch: Any) -> bool:
    found = getattr(kind, "setup_context", None)
    return found is None or found is getattr(torch.autograd.Function, "setup_context", None)
