"""Verdicts on disk, so that a known target is answered at once and nothing is measured twice.

One JSON file per key in the user's cache folder. The key covers everything a verdict depends on;
a changed version of anything is simply another key. Atomic writes; the oldest files go when the
folder grows past its cap; an unreadable file is a miss. Unlike the journal this holds source text
and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from kernel_lsp import wire
from kernel_lsp.files import keep_newest, replace_file
from kernel_lsp.records import SCHEMA_VERSION, Outcome

MAX_FILES = 2000


class Cache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def key(**parts: Any) -> str:
        """A stable hash of records and plain values by name."""
        text = json.dumps(wire.to_json(parts), sort_keys=True, default=str)
        return hashlib.sha256(f"{SCHEMA_VERSION}:{text}".encode()).hexdigest()[:32]

    def get(self, key: str) -> Outcome | None:
        """The outcome that is kept under the key; None where there is none that this version can
        read."""
        try:
            data = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            return wire.from_json(Outcome, data)
        except (OSError, ValueError, TypeError):
            return None

    def about(self, beginning: str) -> bool:
        """Whether some key begins like this: a verdict is likely to be known."""
        return any(self.folder.glob(f"{beginning}-*.json"))

    def put(self, key: str, outcome: Outcome) -> None:
        """Store an outcome; a full or read-only disk only means that it is measured again."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / f"{key}.json", wire.dumps(outcome).encode())
            keep_newest(self.folder, MAX_FILES)
