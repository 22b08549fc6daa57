"""Nodes of the graph as generators read them: which aten operation, on which tensors, of which
dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernel_lsp.rewrite.graph import argument

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
LOW = (torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32)


class Unsupported(Exception):
    """This variant of an operation is not generated."""


def op_name(node: Any) -> str:
    """``add`` for aten.add.Tensor; empty for what is no aten call."""
    if broadcast_source(node) is not None:
        return "broadcast_part"
    schema = getattr(getattr(node, "target", None), "_schema", None)
    namespace, _, name = str(schema.name).partition("::") if schema is not None else ("", "", "")
    return name if namespace == "aten" else ""


def broadcast_source(node: Any) -> fx.Node | None:
    """The tensor behind ``broadcast_tensors(...)[i]``, which torch's losses put before their
    work."""
    if getattr(getattr(node, "target", None), "__name__", "") != "getitem":
        return None
    base, index = node.args
    if getattr(base.target, "_opname", "") != "broadcast_tensors":
        return None
    return base.args[0][index]


def argument_of(node: fx.Node, name: str) -> Any:
    """An argument by its schema name; a part of broadcast_tensors has one, ``self``."""
    source = broadcast_source(node)
    if source is None:
        return argument(node, name)
    return source if name == "self" else None


def argument_nodes(node: fx.Node) -> list[tuple[str, fx.Node]]:
    """Tensor arguments with their schema names."""
    if op_name(node) == "broadcast_tensors":
        return []  # its parts read the tensors themselves
    schema = getattr(node.target, "_schema", None)
    names = [item.name for item in schema.arguments] if schema is not None else ["self"]
    pairs = [(name, argument_of(node, name)) for name in names]
    return [(name, arg) for name, arg in pairs if isinstance(arg, fx.Node)]


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")
