"""A module text that a model wrote, taken apart: the target, new definitions beside it, imports.

What the program has already and the model repeats is passed over when it is the same, and refused
when it is not: nothing outside the target changes its meaning, also in the rest of the user's file
(`clash`). Callers of the target rely on its kind, its signatures and its public methods, so these
stay. Not covered: whether the code is right, fast or hostile (the gate)."""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp import parsing
from kernel_lsp.analysis.names import bound_names
from kernel_lsp.analysis.source import DefinitionNode, definitions
from kernel_lsp.analysis.targets import INPUT_MAKERS
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Program, SourceEdit, TargetKind

OTHER_NAME = "ModelNew"
"""What models that know kernel benchmarks call the class that replaces the target."""


def edit_of(text: str, program: Program) -> SourceEdit:
    """What this text makes of the program's target. Raises RewriteError."""
    return _Module(text, program).edit()


@dataclass
class _Module:
    """The text of a region, taken apart."""

    text: str
    program: Program
    imports: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.program.entry.rpartition(".")[2]
        self.outside = _outside(self.program)
        self.original = definition_of(self.program.source, self.program.entry)
        self.lines = self.text.split("\n")

    def edit(self) -> SourceEdit:
        """The target replaced and all else that is new put beside it. Raises RewriteError where two
        statements share a line."""
        body = _parse(self.text)
        target = self._chosen(body)
        above = 0
        for node in body:
            if lines_of(node)[0] <= above:
                raise RewriteError(
                    f"line {above} holds two statements", "one a line at the top level"
                )
            if node is not target:
                self._beside(above, node)
            above = node.end_lineno or node.lineno
        first, last = lines_of(target)
        parts = [*self.definitions, "\n".join(self.lines[first - 1 : last])]
        if target.name != self.name:
            parts = [re.sub(rf"\b{OTHER_NAME}\b", self.name, part) for part in parts]
        _check(definition_of(parts[-1], self.name), self.original)
        return SourceEdit(
            qualname=self.program.entry,
            imports=tuple(dict.fromkeys(self.imports)),
            definitions="\n\n\n".join(parts[:-1]),
            target=parts[-1],
        )

    def _chosen(self, body: Sequence[ast.stmt]) -> DefinitionNode:
        """The one definition that replaces the target."""
        own = [node for node in body if isinstance(node, DefinitionNode) and node.name == self.name]
        other = self._other_model(body)
        if other and self.name != OTHER_NAME:
            original = _same(self.original)  # repeated beside its replacement
            own = [node for node in own if _same(node) != original]
            if any(isinstance(n, ast.Name) and n.id == self.name for n in ast.walk(other[0])):
                cause = f"{OTHER_NAME} is made from {self.name}, which it replaces"
                raise RewriteError(cause, f"write {self.name} whole")
        found = own + other
        if not found:
            raise RewriteError(
                f"the code does not define {self.name}", f"give the whole {self._kind} {self.name}"
            )
        if len(found) > 1:
            raise RewriteError(f"the code defines {self.name} twice", "define it once")
        return found[0]

    def _other_model(self, body: Sequence[ast.stmt]) -> list[DefinitionNode]:
        """Classes of the name that replies give a replacement, where it is not taken."""
        if self.program.kind is not TargetKind.MODULE or OTHER_NAME in self.outside:
            return []
        return [node for node in body if isinstance(node, ast.ClassDef) and node.name == OTHER_NAME]

    @property
    def _kind(self) -> str:
        return "class" if self.program.kind is TargetKind.MODULE else "function"

    def _beside(self, above: int, node: ast.stmt) -> None:
        """Imports and new definitions are taken, what the program has already is passed over.

        ``above``: the last line of the statement before it.
        """
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._take_import(node)
        elif _harmless(node):
            return
        elif names := _names(node):
            if self.name in names:  # the original, repeated beside its replacement
                return
            known = [name for name in names if name in self.outside]
            if not known:
                self.definitions.append(_with_comments(self.lines, above, node))
            elif _same(node) not in self.outside[known[0]]:
                raise RewriteError(
                    f"{known[0]} stands outside the markers and cannot change",
                    "give yours another name",
                )
        else:
            raise RewriteError(
                f"line {node.lineno} runs code when the file is imported",
                "only imports, functions, classes and constants stand at the top level",
            )

    def _take_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            if _same(node) in self.outside.get("annotations", ()):
                return
            raise RewriteError(
                f"line {node.lineno} changes how the whole file is read", "leave it out"
            )
        if isinstance(node, ast.ImportFrom) and (node.level or node.names[0].name == "*"):
            raise RewriteError(
                f"line {node.lineno} imports what cannot be followed", "import names from a module"
            )
        self.imports += fresh_imports(
            [ast.unparse(one) for one in _single_imports(node)], self.program
        )


def clash(edit: SourceEdit, text: str) -> str | None:
    """A name to which the edit would give another meaning in the rest of a file; None: there is
    none.

    Definitions whose names the file defines itself get other names (`rewrite.edit`); what it
    imports, and what is built in, is nobody's to define anew."""
    body = _parse(text.removeprefix("\ufeff"))
    taken = dict(_imported_names(body))
    bound = {name for node in body for name in bound_names(node)}
    defined = {name for node in body for name in _names(node)}
    for name, meaning in _imported_names(_parse("\n".join(edit.imports))):
        if taken.get(name) != meaning and (name in bound or hasattr(builtins, name)):
            return name
    fresh = [name for node in _parse(edit.definitions) for name in bound_names(node)]
    return next(
        (n for n in fresh if n in bound - defined or hasattr(builtins, n) or _is_magic(n)), None
    )


def _is_magic(name: str) -> bool:
    """``__getattr__``, ``__all__`` …: what it means to others is for its owner to say."""
    return name.startswith("__") and name.endswith("__")


def strip_unused(edit: SourceEdit, judged: str) -> SourceEdit:
    """The edit without the definitions and imports that do not occur in ``judged``, the program
    that the gate runs.

    They would run in the user's file, unseen, when it is imported."""
    bound = {name for node in _parse(judged) for name in bound_names(node)}
    lines, body = edit.definitions.split("\n"), _parse(edit.definitions)
    kept = [
        _with_comments(lines, body[place - 1].end_lineno or 0 if place else 0, node)
        for place, node in enumerate(body)
        if bound_names(node) & bound
    ]
    imports = (
        line for line in edit.imports if {name for name, _ in _imported_names(_parse(line))} & bound
    )
    return replace(edit, imports=tuple(imports), definitions="\n\n\n".join(kept))


def find_unjudged(before: str, after: str, judged: str) -> str | None:
    """The first statement that a file has got and that ``judged`` does not hold; None: all is
    judged."""
    known = {
        _same(node) for text in (before.removeprefix("\ufeff"), judged) for node in _parse(text)
    }
    new = (node for node in _parse(after.removeprefix("\ufeff")) if _same(node) not in known)
    return next((ast.unparse(node).partition("\n")[0] for node in new), None)


def fresh_imports(imports: Sequence[str], program: Program) -> list[str]:
    """The imports that the program does not have."""
    known = set(_imported_names(_parse(program.source)))
    return [line for line in imports if _is_fresh(line, known)]


def _is_fresh(line: str, known: set[tuple[str, str]]) -> bool:
    if line.startswith("import ") and "." in line and " as " not in line:
        return True  # `import a.b` binds a, which may be known, and loads b
    return not set(_imported_names(_parse(line))) <= known


def same(one: str, other: str) -> bool:
    """Whether two module texts differ in layout and comments alone."""
    return list(map(_same, _parse(one))) == list(map(_same, _parse(other)))


def _imported_names(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """(name, what it means): ``import a.b as f`` and ``from a import b as f`` mean the same."""
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield (
                    alias.asname or alias.name,
                    f"{'.' * node.level}{node.module or ''}.{alias.name}",
                )


def _single_imports(node: ast.Import | ast.ImportFrom) -> Iterator[ast.stmt]:
    """One name each, so that one that the file has already is not imported again."""
    for alias in node.names:
        one = copy.copy(node)
        one.names = [alias]
        yield one


def _outside(program: Program) -> dict[str, set[str]]:
    """Top-level names of the program that are not the target -> what binds them, as trees."""
    found: dict[str, set[str]] = {}
    for node in _parse(program.source):
        for name in bound_names(node):
            found.setdefault(name, set()).add(_same(node))
    if "." not in program.entry:
        found.pop(program.entry, None)
    return found


def _names(node: ast.stmt) -> list[str]:
    """What a definition or a plain assignment binds; nothing for any other statement."""
    if isinstance(node, DefinitionNode):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if len(names) == len(targets) else []


def _harmless(node: ast.stmt) -> bool:
    """What never takes part: docstrings, input makers (they stay as they are), a guarded main."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.FunctionDef):
        return node.name in INPUT_MAKERS
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    )


def _check(new: DefinitionNode, old: DefinitionNode) -> None:
    """What callers of the target rely on. Raises RewriteError."""
    if isinstance(new, ast.ClassDef) != isinstance(old, ast.ClassDef):
        kind = "class" if isinstance(old, ast.ClassDef) else "function"
        raise RewriteError(f"{old.name} is no {kind} any more", f"keep it a {kind}")
    if _same(new) == _same(old):
        raise RewriteError(
            f"{old.name} is the original, unchanged", "rewrite what its calls compute"
        )
    before, after = _functions(old), _functions(new)
    if gone := [
        name for name in before if name not in after and (name == "forward" or name[0] != "_")
    ]:
        raise RewriteError(
            f"{old.name} has lost {gone[0]}()", "keep every method that others may call"
        )
    for name in before.keys() & after.keys():
        if name in ("__init__", "forward", "__call__", old.name):
            have, want = _signature(after[name]), _signature(before[name])
            if have != want:
                raise RewriteError(
                    f"the signature of {name} is ({have})", f"keep it as it is: ({want})"
                )


def _functions(node: DefinitionNode) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    own = node.body if isinstance(node, ast.ClassDef) else [node]
    return {
        item.name: item for item in own if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Without annotations."""
    arguments = copy.deepcopy(function.args)
    for node in ast.walk(arguments):
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(arguments)


# --- text ----------------------------------------------------------------------------------


def _parse(text: str) -> list[ast.stmt]:
    try:
        return parsing.parse(text).body
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise RewriteError(
            f"the code does not parse: line {error.lineno}: {error.msg}",
            f"correct {line!r}" if line else "correct it",
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise RewriteError(f"the code does not parse: {error}", "write it more simply") from error


def definition_of(text: str, qualname: str) -> DefinitionNode:
    """The last definition of this name. Raises RewriteError."""
    found = [node for name, node in definitions(_parse(text)) if name == qualname]
    if not found:
        raise RewriteError(f"{qualname} is no longer in the program", "analyze the file again")
    return found[-1]


def _with_comments(lines: Sequence[str], above: int, node: ast.stmt) -> str:
    """Its lines, and the comments between it and line ``above``."""
    first, last = lines_of(node)
    comments = [line for line in lines[above : first - 1] if line.startswith("#")]
    return "\n".join([*comments, *lines[first - 1 : last]])


def lines_of(node: ast.stmt) -> tuple[int, int]:
    """First line, decorators included, and last line, from 1."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)]), node.end_lineno or node.lineno


def _same(node: ast.AST) -> str:
    """Equal for statements that differ in layout and comments alone."""
    return ast.dump(node)
