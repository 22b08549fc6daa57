"""Suites of reference files for `kernel-lsp bench`: which tasks there are, what is under way, what
is kept.

Several tasks may be under way at once: the gate gives each its turn on the device, so that
reading, compiling and checking of one overlap with the timing of another. Every finished row is on
the disk before the next is begun. Not covered: how a row is made (rows.py), what rows add up to
(scores.py)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernel_lsp import __version__, scores, wire
from kernel_lsp.commands.rows import RowMaker, RowTask, empty
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import read_source, replace_file
from kernel_lsp.records import SCHEMA_VERSION, Json, Progress, Report

QUIET_S = 30.0
"""When nothing was finished for so long, a line says what the tasks under way wait for."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """``root`` and the tasks below it, in the order in which they are run."""

    root: Path
    tasks: tuple[Path, ...]
    every: tuple[str, ...]
    """Names of all tasks that were asked for, of other shards too: what has no row is missing."""
    candidates: Path | None = None
    """A folder with one candidate file per task, same names; None: ours are proposed."""


@dataclass
class SuiteResults:
    """Rows by task, and the file that always holds them."""

    path: Path | None
    rows: dict[str, Json] = field(default_factory=dict)
    every: tuple[str, ...] = ()
    runs: list[Json] = field(default_factory=list)
    """How the rows came about: one entry per run that added to them."""

    @property
    def missing(self) -> list[str]:
        """The names of tasks that have no row yet."""
        return [name for name in self.every if name not in self.rows]

    @property
    def known(self) -> dict[str, Json]:
        """Rows of the tasks that were asked for."""
        return {name: self.rows[name] for name in self.every if name in self.rows}

    def content(self) -> Json:
        """All that the file holds: runs, scores by group, what is missing, rows by name."""
        return {
            "runs": self.runs,
            "groups": scores.groups(self.known),
            "missing": self.missing,
            "tasks": dict(sorted(self.rows.items())),
        }

    def store(self) -> None:
        """Writes the rows in one step: an interrupted run leaves the last state whole. Raises
        OSError."""
        if self.path is not None:
            content = {"schema_version": SCHEMA_VERSION, **self.content()}
            replace_file(self.path, (json.dumps(content, indent=1) + "\n").encode())


def find(root: Path, pattern: str, shard: tuple[int, int], candidates: Path | None) -> Suite:
    """Tasks below ``root`` whose relative path matches, every N-th of them. Raises
    KernelLspError."""
    if not root.is_dir():
        raise KernelLspError(f"{root} is no folder", "name a folder of task files")
    found = [path for path in sorted(root.rglob("*.py")) if re.search(pattern, _name(root, path))]
    found = [
        path
        for path in found
        if "class Model" in path.read_text(encoding="utf-8", errors="replace")
    ]
    if not found:
        raise KernelLspError(
            f"no task below {root} matches",
            "a task is a file that defines class Model; see --filter",
        )
    number, of = shard
    every = tuple(_name(root, path) for path in found)
    return Suite(
        root=root, tasks=tuple(found[number - 1 :: of]), every=every, candidates=candidates
    )


def load(path: Path) -> SuiteResults:
    """The rows of an earlier run. Raises KernelLspError when the file is something else."""
    if not path.exists():
        return SuiteResults(path=path)
    try:
        content = json.loads(path.read_text())
        rows: dict[str, Json] = content["tasks"]
        every = (*rows, *content.get("missing", ()))
        scores.groups(rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KernelLspError(
            f"{path} is no results file of this version", "choose another --out"
        ) from error
    return SuiteResults(path=path, rows=rows, every=every, runs=list(content.get("runs", ())))


def merge_results(files: Sequence[SuiteResults], path: Path | None) -> SuiteResults:
    """One table of several runs. Of two rows of one task, one that was judged wins, else the
    later."""
    made = SuiteResults(
        path=path, every=tuple(sorted({name for part in files for name in part.every}))
    )
    for part in files:
        made.runs += part.runs
        for name, row in part.rows.items():
            if name not in made.rows or row["status"] != "failed":
                made.rows[name] = row
    return made


@dataclass
class SuiteRun:
    """One run of a suite."""

    maker: RowMaker
    suite: Suite
    results: SuiteResults
    jobs: int
    limit_s: float | None
    say: Callable[[str], None]
    report: Report = lambda progress: None
    cluster: str | None = None
    """Its address, where nodes make the rows."""
    _begun: int = 0
    _finished: int = 0
    _said: float = 0.0

    async def all(self) -> None:
        """Rows of all tasks that have none yet; no task is begun once the time is over."""
        end = None if self.limit_s is None else time.monotonic() + self.limit_s
        left = [task for task in self.suite.tasks if not self._is_done(task)]
        waiting, self._begun = iter(left), len(left)
        self.results.every = tuple(dict.fromkeys([*self.results.every, *self.suite.every]))
        self.results.runs.append(self._about())
        self._count(f"{len(left)} tasks")
        count = self.jobs * self.maker.places
        workers = [asyncio.create_task(self._work(waiting, end)) for _ in range(count)]
        reporting = asyncio.create_task(self._tell())
        try:
            await asyncio.gather(*workers)
        finally:  # Ctrl-C ends here too: what is finished is on the disk already
            reporting.cancel()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, reporting, return_exceptions=True)
            await self.maker.close()

    async def _tell(self) -> None:
        """What the tasks under way wait for, when nothing else was said for a while."""
        self._said = time.monotonic()
        while True:
            await asyncio.sleep(max(0.01, self._said + QUIET_S - time.monotonic()))
            if time.monotonic() - self._said >= QUIET_S and self.maker.doing:
                self._speak(waiting_for(self.maker.doing, time.monotonic()))

    def _count(self, message: str) -> None:
        self.report(
            Progress(phase="bench", message=message, done=self._finished, total=self._begun)
        )

    def _speak(self, text: str) -> None:
        self._said = time.monotonic()
        self.say(text)

    async def _work(self, waiting: Iterator[Path], end: float | None) -> None:
        while end is None or time.monotonic() < end:
            task = next(waiting, None)
            if task is None:
                return
            name = _name(self.suite.root, task)
            row = self.results.rows[name] = await self._row(name, task)
            self.results.store()
            self._finished += 1
            self._count(name)
            self._speak(f"{self._finished} of {self._begun} {name}: {describe(row)}")

    async def _row(self, name: str, path: Path) -> Json:
        root, candidates = self.suite.root, self.suite.candidates
        given = candidates / path.relative_to(root) if candidates else None
        if given is not None and not given.exists():
            return empty("no_candidate", f"there is no {given}")
        try:
            text, candidate = read_source(path).text, read_source(given).text if given else None
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            return empty("failed", f"cannot be read: {error}")
        task = RowTask(name=name, path=str(path), text=text, folder=str(root), candidate=candidate)
        return await self.maker.row(task)

    def _is_done(self, task: Path) -> bool:
        """What failed is tried again: the cause may have been a busy device."""
        row = self.results.rows.get(_name(self.suite.root, task))
        return row is not None and row["status"] != "failed"

    def _about(self) -> Json:
        settings = self.maker.settings
        return {
            "version": __version__,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": settings.device,
            "budget": settings.budget,
            "policy": settings.policy,
            "model": settings.model,
            "search": wire.to_json(self.maker.asked.search),
            "jobs": self.jobs,
            "cluster": self.cluster,
            "tasks": len(self.suite.tasks),
        }


def describe(row: Json) -> str:
    """A row in a line."""
    if row["status"] not in ("offered", "passed"):
        return f"{row['status']}: {row['note']}"
    return ", ".join(
        f"{base} {one['mid']:.2f}x [{one['low']:.2f}, {one['high']:.2f}]"
        for base, one in row["speedups"].items()
    )


def waiting_for(doing: dict[str, tuple[float, str]], now: float) -> str:
    """The tasks under way, the longest first."""
    oldest = sorted(doing, key=lambda name: doing[name])
    entries = (f"{name} ({now - doing[name][0]:.0f} s: {doing[name][1]})" for name in oldest)
    return f"waiting for {'; '.join(entries)}"


def _name(root: Path, task: Path) -> str:
    return task.relative_to(root).as_posix()
