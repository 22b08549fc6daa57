"""Variable names a person would choose: those of their own assignments, else a word for the op."""

from __future__ import annotations

import ast
import functools
import keyword
import re
from collections.abc import Iterable

from torch import fx

from kernel_lsp import parsing

FRAME = r'File "{}", line (\d+), in (\w+)'
SLICE = "<kernel-lsp [0-9a-f]+>"
"""What the code of a slice says that its file is called."""

WORDS = {
    "linear": "hidden", "contiguous": "packed",
    "matmul": "product", "mm": "product", "bmm": "product", "sum": "total",
    "mean": "mean", "amax": "peak", "amin": "least", "softmax": "weights", "numpy_T": "transposed",
    "t": "transposed", "addmm": "product", "add": "shifted", "mul": "scaled", "sub": "difference",
    "div": "ratio", "to": "converted", "max": "peak", "min": "least", "abs": "magnitude", "pow":
    "power", "round": "rounded", "all": "every",
}  # fmt: skip


def frame_of(path: str | None) -> re.Pattern[str]:
    """A frame of the program in a stack trace: line and function. None: of a slice."""
    return re.compile(FRAME.format(SLICE if path is None else re.escape(path)))


class Statements:
    """Where each node's code stands in the program, and what the result was called there."""

    def __init__(self, program: str, function: str, path: str | None = None) -> None:
        """``path``: the file of the program; None: it is a slice."""
        self.frame = frame_of(path)
        self.spans = _statement_spans(program)
        self.function = function

    def key(self, node: fx.Node) -> tuple[int, int, str | None] | None:
        """The innermost statement of the person's own code that made the node."""
        if "statement" not in node.meta:  # copies of a graph share what was found
            node.meta["statement"] = self._innermost(node)
        found: tuple[int, int, str | None] | None = node.meta["statement"]
        return found

    def _innermost(self, node: fx.Node) -> tuple[int, int, str | None] | None:
        frames = self.frame.findall(node.meta.get("stack_trace") or "")
        if not frames:
            return None
        line = int(frames[-1][0])
        around = [span for span in self.spans if span[0] <= line <= span[1]]
        return min(around, key=lambda span: span[1] - span[0], default=None)

    def _is_last(self, node: fx.Node, nodes: Iterable[fx.Node]) -> bool:
        key = self.key(node)
        same = [other for other in nodes if self.key(other) == key]
        return bool(same) and same[-1].name == node.name

    def wish(self, node: fx.Node, nodes: Iterable[fx.Node]) -> str:
        """The name the node should have, before collisions are settled."""
        heir = next((n for n in nodes if n.name == node.meta.get("replaces")), None)
        if (
            heir is not None
            and (key := self.key(heir)) is not None
            and key[2]
            and self._is_last(heir, nodes)
        ):
            return key[2]
        if (given := node.meta.get("name")) is not None:
            return str(given)
        key = self.key(node)
        if key is not None and key[2] is not None and self._is_last(node, nodes):
            return key[2]
        op = getattr(node.target, "_schema", None)
        stem = op.name.split("::")[1] if op is not None else re.sub(r"_\d+$", "", node.name)
        name = WORDS.get(stem, stem.strip("_"))
        return f"{name}_" if keyword.iskeyword(name) or not name.isidentifier() else name


# A name is asked for at each node of each site: of a file of 4,800 lines (x-transformers) parsing
# it each time took 34 of the 35 s in which the sites of a graph of 317 operations were found.
@functools.lru_cache(maxsize=8)
def _statement_spans(program: str) -> list[tuple[int, int, str | None]]:
    """First and last line of each simple statement, and the name that it assigns."""
    return [
        (node.lineno, node.end_lineno or node.lineno, _assigned_name(node))
        for node in ast.walk(parsing.parse(program))
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr))
    ]


def _assigned_name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target: ast.expr = node.targets[0]
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        target = node.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None
