"""Analyses of earlier runs, so that a second check of unchanged files reads none of them.

One JSON file per project in the user's data folder, valid for these rules and this Python. A file
counts as unchanged while its size, times and inode are the same; one that was changed within the
last seconds is read again, because a change in the same tick of the clock would look like none. A
damaged file is an empty one. Kept are the findings before settings choose among them, so that
another setting costs nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from kernel_lsp import __version__, analysis
from kernel_lsp.checker.discovery import FoundFile
from kernel_lsp.files import keep_newest, replace_file
from kernel_lsp.records import Analysis, Finding, ParseProblem, Span, Target, TargetKind

MAX_PROJECTS = 200
_SETTLED_NS = 2_000_000_000
"""The coarsest clock of a file system that is in use."""


class KnownFindings:
    """What is known of the files of any number of projects."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rules = _rules()
        self._projects: dict[Path, dict[str, Any]] = {}
        self._changed: set[Path] = set()
        self._stamps: dict[Path, list[int] | None] = {}

    def get(self, one: FoundFile) -> Analysis | None:
        """The file's analysis as an earlier run kept it; None where the file has changed since."""
        stamp = self._stamps[one.path] = _stamp(one.path)
        entry = self._project(one.root).get(str(one.path.absolute()))
        if stamp is None or entry is None or entry[0] != stamp:
            return None
        try:
            return _decode(entry[1])
        except (TypeError, ValueError, IndexError):
            return None

    def put(self, one: FoundFile, found: Analysis) -> None:
        """Keeps what was found in the file as it was when it was asked for."""
        stamp = self._stamps.get(one.path)
        if stamp is None or time.time_ns() - max(stamp[1:3]) < _SETTLED_NS:
            return
        self._project(one.root)[str(one.path.absolute())] = [stamp, _encode(found)]
        self._changed.add(one.root)

    def save(self) -> None:
        """Keep what is new; a full or read-only disk only means that the files are read again."""
        with contextlib.suppress(OSError):
            for root in self._changed:
                self._folder.mkdir(parents=True, exist_ok=True)
                kept = {"rules": self._rules, "root": str(root), "files": self._projects[root]}
                replace_file(self._file(root), json.dumps(kept, separators=(",", ":")).encode())
            if self._changed:
                keep_newest(self._folder, MAX_PROJECTS)
        self._changed.clear()

    def _project(self, root: Path) -> dict[str, Any]:
        if root not in self._projects:
            self._projects[root] = self._load(root)
        return self._projects[root]

    def _load(self, root: Path) -> dict[str, Any]:
        try:
            kept = json.loads(self._file(root).read_bytes())
            if (
                kept["rules"] == self._rules
                and kept["root"] == str(root)
                and isinstance(kept["files"], dict)
            ):
                return dict(kept["files"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            pass
        return {}

    def _file(self, root: Path) -> Path:
        return (
            self._folder
            / f"{hashlib.sha256(str(root).encode(errors='surrogateescape')).hexdigest()[:32]}.json"
        )


def _stamp(path: Path) -> list[int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _rules() -> str:
    """Another text for every change of the rules, also while they are written."""
    package = Path(analysis.__file__).parents[1]
    rooms = (package / name for name in ("analysis", "checker", "notebooks"))
    sources = sorted(path for room in rooms for path in room.rglob("*.py"))
    seen = [(path.name, (found := path.stat()).st_size, found.st_mtime_ns) for path in sources]
    return hashlib.sha256(repr((__version__, sys.version, seen)).encode()).hexdigest()


# By hand: ten thousand files are decoded in a tenth of the time that wire.py would take.


def _encode(found: Analysis) -> Any:
    if found == Analysis():
        return None
    problem = found.problem
    return [
        [
            [
                t.qualname,
                t.kind.value,
                _pair(t.name_span),
                _pair(t.span),
                t.fingerprint,
                t.launchers,
            ]
            for t in found.targets
        ],
        [
            [f.rule, f.name, f.target, _pair(f.span), f.message, f.severity, f.unnecessary, f.data]
            for f in found.findings
        ],
        None if problem is None else [problem.line, problem.column, problem.message],
        found.failures,
    ]


def _decode(kept: Any) -> Analysis:
    if kept is None:
        return Analysis()
    targets, findings, problem, failures = kept
    return Analysis(
        targets=tuple(
            Target(
                qualname=qualname, kind=TargetKind(kind),
                name_span=Span(start=name[0], end=name[1]),
                span=Span(start=span[0], end=span[1]), fingerprint=fingerprint,
                launchers=tuple(launchers),
            )
            for qualname, kind, name, span, fingerprint, launchers in targets
        ),
        findings=tuple(
            Finding(
                rule=rule, name=name, target=target, span=Span(start=span[0], end=span[1]),
                message=message,
                severity=severity, unnecessary=unnecessary, data=data,
            )
            for rule, name, target, span, message, severity, unnecessary, data in findings
        ),
        problem=None if problem is None else ParseProblem(
            line=problem[0], column=problem[1], message=problem[2]
        ),
        failures=tuple(failures),
    )  # fmt: skip


def _pair(span: Span) -> tuple[int, int]:
    return span.start, span.end
