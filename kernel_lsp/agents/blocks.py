"""Where in a reply's text a call may stand: tags, fences, edit blocks; and what was only thought.

One pass from the left: whatever opens first takes the text up to its end, so a tag inside a code
block is text, and so is a fence inside a tag. Every search goes on where the last one ended:
linear in the text. Not covered: what a block says (reading.py), what of it counts (replies.py).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class BlockKind(StrEnum):
    TAG = "tag"
    """What stands between ``<tool_call>`` and its end, or from a bare ``<function=`` on."""
    FENCE = "fence"
    EDIT = "edit"
    """One SEARCH/REPLACE block, its markers included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageBlock:
    kind: BlockKind
    text: str
    language: str = ""
    """Of a fence, lower case."""
    complete: bool = True
    """Its end was there."""


# Possessive (*+), so that a long line is never tried in two ways.
_OPENING = re.compile(
    r"(?P<tag><tool_call>)|(?P<bare><function=)"
    r"|^(?P<edit><{5,9} ?SEARCH[ \t]*+$)"
    r"|^[ \t]*+(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<language>[\w.+-]*+)[^\n`]*+$",
    re.MULTILINE,
)
_FENCE_END = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+$", re.MULTILINE)
_EDIT = re.compile(r"^<{5,9} ?SEARCH[ \t]*+$", re.MULTILINE)
_EDIT_END = re.compile(r"^>{5,9} ?REPLACE[ \t]*+$", re.MULTILINE)
_TAG_END = re.compile(r"\s*</tool_call>")
_NOT_BLANK = re.compile(r"\S")
_JSON = json.JSONDecoder(strict=False)
_XML_FUNCTION = re.compile(r"<function=([^<>\n]{1,200})>")
_XML_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,200})>")


def blocks(text: str) -> Iterator[MessageBlock]:
    """The blocks of a message, in order. The last one may be incomplete and then reaches to the
    end."""
    at = 0
    while opening := _OPENING.search(text, at):
        start = opening.end()
        if opening["tag"]:
            body, at, complete = _tag_end(text, start)
            yield MessageBlock(kind=BlockKind.TAG, text=body, complete=complete)
        elif opening["bare"]:
            body, at, complete = _until(text, opening.start(), "</function>")
            yield MessageBlock(kind=BlockKind.TAG, text=body, complete=complete)
        elif opening["edit"]:
            edit, at = _edit(text, opening)
            yield edit
        else:
            body, at, complete = _fence_end(text, start, opening["fence"])
            yield MessageBlock(
                kind=BlockKind.FENCE,
                text=body,
                language=opening["language"].lower(),
                complete=complete,
            )


def edits(text: str) -> list[MessageBlock]:
    """The SEARCH/REPLACE blocks of a text without fences, such as the inside of one."""
    found, at = [], 0
    while opening := _EDIT.search(text, at):
        edit, at = _edit(text, opening)
        found.append(edit)
    return found


def without_thinking(text: str) -> tuple[str, bool]:
    """What follows the thinking, and whether that had an end.

    A chat template may have opened it, so the reply can begin inside and have only its end.
    """
    parts, at = [], 0
    while (start := text.find("<think>", at)) >= 0:
        parts.append(text[at:start])
        end = text.find("</think>", start)
        if end < 0:
            return "".join(parts), False
        at = end + len("</think>")
    rest = "".join([*parts, text[at:]])
    _, found, after = rest.partition("</think>")
    return after if found else rest, True


def xml_call(text: str) -> tuple[str, dict[str, str]] | None:
    """Qwen's XML: ``<function=name><parameter=key>value</parameter>…``; None: it is none."""
    function = _XML_FUNCTION.search(text)
    if function is None:
        return None
    values: dict[str, str] = {}
    at = function.end()
    while parameter := _XML_PARAMETER.search(text, at):
        value, at, _ = _until(text, parameter.end(), "</parameter>")
        values[parameter[1].strip()] = value.removeprefix("\n").removesuffix("\n")
    return function[1].strip(), values


def _tag_end(text: str, start: int) -> tuple[str, int, bool]:
    """JSON knows its own end: the end tag may stand in one of its strings."""
    first = _NOT_BLANK.search(text, start)
    if first and first[0] == "{":
        with contextlib.suppress(ValueError, RecursionError):
            end = _JSON.raw_decode(text, first.start())[1]
            after = _TAG_END.match(text, end)
            return text[start:end], after.end() if after else end, True
    return _until(text, start, "</tool_call>")


def _edit(text: str, opening: re.Match[str]) -> tuple[MessageBlock, int]:
    end = _EDIT_END.search(text, opening.end())
    at = end.end() if end else len(text)
    return MessageBlock(
        kind=BlockKind.EDIT, text=text[opening.start() : at], complete=end is not None
    ), at


def _fence_end(text: str, start: int, mark: str) -> tuple[str, int, bool]:
    at = start
    while end := _FENCE_END.search(text, at):
        if end[1].startswith(mark):
            return text[start + 1 : end.start()], end.end(), True
        at = end.end()
    return text[start + 1 :], len(text), False


def _until(text: str, start: int, end: str) -> tuple[str, int, bool]:
    """(text up to ``end``, where it goes on, whether ``end`` was there)."""
    found = text.find(end, start)
    return (
        (text[start:found], found + len(end), True)
        if found >= 0
        else (text[start:], len(text), False)
    )
