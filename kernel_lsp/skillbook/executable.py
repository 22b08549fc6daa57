"""rewrite.py: whether an executable skill has the four parts the rewrite engine calls. Reads,
never runs.

    def match(graph): ...                        -> list[Match]
    def preconditions(graph, match): ...         -> list[Proof]
    parameters = {"BLOCK_SIZE": [1024, 512]}     name -> choices, default first; or a function
    def apply(graph, match, parameters): ...     -> None

Each may also be imported: from kernel_lsp.rewrite.codegen.pooling.fuse import apply.
Not covered: whether they are right. The engine reports what they raise; the evaluator judges what
they make."""

from __future__ import annotations

import ast
import functools
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from kernel_lsp import foreign, parsing

MAX_BYTES = 1024**2
"""Of a file of a skill: the longest of ours has 40 kB."""

FUNCTIONS = {"match": 1, "preconditions": 2, "apply": 3}
"""Name -> number of positional arguments the engine passes."""
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""Fields of a statement (or of what belongs to one) that hold statements."""

FieldProblem = tuple[str, str, str]
"""Field, cause, remedy."""


def check(path: Path) -> tuple[FieldProblem, ...]:
    """What is wrong with a rewrite.py."""
    try:
        return _check(foreign.read_bytes(path, most=MAX_BYTES), str(path))
    except OSError as error:
        return (("file", f"cannot be read: {error.strerror}", "check the file's permissions"),)


@functools.lru_cache(maxsize=512)  # a library is read anew for each job, and seldom another one
def _check(source: bytes, filename: str) -> tuple[FieldProblem, ...]:
    try:
        tree = parsing.parse(source, filename=filename)
    except SyntaxError as error:
        return ((f"line {error.lineno}", f"does not compile: {error.msg}", "correct the syntax"),)
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; absurd nesting
        return (("file", f"does not compile: {error}", "save it as plain Python source"),)
    return (*_check_functions(tree), *_check_parameters(tree), *_check_imports(tree))


def _check_functions(tree: ast.Module) -> list[FieldProblem]:
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    imported = _imported_names(tree)
    found: list[FieldProblem] = []
    for name, count in FUNCTIONS.items():
        arguments = ("graph", "match", "parameters")[:count]
        remedy = f"define `def {name}({', '.join(arguments)})` at the top level"
        if name in imported:  # a function of the rewrite engine's as it is
            continue
        if name not in defined:
            found.append((name, "not defined", remedy))
        elif not _accepts(defined[name].args, count):
            found.append((name, f"cannot be called with {count} positional arguments", remedy))
    return found


def _accepts(arguments: ast.arguments, count: int) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args)
    required = positional - len(arguments.defaults)
    named = sum(default is None for default in arguments.kw_defaults)
    return (
        required <= count and named == 0 and (positional >= count or arguments.vararg is not None)
    )


def _check_parameters(tree: ast.Module) -> list[FieldProblem]:
    if "parameters" in _top_level_names(tree) | _imported_names(tree):
        return []
    return [
        ("parameters", "not defined", "write `parameters = {}` when there is nothing to choose")
    ]


def _top_level_names(tree: ast.Module) -> set[str]:
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    targets: list[ast.expr] = []
    for node in tree.body:
        targets += node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, ast.AnnAssign) and node.value else []
    return functions | {target.id for target in targets if isinstance(target, ast.Name)}


def _imported_names(tree: ast.Module) -> set[str]:
    """The names that ``from … import …`` binds at the top level."""
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def _check_imports(tree: ast.Module) -> list[FieldProblem]:
    """Only the rewrite engine: it is the part of kernel-lsp that exists in the project's
    interpreter."""
    found: list[FieldProblem] = []
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        else:
            continue
        remedy = "import from kernel_lsp.rewrite only"
        found += [
            (f"line {node.lineno}", f"imports {name}", remedy) for name in names if _foreign(name)
        ]
    return found


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All of them, outer ones first: a twentieth of the nodes, and no import is anywhere else."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for block in BLOCKS:
            waiting += getattr(node, block, ())


def _foreign(name: str) -> bool:
    ours = name.startswith(".") or name.split(".")[0] == "kernel_lsp"
    return ours and not f"{name}.".startswith("kernel_lsp.rewrite.")
