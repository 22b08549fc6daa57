"""Forms that compute each number of the result alone: chains, broadcasts, pairs of vectors,
gates."""

from __future__ import annotations

from functools import reduce

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, function
from trainer.tasks.kernel_forms.row_pieces import AT, BLOCKS, ROW, TWIN, passing
from trainer.tasks.kernel_forms.tile_pieces import AT_TILE, IMAGES, PLACES, TILE, launch_tiles


def pointwise(d: Draw) -> KernelForm:
    """One to three tensors of one shape joined by arithmetic, then a chain of operations."""
    names = ["a", "b", "c"][: d.one(1, 1, 2, 2, 3)]
    block, sizes = (
        d.one(64, 128, 256, 1024, 1024, 4096),
        d.shape((4096, 4096), (8192, 2048), (1000, 3000)),
    )
    signs = [d.rng.choice("+*-") for _ in names[1:]]
    loads = "".join(
        f"    {n} = tl.load({n}_ptr + offsets, mask=mask).to(tl.float32)\n" for n in names
    )
    joined = "".join(f"    a = a {sign} {n}\n" for sign, n in zip(signs, names[1:], strict=True))
    plain = reduce(
        lambda left, pair: f"({left} {pair[0]} {pair[1]})", zip(signs, names[1:], strict=True), "a"
    )
    lines, chained = d.chain("a", 1, 4)
    return KernelForm(
        kernel=f"def kernel({', '.join(f'{n}_ptr' for n in names)}, out_ptr, n, BLOCK: "
        f"tl.constexpr):\n"
        "    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    mask = offsets < n\n"
        f"{loads}{joined}{lines}    tl.store(out_ptr + offsets, a, mask=mask)\n",
        launcher=f"def launch({', '.join(names)}):\n    out = torch.empty_like(a)\n    n = "
        f"a.numel()\n"
        f"    grid = (triton.cdiv(n, {block}),)\n"
        f"    kernel[grid]({', '.join(names)}, out, n, BLOCK={block}{d.options()})\n    "
        f"return out\n",
        inputs=dict.fromkeys(names, (d.dtype, (sizes, (5, 70)))),
        plain=chained.format(v=plain),
    )


def broadcast(d: Draw) -> KernelForm:
    """A matrix times a vector by column plus a vector by row, written straight or transposed."""
    r, c = d.one(16, 32, 64), d.one(16, 32, 64, 128)
    turned = d.rng.random() < 0.5
    sizes = d.shape((4096, 4096), (8192, 2048), (2000, 9000))
    lines, chained = d.chain("y", 0, 2)
    target = (
        "column[None, :] * rows + row[:, None]"
        if turned
        else "row[:, None] * columns + column[None, :]"
    )
    shape = "columns, rows" if turned else "rows, columns"
    inner = "(x * scale + shift[:, None])"
    return KernelForm(
        kernel="def kernel(x_ptr, scale_ptr, shift_ptr, out_ptr, rows, columns, BLOCK_R: "
        "tl.constexpr,"
        " BLOCK_C: tl.constexpr):\n"
        "    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)\n"
        "    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)\n"
        "    mask = (row[:, None] < rows) & (column[None, :] < columns)\n"
        "    x = tl.load(x_ptr + row[:, None] * columns + column[None, :], "
        "mask=mask).to(tl.float32)\n"
        "    scale = tl.load(scale_ptr + column, mask=column < columns).to(tl.float32)\n"
        "    shift = tl.load(shift_ptr + row, mask=row < rows).to(tl.float32)\n"
        f"    y = x * scale[None, :] + shift[:, None]\n{lines}"
        f"    tl.store(out_ptr + {target}, y, mask=mask)\n",
        launcher="def launch(x, scale, shift):\n    rows, columns = x.shape\n"
        f"    out = torch.empty({shape}, device=x.device, dtype=x.dtype)\n"
        f"    grid = (triton.cdiv(rows, {r}), triton.cdiv(columns, {c}))\n"
        f"    kernel[grid](x, scale, shift, out, rows, columns, BLOCK_R={r}, "
        f"BLOCK_C={c}{d.options()})\n"
        "    return out\n",
        inputs={
            "x": (d.dtype, (sizes, (70, 75))),
            "scale": (d.dtype, ((sizes[1],), (75,))),
            "shift": (d.dtype, ((sizes[0],), (70,))),
        },
        plain=chained.format(v=inner + (".t()" if turned else "")),
    )


PAIRS = {
    "outer": ("a[:, None] * b[None, :]", "torch.outer(a, b)"),
    "difference": ("tl.abs(a[:, None] - b[None, :])", "(a[:, None] - b).abs()"),
    "kernel": (
        "tl.exp(-(a[:, None] - b[None, :]) * (a[:, None] - b[None, :]))",
        "torch.exp(-((a[:, None] - b) ** 2))",
    ),
}


def pairs(d: Draw) -> KernelForm:
    """Every number of one vector with every one of another; often added to a matrix."""
    written, plain = PAIRS[d.rng.choice(sorted(PAIRS))]
    added = d.rng.random() < 0.6
    lines, chained = d.chain("y", 0, 2)
    sizes = d.shape(*IMAGES)
    read = (
        "a = tl.load(a_ptr + row, mask=row < rows, other=0.0).to(tl.float32)",
        "b = tl.load(b_ptr + column, mask=column < columns, other=0.0).to(tl.float32)",
        f"y = {written}",
    )
    if not added:
        r, c = d.one(1, 8, 32, 64), d.one(32, 64, 128, 256)
        launcher = function(
            "launch(a, b)",
            "rows, columns = a.numel(), b.numel()",
            "out = torch.empty(rows, columns, device=a.device, dtype=a.dtype)",
            f"grid = (triton.cdiv(rows, {r}), triton.cdiv(columns, {c}))",
            f"kernel[grid](a, b, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})",
            "return out",
        )
    return KernelForm(
        kernel=function(
            f"kernel({'x_ptr, ' * added}a_ptr, b_ptr, out_ptr, rows, columns, {', '.join(TILE)})",
            *PLACES,
            *read,
            f"y += tl.load(x_ptr + {AT_TILE}, mask=mask, other=0.0).to(tl.float32)"
            if added
            else "",
            lines,
            f"tl.store(out_ptr + {AT_TILE}, y, mask=mask)",
        ),
        launcher=launch_tiles(d, "x, a, b", "rows, columns") if added else launcher,
        inputs={
            **({"x": (d.dtype, (sizes, (70, 75)))} if added else {}),
            "a": (d.dtype, ((sizes[0],), (70,))),
            "b": (d.dtype, ((sizes[1],), (75,))),
        },
        plain=chained.format(v=f"({plain} + x)" if added else plain),
    )


GATES = {
    "silu": ("a * tl.sigmoid(a)", "torch.nn.functional.silu(a)"),
    "gelu": ("0.5 * a * (1.0 + tl.erf(a * 0.70710678))", "torch.nn.functional.gelu(a)"),
    "sigmoid": ("1.0 / (1.0 + tl.exp(-a))", "torch.sigmoid(a)"),
    "relu": ("tl.where(a > 0.0, a, 0.0)", "torch.relu(a)"),
}


def gated(d: Draw) -> KernelForm:
    """One half of a row opens and closes the other."""
    gate, plain = GATES[d.rng.choice(sorted(GATES))]
    looped, swapped = d.rng.random() < 0.5, d.rng.random() < 0.3
    ahead, behind = ("b", "a") if swapped else ("a", "b")
    at = "row * 2 * columns + column"
    work = (
        f"{ahead} = tl.load(x_ptr + {at}, mask=mask).to(tl.float32)",
        f"{behind} = tl.load(x_ptr + {at} + columns, mask=mask).to(tl.float32)",
        f"gate = {gate}",
        f"tl.store(out_ptr + {AT}, gate * b, mask=mask)",
    )
    body = [passing(*work)] if looped else []
    if not looped:
        body = [
            "column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)",
            "mask = column < columns",
            *work,
        ]
    block = d.one(64, *BLOCKS)
    sizes = d.shape((4096, 8192), (16384, 2048), (2048, 22016), (65536, 256))
    return KernelForm(
        kernel=function("kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr)", ROW, *body),
        launcher=function(
            "launch(x)",
            "rows, columns = x.shape[0], x.shape[1] // 2",
            "out = torch.empty(rows, columns, device=x.device, dtype=x.dtype)",
            f"grid = (rows,{'' if looped else f' triton.cdiv(columns, {block})'})",
            f"kernel[grid](x, out, columns, BLOCK={block}{d.options()})",
            "return out",
        ),
        inputs={"x": (d.dtype, (sizes, TWIN))},
        plain=f"(lambda {ahead}, {behind}: {plain} * b)(*x.chunk(2, 1))",
    )
