"""The text of a patch module: what differs between a library's file and its rewritten text.

    text = make(library, original, edited)    raises PatchError where it cannot be one
    edited = rewritten(original, text)        what the library's file would be with the patch

A patch holds new methods of classes (in a class of the same name), new functions in the place of
functions, and what these use: kernels, helpers, imports. Names of the library that they use are
imported from it, so a program that assigns such a name anew later is not followed. `make` refuses
what `rewrite_class` would not give back."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp import parsing
from kernel_lsp.errors import KernelLspError, RewriteError
from kernel_lsp.records import SourceEdit, Span
from kernel_lsp.rewrite import edit

RESERVED = frozenset({"LIBRARY", "Library", "apply"})
"""Names of every patch module."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class PatchError(KernelLspError):
    """A rewrite cannot be a patch module, or a file is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchedLibrary:
    """The module of an installed package that is patched."""

    module: str
    sha256: str
    """Of its file."""
    package: str | None = None
    version: str | None = None
    """None: no package manager knows the file."""

    @property
    def words(self) -> str:
        """The module with its package and version, for a sentence."""
        return f"{self.module} ({self.package} {self.version})" if self.package else self.module


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """What a patch module says."""

    library: PatchedLibrary
    names: tuple[str, ...]
    """Classes and functions of the library that it replaces parts of."""


# --- making ---------------------------------------------------------------------------------------


def make(library: PatchedLibrary, original: str, edited: str) -> str:
    """The patch module's text. Raises PatchError."""
    before, after = _PatchText(original), _PatchText(edited)
    changed = [name for name in before.definitions if after.dump(name) != before.dump(name)]
    if gone := [name for name in before.bound if name not in after.bound]:
        raise _refusal(library, f"it removes {gone[0]}")
    helpers = _find_helpers(before, after, changed)
    if taken := RESERVED & _bound_directly([*helpers, *map(after.find, changed)]):
        raise _refusal(library, f"it defines {min(taken)}, which every patch module has")
    if not changed:
        raise _refusal(library, "it changes no class and no function")
    blocks = [after.lines(one) for one in helpers]
    for name in changed:
        old, new = before.find(name), after.find(name)
        if isinstance(old, ast.ClassDef) and isinstance(new, ast.ClassDef):
            blocks.append(_class(library, after, old, new, name))
        else:
            blocks.append(after.lines(new))
    text = _assemble(library, (before, after), blocks, changed)
    if not _is_same(rewrite_class(original, text), after, [*changed, *_bound_directly(helpers)]):
        raise _refusal(library, "it changes more than methods and functions")
    return text


def _find_helpers(before: _PatchText, after: _PatchText, changed: Sequence[str]) -> list[ast.stmt]:
    """Statements of the module that the rewrite adds, other than imports."""
    return [
        one
        for one in after.tree.body
        if not before.holds(one) and not _binds(one) & set(changed) and not _is_import(one)
    ]


def _bound_directly(statements: Iterable[ast.stmt]) -> set[str]:
    return {name for one in statements for name in _binds(one)}


def _assemble(
    library: PatchedLibrary,
    texts: tuple[_PatchText, _PatchText],
    blocks: Sequence[str],
    changed: Sequence[str],
) -> str:
    """``texts``: the library's file before and after the rewrite."""
    before, after = texts
    body = "\n\n\n".join(block.strip("\n") for block in blocks)
    own = set(_defined_names(parsing.parse_text(body)))
    used = sorted(_used_names(body, lazy=after.is_lazy) & set(after.bound) - own)
    copied, imported = [], []
    for name in used:
        statement = after.imported(name)
        if statement is not None:
            copied.append(statement)
        elif name in before.bound:
            imported.append(name)
    names = ", ".join(f'"{name}"' for name in changed)
    given = [f'"{library.module}"', f'sha256="{library.sha256}"']
    if library.package and library.version:
        given += [f'package="{library.package}"', f'version="{library.version}"']
    head = [
        f'"""Verified rewrites of {library.words}: what stands here takes the place of the',
        "library's own, once kernel_lsp_patches.apply() is called. Written by kernel-lsp.",
        "",
        f"`kernel-lsp patches remove {library.module}` removes it.",
        '"""',
        "",
        *(["from __future__ import annotations", ""] if after.is_lazy else []),
        *sorted(dict.fromkeys(copied)),
        *([""] if copied else []),
        "from . import Library",
        "",
        "LIBRARY = Library(",
        *(f"    {one}," for one in given),
        ")",
        *(["", f"from {library.module} import (  # noqa: E402"] if imported else []),
        *(f"    {name}," for name in imported),
        *([")"] if imported else []),
    ]
    tail = [
        "def apply() -> tuple:",
        '    """Patch the library in this process; the names of what is patched."""',
        f"    return LIBRARY.patch(globals(), ({names},))",
    ]
    return "\n".join(head) + "\n\n\n" + body + "\n\n\n" + "\n".join(tail) + "\n"


def _class(
    library: PatchedLibrary, after: _PatchText, old: ast.ClassDef, new: ast.ClassDef, qualname: str
) -> str:
    """A class with the statements of its body that are others now."""
    if _class_head(old) != _class_head(new):
        raise _refusal(library, f"it changes the bases or decorators of {qualname}")
    known = {ast.dump(one) for one in old.body}
    changed = [one for one in new.body if ast.dump(one) not in known]
    kept = _bound_directly(new.body)
    if missing := [name for one in old.body for name in _binds(one) if name not in kept]:
        raise _refusal(library, f"it removes {qualname}.{missing[0]}")
    inner = {one.name: one for one in old.body if isinstance(one, ast.ClassDef)}
    attributes = _bound_directly(old.body)
    parts = []
    for one in changed:
        if isinstance(one, ast.ClassDef) and one.name in inner:
            nested = _class(library, after, inner[one.name], one, f"{qualname}.{one.name}")
            parts.append(_indent_lines(nested))
            continue
        if local := attributes & _at_definition(one):
            raise _refusal(
                library, f"{qualname} uses its own {min(local)} where a method is defined"
            )
        parts.append(_indent(after.lines(one), "    "))
    title = f'    """What takes the place of parts of {library.module}.{qualname}."""'
    return f"class {new.name}:\n{title}\n\n" + "\n\n".join(parts)


def _indent_lines(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def _class_head(node: ast.ClassDef) -> tuple[str, list[str]]:
    """Bases and decorators, to be compared."""
    return ast.dump(ast.Tuple(node.bases)), [ast.dump(one) for one in node.decorator_list]


def _refusal(library: PatchedLibrary, why: str) -> PatchError:
    return PatchError(
        f"the rewrite of {library.module} cannot be a patch: {why}",
        "it is reported, and no file is written",
    )


# --- reading --------------------------------------------------------------------------------------


def read(text: str) -> Patch | None:
    """The patch that a module's text holds; None for a file that is no patch module."""
    try:
        tree = parsing.parse_text(text)
        call = next(
            one.value
            for one in tree.body
            if isinstance(one, ast.Assign) and _binds(one) == {"LIBRARY"}
        )
        apply = next(
            one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "apply"
        )
        returned = apply.body[-1]
        assert isinstance(call, ast.Call) and isinstance(returned, ast.Return)
        assert isinstance(returned.value, ast.Call)
        given = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        names = tuple(map(str, ast.literal_eval(returned.value.args[1])))
        return Patch(
            library=PatchedLibrary(module=str(ast.literal_eval(call.args[0])), **given), names=names
        )
    except (
        SyntaxError,
        ValueError,
        StopIteration,
        AssertionError,
        TypeError,
        IndexError,
        RecursionError,
    ):
        return None


def rewrite_class(original: str, patch: str) -> str:
    """The library's file with what the patch module holds. Raises PatchError."""
    known = read(patch)
    if known is None:
        raise PatchError(
            "the file is no patch module", "restore it, or remove it with kernel-lsp patches"
        )
    made = _PatchText(patch)
    own = {"LIBRARY", "apply"}
    imports = [
        ast.unparse(one)
        for one in made.tree.body
        if isinstance(one, ast.Import | ast.ImportFrom) and not _is_ours(one, known.library)
    ]
    helpers = [one for one in made.tree.body if _binds(one) and not _is_import(one)]
    helpers = [one for one in helpers if not _binds(one) & {*own, *known.names}]
    definitions = "\n\n\n".join(made.lines(one).strip("\n") for one in helpers)
    text = original
    for name in known.names:
        file, part = _PatchText(text), made.find(name)
        try:
            there = file.find(name)
        except KeyError as error:
            raise PatchError(
                f"the library has no {name}", "remove the patch, and optimize again"
            ) from error
        new = _fill(file, there, made, part) if isinstance(part, ast.ClassDef) else made.lines(part)
        change = SourceEdit(
            qualname=name, imports=tuple(imports), definitions=definitions, target=new
        )
        try:
            text = edit.apply_edit(text, file.span(there), change)
        except RewriteError as error:
            raise PatchError(
                f"the patch of {name} fits no longer: {error}", "optimize it again"
            ) from error
    return text


def without(text: str, names: Iterable[str]) -> str | None:
    """A patch module without these classes and functions of the library; None: nothing is left of
    it."""
    known = read(text)
    if known is None:
        return None
    left = [name for name in known.names if name not in set(names)]
    if not left:
        return None
    made = _PatchText(text)
    gone = [made.find(name) for name in known.names if name not in left]
    lines = text.split("\n")
    for one in sorted(gone, key=lambda node: -node.lineno):
        lines[_first(one) - 1 : one.end_lineno] = []
    text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines))
    old, new = (", ".join(f'"{name}"' for name in some) for some in (known.names, left))
    return text.replace(f"({old},))", f"({new},))")


def _fill(file: _PatchText, there: Definition, made: _PatchText, part: ast.ClassDef) -> str:
    """The library's class, dedented, with the statements of the patch's."""
    if not isinstance(there, ast.ClassDef):
        raise PatchError(
            f"{there.name} is no class any more", "remove the patch, and optimize again"
        )
    first = _first(there)
    lines = file.text_lines(first, _last(there))
    inside = " " * there.body[0].col_offset
    bound = {name: one for one in there.body for name in _binds(one)}
    changes: list[tuple[int, int, str]] = []
    new: list[str] = []
    for one in part.body:
        if _is_docstring(one):
            continue
        old = next((bound[name] for name in _binds(one) if name in bound), None)
        if old is not None and isinstance(one, ast.ClassDef):
            block = _indent(_fill(file, old, made, one), inside)  # type: ignore[arg-type]
        else:
            block = _indent(made.lines(one), inside)
        if old is None:
            new.append(block.strip("\n"))
            continue
        start, stop = _first(old) - first, _last(old) - first + 1
        changes.append((start, stop, block.strip("\n")))
    if new:
        at = min((start for start, _, _ in changes), default=len(lines))
        changes.append((at, at, "\n\n".join(new) + "\n"))
    for start, stop, block in sorted(changes, key=lambda change: (-change[0], -change[1])):
        lines[start:stop] = block.split("\n")
    return _indent("\n".join(lines), "")


# --- syntax ---------------------------------------------------------------------------------------


class _PatchText:
    """A file's top-level statements and their source."""

    def __init__(self, text: str) -> None:
        self._lines = edit.LINE_END.sub("\n", text).split("\n")
        self._starts = [0, *(match.end() for match in edit.LINE_END.finditer(text))]
        self.tree = parsing.parse_text(text)
        self.definitions = [one.name for one in self.tree.body if isinstance(one, edit.DEFINITIONS)]
        self.bound = dict.fromkeys(_all_bound(self.tree.body))
        self._dumps = {ast.dump(one) for one in self.tree.body}
        self.is_lazy = any(
            isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in self.tree.body
        )

    def find(self, name: str) -> Definition:
        """The last of that name. Raises KeyError."""
        found = [
            one for one in self.tree.body if isinstance(one, edit.DEFINITIONS) and one.name == name
        ]
        if not found:
            raise KeyError(name)
        return found[-1]

    def dump(self, name: str) -> str | None:
        """The syntax tree of a definition as text; None where the module has none of this name."""
        return ast.dump(self.find(name)) if name in self.definitions else None

    def holds(self, statement: ast.stmt) -> bool:
        """Whether the module has this statement at its top."""
        return ast.dump(statement) in self._dumps

    def text_lines(self, first: int, last: int) -> list[str]:
        """Lines `first` to `last`, counted from 1."""
        return self._lines[first - 1 : last]

    def lines(self, node: ast.stmt) -> str:
        """Source of a statement, decorators and comments right above included, as it is
        indented."""
        first = _first(node)
        while first > 1 and self._lines[first - 2].lstrip().startswith("#"):
            first -= 1
        return "\n".join(self.text_lines(first, node.end_lineno or node.lineno))

    def span(self, node: Definition) -> Span:
        """Where a definition lies in the text, its decorators and last line end included."""
        first, last = _first(node), _last(node)
        return Span(start=self._starts[first - 1] + node.col_offset, end=self._starts[last - 1] + 1)

    def imported(self, name: str) -> str | None:
        """The plain import at the top of the file that binds a name, by itself; None: there is
        none."""
        for one in self.tree.body:
            if isinstance(one, ast.Import | ast.ImportFrom) and getattr(one, "level", 0) == 0:
                for alias in one.names:
                    if name == (alias.asname or alias.name.partition(".")[0]):
                        single = (
                            ast.Import(names=[alias])
                            if isinstance(one, ast.Import)
                            else ast.ImportFrom(module=one.module, names=[alias], level=0)
                        )
                        return ast.unparse(single)
        return None


def _all_bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that the module's own statements bind, those within if, try and with included."""
    for one in body:
        yield from sorted(_binds(one))
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(one, edit.DEFINITIONS):
                yield from _all_bound(getattr(one, part, ()))
        for handler in getattr(one, "handlers", ()):
            yield from _all_bound(handler.body)


def _binds(node: ast.AST) -> set[str]:
    if isinstance(node, edit.DEFINITIONS):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def _defined_names(tree: ast.Module) -> Iterator[str]:
    for one in tree.body:
        yield from _binds(one)


def _used_names(text: str, *, lazy: bool) -> set[str]:
    """Names that are read, annotations left out where they are never looked at."""
    tree = parsing.parse_text(text)
    left_out: set[ast.AST] = set()
    if lazy:
        for node in ast.walk(tree):
            for part in ("annotation", "returns"):
                if (annotation := getattr(node, part, None)) is not None:
                    left_out.update(ast.walk(annotation))
    names = (one for one in ast.walk(tree) if isinstance(one, ast.Name) and one not in left_out)
    return {one.id for one in names} - set(dir(builtins))


def _at_definition(node: ast.stmt) -> set[str]:
    """Names that are looked up when a method is defined: in decorators and defaults."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _used_names(ast.unparse(node), lazy=True)
    parts = [
        *node.decorator_list,
        *node.args.defaults,
        *(one for one in node.args.kw_defaults if one),
    ]
    return {one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)}


def _last(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_ours(node: ast.Import | ast.ImportFrom, library: PatchedLibrary) -> bool:
    """Whether a patch module has an import for being one."""
    return isinstance(node, ast.ImportFrom) and (
        node.level > 0 or node.module in ("__future__", library.module)
    )


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _first(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _indent(block: str, indent: str) -> str:
    """The block with its first line at this depth; lines of a string that stand further left
    stay."""
    lines = block.strip("\n").split("\n")
    old = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    if old == indent:
        return "\n".join(lines)
    return "\n".join(
        indent + line[len(old) :] if line.strip() and line.startswith(old) else line
        for line in lines
    )


def _is_same(text: str, after: _PatchText, names: Iterable[str]) -> bool:
    """Whether a text holds these definitions as the edited one does, in whatever order."""
    mine = _PatchText(text)

    def dump_definitions(file: _PatchText, name: str) -> list[str]:
        found = [one for one in file.tree.body if name in _binds(one)]
        return [
            repr((ast.dump(ast.Tuple(one.bases)), sorted(map(ast.dump, one.body))))
            if isinstance(one, ast.ClassDef)
            else ast.dump(one)
            for one in found
        ]

    return all(dump_definitions(mine, name) == dump_definitions(after, name) for name in names)
