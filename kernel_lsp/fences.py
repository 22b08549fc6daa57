"""Code blocks of Markdown, found in linear time: one expression for them takes quadratic time
where many begin and none ends. Standard library only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

MARKS = ("```", "~~~")


def blocks(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each block, from the first mark to the end of the last; what is never ended
    is none."""
    lines, starts, at = text.split("\n"), list[int](), 0
    for line in lines:
        starts.append(at)
        at += len(line) + 1
    ends = {
        mark: [n for n, line in enumerate(lines) if line.rstrip(" \t") == mark] for mark in MARKS
    }
    begin = 0
    for number, line in enumerate(lines):
        if number < begin or line[:3] not in MARKS:
            continue
        later = ends[line[:3]]
        after = bisect_right(later, number)
        if after < len(later):
            begin = later[after] + 1
            yield starts[number], starts[later[after]] + len(lines[later[after]])


def without(text: str) -> str:
    """The Markdown without its code blocks."""
    return _replace_blocks(text, "")


def mask_blocks(text: str) -> str:
    """Blanks where blocks were: every other character stays where it is."""
    return _replace_blocks(text, None)


def _replace_blocks(text: str, by: str | None) -> str:
    parts, at = list[str](), 0
    for start, end in blocks(text):
        inside = text[start:end]
        parts += (
            text[at:start],
            by if by is not None else "\n".join(" " * len(s) for s in inside.split("\n")),
        )
        at = end
    return "".join((*parts, text[at:]))
