"""KL320: attention as products and a softmax, where one operation does it without the matrix of
weights."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit, self_attribute
from kernel_lsp.analysis.rules.torchops import dimension, is_matmul, operation
from kernel_lsp.analysis.source import DefinitionNode, FunctionNode, blocks, walk, words
from kernel_lsp.records import TargetKind

AttentionStage = Literal["scores", "weights"]

# The file has the fast operation already; what is written out stands in for it.
_CHOSEN = re.compile(
    r"scaled_dot_product|flex_attention|flash|xformers|memory_efficient_attention|temperature"
)
# Batched ones: ``x.t()`` is of a matrix, and no attention over a sequence.
_TURNS = words("transpose permute mT swapaxes")
# Of scores and of weights alike; of scores also what masks them.
_CASTS = words("float to type type_as contiguous half")
_MASKS = words("masked_fill masked_fill_ where add add_ mul mul_ div div_ sub clamp")


def _check(site: RuleSite) -> Iterator[Hit]:
    # With a learned temperature it is mostly attention between channels: heads as long as the
    # input.
    if "softmax" not in site.called_names or _CHOSEN.search(site.file.text):
        return
    for function in site.functions:
        found = _AttentionReader(site, function).read()
        if found is not None:
            yield hit(
                found,
                "attention is written out: scores and weights go through memory, of the "
                "sequence's length "
                "squared; F.scaled_dot_product_attention keeps them on the chip",
            )


class _AttentionReader:
    """Which names hold scores (q @ k.T) or weights (their softmax), in the order of the
    statements."""

    def __init__(self, site: RuleSite, function: FunctionNode) -> None:
        self._site = site
        self._function = function
        self._states: dict[str, AttentionStage] = {}
        self._weights: set[str] = set()
        self._taken: Counter[str] = Counter()
        self._softmax: ast.Call | None = None
        self._is_attention = False
        self._is_changed = False

    def read(self) -> ast.Call | None:
        """The softmax; None when there is no attention here, or when something else needs its
        weights."""
        self._block(self._function.body)
        loads = Counter(
            n.id
            for n in walk(self._function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        )
        is_private = all(loads[name] == self._taken[name] for name in self._weights)
        return self._softmax if self._is_attention and is_private and not self._is_changed else None

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, DefinitionNode):
                continue
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._bind(name, value)
                case ast.AugAssign(target=ast.Name(id=name)) if self._states.get(name) == "scores":
                    pass
                case (
                    ast.Return(value=ast.expr() as value)
                    | ast.Expr(value=value)
                    | ast.Assign(value=value)
                ):
                    self._products(value)
            for block in blocks(statement):
                self._block(block)

    def _bind(self, name: str, value: ast.expr) -> None:
        state = self._state(value)
        if state is None:
            self._products(value)
            self._states.pop(name, None)
            return
        self._states[name] = state
        if state == "weights":
            self._weights.add(name)

    def _products(self, value: ast.expr) -> None:
        """Products of weights with something, anywhere in the expression."""
        for node in walk(value):
            operands = is_matmul(self._site, node) if isinstance(node, ast.expr) else None
            if operands is not None and self._state(operands[0]) == "weights":
                self._is_attention = True

    def _state(self, node: ast.expr) -> AttentionStage | None:
        match node:
            case ast.Name(id=name):
                state = self._states.get(name)
                self._taken[name] += state is not None
                return state
            case ast.BinOp(
                op=ast.Mult() | ast.Div() | ast.Add() | ast.Sub(), left=left, right=right
            ):
                return self._combined(left, right)
            case ast.Call():
                return self._call(node)
        return "scores" if self._is_scores(node) else None

    def _call(self, node: ast.Call) -> AttentionStage | None:
        if self._is_scores(node):
            return "scores"
        if "drop" in (self_attribute(node.func) or "") and node.args:
            return self._state(node.args[0])
        called = operation(self._site, node)
        if called is None:
            return None
        name, tensor, rest = called
        if (
            name == "softmax"
            and self._state(tensor) == "scores"
            and dimension(node, rest) in (-1, 3)
        ):
            self._softmax = node
            return "weights"
        if name in _CASTS or name in ("dropout", "dropout_"):
            return self._state(tensor)
        if name in _MASKS:
            return self._combined(tensor, *rest)
        return None

    def _combined(self, *parts: ast.expr) -> AttentionStage | None:
        """Scores stay scores; weights that are changed are no attention's any more."""
        states = [self._state(part) for part in parts]
        self._is_changed |= "weights" in states
        return "scores" if "scores" in states else None

    def _is_scores(self, node: ast.expr) -> bool:
        """``q @ k.transpose(-2, -1)``."""
        operands = is_matmul(self._site, node)
        return operands is not None and _is_turned(operands[1])


def _is_turned(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _TURNS
    return isinstance(node, ast.Attribute) and node.attr in _TURNS


KL320 = Rule(
    id="KL320",
    name="attention-written-out",
    summary="attention is written out as products and a softmax",
    severity="hint",
    kinds=frozenset({TargetKind.MODULE, TargetKind.FUNCTION}),
    check=_check,
)
