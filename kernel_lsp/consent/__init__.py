"""Who allowed workspace code to run, and to be sent away: answers per folder and user, shared by
all editors.

A JSON file in the user's data folder, under a file lock. Asking is the server's business; this
module counts the attempts, so that a client which never answers is asked five times and then left
alone. No answer is a no. To which remote endpoint a folder's code may go is another question,
asked per origin. Not covered: what may be run then (process.Confinement), what is sent (agents/).
"""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from kernel_lsp import origins
from kernel_lsp.config import Settings
from kernel_lsp.confinement.layers import GUARANTEES
from kernel_lsp.consent import subjects
from kernel_lsp.errors import ConfigError

MAX_ATTEMPTS = 5
LOCK_TIMEOUT_S = 2.0
REMOTE = "remote"
"""Key of a folder's entry: origin -> when it was allowed (seconds since 1970), or REFUSED."""
REFUSED = 0
ABOUT, PROMISE, ACCEPTED = "about", "promise", "accepted"
"""Keys of a folder's entry: what lay there, which layers the answer rests on, what may stay
open."""


class ConsentAnswer(StrEnum):
    ALLOW = "allow"
    """Measure in the background too."""
    ON_REQUEST = "on_request"
    """Only when the user asks for a measurement."""
    NEVER = "never"


class Consents:
    """The answers of one user. A folder that cannot be written keeps answers for this session
    only."""

    def __init__(self, data_dir: Path | str) -> None:
        self._path = Path(data_dir) / "consent.json"
        self._session: dict[str, dict[str, Any]] = {}

    def answer(
        self, folder: Path | str, *, setting: str = "ask", path: Path | str | None = None
    ) -> ConsentAnswer | None:
        """What holds for this folder: the setting first, then the stored answer; None means nobody
        said.

        An answer that allows something is about what lay there then (subjects.py): of something
        else, or of a ``path`` that came later into a folder that is no project, nobody has said
        anything."""
        if setting in ("always", "never"):
            return ConsentAnswer.ALLOW if setting == "always" else ConsentAnswer.NEVER
        entry = self._entry(folder)
        stored = entry.get("answer")
        if stored not in {a.value for a in ConsentAnswer}:
            return None
        answer = ConsentAnswer(stored)
        if answer is not ConsentAnswer.NEVER and not self._is_about(entry, folder, path):
            return None
        return answer

    @staticmethod
    def _is_about(entry: dict[str, Any], folder: Path | str, path: Path | str | None) -> bool:
        then = entry.get(ABOUT)
        if not subjects.same(then, subjects.about(folder)):
            return False
        return subjects.covers(_table(then), folder, path)

    def required(self, folder: Path | str | None) -> frozenset[str]:
        """What must hold wherever its code runs (confinement/layers.py): what is always closed,
        without what its user has accepted to be open, and the layers that the answer rests on."""
        entry = self._entry(folder) if folder is not None else {}
        about = folder is not None and subjects.same(entry.get(ABOUT), subjects.about(folder))
        accepted = _names(entry.get(ACCEPTED)) if about else frozenset()
        return (frozenset(GUARANTEES) - accepted) | (
            _names(entry.get(PROMISE)) if about else frozenset()
        )

    def may_ask(
        self, folder: Path | str, *, path: Path | str | None = None, again: bool = False
    ) -> bool:
        """Whether the user may be asked about the folder now. ``again``: although there is an
        answer."""
        if not again and self.answer(folder, path=path) is not None:
            return False
        return int(self._entry(folder).get("attempts", 0)) < MAX_ATTEMPTS

    def count_attempt(self, folder: Path | str) -> None:
        """Call before asking: a prompt that crashes the client must count."""
        attempts = int(self._entry(folder).get("attempts", 0)) + 1
        self._store(folder, {"attempts": attempts})

    def record(
        self,
        folder: Path | str,
        answer: ConsentAnswer,
        *,
        promise: frozenset[str] = frozenset(),
        accepted: frozenset[str] = frozenset(),
    ) -> None:
        """Keeps the user's answer for the folder. ``promise``: layers that the answer rests on.
        ``accepted``: what stays open here, which its user has read. Raises ConfigError when it
        could not be stored; it then holds for this session."""
        entry = {
            "answer": answer.value,
            "time": int(time.time()),
            "attempts": 0,
            ABOUT: subjects.about(folder),
            PROMISE: sorted(promise),
            ACCEPTED: sorted(accepted),
        }
        self._store(folder, entry, strict=True)

    def allows_remote(self, folder: Path | str, origin: str) -> bool:
        """Whether prompts with this folder's code may go to another machine's origin, e.g.
        ``https://api.example.com``. ``https://api.example.com``."""
        return self.remote_answer(folder, origin) is True

    def remote_answer(self, folder: Path | str, origin: str) -> bool | None:
        """What the user said of sending this folder's code there; None: nobody said, so the
        question may be asked."""
        when = _table(self._entry(folder).get(REMOTE)).get(origin)
        return when > 0 if isinstance(when, int) and not isinstance(when, bool) else None

    def allow_remote(self, folder: Path | str, origin: str) -> None:
        """Keeps that code of the folder may be sent to that endpoint. Raises ConfigError when it
        could not be stored; it then holds for this session."""
        self._store(folder, {REMOTE: {origin: int(time.time())}}, strict=True)

    def forbid_remote(self, folder: Path | str, origin: str) -> None:
        """Keeps that code of the folder may not be sent to that endpoint. Raises ConfigError when
        it could not be stored; it then holds for this session."""
        self._store(folder, {REMOTE: {origin: REFUSED}}, strict=True)

    def forget(self, folder: Path | str) -> None:
        """Takes the answer for the folder back, on disk too. Raises ConfigError where that cannot
        be written."""
        self._store(folder, None, strict=True)

    def _entry(self, folder: Path | str) -> dict[str, Any]:
        key = _key(folder)
        return _merge_answers(self._read().get(key, {}), self._session.get(key, {}))

    def _read(self) -> dict[str, dict[str, Any]]:
        """A damaged file counts as no answers: consent that cannot be read was not given."""
        try:
            table = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        valid = isinstance(table, dict)
        return {k: v for k, v in table.items() if isinstance(v, dict)} if valid else {}

    def _store(
        self, folder: Path | str, entry: dict[str, Any] | None, *, strict: bool = False
    ) -> None:
        key = _key(folder)
        self._session[key] = (
            _merge_answers(self._session.get(key, {}), entry) if entry is not None else {}
        )
        # A tenth of our start-up, for something asked for once.
        from filelock import FileLock, Timeout

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self._path}.lock", timeout=LOCK_TIMEOUT_S):
                self._write(key, entry)
        except (OSError, Timeout) as error:
            if strict:
                remedy = (
                    "the answer holds until the server ends; set data_dir to a folder that can be "
                    "written"
                )
                raise ConfigError(f"{self._path} cannot be written: {error}", remedy) from error

    def _write(self, key: str, entry: dict[str, Any] | None) -> None:
        table = self._read()
        if entry is None:
            table.pop(key, None)
        else:
            table[key] = _merge_answers(table.get(key, {}), entry)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(table, indent=1, sort_keys=True), encoding="utf-8")
        fresh.replace(self._path)


def remote_origin(settings: Settings) -> str | None:
    """The other machine that prompts would go to by these settings; None: they would not leave
    this one.

    Raises ConfigError for an endpoint that cannot be read.
    """
    if settings.policy != "openai" or settings.endpoint is None:
        return None
    found = origins.endpoint(settings.endpoint)
    return found.origin if found.remote else None


def trust(
    folder: Path | str,
    data_dir: Path | str,
    answer: ConsentAnswer = ConsentAnswer.ALLOW,
    *,
    promise: frozenset[str] = frozenset(),
    accepted: frozenset[str] = frozenset(),
) -> None:
    """Writes down the answer for a folder, without an editor: ``kernel-lsp trust``."""
    Consents(data_dir).record(folder, answer, promise=promise, accepted=accepted)


def trust_remote(
    folder: Path | str, data_dir: Path | str, origin: str, *, allowed: bool = True
) -> None:
    """Writes down whether prompts with the folder's code may go to this origin: ``kernel-lsp trust
    FOLDER --remote ORIGIN``."""
    consents = Consents(data_dir)
    (consents.allow_remote if allowed else consents.forbid_remote)(folder, origin)


def _merge_answers(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """An entry with newer answers; those about other origins stay."""
    both = {**old, **new}
    if REMOTE in old and REMOTE in new:
        both[REMOTE] = {**_table(old[REMOTE]), **_table(new[REMOTE])}
    return both


def _names(value: Any) -> frozenset[str]:
    return frozenset(map(str, value)) if isinstance(value, list) else frozenset()


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _key(folder: Path | str) -> str:
    return str(Path(folder).resolve())
