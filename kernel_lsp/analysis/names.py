"""Which module-level names a definition uses, which statements bind them, and what hangs together.

Scopes are settled by Python's own symbol tables, so a local variable never drags in a
module-level statement of the same name. Not covered: names reached through globals(),
getattr or strings, and side effects on a name (``table.append(...)`` at the top level).
"""

from __future__ import annotations

import ast
import builtins
import symtable
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kernel_lsp.analysis.source import (
    BOM,
    DefinitionNode,
    ParsedSource,
    blocks,
    children,
    module_level,
    walk,
)

AMBIENT = frozenset(dir(builtins)) | {
    "__name__",
    "__file__",
    "__doc__",
    "__annotations__",
    "__builtins__",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Closure:
    """Everything of one file that a definition needs, recursively."""

    statements: tuple[int, ...]
    """Indices into the module's body, in order."""
    names: frozenset[str]
    """Every module-level name that is used on the way."""
    missing: tuple[str, ...]


class FileNames:
    """Definitions and uses of one file. Raises SyntaxError where Python's compiler would."""

    def __init__(self, file: ParsedSource) -> None:
        self.file = file
        self._tables = _index_tables(file.text.removeprefix(BOM))
        self.serialized: dict[int, str] = {}
        """Statement id -> its tree as text, filled by the fingerprint."""
        self._used: dict[int, frozenset[str]] = {}
        self._binding: dict[str, list[int]] = defaultdict(list)
        self._has_star = False
        for index, statement in enumerate(file.tree.body):
            if _is_main_guard(statement):
                continue
            for name in bound_names(statement):
                self._binding[name].append(index)
            self._has_star |= _is_star_import(statement)

    def statements_binding(self, name: str) -> tuple[int, ...]:
        """Indices into the module's body, in order; none for a name that the file does not
        define."""
        return tuple(self._binding.get(name, ()))

    def used_by(self, node: ast.stmt) -> frozenset[str]:
        """Module-level names (and builtins) that running or calling the statement needs."""
        known = self._used.get(id(node))
        if known is None:
            known = self._used[id(node)] = frozenset(self._find_used(node))
        return known

    def closure(self, seeds: Iterable[ast.stmt], own: Mapping[str, int]) -> Closure:
        """What the seeds need. ``own`` names (name -> statement index) have that one binding
        only."""
        statements: set[int] = set()
        names: set[str] = set()
        queue = [name for seed in seeds for name in self.used_by(seed)]
        while queue:
            name = queue.pop()
            if name in names:
                continue
            names.add(name)
            for index in [own[name]] if name in own else self._binding.get(name, ()):
                if index not in statements:
                    statements.add(index)
                    queue.extend(self._used_for(index))
        return Closure(
            statements=tuple(sorted(statements)),
            names=frozenset(names),
            missing=self._missing(names),
        )

    def _used_for(self, index: int) -> frozenset[str]:
        statement = self.file.tree.body[index]
        return (
            frozenset()
            if isinstance(statement, ast.Import | ast.ImportFrom)
            else self.used_by(statement)
        )

    def _missing(self, names: set[str]) -> tuple[str, ...]:
        if self._has_star:  # anything may come from there
            return ()
        return tuple(
            sorted(name for name in names if name not in self._binding and name not in AMBIENT)
        )

    def _find_used(self, node: ast.stmt) -> Iterator[str]:
        if isinstance(node, DefinitionNode):
            yield from _loads(_header(node))
            for table in self._tables.get((node.name, node.lineno), ()):
                yield from _globals_of(table)
            return
        nested = [statement for block in blocks(node) for statement in block]
        for statement in nested:
            yield from self.used_by(statement)
        yield from _loads(child for child in _expressions(node))


def bound_names(statement: ast.stmt) -> set[str]:
    """Names that the statement binds in the scope that it stands in."""
    found: set[str] = set()
    for inner in module_level([statement]):
        if isinstance(inner, DefinitionNode):
            found.add(inner.name)
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0] for alias in inner.names}
        else:
            found |= {
                node.id
                for expression in _expressions(inner)
                for node in walk(expression)
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
            }
            found |= {h.name for h in getattr(inner, "handlers", ()) if h.name}
    return found - {"*"}


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Children of a statement that are no statements: targets, values, tests, patterns,
    with-items."""
    for child in children(statement):
        if isinstance(child, ast.ExceptHandler):
            if child.type is not None:
                yield child.type
        elif isinstance(child, ast.match_case):
            yield child.pattern
            if child.guard is not None:
                yield child.guard
        elif not isinstance(child, ast.stmt):
            yield child


def _header(node: DefinitionNode) -> Iterator[ast.AST]:
    """The parts of a definition that are evaluated outside its own scope."""
    yield from node.decorator_list
    if isinstance(node, ast.ClassDef):
        yield from node.bases
        yield from node.keywords
    else:
        yield node.args
        if node.returns is not None:
            yield node.returns
    yield from getattr(node, "type_params", ())


def _loads(nodes: Iterable[ast.AST]) -> set[str]:
    """Names read by expressions, less the variables of their own lambdas and comprehensions."""
    read: set[str] = set()
    own: set[str] = set()
    for root in nodes:
        for node in walk(root):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                read.add(node.id)
            elif isinstance(node, ast.comprehension):
                own |= {n.id for n in walk(node.target) if isinstance(n, ast.Name)}
            elif isinstance(node, ast.Lambda):
                own |= {n.arg for n in walk(node.args) if isinstance(n, ast.arg)}
    return read - own


def _index_tables(text: str) -> dict[tuple[str, int], list[symtable.SymbolTable]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        top = symtable.symtable(text, "<document>", "exec")
    index: dict[tuple[str, int], list[symtable.SymbolTable]] = defaultdict(list)
    queue = list(top.get_children())
    while queue:
        table = queue.pop()
        index[table.get_name(), table.get_lineno()].append(table)
        # Targets nest in classes only; functions are leaves here.
        if table.get_type() != "function":
            queue.extend(table.get_children())
    return index


def _globals_of(table: symtable.SymbolTable) -> Iterator[str]:
    queue = [table]
    while queue:
        current = queue.pop()
        yield from (symbol.get_name() for symbol in current.get_symbols() if symbol.is_global())
        queue.extend(current.get_children())


def _is_star_import(statement: ast.stmt) -> bool:
    return any(
        isinstance(inner, ast.ImportFrom) and inner.names[0].name == "*"
        for inner in module_level([statement])
    )


def _is_main_guard(statement: ast.stmt) -> bool:
    """``if __name__ == "__main__":`` binds nothing that a slice may use."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in walk(statement.test)
    )
