"""Runs of a program that an interrupted session has finished, kept beside its recording.

A run counts again while everything that it depended on is the same: the program's files, the
edits, the way, its number and the machine. Files that the run itself lists are the same while none
is newer than it. Not covered: what the program reads besides its code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import time
from pathlib import Path
from typing import Any

from kernel_lsp import wire
from kernel_lsp.files import replace_file
from kernel_lsp.programs.stepping import StepRun

FILE = "runs.json"
MAX_AGE_S = 24 * 3600
"""A machine of yesterday is another one: drivers, neighbors, clocks."""


class KeptRuns:
    """The runs of one recording."""

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        """``folder``: the recording's. ``fresh``: nothing of before counts."""
        self._path = folder / FILE
        self._runs: dict[str, dict[str, Any]] = {}
        if not fresh:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                self._runs = dict(json.loads(self._path.read_text(encoding="utf-8")))

    def find(self, key: Any) -> StepRun | None:
        """The run that was kept under this key; None where it is older than MAX_AGE_S or than one
        of its files."""
        kept = self._runs.get(digest(key))
        if not isinstance(kept, dict):
            return None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            then = float(kept["time"])
            found: StepRun = wire.from_json(StepRun, kept["run"])
            if time.time() - then <= MAX_AGE_S and not any(_is_newer(f, then) for f in found.files):
                return found
        return None

    def keep(self, key: Any, run: StepRun) -> None:
        """Where it cannot be written, the session goes on without."""
        if run.failed is None:
            self._runs[digest(key)] = {"time": time.time(), "run": wire.to_json(run)}
            with contextlib.suppress(OSError):
                replace_file(self._path, json.dumps(self._runs).encode())


def _is_newer(file: str, then: float) -> bool:
    """Or it is gone."""
    try:
        return Path(file).stat().st_mtime > then
    except OSError:
        return True


def digest(key: Any) -> str:
    """One name for all that a run depends on."""
    text = json.dumps([wire.to_json(key), platform.node()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
