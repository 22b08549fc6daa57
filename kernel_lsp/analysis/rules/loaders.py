"""DataLoaders of a script: what their arguments say about workers and pinned memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.analysis.rules.base import argument
from kernel_lsp.analysis.scripts import Script, has_star

_CLASSES = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
# Made of tensors in memory, or of nothing: there is no work that workers could take over.
_IN_MEMORY = re.compile(
    r"TensorDataset|Random\w*Dataset|Random(Dict|IterableD|D)|Synthetic|Dummy|Fake|Toy|fake|dummy|toy"
)
_PINNED_BY_DICT = re.compile(r"""["']pin_memory["']\s*[:\]]\s*=?\s*True|dict\([^()]*pin_memory\s*=\s*True""")


@dataclass(frozen=True, slots=True)
class Loader:
    call: ast.Call
    workers: ast.expr | None
    """None: not given."""
    pinned: ast.expr | None
    is_open: bool
    """Further arguments come from elsewhere."""


def loaders(script: Script) -> Iterator[Loader]:
    for call, dotted in script.calls:
        if dotted in _CLASSES:
            yield Loader(
                call, argument(call, 5, "num_workers"), argument(call, 7, "pin_memory"), has_star(call)
            )


def feeds_a_gpu(script: Script) -> bool:
    """The file trains on a GPU, on data that somebody has to fetch."""
    return bool(script.training) and script.uses_gpu and _IN_MEMORY.search(script.file.text) is None


def is_off(value: ast.expr | None) -> bool:
    """Not given, 0, False or None."""
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def all_pinned(script: Script) -> bool:
    """Every loader of the file pins, told at the call or in a dictionary of arguments."""
    by_dict = _PINNED_BY_DICT.search(script.file.text) is not None
    found = list(loaders(script))
    return bool(found) and all(
        (isinstance(each.pinned, ast.Constant) and each.pinned.value is True)
        or (each.is_open and each.pinned is None and by_dict)
        for each in found
    )
