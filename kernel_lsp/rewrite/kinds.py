"""Under which name the parameters that won at a site are remembered: its kind.

Two sites are of one kind when the same skill, with the same templates and the same choices, meets
the same operations on tensors of the same dtypes, ranks, layouts and sizes up to the next power of
two. Names, numbers and everything about the rest of the program are left out. Not in it: device
and Triton's version (the planner's side adds them, evaluator and engine may be different
interpreters)."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.generated import Match
from kernel_lsp.rewrite.graph import Graph

TEMPLATES = Path(__file__).with_name("codegen")


def kind_of(
    graph: Graph,
    match: Match,
    skill: str,
    parameters: dict[str, list[Any]],
    source: str | None,
) -> str:
    """A hash; "" for a site without parameters."""
    if not parameters:
        return ""
    covered = {node: number for number, node in enumerate(match.nodes) if isinstance(node, fx.Node)}
    nodes = [[str(node.target), *_edges(node, covered), _class(node)] for node in covered]
    entries = [skill, _digest(source), graph.device, sorted(parameters.items()), nodes]
    return hashlib.sha256(json.dumps(entries, default=str).encode()).hexdigest()[:24]


def _edges(node: fx.Node, covered: dict[fx.Node, int]) -> list[Any]:
    """Where its tensors come from: the number of a covered node, or what kind of tensor enters."""
    return [covered[arg] if arg in covered else _class(arg) for arg in node.all_input_nodes]


def _class(node: fx.Node) -> Any:
    """Dtype, order of the strides and sizes of a value, each size as its power of two."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return [_one(item) for item in value]
    return _one(value)


def _one(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    order = sorted(range(value.dim()), key=lambda d: -value.stride(d))
    return [str(value.dtype), [max(0, int(n) - 1).bit_length() for n in value.shape], order]


@functools.cache
def _digest(source: str | None) -> str:
    """Of a skill's own code and the templates it may use: another text is another kind."""
    files = [*sorted(TEMPLATES.glob("*.py")), *([Path(source)] if source else [])]
    content = hashlib.sha256()
    for file in files:
        content.update(file.read_bytes())
    return content.hexdigest()
