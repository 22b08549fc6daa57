"""Static guards: what a candidate's source says it will do. Standard library only.

calls.py: imports, names and calls; extensions.py: the one way to native code; patches.py:
assignments to what all share; interface.py: arguments that are gone; names.py: what a name stands
for. It is triage, with a line number for whoever wrote the code: what passes here is still watched
at run time (watch/), and values and clock are judged in other processes. Does not cover: native
code, names that are computed, imports hidden in data."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kernel_lsp import parsing
from kernel_lsp.evaluator.guards import calls, extensions, interface, patches
from kernel_lsp.evaluator.guards.names import ModuleNames


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    """One thing that a candidate has no business doing."""

    line: int
    what: str


def scan(source: str, *, native: bool = False) -> list[Suspicion]:
    """Suspicions in line order; a source that does not parse has none (loading it will say why).

    ``native``: `load_inline` of torch.utils.cpp_extension is none; whatever else that module has,
    is."""
    tree = _parse(source)
    names = ModuleNames(tree)
    fine = extensions.plain_uses(tree, names) if native else frozenset()
    found = {
        (getattr(node, "lineno", 0), what): None
        for node in ast.walk(tree)
        if node not in fine
        for what in (*calls.suspect(node, names), *patches.suspect(node, names))
    }
    return [Suspicion(line=line, what=what) for line, what in sorted(found)]


def compare_interfaces(reference: str, entry: str, candidate: str, other: str) -> list[Suspicion]:
    """Arguments of ``entry`` in ``reference`` that ``other`` in ``candidate`` does not take as it
    should."""
    found = interface.differences(_parse(reference), entry, _parse(candidate), other)
    return [Suspicion(line=line, what=what) for line, what in found]


def _parse(source: str) -> ast.Module:
    try:
        return parsing.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])
