"""Rewrites of several parts of one ``forward`` as one edit. Standard library only.

`join(original, edits) -> SourceEdit | None`. A part's rewrite puts a call in the place of its
statements and methods behind ``forward`` (outlining.py). Joined, each part has its own call, and
what two of them name alike is named apart. None where they do more than that to the class, or
change the same statements. Each part has a check of its own in the joined text, so that one that
does not cover what another computes takes the statements as they were."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kernel_lsp import parsing
from kernel_lsp.records import SourceEdit

DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True, kw_only=True)
class _Change:
    """What one edit does to the lines of its class."""

    first: int
    stop: int
    """Lines of ``forward``, from 0, that are replaced."""
    lines: list[str]
    methods: list[str]
    """Lines behind ``forward``."""


def join(original: str, edits: Sequence[SourceEdit]) -> SourceEdit | None:
    """One edit that does what all of them do; None: they cannot be joined. ``original``: the class
    as it is, dedented, as the targets of the edits are."""
    base = original.strip("\n").split("\n")
    end = _end_of_forward(original)
    changes, joined = list[_Change](), edits[0]
    for edit in edits:
        apart = edit if edit is joined else _named_apart(edit, original, joined)
        change = _change_of(base, end, apart.target) if not edit.others else None
        if change is None:
            return None
        changes.append(change)
        target = _with_changes(base, end, changes)
        if target is None:
            return None
        joined = replace(
            joined,
            imports=tuple(dict.fromkeys((*joined.imports, *apart.imports))),
            definitions=_both(joined.definitions, apart.definitions),
            target=target,
        )
    return joined


def _end_of_forward(text: str) -> int:
    """The line behind the last one of the class's own ``forward``, from 0; 0: it has none."""
    (owner,) = parsing.parse_text(text.strip("\n")).body
    body = owner.body if isinstance(owner, ast.ClassDef) else []
    named = [one for one in body if isinstance(one, ast.FunctionDef) and one.name == "forward"]
    return (named[-1].end_lineno or 0) if named else 0


def _change_of(base: list[str], end: int, target: str) -> _Change | None:
    """``end``: of ``forward`` in ``base``."""
    lines, new_end = target.strip("\n").split("\n"), _end_of_forward(target)
    tail = base[end:]
    if not end or not new_end or lines[len(lines) - len(tail) :] != tail:
        return None
    before, after = base[:end], lines[:new_end]
    same = _count_same(before, after)
    alike = _count_same(before[same:][::-1], after[same:][::-1])
    return _Change(
        first=same,
        stop=len(before) - alike,
        lines=after[same : len(after) - alike],
        methods=lines[new_end : len(lines) - len(tail)],
    )


def _count_same(one: Sequence[str], other: Sequence[str]) -> int:
    """Of the lines at the begin of both."""
    pairs = zip(one, other, strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _with_changes(base: list[str], end: int, changes: Sequence[_Change]) -> str | None:
    """None: two of them change the same lines."""
    ordered = sorted(changes, key=lambda one: one.first)
    made, at = list[str](), 0
    for one in ordered:
        if one.first < at:
            return None
        made += [*base[at : one.first], *one.lines]
        at = one.stop
    made += base[at:end]
    for one in changes:
        made += one.methods
    return "\n".join([*made, *base[end:]])


# --- names ----------------------------------------------------------------------------------------


def _both(first: str, second: str) -> str:
    """Definitions of both, those that are the same once."""
    known = _blocks(first)
    more = [text for name, text in _blocks(second).items() if known.get(name) != text]
    return "\n\n\n".join(text.strip("\n") for text in (first, *more) if text.strip("\n"))


def _blocks(text: str) -> dict[str, str]:
    """The top-level statements of a text, with the comments and decorators above them; by name,
    else by what they are."""
    lines, found, at = text.split("\n"), dict[str, str](), 0
    for node in parsing.parse_text(text).body:
        block = "\n".join(lines[at : node.end_lineno]).strip("\n")
        found[next(iter(_bound([node])), block)] = block
        at = node.end_lineno or at
    return found


def _bound(nodes: Iterable[ast.stmt]) -> list[str]:
    """Names that definitions and assignments give."""
    found = list[str]()
    for node in nodes:
        if isinstance(node, DEFINITIONS):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [one.id for one in node.targets if isinstance(one, ast.Name)]
    return found


def _named_apart(edit: SourceEdit, original: str, other: SourceEdit) -> SourceEdit:
    """The edit with new names for what it adds and the other names alike. Kernels that both define
    in the same words keep theirs."""
    taken = _words(f"{other.definitions}\n{other.target}\n{edit.definitions}\n{edit.target}")
    renamed = dict[str, str]()
    for name in sorted(_alike(edit, original, other), key=len):
        stem = next((one for one in renamed if name.startswith(f"{one}_")), None)
        renamed[name] = renamed[stem] + name[len(stem) :] if stem else _fresh_name(name, taken)
    if not renamed:
        return edit
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, renamed))})\b")
    definitions, target = (
        pattern.sub(lambda found: renamed[found[1]], text)
        for text in (edit.definitions, edit.target)
    )
    return replace(edit, definitions=definitions, target=target)


def _alike(edit: SourceEdit, original: str, other: SourceEdit) -> set[str]:
    """Names of the edit that mean something else in the other one."""
    mine, theirs = _blocks(edit.definitions), _blocks(other.definitions)
    both = mine.keys() & theirs.keys()
    alike = {name for name in both if mine[name] != theirs[name]}
    while more := {name for name in both - alike if alike & _words(mine[name])}:
        alike |= more
    (owner,) = parsing.parse_text(edit.target.strip("\n")).body
    added = set(_bound(owner.body) if isinstance(owner, ast.ClassDef) else ()) - _words(original)
    return alike | (added & _words(other.target))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _fresh_name(name: str, taken: set[str]) -> str:
    """``_forward_part_2``, which is no begin of a word that is there."""
    number = 2
    while any(word.startswith(f"{name}_{number}") for word in taken):
        number += 1
    return f"{name}_{number}"
