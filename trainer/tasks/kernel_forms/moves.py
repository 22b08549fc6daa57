"""Forms that move numbers: transposes, rows of a table, rotations."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, function, loop
from trainer.tasks.kernel_forms.tile_pieces import AT_TILE, IMAGES, PLACES, TILE, launch_tiles


def transposed(d: Draw) -> KernelForm:
    """A copy with its last dimensions exchanged, of a matrix or of several."""
    batched, turned = d.rng.random() < 0.5, d.rng.random() < 0.5
    lines, chained = d.chain("x", 0, 1)
    value, at, mask = "x", "column[None, :] * rows + row[:, None]", "mask"
    if turned:
        value, at = "tl.trans(x)", "column[:, None] * rows + row[None, :]"
        mask = "(column[:, None] < columns) & (row[None, :] < rows)"
    plane = "plane = tl.program_id(2).to(tl.int64) * rows * columns" if batched else ""
    first = " + plane" if batched else ""
    sizes = (
        d.shape((16, 1024, 1024), (64, 512, 768), (128, 256, 300)) if batched else d.shape(*IMAGES)
    )
    shape = "planes, columns, rows" if batched else "columns, rows"
    return KernelForm(
        kernel=function(
            f"kernel(x_ptr, out_ptr, rows, columns, {', '.join(TILE)})",
            *PLACES,
            plane,
            f"x = tl.load(x_ptr{first} + {AT_TILE}, mask=mask).to(tl.float32)",
            lines,
            f"tl.store(out_ptr{first} + {at}, {value}, mask={mask})",
        ),
        launcher=launch_tiles(
            d,
            "x",
            "rows, columns",
            made=f"torch.empty({shape}, device=x.device, dtype=x.dtype)",
            planes="planes" if batched else "",
        ),
        inputs={"x": (d.dtype, (sizes, (2, 70, 75) if batched else (70, 75)))},
        plain=chained.format(v="x.transpose(-1, -2)"),
    )


def gather(d: Draw) -> KernelForm:
    """Rows of a table (N, W) by an index (C,), with up to two operations on them."""
    block = d.one(64, 128, 512)
    table, count = d.rng.choice(
        (((50000, 1024), 16384), ((10000, 4096), 8192), ((100000, 512), 32768))
    )
    lines, chained = d.chain("y", 0, 2)
    return KernelForm(
        kernel="def kernel(table_ptr, index_ptr, out_ptr, width, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0).to(tl.int64)\n    source = tl.load(index_ptr + row)\n"
        "    for start in range(0, width, BLOCK):\n        column = start + tl.arange(0, BLOCK)\n"
        "        mask = column < width\n"
        "        y = tl.load(table_ptr + source * width + column, mask=mask, "
        "other=0.0).to(tl.float32)\n"
        + "".join(f"    {line}\n" for line in lines.splitlines())
        + "        tl.store(out_ptr + row * width + column, y, mask=mask)\n",
        launcher="def launch(table, index):\n    count, width = index.shape[0], table.shape[1]\n"
        "    out = torch.empty(count, width, device=table.device, dtype=table.dtype)\n"
        f"    kernel[(count,)](table, index, out, width, BLOCK={block}{d.options()})\n    "
        f"return out\n",
        inputs={
            "table": (d.dtype, (table, (5, 200))),
            "index": (f"index:{table[0]}", ((count,), (7,))),
        },
        plain=chained.format(v="table[index]"),
    )


def _added_up(weighted: bool, mean: bool) -> tuple[str, ...]:
    """The rows of one bag, at ``column``."""
    factor = " * tl.load(weight_ptr + bag * per + i).to(tl.float32)" if weighted else ""
    return (
        "mask = column < width",
        "y = tl.zeros((BLOCK,), dtype=tl.float32)",
        loop(
            "i in range(per)",
            "source = tl.load(index_ptr + bag * per + i)",
            f"y += tl.load(table_ptr + source * width + column, mask=mask, "
            f"other=0.0).to(tl.float32){factor}",
        ),
        f"tl.store(out_ptr + bag * width + column, y{' / per' if mean else ''}, mask=mask)",
    )


def bag(d: Draw) -> KernelForm:
    """Some rows of a table added up, often with weights."""
    weighted, mean, outside = d.rng.random() < 0.5, d.rng.random() < 0.4, d.rng.random() < 0.5
    count, per = d.rng.choice(((8192, 8), (4096, 32), (16384, 4), (2048, 64)))
    table = d.shape((50000, 512), (20000, 1024), (100000, 128))
    block = d.one(64, 128, 512)
    work = _added_up(weighted, mean)
    body = [loop("start in range(0, width, BLOCK)", "column = start + tl.arange(0, BLOCK)", *work)]
    if outside:
        body = ["column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)", *work]
    names = "table, index" + ", weight" * weighted
    pointers = ", ".join(f"{n}_ptr" for n in names.split(", "))
    plain = "table[index]" + " * weight[..., None]" * weighted
    return KernelForm(
        kernel=function(
            f"kernel({pointers}, out_ptr, per, width, BLOCK: tl.constexpr)",
            "bag = tl.program_id(0).to(tl.int64)",
            *body,
        ),
        launcher=function(
            f"launch({names})",
            "count, per = index.shape",
            "width = table.shape[1]",
            "out = torch.empty(count, width, device=table.device, dtype=table.dtype)",
            f"grid = (count,{f' triton.cdiv(width, {block})' if outside else ''})",
            f"kernel[grid]({names}, out, per, width, BLOCK={block}{d.options()})",
            "return out",
        ),
        inputs={
            "table": (d.dtype, (table, (5, 200))),
            "index": (f"index:{table[0]}", ((count, per), (7, 3))),
            **({"weight": (d.dtype, ((count, per), (7, 3)))} if weighted else {}),
        },
        plain=f"({plain}).{'mean' if mean else 'sum'}(1)",
    )


ONE_HEAD = ("head = tl.program_id(1)", "lane = tl.arange(0, HALF)", "mask = lane < half")
ALL_HEADS = (
    "head = tl.arange(0, HEADS)[:, None]",
    "lane = tl.arange(0, HALF)[None, :]",
    "mask = (head < heads) & (lane < half)",
)


def _rotated_text(halves: bool) -> str:
    """In PyTorch."""
    pairs = "x.chunk(2, 2)" if halves else "(x[..., 0::2], x[..., 1::2])"
    joined = "torch.cat(({0}, {1}), 2)" if halves else "torch.stack(({0}, {1}), 3).flatten(2)"
    turned = joined.format("a * c[:, None] - b * s[:, None]", "b * c[:, None] + a * s[:, None]")
    return f"(lambda a, b: {turned})(*{pairs})"


def rotary(d: Draw) -> KernelForm:
    """Positions turned into heads: halves of a head or neighbors are the pairs; a head or all of
    them a program."""
    halves, together = d.rng.random() < 0.6, d.rng.random() < 0.5
    one, two = ("lane", "lane + half") if halves else ("2 * lane", "2 * lane + 1")
    first = "token * heads * 2 * half + head * 2 * half + "
    sizes = d.shape((8192, 32, 128), (16384, 16, 64), (4096, 40, 128), (32768, 8, 96))
    half = sizes[2] // 2
    powers = ", HEADS=triton.next_power_of_2(heads)" * together
    return KernelForm(
        kernel=function(
            f"kernel(x_ptr, c_ptr, s_ptr, out_ptr, heads, half, "
            f"{'HEADS: tl.constexpr, ' * together}"
            "HALF: tl.constexpr)",
            "token = tl.program_id(0).to(tl.int64)",
            *(ALL_HEADS if together else ONE_HEAD),
            *(
                f"{n} = tl.load({n}_ptr + token * half + lane, mask=lane < half, "
                f"other=0.0).to(tl.float32)"
                for n in "cs"
            ),
            *(
                f"{n} = tl.load(x_ptr + {first}{at}, mask=mask, other=0.0).to(tl.float32)"
                for n, at in (("a", one), ("b", two))
            ),
            f"tl.store(out_ptr + {first}{one}, a * c - b * s, mask=mask)",
            f"tl.store(out_ptr + {first}{two}, b * c + a * s, mask=mask)",
        ),
        launcher=function(
            "launch(x, c, s)",
            "tokens, heads, width = x.shape",
            "half = width // 2",
            "out = torch.empty_like(x)",
            f"grid = (tokens,{'' if together else ' heads'})",
            f"kernel[grid](x, c, s, out, heads, half{powers}, HALF=triton.next_power_of_2(half)"
            f"{d.options()})",
            "return out",
        ),
        inputs={
            "x": (d.dtype, (sizes, (5, 3, 24))),
            **dict.fromkeys("cs", (d.dtype, ((sizes[0], half), (5, 12)))),
        },
        plain=_rotated_text(halves),
    )
