"""Which line of a file a line of the program is that was sliced out of it, and which one an error
names.

A slice holds whole statements of the top level, byte for byte (analysis/slicing.py), so a line is
found by the statement that it stands in. Not covered: imports, which a slice writes anew."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernel_lsp import parsing
from kernel_lsp.errors import CaptureError
from kernel_lsp.pipeline.prepare import PreparedJob
from kernel_lsp.positions import split_lines
from kernel_lsp.records import NearMiss

CODE = re.compile(r"`([^`]+)`")
QUOTED = 100
"""Characters of a line that a cause quotes at most (rewrite/capture/refusals.py)."""


def place_misses(misses: Sequence[NearMiss], program: str, text: str) -> tuple[NearMiss, ...]:
    """The near misses with lines of the file; None where a program's line is none of the file's."""
    return tuple(replace(miss, line=_line(miss.line, program, text)) for miss in misses)


def locate_error(error: CaptureError, prepared: PreparedJob) -> CaptureError:
    """The error with the line of the file behind the code that its cause quotes, where just one
    line reads so."""
    quoted = CODE.search(error.cause)
    lines = split_lines(prepared.snapshot.text)
    same = [at for at, line in enumerate(lines, 1) if quoted and _reads(line, quoted.group(1))]
    own = [
        at
        for at in same
        if prepared.target.span.start <= _offset(lines, at) < prepared.target.span.end
    ]
    found = own if own else same
    if quoted is None or len(found) != 1:
        return error
    place = f"{Path(prepared.job.path).name}:{found[0]}"
    end = quoted.end()
    return CaptureError(f"{error.cause[:end]} ({place}){error.cause[end:]}", error.remedy)


def _reads(line: str, code: str) -> bool:
    """Long lines are quoted by their beginning."""
    return line.strip() == code or (len(code) >= QUOTED and line.strip().startswith(code))


def _offset(lines: Sequence[str], line: int) -> int:
    return sum(map(len, lines[: line - 1]))


def _line(line: int | None, program: str, text: str) -> int | None:
    if line is None:
        return None
    lines = _lines(text)
    for block, first in _statements(program):
        if first <= line < first + len(block):
            starts = [at for at in range(len(lines)) if lines[at : at + len(block)] == block]
            return starts[-1] + 1 + line - first if starts else None
    return None


def _statements(program: str) -> list[tuple[list[str], int]]:
    """Lines of each statement of the top level, and the number of its first one, from 1."""
    lines = _lines(program)
    found = []
    for node in parsing.parse(program).body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators if isinstance(one, ast.expr))])
        found.append((lines[first - 1 : node.end_lineno], first))
    return found


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
