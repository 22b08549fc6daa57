"""Wrong candidates made of right ones, and right ones: thousands of texts from a seed. Texts only,
no torch.

A program is a reference and a right rewrite of it; a mutation replaces one piece of the rewrite,
or of the frame that calls it, by what people and models get wrong. Every program comes in several
types and shapes. What a mutation really changes is found out by running both (differing.py); what
turns out to change nothing is left out. Sizes are small: the gate judges values here, not speed.
Not covered: synchronization that is missing, which a CPU cannot show."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

DTYPES = ("bfloat16", "float32", "float16")
"""Two of three have 16 bits."""
SHAPES = ((24, 40), (17, 33), (8, 128), (33, 64), (5, 257), (64, 48), (13, 96), (31, 31))
REFERENCE = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn({n}, dtype=torch.{dtype}))
        self.bias = nn.Parameter(torch.randn({n}, dtype=torch.{dtype}))

    def forward(self, x):
        {reference}


def get_inputs():
    return [torch.randn({m}, {n}, dtype=torch.{dtype})]


def get_init_inputs():
    return []
"""
CANDIDATE = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
{top}

class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, g):
        return {backward}


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn({n}, dtype=torch.{dtype}))
        self.bias = nn.Parameter(torch.randn({n}, dtype=torch.{dtype}))
        self.seen, self.calls = {{}}, 0

    def compute(self, x, weight, bias):
        {candidate}

    def forward(self, x):
        self.calls += 1
        y = self.compute({given})
        {after}
        return {result}
"""
FRAME = {
    "backward": "g",
    "given": "x, self.weight, self.bias",
    "after": "pass",
    "result": "y",
    "top": "",
}
"""What a right candidate has around its computation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MutatedProgram:
    """A reference, right rewrites, and what each of them can have wrong: (piece, what stands there
    then)."""

    name: str
    reference: str
    rewrites: tuple[str, ...]
    mutations: tuple[tuple[str, str, str], ...]
    """(name, piece, instead); applied to every rewrite, or ``top``, that has the piece."""
    top: str = ""
    """What stands before the rewrite's class: its kernel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MutantSample:
    key: str
    mutation: str
    """Empty: an honest candidate."""
    dtype: str
    reference: str
    candidate: str


PROGRAMS = (
    MutatedProgram(
        name="rms norm",
        reference="v = x.float().pow(2).mean(-1, keepdim=True); "
        "return (x.float() * torch.rsqrt(v + 1e-6) * self.weight + self.bias).to(x.dtype)",
        rewrites=(
            "f = x.float(); s = (f * f).sum(-1, keepdim=True) / x.shape[-1]; "
            "return (f * (s + 1e-6).rsqrt() * weight.float() + bias.float()).to(x.dtype)",
            "f = x.float(); s = torch.linalg.vector_norm(f, dim=-1, keepdim=True).square() / "
            "f.shape[-1]; "
            "return torch.addcmul(bias.float(), f / (s + 1e-6).sqrt(), weight.float()).to(x.dtype)",
        ),
        mutations=(
            ("other divisor", "x.shape[-1]", "(x.shape[-1] - 1)"),
            ("other divisor", "f.shape[-1]", "(f.shape[-1] + 1)"),
            ("epsilon dropped", "s + 1e-6", "s"),
            ("other epsilon", "1e-6", "1e-3"),
            ("tail left out", "(f * f).sum", "(f * f)[..., : x.shape[-1] // 32 * 32].sum"),
            ("off by one", "(f * f).sum", "(f * f)[..., 1:].sum"),
            ("other axis", "sum(-1, keepdim=True)", "sum(0, keepdim=True)"),
            (
                "lower accumulator",
                "(f * f).sum(-1, keepdim=True)",
                "(x * x).half().cumsum(-1)[..., -1:].float()",
            ),
            ("operand swapped", "weight.float() + bias.float()", "bias.float() + weight.float()"),
            ("operand swapped", "bias.float(), f /", "weight.float(), f /"),
            ("bias dropped", " + bias.float()", ""),
            ("weights in eight bits", "weight.float()", "(weight.float() * 16).round() / 16"),
        ),
    ),
    MutatedProgram(
        name="softmax",
        reference="s = torch.softmax(x.float() * 0.5, -1) * self.weight + self.bias; return "
        "s.to(x.dtype)",
        rewrites=(
            "f = x.float() * 0.5; e = torch.exp(f - f.amax(-1, keepdim=True)); "
            "return (e / e.sum(-1, keepdim=True) * weight + bias).to(x.dtype)",
            "f = x.float() * 0.5; return torch.addcmul(bias.float(), "
            "torch.exp(f - f.logsumexp(-1, keepdim=True)), weight.float()).to(x.dtype)",
        ),
        mutations=(
            ("maximum dropped", " - f.amax(-1, keepdim=True)", ""),
            ("off by one", "e.sum(-1", "e[..., 1:].sum(-1"),
            ("tail left out", "e.sum(-1", "e[..., : e.shape[-1] // 16 * 16].sum(-1"),
            ("other scale", "* 0.5", "* 0.5005"),
            ("other axis", "f.logsumexp(-1", "f.logsumexp(0"),
            ("operand swapped", "* weight + bias", "* bias + weight"),
            (
                "lower accumulator",
                "e.sum(-1, keepdim=True)",
                "e.bfloat16().cumsum(-1)[..., -1:].float()",
            ),
            ("bias dropped", " + bias", ""),
        ),
    ),
    MutatedProgram(
        name="gated relu",
        reference="y = torch.relu(x * self.weight); return y * torch.sigmoid(x) + self.bias",
        rewrites=(
            "y = F.relu(weight * x); return torch.sigmoid(x) * y + bias",
            "p = x * weight; return torch.where(p <= 0, torch.zeros_like(p), p) * "
            "torch.sigmoid(x) + bias",
        ),
        mutations=(
            ("product for a mask", "F.relu(weight * x)", "(x * weight) * ((x * weight) > 0)"),
            ("other bound", "F.relu(weight * x)", "torch.clamp_min(x * weight, 0.01)"),
            ("bounded above", "F.relu(weight * x)", "torch.clamp(x * weight, 0, 6)"),
            ("bounded above", "p <= 0", "(p <= 0) | (p > 30)"),
            ("leaky", "torch.zeros_like(p)", "p * 0.01"),
            ("other gate", "torch.sigmoid(x)", "torch.sigmoid(1.01 * x)"),
            ("other gate", "torch.sigmoid(x)", "(x / 6 + 0.5).clamp(0, 1)"),
            ("operand swapped", "torch.sigmoid(x)", "torch.sigmoid(p)"),
            ("positive inputs only", "p <= 0, torch.zeros_like(p), p", "p <= 0, p.abs(), p"),
            ("bias of the first", "+ bias", "+ bias[:1]"),
        ),
    ),
    MutatedProgram(
        name="mean of squares",
        reference="d = (x * self.weight - self.bias).float(); return (d * d).mean(0).to(x.dtype)",
        rewrites=(
            "d = (x * weight - bias).float(); return (d.square().sum(0) / x.shape[0]).to(x.dtype)",
            "d = (x * weight - bias).float(); return torch.einsum('mn,mn->n', d, "
            "d).div(len(x)).to(x.dtype)",
        ),
        mutations=(
            ("off by one", "d.square().sum(0)", "d[1:].square().sum(0)"),
            ("tail left out", "d.square().sum(0)", "d[: len(d) // 8 * 8].square().sum(0)"),
            ("other divisor", "x.shape[0]", "(x.shape[0] - 1)"),
            ("size written down", "len(x)", "{m}"),
            ("absolute value", "d.square()", "d.abs()"),
            ("operand swapped", "x * weight - bias", "x * bias - weight"),
            (
                "lower accumulator",
                "d.square().sum(0)",
                "d.square().bfloat16().cumsum(0)[-1].float()",
            ),
            ("two rows only", "'mn,mn->n', d, d", "'mn,mn->n', d[:2], d[:2]"),
        ),
    ),
    MutatedProgram(
        name="running sum",
        reference="return torch.cumsum(x.float() * self.weight, -1).to(x.dtype) + self.bias",
        rewrites=(
            "f = x.float() * weight; h = f.shape[-1] // 2; "
            "a, b = f[..., :h].cumsum(-1), f[..., h:].cumsum(-1); "
            "t = f[..., :h].sum(-1, keepdim=True); return torch.cat([a, b + t], "
            "-1).to(x.dtype) + bias",
        ),
        mutations=(
            ("carry dropped", "b + t", "b"),
            ("off by one", "f[..., :h].sum", "f[..., 1:h].sum"),
            ("other axis", "f[..., :h].cumsum(-1)", "f[..., :h].cumsum(0)"),
            ("lower carry", "keepdim=True);", "keepdim=True).to(torch.float8_e5m2).float();"),
            ("exclusive", "f[..., h:].cumsum(-1)", "(f[..., h:].cumsum(-1) - f[..., h:])"),
            ("bias dropped", " + bias", ""),
        ),
    ),
    MutatedProgram(
        name="product with its transpose",
        reference="return (x * self.weight) @ (x + self.bias).t()",
        rewrites=(
            "a, b = x * weight, x + bias; return (b @ a.t()).t().contiguous()",
            "a, b = x * weight, (x + bias).t(); h = 16; parts = [a[:, i:i + h].float() @ b[i:i + "
            "h].float() "
            "for i in range(0, a.shape[1], h)]; return torch.stack(parts).sum(0).to(x.dtype)",
        ),
        mutations=(
            ("operand swapped", "b @ a.t()", "a @ b.t()"),
            ("transposition dropped", "(b @ a.t()).t()", "(b @ a.t())"),
            ("tail left out", "range(0, a.shape[1], h)", "range(0, a.shape[1] - h + 1, h)"),
            ("off by one", "range(0, a.shape[1], h)", "range(h, a.shape[1], h)"),
            ("wrong stride", "b[i:i + h]", "b[i:i + h].flip(0)"),
            ("lower precision", "b[i:i + h].float()", "b[i:i + h].to(torch.float8_e4m3fn).float()"),
            ("wrong stride", "a[:, i:i + h]", "a[:, :h]"),
        ),
    ),
)
EVERYWHERE = (
    ("gradient dropped", {"given": "x, self.weight.data, self.bias"}),
    ("gradient dropped", {"given": "x, self.weight, self.bias.detach()"}),
    ("gradient dropped", {"given": "x.detach(), self.weight, self.bias"}),
    ("backward scaled", {"result": "Through.apply(y)", "backward": "g * 1.02"}),
    ("backward scaled", {"result": "Through.apply(y)", "backward": "g * 0.5"}),
    ("backward negated", {"result": "Through.apply(y)", "backward": "-g"}),
    (
        "backward zeroed at an edge",
        {"result": "Through.apply(y)", "backward": "torch.cat([g[:-1], g[-1:] * 0])"},
    ),
    ("scaled", {"result": "y * 1.009"}),
    ("scaled", {"result": "y * 0.995"}),
    ("last element", {"after": "y = y.clone(); y.view(-1)[-1] += 1"}),
    ("last row", {"after": "y = torch.cat([y[:-1], y[-1:] * 1.05])"}),
    (
        "first element",
        {"after": "y = torch.cat([y.flatten()[:1] * 0.9, y.flatten()[1:]]).view(y.shape)"},
    ),
    (
        "some zeros",
        {
            "after": "y = torch.where(torch.arange(y.numel()).view(y.shape) % 997 == 5, 0.0, "
            "y).to(y.dtype)"
        },
    ),
    ("second call", {"after": "y = y * 1.25 if self.calls > 1 else y"}),
    ("every fifth call", {"after": "y = y + 0.1 if self.calls % 5 == 4 else y"}),
    ("stale by address", {"after": "y = self.seen.setdefault(x.data_ptr(), y)"}),
    ("stale by shape", {"after": "y = self.seen.setdefault(tuple(x.shape), y)"}),
    ("stale by sum", {"after": "y = self.seen.setdefault(float(x.flatten()[0]), y)"}),
    (
        "stale weights",
        {"given": "x, self.seen.setdefault('w', self.weight.detach().clone()), self.bias"},
    ),
    ("another shape", {"after": "y = y if x.shape[0] == {m} else y * 2"}),
    ("another shape", {"after": "y = y if x.shape[0] % 2 == {m} % 2 else y.flip(0)"}),
    (
        "wrong stride",
        {
            "given": "x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset()), self.weight, "
            "self.bias"
        },
    ),
    ("wrong for large", {"after": "y = torch.where(y.abs() > 50, y * 1.1, y).to(y.dtype)"}),
    ("negative zeroed", {"given": "x.clamp_min(-4), self.weight, self.bias"}),
    (
        "not a number hidden",
        {"after": "y = torch.nan_to_num(y, nan=0.0, posinf=float('inf'), neginf=-float('inf'))"},
    ),
)
"""Mutations of the frame, for every program."""
HONEST: tuple[dict[str, str], ...] = (
    {},
    {"result": "Through.apply(y)"},
    {"after": "y = y.clone()"},
    {"given": "x.contiguous(), self.weight, self.bias"},
    {"after": "self.seen = {{'rows': x.shape[0]}}"},
    {"given": "x.view(x.shape) if x.is_contiguous() else x, self.weight * 1, self.bias"},
    {"after": "y = y if x.shape[0] == {m} else self.compute(x, self.weight, self.bias)"},
)
"""Frames that change nothing."""


def honest(seed: int, programs: Sequence[MutatedProgram] = PROGRAMS) -> Iterator[MutantSample]:
    """Every right rewrite in every frame, type and shape, in an order of the seed."""
    made = [
        _sample(program, number, frame, "", f"frame {at}", dtype, shape, rewrite)
        for program in programs
        for number, rewrite in enumerate(program.rewrites)
        for at, frame in enumerate(FRAME | {"top": program.top} | change for change in HONEST)
        for dtype in DTYPES
        for shape in SHAPES
    ]
    return iter(random.Random(seed).sample(made, len(made)))


def wrong(seed: int, programs: Sequence[MutatedProgram] = PROGRAMS) -> Iterator[MutantSample]:
    """Every mutation of every right rewrite in every type and shape, in an order of the seed."""
    made = [
        _sample(program, number, frame, name, f"{at}", dtype, shape, text)
        for program in programs
        for number, rewrite in enumerate(program.rewrites)
        for at, name, text, frame in _changes(program, rewrite)
        for dtype in DTYPES
        for shape in SHAPES
    ]
    return iter(random.Random(seed).sample(made, len(made)))


def _changes(
    program: MutatedProgram, rewrite: str
) -> Iterator[tuple[int, str, str, dict[str, str]]]:
    """(number, name, the rewrite, its frame) of every mutation that finds its piece."""
    right = FRAME | {"top": program.top}
    for at, (name, old, new) in enumerate(program.mutations):
        if old in rewrite + program.top:
            changed = right | {"top": program.top.replace(old, new)}
            yield at, name, rewrite.replace(old, new), changed
    for at, (name, change) in enumerate(EVERYWHERE, len(program.mutations)):
        yield at, name, rewrite, right | change


def _sample(
    program: MutatedProgram,
    number: int,
    frame: dict[str, str],
    mutation: str,
    what: str,
    dtype: str,
    shape: tuple[int, int],
    body: str,
) -> MutantSample:
    sizes = {"m": shape[0], "n": shape[1], "dtype": dtype}
    filled = {name: text.replace("{m}", str(shape[0])) for name, text in frame.items()}
    filled = {name: text.replace("{{", "{").replace("}}", "}") for name, text in filled.items()}
    return MutantSample(
        key=f"{program.name}/{number}/{mutation or 'honest'}/{what}/{dtype}/{shape[0]}x{shape[1]}",
        mutation=mutation,
        dtype=dtype,
        reference=REFERENCE.format(reference=program.reference, **sizes),
        candidate=CANDIDATE.format(candidate=body.replace("{m}", str(shape[0])), **filled, **sizes),
    )
