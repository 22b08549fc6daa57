"""Offsets in a text to (line, character) and back, in LSP's three encodings. Standard library
only."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
_UNIT_BYTES = {"utf-8": 1, "utf-16": 2, "utf-32": 4}
_MAX_UNITS = {1: 4, 2: 2, 4: 1}
_CODECS = {"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}


def split_lines(text: str) -> tuple[str, ...]:
    r"""Lines with their ends, as LSP defines them: \n, \r\n and \r only.

    ``str.splitlines`` also splits at form feeds, NEL, U+2028 and \x1c, which moves every later
    edit."""
    return tuple(_LINE.findall(text))


class LineIndex:
    """Offsets of one text to (line, character) and back, in one of LSP's three encodings."""

    def __init__(self, text: str, encoding: str) -> None:
        self.text = text
        self._codec, self._unit = _CODECS[encoding], _UNIT_BYTES[encoding]
        self._starts = [0]
        for line in split_lines(text):
            self._starts.append(self._starts[-1] + len(line))
        if text and text[-1] not in "\r\n":
            self._starts.pop()  # the last line has no end, so no empty line follows it

    def position(self, offset: int) -> tuple[int, int]:
        """(line, character), zero-based."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect.bisect_right(self._starts, offset) - 1
        return line, self._units(self.text[self._starts[line] : offset])

    def offset(self, line: int, character: int) -> int:
        """The nearest offset that exists; a character past the end of its line means that end."""
        if line >= len(self._starts):
            return len(self.text)
        start = self._starts[line]
        stop = self._starts[line + 1] if line + 1 < len(self._starts) else len(self.text)
        content = self.text[start:stop].rstrip("\r\n")
        return start + self._index(content, character)

    def _index(self, content: str, character: int) -> int:
        """How many characters of a line lie before a position; one inside a character means its
        end."""
        if character >= len(content) * _MAX_UNITS[self._unit] or self._units(content) <= character:
            return len(content)
        if self._unit == 4 or content.isascii():
            return max(0, character)
        low, high = 0, min(len(content), max(0, character))  # a character has one unit or more
        while low < high:
            middle = (low + high) // 2
            if self._units(content[:middle]) < character:
                low = middle + 1
            else:
                high = middle
        return low

    def _units(self, piece: str) -> int:
        if piece.isascii():
            return len(piece)
        return len(piece.encode(self._codec, errors="surrogatepass")) // self._unit


def apply_edits(
    text: str, encoding: str, changes: Iterable[tuple[tuple[int, int], tuple[int, int], str] | str]
) -> str:
    """The text after changes in their order: each the new text alone, or (start, end, new text) in
    positions.

    A position that is not there means the nearest one that is, and of two in the wrong order the
    first is the start: what vscode-languageserver does too."""
    for change in changes:
        if isinstance(change, str):
            text = change
            continue
        positions = LineIndex(text, encoding)
        start, end = sorted(positions.offset(*at) for at in change[:2])
        text = text[:start] + change[2] + text[end:]
    return text
