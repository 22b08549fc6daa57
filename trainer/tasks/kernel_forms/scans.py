"""Forms that bring something along a sequence: running sums, recurrences."""

from __future__ import annotations

from trainer.tasks.kernel_forms.pieces import Draw, KernelForm, function, inside


def running(d: Draw) -> KernelForm:
    """Running sums along rows, block after block."""
    block = d.one(128, 256, 1024)
    sizes = d.shape((4096, 4096), (8192, 2048), (1024, 8192))
    lines, chained = d.chain("x", 0, 1)
    inner = "".join(f"    {line}\n" for line in lines.splitlines())
    return KernelForm(
        kernel="def kernel(x_ptr, out_ptr, length, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0).to(tl.int64)\n    before = 0.0\n"
        "    for start in range(0, length, BLOCK):\n        column = start + tl.arange(0, BLOCK)\n"
        "        mask = column < length\n"
        f"        x = tl.load(x_ptr + row * length + column, mask=mask, "
        f"other=0.0).to(tl.float32)\n{inner}"
        "        x = tl.where(mask, x, 0.0)\n"
        "        tl.store(out_ptr + row * length + column, before + tl.cumsum(x, axis=0), "
        "mask=mask)\n"
        "        before += tl.sum(x, axis=0)\n",
        launcher="def launch(x):\n    rows, length = x.shape\n    out = torch.empty_like(x)\n"
        f"    kernel[(rows,)](x, out, length, BLOCK={block}{d.options()})\n    return out\n",
        inputs={"x": ("f32", (sizes, (6, 300)))},
        plain=f"torch.cumsum({chained.format(v='x')}, 1)",
    )


def recurrence(d: Draw) -> KernelForm:
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
    return KernelForm(
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
        plain="(lambda x, a: torch.stack(list(__import__('itertools').accumulate(range(1, "
        "x.shape[1]), "
        f"lambda s, t: {step}, initial={'(1 - a[:, 0]) * ' * mixed}x[:, 0])), 1))(x, "
        f"torch.sigmoid(a))",
    )
