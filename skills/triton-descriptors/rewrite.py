"""Tiles by tensor descriptors, which the launcher makes where device, addresses and sizes allow them.

In all other calls the kernel gets None instead, and Triton compiles the accesses as they were. Descriptors
come from the launcher: one that a kernel makes needs an allocator, which is set for a whole process, and each
program would write it to memory and wait. Not covered: autotuned kernels, whose launcher knows no block.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kernel_lsp.rewrite.kernels import deciding, effects, launchers, places
from kernel_lsp.rewrite.kernels.harness import WRITES
from kernel_lsp.rewrite.kernels.lanes import escape
from kernel_lsp.rewrite.kernels.launched import Blocks
from kernel_lsp.rewrite.kernels.source import assigned, called, names_in, sources
from kernel_lsp.rewrite.kernels.terms import Atom, Reader, Terms
from kernel_lsp.rewrite.kernels.tiles import Axis, Tile, Tiles, accesses
from kernel_lsp.rewrite.kernels.view import Kernel, Match, Proof, proof

MODULE = "triton.tools.tensor_descriptor"
IMPORTS = ("import torch", f"from {MODULE} import TensorDescriptor")
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
LINE = 16
"""Bytes of which addresses and strides must be multiples, and the least that a row of a tile has."""
LONGEST = 256
"""Axis of a tile."""
BENEFIT = 0.09
"""Below block sizes, which a descriptor holds on to, and above what edits the masks of the same loads."""


@dataclass(frozen=True, slots=True)
class Described:
    """A tile with what launcher and kernel have to say of it. Axes are those of memory, outermost first."""

    tile: Tile
    tensor: str
    """Of the launcher, in whose words shape, strides and block are, too."""
    itemsize: int
    transposed: bool
    """The tile's first axis is the one along which numbers are neighbors."""
    unit: str
    """What must be 1, so that they are; empty: they always are."""
    shape: tuple[str, ...]
    strides: tuple[str, ...]
    block: tuple[str, ...]
    corner: tuple[str, ...]
    """In the kernel's words."""

    @property
    def descriptor(self) -> tuple[str, str]:
        """The call that makes one: function and arguments."""
        shape, strides, block = map(", ".join, (self.shape, (*self.strides, "1"), self.block))
        return "TensorDescriptor", f"{self.tensor}, [{shape}], [{strides}], [{block}]"


@dataclass(frozen=True, slots=True)
class Found:
    loads: list[Described]
    stores: list[Described]


def match(kernel: Kernel) -> list[Match]:
    if not _may_change(kernel):
        return []
    tiles = Tiles(kernel)
    every = [_described(kernel, tiles, call, stores) for call, stores in accesses(kernel)]
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
    return [Match(", ".join(names), summary, BENEFIT, data=Found(loads, stores))]


def preconditions(kernel: Kernel, match: Match) -> list[Proof]:
    found: Found = match.data
    written = ", ".join(sorted(_written(kernel)))
    return [
        *(_is_tile(kernel, one) for one in (*found.loads, *found.stores)),
        proof(
            "lanes behind the ends are 0 as they were, or no store has them",
            True,  # a load of which it does not hold is none of the match
            "masks fill with 0 behind the same ends"
            if not any(one.tile.unlike() for one in found.loads)
            else "followed from the loads through products to the stores, whose masks leave them out",
        ),
        proof(
            "what a descriptor reads is not written, what one writes is accessed nowhere else",
            True,
            f"the launcher makes what is written ({written}), and the kernel calls nothing but the language",
        ),
        proof(
            "addresses, strides and device fit wherever a descriptor is used",
            True,
            "the launcher asks in each call: multiples of 16 bytes, last stride 1, extents above 0, offsets "
            "below 2**31, compute capability 9; otherwise it passes None, and all accesses are as they were",
        ),
    ]


def parameters(kernel: Kernel, match: Match) -> dict[str, list[object]]:
    """In a product the shared memory that stores by descriptor pass through is that of a stage."""
    if not match.data.loads or not match.data.stores:
        return {}
    return {"stores": [False, True] if called(kernel.function, "dot") else [True, False]}


def apply(kernel: Kernel, match: Match, parameters: dict[str, object]) -> None:
    found: Found = match.data
    made: dict[str, Described] = {}
    for one in (*found.loads, *(found.stores if parameters.get("stores", True) else [])):
        name = next((n for n, d in made.items() if d.descriptor == one.descriptor), None)
        name = name or _fresh(kernel, f"{one.tile.pointer.removesuffix('_ptr')}_tiles", made)
        made.setdefault(name, one)
        (_store if one.tile.stores else _load)(kernel, one, name)
    kernel.imports += [line for line in IMPORTS if line not in kernel.imports]
    places.add_parameters(kernel, [f"{name}=None" for name in made])
    launch = places.launch_statement(kernel)
    assert launch is not None
    kernel.replace(
        places.ahead(launch), places.indented(_guard(made), launch) + "\n" + " " * launch.col_offset
    )
    places.relaunch(kernel, {}, [f"{name}={name}" for name in made])


# --- what must hold --------------------------------------------------------------------------


def _may_change(kernel: Kernel) -> bool:
    """One launch, of which everything is seen, of a kernel that has no other way to memory than tl's."""
    if (
        not deciding.fits(kernel)
        or kernel.source.configs() is not None
        or places.launch_statement(kernel) is None
    ):
        return False
    others = ("make_tensor_descriptor", "make_block_ptr", "inline_asm_elementwise", "pointer_type")
    launcher = Reader(kernel.launcher)
    return (
        all(k.arg for k in kernel.source.launches()[0].call.keywords)
        and importlib.util.find_spec(MODULE) is not None
        and not any(called(kernel.function, name) for name in others)
        and all(names for _, names in _accessed(kernel, WRITES))
        and not any(isinstance(v, Blocks) for one in kernel.launched for v in one.arguments.values())
        and not effects.helpers(kernel, kernel.function)
        and not any(launcher.is_bound(line.split()[-1]) for line in IMPORTS)
    )


def _accessed(kernel: Kernel, kinds: tuple[str, ...]) -> Iterator[tuple[ast.Call, set[str]]]:
    """Each access with the pointers that its address may come from."""
    pointers = kernel.pointers().keys()
    for call in (c for kind in kinds for c in called(kernel.function, kind)):
        yield call, sources(kernel.function, call.args[0] if call.args else call) & pointers


def _written(kernel: Kernel) -> set[str]:
    return set().union(*(names for _, names in _accessed(kernel, WRITES)))


def _is_unwritten(kernel: Kernel, one: Described) -> bool:
    return all(launchers.separate(kernel, one.tile.pointer, other) for other in _written(kernel))


def _is_alone(kernel: Kernel, one: Described, loads: list[Described]) -> bool:
    """No other access may meet what this one stores, and its text holds none of the loads."""
    others = [names for call, names in _accessed(kernel, ("load", *WRITES)) if call is not one.tile.call]
    inside = [*ast.walk(one.tile.call)]
    return not any(d.tile.call in inside for d in loads) and all(
        launchers.separate(kernel, one.tile.pointer, other) for names in others for other in names
    )


def _is_same(kernel: Kernel, tiles: Tiles, one: Described) -> bool:
    """As far as stores see it, zeros behind the ends change nothing."""
    lanes = one.tile.unlike()
    return not lanes or escape(kernel, tiles, {one.tile.call: lanes}) is None


def _is_tile(kernel: Kernel, one: Described) -> Proof:
    rows, columns = one.tile.axes
    ends = [f"below {a.extent}" if a.extent else "of one block" for a in (rows, columns)]
    return proof(
        f"`{ast.unparse(one.tile.call)[:60]}` is a tile of consecutive indexes of {one.tile.pointer}",
        True,
        f"from [{', '.join(one.corner)}] on [{', '.join(one.block)}]; rows {ends[0]}, columns {ends[1]}, "
        f"neighbors along {'rows' if one.transposed else 'columns'} in memory",
    )


# --- reading a tile --------------------------------------------------------------------------


def _described(kernel: Kernel, tiles: Tiles, call: ast.Call, stores: bool) -> Described | None:
    """None: it is no tile, or one of which a descriptor could not be told."""
    tile = tiles.tile(call, stores=stores)
    if isinstance(tile, str) or not _is_always(tiles, call) or not all(map(tiles.begins_blocks, tile.axes)):
        return None
    rows, columns = tile.axes
    transposed = _unit(kernel, columns.stride) is None
    axes = (columns, rows) if transposed else (rows, columns)
    unit, tensor = _unit(kernel, axes[1].stride), places.argument(kernel, tile.pointer)
    shape = [_number(kernel, a.extent) if a.extent else _size(kernel, a.block) for a in axes]
    strides, block = [_said(kernel, axes[0].stride)], [_size(kernel, a.block) for a in axes]
    corner = [_corner(tiles, a.start, call) for a in axes]
    if tile.batch is not None:
        grid, stride = tile.batch
        shape, strides, block = (
            [_programs(kernel, grid), *shape],
            [_said(kernel, stride), *strides],
            ["1", *block],
        )
        corner.insert(0, _corner(tiles, {(Atom("program", str(grid)),): 1}, call))
    itemsize = ITEMSIZE.get(kernel.pointers()[tile.pointer].dtype)
    if not isinstance(tensor, ast.Name) or itemsize is None or unit is None:
        return None
    told = [tuple(t for t in texts if t is not None) for texts in (shape, strides, block, corner)]
    if list(map(len, told)) != list(map(len, (shape, strides, block, corner))):
        return None
    made = Described(tile, tensor.id, itemsize, transposed, unit, *told)
    return made if _fits(kernel, made) else None


def _fits(kernel: Kernel, one: Described) -> bool:
    """Of what is written as numbers, and of the blocks of this workload."""
    axes = one.tile.axes[::-1] if one.transposed else one.tile.axes
    sizes = [_observed(kernel, axis.block) for axis in axes]
    within = all(size is not None and 2 <= size <= LONGEST for size in sizes)
    wide = within and (sizes[1] or 0) * one.itemsize >= LINE
    whole = all(int(s) % (LINE // one.itemsize) == 0 for s in one.strides if s.isdecimal())
    stride, extent = one.strides[-1], one.shape[-1]
    return wide and whole and (not (stride + extent).isdecimal() or int(stride) >= int(extent))


def _is_always(tiles: Tiles, call: ast.Call) -> bool:
    """Each program gets there, so that the pointer is no tensor that may be left out."""
    node = tiles.parent(call)
    while node is not tiles.function:
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.BoolOp | ast.Lambda | ast.FunctionDef):
            return False
        node = tiles.parent(node)
    return True


def _unit(kernel: Kernel, stride: Terms) -> str | None:
    """The launcher's word for a stride that is 1 in this workload; empty: it is the number."""
    if stride == {(): 1}:
        return ""
    match list(stride.items()):
        case [((Atom(kind="name", key=name),), 1)]:
            seen = {(one.arguments | one.constants).get(name) for one in kernel.launched}
            return deciding.given(kernel, name) if seen == {1} else None
    return None


def _number(kernel: Kernel, name: str) -> str | None:
    """A parameter that is a whole number, in the launcher's words."""
    whole = all(type((one.arguments | one.constants).get(name)) is int for one in kernel.launched)
    return deciding.given(kernel, name) if whole else None


def _said(kernel: Kernel, number: Terms) -> str | None:
    """A product of parameters in the launcher's words."""
    match list(number.items()):
        case [(product, count)]:
            factors = [_number(kernel, a.key) if a.kind == "name" else None for a in product]
            texts = [*([str(count)] if count != 1 or not factors else []), *factors]
            known = [t for t in texts if t is not None]
            return " * ".join(known) if len(known) == len(texts) else None
    return None


def _size(kernel: Kernel, block: ast.expr) -> str | None:
    """Of a block, as the launcher says it."""
    if isinstance(block, ast.Name) and block.id in kernel.source.constexprs():
        return deciding.given(kernel, block.id)
    return str(block.value) if isinstance(block, ast.Constant) and type(block.value) is int else None


def _observed(kernel: Kernel, block: ast.expr) -> int | None:
    """One that all launches of the workload have."""
    if isinstance(block, ast.Constant):
        return block.value if isinstance(block.value, int) else None
    seen = {one.constants.get(ast.unparse(block)) for one in kernel.launched}
    value = seen.pop() if len(seen) == 1 else None
    return value if type(value) is int else None


def _programs(kernel: Kernel, axis: int) -> str | None:
    """How many the grid has along the axis, in the launcher's words."""
    launch = kernel.source.launches()[0]
    grid = launchers.grid(kernel.launcher, kernel.function, launch.call, most=3)
    if grid is None or axis >= len(grid):
        return None
    return grid[axis]


def _corner(tiles: Tiles, start: Terms, at: ast.AST) -> str | None:
    """A sum in the kernel's words at a place: names of 32 bits where they are the same number."""
    if not start:
        return "0"
    if (name := _name(tiles, start, at)) is not None:
        return name
    texts = []
    for product, count in start.items():
        factors = [_factor(tiles, a, at) for a in sorted(product, key=lambda a: a.kind == "name")]
        known = [f for f in factors if f is not None]
        if len(known) != len(factors):
            return None
        texts.append(" * ".join([*known, *([str(count)] if count != 1 or not known else [])]))
    return " + ".join(texts)


def _factor(tiles: Tiles, one: Atom, at: ast.AST) -> str | None:
    if (name := _name(tiles, {(one,): 1}, at)) is not None:
        return name
    if one.kind == "program" and one.key.isdecimal():
        return f"{tiles.tl}.program_id({one.key})"
    return one.key if one.kind == "name" and one.key in tiles.sizes else None


def _name(tiles: Tiles, number: Terms, at: ast.AST) -> str | None:
    stored = (
        n.id for n in ast.walk(tiles.function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )
    for name in dict.fromkeys(stored):
        if tiles.named(name, at) == number and not _is_wide(tiles, name):
            return name
    return None


def _is_wide(tiles: Tiles, name: str) -> bool:
    """Some of what it comes from has 64 bits, which no corner may have."""
    names = sources(tiles.function, ast.Name(name, ast.Load()))
    return any("int64" in ast.unparse(s) for n in names for s in assigned(tiles.function, n))


# --- writing ---------------------------------------------------------------------------------


def _fresh(kernel: Kernel, wanted: str, made: Iterable[str]) -> str:
    """A name that neither function uses."""
    taken = {*made, *names_in(kernel.launcher), *names_in(kernel.function)}
    taken |= {
        n.arg for f in (kernel.function, kernel.launcher) for n in ast.walk(f) if isinstance(n, ast.arg)
    }
    names = (wanted, *(f"{wanted}_{i}" for i in range(2, 99)))
    return next(name for name in names if name not in taken)


def _load(kernel: Kernel, one: Described, name: str) -> None:
    call, tl = one.tile.call, places.language(kernel)
    text = f"{name}.load([{', '.join(one.corner)}])"
    if one.tile.batch is not None:
        text += f".reshape({', '.join(ast.unparse(a.block) for a in _in_memory(one))})"
    if one.transposed:
        text = f"{tl}.trans({text})"
    line, was = places.line_of(kernel, call), kernel.text(call)
    alone = line.strip().endswith(f"= {was}") and "=" in line
    if alone and len(line) + len(text) + len(f" if {name} is None else ") <= places.WIDTH:
        kernel.replace(call, f"{was} if {name} is None else {text}")
        return
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    parts = [was.replace("\n", "\n    "), f"if {name} is None", f"else {text}"]
    kernel.replace(call, "(\n" + "".join(f"{indent}{p}\n" for p in parts) + indent[4:] + ")")


def _store(kernel: Kernel, one: Described, name: str) -> None:
    call, tl = one.tile.call, places.language(kernel)
    given = {k.arg: k.value for k in call.keywords} | dict(zip(("pointer", "value"), call.args, strict=False))
    value = kernel.text(given["value"])
    if one.transposed:
        value = f"{tl}.trans({value})"
    if one.tile.batch is not None:
        value = f"{tl}.expand_dims({value}, 0)"
    margin = "\n" + " " * call.col_offset
    was, value = (text.replace(margin, "\n    ") for text in (kernel.text(call), value))
    stored = _wrapped("", f"{name}.store", f"[{', '.join(one.corner)}], {value}", call.col_offset)
    lines = [f"if {name} is None:", f"    {was}", "else:", *(f"    {line}" for line in stored)]
    kernel.replace(call, places.indented(lines, places.across(call, call)))


def _in_memory(one: Described) -> list[Axis]:
    return list(one.tile.axes[::-1] if one.transposed else one.tile.axes)


def _guard(made: Mapping[str, Described]) -> list[str]:
    """Statements of the launcher that make the descriptors, or leave them None."""
    asked = _conditions(list(made.values()))
    return [
        "# TMA copies whole tiles, from Hopper on and where addresses and rows are multiples of 16 bytes.",
        f"{' = '.join(made)} = None",
        "if (",
        *(f"    {'and ' if place else ''}{text}" for place, text in enumerate(asked)),
        "):",
        *(f"    {line}" for name, one in made.items() for line in _wrapped(f"{name} = ", *one.descriptor)),
    ]


def _conditions(made: list[Described]) -> list[str]:
    """What a descriptor asks of its tensor; of numbers and of the workload's blocks `_fits` has seen it."""
    tensors = list(dict.fromkeys(one.tensor for one in made))
    first = tensors[0]  # on a CPU it is Triton's interpreter that reads descriptors
    capability = f"torch.cuda.get_device_capability({first}.device)[0]"
    found = [f"({first}.is_cpu or ({first}.is_cuda and {capability} >= 9))"]
    found += _equal([f"{tensor}.data_ptr() % {LINE}" for tensor in tensors], 0)
    for size in sorted({one.itemsize for one in made}):
        own = [one for one in made if one.itemsize == size]
        found += _equal([f"{one.tensor}.element_size()" for one in own], size)
        found += _equal([f"{s} % {LINE // size}" for s in _unknown(s for one in own for s in one.strides)], 0)
        found += [f"{LINE // size} <= {b} <= {LONGEST}" for b in _unknown(one.block[-1] for one in own)]
    found += [f"2 <= {b} <= {LONGEST}" for b in _unknown(b for one in made for b in one.block[:-1])]
    found += _equal(_unknown(one.unit for one in made if one.unit), 1)
    positive = _unknown(number for one in made for number in (*one.shape, *one.strides[:-1]))
    found += [f"{_of('min', positive)} > 0"] if positive else []
    rows = dict.fromkeys((one.strides[-1], one.shape[-1]) for one in made)
    found += [f"{s} >= {e}" for s, e in rows if s != e and not (s + e).isdecimal()]
    pairs = ([*zip(one.shape, one.strides, strict=False)] for one in made)
    ends = dict.fromkeys(" + ".join(f"{_factor_text(e)} * {s}" for e, s in each) for each in pairs)
    return [*found, f"{_of('max', list(ends))} < 2**31"]


def _equal(texts: Iterable[str], number: int) -> list[str]:
    every = list(dict.fromkeys(texts))
    one = f"{' == '.join(every)} == {number}"
    return (
        ([one] if len(one) < places.WIDTH - 12 else [f"{text} == {number}" for text in every])
        if every
        else []
    )


def _of(function: str, numbers: list[str]) -> str:
    return f"{function}({', '.join(numbers)})" if len(numbers) > 1 else numbers[0]


def _unknown(texts: Iterable[str]) -> list[str]:
    """Each once, without numbers."""
    return [text for text in dict.fromkeys(texts) if not text.isdecimal()]


def _factor_text(text: str) -> str:
    return f"({text})" if any(sign in text for sign in (" + ", " - ", "//")) else text


def _wrapped(head: str, function: str, arguments: str, indent: int = 0) -> list[str]:
    """A call, on lines of its own where it is long."""
    line = f"{head}{function}({arguments})"
    if len(line) + indent <= places.WIDTH - 8:
        return [line]
    return [f"{head}{function}(", f"    {arguments}", ")"]
