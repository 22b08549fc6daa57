"""The part about programs whose inputs, outputs or parameters are 1 to 16 GB: each is judged, none
is blamed for memory that was not its own, and the verdict does not take for ever.

The candidates are the references in other words, so any refusal is a fault of the gate. What one
eager call takes is measured by the verdict itself. Texts only, no torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.gating.running import Bench, GatePart, GateRow, Judged
from benchmarks.gating.tasks import GateTask
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus

GIB = 2**30
EAGER_CALLS, EXTRA_S = 40, 30.0
"""The bar of one verdict: so many eager calls, and so many seconds."""
BUDGET = EvaluationBudget(compile_s=0, timing_s=1.0, call_s=60)
BLAMED = ("memory", "allocat")
"""Words of a refusal that are about memory."""


def programs(scale: int = 1) -> tuple[GateTask, ...]:
    """Forty of them; all sizes are divided by ``scale`` (1: as on a GPU of 80 GB and more)."""

    def rows(gib: float, width: int, dtype: str = "float32") -> str:
        size = 4 if dtype == "float32" else 2
        count = max(8, int(gib * GIB / size / width / scale))
        return f"torch.randn({count}, {width}, dtype=torch.{dtype})"

    def images(gib: float, channels: int, side: int) -> str:
        count = max(4, int(gib * GIB / 4 / channels / side / side / scale))
        return f"torch.randn({count}, {channels}, {side}, {side})"

    def indices(count: int, below: int) -> str:
        return f"torch.randint(0, {below}, ({max(8, count // scale)},))"

    half, small = "bfloat16", "torch.randn(512, 4096)"
    table = max(64, 2**20 // scale)

    def task(
        name: str, inputs: tuple[str, ...], body: str, other: str, init: str = "pass"
    ) -> GateTask:
        return GateTask(
            name=name, inputs=inputs, body=f"return {body}", other=f"return {other}", init=init
        )

    return (
        task("relu squared, 1 GB", (rows(1, 4096),), "torch.relu(x).square()", "F.relu(x) ** 2"),
        task("gelu, 2 GB", (rows(2, 4096),), "F.gelu(x) + 1", "torch.add(F.gelu(x), 1)"),
        task("sum of two, 2 and 2 GB", (rows(2, 4096), rows(2, 4096)), "x + y", "torch.add(y, x)"),
        task("scaled, 8 GB of bfloat16", (rows(8, 4096, half),), "x * 0.5", "x / 2"),
        task(
            "silu, 4 GB of float16",
            (rows(4, 4096, "float16"),),
            "F.silu(x)",
            "torch.nn.functional.silu(x)",
        ),
        task(
            "where, 4 GB",
            (rows(4, 4096),),
            "torch.where(x > 0, x, x * 0.1)",
            "F.leaky_relu(x, 0.1)",
        ),
        task(
            "softmax of rows, 2 GB", (rows(2, 4096),), "torch.softmax(x, -1)", "F.softmax(x, dim=1)"
        ),
        task(
            "log softmax, 2 GB of bfloat16",
            (rows(2, 32000, half),),
            "torch.log_softmax(x, -1)",
            "F.log_softmax(x, dim=-1)",
        ),
        task(
            "layer norm, 2 GB",
            (rows(2, 1024),),
            "self.n(x)",
            "F.layer_norm(x, (1024,), self.n.weight, self.n.bias)",
            "self.n = nn.LayerNorm(1024)",
        ),
        task(
            "rms norm, 4 GB of bfloat16",
            (rows(4, 2048, half),),
            "F.rms_norm(x, (2048,))",
            "torch.rms_norm(x, (2048,))",
        ),
        task(
            "group norm, 2 GB",
            (images(2, 64, 64),),
            "self.n(x)",
            "F.group_norm(x, 8, self.n.weight, self.n.bias)",
            "self.n = nn.GroupNorm(8, 64)",
        ),
        task("sum of columns, 4 GB", (rows(4, 4096),), "x.sum(0)", "torch.sum(x, dim=0)"),
        task("mean of rows, 8 GB", (rows(8, 4096),), "x.mean(1)", "x.sum(1) / x.shape[1]"),
        task("variance, 4 GB", (rows(4, 4096),), "x.var(1)", "torch.var(x, dim=1)"),
        task("largest, 8 GB of bfloat16", (rows(8, 4096, half),), "x.amax(1)", "x.max(1).values"),
        task(
            "place of the largest, 4 GB", (rows(4, 4096),), "x.argmax(1)", "torch.argmax(x, dim=1)"
        ),
        task("logsumexp, 4 GB", (rows(4, 32768),), "torch.logsumexp(x, 1)", "x.logsumexp(-1)"),
        task("running sum, 1 GB", (rows(1, 2048),), "x.cumsum(1)", "torch.cumsum(x, dim=-1)"),
        task("sort, 1 GB", (rows(1, 1024),), "x.sort(1).values", "torch.sort(x, dim=1)[0]"),
        task("ten largest, 4 GB", (rows(4, 4096),), "x.topk(10, 1).values", "torch.topk(x, 10)[0]"),
        task(
            "transposed, 2 GB",
            (rows(2, 4096),),
            "x.t().contiguous()",
            "x.transpose(0, 1).clone(memory_format=torch.contiguous_format)",
        ),
        task(
            "joined, 2 and 2 GB",
            (rows(2, 4096), rows(2, 4096)),
            "torch.cat([x, y], 1)",
            "torch.cat((x, y), dim=-1)",
        ),
        task("rolled, 2 GB", (rows(2, 4096),), "x.roll(1, 1)", "torch.roll(x, 1, 1)"),
        task(
            "padded, 2 GB",
            (images(2, 64, 64),),
            "F.pad(x, (1, 1, 1, 1))",
            "F.pad(x, (1, 1, 1, 1), value=0.0)",
        ),
        task(
            "repeated, 8 GB of results", (rows(1, 4096),), "x.repeat(1, 8)", "torch.cat([x] * 8, 1)"
        ),
        task(
            "outer sum, 4 GB of results",
            (rows(0.0001, 64), "torch.randn(65536)"),
            "x.view(-1)[:16384 // 8, None] + y",
            "y + x.flatten()[:2048].unsqueeze(1)",
        ),
        task(
            "product, 2 GB by 4096 x 4096",
            (rows(2, 4096),),
            "x @ self.w",
            "torch.mm(x, self.w)",
            "self.w = nn.Parameter(torch.randn(4096, 4096) / 64)",
        ),
        task(
            "product, 4 GB of bfloat16",
            (rows(4, 4096, half),),
            "x @ self.w",
            "torch.mm(x, self.w)",
            "self.w = nn.Parameter((torch.randn(4096, 4096) / 64).bfloat16())",
        ),
        task(
            "linear, 2 GB of weights",
            (small,),
            "self.l(x)",
            "F.linear(x, self.l.weight, self.l.bias)",
            f"self.l = nn.Linear(4096, {max(64, 131072 // scale)})",
        ),
        task(
            "linear, 8 GB of weights in bfloat16",
            ("torch.randn(512, 8192, dtype=torch.bfloat16)",),
            "self.l(x)",
            "F.linear(x, self.l.weight)",
            f"self.l = nn.Linear(8192, {max(64, 524288 // scale)}, bias=False, dtype=torch.bfloat16)",
        ),
        task(
            "batched product, 2 GB",
            (f"torch.randn({max(4, 8192 // scale)}, 256, 256)",),
            "torch.bmm(x, x)",
            "x @ x",
        ),
        task(
            "lookup, 4 GB of table",
            (indices(2**18, table),),
            "self.t(x)",
            "F.embedding(x, self.t.weight)",
            f"self.t = nn.Embedding({table}, 1024)",
        ),
        task(
            "lookup, 4 GB of results",
            (indices(2**20, 1000),),
            "self.t(x)",
            "self.t.weight[x]",
            "self.t = nn.Embedding(1000, 1024)",
        ),
        task(
            "gathered rows, 2 GB",
            (rows(2, 4096), indices(2**16, 8)),
            "x[y]",
            "x.index_select(0, y)",
        ),
        task(
            "convolution, 2 GB",
            (images(2, 64, 64),),
            "self.c(x)",
            "F.conv2d(x, self.c.weight, self.c.bias, padding=1)",
            "self.c = nn.Conv2d(64, 64, 3, padding=1)",
        ),
        task("pooling, 4 GB", (images(4, 64, 64),), "F.max_pool2d(x, 2)", "torch.max_pool2d(x, 2)"),
        task(
            "mean pooling, 4 GB",
            (images(4, 64, 64),),
            "F.adaptive_avg_pool2d(x, 1)",
            "x.mean((2, 3), keepdim=True)",
        ),
        task(
            "larger images, 4 GB of results",
            (images(1, 64, 64),),
            "F.interpolate(x, scale_factor=2)",
            "F.interpolate(x, scale_factor=2, mode='nearest')",
        ),
        task(
            "attention, 1 GB of scores",
            (f"torch.randn({max(2, 64 // scale)}, 16, 512, 64)",),
            "torch.softmax(x @ x.transpose(-1, -2) * 0.125, -1) @ x",
            "F.scaled_dot_product_attention(x, x, x)",
        ),
        task(
            "loss over classes, 4 GB",
            (rows(4, 32000), indices(33554, 32000)),
            "F.cross_entropy(x[: len(y)], y[: len(x)])",
            "F.nll_loss(F.log_softmax(x[: len(y)], -1), y[: len(x)])",
        ),
    )


async def judge(bench: Bench, seconds: float, *, at_once: int, scale: int) -> GatePart:
    """Each of them once, ``at_once`` beside each other."""
    asked = programs(scale)
    side_by_side = replace(bench, at_once=at_once)
    found = await side_by_side.judge_all(_requests(bench, asked), seconds)
    missing = sorted({task.name for task in asked} - {one.key for one in found})
    return GatePart(
        rows=_bars(found, at_once, len(asked)),
        notes=[*_problems(found), *([f"not begun: {', '.join(missing)}"] if missing else [])],
        data=[_row(one) for one in found],
    )


def _bars(found: list[Judged[str]], at_once: int, asked: int) -> list[GateRow]:
    judged = [one for one in found if one.status is not None]
    accepted = sum(_is_accepted(one) for one in judged)
    blamed = sum(_is_blamed_for_memory(one) for one in judged)
    seconds = [(one.seconds, limit) for one in judged if (limit := _limit_s(one)) is not None]
    late, middle = sum(took > limit for took, limit in seconds), statistics.median
    typical = middle([took for took, _ in seconds]) if seconds else 0.0
    return [
        _all(f"big programs judged, {at_once} beside each other", len(judged), len(found), asked),
        _all("honest ones accepted", accepted, len(judged), asked),
        _all("none blamed for memory", len(judged) - blamed, len(judged), asked),
        GateRow(
            what="verdicts beyond 40 eager calls and 30 s",
            bar="0",
            measured=f"{late} of {len(seconds)} that were timed; median {typical:.0f} s",
            met=not late if len(seconds) == asked else None,
        ),
    ]


def _is_accepted(one: Judged[str]) -> bool:
    return one.status is EvalStatus.PASSED


def _is_blamed_for_memory(one: Judged[str]) -> bool:
    return not _is_accepted(one) and any(word in one.detail.lower() for word in BLAMED)


def _problems(found: list[Judged[str]]) -> list[str]:
    return [
        f"{one.key}: {one.status.value if one.status else 'not judged'}: {one.detail[:200]}"
        for one in found
        if not _is_accepted(one)
    ]


def _requests(bench: Bench, asked: tuple[GateTask, ...]) -> Iterator[tuple[str, EvaluationRequest]]:
    cuda = bench.device == "cuda"
    for task in asked:
        made = request_from_files(
            task.reference, task.candidate, device=bench.device, has_cuda=cuda, inference=True
        )
        yield task.name, replace(made, budget=BUDGET)


def _eager_s(one: Judged[str]) -> float | None:
    timings = one.evaluation.timings if one.evaluation else ()
    return next((t.median_ms / 1e3 for t in timings if t.provider == "eager"), None)


def _limit_s(one: Judged[str]) -> float | None:
    """None: eager was not timed."""
    eager = _eager_s(one)
    return None if eager is None else EAGER_CALLS * eager + EXTRA_S


def _all(what: str, good: int, judged: int, total: int) -> GateRow:
    met = False if good < judged else True if judged == total else None
    return GateRow(what=what, bar=f"all {total}", measured=f"{good} of {judged}", met=met)


def _row(one: Judged[str]) -> dict[str, object]:
    return {
        "task": one.key,
        "status": one.status.value if one.status else None,
        "detail": one.detail[:400],
        "seconds": round(one.seconds, 2),
        "eager_s": _eager_s(one),
    }
