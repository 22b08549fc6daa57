"""One aten call as the line a person would write: ``torch.sum(x, dim=1)``, ``F.linear(x,
self.fc.weight)``.

Three levels, each exact: operators and methods, then ``F`` or ``torch`` with keywords where the
aten schema and the Python function agree, then ``torch.ops.aten.<op>(…)``, which is always right.
"""

from __future__ import annotations

import math
import types
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "mm": "@", "pow": "**",
    "gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!=",
}  # fmt: skip
PRECEDENCE = {"**": 6, "-x": 5, "@": 4, "*": 4, "/": 4, "+": 3, "-": 3}
COMPARE, ATOM = 1, 9

METHODS = frozenset([
    "add_", "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand",
    "contiguous",
    "flatten", "unflatten", "t", "clone", "detach", "expand_as", "view_as", "type_as", "repeat",
    "float", "half", "double", "bfloat16", "to", "narrow", "masked_fill",
    "copy_", "index_copy_", "index_add_", "index_fill_", "scatter_", "masked_fill_", "fill_",
    "zero_", "mul_", "sub_", "div_",
])  # fmt: skip
FUNCTIONAL = frozenset([
    "linear", "bilinear", "conv1d", "conv2d", "conv3d", "relu", "relu6", "gelu", "silu", "mish",
    "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "selu", "celu", "softplus", "glu",
    "layer_norm", "group_norm", "batch_norm", "instance_norm", "max_pool1d", "max_pool2d",
    "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "pad", "dropout", "pixel_shuffle",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention",
    "rms_norm",
])  # fmt: skip
DROPPED = frozenset({"cudnn_enable", "cudnn_enabled", "layout", "pin_memory"})
POSITIONAL = {
    "linear": 3,
    "conv1d": 3,
    "conv2d": 3,
    "conv3d": 3,
    "bilinear": 4,
    "where": 3,
    "lerp": 3,
    "split": 3,
}
WRAPPERS = frozenset({"split", "norm"})  # Python functions of torch that agree with aten
VARIADIC = frozenset({"view", "reshape", "permute", "expand", "repeat", "transpose"})


def is_functional(node: fx.Node) -> bool:
    """Printed as a function of torch.nn.functional, which says ``training`` where aten says
    ``train``."""
    return node.target._schema.name.split("::")[1] in FUNCTIONAL


def _must_be_named(node: fx.Node, argument: str) -> bool:
    """F.batch_norm has no default for its statistics, where aten has None; a loss takes the mean
    by aten's default and nothing by torch's own, which gives another shape."""
    if argument == "reduction":
        return True
    return "batch_norm" in str(node.target) and argument in ("running_mean", "running_var")


class Printer:
    """Spells values; ``expression(node)`` for operands comes from the emitter, with its
    precedence."""

    def __init__(self, functional: str, device: str | None) -> None:
        self.functional = functional
        self.device = device
        """Source of a device, e.g. ``x.device``; None when the target has no tensor input."""

    def call(self, node: fx.Node, operand: Any) -> tuple[str, int]:
        """(source, precedence) of a call_function node."""
        if "generated" in node.meta:
            return f"{node.meta['generated'].name}({self._join(node.args, operand)})", ATOM
        if getattr(node.target, "__name__", "") == "getitem":
            return f"{operand(node.args[0], ATOM)}[{node.args[1]!r}]", ATOM
        name = node.target._schema.name.split("::")[1]
        for attempt in (self._infix, self._method, self._function):
            if (made := attempt(name, node, operand)) is not None:
                return made
        overload = node.target._overloadname
        keywords = [f"{k}={self.value(v, operand, k)}" for k, v in node.kwargs.items()]
        inner = ", ".join([self.value(a, operand) for a in node.args] + keywords)
        return f"torch.ops.aten.{name}.{overload}({inner})", ATOM

    def value(self, value: Any, operand: Any, name: str = "") -> str:
        """A literal, a node, or a container of them."""
        if isinstance(value, fx.Node):
            return str(operand(value, 0))
        if name == "device" or isinstance(value, torch.device):
            return self.device or repr(str(value))
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self.value(item, operand) for item in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return str(value) if isinstance(value, (torch.dtype, torch.memory_format)) else repr(value)

    def _join(self, values: Any, operand: Any) -> str:
        return ", ".join(self.value(item, operand) for item in values)

    def _infix(self, name: str, node: fx.Node, operand: Any) -> tuple[str, int] | None:
        if name == "neg":
            return f"-{operand(node.args[0], PRECEDENCE['-x'])}", PRECEDENCE["-x"]
        if name == "rsub" and not node.kwargs and len(node.args) == 2:
            return self._binary("-", node.args[1], node.args[0], operand)
        if name not in INFIX or node.kwargs or len(node.args) != 2:
            return None
        return self._binary(INFIX[name], node.args[0], node.args[1], operand)

    def _binary(self, sign: str, left: Any, right: Any, operand: Any) -> tuple[str, int]:
        level = PRECEDENCE.get(sign, COMPARE)
        strict = level + 1  # a - (b - c), and no chained comparison
        first = self._operand(left, level if sign != "**" and level != COMPARE else strict, operand)
        return f"{first} {sign} {self._operand(right, strict, operand)}", level

    def _operand(self, value: Any, level: int, operand: Any) -> str:
        if isinstance(value, fx.Node):
            return str(operand(value, level))
        text = self.value(value, operand)
        return f"({text})" if text.startswith("-") else text

    def _method(self, name: str, node: fx.Node, operand: Any) -> tuple[str, int] | None:
        if name in ("numpy_T", "mT"):
            return f"{operand(node.args[0], ATOM)}.{'T' if name == 'numpy_T' else 'mT'}", ATOM
        if name == "select":
            return self._index(node, operand, repr(node.args[2]))
        if name == "slice":
            return self._slice(node, operand)
        if name not in METHODS or not isinstance(node.args[0], fx.Node):
            return None
        rest = list(node.args[1:])
        if name == "to":
            rest, keywords = [], self._keywords(node, 1, operand)
        else:
            keywords = self._keywords(node, len(node.args), operand)
        if name in VARIADIC and len(rest) == 1 and isinstance(rest[0], (list, tuple)):
            rest = list(rest[0])
        inner = ", ".join([*(self.value(item, operand) for item in rest), *keywords])
        return f"{operand(node.args[0], ATOM)}.{name}({inner})", ATOM

    def _index(self, node: fx.Node, operand: Any, index: str) -> tuple[str, int]:
        dim = node.args[1]
        rank = node.args[0].meta["val"].dim()
        places = [":"] * (int(dim) % rank) + [index]
        return f"{operand(node.args[0], ATOM)}[{', '.join(places)}]", ATOM

    def _slice(self, node: fx.Node, operand: Any) -> tuple[str, int]:
        dim, start, end, step = (*node.args[1:], *(None,) * 4)[:4]
        end = None if isinstance(end, int) and end >= 2**62 else end
        text = f"{'' if start in (None, 0) else start}:{'' if end is None else end}"
        made = node.args[0], dim or 0
        node_like = type("Indexed", (), {"args": made})
        return self._index(node_like, operand, text + (f":{step}" if step not in (None, 1) else ""))

    def _function(self, name: str, node: fx.Node, operand: Any) -> tuple[str, int] | None:
        if name == "einsum":
            return f"torch.einsum({node.args[0]!r}, {self._join(node.args[1], operand)})", ATOM
        if name == "broadcast_tensors":
            return f"torch.broadcast_tensors({self._join(node.args[0], operand)})", ATOM
        module = self._namespace(name, node)
        if module is None:
            return None
        count = POSITIONAL.get(name, 0) or self._leading_tensors(node)
        if name == "batch_norm" or name == "instance_norm":
            count = 1
        positional = [self.value(a, operand) for a in node.args[:count]]
        while positional and positional[-1] == "None":
            positional.pop()
        name = name.removeprefix("linalg_")
        return (
            f"{module}.{name}({', '.join([*positional, *self._keywords(node, count, operand)])})",
            ATOM,
        )

    def _namespace(self, name: str, node: fx.Node) -> str | None:
        if name in FUNCTIONAL and not (name == "elu" and len(node.args) > 2):
            return self.functional
        if name == "linalg_vector_norm":
            return "torch.linalg"
        found = getattr(torch, name, None)
        if found is None or name.startswith("_"):
            return None
        return "torch" if name in WRAPPERS or not isinstance(found, types.FunctionType) else None

    def _leading_tensors(self, node: fx.Node) -> int:
        count = 0
        for value in node.args:
            nodes = isinstance(value, fx.Node) or (
                isinstance(value, (list, tuple))
                and value
                and all(isinstance(v, fx.Node) for v in value)
            )
            if not nodes:
                break
            count += 1
        # torch.zeros((2, 3)), torch.full((2,), 1.0), torch.clamp(x, 0, 1): sizes read better
        # unnamed
        return count or (1 if node.args else 0)

    def _keywords(self, node: fx.Node, skip: int, operand: Any) -> list[str]:
        """Arguments after the first ``skip`` by schema name, defaults left out."""
        made = []
        for index, item in enumerate(node.target._schema.arguments):
            if index < min(skip, len(node.args)) or item.name in DROPPED:
                continue
            is_named = _must_be_named(node, item.name)
            is_given = index < len(node.args) or item.name in node.kwargs
            value = _value_of(node, index, item)
            if not is_named and (not is_given or _is_usual(node, item, value)):
                continue
            if isinstance(value, (list, tuple)) and len(value) == 1 and item.name == "dim":
                value = value[0]
            name = "training" if item.name == "train" and is_functional(node) else item.name
            made.append(f"{name}={self._attribute(node, item.name, value, operand)}")
        return made

    def _attribute(self, node: fx.Node, name: str, value: Any, operand: Any) -> str:
        """``self.bn.eps`` rather than 1e-05, so that the value is never stale."""
        layer = node.meta.get("layer")
        if layer is not None and isinstance(value, (bool, float)):
            path, module = layer
            attribute = {"train": "training", "min_val": "min_val", "max_val": "max_val"}.get(
                name, name
            )
            if getattr(module, attribute, None) == value:
                return f"{path}.{attribute}"
        return self.value(value, operand, name)


def _default_of(item: Any) -> Any:
    return item.default_value if item.has_default_value() else None


def _value_of(node: fx.Node, index: int, item: Any) -> Any:
    """What a call gives an argument of its schema, or the default."""
    if index < len(node.args):
        return node.args[index]
    return node.kwargs.get(item.name, _default_of(item))


def _is_usual(node: fx.Node, item: Any, value: Any) -> bool:
    """The default, which need not be written; but torch.convolution must be given its None."""
    default = _default_of(item)
    is_default = value == default or (default in (None, []) and value in (None, []))
    return bool(is_default and (item.has_default_value() or is_functional(node)))
