"""A class that inherits its ``forward`` from a layer of PyTorch's: the same text with one that
calls it.

`with_forward(text, entry)` gives the class a ``forward`` of the layer's own signature, so that
everything behind it finds a method to read, to keep and to replace. The class computes what it
did. Not covered: classes whose layer comes from another file."""

from __future__ import annotations

import ast
import inspect

import torch

from kernel_lsp import parsing

KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def with_forward(text: str, entry: str) -> str:
    """The text as it is where the class has a ``forward``, or its layer is not known."""
    classes = {node.name: node for node in _classes(parsing.parse(text), entry)}
    target = classes.get(entry.rpartition(".")[2])
    if target is None or target.body[0].lineno == target.lineno:
        return text
    layer = _layer(target, classes, set())
    arguments = _signature(layer) if layer is not None else None
    if arguments is None:
        return text
    parameters, passed = arguments
    lines = text.split("\n")
    first = lines[target.body[0].lineno - 1]
    indent = first[: len(first) - len(first.lstrip())]
    made = f"{indent}def forward(self{parameters}):"
    lines[target.end_lineno or 0 : target.end_lineno or 0] = [
        "",
        made,
        f"{indent}    return super().forward({passed})",
    ]
    return "\n".join(lines)


def _classes(tree: ast.AST, entry: str) -> list[ast.ClassDef]:
    """Those that the class may name as its bases, and the class itself, the last of a name
    behind."""
    node, found = tree, list[ast.ClassDef]()
    for part in entry.split("."):
        inside = [one for one in getattr(node, "body", ()) if isinstance(one, ast.ClassDef)]
        found += inside
        node = next((one for one in reversed(inside) if one.name == part), ast.Module([], []))
    return found


def _layer(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef], seen: set[str]
) -> type[torch.nn.Module] | None:
    """PyTorch's layer whose ``forward`` the class inherits; None where a class of the file
    defines one, or nobody knows."""
    seen.add(node.name)
    defined = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
    if "forward" in defined or not node.bases:
        return None
    base = node.bases[0]
    if isinstance(base, ast.Name) and base.id in classes and base.id not in seen:
        return _layer(classes[base.id], classes, seen)
    name = ast.unparse(base).rpartition(".")[2]
    found = getattr(torch.nn, name, None)
    is_layer = isinstance(found, type) and issubclass(found, torch.nn.Module)
    return found if is_layer and name not in classes else None


def _signature(layer: type[torch.nn.Module]) -> tuple[str, str] | None:
    """Parameters as they are written and as they are passed on; None: not in plain words, or the
    layer has none."""
    if layer.forward is torch.nn.Module.forward:
        return None
    written, passed, is_named = "", list[str](), False
    for one in list(inspect.signature(layer.forward).parameters.values())[1:]:
        plain = one.default is one.empty or isinstance(one.default, (bool, int, float, type(None)))
        if one.kind not in KINDS or not plain:
            return None
        if one.kind is one.KEYWORD_ONLY and not is_named:
            written, is_named = written + ", *", True
        written += f", {one.name}" if one.default is one.empty else f", {one.name}={one.default!r}"
        passed.append(f"{one.name}={one.name}" if is_named else one.name)
    return written, ", ".join(passed)
