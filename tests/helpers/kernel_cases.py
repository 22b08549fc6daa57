"""One program for each shape of generated kernel, for a device and for the interpreter alike.

`asked` writes what a child of the tests, or this process on a device, then runs
(`codegen_child.run`, or `training_child.run` where the program is trained); `judged` reads what
came of it. The sizes are no powers of two, take more than one block each, and are few enough that
the interpreter needs a second."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from codegen_helpers import ROOT

from kernel_lsp.records import Program, Skill, Step, TargetKind, Workload, WorkloadOrigin

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    name: str
    skill: str
    body: str
    """What forward does; one expression, or lines that end with a return."""
    inputs: str
    """Expressions of get_inputs()."""
    holds: str
    """Words of the rewritten file by which the kernel is of the shape that the case is about."""
    arguments: str = "x, y"
    init: str = ""
    training: bool = False
    interpreted: dict[str, Any] = field(default_factory=dict)
    """Parameters that only the interpreter needs: it knows no bf16x6, and large blocks take it
    long."""

    @property
    def source(self) -> str:
        body = self.body if "return " in self.body else f"return {self.body}"
        forward = "".join(f"        {line}\n" for line in body.splitlines())
        lines = "".join(
            f"        {line}\n" for line in ["super().__init__()", *self.init.splitlines()]
        )
        setup = f"    def __init__(self):\n{lines}\n" if self.init else ""
        return (
            f"{HEAD}{setup}    def forward(self, {self.arguments}):\n{forward}\n\n"
            f"def get_inputs():\n    return [{self.inputs}]\n"
        )


def _normal(*shapes: str, dtype: str = "float32", training: bool = False) -> str:
    more = ", requires_grad=True" if training else ""
    return ", ".join(f"torch.randn({shape}, dtype=torch.{dtype}{more})" for shape in shapes)


def _pointwise(name: str, body: str, *shapes: str, holds: str = "", dtype: str = "float32", init: str = "",
               training: bool = False) -> Case:  # fmt: skip
    return Case(
        name=name, skill="fused-pointwise", body=body, init=init, training=training,
        inputs=_normal(*shapes, dtype=dtype, training=training),
        arguments=", ".join("xyz"[: len(shapes)]),
        holds=holds or ("_backward_kernel" if training else "@triton.jit"),
    )  # fmt: skip


LAST = ".to(memory_format=torch.channels_last)"
SLOPES = "self.w = nn.Parameter(torch.rand(45))"
POINTWISE = (
    _pointwise("along its results", "F.silu(x.transpose(1, 2) * y[:, None])", "3, 65, 70", "70"),
    _pointwise("strided", "(x[:, ::2] * y[:, 1::2]).tanh()", "65, 262", "65, 262", holds="_stride_0"),
    _pointwise("windows", "(x.unfold(1, 6, 3) + y).relu()", "70, 302", "6", holds="_stride_0"),
    _pointwise("tiled", "F.gelu(x.t() + y) * y", "137, 345", "345, 137", holds="BLOCK_ROWS"),
    _pointwise("tiled in three dimensions", "(x.permute(1, 2, 0) + y).relu() * "
                                            "y[:, :, :1]", "133, 3, 77",
               "3, 77, 133", holds="BLOCK_ROWS", dtype="bfloat16"),
    _pointwise("expanded", "(x.expand(4, 70, 65) * 2 + y).relu()", "70, 65", "65"),
    _pointwise("transposed and copied", "x.transpose(1, 2).contiguous() "
                                        "* 2 + y", "2, 137, 45", "137",
               holds="BLOCK_ROWS"),
    _pointwise("several results", "(lambda h: (h, h.relu()))(x.t() * 2 "
                                  "+ y.t())", "66, 141", "66, 141"),
    _pointwise("gated by halves", "(lambda a, b: F.silu(a) * b)(*x.chunk(2, -1))", "33, 6, 140",
               dtype="float16"),
    _pointwise("glu", "F.glu(x, 1) * 2 + 1", "33, 70, 45"),
    _pointwise("prelu of channels", "F.prelu(x + 1, y.abs()) * 2", "7, 45, 130", "45", holds="prelu"),
    Case(
        name="channels last", skill="fused-pointwise", body="(x * y).sigmoid() * x",
        inputs=f"torch.randn(5, 45, 13, 14){LAST}, "
               f"torch.randn(45, 1, 1)", holds="permute(0, 3, 1, 2)",
    ),
    _pointwise("gradients through a transpose", "F.silu(x.transpose(1, 2) + y) * y", "2, 67, 59",
               "2, 59, 67", training=True),
    _pointwise("gradients through a stride", "(x[:, ::2] * y).tanh()", "65, 142", "71", training=True),
    _pointwise("gradients of a gate", "(lambda a, b: F.gelu(a) * b)(*x.chunk(2, 1))", "33, 90, 7",
               training=True),
    _pointwise("gradients of slopes", "F.prelu(x, self.w) * 2", "33, 45, 7", training=True, init=SLOPES),
)  # fmt: skip

SMALL = {"BLOCK_QUERIES": 16, "BLOCK_KEYS": 16, "precision": "tf32x3"}
INNER = _normal("2, 47, 3, 32", "2, 50, 3, 32", "2, 50, 3, 64")  # heads inside
OUTER = _normal("2, 3, 50, 32", "2, 3, 50, 32", "2, 3, 50, 32")
GROUPED = _normal("2, 6, 47, 32", "2, 2, 50, 32", "2, 2, 50, 32", dtype="float16")
EINSUM = "s = torch.einsum('bqhd,bkhd->bhqk', q, k) / 6\n"
SUMMED = "return torch.einsum('bhqk,bkhd->bqhd', {}, v)"


def _attention(name: str, body: str, inputs: str, mask: str = "", holds: str = "") -> Case:
    return Case(
        name=f"attention: {name}", skill="flash-attention", body=body, interpreted=SMALL,
        inputs=f"{inputs}, {mask}" if mask else inputs,
        arguments="q, k, v, m" if mask else "q, k, v",
        holds=holds or "flash_attention_kernel",
    )  # fmt: skip


ATTENTION = (
    _attention("einsum, heads inside", EINSUM + SUMMED.format("s.softmax(-1)"), INNER),
    _attention(
        "groups by broadcasting",
        "b, h, l, d = q.shape\ns = q.view(b, 2, 3, l, d) @ k[:, :, None].transpose(-2, -1) / 6\n"
        "return (s.softmax(-1) @ v[:, :, None]).reshape(b, h, l, d)", GROUPED,
    ),
    _attention(
        "flattened heads",
        "b, h, l, d = q.shape\nq, k, v = (t.flatten(0, 1) for t in (q, k, v))\n"
        "return torch.bmm((torch.bmm(q, k.mT) / 6).softmax(-1), v).view(b, h, l, d)", OUTER,
    ),
    _attention(
        "positions compared",
        "i = torch.arange(50, device=q.device)\ns = q @ k.transpose(-2, -1) / 6\n"
        "return s.masked_fill(i[None, :] > i[:, None], float('-inf')).softmax(-1) @ v",
        OUTER, holds="longest first",
    ),
    _attention(
        "a mask that leaves a query nothing",
        f"{EINSUM}w = s.masked_fill(m, "
        f"float('-inf')).softmax(-1).nan_to_num(0.0)\n{SUMMED.format('w')}",
        INNER, "(torch.arange(47) % 5 == 0)[:, None].expand(47, 50)",
    ),
    _attention(
        "a bias of heads",
        "s = torch.einsum('bqhd,bkhd->bqhk', q, k) + m\n"
        "return torch.einsum('bqhk,bkhd->bqhd', "
        "s.softmax(-1), v)", INNER, "torch.randn(2, 47, 1, 50)",
    ),
)  # fmt: skip

DECAY = "self.decay = nn.Parameter(torch.randn(37))"
THERE, BACK = "for t in range(x.size(1)):", "for t in reversed(range(x.size(1))):"
SCAN = "h = 0.5 * h + torch.sigmoid(self.decay) * x[:, t]"
GATED = "g = torch.sigmoid(x[:, t])\n    h = g * h + (1 - g) * torch.tanh(x[:, t])"


def _walk(name: str, steps: str, head: str = THERE, result: str = "torch.stack(out, 1)") -> Case:
    loop = f"h = x.new_zeros(x.size(0), 37)\nout = []\n{head}\n    {steps}\n    out.append(h)"
    return Case(
        name=f"walk: {name}", skill="fused-recurrence", body=f"{loop}\nreturn {result}",
        arguments="x",
        init=DECAY, inputs=_normal("35, 9, 37"), holds="@triton.jit",
    )  # fmt: skip


def _scan(name: str, body: str, *shapes: str) -> Case:
    return Case(
        name=name, skill="fused-scan", body=body, inputs=_normal(*shapes), holds="@triton.jit"
    )


WALKS = (
    _walk("forth", SCAN),
    _walk("back, in the order of time", SCAN, BACK, "torch.stack(out[::-1], 1)"),
    _walk("back, in the order of steps", SCAN, BACK),
    _walk("forth and back at once", "h = 0.5 * h + x[:, t] - 0.25 * x[:, x.size(1) - 1 - t]"),
    _walk("gated, with the last state", GATED, result="(torch.stack(out, 1), h)"),
    _scan("scan: forth", "torch.cumsum(x * 2, 1) - x + y", "5, 3001", "5, 1"),
    _scan("scan: back", "x.flip(0).cumsum(0).flip(0) * y", "301, 6, 7", "7"),
)

ROWS = (
    "torch.randn(67, 301), torch.randint(0, 301, (67,)).index_fill(0, torch.tensor([2, 5]), -100)"
)
MAPS = "torch.randn(3, 21, 13, 17), torch.randint(0, 21, (3, 13, 17))"
PAIR = "torch.randn(67, 301), torch.rand(67, 301)"
PAIR_AND_SIGNS = f"{PAIR}, torch.randint(0, 2, (67,)) * 2 - 1"
WIDE, OF_MAPS = (
    "self.register_buffer('w', torch.rand(301))",
    "self.register_buffer('w', torch.rand(21))",
)
CLASSES, LOGITS = (
    "F.cross_entropy(x, y",
    "F.binary_cross_entropy_with_logits(x, y, pos_weight=self.w",
)


def _loss(name: str, body: str, inputs: str, init: str = "", *, training: bool = False) -> Case:
    if training:  # the first tensor: what a network says
        inputs = inputs.replace(")", ", requires_grad=True)", 1)
    return Case(
        name=f"loss: {name}", skill="fused-loss", body=body, inputs=inputs, init=init,
        training=training,
        arguments="x, y, z" if inputs.startswith(PAIR_AND_SIGNS) else "x, y",
        holds="_backward_kernel" if training else "@triton.jit",
    )  # fmt: skip


LOSSES = (
    _loss("classes with weights", f"{CLASSES}, weight=self.w, label_smoothing=0.2)", ROWS, WIDE),
    _loss("classes of maps", f"{CLASSES}, reduction='none')", MAPS),
    _loss(
        "classes of maps with weights",
        f"{CLASSES}, weight=self.w, label_smoothing=0.2)",
        MAPS,
        OF_MAPS,
    ),
    _loss("log likelihoods", "F.nll_loss(F.log_softmax(x, 1), y, weight=self.w)", ROWS, WIDE),
    _loss("binary with weights of positives", f"{LOGITS})", PAIR, WIDE),
    _loss(
        "binary of probabilities",
        "F.binary_cross_entropy(torch.sigmoid(x), y, reduction='sum')",
        PAIR,
    ),
    _loss(
        "divergence", "F.kl_div(x, F.logsigmoid(y), log_target=True, reduction='batchmean')", PAIR
    ),
    _loss("cosine embedding", "F.cosine_embedding_loss(x, y, z, margin=0.3)", PAIR_AND_SIGNS),
    _loss(
        "gradients of classes with weights", f"{CLASSES}, weight=self.w)", ROWS, WIDE, training=True
    ),
    _loss(
        "gradients of classes of maps", f"{CLASSES}, weight=self.w)", MAPS, OF_MAPS, training=True
    ),
    _loss("gradients of binary", f"{LOGITS}, reduction='sum')", PAIR, WIDE, training=True),
)
CASES = {case.name: case for case in (*POINTWISE, *ATTENTION, *WALKS, *LOSSES)}


def asked(case: Case, device: str, parameters: dict[str, Any] | None = None) -> dict[str, str]:
    """A question for the child that runs both programs: the skill's largest match is rewritten."""
    from kernel_lsp.rewrite.engine import EngineSession

    skill = Skill(
        name=case.skill, description="", scope="graph", tags=(), version=1, body="",
        path=str(ROOT / "skills" / case.skill), executable=True,
    )  # fmt: skip
    target = Program(source=case.source, entry="Model", kind=TargetKind.MODULE)
    workload = Workload(
        name="test", origin=WorkloadOrigin.GET_INPUTS, training=case.training or None
    )
    opened = EngineSession(target, workload, device, [skill])
    found = opened.rewrites[case.skill].match(opened.graph)
    assert found, f"{case.skill} does not match {[node.name for node in opened.graph.nodes]}"
    site = max(found, key=lambda match: len(match.nodes)).label
    step = Step(skill=case.skill, site=site, parameters=parameters or {})
    after = opened.propose([step]).candidate.program
    assert case.holds in after
    return {"before": case.source, "after": after, "device": device}


def judged(case: Case, found: dict[str, Any]) -> None:
    """By the fast path, as close to float64 as eager, with NaN and infinities at the same
    places."""
    assert not found["fell_back"] and all(found["same_kind"])
    slack = 2**-6 if "float16" in case.source else 3e-6  # of bfloat16 too
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack
