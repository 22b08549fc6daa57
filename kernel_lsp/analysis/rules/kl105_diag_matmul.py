"""KL105: a product with a diagonal matrix, computed as a full matrix product."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.rules.flow import LocalFacts
from kernel_lsp.analysis.rules.torchops import is_matmul, operation
from kernel_lsp.analysis.source import children
from kernel_lsp.records import TargetKind


class _DiagMatmulFinder:
    def __init__(self, site: RuleSite) -> None:
        self.site = site
        self.hits: dict[ast.expr, str] = {}

    def evaluate(self, node: ast.expr, env: dict[str, bool]) -> bool | None:
        """True for an expression that is a diagonal matrix."""
        if isinstance(node, ast.Name):
            return env.get(node.id)
        operands = is_matmul(self.site, node)
        for side, operand in zip(("left", "right"), operands or (), strict=False):
            if self.evaluate(operand, env):
                self.hits[node] = side
        if operands is None:
            for child in children(node):
                if isinstance(child, ast.expr):
                    self.evaluate(child, env)
        return self._is_diagonal(node) or None

    def _is_diagonal(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call) or len(node.args) > 2 or node.keywords:
            return False
        called = operation(self.site, node)
        if called is None or called[0] not in ("diag", "diag_embed") or called[2]:
            return False
        # diag of a product is the diagonal of a matrix, a vector.
        return called[0] == "diag_embed" or is_matmul(self.site, called[1]) is None


def _check(site: RuleSite) -> Iterator[Hit]:
    if not site.called_names & {"diag", "diag_embed"}:
        return
    for function in site.functions:
        finder = _DiagMatmulFinder(site)
        LocalFacts(finder.evaluate).run(function)
        for node, side in finder.hits.items():
            scaled = "rows: a[:, None] * b" if side == "left" else "columns: b * a"
            yield hit(
                node,
                f"a product with a diagonal matrix only scales {scaled} does the same without "
                f"n² zeros",
                side=side,
            )


KL105 = Rule(
    id="KL105",
    name="diag-matmul",
    summary="torch.diag(a) @ b instead of a[:, None] * b",
    severity="hint",
    kinds=frozenset({TargetKind.MODULE, TargetKind.FUNCTION}),
    check=_check,
)
