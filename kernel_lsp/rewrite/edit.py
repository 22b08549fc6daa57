"""Put a rewritten target into a file with the smallest change. Standard library only: the server
uses it.

`apply_edit(text, span, edit) -> str` and `changes(text, span, edit) -> list[TextChange]`.

Lines that the rewrite leaves alone keep their bytes: comments, indentation, line endings, tabs,
form feeds. New lines take the file's line ending and the target's indentation. In a notebook's
program new imports and definitions go into the cell of the target: it is the one that is run
again. A result that does not compile is never returned. Not covered: mixed line endings inside the
*new* lines (the first one wins)."""

from __future__ import annotations

import ast
import bisect
import difflib
import re
from dataclasses import dataclass

from kernel_lsp import notebooks, parsing
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import SourceEdit, Span

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# What Python calls a line; str.splitlines also splits at \f and U+2028.
LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextChange:
    """Replace ``text[start:end]`` by ``new``; offsets into the text before any change."""

    start: int
    end: int
    new: str


def apply_edit(text: str, span: Span, edit: SourceEdit) -> str:
    """The file with its target replaced. Raises RewriteError when the result would not compile."""
    return _apply(text, changes(text, span, edit))


def changes(text: str, span: Span, edit: SourceEdit) -> list[TextChange]:
    """The smallest line-wise replacements, in order of position, never overlapping.

    Raises RewriteError when the result would not compile.
    """
    file = _File(text)
    home = file.statement_at(span)
    definitions, target = _without_collisions(file, edit)
    made = [
        *_import_changes(file, home, edit.imports),
        *_definition_changes(file, home, definitions),
        *_target_changes(file, span, target),
        *(
            change
            for name, new in edit.others
            for change in _target_changes(file, file.span_of(name), new)
        ),
    ]
    made = [change for change in made if change.new != text[change.start : change.end]]
    made.sort(key=lambda change: (change.start, change.end))
    try:
        parsing.parse_text(_apply(text, made))
    except SyntaxError as error:
        raise RewriteError(
            f"the rewritten file would not compile: {error.msg} (line {error.lineno})"
        ) from error
    return made


def _apply(text: str, made: list[TextChange]) -> str:
    parts, at = [], 0
    for change in made:
        parts += [text[at : change.start], change.new]
        at = change.end
    return "".join([*parts, text[at:]])


class _File:
    """A text with its lines and its top-level statements."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(match.end() for match in LINE_END.finditer(text))]
        first = LINE_END.search(text)
        self.eol = first.group() if first else "\n"
        self.body = parsing.parse_text(text).body

    def line_of(self, offset: int) -> int:
        """1-based line number."""
        return bisect.bisect_right(self.starts, offset)

    def start_of(self, line: int) -> int:
        """Offset of a 1-based line; the end of the text for the line after the last."""
        return self.starts[line - 1] if line <= len(self.starts) else len(self.text)

    def line(self, number: int) -> str:
        """Line `number`, counted from 1, with its end."""
        return self.text[self.start_of(number) : self.start_of(number + 1)]

    def first_line_of_cell(self, line: int) -> int:
        """The first line that may be changed of the notebook's cell around a line, magics above it
        left alone; 1 where this is no notebook's program."""
        start = self.text.rfind(notebooks.SEPARATOR, 0, self.start_of(line))
        first = 1 if start < 0 else self.line_of(start) + 1
        while self.line(first).startswith(notebooks.MAGIC):
            first += 1
        return first

    def statement_at(self, span: Span) -> ast.stmt:
        """The statement at the top of the file in which the span begins. Raises RewriteError where
        none is."""
        line = self.line_of(span.start)
        for node in self.body:
            if _first_line(node) <= line <= (node.end_lineno or node.lineno):
                return node
        raise RewriteError(
            "the target is no longer where it was", "wait until the file is analyzed again"
        )

    def span_of(self, qualname: str) -> Span:
        """Decorators through the last line of a function or method; of two with one name the
        last."""
        body, node = self.body, None
        for part in qualname.split("."):
            named = [n for n in body if isinstance(n, DEFINITIONS) and n.name == part]
            node = named[-1] if named else None
            body = node.body if node is not None else []
        if node is None:
            raise RewriteError(
                f"{qualname} is no longer in the file", "wait until it is analyzed again"
            )
        first = self.start_of(_first_line(node))
        indent = len(self.line(_first_line(node))) - len(self.line(_first_line(node)).lstrip(" \t"))
        return Span(start=first + indent, end=self.start_of((node.end_lineno or node.lineno) + 1))

    def insertion(self, line: int, block: str) -> TextChange:
        """Whole lines before a 1-based line, also when the text lacks a final line end."""
        at = self.start_of(line)
        glue = (
            self.eol
            if at == len(self.text) and at and not LINE_END.fullmatch(self.text[-1])
            else ""
        )
        return TextChange(start=at, end=at, new=glue + block.replace("\n", self.eol))


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


# --- imports -----------------------------------------------------------------------------


def _import_changes(file: _File, home: ast.stmt, wanted: tuple[str, ...]) -> list[TextChange]:
    present = {name for node in file.body for name in _bindings(node)}
    missing = [
        line
        for line in dict.fromkeys(wanted)
        if not set(_bindings(parsing.parse_text(line).body[0])) <= present
    ]
    if not missing:
        return []
    first = file.first_line_of_cell(_first_line(home))
    before = [n for n in file.body if first <= n.lineno and (n.end_lineno or 0) < _first_line(home)]
    block = "".join(f"{line}\n" for line in missing)
    line = _import_line(file, before, first)
    if not any(isinstance(node, ast.Import | ast.ImportFrom) for node in before):
        block += "\n"
    return [file.insertion(line, block)]


def _import_line(file: _File, before: list[ast.stmt], first: int) -> int:
    """The line that new imports go before: behind the imports, else behind docstring or first
    comments. ``first``: none goes above it."""
    anchors: list[ast.stmt] = [
        node for node in before if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    if not anchors:
        docstring = [
            n for n in before[:1] if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
        ]
        anchors.extend(docstring)
    if anchors:
        end = anchors[-1].end_lineno or anchors[-1].lineno
        # `import a; b = 1` on one line.
        shared = [n.end_lineno or 0 for n in before if n.lineno <= end]
        return max([end, *shared]) + 1
    line = first
    while line <= 2 and re.match(r"\ufeff?#(!|.*coding[:=])", file.line(line)):
        line += 1
    return line


def _bindings(node: ast.stmt) -> list[tuple[str, ...]]:
    """What an import statement binds: (module, name, alias)."""
    if isinstance(node, ast.Import):
        return [(alias.name, "", alias.asname or "") for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return [(module, alias.name, alias.asname or "") for alias in node.names]
    return []


# --- definitions and target --------------------------------------------------------------


def _without_collisions(file: _File, edit: SourceEdit) -> tuple[str, str]:
    """Definitions and target, with new names for definitions whose name the file uses already.

    Two targets of one file may get kernels of the same name that compute different things.
    """
    definitions, target = edit.definitions, edit.target
    if not definitions or definitions.strip("\n") in LINE_END.sub("\n", file.text):
        return definitions, target
    taken = {name for node in file.body for name in _defined_names(node)}
    for name in [
        name for node in parsing.parse_text(definitions).body for name in _defined_names(node)
    ]:
        if name in taken:
            fresh = next(n for i in range(2, 10_000) if (n := f"{name}_{i}") not in taken)
            definitions, target = (
                re.sub(rf"\b{name}\b", fresh, text) for text in (definitions, target)
            )
    return definitions, target


def _defined_names(node: ast.stmt) -> list[str]:
    """Names that a top-level function, class or assignment binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _definition_changes(file: _File, home: ast.stmt, definitions: str) -> list[TextChange]:
    block = definitions.strip("\n")
    if not block or block in LINE_END.sub("\n", file.text):
        return []
    line = _first_line(home)
    while line > 1 and file.line(line - 1).startswith("#"):
        line -= 1  # a comment right above belongs to the target
    return [file.insertion(line, f"{block}\n\n\n")]


def _target_changes(file: _File, span: Span, target: str) -> list[TextChange]:
    first, last = file.line_of(span.start), file.line_of(max(span.start, span.end - 1))
    indent = file.text[file.start_of(first) : span.start]
    if indent.strip(" \t\f\ufeff"):
        raise RewriteError("the target does not start its line", "put it on a line of its own")
    indent = indent.lstrip("\ufeff\f")
    old = [LINE_END.sub("", file.line(n)).removeprefix(indent) for n in range(first, last + 1)]
    old[0] = old[0].lstrip("\ufeff\f")
    new = target.strip("\n").split("\n")
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        _line_change(
            file,
            first + a,
            first + b,
            [indent + line if line.strip() else line for line in new[c:d]],
        )
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != "equal"
    ]


def _line_change(file: _File, first: int, stop: int, lines: list[str]) -> TextChange:
    """Replace the lines first..stop-1 (1-based); an unterminated last line stays unterminated."""
    start, end = file.start_of(first), file.start_of(stop)
    body = file.eol.join(lines)
    if first == stop:
        return file.insertion(first, "".join(f"{line}\n" for line in lines))
    ended = bool(LINE_END.search(file.line(stop - 1)))
    if file.text[start:].startswith(("\ufeff", "\f")) and lines:
        start += 1
    return TextChange(start=start, end=end, new=body + (file.eol if ended and lines else ""))
