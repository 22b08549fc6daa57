"""Constants and options that ``triton.heuristics`` decides: what may become a number, and where
that stands.

Triton lets a heuristic overrule what a launch passes, so a number stands in the decorator: a
``lambda`` that asks nothing takes the place of the one that computed. Order and all other
heuristics stay. Standard library only. Not covered: several such decorators, and those beneath
autotune."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from kernel_lsp.records import Proof
from kernel_lsp.rewrite.kernels.launched import Launched
from kernel_lsp.rewrite.kernels.places import after
from kernel_lsp.rewrite.kernels.view import Kernel, proof


def decided_names(kernel: Kernel) -> set[str]:
    """Names that the kernel's one decorator decides, at every launch of them alike."""
    if _values(kernel) is None or not kernel.launched:
        return set()
    return set[str].intersection(*(set(one.decided) for one in kernel.launched))


def readers(kernel: Kernel, name: str) -> list[str]:
    """Constants that are computed from it: they would be other ones, and may select other code."""
    found = {
        n
        for one in kernel.launched
        for n in _constants(one)
        if name in one.decided[n] and n != name
    }
    return sorted(found)


def may_be_constant(kernel: Kernel, name: str) -> bool:
    """A size of block: a number today, no other constant comes from it, nobody else launches the
    kernel."""
    values = [one.constants.get(name) for one in kernel.launched]
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return whole and len(set(values)) == 1 and proof_of(kernel, name).holds


def proof_of(kernel: Kernel, name: str) -> Proof:
    """The proof that a constant which a heuristic decides may be another number: nothing else
    depends on it, and there is one launch."""
    others, uses = readers(kernel, name), _uses(kernel)
    if others:
        return proof(_claim(name), False, f"{', '.join(others)} is computed from it")
    alone = uses == 1 == len(kernel.source.launches()) and kernel.elsewhere is None
    because = (
        "no other constant is computed from it, and there is one launch"
        if alone
        else f"the kernel is named in {kernel.elsewhere or f'{uses} places of its program'}"
    )
    return proof(_claim(name), alone, because)


def settle(kernel: Kernel, numbers: Mapping[str, object]) -> None:
    """The decorator decides these numbers."""
    values = _values(kernel)
    if not numbers or values is None:
        return
    said = _written_heuristics(values)
    added = [_entry(name, value) for name, value in numbers.items() if name not in said]
    for name, value in numbers.items():
        if name in said:
            kernel.replace(said[name], f"lambda _: {value}")
    if added and isinstance(values, ast.Dict) and values.values:
        kernel.replace(after(values.values[-1]), "".join(f", {entry}" for entry in added))
    elif added:
        kernel.replace(values, f"{{**{kernel.text(values)}, {', '.join(added)}}}")


def _values(kernel: Kernel) -> ast.expr | None:
    """What the only such decorator was given."""
    found = [
        d
        for d in kernel.function.decorator_list
        if isinstance(d, ast.Call) and ast.unparse(d.func).split(".")[-1] == "heuristics"
    ]
    if len(found) != 1:
        return None
    given = [k.value for k in found[0].keywords if k.arg == "values"] or found[0].args[:1]
    return given[0] if given and not isinstance(given[0], ast.Starred) else None


def _written_heuristics(values: ast.expr) -> dict[str, ast.expr]:
    """Heuristics that are written out; of two with one name the last counts, as in Python."""
    if not isinstance(values, ast.Dict):
        return {}
    pairs = zip(values.keys, values.values, strict=True)
    named = [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant)]
    after = next((i for i, key in reversed([*enumerate(values.keys)]) if key is None), -1)
    # What a spread brings may overrule earlier ones.
    late = {id(value) for value in values.values[after + 1 :]}
    return {name: value for name, value in named if isinstance(name, str) and id(value) in late}


def _entry(name: str, value: object) -> str:
    return f'"{name}": lambda _: {value}'


def _constants(launch: Launched) -> list[str]:
    return [name for name in launch.decided if name in launch.constants]


def _uses(kernel: Kernel) -> int:
    return sum(
        isinstance(n, ast.Name) and n.id == kernel.source.kernel
        for n in ast.walk(kernel.source.tree)
    )


def _claim(name: str) -> str:
    return f"{name} may be a number"


# --- where it is observed ----------------------------------------------------------------------


class ObservedArguments(dict[str, Any]):
    """A launch's arguments, as a heuristic is given them: it is seen which it looks at."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The argument, as a dict has it; that it was asked for is seen."""
        self.asked.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:  # ``**given`` and copies come here, and ask for all
        self.asked |= set(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        """The arguments' names."""
        return list(self)

    def values(self) -> Any:
        """The argument that stands behind each name, in the order of the names; each counts as
        read."""
        return [self[name] for name in self]

    def items(self) -> Any:
        """(name, argument) of all; all are seen as asked for."""
        return [(name, self[name]) for name in self]
