"""Text from outside as it may be shown: exceptions, teammates' rows, a repository's names, models'
words.

`plain` leaves no escape sequence of a terminal, no control character and no mark that turns the
direction of text: what is read is what is there. `inert` is for Markdown: no link, image or HTML
of somebody else's. Every exit uses them (commands/console.py, server/app.py, presenter/), so
nobody else has to think of it. Standard library only. Not covered: text that a user writes into a
file, which stays as it is."""

from __future__ import annotations

import re
from typing import Any

from kernel_lsp import fences

_SEQUENCE = re.compile(
    # A terminal's commands and strings; one that is not ended ends with its line.
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*+(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*+[0-~]?"
)
_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
_ODD = re.compile(r"\r|" + _CONTROL.pattern)
_CODE = re.compile(r"(`[^`\n]*`)")
_ODD_BACKTICK = re.compile(r"``|\\`")
_LINK = re.compile(r"(?<=\])(?=[(:\[])")
_HTML = re.compile(r"<(?=[A-Za-z/!?])")
"""An entity takes its place: a backslash before it would be undone by one that is there."""
EXACT = frozenset(
    [
        "newText",
        "data",
        "arguments",
        "uri",
        "changes",
        "documentChanges",
        "edit",
        "path",
        "id",
        "token",
    ]
)
"""Keys of a message whose values a program works with; whatever else is text is shown."""


def plain(text: str) -> str:
    """The text without what a terminal or an editor would obey; line breaks and tabs stay."""
    if _ODD.search(text) is None:
        return text
    text = _SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text)


def on_one_line(text: str) -> str:
    """``plain`` text without line breaks: a name or an error of a repository begins no line of a
    report, which CI obeys (`::error file=…`) and people believe (`ok  pays`)."""
    return " ".join(plain(text).splitlines())


def inert(markdown: str) -> str:
    """Markdown in which only code blocks, tables and emphasis still mean something."""
    text = plain(markdown)  # first: what it takes out may stand between what belongs together
    parts, at = list[str](), 0
    for start, end in fences.certain_blocks(text):
        parts += _prose(text[at:start]), text[start:end]
        at = end
    return "".join((*parts, _prose(text[at:])))


def make_plain(message: Any) -> Any:
    """A JSON value with every text in it plain, but for those under `EXACT` keys."""
    if isinstance(message, str):
        return plain(message)
    if isinstance(message, dict):
        return {key: value if key in EXACT else make_plain(value) for key, value in message.items()}
    if isinstance(message, (list, tuple)):
        return [make_plain(item) for item in message]
    return message


def _prose(text: str) -> str:
    pieces = _CODE.split(text) if _is_code_certain(text) else [text]
    pieces[::2] = [_HTML.sub("&lt;", _LINK.sub("\\\\", piece)) for piece in pieces[::2]]
    return "".join(pieces)


def _is_code_certain(text: str) -> bool:
    """Whether all backticks are single ones, in pairs within a line and a cell of a table: what
    stands between others depends on the text around it."""
    if _ODD_BACKTICK.search(text):
        return False
    pieces = (line.split("`") for line in text.split("\n"))
    return all(len(one) % 2 and not any("|" in code for code in one[1::2]) for one in pieces)
