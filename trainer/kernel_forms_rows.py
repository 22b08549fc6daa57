"""Forms of kernels that work on the rows of a matrix: norms with weights, losses, gates, gradients, places.

As in `trainer.kernel_forms`: the row at once or in passes, blocks and warps drawn.
"""

from __future__ import annotations

from collections.abc import Callable

from trainer.kernel_forms import SIZES, Draw, Form, function, inside, loop

ROW = "row = tl.program_id(0).to(tl.int64)"
AT = "row * columns + column"
BLOCKS = (128, 256, 1024, 1024, 2048)
NARROW = tuple(size for size in SIZES if size[1] <= 16384)
TWIN = (6, 300)


def _read(*names: str, at: str = AT, other: str = "0.0") -> str:
    return "".join(f"{n} = tl.load({n}_ptr + {at}, mask=mask, other={other}).to(tl.float32)\n" for n in names)


def _passing(*parts: str) -> str:
    return loop(
        "start in range(0, columns, BLOCK)",
        "column = start + tl.arange(0, BLOCK)",
        "mask = column < columns",
        *parts,
    )


def _launch(d: Draw, names: str, made: str, whole: bool, *, before: str = "", passed: str = "") -> str:
    """One program a row of the first argument."""
    block = "triton.next_power_of_2(columns)" if whole else str(d.one(*BLOCKS))
    first = names.partition(",")[0]
    return function(
        f"launch({names})",
        f"rows, columns = {first}.shape",
        f"out = {made.format(first=first)}",
        before,
        f"kernel[(rows,)]({names}, out{passed}, columns, BLOCK={block}{d.options()})",
        "return out",
    )


LIKE = "torch.empty_like({first})"
SCALAR = "torch.empty(rows, device={first}.device, dtype=torch.float32)"
WHOLE = ("column = tl.arange(0, BLOCK)", "mask = column < columns")


def norm_weighted(d: Draw) -> Form:
    """Layer or RMS norm with its weight; often of the sum with a residual, which may be written too."""
    layer, whole, residual = d.rng.random() < 0.5, d.rng.random() < 0.5, d.rng.random() < 0.5
    bias, once = layer and d.rng.random() < 0.7, d.rng.random() < 0.5
    kept = residual and d.rng.random() < 0.5
    names = ["x", *(["r"] if residual else []), "w", *(["b"] if bias else [])]
    read = _read("x", "r") + "x = x + r\n" if residual else _read("x")
    keep = f"tl.store(sum_ptr + {AT}, x, mask=mask)\n" if kept else ""
    parameters = _read(*names[names.index("w") :], at="column")
    scaled = "x * scale * w" if not layer else "(x - mean) * scale * w" + " + b" * bias
    write = f"tl.store(out_ptr + {AT}, {scaled}, mask=mask)"
    if whole and layer:
        body = [*WHOLE, read, keep, "mean = tl.sum(x, axis=0) / columns", "c = tl.where(mask, x - mean, 0.0)"]
        body += ["scale = tl.rsqrt(tl.sum(c * c, axis=0) / columns + 1e-5)", parameters, write]
    elif whole:
        body = [*WHOLE, read, keep, "scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + 1e-5)"]
        body += [parameters, write]
    elif layer and not once:
        body = ["total = 0.0", _passing(read, keep, "total += tl.sum(x, axis=0)")]
        body += ["mean = total / columns", "spread = 0.0"]
        body += [_passing(read, "c = tl.where(mask, x - mean, 0.0)", "spread += tl.sum(c * c, axis=0)")]
        body += ["scale = tl.rsqrt(spread / columns + 1e-5)", _passing(read, parameters, write)]
    else:
        added = ["total += x"] * layer + ["squares += x * x"]
        body = ["total = tl.zeros((BLOCK,), dtype=tl.float32)"] * layer
        body += ["squares = tl.zeros((BLOCK,), dtype=tl.float32)", _passing(read, keep, *added)]
        body += ["mean = tl.sum(total, axis=0) / columns"] * layer
        less = " - mean * mean" * layer
        body += [f"scale = tl.rsqrt(tl.sum(squares, axis=0) / columns{less} + 1e-5)"]
        body += [_passing(read, parameters, write)]
    sizes = d.shape(*(NARROW if whole else SIZES))
    added_up = "(x + r)" if residual else "x"
    plain = f"(lambda v: v * torch.rsqrt((v * v).mean(1, True) + 1e-5) * w)({added_up})"
    if layer:
        plain = f"torch.nn.functional.layer_norm({added_up}, w.shape, w, {'b' if bias else None}, 1e-5)"
    pointers = ", ".join(f"{n}_ptr" for n in names)
    return Form(
        kernel=function(
            f"kernel({pointers}, out_ptr, {'sum_ptr, ' * kept}columns, BLOCK: tl.constexpr)", ROW, *body
        ),
        launcher=_launch(
            d,
            ", ".join(names),
            LIKE,
            whole,
            before="added = torch.empty_like(x)" * kept,
            passed=", added" * kept,
        ),
        inputs={n: (d.dtype, (sizes, TWIN) if n in "xr" else ((sizes[1],), (TWIN[1],))) for n in names},
        plain=plain,
    )


GATES = {
    "silu": ("a * tl.sigmoid(a)", "torch.nn.functional.silu(a)"),
    "gelu": ("0.5 * a * (1.0 + tl.erf(a * 0.70710678))", "torch.nn.functional.gelu(a)"),
    "sigmoid": ("1.0 / (1.0 + tl.exp(-a))", "torch.sigmoid(a)"),
    "relu": ("tl.where(a > 0.0, a, 0.0)", "torch.relu(a)"),
}


def gated(d: Draw) -> Form:
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
    body = [_passing(*work)] if looped else []
    if not looped:
        body = ["column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)", "mask = column < columns", *work]
    block = d.one(64, *BLOCKS)
    sizes = d.shape((4096, 8192), (16384, 2048), (2048, 22016), (65536, 256))
    return Form(
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


ONLINE = (
    "new = tl.maximum(largest, tl.max(x, axis=0))",
    "weight = weight * tl.exp(largest - new) + tl.sum(tl.exp(x - new), axis=0)",
    "largest = new",
)


def _softmax_statistics(d: Draw, whole: bool, read: str, seen: str = "") -> list[str]:
    """``largest`` and ``weight`` of rows that ``read`` fills up with -inf."""
    exponents = "tl.sum(tl.exp(x - largest), axis=0)"
    if whole:
        return [*WHOLE, read, seen.replace("+=", "="), "largest = tl.max(x, axis=0)", f"weight = {exponents}"]
    begin = ["seen = 0.0"] * bool(seen) + ['largest = float("-inf")']
    if d.rng.random() < 0.5:
        return [*begin, "weight = 0.0", _passing(read, seen, *ONLINE)]
    first = _passing(read, seen, "largest = tl.maximum(largest, tl.max(x, axis=0))")
    return [*begin, first, "weight = 0.0", _passing(read, f"weight += {exponents}")]


def cross_entropy(d: Draw) -> Form:
    whole, smooth = d.rng.random() < 0.4, d.rng.random() < 0.4
    seen = "seen += tl.sum(tl.where(mask, x, 0.0), axis=0)" if smooth else ""
    loss = "largest + tl.log(weight) - 0.9 * picked - 0.1 * seen / columns"
    sizes = d.shape((4096, 8192), (16384, 1000), (2048, 16384), (8192, 4096))
    sizes = sizes if whole else d.shape(sizes, (1024, 32000), (1024, 50257))
    return Form(
        kernel=function(
            "kernel(x_ptr, target_ptr, out_ptr, columns, BLOCK: tl.constexpr)",
            ROW,
            "target = tl.load(target_ptr + row)",
            "picked = tl.load(x_ptr + row * columns + target).to(tl.float32)",
            *_softmax_statistics(d, whole, _read("x", other='float("-inf")'), seen),
            f"loss = {loss if smooth else 'tl.log(weight) - (picked - largest)'}",
            "tl.store(out_ptr + row, loss)",
        ),
        launcher=_launch(d, "x, target", SCALAR, whole),
        inputs={"x": (d.dtype, (sizes, TWIN)), "target": (f"index:{sizes[1]}", ((sizes[0],), (TWIN[0],)))},
        plain="torch.nn.functional.cross_entropy(x, target, reduction='none', "
        f"label_smoothing={0.1 if smooth else 0.0})",
    )


def scores_softmax(d: Draw) -> Form:
    """Of scaled scores: capped, biased by column, or only up to the row's own column."""
    whole, kind = d.rng.random() < 0.4, d.rng.choice(("plain", "capped", "causal", "biased", "causal"))
    read, plain = _read("x") + "x = x * 0.125\n", "(x * 0.125)"
    mask, names = "mask", ["x"]
    if kind == "capped":
        read += "x = 30.0 * (2.0 * tl.sigmoid(x / 15.0) - 1.0)\n"
        plain = f"(30.0 * torch.tanh({plain} / 30.0))"
    elif kind == "causal":
        mask = "mask & (column <= row % columns)"
        later = "torch.arange(x.shape[1]) > (torch.arange(x.shape[0]) % x.shape[1])[:, None]"
        plain = f"{plain}.masked_fill({later}, float('-inf'))"
    elif kind == "biased":
        names += ["bias"]
        read, plain = read + _read("bias", at="column") + "x += bias\n", f"({plain} + bias)"
    read += f'x = tl.where({mask}, x, float("-inf"))\n'
    write = ("y = tl.exp(x - largest) / weight", f"tl.store(out_ptr + {AT}, y, mask=mask)")
    sizes = d.shape((4096, 4096), (16384, 1024), (32768, 512), (8192, 2048), (4096, 8192))
    pointers = ", ".join(f"{n}_ptr" for n in names)
    return Form(
        kernel=function(
            f"kernel({pointers}, out_ptr, columns, BLOCK: tl.constexpr)",
            ROW,
            *_softmax_statistics(d, whole, read),
            *(write if whole else [_passing(read, *write)]),
        ),
        launcher=_launch(d, ", ".join(names), LIKE, whole),
        inputs={n: (d.dtype, (sizes, TWIN) if n == "x" else ((sizes[1],), (TWIN[1],))) for n in names},
        plain=f"torch.softmax({plain}, 1)",
    )


GRADIENTS = {
    "softmax": ({"dot": "x * g"}, "x * (g - dot)", "x * (g - (x * g).sum(1, True))"),
    "log_softmax": ({"dot": "g"}, "g - tl.exp(x) * dot", "g - torch.exp(x) * g.sum(1, True)"),
    "rms": (
        {"dot": "x * g", "squares": "x * x"},
        "tl.rsqrt(squares / columns + 1e-5) * (g - x * dot / (squares + columns * 1e-5))",
        "(lambda s: (g - x * (x * g).mean(1, True) / s) * torch.rsqrt(s))((x * x).mean(1, True) + 1e-5)",
    ),
    "standardize": (
        {"dot": "x * g", "mean": "g"},
        "g - mean / columns - x * (dot / columns)",
        "g - g.mean(1, True) - x * (x * g).mean(1, True)",
    ),
}
"""Name -> sums over a row of its result (or input) and the gradient, the gradient of its input, PyTorch."""


def gradient(d: Draw) -> Form:
    name = d.rng.choice(sorted(GRADIENTS))
    sums, written, plain = GRADIENTS[name]
    dtype = "f32" if name == "log_softmax" else d.dtype  # its results pass the range of float16
    whole, vector = d.rng.random() < 0.5, d.rng.random() < 0.5
    read, write = _read("x", "g"), f"tl.store(out_ptr + {AT}, {written}, mask=mask)"
    masked = {n: f"tl.sum(tl.where(mask, {v}, 0.0), axis=0)" for n, v in sums.items()}
    if whole:
        body = [*WHOLE, read, *(f"{n} = {v}" for n, v in masked.items()), write]
    elif vector:
        body = [f"{n}s = tl.zeros((BLOCK,), dtype=tl.float32)" for n in sums]
        body += [_passing(read, *(f"{n}s += {v}" for n, v in sums.items()))]
        body += [*(f"{n} = tl.sum({n}s, axis=0)" for n in sums), _passing(read, write)]
    else:
        body = [*(f"{n} = 0.0" for n in sums), _passing(read, *(f"{n} += {v}" for n, v in masked.items()))]
        body += [_passing(read, write)]
    sizes = d.shape(*(NARROW if whole else SIZES))
    return Form(
        kernel=function("kernel(x_ptr, g_ptr, out_ptr, columns, BLOCK: tl.constexpr)", ROW, *body),
        launcher=_launch(d, "x, g", LIKE, whole),
        inputs=dict.fromkeys(("x", "g"), (dtype, (sizes, TWIN))),
        plain=plain,
    )


DISTANCES = {
    "l1": (("tl.abs(a - b)",), "{0}", "(a - b).abs().sum(1)"),
    "l2": (("(a - b) * (a - b)",), "tl.sqrt({0})", "torch.linalg.vector_norm(a - b, dim=1)"),
    "cosine": (
        ("a * b", "a * a", "b * b"),
        "{0} * tl.rsqrt({1} * {2} + 1e-12)",
        "torch.nn.functional.cosine_similarity(a, b)",
    ),
}


def distance(d: Draw) -> Form:
    """Of the rows of two matrices, several rows to a program."""
    parts, written, plain = DISTANCES[d.rng.choice(("l1", "l2", "cosine", "cosine"))]
    r, c = d.one(1, 4, 16, 32), d.one(32, 64, 128, 256)
    late = d.rng.random() < 0.5
    body = []
    for i, part in enumerate(parts):
        body.append(f"s{i} += {part}" if late else f"s{i} += tl.sum({part}, axis=1)")
    shape = "(BLOCK_R, BLOCK_C)" if late else "(BLOCK_R,)"
    sums = [f"tl.sum(s{i}, axis=1)" if late else f"s{i}" for i in range(len(parts))]
    sizes = d.shape((4096, 4096), (16384, 1024), (65536, 256), (2048, 8192))
    return Form(
        kernel=function(
            "kernel(a_ptr, b_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr)",
            "row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)",
            *(f"s{i} = tl.zeros({shape}, dtype=tl.float32)" for i in range(len(parts))),
            loop(
                "start in range(0, columns, BLOCK_C)",
                "column = start + tl.arange(0, BLOCK_C)",
                "mask = (row[:, None] < rows) & (column[None, :] < columns)",
                _read("a", "b", at="row[:, None] * columns + column[None, :]"),
                *body,
            ),
            f"y = {written.format(*sums)}",
            "tl.store(out_ptr + row, y, mask=row < rows)",
        ),
        launcher=function(
            "launch(a, b)",
            "rows, columns = a.shape",
            "out = torch.empty(rows, device=a.device, dtype=torch.float32)",
            f"grid = (triton.cdiv(rows, {r}),)",
            f"kernel[grid](a, b, out, rows, columns, BLOCK_R={r}, BLOCK_C={c}{d.options()})",
            "return out",
        ),
        inputs=dict.fromkeys(("a", "b"), (d.dtype, (sizes, (70, 300)))),
        plain=plain,
    )


def peak(d: Draw) -> Form:
    """Where the largest or smallest number of a row stands."""
    whole, most = d.rng.random() < 0.5, d.rng.random() < 0.6
    word, end, sign = ("max", "-inf", ">") if most else ("min", "inf", "<")
    read = _read("x", other=f'float("{end}")')
    if whole:
        body = [*WHOLE, read, f"place = tl.arg{word}(x, axis=0)"]
    elif d.rng.random() < 0.5:
        body = [f'best = float("{end}")', "place = 0"]
        step = [f"value = tl.{word}(x, axis=0)", f"there = start + tl.arg{word}(x, axis=0)"]
        step += [f"place = tl.where(value {sign} best, there, place)", f"best = tl.{word}imum(best, value)"]
        body += [_passing(read, *step)]
    else:
        body = [f'best = tl.full((BLOCK,), float("{end}"), dtype=tl.float32)']
        body += ["places = tl.zeros((BLOCK,), dtype=tl.int32)"]
        step = [f"better = x {sign} best", "places = tl.where(better, column, places)"]
        body += [_passing(read, *step, "best = tl.where(better, x, best)")]
        body += [f"lane = tl.arg{word}(best, axis=0)"]
        body += ["place = tl.sum(tl.where(tl.arange(0, BLOCK) == lane, places, 0), axis=0)"]
    sizes = d.shape(*(NARROW if whole else SIZES))
    return Form(
        kernel=function(
            "kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr)",
            ROW,
            *body,
            "tl.store(out_ptr + row, place)",
        ),
        launcher=_launch(d, "x", SCALAR.replace("float32", "int64"), whole),
        inputs={"x": ("f32", (sizes, TWIN))},
        plain=f"x.arg{word}(1)",
    )


def absmax(d: Draw) -> Form:
    """Rows brought to one range, with their scales."""
    whole, top = d.rng.random() < 0.5, d.one(1, 127, 448)
    read = _read("x")
    write = f"tl.store(out_ptr + {AT}, x * scale, mask=mask)"
    if whole:
        body = [*WHOLE, read, "largest = tl.max(tl.abs(x), axis=0)"]
    elif d.rng.random() < 0.5:
        body = ["largest = 0.0", _passing(read, "largest = tl.maximum(largest, tl.max(tl.abs(x), axis=0))")]
    else:
        body = ["seen = tl.zeros((BLOCK,), dtype=tl.float32)"]
        body += [_passing(read, "seen = tl.maximum(seen, tl.abs(x))"), "largest = tl.max(seen, axis=0)"]
    body += [f"scale = {float(top)} / tl.maximum(largest, 1e-6)", "tl.store(scale_ptr + row, 1.0 / scale)"]
    sizes = d.shape(*(NARROW if whole else SIZES))
    return Form(
        kernel=function(
            "kernel(x_ptr, out_ptr, scale_ptr, columns, BLOCK: tl.constexpr)",
            ROW,
            *body,
            *([write] if whole else [_passing(read, write)]),
        ),
        launcher=_launch(
            d,
            "x",
            LIKE,
            whole,
            before="scale = torch.empty(rows, device=x.device, dtype=torch.float32)",
            passed=", scale",
        ),
        inputs={"x": (d.dtype, (sizes, TWIN))},
        plain=f"x * ({float(top)} / x.abs().amax(1, True))",
    )


SHORT = {
    "softmax": (
        "e = tl.exp(x - tl.max(x, axis=1)[:, None])",
        "y = e / tl.sum(e, axis=1)[:, None]",
        "torch.softmax(x, 1)",
    ),
    "rms": (
        "s = tl.sum(tl.where(mask, x * x, 0.0), axis=1) / columns",
        "y = x * tl.rsqrt(s + 1e-5)[:, None]",
        "x * torch.rsqrt((x * x).mean(1, True) + 1e-5)",
    ),
    "share": (
        "p = tl.where(mask, tl.abs(x), 0.0)",
        "y = x / (tl.sum(p, axis=1)[:, None] + 1e-6)",
        "x / (x.abs().sum(1, True) + 1e-6)",
    ),
    "running": ("p = tl.where(mask, x, 0.0)", "y = tl.cumsum(p, axis=1)", "torch.cumsum(x, 1)"),
}


def short_rows(d: Draw) -> Form:
    """Many short rows, several to a program."""
    name = d.rng.choice(sorted(SHORT))
    first, second, plain = SHORT[name]
    r = d.one(1, 2, 8, 32, 64)
    sizes = d.shape((262144, 64), (524288, 32), (131072, 128), (100000, 100), (65536, 256))
    lines, chained = d.chain("y", 0, 2)
    read = _read("x", at="row[:, None] * columns + column[None, :]", other='float("-inf")')
    return Form(
        kernel=function(
            "kernel(x_ptr, out_ptr, rows, columns, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr)",
            "row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)",
            "column = tl.arange(0, WIDTH)",
            "mask = (row[:, None] < rows) & (column[None, :] < columns)",
            read if name == "softmax" else read.replace('float("-inf")', "0.0"),
            first,
            second,
            lines,
            "tl.store(out_ptr + row[:, None] * columns + column[None, :], y, mask=mask)",
        ),
        launcher=function(
            "launch(x)",
            "rows, columns = x.shape",
            "out = torch.empty_like(x)",
            f"grid = (triton.cdiv(rows, {r}),)",
            f"kernel[grid](x, out, rows, columns, BLOCK_R={r}, WIDTH=triton.next_power_of_2(columns)"
            f"{d.options()})",
            "return out",
        ),
        inputs={"x": ("f32" if name == "running" else d.dtype, (sizes, (70, 20)))},
        plain=chained.format(v=plain),
    )


def group_norm(d: Draw) -> Form:
    groups, block = d.one(4, 8, 16), d.one(256, 512, 1024, 2048)
    sizes = d.shape((16, 256, 4096), (64, 128, 1024), (8, 512, 3136))
    read = loop(
        "start in range(0, size, BLOCK)",
        "place = start + tl.arange(0, BLOCK)",
        "mask = place < size",
        _read("x", at="first + place"),
        "{}",
    )
    silu = d.rng.random() < 0.4
    write = inside(
        "channel = group * (size // length) + place // length",
        _read("w", "b", at="channel"),
        "y = (x - mean) * scale * w + b",
        "y = y * tl.sigmoid(y)" if silu else "",
        "tl.store(out_ptr + first + place, y, mask=mask)",
    )
    plain = f"torch.nn.functional.group_norm(x, {groups}, w, b, 1e-5)"
    return Form(
        kernel=function(
            "kernel(x_ptr, w_ptr, b_ptr, out_ptr, groups, size, length, BLOCK: tl.constexpr)",
            "pid = tl.program_id(0)",
            "group = pid % groups",
            "first = pid.to(tl.int64) * size",
            "total = tl.zeros((BLOCK,), dtype=tl.float32)",
            "squares = tl.zeros((BLOCK,), dtype=tl.float32)",
            read.format("total += x\n    squares += x * x"),
            "mean = tl.sum(total, axis=0) / size",
            "scale = tl.rsqrt(tl.sum(squares, axis=0) / size - mean * mean + 1e-5)",
            read.format(write.strip()),
        ),
        launcher=function(
            "launch(x, w, b)",
            "n, channels, length = x.shape",
            f"groups = {groups}",
            "size = channels // groups * length",
            "out = torch.empty_like(x)",
            f"kernel[(n * groups,)](x, w, b, out, groups, size, length, BLOCK={block}{d.options()})",
            "return out",
        ),
        inputs={
            "x": (d.dtype, (sizes, (2, 16, 21))),
            **dict.fromkeys("wb", (d.dtype, ((sizes[1],), (16,)))),
        },
        plain=f"torch.nn.functional.silu({plain})" if silu else plain,
    )


FORMS: dict[Callable[[Draw], Form], int] = {
    norm_weighted: 4,
    gated: 2,
    cross_entropy: 3,
    scores_softmax: 3,
    gradient: 2,
    distance: 2,
    peak: 2,
    absmax: 2,
    short_rows: 2,
    group_norm: 1,
}
"""With how often each is drawn."""
