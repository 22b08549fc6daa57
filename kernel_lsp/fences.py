"""Code blocks of Markdown, found in linear time: one expression for them takes quadratic time
where many begin and none ends. Standard library only."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

MARKS = ("```", "~~~")
_MARK = re.compile(r"[ \t]*+(?P<run>`{3,}+|~{3,}+)(?P<rest>.*)")


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


def certain_blocks(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each block that every reader of Markdown takes for one, whatever stands
    around it. None follows a mark that is indented or a block without an end: what a reader makes
    of those depends on lists and quotes before them."""
    at, begun, mark = 0, -1, ""
    for line in text.split("\n"):
        found = _MARK.match(line)
        if found and begun < 0:
            if found.start("run") or (line[0] == "`" and "`" in found["rest"]):
                return
            begun, mark = at, found["run"]
        elif found and found["run"].startswith(mark) and not found["rest"].strip():
            yield begun, at + len(line)
            begun = -1
        at += len(line) + 1


def fenced(text: str, language: str) -> str:
    """A block that holds the text, which cannot end it."""
    longest = max(map(len, re.findall("`{3,}", text)), default=2)
    mark = "`" * (longest + 1)
    return f"{mark}{language}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{mark}"


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
