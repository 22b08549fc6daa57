"""Tiles by tensor descriptors, which the launcher makes where device, addresses and sizes allow
them.

In all other calls the kernel gets None instead, and Triton compiles the accesses as they were.
Descriptors come from the launcher: one that a kernel makes needs an allocator, which is set for a
whole process, and each program would write it to memory and wait. Not covered: autotuned kernels,
whose launcher knows no block."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels import descriptor_text, effects, launch_constants, launchers, places
from kernel_lsp.rewrite.kernels.descriptors import DescribedTile, describe_tile
from kernel_lsp.rewrite.kernels.harness import WRITES
from kernel_lsp.rewrite.kernels.lane_escapes import escape
from kernel_lsp.rewrite.kernels.launched import Blocks
from kernel_lsp.rewrite.kernels.source import find_calls, sources
from kernel_lsp.rewrite.kernels.terms import TermReader
from kernel_lsp.rewrite.kernels.tiles import Tiles, accesses
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

MODULE = "triton.tools.tensor_descriptor"
IMPORTS = ("import torch", f"from {MODULE} import TensorDescriptor")
BENEFIT = 0.09
"""Below block sizes, which a descriptor holds on to, and above what edits the masks of the same
loads."""


@dataclass(frozen=True, slots=True)
class DescribedTiles:
    loads: list[DescribedTile]
    stores: list[DescribedTile]


def match(kernel: Kernel) -> list[KernelMatch]:
    if not _may_change(kernel):
        return []
    tiles = Tiles(kernel)
    every = [describe_tile(kernel, tiles, call, stores) for call, stores in accesses(kernel)]
    loads = [
        d
        for d in every
        if d and not d.tile.stores and _is_unwritten(kernel, d) and _is_same(kernel, tiles, d)
    ]
    stores = [d for d in every if d and d.tile.stores and _is_alone(kernel, d, loads)]
    names = list(dict.fromkeys(d.tile.pointer for d in (*loads, *stores)))
    if not names:
        return []
    summary = f"tiles of {', '.join(names)} by tensor descriptors (TMA)"
    return [KernelMatch(", ".join(names), summary, BENEFIT, data=DescribedTiles(loads, stores))]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    found: DescribedTiles = match.data
    written = ", ".join(sorted(_written_pointers(kernel)))
    return [
        *(_is_tile(kernel, one) for one in (*found.loads, *found.stores)),
        proof(
            "lanes behind the ends are 0 as they were, or no store has them",
            True,  # a load of which it does not hold is none of the match
            "masks fill with 0 behind the same ends"
            if not any(one.tile.unlike() for one in found.loads)
            else "followed from the loads through products to the stores, whose masks leave "
            "them out",
        ),
        proof(
            "what a descriptor reads is not written, what one writes is accessed nowhere else",
            True,
            f"the launcher makes what is written ({written}), and the kernel calls nothing but "
            f"the language",
        ),
        proof(
            "addresses, strides and device fit wherever a descriptor is used",
            True,
            "the launcher asks in each call: multiples of 16 bytes, last stride 1, extents above "
            "0, offsets "
            "below 2**31, compute capability 9; otherwise it passes None, and all accesses are as "
            "they were",
        ),
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    """In a product the shared memory that stores by descriptor pass through is that of a stage."""
    if not match.data.loads or not match.data.stores:
        return {}
    return {"stores": [False, True] if find_calls(kernel.function, "dot") else [True, False]}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    found: DescribedTiles = match.data
    made: dict[str, DescribedTile] = {}
    for one in (*found.loads, *(found.stores if parameters.get("stores", True) else [])):
        name = next((n for n, d in made.items() if d.descriptor == one.descriptor), None)
        name = name or descriptor_text.fresh(
            kernel, f"{one.tile.pointer.removesuffix('_ptr')}_tiles", made
        )
        made.setdefault(name, one)
        (descriptor_text.store if one.tile.stores else descriptor_text.load)(kernel, one, name)
    kernel.imports += [line for line in IMPORTS if line not in kernel.imports]
    places.add_parameters(kernel, [f"{name}=None" for name in made])
    launch = places.launch_statement(kernel)
    assert launch is not None
    kernel.replace(
        places.ahead(launch),
        places.indent_lines(descriptor_text.guard(made), launch) + "\n" + " " * launch.col_offset,
    )
    places.relaunch(kernel, {}, [f"{name}={name}" for name in made])


# --- what must hold --------------------------------------------------------------------------


def _may_change(kernel: Kernel) -> bool:
    """One launch, of which everything is seen, of a kernel that has no other way to memory than
    tl's."""
    if not launch_constants.fits(kernel) or kernel.source.configs() is not None:
        return False
    if places.launch_statement(kernel) is None or importlib.util.find_spec(MODULE) is None:
        return False
    return _passes_plain_tensors(kernel) and _uses_pointers_alone(kernel)


def _passes_plain_tensors(kernel: Kernel) -> bool:
    """By keywords with names, without descriptors, from a launcher that can import ours."""
    launcher = TermReader(kernel.launcher)
    given = [value for one in kernel.launched for value in one.arguments.values()]
    return (
        all(keyword.arg for keyword in kernel.source.launches()[0].call.keywords)
        and not any(isinstance(value, Blocks) for value in given)
        and not any(launcher.is_bound(line.split()[-1]) for line in IMPORTS)
    )


def _uses_pointers_alone(kernel: Kernel) -> bool:
    others = ("make_tensor_descriptor", "make_block_ptr", "inline_asm_elementwise", "pointer_type")
    return (
        not any(find_calls(kernel.function, name) for name in others)
        and all(names for _, names in _find_accesses(kernel, WRITES))
        and not effects.helpers(kernel, kernel.function)
    )


def _find_accesses(kernel: Kernel, kinds: tuple[str, ...]) -> Iterator[tuple[ast.Call, set[str]]]:
    """Each access with the pointers that its address may come from."""
    pointers = kernel.pointers().keys()
    for call in (c for kind in kinds for c in find_calls(kernel.function, kind)):
        yield call, sources(kernel.function, call.args[0] if call.args else call) & pointers


def _written_pointers(kernel: Kernel) -> set[str]:
    return set().union(*(names for _, names in _find_accesses(kernel, WRITES)))


def _is_unwritten(kernel: Kernel, one: DescribedTile) -> bool:
    return all(
        launchers.separate(kernel, one.tile.pointer, other) for other in _written_pointers(kernel)
    )


def _is_alone(kernel: Kernel, one: DescribedTile, loads: list[DescribedTile]) -> bool:
    """No other access may meet what this one stores, and its text holds none of the loads."""
    others = [
        names
        for call, names in _find_accesses(kernel, ("load", *WRITES))
        if call is not one.tile.call
    ]
    inside = [*ast.walk(one.tile.call)]
    return not any(d.tile.call in inside for d in loads) and all(
        launchers.separate(kernel, one.tile.pointer, other) for names in others for other in names
    )


def _is_same(kernel: Kernel, tiles: Tiles, one: DescribedTile) -> bool:
    """As far as stores see it, zeros behind the ends change nothing."""
    lanes = one.tile.unlike()
    return not lanes or escape(kernel, tiles, {one.tile.call: lanes}) is None


def _is_tile(kernel: Kernel, one: DescribedTile) -> Proof:
    rows, columns = one.tile.axes
    ends = [f"below {a.extent}" if a.extent else "of one block" for a in (rows, columns)]
    return proof(
        f"`{ast.unparse(one.tile.call)[:60]}` is a tile of consecutive indexes of "
        f"{one.tile.pointer}",
        True,
        f"from [{', '.join(one.corner)}] on [{', '.join(one.block)}]; rows {ends[0]}, columns "
        f"{ends[1]}, "
        f"neighbors along {'rows' if one.transposed else 'columns'} in memory",
    )
