"""What a generated task does after its start: products, convolutions, and everything small around
them.

Chosen for structure (what can be fused, folded, hoisted, skipped) and spelled in the ways in which
people spell it. A move that does not fit says so before it draws or appends anything. Starts are
in grammar.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from trainer.tasks.grammar import STARTS, TaskDraft

T = TypeVar("T")
DraftMove: TypeAlias = Callable[[TaskDraft], bool]
"""Appends lines. False: it does not fit here, and nothing was drawn or appended."""

# --- anchors: what costs most --------------------------------------------------------------------


def linear(d: TaskDraft) -> bool:
    """A product with weights (out, in), as a layer, `F.linear` or by hand."""
    if d.layout == "maps" or d.flat:
        return False
    wide, way = d.channels(256, 512, 1024, 2048), d.rng.randrange(4)
    bias = d.rng.random() < 0.7
    if way < 2:
        made = d.layer(f"nn.Linear({d.width}, {wide}{'' if bias else ', bias=False'}{d.typed})")
        d.say(f"h = {made}(h)")
    else:
        weight = d.parameter((wide, d.width), scale="0.03 * ")
        tail = d.parameter((wide,), "shift") if bias else None
        text = f"F.linear(h, {weight}{f', {tail}' if tail else ''})"
        by_hand = f"h @ {weight}.T" + (f" + {tail}" if tail else "")
        d.say(f"h = {text if way == 2 else by_hand}")
    d.set(*d.shape[:-1], wide)
    return True


def convolution(d: TaskDraft) -> bool:
    """A convolution, sometimes transposed or depthwise; a kernel of 1, 3 or 5 with or without padding."""
    if d.layout != "maps" or d.flat or d.pools == 2:
        return False
    wide = d.channels(16, 32, 48, 64, 96)
    kernel, padded = d.rng.choice((1, 3, 3, 3, 5)), d.rng.random() < 0.7
    transposed = d.rng.random() < 0.2 and kernel > 1 and d.space < 3
    depthwise = d.rng.random() < 0.12 and not transposed
    wide = d.width if depthwise else wide
    pad = kernel // 2 if padded else 0
    words = f"{d.width}, {wide}, {kernel}" + (f", padding={pad}" if pad else "")
    words += f", groups={wide}" if depthwise else ""
    words += ", bias=False" if d.rng.random() < 0.25 else ""
    stem = "ConvTranspose" if transposed else "Conv"
    made = d.layer(f"nn.{stem}{d.space}d({words}{d.typed})")
    grown = (kernel - 1 - 2 * pad) if transposed else (2 * pad - kernel + 1)
    d.set(d.shape[0], wide, *(side + grown for side in d.shape[2:]))
    return d.say(f"h = {made}(h)")


def gated(d: TaskDraft) -> bool:
    """Two products of one input, one a gate."""
    if d.layout == "maps" or d.flat:
        return False
    wide = d.channels(256, 512, 1024)
    one, two = (d.layer(f"nn.Linear({d.width}, {wide}{d.typed})", stem) for stem in ("gate", "up"))
    act = d.rng.choice(("F.silu", "torch.sigmoid", "F.gelu", "torch.relu", "torch.tanh"))
    d.set(*d.shape[:-1], wide)
    return d.say(f"h = {act}({one}(h)) * {two}(h)")


def stacked(d: TaskDraft) -> bool:
    """The same layer several times, in a loop over a list."""
    if d.layout == "maps" or d.flat:
        return False
    depth, act = d.rng.choice((2, 3, 4)), d.rng.choice(ACTIVATIONS)
    residual = d.rng.random() < 0.5
    made = d.layer(
        f"nn.ModuleList([nn.Linear({d.width}, {d.width}{d.typed}) for _ in range({depth})])",
        "layers",
    )
    inside = act.format(h="layer(h)")
    return d.say(f"for layer in {made}:", f"    h = {'h + ' if residual else ''}{inside}")


# --- small moves --------------------------------------------------------------------------------

ACTIVATIONS = (
    "torch.relu({h})",
    "F.relu({h})",
    "F.gelu({h})",
    'F.gelu({h}, approximate="tanh")',
    "F.silu({h})",
    "torch.tanh({h})",
    "torch.sigmoid({h})",
    "F.leaky_relu({h}, 0.1)",
    "F.hardswish({h})",
    "F.elu({h})",
    "F.softplus({h})",
    "F.mish({h})",
)
LONG_ACTIVATIONS = (
    "h = h * torch.sigmoid(h)",
    "h = 0.5 * h * (1.0 + torch.erf(h * 0.7071067811865476))",
    "h = h * torch.tanh(F.softplus(h))",
    "h = h * torch.clamp(h + 3, 0, 6) / 6",
    "h = torch.square(torch.relu(h))",
    "h = h / (1 + torch.abs(h))",
    "h = torch.where(h > 0, h, 0.2 * h)",
    "h = torch.log1p(torch.exp(-torch.abs(h))) + torch.clamp(h, min=0)",
)
MODULES = (
    "nn.ReLU()",
    "nn.GELU()",
    "nn.SiLU()",
    "nn.Tanh()",
    "nn.Sigmoid()",
    "nn.Hardswish()",
    "nn.ELU()",
)


def activation(d: TaskDraft) -> bool:
    """One activation: as a function, written out, or as a module."""
    way = d.rng.randrange(10)
    if way < 5:
        return d.say(f"h = {d.rng.choice(ACTIVATIONS).format(h='h')}")
    if way < 8:
        return d.say(d.rng.choice(LONG_ACTIVATIONS))
    return d.say(f"h = {d.layer(d.rng.choice(MODULES), 'act')}(h)")


def number(d: TaskDraft) -> bool:
    """Arithmetic with a constant."""
    value = d.rng.choice(("2.0", "0.5", "3.0", "0.1", "1.7"))
    form = d.rng.choice(("h * {v}", "h / {v}", "h + {v}", "h - {v}", "{v} - h", "{v} * h + 0.25"))
    return d.say(f"h = {form.format(v=value)}")


def affine(d: TaskDraft) -> bool:
    """A parameter per channel."""
    if d.flat:
        return False
    made = d.parameter(d.per_channel(), d.rng.choice(("scale", "shift")), scale="")
    return d.say(f"h = h {d.rng.choice(('*', '+', '+', '-'))} {made}")


def clamped(d: TaskDraft) -> bool:
    """Bounds on values, on one or both sides."""
    return d.say(
        d.rng.choice(
            (
                "h = torch.clamp(h, -1.0, 1.0)",
                "h = torch.clamp(h, min=-0.5)",
                "h = h.clamp(max=1.5)",
                "h = torch.minimum(h, h.new_full((), 0.75))",
            )
        )
    )


def keep(d: TaskDraft) -> bool:
    """Remembers this value for a later `residual`; one at a time."""
    if d.kept is not None:
        return False
    d.kept = d.shape
    return d.say("kept = h")


def residual(d: TaskDraft) -> bool:
    """Adds or multiplies the value that was kept, where it has the same shape."""
    if d.kept != d.shape:
        return False
    d.kept = None
    return d.say(
        d.rng.choice(("h = h + kept", "h = kept + h", "h = h * kept", "h = 0.5 * (h + kept)"))
    )


def norm(d: TaskDraft) -> bool:
    """A normalization over features: a module, a function, or written out; batch norms in eval mode."""
    if d.flat or d.width == 1:
        return False
    return (_norm_maps if d.layout == "maps" else _norm_rows)(d)


def _norm_rows(d: TaskDraft) -> bool:
    way = d.rng.randrange(5)
    if way == 0:
        return d.say(f"h = {d.layer(f'nn.LayerNorm({d.width}{d.typed})', 'norm')}(h)")
    if way == 1:
        return d.say(f"h = F.layer_norm(h, ({d.width},))")
    if way == 2:
        weight = d.parameter((d.width,), scale="1 + 0.1 * ")
        return d.say(f"h = h * torch.rsqrt(h.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * {weight}")
    if way == 3:
        spread = "torch.sqrt(h.var(dim=-1, keepdim=True, unbiased=False) + 1e-5)"
        return d.say(f"h = (h - h.mean(dim=-1, keepdim=True)) / {spread}")
    if d.layout == "rows":
        return d.say(f"h = {d.layer(f'nn.BatchNorm1d({d.width}{d.typed}).eval()', 'norm')}(h)")
    return d.say("h = h / (h.norm(dim=-1, keepdim=True) + 1e-6)")


def _norm_maps(d: TaskDraft) -> bool:
    way = d.rng.randrange(4)
    if way == 0 and not d.odd and d.width % 8 == 0:
        return d.say(f"h = {d.layer(f'nn.GroupNorm(8, {d.width}{d.typed})', 'groups')}(h)")
    if way == 1:
        return d.say("h = F.instance_norm(h)")
    if way == 2:
        return d.say("h = h - h.mean(dim=1, keepdim=True)")
    return d.say(f"h = {d.layer(f'nn.BatchNorm{d.space}d({d.width}{d.typed}).eval()', 'norm')}(h)")


def softmax(d: TaskDraft) -> bool:
    """Softmax or its logarithm over features."""
    if d.flat or d.width == 1:
        return False
    form = d.rng.choice(
        (
            "torch.softmax(h, dim={c})",
            "F.log_softmax(h, dim={c})",
            "torch.softmax(h / 0.7, dim={c})",
        )
    )
    return d.say(f"h = {form.format(c=1 if d.layout == 'maps' else -1)}")


def reduced(d: TaskDraft) -> bool:
    """Over features, kept as a dimension of one: what follows is small."""
    if d.flat or d.width == 1:
        return False
    dim = 1 if d.layout == "maps" else -1
    call = d.rng.choice(("torch.sum", "torch.mean", "torch.amax", "torch.logsumexp", "torch.var"))
    shape = list(d.shape)
    shape[d.channel] = 1
    d.set(*shape)
    return d.say(f"h = {call}(h, dim={dim}, keepdim=True)")


def pooled(d: TaskDraft) -> bool:
    """Halves every dimension of space, by maximum or mean; twice at most."""
    if d.layout != "maps" or d.flat or d.pools == 2:
        return False
    d.pools += 1
    kind, space = d.rng.choice(("max", "avg")), d.space
    module = d.rng.random() < 0.5
    d.set(*d.shape[:2], *(side // 2 for side in d.shape[2:]))
    if module:
        stem = {"max": "MaxPool", "avg": "AvgPool"}[kind]
        return d.say(f"h = {d.layer(f'nn.{stem}{space}d(2)', 'pool')}(h)")
    return d.say(f"h = F.{kind}_pool{space}d(h, 2)")


def everywhere(d: TaskDraft) -> bool:
    """All of space or all tokens into one; the shape becomes rows."""
    if d.layout == "rows" or d.flat:
        return False
    dims = tuple(range(2, len(d.shape))) if d.layout == "maps" else (1,)
    form = d.rng.choice(("h.mean(dim={d})", "torch.amax(h, dim={d})", "h.sum(dim={d})"))
    d.set(d.shape[0], d.width, layout="rows")
    d.kept = None
    return d.say(f"h = {form.format(d=list(dims) if len(dims) > 1 else dims[0])}")


def joined(d: TaskDraft) -> bool:
    """The features beside an activation of them: twice as many; twice at most."""
    if d.flat or d.joins == 2:
        return False
    d.joins += 1
    act = d.rng.choice(ACTIVATIONS).format(h="h")
    shape = list(d.shape)
    shape[d.channel] *= 2
    d.set(*shape)
    d.kept = None
    return d.say(f"h = torch.cat([h, {act}], dim={1 if d.layout == 'maps' else -1})")


def halved(d: TaskDraft) -> bool:
    """A gate made of half of the features."""
    if d.flat or d.odd or d.width % 2 or d.width < 4:
        return False
    dim = 1 if d.layout == "maps" else -1
    shape = list(d.shape)
    shape[d.channel] //= 2
    d.set(*shape)
    d.kept = None
    if d.rng.random() < 0.4:
        return d.say(f"h = F.glu(h, dim={dim})")
    act = d.rng.choice(("torch.sigmoid", "F.silu", "torch.tanh"))
    return d.say(f"a, b = h.chunk(2, dim={dim})", f"h = a * {act}(b)")


def scanned(d: TaskDraft) -> bool:
    """A running sum, over tokens or else over features."""
    if d.layout == "maps" or d.flat:
        return False
    return d.say(f"h = torch.cumsum(h, dim={1 if d.layout == 'tokens' else -1})")


def dropped(d: TaskDraft) -> bool:
    """Dropout in eval mode, which does nothing."""
    return d.say(f"h = {d.layer('nn.Dropout(0.1).eval()', 'drop')}(h)")


def turned(d: TaskDraft) -> bool:
    """Features and tokens change places."""
    if d.layout != "tokens" or d.flat:
        return False
    d.set(d.shape[0], d.shape[2], d.shape[1])
    d.kept = None
    return d.say(d.rng.choice(("h = h.transpose(1, 2)", "h = h.permute(0, 2, 1).contiguous()")))


def fixed(d: TaskDraft) -> bool:
    """Depends on parameters alone: can be computed once."""
    made = d.parameter((64,), "fixed", scale="")
    return d.say(f"h = h * torch.softmax({made}, dim=0).amax() + {made}.mean()")


def total(d: TaskDraft) -> bool:
    """The end: one number per sample, or one in all."""
    if d.flat:
        return False
    d.flat, d.kept = True, None
    dims = list(range(1, len(d.shape)))
    forms = [f"h.sum(dim={dims})", "h.mean()", "h.square().sum()"]
    if "target" not in d.inputs and d.rng.random() < 0.5:
        d.tensor("target", d.shape)
        forms = [
            "F.mse_loss(h, target)",
            "F.smooth_l1_loss(h, target)",
            "torch.abs(h - target).mean()",
        ]
    d.set(1)
    return d.say(f"h = {d.rng.choice(forms)}")


MOVES: tuple[tuple[DraftMove, int], ...] = (
    (linear, 5), (convolution, 7), (gated, 2), (stacked, 1), (activation, 12), (number, 5),
    (affine, 5),
    (clamped, 4), (keep, 4), (residual, 6), (norm, 6), (softmax, 3), (reduced, 3), (pooled, 4),
    (everywhere, 2), (joined, 2), (halved, 2), (scanned, 1), (dropped, 1), (turned, 1), (fixed, 1),
    (total, 1),
)  # fmt: skip
HEAVY = (linear, convolution, gated, stacked)
MAX_HEAVY = 3
"""Anchors of one task, so that its time is its structure's and not that of one product after
another."""


def compose(d: TaskDraft, length: int) -> None:
    """A start and up to ``length`` moves; those that do not fit are drawn again, up to four times
    each."""
    _weighted_choice(d.rng, STARTS)(d)
    heavy = 0
    for _ in range(length):
        for _ in range(5):
            chosen = _weighted_choice(d.rng, MOVES)
            if chosen in HEAVY and heavy == MAX_HEAVY:
                continue
            if chosen(d):
                heavy += chosen in HEAVY
                break
    if sum("kept" in line for line in d.forward) == 1:
        d.forward.remove("kept = h")


def _weighted_choice(rng: random.Random, options: Sequence[tuple[T, int]]) -> T:
    return rng.choices([one for one, _ in options], [weight for _, weight in options])[0]
