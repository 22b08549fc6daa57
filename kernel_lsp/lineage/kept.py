"""What a lineage leaves on disk: each judgement as soon as it is known, the walk as JSON and as
Markdown.

    lineages/<kernel>-<key>/judged.jsonl    one judgement a line, flushed before the next is begun
    lineages/<kernel>-<key>/lineage.json    the record, written whole
    lineages/<kernel>-<key>/lineage.md      the same to read

A run that was killed goes on from the judgements; half of a line at the end is not read. The key
covers whatever a time depends on. Not covered: what is in the record (walking.py), how it reads
(presenter)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from kernel_lsp import wire
from kernel_lsp.errors import ArchiveError
from kernel_lsp.files import replace_file
from kernel_lsp.records import LINEAGE_VERSION, Judgement, Lineage

FOLDER = "lineages"
"""In the user's data folder."""
JUDGED, RECORD, READABLE = "judged.jsonl", "lineage.json", "lineage.md"
REMEDY = "check the data folder's permissions and free space; `kernel-lsp doctor` names it"


def folder(data_dir: Path, qualname: str, key: str) -> Path:
    """Where the walk of that kernel is kept, below the user's data."""
    words = re.sub(r"\W+", "-", qualname)[-60:].strip("-")
    return data_dir / FOLDER / f"{words}-{key[:12]}"


class Judgements:
    """Those of one walk, by parent and child. Raises ArchiveError where they cannot be written."""

    def __init__(self, place: Path, *, fresh: bool = False) -> None:
        self._path = place / JUDGED
        self._known: dict[tuple[str, str], Judgement] = {}
        try:
            place.mkdir(parents=True, exist_ok=True)
            if fresh:
                self._path.unlink(missing_ok=True)
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            self._whole = not text or text.endswith("\n")
        except OSError as error:
            raise ArchiveError(f"{place} cannot be used: {error.strerror}", REMEDY) from error
        for one in map(_read, text.splitlines()):
            if one is not None:
                self._known[one.parent, one.child] = one

    def get(self, parent: str, child: str) -> Judgement | None:
        """What is known of that simplification; None: it was not judged."""
        return self._known.get((parent, child))

    def add(self, one: Judgement) -> None:
        """Keeps the judgement, on disk before it returns."""
        line = ("" if self._whole else "\n") + wire.dumps(one) + "\n"
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ArchiveError(
                f"{self._path} cannot be written: {error.strerror}", REMEDY
            ) from error
        self._whole = True
        self._known[one.parent, one.child] = one


def write(place: Path, lineage: Lineage, readable: str) -> None:
    """Writes both files of a lineage, each in one step. Raises ArchiveError."""
    text = json.dumps(wire.to_json(lineage), indent=1) + "\n"
    try:
        place.mkdir(parents=True, exist_ok=True)
        replace_file(place / RECORD, text.encode())
        replace_file(place / READABLE, (readable.rstrip("\n") + "\n").encode())
    except OSError as error:
        raise ArchiveError(f"{place} cannot be written: {error.strerror}", REMEDY) from error


def lineages(data_dir: Path) -> Iterator[Lineage]:
    """Every walk of this user, by folder; what cannot be read is no lineage."""
    for path in sorted((data_dir / FOLDER).glob(f"*/{RECORD}")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["schema_version"] == LINEAGE_VERSION:
                yield wire.from_json(Lineage, data)
        except (OSError, ValueError, TypeError, KeyError):
            continue


def _read(line: str) -> Judgement | None:
    try:
        return wire.from_json(Judgement, json.loads(line))
    except (ValueError, TypeError):
        return None
