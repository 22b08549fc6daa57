"""Findings that an edit of the text mends: written, or shown as a difference.

A fix is taken only when the file parses with it and the finding is gone; all others stay for a
person. What does not overlap is done at once, the rest in further rounds. Cells of a notebook are
edited one by one, and its other bytes stay. Never for speed: nothing is claimed that has to be
measured."""

from __future__ import annotations

import contextlib
import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp import files, foreign, notebooks
from kernel_lsp.errors import KernelLspError
from kernel_lsp.records import Analysis, Finding

MAX_ROUNDS = 10
AnalyzeText = Callable[[str], Analysis]
"""The findings of a text that count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """One file with its fixes."""

    before: str
    after: str
    encoding: str
    count: int

    def difference(self, path: Path) -> str:
        """The change as a patch; line endings are those of the file."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(
            _line_end(difflib.unified_diff(before, after, fromfile=str(path), tofile=str(path)))
        )


def fix_file(path: Path, check: AnalyzeText, within: Path | None = None) -> Fixed | None:
    """The file's text with all its fixes; None: there is nothing to fix, or it cannot be read."""
    try:
        if path.suffix == notebooks.SUFFIX:
            raw = foreign.read_bytes(path, most=files.MAX_SOURCE_BYTES * 2, within=within)
            source = files.SourceFile(text=raw.decode(), encoding="utf-8")
        else:
            source = files.read_source(path, within=within)
    except (OSError, SyntaxError, UnicodeError, LookupError):
        return None
    return fix_text(path, source, check)


def fix_text(path: Path, source: files.SourceFile, check: AnalyzeText) -> Fixed | None:
    """What a file becomes by its fixes, from a text that is known; None where nothing is to be
    mended."""
    text, count, refused = source.text, 0, set[Any]()
    for _ in range(MAX_ROUNDS):
        mended = _mend(path, text, check, refused)
        if mended is None:
            break
        text, done = mended
        count += done
    if count == 0:
        return None
    return Fixed(before=source.text, after=text, encoding=source.encoding, count=count)


def write(path: Path, fixed: Fixed) -> None:
    """Writes the fixed text in the file's own encoding and line endings. Raises KernelLspError when
    the file cannot be written; then it is as it was."""
    try:
        files.write_source(path, fixed.after, fixed.encoding)
    except (OSError, UnicodeEncodeError) as error:
        raise KernelLspError(f"{path} is not fixed: {error}", "make the file writable") from error


def _mend(path: Path, text: str, check: AnalyzeText, refused: set[Any]) -> tuple[str, int] | None:
    """The text after one round of fixes and how many they are; None: there is none that may be
    taken.

    ``refused`` receives what did not do what it should.
    """
    before = check(text)
    chosen: list[Finding] = []
    for finding in before.findings:
        if (
            "fix" in finding.data
            and _identity(finding) not in refused
            and not _overlaps(finding, chosen)
        ):
            chosen.append(finding)
    while chosen:
        with contextlib.suppress(ValueError):
            after = _apply_edits(path, text, chosen)
            if _is_mended(before, check(after), len(chosen)):
                return after, len(chosen)
        if len(chosen) == 1:
            refused.add(_identity(chosen[0]))
            return _mend(path, text, check, refused)
        chosen = chosen[:1]  # one of them spoils it: each by itself
    return None


def _is_mended(before: Analysis, after: Analysis, count: int) -> bool:
    """The text is as readable as it was, the findings are gone, and no other came."""
    if before.problem is None and after.problem is not None:
        return False
    old, new = (Counter(finding.rule for finding in one.findings) for one in (before, after))
    return new <= old and old.total() - new.total() >= count


def _apply_edits(path: Path, text: str, chosen: list[Finding]) -> str:
    if path.suffix != notebooks.SUFFIX:
        for start, end, new in sorted(
            (edit for one in chosen for edit in _edits(one)), reverse=True
        ):
            text = text[:start] + new + text[end:]
        return text
    cells = {cell.number: cell for cell in notebooks.parse(text).cells}
    by_cell: dict[int, list[tuple[int, int, str]]] = {}
    for one in chosen:
        by_cell.setdefault(one.data["cell"], []).extend(_edits(one))
    return notebooks.edit_cells(text, [(cells[number], edits) for number, edits in by_cell.items()])


def _edits(finding: Finding) -> list[tuple[int, int, str]]:
    return [(edit["start"], edit["end"], edit["new"]) for edit in finding.data["fix"]["edits"]]


def _overlaps(finding: Finding, chosen: list[Finding]) -> bool:
    return any(
        one.data.get("cell") == finding.data.get("cell")
        and start <= other_end
        and other_start <= end
        for one in chosen
        for other_start, other_end, _ in _edits(one)
        for start, end, _ in _edits(finding)
    )


def _identity(finding: Finding) -> tuple[Any, ...]:
    return finding.rule, finding.data.get("cell"), tuple(_edits(finding))


def _line_end(lines: Iterator[str]) -> Iterator[str]:
    """A line without an end is marked as ``diff`` and ``git`` do."""
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
