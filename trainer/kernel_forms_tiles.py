"""Forms of kernels that move, window or spread numbers: transposes, stencils, pools, rotations, recurrences.

As in `trainer.kernel_forms`: blocks and warps drawn, tiles of one or two dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

from trainer.kernel_forms import Draw, Form, function, inside, loop

TILE = ("BLOCK_R: tl.constexpr", "BLOCK_C: tl.constexpr")
PLACES = (
    "row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)",
    "column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)",
    "mask = (row[:, None] < rows) & (column[None, :] < columns)",
)
AT = "row[:, None] * columns + column[None, :]"
IMAGES = ((4096, 4096), (8192, 2048), (2000, 5000))


def _tiled(d: Draw, names: str, passed: str, *, made: str = "torch.empty_like(x)", planes: str = "") -> str:
    """Launches a tile a program over ``rows`` and ``columns`` of the first argument."""
    r, c = d.one(1, 8, 16, 32, 64), d.one(16, 32, 64, 128)
    return function(
        f"launch({names})",
        f"{planes and planes + ', '}rows, columns = {names.partition(',')[0]}.shape",
        f"out = {made}",
        f"grid = (triton.cdiv(rows, {r}), triton.cdiv(columns, {c}){planes and ', ' + planes})",
        f"kernel[grid]({names}, out, {passed}, BLOCK_R={r}, BLOCK_C={c}{d.options()})",
        "return out",
    )


def transposed(d: Draw) -> Form:
    """A copy with its last dimensions exchanged, of a matrix or of several."""
    batched, turned = d.rng.random() < 0.5, d.rng.random() < 0.5
    lines, chained = d.chain("x", 0, 1)
    value, at, mask = "x", "column[None, :] * rows + row[:, None]", "mask"
    if turned:
        value, at = "tl.trans(x)", "column[:, None] * rows + row[None, :]"
        mask = "(column[:, None] < columns) & (row[None, :] < rows)"
    plane = "plane = tl.program_id(2).to(tl.int64) * rows * columns" if batched else ""
    first = " + plane" if batched else ""
    sizes = d.shape((16, 1024, 1024), (64, 512, 768), (128, 256, 300)) if batched else d.shape(*IMAGES)
    shape = "planes, columns, rows" if batched else "columns, rows"
    return Form(
        kernel=function(
            f"kernel(x_ptr, out_ptr, rows, columns, {', '.join(TILE)})",
            *PLACES,
            plane,
            f"x = tl.load(x_ptr{first} + {AT}, mask=mask).to(tl.float32)",
            lines,
            f"tl.store(out_ptr{first} + {at}, {value}, mask={mask})",
        ),
        launcher=_tiled(
            d,
            "x",
            "rows, columns",
            made=f"torch.empty({shape}, device=x.device, dtype=x.dtype)",
            planes="planes" if batched else "",
        ),
        inputs={"x": (d.dtype, (sizes, (2, 70, 75) if batched else (70, 75)))},
        plain=chained.format(v="x.transpose(-1, -2)"),
    )


DOWN = {
    "softmax": ('float("-inf")', "tl.exp(x - largest[None, :]) / weight[None, :]", "torch.softmax(x, 0)"),
    "unit": (
        "0.0",
        "x * tl.rsqrt(squares + 1e-6)[None, :]",
        "x * torch.rsqrt((x * x).sum(0, True) + 1e-6)",
    ),
    "center": ("0.0", "x - (total / rows)[None, :]", "x - x.mean(0, True)"),
}


def down_columns(d: Draw) -> Form:
    """Softmax or a norm along the first dimension: a block of columns a program."""
    name = d.rng.choice(sorted(DOWN))
    other, written, plain = DOWN[name]

    def passing(*parts: str) -> str:
        return loop(
            "start in range(0, rows, BLOCK_R)",
            "row = start + tl.arange(0, BLOCK_R)",
            "mask = (row[:, None] < rows) & (column[None, :] < columns)",
            f"x = tl.load(x_ptr + {AT}, mask=mask, other={other}).to(tl.float32)",
            *parts,
        )

    zeros = "tl.zeros((BLOCK_C,), dtype=tl.float32)"
    if name == "softmax":
        # columns past the end are -inf throughout: kept finite, nothing of them is written
        passes = ["largest = tl.full((BLOCK_C,), -1e30, dtype=tl.float32)", f"weight = {zeros}"]
        if d.rng.random() < 0.5:
            online = ["new = tl.maximum(largest, tl.max(x, axis=0))", "weight *= tl.exp(largest - new)"]
            online += ["weight += tl.sum(tl.exp(x - new[None, :]), axis=0)", "largest = new"]
            passes += [passing(*online)]
        else:
            passes += [passing("largest = tl.maximum(largest, tl.max(x, axis=0))")]
            passes += [passing("weight += tl.sum(tl.exp(x - largest[None, :]), axis=0)")]
    else:
        word, value = ("squares", "x * x") if name == "unit" else ("total", "x")
        passes = [f"{word} = {zeros}", passing(f"{word} += tl.sum({value}, axis=0)")]
    r, c = d.one(4, 16, 32, 128), d.one(16, 32, 64, 128)
    sizes = d.shape((4096, 4096), (16384, 1024), (1024, 8192), (2000, 3000))
    return Form(
        kernel=function(
            f"kernel(x_ptr, out_ptr, rows, columns, {', '.join(TILE)})",
            "column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)",
            *passes,
            passing(f"tl.store(out_ptr + {AT}, {written}, mask=mask)"),
        ),
        launcher=function(
            "launch(x)",
            "rows, columns = x.shape",
            "out = torch.empty_like(x)",
            f"grid = (triton.cdiv(columns, {c}),)",
            f"kernel[grid](x, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})",
            "return out",
        ),
        inputs={"x": (d.dtype, (sizes, (150, 140)))},
        plain=plain,
    )


STENCILS = {
    "cross": ((0, 0, -4.0), (-1, 0, 1.0), (1, 0, 1.0), (0, -1, 1.0), (0, 1, 1.0)),
    "slope": ((0, 1, 0.5), (0, -1, -0.5)),
    "blur": tuple((i, j, 0.0625 * (2 - abs(i)) * (2 - abs(j))) for i in (-1, 0, 1) for j in (-1, 0, 1)),
    "edge": ((-1, -1, -1.0), (-1, 1, 1.0), (0, -1, -2.0), (0, 1, 2.0), (1, -1, -1.0), (1, 1, 1.0)),
}
"""Name -> steps down and right, and the weight; zeros beyond the border."""


def stencil(d: Draw) -> Form:
    name, batched = d.rng.choice(sorted(STENCILS)), d.rng.random() < 0.4
    first = "plane + " if batched else ""
    lines, chained = d.chain("y", 0, 2)
    taps = "y = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)\n"
    for i, j, weight in STENCILS[name]:
        taps += f"r, c = row[:, None] + {i}, column[None, :] + {j}\n".replace("+ -", "- ").replace(" + 0", "")
        taps += "near = (r >= 0) & (r < rows) & (c >= 0) & (c < columns)\n"
        taps += f"y += {weight} * tl.load(x_ptr + {first}r * columns + c, mask=near, other=0.0)"
        taps += ".to(tl.float32)\n"
    grid = [[0.0] * 3 for _ in range(3)]
    for i, j, weight in STENCILS[name]:
        grid[i + 1][j + 1] = weight
    sizes = d.shape((16, 1024, 1024), (64, 512, 512), (8, 1080, 1920)) if batched else d.shape(*IMAGES)
    image = "x[:, None]" if batched else "x[None, None]"
    plain = f"torch.nn.functional.conv2d({image}, torch.tensor([[{grid}]]), padding=1)"
    plain += "[:, 0]" if batched else "[0, 0]"
    return Form(
        kernel=function(
            f"kernel(x_ptr, out_ptr, rows, columns, {', '.join(TILE)})",
            *PLACES,
            "plane = tl.program_id(2).to(tl.int64) * rows * columns" if batched else "",
            taps,
            lines,
            f"tl.store(out_ptr + {first}{AT}, y, mask=mask)",
        ),
        launcher=_tiled(d, "x", "rows, columns", planes="planes" if batched else ""),
        inputs={"x": (d.dtype, (sizes, (3, 40, 75) if batched else (70, 75)))},
        plain=chained.format(v=plain),
    )


PAIRS = {
    "outer": ("a[:, None] * b[None, :]", "torch.outer(a, b)"),
    "difference": ("tl.abs(a[:, None] - b[None, :])", "(a[:, None] - b).abs()"),
    "kernel": (
        "tl.exp(-(a[:, None] - b[None, :]) * (a[:, None] - b[None, :]))",
        "torch.exp(-((a[:, None] - b) ** 2))",
    ),
}


def pairs(d: Draw) -> Form:
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
    return Form(
        kernel=function(
            f"kernel({'x_ptr, ' * added}a_ptr, b_ptr, out_ptr, rows, columns, {', '.join(TILE)})",
            *PLACES,
            *read,
            f"y += tl.load(x_ptr + {AT}, mask=mask, other=0.0).to(tl.float32)" if added else "",
            lines,
            f"tl.store(out_ptr + {AT}, y, mask=mask)",
        ),
        launcher=_tiled(d, "x, a, b", "rows, columns") if added else launcher,
        inputs={
            **({"x": (d.dtype, (sizes, (70, 75)))} if added else {}),
            "a": (d.dtype, ((sizes[0],), (70,))),
            "b": (d.dtype, ((sizes[1],), (75,))),
        },
        plain=chained.format(v=f"({plain} + x)" if added else plain),
    )


def pool_rows(d: Draw) -> Form:
    """Windows along a row: a loop over their places, or a tile with one window a row."""
    size, most, tiled = d.one(2, 4, 8, 16), d.rng.random() < 0.5, d.rng.random() < 0.5
    stride = d.one(size, size, max(size // 2, 1))
    out_of = "(column * STRIDE)[:, None] + tl.arange(0, SIZE)[None, :]"
    other = 'float("-inf")' if most else "0.0"
    if tiled:
        word = "max" if most else "sum"
        body = [f"place = {out_of}"]
        load = f"tl.load(x_ptr + row * length + place, mask=mask[:, None], other={other}).to(tl.float32)"
        body += [f"x = {load}", f"y = tl.{word}(x, axis=1){'' if most else ' / SIZE'}"]
    else:
        load = (
            f"x = tl.load(x_ptr + row * length + column * STRIDE + tap, mask=mask, other={other})"
            ".to(tl.float32)"
        )
        body = [f"y = tl.full((BLOCK,), {other}, dtype=tl.float32)"]
        body += [loop("tap in range(SIZE)", load, "y = tl.maximum(y, x)" if most else "y += x / SIZE")]
    block = d.one(64, 128, 256, 1024)
    sizes = d.shape((4096, 4096), (1024, 16384), (16384, 1024))
    call = f"out, length, count, STRIDE={stride}, SIZE={size}, BLOCK={block}{d.options()}"
    kind = "max" if most else "avg"
    return Form(
        kernel=function(
            "kernel(x_ptr, out_ptr, length, count, STRIDE: tl.constexpr, SIZE: tl.constexpr,"
            " BLOCK: tl.constexpr)",
            "row = tl.program_id(0).to(tl.int64)",
            "column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)",
            "mask = column < count",
            *body,
            "tl.store(out_ptr + row * count + column, y, mask=mask)",
        ),
        launcher=function(
            "launch(x)",
            "rows, length = x.shape",
            f"count = (length - {size}) // {stride} + 1",
            "out = torch.empty(rows, count, device=x.device, dtype=x.dtype)",
            f"grid = (rows, triton.cdiv(count, {block}))",
            f"kernel[grid](x, {call})",
            "return out",
        ),
        inputs={"x": (d.dtype, (sizes, (6, 300)))},
        plain=f"torch.nn.functional.{kind}_pool1d(x[None], {size}, {stride})[0]",
    )


def pool_image(d: Draw) -> Form:
    """Windows of an image, one number of the result a lane; or the other way, each number repeated."""
    size, block = d.one(2, 2, 3, 4), d.one(64, 128, 256, 512, 1024)
    kind = d.rng.choice(("max", "avg", "repeat"))
    begin = 'float("-inf")' if kind == "max" else "0.0"
    at = "plane * height * width + (r * SIZE + i) * width + c * SIZE + j"
    body = [
        f"y = tl.full((BLOCK,), {begin}, dtype=tl.float32)",
        loop(
            "i in range(SIZE)",
            loop(
                "j in range(SIZE)",
                f"x = tl.load(x_ptr + {at}, mask=mask, other=0.0).to(tl.float32)",
                "y = tl.maximum(y, x)" if kind == "max" else "y += x",
            ),
        ),
        "y = y / (SIZE * SIZE)" if kind == "avg" else "",
    ]
    if kind == "repeat":
        at = "plane * height * width + (r // SIZE) * width + c // SIZE"
        body = [f"y = tl.load(x_ptr + {at}, mask=mask, other=0.0)"]
    by = "*" if kind == "repeat" else "//"
    sizes = d.shape((1024, 128, 128), (256, 224, 224), (4096, 56, 56))
    if kind == "repeat":
        sizes = d.shape((512, 64, 64), (128, 112, 112), (2048, 28, 28))
    plain = f"torch.nn.functional.{kind}_pool2d(x, {size})"
    if kind == "repeat":
        plain = f"x.repeat_interleave({size}, 1).repeat_interleave({size}, 2)"
    return Form(
        kernel=function(
            "kernel(x_ptr, out_ptr, n, height, width, high, wide, SIZE: tl.constexpr, BLOCK: tl.constexpr)",
            "place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "mask = place < n",
            "c = place % wide",
            "r = (place // wide) % high",
            "plane = place // (wide * high)",
            *body,
            "tl.store(out_ptr + place, y, mask=mask)",
        ),
        launcher=function(
            "launch(x)",
            "planes, height, width = x.shape",
            f"high, wide = height {by} {size}, width {by} {size}",
            "out = torch.empty(planes, high, wide, device=x.device, dtype=x.dtype)",
            "n = out.numel()",
            f"grid = (triton.cdiv(n, {block}),)",
            f"kernel[grid](x, out, n, height, width, high, wide, SIZE={size}, BLOCK={block}{d.options()})",
            "return out",
        ),
        inputs={"x": (d.dtype, (sizes, (3, 21, 26)))},
        plain=plain,
    )


def rotary(d: Draw) -> Form:
    """Positions turned into heads: halves of a head or neighbors are the pairs; a head or all of them a
    program."""
    halves, together = d.rng.random() < 0.6, d.rng.random() < 0.5
    one, two = ("lane", "lane + half") if halves else ("2 * lane", "2 * lane + 1")
    first = "token * heads * 2 * half + head * 2 * half + "
    if together:
        head = ["head = tl.arange(0, HEADS)[:, None]", "lane = tl.arange(0, HALF)[None, :]"]
        head += ["mask = (head < heads) & (lane < half)"]
    else:
        head = ["head = tl.program_id(1)", "lane = tl.arange(0, HALF)", "mask = lane < half"]
    sizes = d.shape((8192, 32, 128), (16384, 16, 64), (4096, 40, 128), (32768, 8, 96))
    half = sizes[2] // 2
    pairs_of = "x.chunk(2, 2)" if halves else "(x[..., 0::2], x[..., 1::2])"
    joined = "torch.cat(({0}, {1}), 2)" if halves else "torch.stack(({0}, {1}), 3).flatten(2)"
    turned = joined.format("a * c[:, None] - b * s[:, None]", "b * c[:, None] + a * s[:, None]")
    powers = ", HEADS=triton.next_power_of_2(heads)" * together
    return Form(
        kernel=function(
            f"kernel(x_ptr, c_ptr, s_ptr, out_ptr, heads, half, {'HEADS: tl.constexpr, ' * together}"
            "HALF: tl.constexpr)",
            "token = tl.program_id(0).to(tl.int64)",
            *head,
            *(
                f"{n} = tl.load({n}_ptr + token * half + lane, mask=lane < half, other=0.0).to(tl.float32)"
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
        plain=f"(lambda a, b: {turned})(*{pairs_of})",
    )


def bag(d: Draw) -> Form:
    """Some rows of a table added up, often with weights."""
    weighted, mean, outside = d.rng.random() < 0.5, d.rng.random() < 0.4, d.rng.random() < 0.5
    count, per = d.rng.choice(((8192, 8), (4096, 32), (16384, 4), (2048, 64)))
    table = d.shape((50000, 512), (20000, 1024), (100000, 128))
    factor = " * tl.load(weight_ptr + bag * per + i).to(tl.float32)" if weighted else ""
    inner = loop(
        "i in range(per)",
        "source = tl.load(index_ptr + bag * per + i)",
        f"y += tl.load(table_ptr + source * width + column, mask=mask, other=0.0).to(tl.float32){factor}",
    )
    place = "column = {} + tl.arange(0, BLOCK)"
    work = (
        "mask = column < width",
        "y = tl.zeros((BLOCK,), dtype=tl.float32)",
        inner,
        f"tl.store(out_ptr + bag * width + column, y{' / per' if mean else ''}, mask=mask)",
    )
    block = d.one(64, 128, 512)
    body = [loop("start in range(0, width, BLOCK)", place.format("start"), *work)]
    if outside:
        body = [place.format("tl.program_id(1) * BLOCK"), *work]
    names = "table, index" + ", weight" * weighted
    pointers = ", ".join(f"{n}_ptr" for n in names.split(", "))
    plain = "table[index]" + " * weight[..., None]" * weighted
    return Form(
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


def channels_window(d: Draw) -> Form:
    """Each moment with some before it, every channel with its own weights; channels lie side by side."""
    taps, block_t, block_c = d.one(2, 3, 4), d.one(1, 8, 32, 64), d.one(32, 64, 128, 256)
    silu = d.rng.random() < 0.5
    sizes = d.shape((8, 2048, 1024), (4, 4096, 2048), (32, 1000, 512))
    return Form(
        kernel=function(
            "kernel(x_ptr, w_ptr, b_ptr, out_ptr, length, channels, TAPS: tl.constexpr,"
            " BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr)",
            "first = tl.program_id(2).to(tl.int64) * length * channels",
            "time = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]",
            "channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]",
            "mask = (time < length) & (channel < channels)",
            "y = tl.zeros((BLOCK_T, BLOCK_C), dtype=tl.float32)",
            "y += tl.load(b_ptr + channel, mask=channel < channels, other=0.0).to(tl.float32)",
            loop(
                "tap in tl.static_range(TAPS)" if d.rng.random() < 0.5 else "tap in range(TAPS)",
                "w = tl.load(w_ptr + tap * channels + channel, mask=channel < channels, other=0.0)",
                "at = first + (time - tap) * channels + channel",
                "x = tl.load(x_ptr + at, mask=mask & (time >= tap), other=0.0)",
                "y += x.to(tl.float32) * w.to(tl.float32)",
            ),
            "y = y * tl.sigmoid(y)" if silu else "",
            "tl.store(out_ptr + first + time * channels + channel, y, mask=mask)",
        ),
        launcher=function(
            "launch(x, w, b)",
            "batch, length, channels = x.shape",
            "out = torch.empty_like(x)",
            f"grid = (triton.cdiv(length, {block_t}), triton.cdiv(channels, {block_c}), batch)",
            f"kernel[grid](x, w, b, out, length, channels, TAPS={taps}, BLOCK_T={block_t},"
            f" BLOCK_C={block_c}{d.options()})",
            "return out",
        ),
        inputs={
            "x": (d.dtype, (sizes, (2, 40, 70))),
            "w": (d.dtype, ((taps, sizes[2]), (taps, 70))),
            "b": (d.dtype, ((sizes[2],), (70,))),
        },
        plain=f"(lambda v: {'torch.nn.functional.silu(v)' if silu else 'v'})(b + sum(w[t] * "
        f"torch.nn.functional.pad(x, (0, 0, t, 0))[:, : x.shape[1]] for t in range({taps})))",
    )


def recurrence(d: Draw) -> Form:
    """A state a channel, brought from moment to moment by a gate."""
    block, mixed = d.one(32, 64, 128, 256), d.rng.random() < 0.5
    sizes = d.shape((64, 256, 1024), (16, 512, 2048), (128, 128, 768))
    read = inside(
        "at = first + time * channels + channel",
        "a = tl.sigmoid(tl.load(a_ptr + at, mask=mask, other=0.0).to(tl.float32))",
        "x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)",
        f"state = a * state + {'(1.0 - a) * ' * mixed}x",
        "tl.store(out_ptr + at, state, mask=mask)",
    )
    step = "a[:, t] * s + " + "(1 - a[:, t]) * " * mixed + "x[:, t]"
    return Form(
        kernel=function(
            "kernel(x_ptr, a_ptr, out_ptr, length, channels, BLOCK: tl.constexpr)",
            "channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "mask = channel < channels",
            "first = tl.program_id(1).to(tl.int64) * length * channels",
            "state = tl.zeros((BLOCK,), dtype=tl.float32)",
            f"for time in range(length):\n{read}",
        ),
        launcher=function(
            "launch(x, a)",
            "batch, length, channels = x.shape",
            "out = torch.empty_like(x)",
            f"grid = (triton.cdiv(channels, {block}), batch)",
            f"kernel[grid](x, a, out, length, channels, BLOCK={block}{d.options()})",
            "return out",
        ),
        inputs=dict.fromkeys(("x", "a"), (d.dtype, (sizes, (2, 20, 70)))),
        plain="(lambda x, a: torch.stack(list(__import__('itertools').accumulate(range(1, x.shape[1]), "
        f"lambda s, t: {step}, initial={'(1 - a[:, 0]) * ' * mixed}x[:, 0])), 1))(x, torch.sigmoid(a))",
    )


FORMS: dict[Callable[[Draw], Form], int] = {
    transposed: 2,
    down_columns: 2,
    stencil: 2,
    pairs: 1,
    pool_rows: 2,
    pool_image: 2,
    rotary: 2,
    bag: 2,
    channels_window: 1,
    recurrence: 1,
}
"""With how often each is drawn."""
