"""Notebooks: their cells as one program, and edits of that program in the cells that they belong
to.

    parse(text) -> Notebook       a .ipynb file; cells know where their source stands in the JSON
    program(cells) -> Program     what analysis reads; each character keeps its place in its cell
    edit_cells(text, edits)       the file again: all bytes outside of the changed lines stay
    read_source(path)             a Python file, or a notebook's program, from the disk
    write_source(path, …)         the same, changed

Lines that only IPython understands (magics, shell, help) are a name that nobody defines and a
comment in the program, as long as they were: what needs their value cannot run without IPython. A
cell that does not parse, or is no Python, is one comment, so the others are read all the same.
Standard library only. Not covered: what a magic would do, and cells that are run in another order.
"""

from __future__ import annotations

import bisect
import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from kernel_lsp import files, foreign, parsing
from kernel_lsp.files import SourceFile
from kernel_lsp.records import Span

SUFFIX = ".ipynb"
MAX_BYTES = 32 * 1024**2
"""Most of a notebook are pictures in its outputs."""
MAGIC = "\u01c3"
"""Stands for what only IPython can compute: a letter, so a name, that no program has."""
SEPARATOR = f" #{MAGIC}\n"
"""Between two cells of a program. Indented, so that no comment above a definition goes over it."""
CellEdit = tuple[int, int, str]
"""Start, end and new text, in a cell's source."""
PYTHON_MAGICS = frozenset({"capture", "debug", "prun", "time", "timeit"})
"""Cell magics whose cell is Python of the same program."""
NOWHERE = Span(start=0, end=0)
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_MAGIC = re.compile(
    r"(?P<before>[ \t]*+(?:[\w.,\[\]][\w.,\[\] \t]*+=[ \t]*+)?)"
    r"(?:[%!].*|\?{1,2}[\w.].*|[\w.]++\?{1,2}[ \t]*+)",
    re.DOTALL,
)
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One code cell."""

    number: int
    """From 1, among all cells of the notebook."""
    source: str
    place: Span = NOWHERE
    """Of the value of its ``source`` in the file."""
    file_lines: tuple[int, ...] = ()
    """By line of the source: its line in the file, from 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notebook:
    cells: tuple[Cell, ...]
    """Its code cells; none where its language is not Python."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPart:
    """Where a cell lies in the program."""

    cell: Cell
    span: Span


@dataclass(frozen=True, slots=True)
class Spot:
    """A place of a program in its cell: line and column from 1, in characters."""

    cell: Cell
    line: int
    column: int

    @property
    def file_line(self) -> int:
        """The line (from 1) of the .ipynb file on which the cell's line is written."""
        lines = self.cell.file_lines
        return lines[min(self.line, len(lines)) - 1] if lines else self.line


class NotebookProgram:
    """The cells of a notebook as one text."""

    def __init__(
        self, parts: Sequence[CellPart], text: str, broken: Sequence[tuple[Cell, str]]
    ) -> None:
        self.parts = tuple(parts)
        self.text = text
        self.broken = tuple(broken)
        """Cells that do not parse, and why: the program has a comment in their place."""

    @cached_property
    def _starts(self) -> list[int]:
        return [part.span.start for part in self.parts]

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", self.text))]

    def part(self, offset: int) -> CellPart | None:
        """The cell of a place; None between cells and in an empty program."""
        at = bisect.bisect_right(self._starts, offset) - 1
        part = self.parts[at] if at >= 0 else None
        return part if part is not None and offset <= part.span.end else None

    def edits(self, new: str) -> list[tuple[Cell, list[CellEdit]]]:
        """What turns the program into ``new``, line by line, in the cells that change.

        Raises ValueError where cells cannot hold it: a line that IPython alone understands would
        be another, or a cell would come or go."""
        texts = new.split(SEPARATOR)
        if len(texts) != max(1, len(self.parts)):
            raise ValueError("the notebook has other cells")
        made = []
        for part, text in zip(self.parts, texts, strict=False):
            before = self.text[part.span.start : part.span.end]
            if edits := _edits(before, text, part.cell.source):
                made.append((part.cell, edits))
        return made

    def spot(self, line: int, column: int) -> Spot | None:
        """A line and column of the program, from 1, in its cell."""
        offset = self._line_starts[min(line, len(self._line_starts)) - 1] + column - 1
        part = self.part(offset)
        if part is None:
            return None
        head = self.text[part.span.start : offset]
        number = len(re.findall(r"\r\n|\r|\n", head))
        begin = max(head.rfind("\n"), head.rfind("\r")) + 1
        return Spot(part.cell, number + 1, len(head) - begin + 1)


def parse(text: str) -> Notebook:
    """The notebook that the text of an .ipynb file holds. Raises ValueError that says why this is
    no notebook."""
    value = foreign.json_value(text)
    cells = value.get("cells") if isinstance(value, dict) else None
    if not isinstance(cells, list):
        raise ValueError("no notebook of format 4: it has no list of cells")
    if _language(value) != "python":
        return Notebook(cells=())
    line_starts = [0, *(match.end() for match in re.finditer(r"\n", text))]
    places = _elements(text, _members(text, _skip(text, 0))["cells"].start)
    made = (
        _cell(text, number, place, line_starts)
        for number, (cell, place) in enumerate(zip(cells, places, strict=True), 1)
        if isinstance(cell, dict) and cell.get("cell_type") == "code"
    )
    return Notebook(cells=tuple(cell for cell in made if cell is not None))


def program(cells: Iterable[Cell]) -> NotebookProgram:
    """The cells one below the other, each beginning on a line of its own."""
    parts: list[CellPart] = []
    broken: list[tuple[Cell, str]] = []
    texts: list[str] = []
    at = 0
    for cell in cells:
        if parts:
            texts.append(SEPARATOR)
            at += len(SEPARATOR)
        python, why = _as_python(cell.source)
        if why is not None:
            broken.append((cell, why))
        end = "" if python.endswith("\n") else "\n"
        parts.append(CellPart(cell=cell, span=Span(start=at, end=at + len(python))))
        texts += (python, end)
        at += len(python) + len(end)
    return NotebookProgram(parts, "".join(texts), broken)


def edit_program(text: str, new: str) -> str:
    """The text of a .ipynb file with another program. Raises ValueError, as
    `NotebookProgram.edits` does."""
    return edit_cells(text, program(parse(text).cells).edits(new))


def is_notebook(path: Path | str) -> bool:
    """Whether a file of that name is a notebook."""
    return str(path).endswith(SUFFIX)


def read_json(path: Path, *, within: Path | None = None) -> str:
    """The text of a .ipynb file. Raises OSError or UnicodeDecodeError.

    ``within``: the workspace, which no link may lead out of."""
    return foreign.read_text(path, most=MAX_BYTES, within=within)


def read_source(path: Path, *, within: Path | None = None) -> SourceFile:
    """The text of a Python file, or a notebook's program. Raises OSError, UnicodeDecodeError or
    SyntaxError (a bad encoding comment; no notebook)."""
    if not is_notebook(path):
        return files.read_source(path, within=within)
    text = read_json(path, within=within)
    try:
        return SourceFile(text=program(parse(text).cells).text, encoding="utf-8")
    except (ValueError, RecursionError) as error:
        raise SyntaxError(f"cannot be read as a notebook: {error}") from error


def write_source(path: Path, text: str, encoding: str) -> None:
    """Replace what `read_source` reads: a Python file, or the cells of a notebook that change.
    Raises OSError, UnicodeEncodeError or another ValueError, and has written nothing then."""
    if not is_notebook(path):
        files.write_source(path, text, encoding)
    else:
        files.replace_file(path, edit_program(read_json(path), text).encode())


def edit_cells(text: str, edits: Iterable[tuple[Cell, Sequence[CellEdit]]]) -> str:
    """The file with edits in some cells; ``(start, end, new)`` are offsets in the cell's source,
    in order."""
    for cell, changes in sorted(edits, key=lambda pair: -pair[0].place.start):
        source = edit_source(cell.source, changes)
        raw = text[cell.place.start : cell.place.end]
        text = text[: cell.place.start] + _write_cells(source, raw) + text[cell.place.end :]
    return text


def edit_source(source: str, edits: Iterable[CellEdit]) -> str:
    """A cell's source with edits, which do not overlap."""
    for start, end, new in sorted(edits, reverse=True):
        source = source[:start] + new + source[end:]
    return source


# --- what IPython alone understands ---------------------------------------------------------


@lru_cache(maxsize=512)
def _as_python(source: str) -> tuple[str, str | None]:
    """The source as Python of the same length, and what is wrong where it is none."""
    if (magic := _CELL_MAGIC.match(source)) and magic[1] not in PYTHON_MAGICS:
        return _as_comment(source), None
    if not magic and _parses(source) is None:
        return source, None
    masked = "".join(map(_mask, _LINES.findall(source)))
    why = _parses(masked)
    if why is None:
        return masked, None
    return _as_comment(source), why


def _mask(line: str) -> str:
    """A line of IPython as a name and a comment; others as they are."""
    match = _MAGIC.fullmatch(line.rstrip("\r\n"))
    if match is None:
        return line
    at = len(match["before"])
    return (
        f"{line[:at]}{MAGIC}#{line[at + 2 :]}"
        if len(line.rstrip()) > at + 1
        else f"{line[:at]}{MAGIC}{line[at + 1 :]}"
    )


def _as_comment(source: str) -> str:
    return re.sub(r"(?m)^[^\r\n]", "#", source)


def _parses(source: str) -> str | None:
    """What is wrong with it; None: it is Python. A bare ``await`` is, as far as the parser
    knows."""
    try:
        parsing.parse_text(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return None


def _edits(before: str, after: str, source: str) -> list[CellEdit]:
    """The changed lines of one cell: ``before`` and ``after`` as Python, ``source`` as it is. The
    program ends each cell's last line; the cell itself may not."""
    old = _LINES.findall(before if before.endswith("\n") else f"{before}\n")
    new = _LINES.findall(after)
    made: list[CellEdit] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        start = len("".join(old[:a]))
        end, text = start + len("".join(old[a:b])), "".join(new[c:d])
        if before[start:end] != source[start:end] or MAGIC in text:
            raise ValueError("a line that only IPython understands would be another")
        if end > len(source):  # behind the last line, or with it
            text = text.removesuffix("\n").removesuffix("\r")
            if start > len(source):
                text = f"\n{text}"
            elif not text:  # what is the last line then has no end either
                start = len(source[:start].removesuffix("\n").removesuffix("\r"))
            start, end = min(start, len(source)), len(source)
        made.append((start, end, text))
    return made


# --- the JSON of a notebook -----------------------------------------------------------------


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for table, key in (("language_info", "name"), ("kernelspec", "language")):
        entry = metadata.get(table)
        if isinstance(entry, dict) and isinstance(entry.get(key), str):
            return str(entry[key]).lower()
    return "python"


def _cell(text: str, number: int, place: Span, line_starts: list[int]) -> Cell | None:
    source = _members(text, place.start).get("source")
    if source is None:
        return None
    value, _ = _DECODER.raw_decode(text, source.start)
    if isinstance(value, str):
        lines, begins = [value], [source.start] * max(1, len(_LINES.findall(value)))
    elif isinstance(value, list) and all(isinstance(line, str) for line in value):
        lines, begins = value, [span.start for span in _elements(text, source.start)]
    else:
        return None
    file_lines = tuple(bisect.bisect_right(line_starts, begin) for begin in begins)
    return Cell(number=number, source="".join(lines), place=source, file_lines=file_lines)


def _members(text: str, at: int) -> dict[str, Span]:
    """Where the values of the object at ``at`` stand. The text is known to be JSON."""
    found: dict[str, Span] = {}
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, at = _DECODER.raw_decode(text, start)
        found[key] = Span(start=start, end=at)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _elements(text: str, at: int) -> list[Span]:
    """Where the elements of the list at ``at`` stand."""
    found: list[Span] = []
    at = _skip(text, at + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        found.append(Span(start=at, end=end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _write_cells(source: str, raw: str) -> str:
    """A source as the JSON value that ``raw`` was: a text, or a list of lines in the same layout.
    Lines that stay are written as they were."""

    def cell_line(line: str) -> str:
        return json.dumps(line, ensure_ascii=raw.isascii())

    if not raw.startswith("["):
        return cell_line(source)
    spans = _elements(raw, 0)
    before = {json.loads(raw[span.start : span.end]): raw[span.start : span.end] for span in spans}
    if not spans:
        return f"[{', '.join(map(cell_line, _LINES.findall(source)))}]"
    first, last = raw[1 : spans[0].start], raw[spans[-1].end : -1]
    between = raw[spans[0].end : spans[1].start] if len(spans) > 1 else f",{first or ' '}"
    lines = [before.get(line) or cell_line(line) for line in _LINES.findall(source)]
    return f"[{first}{between.join(lines)}{last}]"
