"""What one process has seen so far: targets, the ways they were called, how long sampled calls
took.

Every call is counted, by its mode and the shape of its first argument; few are looked at. The
first calls of a target are, then ever fewer, and none while looking has cost more than `BUDGET` of
the time since the first call; those that look different at first glance begin anew. Nothing in
here may raise into the program: a failure is noted, and looking stops."""

from __future__ import annotations

import atexit
import os
import random
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from . import spool
from .calls import CallKeeper
from .limit import StepCounts
from .reading import FilesRead
from .sites import OWN_PACKAGES, CallSite, CallWay, Glance, Look
from .timing import CudaCallTimer
from .values import in_transform, is_capturing

BUDGET = 0.01
"""Share of the program's time that looking may take; what counting costs comes on top."""
WARM_UP = 3
"""Calls that look alike of which as many are looked at whatever that costs. The first of each way
and the first two of a target are slow for other reasons: their times count only where there are no
others."""
SPARSE = 32
"""From this many calls on, one in ``calls / SPARSE`` is looked at: 200 of 10 000."""
MAX_NOTES = 8
HERE = Path(__file__).resolve().parent
SKIPPED = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A call that is looked at, while it happens."""

    site: CallSite
    way: CallWay
    look: Look
    cuda: CudaCallTimer | None = None
    lost: float = 0.0
    """Seconds that the recorder had spent when the call began."""


class ProcessRecording:
    """All of one process."""

    def __init__(self, root: str, folder: str) -> None:
        self._root = Path(root).resolve()
        self._folder = Path(folder)
        self.paused = 0
        """Above 0 while Triton tries configurations: such launches are not the program's."""
        self.tuned = False
        """Configurations were tried, and the launch that follows them has not come yet."""
        self._lost = 0.0
        """Seconds that were spent in here."""
        self._begun = perf_counter()
        self._first: float | None = None
        """When the first call was looked at."""
        self._last = 0.0
        self._written = self._lost_by_writing = 0.0
        self._sites: list[CallSite] = []
        self._waiting: list[tuple[CudaCallTimer, CallWay, bool]] = []
        self._pick = random.Random()  # of our own: the program's must stay as it was
        self._writing = threading.Lock()
        self._name = _unique()
        self.notes: list[str] = []
        self.torch: Any = None
        self.calls: CallKeeper | None = None
        """What keeps snapshots; None: only descriptions are kept."""
        self.files: FilesRead | None = None
        """What the program reads; None: no snapshots are kept."""
        self.counts: StepCounts | None = None
        """Counts steps, and ends the program after some; None: it has not imported torch."""
        self.look_at_files: Callable[[], None] = _look_at_nothing
        """Watches functions that were defined since (functions.py)."""
        self._outermost: CallSite | None = None
        self.compile_frames: Callable[[Any], Any] = _leave_alone
        """torch._dynamo's switch: takes what compiles frames (None: nothing does), gives what
        did."""

    # --- where things are of the workspace ---------------------------------------------------

    def library(self, file: str | None, module: str) -> str | None:
        """The whole path of a file of an installed package; None for torch's own, and where such
        files are of no use because no snapshots are kept."""
        if file is None or self.calls is None or module.partition(".")[0] in OWN_PACKAGES:
            return None
        path = Path(file).resolve()
        return None if path.is_relative_to(HERE) else path.as_posix()

    def within(self, file: str | None) -> str | None:
        """The path from the root with forward slashes; None for what is not the workspace's own
        code."""
        if file is None:
            return None
        with suppress(OSError, ValueError):
            path = Path(file).resolve()
            inside = path.relative_to(self._root)
            if path.is_relative_to(HERE):
                return None
            parts = inside.parts
            if not SKIPPED.intersection(parts) and not any(part.startswith(".") for part in parts):
                return inside.as_posix()
        return None

    def site(self, kind: str, path: str, qualname: str, owner: Any) -> CallSite:
        """A new target to be counted; to be called once for each."""
        site = CallSite(kind, f"{path}::{qualname}", owner)
        self._sites.append(site)
        return site

    # --- one call ------------------------------------------------------------------------------

    def watch(
        self, site: CallSite, glance: Glance, look: Callable[[], Look], call: Callable[[], Any]
    ) -> Any:
        """A call that is due: look at its arguments, time it, let it happen."""
        # torch.compile may be at work around this call, and must compile it and not us.
        prior = self.compile_frames(None)
        watched = self.safely(lambda: self._enter(site, glance, look))
        self.compile_frames(prior)
        begun, result = perf_counter(), None
        try:
            result = call()
        finally:
            if watched is not None:
                ended = perf_counter()
                self.compile_frames(None)
                self.safely(lambda: self._leave(watched, begun, ended, result))
                self.compile_frames(prior)
        return result

    def _enter(self, site: CallSite, glance: Glance, look: Callable[[], Look]) -> _Watched | None:
        entered = perf_counter()
        glance.due = glance.calls + self._gap(glance.calls)
        if self.counts is not None and site is self._outermost:
            glance.calls -= 1  # one that ends the program here does not happen
            self.counts.called(site.calls, self.torch)
            glance.calls += 1
        if in_transform(self.torch) or is_capturing(self.torch):
            return None
        looking = self._lost - (self.calls.seconds if self.calls is not None else 0.0)
        if glance.samples >= WARM_UP and looking > BUDGET * (entered - (self._first or entered)):
            return None
        self._first = entered if self._first is None else self._first
        if self._outermost is None and site.kind != "function":  # which may prepare data
            self._outermost = site
        site.samples, glance.samples = site.samples + 1, glance.samples + 1
        watched = None
        try:
            seen = look()
            if (way := site.way(seen, glance)) is not None:
                seen.look_again(way)
                way.look_into(seen, self.torch)
                watched = _Watched(site=site, way=way, look=seen)
                watched.cuda = CudaCallTimer.begin(self.torch) if seen.on_cuda else None
        finally:
            self._lost += perf_counter() - entered
        if watched is not None:
            watched.lost = self._lost
        return watched

    def _leave(self, watched: _Watched, begun: float, ended: float, result: Any) -> None:
        way = watched.way
        warming = watched.site.samples < WARM_UP or not way.samples
        way.samples += 1
        self._last = ended
        if watched.cuda is not None:
            watched.cuda.end()
            self._waiting.append((watched.cuda, way, warming))
        else:
            # What was spent in here for calls inside of this one is not the target's.
            way.took(max(0.0, ended - begun - (self._lost - watched.lost)), warming=warming)
        watched.look.after(way, result)
        self._collect()
        if ended - self._written > max(1.0, 100 * self._lost_by_writing):
            self.write()
        self._lost += perf_counter() - ended

    def _gap(self, calls: int) -> int:
        """Random, so that a program whose calls take turns is not always seen at the same one."""
        return 1 if calls < WARM_UP else self._pick.randint(1, 1 + 2 * (calls // SPARSE))

    def _collect(self, *, wait: bool = False) -> None:
        """Times that the device knows by now; never waits for it while the program runs."""
        try:
            while self._waiting and (wait or self._waiting[0][0].ready()):
                clock, way, warming = self._waiting.pop(0)
                way.took(clock.seconds(), warming=warming)
        except RuntimeError:
            # The device is lost, as after a bad address: what was counted must be kept.
            self._waiting.clear()

    # --- keeping -------------------------------------------------------------------------------

    def safely(self, action: Callable[[], Any]) -> Any:
        """What ``action`` returns; None, and a note of where, when it fails: the program must not
        see it."""
        try:
            return action()
        except Exception as error:
            # of ours or of a torch that we do not know: the program must not see it
            self.note(_where(error))  # not its words, which may hold anything of the program's
            return None

    def note(self, text: str) -> None:
        """Keeps a remark, once, and no more than MAX_NOTES of them."""
        if len(self.notes) < MAX_NOTES and text not in self.notes:
            self.notes.append(text)

    def write(self, *, wait: bool = False) -> None:
        """Replace this process's file, unless another thread is at it or nothing was seen."""
        if not self._has_seen or not self._writing.acquire(blocking=False):
            return
        begun = perf_counter()
        try:
            self._collect(wait=wait)
            elapsed = max(0.0, self._last - self._first) if self._first is not None else 0.0
            # One may fail, not all.
            entries = [self.safely(site.to_record) for site in self._sites if site.calls]
            path = self._folder / f"{self._name}.json"
            steps = self.counts.to_record() if self.counts is not None else {}
            if steps and self._outermost is not None:
                steps["outermost"] = self._outermost.target
            if steps and self._first is not None:
                steps["before_s"] = self._first - self._begun
            sites = [one for one in entries if one]
            files = self.files.to_record() if self.files is not None else []
            spool.write(path, sites, elapsed, self.notes, self.torch, steps, files)
        finally:
            self._written = perf_counter()
            self._lost_by_writing = self._written - begun
            self._writing.release()

    @property
    def _has_seen(self) -> bool:
        """A call of a target, or a step."""
        has_steps = self.counts is not None and self.counts.has_steps
        return has_steps or any(site.calls for site in self._sites)

    def keep_until_the_end(self) -> None:
        """What was seen is written at every way out that Python knows of. A signal that ends the
        process loses what came after the last call that was looked at: a second, or one call in
        16."""
        leave = os._exit

        def _exit(status: int) -> None:
            self.safely(self.write)
            leave(status)

        os._exit = _exit  # type: ignore[assignment]
        atexit.register(lambda: self.safely(lambda: self.write(wait=True)))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_again)

    def _begin_again(self) -> None:
        """A forked child tells what it sees itself, and cannot ask for what its parent's device
        does."""
        self._waiting.clear()
        self._writing, self._name = threading.Lock(), _unique()
        self._first, self._lost, self._written = None, 0.0, 0.0
        if self.counts is not None:
            self.counts.begin_again()
        for site in self._sites:
            site.forget()


def _look_at_nothing() -> None:
    """Before torch is watched."""


def _leave_alone(_: Any) -> None:
    """For a torch without that switch."""


def _where(error: Exception) -> str:
    """Kind of the failure and the line of ours where it happened."""
    ours = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent == HERE
    ]
    place = f" in {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}{place}: some calls are only counted"


def _unique() -> str:
    """Of a process's file: numbers of processes come again."""
    return f"{os.getpid()}-{os.urandom(4).hex()}"
