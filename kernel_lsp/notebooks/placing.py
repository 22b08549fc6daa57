"""Findings in a notebook's program, at the places of its cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kernel_lsp.notebooks import CellPart, NotebookProgram
from kernel_lsp.records import Finding, Span

_LINE_NUMBERS = re.compile(r"\bline (\d+(?:, \d+)*)")


def place_finding(finding: Finding, program: NotebookProgram) -> Finding:
    """The finding with ``cell`` (from 1, among all cells), lines and columns in it, and lines of
    the file; the offsets of its fix count in the cell's source, and a fix of several cells is
    none."""
    data = place_data(finding.data, finding.span, program)
    return replace(finding, message=in_cells(program, finding.message), data=data)


def place_data(given: Mapping[str, Any], span: Span, program: NotebookProgram) -> dict[str, Any]:
    """A finding's data with lines of its cell in the place of the program's; ``span``: the
    finding's. What has no place stays as it is."""
    data = dict(given)
    if not {"line", "column", "end_line", "end_column"} <= data.keys():
        return data
    start = program.spot(data["line"], data["column"])
    end = program.spot(data["end_line"], data["end_column"])
    if start is None or end is None:
        return data
    data |= {"cell": start.cell.number, "line": start.line, "column": start.column}
    data |= {"end_line": end.line, "end_column": end.column}
    data |= {"file_line": start.file_line, "end_file_line": end.file_line}
    if (
        "fix" in data
        and (fix := _fix(data.pop("fix"), program.part(span.start), program)) is not None
    ):
        data["fix"] = fix
    return data


def _fix(
    fix: Mapping[str, Any], part: CellPart | None, program: NotebookProgram
) -> dict[str, Any] | None:
    if part is None or any(
        program.part(edit["start"]) is not part or program.part(edit["end"]) is not part
        for edit in fix["edits"]
    ):
        return None
    begin = part.span.start
    edits = [
        {**edit, "start": edit["start"] - begin, "end": edit["end"] - begin}
        for edit in fix["edits"]
    ]
    return {"title": fix["title"], "edits": edits}


def in_cells(program: NotebookProgram, words: str, name: str | None = None) -> str:
    """Words about lines of the program, where ``line 7`` is ``line 2 of cell 3``, and behind the
    name of its file ``:7`` is ``:cell 3:2``."""
    if name is not None:
        words = re.sub(rf"(?<={re.escape(name)}):(\d+)", _in_cell(program), words)
    return _LINE_NUMBERS.sub(_spots(program), words)


def _in_cell(program: NotebookProgram) -> Callable[[re.Match[str]], str]:
    def place(match: re.Match[str]) -> str:
        spot = program.spot(int(match[1]), 1)
        return f":cell {spot.cell.number}:{spot.line}" if spot else match[0]

    return place


def _spots(program: NotebookProgram) -> Callable[[re.Match[str]], str]:
    def spots_text(match: re.Match[str]) -> str:
        spots = [program.spot(int(number), 1) for number in match[1].split(", ")]
        return "line " + ", ".join(
            f"{spot.line} of cell {spot.cell.number}" if spot else number
            for spot, number in zip(spots, match[1].split(", "), strict=True)
        )

    return spots_text
