"""Who allowed workspace code to run: one answer per folder and user, shared by all editors.

A JSON file in the user's data folder, under a file lock. Asking is the server's business; this module
counts the attempts, so that a client which never answers is asked five times and then left alone.
No answer is a no. Not covered: what may be run then (process.Confinement).
"""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from kernel_lsp.errors import ConfigError

MAX_ATTEMPTS = 5
LOCK_TIMEOUT_S = 2.0


class Answer(StrEnum):
    ALLOW = "allow"
    """Measure in the background too."""
    ON_REQUEST = "on_request"
    """Only when the user asks for a measurement."""
    NEVER = "never"


class Consents:
    """The answers of one user. A folder that cannot be written keeps answers for this session only."""

    def __init__(self, data_dir: Path | str) -> None:
        self._path = Path(data_dir) / "consent.json"
        self._session: dict[str, dict[str, Any]] = {}

    def answer(self, folder: Path | str, *, setting: str = "ask") -> Answer | None:
        """What holds for this folder: the setting first, then the stored answer; None means nobody said."""
        if setting in ("always", "never"):
            return Answer.ALLOW if setting == "always" else Answer.NEVER
        stored = self._entry(folder).get("answer")
        return Answer(stored) if stored in {a.value for a in Answer} else None

    def may_ask(self, folder: Path | str) -> bool:
        entry = self._entry(folder)
        return "answer" not in entry and int(entry.get("attempts", 0)) < MAX_ATTEMPTS

    def count_attempt(self, folder: Path | str) -> None:
        """Call before asking: a prompt that crashes the client must count."""
        attempts = int(self._entry(folder).get("attempts", 0)) + 1
        self._store(folder, {"attempts": attempts})

    def record(self, folder: Path | str, answer: Answer) -> None:
        """Raises ConfigError when it could not be stored; it then holds for this session."""
        self._store(folder, {"answer": answer.value, "time": int(time.time())}, strict=True)

    def forget(self, folder: Path | str) -> None:
        self._store(folder, None, strict=True)

    def _entry(self, folder: Path | str) -> dict[str, Any]:
        key = _key(folder)
        return {**self._read().get(key, {}), **self._session.get(key, {})}

    def _read(self) -> dict[str, dict[str, Any]]:
        """A damaged file counts as no answers: consent that cannot be read was not given."""
        try:
            table = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        valid = isinstance(table, dict)
        return {k: v for k, v in table.items() if isinstance(v, dict)} if valid else {}

    def _store(self, folder: Path | str, entry: dict[str, Any] | None, *, strict: bool = False) -> None:
        key = _key(folder)
        merged = {**self._session.get(key, {}), **entry} if entry is not None else {}
        self._session[key] = merged
        from filelock import FileLock, Timeout  # a tenth of our start-up, for something asked for once

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self._path}.lock", timeout=LOCK_TIMEOUT_S):
                self._write(key, entry)
        except (OSError, Timeout) as error:
            if strict:
                remedy = (
                    "the answer holds until the server ends; set data_dir to a folder that can be written"
                )
                raise ConfigError(f"{self._path} cannot be written: {error}", remedy) from error

    def _write(self, key: str, entry: dict[str, Any] | None) -> None:
        table = self._read()
        if entry is None:
            table.pop(key, None)
        else:
            table[key] = {**table.get(key, {}), **entry}
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(table, indent=1, sort_keys=True), encoding="utf-8")
        fresh.replace(self._path)


def trust(folder: Path | str, data_dir: Path | str, answer: Answer = Answer.ALLOW) -> None:
    """``kernel-lsp trust``: answer for a folder without an editor."""
    Consents(data_dir).record(folder, answer)


def _key(folder: Path | str) -> str:
    return str(Path(folder).resolve())
