"""Pointers with masks instead of tensor descriptors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.lineage.places import floats, stored_names
from kernel_lsp.rewrite.kernels.places import language
from kernel_lsp.rewrite.kernels.source import find_assignments, find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof


@dataclass(frozen=True, slots=True)
class DescriptorUse:
    """``name = tl.make_tensor_descriptor(base, shape, strides, block_shape)`` and its uses."""

    name: str
    made: ast.Assign
    base: ast.expr
    extents: tuple[ast.expr, ...]
    strides: tuple[ast.expr, ...]
    block: tuple[ast.expr, ...]
    uses: tuple[ast.Call, ...]


def match(kernel: Kernel) -> list[KernelMatch]:
    """All tensor descriptors of the kernel; nothing where one of them is of a kind that is not
    followed."""
    calls = find_calls(kernel.function, "make_tensor_descriptor")
    found = [_describe(kernel, call) for call in calls]
    if not found or any(one is None for one in found):
        return []
    return [
        KernelMatch(
            f"{len(found)} descriptors", "pointers with masks instead of descriptors", data=found
        )
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    """Tensors are floats, with an innermost stride of 1."""
    tensors = kernel.pointers()
    text = ", ".join(f"{n}: strides {t.stride}" for n, t in tensors.items())
    inner = all(ast.unparse(one.strides[-1]) == "1" for one in match.data)
    return [proof("the innermost stride is 1", inner, text), floats(kernel)]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """No choices: there is one way."""
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    """Write pointers and masks for every access, and take the descriptors away."""
    for one in match.data:
        kernel.replace(one.made, "")
        for call in one.uses:
            kernel.replace(call, _access(kernel, one, call))


def _access(kernel: Kernel, one: DescriptorUse, call: ast.Call) -> str:
    tl, rank = language(kernel) or "tl", len(one.block)
    corner = call.args[0]
    assert isinstance(corner, ast.List | ast.Tuple) and isinstance(call.func, ast.Attribute)
    places = [
        _spread(f"{kernel.text(at)} + {tl}.arange(0, {kernel.text(size)})", axis, rank)
        for axis, (at, size) in enumerate(zip(corner.elts, one.block, strict=True))
    ]
    steps = [f" * {kernel.text(s)}" if ast.unparse(s) != "1" else "" for s in one.strides]
    where = " + ".join(
        [kernel.text(one.base), *(p + s for p, s in zip(places, steps, strict=True))]
    )
    inside = " & ".join(
        f"({p} < {kernel.text(e)})" for p, e in zip(places, one.extents, strict=True)
    )
    if call.func.attr == "load":
        return f"{tl}.load({where}, mask={inside}, other=0.0)"
    return f"{tl}.store({where}, {kernel.text(call.args[1])}, mask={inside})"


def _spread(place: str, axis: int, rank: int) -> str:
    where = ", ".join(":" if a == axis else "None" for a in range(rank))
    return f"({place})[{where}]" if rank > 1 else f"({place})"


def _describe(kernel: Kernel, call: ast.Call) -> DescriptorUse | None:
    """None where something else than loads and stores at a written corner is done with it."""
    made = [s for s in ast.walk(kernel.function) if isinstance(s, ast.Assign) and s.value is call]
    said = _named_arguments(call)
    parts = [_written_out(said.get(name)) for name in ("shape", "strides", "block_shape")]
    if len(made) != 1 or "base" not in said or not parts[0] or len({len(p) for p in parts}) != 1:
        return None
    (name,) = stored_names(made[0]) or {""}
    uses = [use for use in _accesses_by(kernel, name) if _has_written_corner(use)]
    if not _is_used_by_alone(kernel, name, uses):
        return None
    return DescriptorUse(name, made[0], said["base"], parts[0], parts[1], parts[2], tuple(uses))


def _is_used_by_alone(kernel: Kernel, name: str, uses: list[ast.Call]) -> bool:
    """Nothing but its one assignment and these calls names it."""
    names = [n for n in ast.walk(kernel.function) if isinstance(n, ast.Name) and n.id == name]
    return len(find_assignments(kernel.function, name)) == 1 and len(names) == len(uses) + 1


def _named_arguments(call: ast.Call) -> dict[str | None, ast.expr]:
    positions = ("base", "shape", "strides", "block_shape")
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    return named | dict(zip(positions, call.args, strict=False))


def _written_out(node: ast.expr | None) -> tuple[ast.expr, ...]:
    return tuple(node.elts) if isinstance(node, ast.List | ast.Tuple) else ()


def _accesses_by(kernel: Kernel, name: str) -> Iterator[ast.Call]:
    """``name.load(...)`` and ``name.store(...)``."""
    for kind in ("load", "store"):
        for call in find_calls(kernel.function, kind):
            match call.func:
                case ast.Attribute(value=ast.Name(id=found)) if found == name:
                    yield call


def _has_written_corner(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.List | ast.Tuple)
