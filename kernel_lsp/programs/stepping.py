"""One run of a program for some steps: in a copy of its workspace, in one way, watched by
recorder/steps.py.

`run` starts a fresh process and returns what its steps took, or why there are none. The program
keeps its user's rights, as when the user runs it; what it writes into its workspace is thrown
away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import IO, Any

from kernel_lsp import foreign, scratch
from kernel_lsp.errors import WorkloadError
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.snapshots import sources
from kernel_lsp.workloads.running import START

LOG_BYTES = 4000
MAX_BYTES = 64 * 2**20
"""Of what a run says of its steps."""
POLL_S = 0.05
"""Between looks whether the user has cancelled, or its steps have begun: a fraction of those that
are left out at the beginning."""
WARM_UP = 0.3
"""Share of the steps, at the beginning, that do not count; at least two."""


@dataclass(frozen=True, kw_only=True)
class ProgramWay:
    """One way of running a program."""

    name: str
    mode: str | None = None
    """Of torch.compile; None: it is not called."""
    regional: bool = False
    """Of the repeated block instead of the root."""
    variant: str | None = None
    """Which of our edits are in it (composing.py); None: none, the program's own text."""

    @property
    def is_edited(self) -> bool:
        """Whether it runs with rewrites."""
        return self.variant is not None


@dataclass(frozen=True, kw_only=True)
class Clock:
    """What a step of a program is."""

    roots: tuple[tuple[str, str], ...]
    """Module and class of the modules that the program itself calls, the main one first; empty: it
    computes by functions alone."""
    kind: str
    """optimizer, calls (of the main root), function (that its user has named), or loader."""
    region: tuple[str, str] | None = None
    """The block that is there several times."""
    optimizer: int = 0
    """Whose steps count, in the order of the optimizers' first steps."""
    marked: tuple[str, str] | None = None
    """Module and name of the function that is a step."""

    @property
    def words(self) -> str:
        """What a step is, for people."""
        if self.kind == "optimizer":
            number = self.optimizer + 1
            which = f"optimizer number {number}" if self.optimizer else "the optimizer"
            return f"a step ends when {which} has stepped"
        if self.kind == "function" and self.marked is not None:
            return f"a step is a call of {self.marked[1]}"
        if self.kind == "loader":
            return "a step is a batch of the loader"
        return f"a step is a call of {self.roots[0][1]}" if self.roots else "a step is a call"


@dataclass(frozen=True, kw_only=True)
class StepRun:
    """What one run has shown."""

    way: ProgramWay
    steps_ms: tuple[float, ...] = ()
    """Of every step after the first."""
    first_s: float | None = None
    """From the start of the process to the end of the first step."""
    peak_bytes: int | None = None
    room_bytes: int | None = None
    """Of the device's memory that it could have had."""
    digests: tuple[Any, ...] = ()
    taken: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Edited class -> calls, and those of them that went the original way."""
    notes: tuple[str, ...] = ()
    profile: dict[str, Any] | None = None
    """Of the last step, where that was asked for (recorder/profiling.py)."""
    optimizers: tuple[dict[str, Any], ...] = ()
    """Kind, module, fused and foreach of each, and of a profiled run file and line that made it."""
    tokens: float | None = None
    """That the outermost module was given in a step, where it is a language model's and was
    profiled."""
    draws: bool = False
    """Its outermost module draws random numbers (dropout), where it was profiled."""
    files: tuple[str, ...] = ()
    """Of the modules that it imported, where it was profiled; those of the workspace by their real
    place."""
    outermost: tuple[str, str] | None = None
    """Module and class of what the program called first, where it was profiled and no root was
    known."""
    failed: str | None = None
    """Why it says nothing, in one line."""
    is_cut_off: bool = False
    """It was ended because it took too long: what it would have shown is unknown. A run that was
    ended with enough steps for a time is none of these."""

    @property
    def took_s(self) -> float:
        """Seconds from the run's start to its last step."""
        return (self.first_s or 0.0) + sum(self.steps_ms) / 1e3

    @property
    def step_ms(self) -> float | None:
        """Median in the steady state."""
        left_out = max(2, math.ceil(WARM_UP * len(self.steps_ms)))
        steady = self.steps_ms[left_out:]
        return median(steady) if steady else None


def run(
    mirror: Mirror,
    command: Sequence[str],
    folder: Path,
    way: ProgramWay,
    clock: Clock,
    *,
    steps: int,
    timeout_s: float,
    served: Mapping[Path, str] | None = None,
    **more: Any,
) -> StepRun:
    """``folder``: where the user runs the command. ``served``: edited texts of installed files.
    ``more``: check, nudge, redraw, undrawn, edited, profiled (see recorder/steps.py).

    Raises WorkloadError when the command cannot be started.
    """
    started = StartedRun(mirror, command, folder, way, clock, steps=steps, served=served, **more)
    return started.finish(timeout_s)


class StartedRun:
    """A run whose process goes. With ``held`` it imports its libraries and then waits for
    `finish`, so that the run before it is timed meanwhile."""

    def __init__(
        self,
        mirror: Mirror,
        command: Sequence[str],
        folder: Path,
        way: ProgramWay,
        clock: Clock,
        *,
        steps: int,
        served: Mapping[Path, str] | None = None,
        held: bool = False,
        **more: Any,
    ) -> None:
        """Raises WorkloadError when the command cannot be started."""
        self._mirror, self._way, self._steps = mirror, way, steps
        self._is_check, self._is_over = bool(more.get("check")), False
        self._is_timed = not more
        self._stack = contextlib.ExitStack()
        place = self._stack.enter_context(scratch.folder("steps"))
        self._out, self._go = place / "steps.json", place / "go"
        self._pause, self._steady = place / "pause", place / "steady"
        given = {
            "out": str(self._out), "roots": clock.roots, "clock": clock.kind,
            "optimizer": clock.optimizer, "marked": clock.marked,
            "region": clock.region if way.regional
            else None, "mode": way.mode, "count": steps, "begun": time.time(),
            "served": _write_sources(served or {}, place), "go": str(self._go) if held else None,
            "pause": str(self._pause), "steady": str(self._steady),
            "sources": str(sources.__file__), **more,
        }  # fmt: skip
        try:
            # read by this handle: the program may put another file in its place
            self._log = self._stack.enter_context((place / "log").open("w+b"))
            self._process = _start(mirror, command, folder, json.dumps(given), self._log)
        except BaseException:
            self._stack.close()
            raise

    def finish(self, timeout_s: float, beside: Sequence[StartedRun] = ()) -> StepRun:
        """What it has shown, after at most so many seconds from now. ``beside``: held runs, which
        import nothing while its steps are timed."""

        def look() -> None:
            if self._steady.exists():
                for other in beside:
                    other._pause.touch()

        try:
            self._go.touch()
            status = _wait(self._process, timeout_s, look)
            self._end_process()
            for other in beside:
                other._pause.unlink(missing_ok=True)
            said = _last_of(self._log)
            try:
                data = foreign.json_value(foreign.read_bytes(self._out, most=MAX_BYTES))
                run = _read(data, self._way, self._mirror)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
                why, is_late = _why(status, said, timeout_s), status is None
                return StepRun(way=self._way, failed=why, is_cut_off=is_late)
        finally:
            self.end()
        if status is None:
            return self._cut_off(run, timeout_s)
        failed = _fault(data, status, said, steps=self._steps, is_check=self._is_check)
        return replace(run, failed=failed)

    def _cut_off(self, run: StepRun, timeout_s: float) -> StepRun:
        """``run``: what was seen of it until then."""
        seen = len(run.steps_ms) + 1
        if (self._is_timed and run.step_ms is not None) or seen >= self._steps:
            return run
        failed = f"{seen} of {self._steps} steps ended within {timeout_s:.0f} s"
        return replace(run, failed=failed, is_cut_off=True)

    def end(self) -> None:
        """Nothing of it is left."""
        self._end_process()
        self._stack.close()

    def _end_process(self) -> None:
        if self._is_over:  # the number may be another's by now
            return
        self._is_over = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its workers too
        self._process.wait()


def _read(data: dict[str, Any], way: ProgramWay, mirror: Mirror) -> StepRun:
    """Raises KeyError, TypeError, ValueError and the like: whatever runs with its user's rights may
    have written it."""
    return StepRun(
        way=way,
        steps_ms=tuple(map(float, data["steps_ms"])),
        first_s=data["first_s"],
        peak_bytes=data["peak_bytes"],
        room_bytes=data["room_bytes"],
        digests=tuple(data["digests"]),
        taken={name: (int(a), int(b)) for name, (a, b) in data["taken"].items()},
        notes=tuple(map(str, data["notes"])),
        profile=data["profile"],
        optimizers=tuple(_optimizer(one, mirror) for one in data["optimizers"]),
        tokens=_count_tokens(data["tokens"]),
        draws=bool(data["draws"]),
        files=tuple(str(mirror.original(Path(file))) for file in data["files"]),
        outermost=_class_of(data["outermost"]),
    )


def _optimizer(one: dict[str, Any], mirror: Mirror) -> dict[str, Any]:
    if (made := one.get("made")) is None:
        return one
    return {**one, "made": (str(mirror.original(Path(made[0]))), int(made[1]))}


def _class_of(named: Sequence[str] | None) -> tuple[str, str] | None:
    return None if named is None else (str(named[0]), str(named[1]))


def _count_tokens(per_step: Sequence[int]) -> float | None:
    """Of a step in the steady state: a first one may read a prompt."""
    later = [count for count in per_step[1:] if count] or [count for count in per_step if count]
    return median(later) if later else None


def _start(
    mirror: Mirror, command: Sequence[str], folder: Path, given: str, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Raises WorkloadError."""
    entries = [str(START), *_imports(mirror)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entries),
        "PYTHONDONTWRITEBYTECODE": "1",
        "KERNEL_LSP_STEPS": given,
    }
    try:
        return subprocess.Popen(
            mirror.words(command, folder),
            cwd=mirror.place(folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise WorkloadError(
            f"{command[0]} cannot be run: {error.strerror or error}",
            "write the program as you would in a shell: kernel-lsp optimize -- python train.py",
        ) from error


def _last_of(log: IO[bytes]) -> str:
    """The end of what it said."""
    log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_BYTES))
    return log.read(LOG_BYTES).decode(errors="replace")


def _wait(
    process: subprocess.Popen[bytes], timeout_s: float, look: Callable[[], None]
) -> int | None:
    """Exit status; None: out of time. ``look`` is called now and then. A task that was cancelled
    meanwhile (Ctrl-C) ends here and not after minutes, when it awaits something again. Raises
    CancelledError."""
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, POLL_S))
        look()
        with contextlib.suppress(RuntimeError):  # no loop is running
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError
    return None


def _write_sources(served: Mapping[Path, str], place: Path) -> dict[str, str]:
    found = {}
    for number, (path, text) in enumerate(served.items()):
        file = place / f"{number}.py"
        file.write_text(text, encoding="utf-8", newline="")
        found[str(path)] = str(file)
    return found


def _imports(mirror: Mirror) -> list[str]:
    """PYTHONPATH with the workspace's folders in the copy."""
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return [str(mirror.place(Path(entry).absolute())) for entry in known]


def _fault(
    record: dict[str, Any], status: int, said: str, *, steps: int, is_check: bool
) -> str | None:
    """Why the steps that were seen say nothing. A program that ends by itself has as many as it
    has; of one that fails nobody knows what the next would have taken."""
    seen = len(record["steps_ms"]) + 1
    if status and seen < steps:
        return f"it failed after {seen} steps{_cause(said)}"
    return None if seen > 2 or is_check else "it ended after its first step"


HINTS = {
    ("EOFError", "not a tty", "Inappropriate ioctl"): (
        "it asks at a terminal, which timed runs have not: pass the answers as arguments"
    ),
    (
        "URLError",
        "gaierror",
        "Name or service not known",
        "ConnectionError",
        "Max retries",
        "ConnectError",
    ): ("it needs the network: run it once by itself, so that what it loads is kept beside it"),
    ("FileNotFoundError",): (
        "the program may have removed or moved that file when it was recorded: put it back, and run "
        "the command again"
    ),
}
"""By words of a program's last lines: what is in the way, and what to do about it."""
TRACEBACK = "Traceback (most recent call last):"


def _cause(said: str) -> str:
    """What the program said when it failed: of an exception the line that names it, behind which
    torch.compile's go on for many lines about itself; else the last one."""
    lines = [line for line in said.splitlines() if line.strip()]
    begun = max((n for n, line in enumerate(lines) if line.startswith(TRACEBACK)), default=None)
    named = [] if begun is None else [one for one in lines[begun + 1 :] if not one[0].isspace()]
    line = (named[:1] or lines[-1:] or [""])[0].strip()
    hint = next(
        (hint for words, hint in HINTS.items() if any(word in said for word in words)), None
    )
    return (f": {line[:200]}" if line else "") + (f" ({hint})" if hint else "")


def _why(status: int | None, said: str, timeout_s: float) -> str:
    if status is None:
        return f"no step ended within {timeout_s:.0f} s"
    cause = _cause(said) if status else ""
    return f"it ended with {status} before its first step{cause}"


def python_of(command: Sequence[str], folder: Path) -> str | None:
    """The interpreter that a command names in ``folder``, absolute; None for other programs."""
    if not Path(command[0]).name.startswith("python"):
        return None
    named = str(folder / command[0]) if "/" in command[0] else command[0]
    return shutil.which(named) or (sys.executable if command[0] == "python" else None)
