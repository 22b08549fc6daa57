"""Run-time guards inside the worker: what a candidate asked for, left changed, and returned.

Start at :class:`Watch`. events.py: what it asks of the system. functions.py: what it replaced.
flags.py: which switches, hooks, threads and processes it left. outputs.py: what kind of thing it
returns. Does not cover: native code that changes memory directly, and a candidate that repairs
everything before it is looked at. Those can lie here but not to the judge (values) or the parent
(clock)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_lsp.evaluator.running.watch.events import Listener
from kernel_lsp.evaluator.running.watch.flags import (
    children,
    flags,
    no_monitor_of_progress,
    threads,
)
from kernel_lsp.evaluator.running.watch.functions import WatchedFunctions
from kernel_lsp.evaluator.running.watch.outputs import OutputNote, output_problems

__all__ = ["Note", "Watch", "output_problems"]
MAX_SHOWN = 80
"""Longer switches (limits, handlers) are only said to have changed."""


class Watch:
    """Snapshot at :meth:`start` (before the candidate is loaded), difference in `problems`.

    `noticed` and `problems` are bound when a Watch is made: a method put into the class later is a
    change that they tell of, and not what is called."""

    def __init__(self) -> None:
        self.noticed: Callable[[], list[OutputNote]] = self._noticed
        """What the candidate asked for so far, and threads it left; cheap enough for every call."""
        self.problems: Callable[[], list[OutputNote]] = self._problems
        """Everything that is different now, each as {"name", "detail"}."""
        self._listener = Listener()
        self._changes: Callable[[], list[str]] = list
        self._flags: dict[str, Any] = {}
        self._threads = 0
        self._children: set[int] = set()

    def start(self) -> None:
        """Takes the state that `problems` compares with, and begins to listen."""
        self._changes = WatchedFunctions().changes
        self._flags = flags()
        no_monitor_of_progress()
        self._threads = threads()
        self._children = set(children())  # a compiler that ran out of time may not have ended yet
        self._listener.start()

    def _noticed(self) -> list[OutputNote]:
        found = [
            {"name": "no-side-channels", "detail": text} for text in self._listener.seen.values()
        ]
        running = threads() - self._threads
        if running > 0:
            found.append(
                {"name": "no-threads-left", "detail": f"{running} threads are still running"}
            )
        return found

    def _problems(self) -> list[OutputNote]:
        self._listener.on = False
        found = self.noticed()
        for name in self._changes():
            found.append(
                {"name": "functions-unpatched", "detail": f"the candidate replaced {name}"}
            )
        now = flags()
        for name, old in self._flags.items():
            if now[name] != old:
                found.append(
                    {"name": "flags-unchanged", "detail": _change_message(name, old, now[name])}
                )
        if set(children()) - self._children:
            found.append(
                {"name": "no-processes-left", "detail": "child processes are still running"}
            )
        self._listener.on = True
        return found


def _change_message(name: str, old: str, new: str) -> str:
    short = max(len(old), len(new)) <= MAX_SHOWN
    return f"{name} is now {new} (was {old})" if short else f"{name} is not what it was"
