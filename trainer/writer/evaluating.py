"""How good a writer is on what it never saw: parsed, compiled, right, different, faster.

Arms: the writer with the skills in its question and without, the engine, the nearest rewrite of
the training part with the inputs of the task at hand, and the program as it is (right, never
faster, and never counted as right here because nothing of it differs). *Right* is the gate's
verdict on values, and a program that differs from the original in its syntax tree. Of k samples
the chance that one is right is counted without bias, 1 - C(n - c, k) / C(n, k)
(Chen et al. 2021, arXiv 2107.03374, equation 1). Not covered: the share of kernel time that a
rewrite's own kernels have."""

from __future__ import annotations

import ast
import gc
import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from kernel_lsp.files import replace_file
from kernel_lsp.parsing import parse
from kernel_lsp.records import Json
from trainer.data.intervals import interval
from trainer.writer import data, helpers
from trainer.writer.judging import UNCHANGED, WriterJudge, WriterVerdict, WrittenCase
from trainer.writer.rows import WriterRow
from trainer.writer.sampling import SamplingPlan, replies
from trainer.writer.split import WriterPart
from trainer.writer.training import MODEL

RESULT, REPLIES = "evaluate.json", "replies.json"
MAX_BYTES = 2**30
"""Of all values of a task's graph together: many tasks share the device."""
PER_FAMILY = 3
BEST_OF = (1, 4, 16)
ORDER = (
    ("greedy", 1), ("sampled", 4), ("greedy-plain", 1), ("sampled-plain", 4), ("engine", 1),
    ("sampled", 16), ("nearest", 1),
)  # fmt: skip
"""Which replies are judged first, and how many of a task: the time may end before all are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationPlan:
    tasks: int = 100
    """Of each held-out part."""
    samples: int = 16
    plain_samples: int = 4
    """Without skills in the question."""
    generate_seconds: float = 150.0
    judge_seconds: float = 270.0
    time_seconds: float = 90.0
    at_once: int = 14
    sampling: SamplingPlan = field(default_factory=SamplingPlan)


Arm = dict[str, list[str]]
"""Name of a row -> replies."""


async def run(folder: Path, plan: EvaluationPlan, device: str) -> Json:
    """Judge the model in ``folder``; writes ``evaluate.json``."""
    rows = data.read(folder)
    training = [row for row in rows if row.part is WriterPart.TRAIN]
    chosen = _choose_of_parts(rows, plan.tasks, smallest=device != "cuda")
    asked = [row for part in chosen.values() for row in part]
    arms, seconds = _written(folder, asked, plan, device)
    arms["engine"] = {row.name: [row.replies[0].text] for row in asked}
    arms["nearest"] = {row.name: [nearest(row, training)] for row in asked}
    replace_file(folder / REPLIES, (json.dumps({"seconds": seconds, **arms}) + "\n").encode())
    shared = helpers.read(folder / MODEL)
    judge = WriterJudge("cuda" if device == "cuda" else "interpreter", plan.at_once, shared)
    duplicates = {part.value: data.duplicates(some, training) for part, some in chosen.items()}

    def keep(more: Json) -> Json:  # after each arm, should the run end
        result = _result(chosen, arms, judge, seconds, device) | more
        result["near_duplicates"] = duplicates
        replace_file(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
        return result

    begun = time.monotonic()
    for name, most in ORDER:
        cases = _in_rounds(arms[name], asked, most)
        await judge.judge(cases, begun + plan.judge_seconds)
        seconds["judge"] = time.monotonic() - begun
        keep({})
    times = {}
    if device == "cuda" and plan.time_seconds > 0:
        await _time_winners(judge, asked, arms, time.monotonic() + plan.time_seconds)
        times = _times_of(chosen, arms, judge.known)
    return keep({"times": times, "examples": _examples(asked, arms, judge.known)})


def _times_of(
    chosen: dict[WriterPart, list[WriterRow]],
    arms: dict[str, Arm],
    known: dict[str, WriterVerdict],
) -> Json:
    return {
        part.value: {
            name: _times(rows, arms[name], known) for name in ("greedy", "sampled", "engine")
        }
        for part, rows in chosen.items()
    }


def _result(
    chosen: dict[WriterPart, list[WriterRow]],
    arms: dict[str, Arm],
    judge: WriterJudge,
    seconds: Json,
    device: str,
) -> Json:
    return {
        "device": _device_name(device),
        "seconds": seconds,
        "parts": {
            part.value: {name: _summary(rows, arms[name], judge.known) for name in arms}
            for part, rows in chosen.items()
        },
        "details": _common_details(judge.known),
    }


def _choose_of_parts(
    rows: Sequence[WriterRow], count: int, *, smallest: bool
) -> dict[WriterPart, list[WriterRow]]:
    """`choose` of each part that nothing was learned from."""
    return {
        part: choose([row for row in rows if row.part is part], count, smallest)
        for part in (WriterPart.COMPOSITIONS, WriterPart.OPERATORS)
    }


def choose(rows: Sequence[WriterRow], count: int, smallest: bool = False) -> list[WriterRow]:
    """Tasks of as many families as there are, at most three of one, small enough to share.

    ``smallest``: those with the fewest values in their graph, for Triton's interpreter."""
    draw = random.Random(0)
    mixed = draw.sample(list(rows), len(rows))
    if smallest:
        mixed.sort(key=lambda row: (_bytes(row), row.name))
    families: Counter[str] = Counter()
    chosen = []
    for row in mixed:
        if _bytes(row) <= MAX_BYTES and families[row.family] < PER_FAMILY:
            families[row.family] += 1
            chosen.append(row)
    return chosen[:count]


def _bytes(row: WriterRow) -> int:
    return sum(4 * math.prod(form.shape) for one in row.graph.operations for form in one.forms)


def _written(
    folder: Path, rows: Sequence[WriterRow], plan: EvaluationPlan, device: str
) -> tuple[dict[str, Arm], Json]:
    """Replies of the model, likeliest and sampled, with and without skills."""
    options = {"local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / MODEL, **options)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / MODEL, dtype=dtype, **options
    ).to(device)
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every new length
    begun, arms, seconds = time.monotonic(), dict[str, Arm](), dict[str, Any]()
    for name, record, count in (
        ("sampled", [row.question for row in rows], plan.samples),
        ("greedy", [row.question for row in rows], 1),
        ("sampled-plain", [row.plain for row in rows], plan.plain_samples),
        ("greedy-plain", [row.plain for row in rows], 1),
    ):
        start = time.monotonic()
        end = begun + plan.generate_seconds
        found = replies(model, tokenizer, record, count, plan.sampling, end)
        arms[name] = {row.name: texts for row, texts in zip(rows, found, strict=True)}
        seconds[name] = time.monotonic() - start
        print(f"{seconds[name]:.0f} s to write {name}", flush=True)
    del model
    if device == "cuda":  # what training and writing kept for themselves is the judges' now
        gc.collect()
        torch.cuda.empty_cache()
    return arms, seconds


def _in_rounds(arm: Arm, asked: Sequence[WriterRow], most: int) -> list[WrittenCase]:
    """Every task's first replies first, should the time end; ``most`` of each."""
    return [
        WrittenCase(row, arm[row.name][place])
        for place in range(most)
        for row in asked
        if place < len(arm[row.name])
    ]


# --- the nearest rewrite ----------------------------------------------------------------------


def nearest(row: WriterRow, training: Sequence[WriterRow]) -> str:
    """The first rewrite of the training task that shares most of its text, for this task's inputs.
    Attributes have the same names anyway (names.py)."""
    grams = set(row.grams)
    best = max(training, key=lambda one: len(grams.intersection(one.grams)) / (len(one.grams) or 1))
    body = parse(best.replies[0].text).body
    forward = body[-1]
    if isinstance(forward, ast.FunctionDef):
        inputs = [ast.arg(arg=name) for name in ("self", *row.names.inputs.values())]
        forward.args = ast.arguments(
            posonlyargs=[], args=inputs, kwonlyargs=[], kw_defaults=[], defaults=[]
        )
    return "\n".join(map(ast.unparse, body)) + "\n"


# --- numbers ----------------------------------------------------------------------------------


def _summary(rows: Sequence[WriterRow], arm: Arm, known: dict[str, WriterVerdict]) -> Json:
    """Shares over tasks, with 95 % intervals over tasks for what is right."""
    judged = [verdicts for row in rows if (verdicts := _verdicts(row, arm, known))]
    if not judged:
        return {"tasks": 0}

    def share(holds: Callable[[WriterVerdict], bool]) -> float:
        return _mean([_mean([holds(verdict) for verdict in verdicts]) for verdicts in judged])

    return {
        "tasks": len(judged),
        "replies": sum(map(len, judged)),
        "parsed": share(lambda verdict: verdict.parsed),
        "compiled": share(lambda verdict: verdict.compiled),
        "unchanged": share(lambda verdict: verdict.status == UNCHANGED),
        **{f"right_of_{k}": right for k in BEST_OF if (right := _right_of(k, judged))},
    }


def _verdicts(row: WriterRow, arm: Arm, known: dict[str, WriterVerdict]) -> list[WriterVerdict]:
    """Of those replies to a task that were judged."""
    keys = (WrittenCase(row, text).key for text in arm[row.name])
    return [known[key] for key in keys if key in known]


def _right_of(k: int, judged: Sequence[list[WriterVerdict]]) -> Json | None:
    """The chance that one of k replies is right; None where no task has as many."""
    enough = [verdicts for verdicts in judged if len(verdicts) >= k]
    chances = [one_of(len(some), sum(v.right for v in some), k) for some in enough]
    if not chances:
        return None
    low, high = interval(chances)
    return {"tasks": len(chances), "mean": _mean(chances), "low": low, "high": high}


def one_of(n: int, c: int, k: int) -> float:
    """The chance that one of k of n samples is right when c are."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _common_details(known: dict[str, WriterVerdict]) -> list[Json]:
    """The commonest reasons, numbers left out."""
    counts: Counter[tuple[str, str]] = Counter()
    for verdict in known.values():
        if not verdict.right:
            text = "".join(c for c in verdict.detail if not c.isdigit())[:90]
            counts[(verdict.status, text)] += 1
    return [{"status": s, "detail": d, "count": n} for (s, d), n in counts.most_common(40)]


async def _time_winners(
    judge: WriterJudge, rows: Sequence[WriterRow], arms: dict[str, Arm], end: float
) -> None:
    """The likeliest right reply of each task, then the engine's."""
    cases = []
    for row in random.Random(0).sample(list(rows), len(rows)):
        for name in ("greedy", "sampled", "engine"):
            record = [WrittenCase(row, text) for text in arms[name][row.name]]
            right = [c for c in record if c.key in judge.known and judge.known[c.key].right]
            cases += right[:1]
    await judge.judge(cases, end, timed=True)


def _times(rows: Sequence[WriterRow], arm: Arm, known: dict[str, WriterVerdict]) -> Json:
    """Of the tasks whose reply was timed: how much faster than the best baseline."""
    found = defaultdict(list)
    for row in rows:
        keys = [WrittenCase(row, text).key for text in arm[row.name]]
        timed = [known[key].speedups for key in keys if key in known and known[key].speedups]
        if timed and timed[0]:
            found["best"].append(min(timed[0].values()))
            for name, speedup in timed[0].items():
                found[name].append(speedup)
    return {
        name: {
            "tasks": len(values),
            "geometric_mean": math.exp(_mean([math.log(v) for v in values])),
            "faster": _mean([v > 1.0 for v in values]),
        }
        for name, values in found.items()
    }


def _examples(
    rows: Sequence[WriterRow], arms: dict[str, Arm], known: dict[str, WriterVerdict]
) -> Any:
    """Some replies to read, with their verdicts."""
    record = []
    for row in (*rows[:6], *rows[-6:]):
        for text in arms["greedy"][row.name]:
            verdict = known.get(WrittenCase(row, text).key)
            record.append(
                {
                    "question": row.question,
                    "reply": text,
                    "status": verdict.status if verdict else None,
                    "detail": verdict.detail if verdict else None,
                }
            )
    return record


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device
