"""Device functions that many rewrites share: a reply calls them, and need not write them.

`find` takes them from the training part: functions of one name that always have the same text. A
third of the tokens of the first writer's replies were such functions, letter for letter. They are
kept beside the model, and `complete` puts those that a reply calls in front of it."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from kernel_lsp import parsing
from kernel_lsp.files import replace_file

Helpers = Mapping[str, str]
"""Name -> definition."""
FILE = "helpers.json"
SEEN = 20
"""Replies that have a function before it is a helper."""
_OWN = re.compile(r"k[0-9]+")


def find(replies: Iterable[str], seen: int = SEEN) -> dict[str, str]:
    """Texts of Triton's device functions that at least ``seen`` replies define, all of them alike,
    by name."""
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    for reply in replies:
        for node in parsing.parse(reply).body:
            if isinstance(node, ast.FunctionDef) and _is_device_function(node):
                texts[node.name][ast.unparse(node)] += 1
    return {
        name: text
        for name, found in sorted(texts.items())
        for text, count in found.items()
        if len(found) == 1 and count >= seen
    }


def _is_device_function(node: ast.FunctionDef) -> bool:
    return "triton.jit" in map(ast.unparse, node.decorator_list) and not _OWN.fullmatch(node.name)


def without(reply: str, helpers: Helpers) -> str:
    """The reply without the text of these functions."""
    for text in helpers.values():
        reply = reply.replace(f"{text}\n", "")
    return reply


def complete(reply: str, helpers: Helpers) -> str:
    """The reply with the functions that it calls and does not define, after its first line if that
    is a comment."""
    wanted = dict[str, str]()
    waiting = [reply]
    while waiting:
        text = waiting.pop()
        for name in helpers:
            called = re.search(rf"\b{name}\b", text) is not None
            if called and name not in wanted and f"def {name}(" not in reply:
                wanted[name] = helpers[name]
                waiting.append(helpers[name])
    head, line, rest = reply.partition("\n")
    first = f"{head}{line}" if head.startswith("#") else ""
    return first + "".join(f"{text}\n" for text in wanted.values()) + (rest if first else reply)


def write(folder: Path, helpers: Helpers) -> None:
    """Writes the functions to the folder, in one step."""
    replace_file(folder / FILE, (json.dumps(helpers, indent=1) + "\n").encode())


def read(folder: Path) -> dict[str, str]:
    """The functions that were written to the folder. Raises OSError."""
    return dict(json.loads((folder / FILE).read_text("utf-8")))
