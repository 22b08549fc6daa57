"""The text of tensor descriptors: accesses by them in the kernel, their making in the launcher.

`load` and `store` change an access into one that takes the descriptor where there is one; `guard`
makes descriptors in calls that they fit, and leaves None else. Standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from kernel_lsp.rewrite.kernels import places
from kernel_lsp.rewrite.kernels.descriptors import LINE, LONGEST, DescribedTile
from kernel_lsp.rewrite.kernels.source import names_in
from kernel_lsp.rewrite.kernels.tiles import BlockAxis
from kernel_lsp.rewrite.kernels.view import Kernel


def fresh(kernel: Kernel, wanted: str, made: Iterable[str]) -> str:
    """A name that neither function uses."""
    taken = {*made, *names_in(kernel.launcher), *names_in(kernel.function)}
    taken |= {
        n.arg
        for f in (kernel.function, kernel.launcher)
        for n in ast.walk(f)
        if isinstance(n, ast.arg)
    }
    names = (wanted, *(f"{wanted}_{i}" for i in range(2, 99)))
    return next(name for name in names if name not in taken)


def load(kernel: Kernel, one: DescribedTile, name: str) -> None:
    """Makes the tile's load go by the descriptor ``name`` where the launcher has made it, else as
    before."""
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


def store(kernel: Kernel, one: DescribedTile, name: str) -> None:
    """Makes the tile's store go by the descriptor ``name`` where the launcher has made it, else as
    before."""
    call, tl = one.tile.call, places.language(kernel)
    given = {k.arg: k.value for k in call.keywords} | dict(
        zip(("pointer", "value"), call.args, strict=False)
    )
    value = kernel.text(given["value"])
    if one.transposed:
        value = f"{tl}.trans({value})"
    if one.tile.batch is not None:
        value = f"{tl}.expand_dims({value}, 0)"
    margin = "\n" + " " * call.col_offset
    was, value = (text.replace(margin, "\n    ") for text in (kernel.text(call), value))
    stored = _wrap_call("", f"{name}.store", f"[{', '.join(one.corner)}], {value}", call.col_offset)
    lines = [f"if {name} is None:", f"    {was}", "else:", *(f"    {line}" for line in stored)]
    kernel.replace(call, places.indent_lines(lines, places.across(call, call)))


def _in_memory(one: DescribedTile) -> list[BlockAxis]:
    return list(one.tile.axes[::-1] if one.transposed else one.tile.axes)


def guard(made: Mapping[str, DescribedTile]) -> list[str]:
    """Statements of the launcher that make the descriptors, or leave them None."""
    asked = _conditions(list(made.values()))
    return [
        "# TMA copies whole tiles, from Hopper on and where addresses and rows are multiples of "
        "16 bytes.",
        f"{' = '.join(made)} = None",
        "if (",
        *(f"    {'and ' if place else ''}{text}" for place, text in enumerate(asked)),
        "):",
        *(
            f"    {line}"
            for name, one in made.items()
            for line in _wrap_call(f"{name} = ", *one.descriptor)
        ),
    ]


def _conditions(made: list[DescribedTile]) -> list[str]:
    """What a descriptor asks of its tensor; of numbers and of the workload's blocks it has been
    seen."""
    tensors = list(dict.fromkeys(one.tensor for one in made))
    first = tensors[0]  # on a CPU it is Triton's interpreter that reads descriptors
    capability = f"torch.cuda.get_device_capability({first}.device)[0]"
    return [
        f"({first}.is_cpu or ({first}.is_cuda and {capability} >= 9))",
        *_equal([f"{tensor}.data_ptr() % {LINE}" for tensor in tensors], 0),
        *_line_conditions(made),
        *_block_conditions(made),
        *_row_conditions(made),
    ]


def _line_conditions(made: list[DescribedTile]) -> list[str]:
    """Rows begin at multiples of 16 bytes, and a tile's row has 16 bytes at least."""
    found: list[str] = []
    for size in sorted({one.itemsize for one in made}):
        own = [one for one in made if one.itemsize == size]
        strides = _unknown_names(s for one in own for s in one.strides)
        found += _equal([f"{one.tensor}.element_size()" for one in own], size)
        found += _equal([f"{s} % {LINE // size}" for s in strides], 0)
        blocks = _unknown_names(one.block[-1] for one in own)
        found += [f"{LINE // size} <= {b} <= {LONGEST}" for b in blocks]
    return found


def _block_conditions(made: list[DescribedTile]) -> list[str]:
    blocks = _unknown_names(b for one in made for b in one.block[:-1])
    units = _unknown_names(one.unit for one in made if one.unit)
    return [*(f"2 <= {b} <= {LONGEST}" for b in blocks), *_equal(units, 1)]


def _row_conditions(made: list[DescribedTile]) -> list[str]:
    """Sizes are positive, rows do not overlap, and offsets fit into 32 bits."""
    positive = _unknown_names(number for one in made for number in (*one.shape, *one.strides[:-1]))
    found = [f"{_of('min', positive)} > 0"] if positive else []
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


def _unknown_names(texts: Iterable[str]) -> list[str]:
    """Each once, without numbers."""
    return [text for text in dict.fromkeys(texts) if not text.isdecimal()]


def _factor_text(text: str) -> str:
    return f"({text})" if any(sign in text for sign in (" + ", " - ", "//")) else text


def _wrap_call(head: str, function: str, arguments: str, indent: int = 0) -> list[str]:
    """A call, on lines of its own where it is long."""
    line = f"{head}{function}({arguments})"
    if len(line) + indent <= places.WIDTH - 8:
        return [line]
    return [f"{head}{function}(", f"    {arguments}", ")"]
