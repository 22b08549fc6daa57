"""Offsets in a text to (line, character) and back, in LSP's three encodings. Standard library only."""

from __future__ import annotations

import bisect
import re

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
_UNIT_BYTES = {"utf-8": 1, "utf-16": 2, "utf-32": 4}
_CODECS = {"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}


def split_lines(text: str) -> tuple[str, ...]:
    r"""Lines with their ends, as LSP defines them: \n, \r\n and \r only.

    ``str.splitlines`` also splits at form feeds, NEL, U+2028 and \x1c, which moves every later edit.
    """
    return tuple(_LINE.findall(text))


class Positions:
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
        units = 0
        for index, char in enumerate(content):
            if units >= character:
                return start + index
            units += self._units(char)
        return start + len(content)

    def _units(self, piece: str) -> int:
        if piece.isascii():
            return len(piece)
        return len(piece.encode(self._codec, errors="surrogatepass")) // self._unit
