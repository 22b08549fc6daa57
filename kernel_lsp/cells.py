"""Findings in a notebook's program, at the places of its cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kernel_lsp.notebooks import CellPart, NotebookProgram
from kernel_lsp.records import Finding, Span

_LINE_NUMBERS = re.compile(r"\bline (\d+(?:, \d+)*)")


def place_finding(finding: Finding, program: NotebookProgram) -> Finding:
    """The finding with ``cell`` (from 1, among all cells), lines and columns in it, and lines of
    the file; the offsets of its fix count in the cell's source, and a fix of several cells is
    none."""
    data = dict(finding.data)
    start = program.spot(data["line"], data["column"])
    end = program.spot(data["end_line"], data["end_column"])
    if start is None or end is None:
        return finding
    data |= {"cell": start.cell.number, "line": start.line, "column": start.column}
    data |= {"end_line": end.line, "end_column": end.column}
    data |= {"file_line": start.file_line, "end_file_line": end.file_line}
    if (
        "fix" in data
        and (fix := _fix(data.pop("fix"), program.part(finding.span.start), program)) is not None
    ):
        data["fix"] = fix
    return replace(
        finding, message=_LINE_NUMBERS.sub(_in_cells(program), finding.message), data=data
    )


def move_finding(finding: Finding, span: Span) -> Finding:
    """The finding where its span counts in its cell."""
    return replace(finding, span=span)


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


def _in_cells(program: NotebookProgram) -> Any:
    """For messages that speak of other lines: ``line 7`` of the program is ``line 2 of cell
    3``."""

    def spots_text(match: re.Match[str]) -> str:
        spots = [program.spot(int(number), 1) for number in match[1].split(", ")]
        return "line " + ", ".join(
            f"{spot.line} of cell {spot.cell.number}" if spot else number
            for spot, number in zip(spots, match[1].split(", "), strict=True)
        )

    return spots_text
