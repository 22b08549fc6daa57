"""Tasks that are a benchmark's in other words: decontamination.

A file is remembered by hashes only (`Mark`): of its tree without names, numbers and inputs, of its
operators in order, and of all runs of a few tokens. Held-out text is read once and never stored or
shown. Not covered: the same mathematics by other operators."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp import parsing
from trainer.tasks.families import structure

GRAM = 6
"""Tokens in a row that count as the same text."""
_APART = {"get_inputs", "get_init_inputs"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What is kept of a file to recognize it: hashes only, so a held-out file's text is never
    stored."""

    digest: str
    """Of the tree without names, numbers, documentation, imports and inputs."""
    ops: tuple[str, ...]
    grams: frozenset[int]


def mark(source: str, entry: str = "Model") -> Mark | None:
    """None: it does not parse."""
    try:
        tree = parsing.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    tokens = list(_tokens(tree))
    found = structure(source, entry)
    grams = (tokens[place : place + GRAM] for place in range(max(1, len(tokens) - GRAM + 1)))
    return Mark(
        digest=hashlib.sha256("\x1f".join(tokens).encode("utf-8", "surrogatepass")).hexdigest(),
        ops=found.ops if found else (),
        grams=frozenset(_number("\x1f".join(gram)) for gram in grams),
    )


class Likeness:
    """Recognizes tasks that repeat one of some files, renamed, resized or rearranged."""

    def __init__(self, marks: Sequence[Mark], overlap: float = 0.9) -> None:
        """``overlap``: the share of a task's `GRAM`-grams in one file from which it counts as that
        file's;
        0.9 is what CUDA Agent allows of its training tasks."""
        self._digests = {one.digest for one in marks}
        self._ops = {one.ops for one in marks if one.ops}
        self._marks, self._overlap = tuple(marks), overlap

    def why(self, source: str, entry: str = "Model") -> str | None:
        """Which likeness was found; None: none was."""
        found = mark(source, entry)
        if found is None:
            return None
        if found.digest in self._digests:
            return "the same program but for names and numbers"
        if found.ops in self._ops:
            return "the same operators in the same order"
        if self.share(found) >= self._overlap:
            return "most of its text"
        return None

    def share(self, found: Mark) -> float:
        """The largest share of its grams that one file has."""
        most = max((len(found.grams & one.grams) for one in self._marks), default=0)
        return most / len(found.grams) if found.grams else 0.0


def _number(text: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    )


def _tokens(tree: ast.Module) -> Iterator[str]:
    """The tree in preorder: own names by first use, attributes of torch as they are, numbers all
    alike."""
    names: dict[str, str] = {}
    for statement in tree.body:
        apart = isinstance(statement, ast.FunctionDef) and statement.name in _APART
        if not apart and not isinstance(statement, ast.Import | ast.ImportFrom):
            yield from _node_tokens(statement, names)


def _node_tokens(root: ast.AST, names: dict[str, str]) -> Iterator[str]:
    stack: list[ast.AST] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.expr_context) or _is_documentation(node):
            continue
        yield _token(node, names)
        stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _token(node: ast.AST, names: dict[str, str]) -> str:
    def own(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}")

    match node:
        case ast.Name(id=name):
            return name if name in ("torch", "nn", "F", "self", "super") else own(name)
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            return "self." + own(attr)
        case ast.Attribute(attr=attr):
            return "." + attr
        case ast.Constant(value=value):
            return repr(value) if isinstance(value, str | bool | None) else "number"
        case ast.arg(arg=name):
            return "arg " + own(name)
        case ast.FunctionDef(name=name):
            return "def " + (name if name in ("__init__", "forward") else own(name))
        case ast.keyword(arg=name):
            return f"{name}="
    return type(node).__name__


def _is_documentation(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
