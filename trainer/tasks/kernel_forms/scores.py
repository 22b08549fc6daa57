"""Forms around scores that a softmax is taken of: losses, masks and caps, attention."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, function, loop
from trainer.tasks.kernel_forms.product_pieces import half
from trainer.tasks.kernel_forms.row_pieces import (
    AT,
    LIKE,
    ROW,
    SCALAR,
    TWIN,
    WHOLE,
    launch_rows,
    loads,
    passing,
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
        return [
            *WHOLE,
            read,
            seen.replace("+=", "="),
            "largest = tl.max(x, axis=0)",
            f"weight = {exponents}",
        ]
    begin = ["seen = 0.0"] * bool(seen) + ['largest = float("-inf")']
    if d.rng.random() < 0.5:
        return [*begin, "weight = 0.0", passing(read, seen, *ONLINE)]
    first = passing(read, seen, "largest = tl.maximum(largest, tl.max(x, axis=0))")
    return [*begin, first, "weight = 0.0", passing(read, f"weight += {exponents}")]


def cross_entropy(d: Draw) -> KernelForm:
    """The loss of each row of scores (R, C) for its target, sometimes with smoothed labels."""
    whole, smooth = d.rng.random() < 0.4, d.rng.random() < 0.4
    seen = "seen += tl.sum(tl.where(mask, x, 0.0), axis=0)" if smooth else ""
    loss = "largest + tl.log(weight) - 0.9 * picked - 0.1 * seen / columns"
    sizes = d.shape((4096, 8192), (16384, 1000), (2048, 16384), (8192, 4096))
    sizes = sizes if whole else d.shape(sizes, (1024, 32000), (1024, 50257))
    return KernelForm(
        kernel=function(
            "kernel(x_ptr, target_ptr, out_ptr, columns, BLOCK: tl.constexpr)",
            ROW,
            "target = tl.load(target_ptr + row)",
            "picked = tl.load(x_ptr + row * columns + target).to(tl.float32)",
            *_softmax_statistics(d, whole, loads("x", other='float("-inf")'), seen),
            f"loss = {loss if smooth else 'tl.log(weight) - (picked - largest)'}",
            "tl.store(out_ptr + row, loss)",
        ),
        launcher=launch_rows(d, "x, target", SCALAR, whole),
        inputs={
            "x": (d.dtype, (sizes, TWIN)),
            "target": (f"index:{sizes[1]}", ((sizes[0],), (TWIN[0],))),
        },
        plain="torch.nn.functional.cross_entropy(x, target, reduction='none', "
        f"label_smoothing={0.1 if smooth else 0.0})",
    )


def scores_softmax(d: Draw) -> KernelForm:
    """Of scaled scores: capped, biased by column, or only up to the row's own column."""
    whole, kind = (
        d.rng.random() < 0.4,
        d.rng.choice(("plain", "capped", "causal", "biased", "causal")),
    )
    read, plain = loads("x") + "x = x * 0.125\n", "(x * 0.125)"
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
        read, plain = read + loads("bias", at="column") + "x += bias\n", f"({plain} + bias)"
    read += f'x = tl.where({mask}, x, float("-inf"))\n'
    write = ("y = tl.exp(x - largest) / weight", f"tl.store(out_ptr + {AT}, y, mask=mask)")
    sizes = d.shape((4096, 4096), (16384, 1024), (32768, 512), (8192, 2048), (4096, 8192))
    pointers = ", ".join(f"{n}_ptr" for n in names)
    return KernelForm(
        kernel=function(
            f"kernel({pointers}, out_ptr, columns, BLOCK: tl.constexpr)",
            ROW,
            *_softmax_statistics(d, whole, read),
            *(write if whole else [passing(read, *write)]),
        ),
        launcher=launch_rows(d, ", ".join(names), LIKE, whole),
        inputs={
            n: (d.dtype, (sizes, TWIN) if n == "x" else ((sizes[1],), (TWIN[1],))) for n in names
        },
        plain=f"torch.softmax({plain}, 1)",
    )


def _blockwise(causal: bool, turned: bool) -> str:
    """The loop over the keys; ``turned`` loads them transposed."""
    kept = "column[None, :] < length" if not causal else "column[None, :] <= row[:, None]"
    keys = "k_ptr + first + column[:, None] * WIDTH + lane[None, :], mask=column[:, None] < length"
    if turned:
        keys = (
            "k_ptr + first + column[None, :] * WIDTH + lane[:, None], mask=column[None, :] < length"
        )
    return loop(
        f"start in range(0, {'end' if causal else 'length'}, BLOCK_N)",
        "column = start + tl.arange(0, BLOCK_N)",
        f"k = tl.load({keys}, other=0.0)",
        f"scores = tl.dot(q, {'k' if turned else 'tl.trans(k)'}) * scale",
        f'scores = tl.where({kept}, scores, float("-inf"))',
        "new = tl.maximum(largest, tl.max(scores, axis=1))",
        "p = tl.exp(scores - new[:, None])",
        "fade = tl.exp(largest - new)",
        "weight = weight * fade + tl.sum(p, axis=1)",
        "v = tl.load(v_ptr + first + column[:, None] * WIDTH + lane[None, :],"
        " mask=column[:, None] < length, other=0.0)",
        "total = total * fade[:, None] + tl.dot(p.to(v.dtype), v)",
        "largest = new",
    )


def attention(d: Draw) -> KernelForm:
    """Keys and values go by in blocks, the softmax is brought along; often only up to the row's
    own place."""
    causal, dtype, turned = d.rng.random() < 0.5, half(d), d.rng.random() < 0.5
    m, n = d.one(16, 32, 64, 128), d.one(16, 32, 64)
    sizes = d.shape((32, 2048, 64), (64, 1024, 64), (16, 2048, 128), (128, 512, 32), (48, 1000, 64))
    later = "torch.ones(q.shape[1], q.shape[1]).triu(1).bool()"
    scores = "(q @ k.transpose(1, 2) * q.shape[2] ** -0.5)"
    scores += f".masked_fill({later}, float('-inf'))" if causal else ""
    return KernelForm(
        kernel=function(
            "kernel(q_ptr, k_ptr, v_ptr, out_ptr, length, scale, WIDTH: tl.constexpr,"
            " BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr)",
            "first = tl.program_id(1).to(tl.int64) * length * WIDTH",
            "row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
            "lane = tl.arange(0, WIDTH)",
            "place = first + row[:, None] * WIDTH + lane[None, :]",
            "q = tl.load(q_ptr + place, mask=row[:, None] < length, other=0.0)",
            'largest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)',
            "weight = tl.zeros((BLOCK_M,), dtype=tl.float32)",
            "total = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)",
            "end = tl.minimum(length, (tl.program_id(0) + 1) * BLOCK_M)" if causal else "",
            _blockwise(causal, turned),
            "tl.store(out_ptr + place, total / weight[:, None], mask=row[:, None] < length)",
        ),
        launcher=function(
            "launch(q, k, v)",
            "heads, length, width = q.shape",
            "out = torch.empty_like(q)",
            f"grid = (triton.cdiv(length, {m}), heads)",
            f"kernel[grid](q, k, v, out, length, width**-0.5, WIDTH=width, BLOCK_M={m}, BLOCK_N={n}"
            f"{d.options()})",
            "return out",
        ),
        inputs=dict.fromkeys("qkv", (dtype, (sizes, (2, 70, 32)))),
        plain=f"torch.softmax({scores}, 2) @ v",
    )
