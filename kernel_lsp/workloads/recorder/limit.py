"""What a recorded program's steps may be: counts of each optimizer's, of batches that a loader gave,
of calls of a function that its user named. Ends the program after so many steps, where that is
asked for: those of its first optimizer, or calls of its outermost module where there is no
optimizer of torch's (it trains nothing, or by an optimizer of its own), or none has stepped for
long. Rollouts that are followed by updates, and a forward pass that an autograd Function holds, are
called without gradients too.
What it does after its steps (saving, evaluating) does not happen then."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any

FEW, FEWEST = 4, 2
"""Steps that are enough when the time for a recording is over, and when twice that time is. With
one alone nobody knows whether it is a step of the program."""
CALLS_PER_STEP = 2
"""A step of inference is one call; a few more cost little, and the first are slow."""
PATIENCE_S = 120.0
"""For the first step of an optimizer that is there, from the call on that would end the program."""


class StepCounts:
    """Counts the steps of one process."""

    def __init__(
        self,
        limit: int | None,
        write: Callable[[], None],
        look: Callable[[], None],
        *,
        is_marked: bool,
        seconds: float | None = None,
    ) -> None:
        """``limit``: of steps; None: it runs to its end. ``seconds``: after which `FEW` steps are
        enough, and after twice as long `FEWEST`; None: they never are. ``write``: keeps what was
        seen. ``look``: watches functions, which a program without modules has alone.
        ``is_marked``: a function says what a step is, and nothing else."""
        self._limit, self._write, self._look, self._is_marked = limit, write, look, is_marked
        self._begun_s, self._seconds = perf_counter(), seconds if seconds is not None else inf
        self._optimizers = OptimizerNumbers()
        self._steps: list[dict[str, Any]] = []
        """Kind and steps of each optimizer, in the order of their first steps."""
        self._batches = self._marked = 0
        self._first_s: float | None = None
        """From the beginning of the process to the end of its first step."""
        self._last_s: float | None = None
        """The same to the end of the last one."""
        self._enough_since: float | None = None
        """When calls alone would have ended the program, which has an optimizer; None: not yet."""

    def to_record(self) -> dict[str, Any]:
        """How many steps of each kind there were, and when the first and the last have ended, as
        plain JSON."""
        return {
            "optimizers": self._steps,
            "batches": self._batches,
            "marked": self._marked,
            "first_s": self._first_s,
            "last_s": self._last_s,
        }

    @property
    def has_steps(self) -> bool:
        """An optimizer has stepped."""
        return bool(self._steps)

    def begin_again(self) -> None:
        """Counts from nothing in a forked child: what its parent counted is its parent's."""
        self._steps, self._batches, self._marked = [], 0, 0
        self._first_s = self._last_s = None
        self._optimizers = OptimizerNumbers()

    def saw_optimizers(self, module: Any) -> None:
        """Counts the steps of all optimizers; called when ``torch.optim`` has been imported."""
        module.register_optimizer_step_post_hook(self._stepped)

    def saw_loaders(self, module: Any) -> None:
        """Counts the batches of all loaders; called when ``torch.utils.data`` has been imported."""
        count_batches(module, self._took_batch)

    def called(self, calls: int, torch: Any) -> None:
        """The outermost module was called so often."""
        is_step = not self._is_marked and not self._steps
        is_enough = is_step and self._is_enough(calls / CALLS_PER_STEP)
        if is_enough and self._waited_for_an_optimizer(torch):
            self._end()

    def _waited_for_an_optimizer(self, torch: Any) -> bool:
        """Or there is none to wait for. What records gradients is waited for without end: they may
        be many calls' that are added up for one step."""
        now = perf_counter()
        if self._enough_since is None:
            kind = torch.optim.Optimizer
            # By type alone: isinstance asks proxies, which may do anything.
            if not any(issubclass(type(one), kind) for one in gc.get_objects()):
                return True
            self._enough_since = now
        return not torch.is_grad_enabled() and now - self._enough_since >= PATIENCE_S

    def returned(self, _: Any) -> None:
        """The function that the user has named did."""
        self._marked += 1
        self._note_time()
        self._end_at(self._marked)

    def _took_batch(self, _: Any) -> None:
        self._look()
        self._batches += 1
        if not self._steps and not self._is_marked:
            self._note_time()

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._look()
        number = self._optimizers.number(optimizer)
        if number == len(self._steps):
            self._steps.append({"kind": type(optimizer).__name__, "steps": 0})
        self._steps[number]["steps"] += 1
        if not self._is_marked:
            if self._steps[0]["steps"] == 1 and number == 0:
                self._first_s = None  # what loaders gave before is no step
            self._note_time()
        if number == 0 and not self._is_marked:
            self._end_at(self._steps[0]["steps"])

    def _note_time(self) -> None:
        self._last_s = perf_counter() - self._begun_s
        self._first_s = self._last_s if self._first_s is None else self._first_s

    def _end_at(self, steps: int) -> None:
        if self._is_enough(steps):
            self._end()

    def _is_enough(self, steps: float) -> bool:
        if self._limit is None:
            return False
        over = perf_counter() - self._begun_s
        few = FEWEST if over >= 2 * self._seconds else FEW if over >= self._seconds else inf
        return steps >= min(self._limit, few)

    def _end(self) -> None:
        self._write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class OptimizerNumbers:
    """Numbers optimizers in the order of their first steps. One that takes the place of another,
    which is gone, has its number."""

    def __init__(self) -> None:
        self._known: list[Any] = []

    def number(self, optimizer: Any) -> int:
        """The optimizer's number, from 0; a new one gets the number of one that is gone, if there
        is any."""
        for number, known in enumerate(self._known):
            if known() is optimizer:
                return number
        free = next((n for n, known in enumerate(self._known) if known() is None), None)
        if free is None:
            self._known.append(weakref.ref(optimizer))
            return len(self._known) - 1
        self._known[free] = weakref.ref(optimizer)
        return free


def count_batches(module: Any, took: Callable[[Any], None]) -> None:
    """Call ``took`` with the data set before every batch that a DataLoader gives in this process.

    ``module``: torch.utils.data.dataloader.
    """
    kind = module._BaseDataLoaderIter
    original = kind.__next__

    def counted(self_: Any) -> Any:
        took(self_._dataset)
        return original(self_)

    kind.__next__ = counted
