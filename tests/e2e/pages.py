"""Fenced blocks of Markdown pages, and what stands about them in a comment above."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True, kw_only=True)
class Block:
    kind: str
    text: str
    note: str = ""
    """Of a comment right above: why a test does not run it, or which test does."""

    @property
    def commands(self) -> list[str]:
        """Of a shell block, without comments."""
        lines = (line.partition("  #")[0].strip() for line in self.text.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def blocks(page: Path, kind: str) -> list[Block]:
    found = BLOCK.finditer(page.read_text())
    return [
        Block(kind=one["kind"], text=one["text"], note=one["note"] or "")
        for one in found
        if one["kind"] == kind
    ]
