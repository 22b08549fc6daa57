"""DataLoaders of a script: what their arguments say about workers and pinned memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.analysis.rules.base import argument
from kernel_lsp.analysis.scripts import Script, ScriptStep, has_star, method
from kernel_lsp.analysis.source import walk

_CLASSES = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
# Made of tensors in memory, of nothing, or of what the model itself does in a simulator: no work
# for workers.
_IN_MEMORY = re.compile(
    r"TensorDataset|Random\w{0,40}Dataset|Random(Dict|IterableD|D)|Synthetic|Dummy|Fake|Toy|fake|dummy|toy|\bgym(nasium)?\b"
)
_HELD_OUT = re.compile(r"valid|test|eval|predict|infer|dev_|_dev|held|\bval_|_val\b", re.IGNORECASE)
_COUNTS = re.compile(r"range\(|list\(range")
_PINNED_BY_DICT = re.compile(
    r"""["']pin_memory["']\s*[:\]]\s*=?\s*True|dict\([^()]*pin_memory\s*=\s*True"""
)


@dataclass(frozen=True, slots=True)
class LoaderCall:
    call: ast.Call
    workers: ast.expr | None
    """None: not given."""
    pinned: ast.expr | None
    is_open: bool
    """Further arguments come from elsewhere."""


def training_loaders(script: Script) -> Iterator[LoaderCall]:
    """Loaders of a file that trains on a GPU, on data that has to be fetched; not those of
    held-out data."""
    if not script.training or not script.uses_gpu or _IN_MEMORY.search(script.file.text):
        return
    for loader in _loaders(script):
        name = script.assigned_name(loader.call) or ""
        data = ast.unparse(loader.call.args[0]) if loader.call.args else ""
        if not _HELD_OUT.search(name) and not _HELD_OUT.search(data) and not _COUNTS.match(data):
            yield loader


def _loaders(script: Script) -> Iterator[LoaderCall]:
    for call, dotted in script.calls:
        if dotted in _CLASSES:
            yield LoaderCall(
                call,
                argument(call, 5, "num_workers"),
                argument(call, 7, "pin_memory"),
                has_star(call),
            )


def copies(step: ScriptStep) -> Iterator[ast.Call]:
    """``x.to(device)`` and ``x.cuda()`` of what the loop takes from its loader."""
    if not isinstance(step.owner, ast.For):
        return
    batch = {n.id for n in walk(step.owner.target) if isinstance(n, ast.Name)}
    for _, call in step.calls():
        is_move = method(call) == "cuda" or (
            method(call) == "to" and len(call.args) > 0 and "dev" in ast.unparse(call.args[0])
        )
        if is_move and _root(call.func) in batch:
            yield call


def _root(node: ast.expr) -> str | None:
    """``batch`` of ``batch[0].to`` and ``batch["x"].to``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def is_off(value: ast.expr | None) -> bool:
    """Whether the argument is not given, 0, False or None."""
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def all_pinned(script: Script) -> bool:
    """Every loader of the file pins, said at the call or in a dictionary of arguments."""
    by_dict = _PINNED_BY_DICT.search(script.file.text) is not None
    found = list(_loaders(script))
    return bool(found) and all(
        (isinstance(each.pinned, ast.Constant) and each.pinned.value is True)
        or (each.is_open and each.pinned is None and by_dict)
        for each in found
    )
