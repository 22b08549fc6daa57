"""Sizes that a launcher unpacks, ``rows, columns = x.shape``, are the sizes that it would index.

Every annotated case of a rule for kernels is written anew with unpacked sizes: nothing more and
nothing less may be found in it."""

import ast
from pathlib import Path

import pytest

from kernel_lsp.analysis import analyze
from kernel_lsp.records import Snapshot

CASES = sorted((Path(__file__).parents[2] / "cases").glob("KL2*.py"))


class _Unpacked(ast.NodeTransformer):
    """``x.shape[1]`` and ``x.size(1)`` of a parameter as a name that the function unpacks first."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self.used: dict[str, dict[int, str]] = {}
        self.count = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.decorator_list:
            return node
        kept = self.known, self.used
        stored = {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        self.known = [a.arg for a in node.args.args if a.arg not in stored]
        self.used = {}
        node.body = [self.visit(statement) for statement in node.body]
        node.body = [self._unpacking(x, names) for x, names in self.used.items()] + node.body
        self.known, self.used = kept
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=x), attr="shape"), ctx=ast.Load()
            ):
                return self._name(x, node.slice) or node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=x), attr="size"), args=[index]):
                return self._name(x, index) or node
        return self.generic_visit(node)

    def _name(self, x: str, index: ast.expr) -> ast.expr | None:
        try:
            number = ast.literal_eval(index)
        except ValueError:
            return None
        if x not in self.known or not isinstance(number, int):
            return None
        self.count += 1
        name = self.used.setdefault(x, {}).setdefault(number, f"{x}_{number}".replace("-", "last"))
        return ast.Name(name, ast.Load())

    @staticmethod
    def _unpacking(x: str, names: dict[int, str]) -> ast.stmt:
        front = [names.get(i, "_") for i in range(max(names) + 1)]
        back = [names.get(i, "_") for i in range(min([*names, 0]), 0)]
        return ast.parse(f"({', '.join([*front, f'*{x}_others', *back])},) = {x}.shape").body[0]


def found(text: str) -> list[tuple[str, str]]:
    """(rule, definition that the finding is in)."""
    tree = ast.parse(text)
    lines = {
        line: node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    hits = analyze(Snapshot(uri="case.py", text=text)).findings
    return sorted((f.rule, lines.get(text.count("\n", 0, f.span.start) + 1, "")) for f in hits)


def unpacked(text: str) -> tuple[str, int]:
    transformer = _Unpacked()
    tree = ast.fix_missing_locations(transformer.visit(ast.parse(text)))
    return ast.unparse(tree), transformer.count


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_unpacked_sizes_are_seen_by_every_rule(path: Path) -> None:
    before = ast.unparse(ast.parse(path.read_text()))
    after, count = unpacked(before)
    if not count:
        pytest.skip("no size is indexed here")
    assert found(after) == found(before)


def test_enough_cases_index_a_size() -> None:
    assert sum(bool(unpacked(path.read_text())[1]) for path in CASES) >= 10
