"""Forms that read the surroundings of a number: windows of a sequence, stencils, pools."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, function, loop
from trainer.tasks.kernel_forms.tile_pieces import AT_TILE, IMAGES, PLACES, TILE, launch_tiles


def window(d: Draw) -> KernelForm:
    """Each element with some of those before it."""
    taps, block = d.one(2, 3, 4, 5), d.one(128, 256, 1024)
    sizes = d.shape((4096, 4096), (1024, 16384), (16384, 1024))
    lines, chained = d.chain("y", 0, 2)
    loads = "".join(
        f"    y += tl.load(x_ptr + row * length + column - {tap}, mask=(column >= {tap}) & "
        f"(column < length),"
        f" other=0.0).to(tl.float32) * tl.load(w_ptr + {tap}).to(tl.float32)\n"
        for tap in range(taps)
    )
    plain = (
        f"sum(w[t] * torch.nn.functional.pad(x, (t, 0))[:, : x.shape[1]] for t in range({taps}))"
    )
    return KernelForm(
        kernel="def kernel(x_ptr, w_ptr, out_ptr, length, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0).to(tl.int64)\n"
        "    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)\n"
        f"    y = tl.zeros((BLOCK,), dtype=tl.float32)\n{loads}{lines}"
        "    tl.store(out_ptr + row * length + column, y, mask=column < length)\n",
        launcher="def launch(x, w):\n    rows, length = x.shape\n    out = torch.empty_like(x)\n"
        f"    grid = (rows, triton.cdiv(length, {block}))\n"
        f"    kernel[grid](x, w, out, length, BLOCK={block}{d.options()})\n    return out\n",
        inputs={"x": (d.dtype, (sizes, (6, 300))), "w": (d.dtype, ((taps,), (taps,)))},
        plain=chained.format(v=plain),
    )


def channels_window(d: Draw) -> KernelForm:
    """Each moment with some before it, every channel with its own weights; channels lie side by
    side."""
    taps, block_t, block_c = d.one(2, 3, 4), d.one(1, 8, 32, 64), d.one(32, 64, 128, 256)
    silu = d.rng.random() < 0.5
    sizes = d.shape((8, 2048, 1024), (4, 4096, 2048), (32, 1000, 512))
    return KernelForm(
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


STENCILS = {
    "cross": ((0, 0, -4.0), (-1, 0, 1.0), (1, 0, 1.0), (0, -1, 1.0), (0, 1, 1.0)),
    "slope": ((0, 1, 0.5), (0, -1, -0.5)),
    "blur": tuple(
        (i, j, 0.0625 * (2 - abs(i)) * (2 - abs(j))) for i in (-1, 0, 1) for j in (-1, 0, 1)
    ),
    "edge": ((-1, -1, -1.0), (-1, 1, 1.0), (0, -1, -2.0), (0, 1, 2.0), (1, -1, -1.0), (1, 1, 1.0)),
}
"""Name -> steps down and right, and the weight; zeros beyond the border."""


def stencil(d: Draw) -> KernelForm:
    """A weighted sum of neighbors in one image or several (`STENCILS`), zeros beyond the border."""
    name, batched = d.rng.choice(sorted(STENCILS)), d.rng.random() < 0.4
    first = "plane + " if batched else ""
    lines, chained = d.chain("y", 0, 2)
    taps = "y = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)\n"
    for i, j, weight in STENCILS[name]:
        taps += f"r, c = row[:, None] + {i}, column[None, :] + {j}\n".replace("+ -", "- ").replace(
            " + 0", ""
        )
        taps += "near = (r >= 0) & (r < rows) & (c >= 0) & (c < columns)\n"
        taps += f"y += {weight} * tl.load(x_ptr + {first}r * columns + c, mask=near, other=0.0)"
        taps += ".to(tl.float32)\n"
    grid = [[0.0] * 3 for _ in range(3)]
    for i, j, weight in STENCILS[name]:
        grid[i + 1][j + 1] = weight
    sizes = (
        d.shape((16, 1024, 1024), (64, 512, 512), (8, 1080, 1920)) if batched else d.shape(*IMAGES)
    )
    image = "x[:, None]" if batched else "x[None, None]"
    plain = f"torch.nn.functional.conv2d({image}, torch.tensor([[{grid}]]), padding=1)"
    plain += "[:, 0]" if batched else "[0, 0]"
    return KernelForm(
        kernel=function(
            f"kernel(x_ptr, out_ptr, rows, columns, {', '.join(TILE)})",
            *PLACES,
            "plane = tl.program_id(2).to(tl.int64) * rows * columns" if batched else "",
            taps,
            lines,
            f"tl.store(out_ptr + {first}{AT_TILE}, y, mask=mask)",
        ),
        launcher=launch_tiles(d, "x", "rows, columns", planes="planes" if batched else ""),
        inputs={"x": (d.dtype, (sizes, (3, 40, 75) if batched else (70, 75)))},
        plain=chained.format(v=plain),
    )


def pool_rows(d: Draw) -> KernelForm:
    """Windows along a row: a loop over their places, or a tile with one window a row."""
    size, most, tiled = d.one(2, 4, 8, 16), d.rng.random() < 0.5, d.rng.random() < 0.5
    stride = d.one(size, size, max(size // 2, 1))
    out_of = "(column * STRIDE)[:, None] + tl.arange(0, SIZE)[None, :]"
    other = 'float("-inf")' if most else "0.0"
    if tiled:
        word = "max" if most else "sum"
        body = [f"place = {out_of}"]
        load = (
            f"tl.load(x_ptr + row * length + place, mask=mask[:, None], "
            f"other={other}).to(tl.float32)"
        )
        body += [f"x = {load}", f"y = tl.{word}(x, axis=1){'' if most else ' / SIZE'}"]
    else:
        load = (
            f"x = tl.load(x_ptr + row * length + column * STRIDE + tap, mask=mask, other={other})"
            ".to(tl.float32)"
        )
        body = [f"y = tl.full((BLOCK,), {other}, dtype=tl.float32)"]
        body += [
            loop("tap in range(SIZE)", load, "y = tl.maximum(y, x)" if most else "y += x / SIZE")
        ]
    block = d.one(64, 128, 256, 1024)
    sizes = d.shape((4096, 4096), (1024, 16384), (16384, 1024))
    call = f"out, length, count, STRIDE={stride}, SIZE={size}, BLOCK={block}{d.options()}"
    kind = "max" if most else "avg"
    return KernelForm(
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


def _pool_lines(kind: str) -> list[str]:
    """``y`` of the place ``r``, ``c`` of the result."""
    if kind == "repeat":
        at = "plane * height * width + (r // SIZE) * width + c // SIZE"
        return [f"y = tl.load(x_ptr + {at}, mask=mask, other=0.0)"]
    begin = 'float("-inf")' if kind == "max" else "0.0"
    at = "plane * height * width + (r * SIZE + i) * width + c * SIZE + j"
    step = (
        f"x = tl.load(x_ptr + {at}, mask=mask, other=0.0).to(tl.float32)",
        "y = tl.maximum(y, x)" if kind == "max" else "y += x",
    )
    return [
        f"y = tl.full((BLOCK,), {begin}, dtype=tl.float32)",
        loop("i in range(SIZE)", loop("j in range(SIZE)", *step)),
        "y = y / (SIZE * SIZE)" if kind == "avg" else "",
    ]


def pool_image(d: Draw) -> KernelForm:
    """Windows of an image, one number of the result a lane; or the other way, each number
    repeated."""
    size, block = d.one(2, 2, 3, 4), d.one(64, 128, 256, 512, 1024)
    kind = d.rng.choice(("max", "avg", "repeat"))
    by = "*" if kind == "repeat" else "//"
    sizes = d.shape((1024, 128, 128), (256, 224, 224), (4096, 56, 56))
    if kind == "repeat":
        sizes = d.shape((512, 64, 64), (128, 112, 112), (2048, 28, 28))
    plain = f"torch.nn.functional.{kind}_pool2d(x, {size})"
    if kind == "repeat":
        plain = f"x.repeat_interleave({size}, 1).repeat_interleave({size}, 2)"
    return KernelForm(
        kernel=function(
            "kernel(x_ptr, out_ptr, n, height, width, high, wide, SIZE: tl.constexpr, BLOCK: "
            "tl.constexpr)",
            "place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "mask = place < n",
            "c = place % wide",
            "r = (place // wide) % high",
            "plane = place // (wide * high)",
            *_pool_lines(kind),
            "tl.store(out_ptr + place, y, mask=mask)",
        ),
        launcher=function(
            "launch(x)",
            "planes, height, width = x.shape",
            f"high, wide = height {by} {size}, width {by} {size}",
            "out = torch.empty(planes, high, wide, device=x.device, dtype=x.dtype)",
            "n = out.numel()",
            f"grid = (triton.cdiv(n, {block}),)",
            f"kernel[grid](x, out, n, height, width, high, wide, SIZE={size}, "
            f"BLOCK={block}{d.options()})",
            "return out",
        ),
        inputs={"x": (d.dtype, (sizes, (3, 21, 26)))},
        plain=plain,
    )
