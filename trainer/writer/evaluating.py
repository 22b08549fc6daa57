"""How good a writer is on what it never saw: parsed, compiled, right, different, faster.

Arms: the writer as it was supervised and (``rl-``) as it was reinforced, each with the skills in
its question, without, asked again with the failure of its first sample, and *chosen* of likeliest
reply and samples by reading alone (faults.py); the engine, the nearest rewrite of the training part
with the inputs of the task at hand, and the program as it is (never counted as right, because
nothing of it differs). *Right* is the gate's verdict on values, and a
program that differs from the original in its syntax tree; *own* is right with a kernel of its own.
Of k samples the chance that one is right is counted without bias, 1 - C(n - c, k) / C(n, k) (Chen
et al. 2021, arXiv 2107.03374, equation 1). Two arms are compared task by task. Not covered: the
share of kernel time that a rewrite's own kernels have."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import itertools
import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernel_lsp.files import replace_file
from kernel_lsp.parsing import parse
from kernel_lsp.records import Json
from trainer.data.intervals import interval
from trainer.writer import data, faults, helpers
from trainer.writer.judging import (
    COMPILED,
    UNCHANGED,
    KnownVerdicts,
    WriterJudge,
    WriterVerdict,
    WrittenCase,
)
from trainer.writer.reinforcing import FOLDER, VERDICTS, again, load_model
from trainer.writer.rows import WriterRow, has_kernel
from trainer.writer.sampling import SamplingPlan, replies
from trainer.writer.split import WriterPart
from trainer.writer.training import MODEL

RESULT = "evaluate.json"
MAX_BYTES = 2**30
"""Of all values of a task's graph together: many tasks share the device."""
PER_FAMILY = 3
BEST_OF = (1, 4, 16)
SUPERVISED, REINFORCED = "", "rl-"
"""What the arms of a model begin with."""
BASELINES = ("engine", "nearest", "unchanged")
WRITTEN = (
    (("greedy", 1), ("chosen", 1)),
    (("sampled", 4), ("sampled-plain", 4)),
    (("sampled", 16), ("greedy-plain", 1)),
)
"""Which replies of a model are judged first, with the baselines, and which then; how many of a
task. The time may end before all are, and one reply to each of many tasks says most."""
SECOND_TURNS = 0.15
"""Share of the time for judging that replies to failures have."""
KEEP_S = 15.0
"""After which what is known is written down again: the run may end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationPlan:
    tasks: int = 100
    """Of each held-out part."""
    seen_tasks: int = 0
    """Of the training part (data.shortest), beside."""
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


async def run(
    folder: Path, plan: EvaluationPlan, device: str, kept: Callable[[], None] = lambda: None
) -> Json:
    """Judge the models in ``folder``; writes ``evaluate.json``, and calls ``kept`` each time that it
    has more in it."""
    evaluation = WriterEvaluation(folder, plan, device, kept)
    evaluation.write()
    try:
        await evaluation.judge_all()
        times = await evaluation.time_winners()
    finally:
        await evaluation.judge.close()
    return evaluation.keep({"times": times, "examples": evaluation.examples()})


class WriterEvaluation:
    """Replies to the chosen tasks by arm, and what the judge says of them."""

    def __init__(
        self, folder: Path, plan: EvaluationPlan, device: str, kept: Callable[[], None]
    ) -> None:
        self._folder, self._plan, self._device, self._kept = folder, plan, device, kept
        rows = data.read(folder)
        training = [row for row in rows if row.part is WriterPart.TRAIN]
        self._chosen = _choose_of_parts(rows, plan, smallest=device != "cuda")
        self._asked = asked = [row for part in self._chosen.values() for row in part]
        self._mixed = _mixed(list(self._chosen.values()))
        self._models = models_in(folder)
        self._seconds: Json = {}
        nearest = NearestRewrites(training)
        self._arms: dict[str, Arm] = {
            "engine": {row.name: [row.replies[0].text] for row in asked},
            "nearest": {row.name: [nearest.reply(row)] for row in asked},
            "unchanged": {row.name: [_forward_of(row)] for row in asked},
        }
        self._duplicates = {
            part.value: data.duplicates(some, training)
            for part, some in self._chosen.items()
            if part is not WriterPart.TRAIN
        }
        self._shared = helpers.read(folder / MODEL)
        device = "cuda" if device == "cuda" else "interpreter"
        known, compiled = KnownVerdicts(folder / VERDICTS), folder / COMPILED
        self.judge = WriterJudge(device, plan.at_once, self._shared, known, compiled)

    def write(self) -> None:
        """Writes what was found so far."""
        for prefix, place in self._models.items():
            _write_arms(
                place, prefix, self._asked, self._plan, self._device, self._arms, self._seconds
            )
            self._arms[f"{prefix}chosen"] = self._choice(prefix)
        record = {"seconds": self._seconds, **self._arms}
        replace_file(self._folder / data.REPLIES, (json.dumps(record) + "\n").encode())

    def _choice(self, prefix: str) -> Arm:
        """Of the likeliest reply and the samples the one with the fewest faults."""
        greedy, sampled = self._arms[f"{prefix}greedy"], self._arms[f"{prefix}sampled"]
        found: Arm = {}
        for row in self._asked:
            drafts = [*greedy[row.name], *sampled[row.name]]
            found[row.name] = [faults.chosen(row, drafts, self._shared)] if drafts else []
        return found

    async def judge_all(self) -> None:
        """Judges the replies of all models, within the time for it."""
        begun = time.monotonic()
        end = begun + (1 - SECOND_TURNS) * self._plan.judge_seconds
        saving = asyncio.create_task(self._keep_often(begun))
        try:
            for arms in _passes(self._models):
                cases = [
                    case
                    for row in self._mixed
                    for name, most in arms
                    for case in _cases(self._arms[name], [row], most)
                ]
                await self.judge.judge(cases, end)
        finally:
            saving.cancel()
        self._seconds["judge"] = time.monotonic() - begun
        self.keep({})
        for prefix, place in self._models.items():
            sampled = self._arms[f"{prefix}sampled"]
            self._arms[f"{prefix}first"] = {name: texts[:1] for name, texts in sampled.items()}
            self._arms[f"{prefix}second"] = self._asked_again(place, f"{prefix}first")
            second = _cases(self._arms[f"{prefix}second"], self._mixed, 1)
            await self.judge.judge(second, begun + self._plan.judge_seconds)

    async def _keep_often(self, begun: float) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            self._seconds["judge"] = time.monotonic() - begun
            self.keep({})

    async def time_winners(self) -> Json:
        """Times right replies beside each other on a GPU; what was found, empty where nothing is
        timed."""
        if self._device != "cuda" or self._plan.time_seconds <= 0:
            return {}
        end = time.monotonic() + self._plan.time_seconds
        await _time_winners(self.judge, self._asked, self._arms, end)
        return _times_of(self._chosen, self._arms, self.judge.known)

    def keep(self, more: Json) -> Json:
        """What is known so far, on disk."""
        result = _result(self._chosen, self._arms, self.judge, self._seconds, self._device) | more
        result["near_duplicates"] = self._duplicates
        replace_file(self._folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
        self._kept()
        return result

    def examples(self) -> Any:
        """A few replies of each kind, for people."""
        return _examples(self._asked, self._arms, self.judge.known)

    def _asked_again(self, place: Path, first: str) -> Arm:
        """After two turns: a task's first sample where it is right, else what the model answers to
        its failure; tasks whose first sample was not judged are left out."""
        found: Arm = {row.name: [] for row in self._asked}
        failed: list[tuple[WriterRow, str]] = []
        for case in _cases(self._arms[first], self._mixed, 1):
            verdict = self.judge.known.get(case.key)
            if verdict is None or verdict.unknown:
                continue
            if verdict.right:
                found[case.row.name] = [case.reply]
            else:
                failed.append((case.row, again(case.row, case.reply, verdict)))
        with _model(place, self._device) as (model, tokenizer):
            end = time.monotonic() + self._plan.generate_seconds
            asked = [question for _, question in failed]
            written = replies(model, tokenizer, asked, 1, self._plan.sampling, end)
        return found | {row.name: texts for (row, _), texts in zip(failed, written, strict=True)}


def models_in(folder: Path) -> dict[str, Path]:
    """What the arms of each model begin with -> where it lies."""
    places = {SUPERVISED: folder / MODEL, REINFORCED: folder / FOLDER / MODEL}
    return {prefix: place for prefix, place in places.items() if place.is_dir()}


def _passes(prefixes: Iterable[str]) -> list[list[tuple[str, int]]]:
    """(arm, replies of a task) that are judged of one task after the other, in passes: all arms of
    one together, since a judge opens its program once, and pairs are whole where the time ends."""
    first, *others = (
        [(f"{prefix}{name}", most) for name, most in part for prefix in prefixes]
        for part in WRITTEN
    )
    return [[*first, *((name, 1) for name in BASELINES)], *others]


def _mixed(parts: Sequence[Sequence[WriterRow]]) -> list[WriterRow]:
    """The tasks of all parts by turns."""
    turns = itertools.zip_longest(*parts)
    return [row for turn in turns for row in turn if row is not None]


def _timed_arms(arms: dict[str, Arm]) -> list[str]:
    names = [f"{prefix}{arm}" for prefix in ("", REINFORCED) for arm in ("greedy", "sampled")]
    return [name for name in (*names, "engine") if name in arms]


def _times_of(
    chosen: dict[WriterPart, list[WriterRow]],
    arms: dict[str, Arm],
    known: dict[str, WriterVerdict],
) -> Json:
    return {
        part.value: {name: _times(rows, arms[name], known) for name in _timed_arms(arms)}
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
        "differences": {
            part.value: _differences(rows, arms, judge.known) for part, rows in chosen.items()
        },
        "details": _common_details(judge.known),
    }


def _choose_of_parts(
    rows: Sequence[WriterRow], plan: EvaluationPlan, *, smallest: bool
) -> dict[WriterPart, list[WriterRow]]:
    """`choose` of each part that nothing was learned from, and what is asked for of the other."""
    found = {
        part: choose([row for row in rows if row.part is part], plan.tasks, smallest)
        for part in (WriterPart.COMPOSITIONS, WriterPart.OPERATORS)
    }
    seen = data.shortest(rows, WriterPart.TRAIN, plan.seen_tasks)
    return found | ({WriterPart.TRAIN: seen} if seen else {})


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


def _write_arms(
    place: Path,
    prefix: str,
    rows: Sequence[WriterRow],
    plan: EvaluationPlan,
    device: str,
    arms: dict[str, Arm],
    seconds: Json,
) -> None:
    """Replies of a model, likeliest and sampled, with and without skills."""
    torch.manual_seed(0)
    with _model(place, device) as (model, tokenizer):
        begun = time.monotonic()
        for name, record, count in (
            ("sampled", [row.question for row in rows], plan.samples),
            ("greedy", [row.question for row in rows], 1),
            ("sampled-plain", [row.plain for row in rows], plan.plain_samples),
            ("greedy-plain", [row.plain for row in rows], 1),
        ):
            start = time.monotonic()
            end = begun + plan.generate_seconds
            found = replies(model, tokenizer, record, count, plan.sampling, end)
            arms[f"{prefix}{name}"] = dict(zip([r.name for r in rows], found, strict=True))
            seconds[f"{prefix}{name}"] = time.monotonic() - start
            print(f"{time.monotonic() - start:.0f} s to write {prefix}{name}", flush=True)


@contextlib.contextmanager
def _model(place: Path, device: str) -> Iterator[tuple[Any, Any]]:
    """(model, tokenizer); what it kept on the device is free behind it."""
    torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every new length
    model, tokenizer = load_model(place, device)
    if device == "cuda":
        model.to(torch.bfloat16)
    try:
        yield model, tokenizer
    finally:
        model.to("cpu")
        if device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def _cases(arm: Arm, rows: Sequence[WriterRow], most: int) -> list[WrittenCase]:
    """``most`` replies to each task."""
    return [WrittenCase(row, text) for row in rows for text in arm[row.name][:most]]


# --- the nearest rewrite ----------------------------------------------------------------------


class NearestRewrites:
    """The first rewrite of the training task that shares most of a task's text.

    Runs of tokens are looked up: 80 tasks among 15,000 took 15 s one by one."""

    def __init__(self, training: Sequence[WriterRow]) -> None:
        self._training = training
        self._places: dict[int, list[int]] = defaultdict(list)
        for number, one in enumerate(training):
            for gram in one.grams:
                self._places[gram].append(number)

    def reply(self, row: WriterRow) -> str:
        """The rewrite for this task's inputs. Attributes have the same names anyway (names.py)."""
        shared = Counter(number for gram in row.grams for number in self._places.get(gram, ()))
        best = max(
            shared,
            key=lambda number: (shared[number] / len(self._training[number].grams), -number),
            default=0,
        )
        body = parse(self._training[best].replies[0].text).body
        forward = next(one for one in body if getattr(one, "name", "") == "forward")
        if isinstance(forward, ast.FunctionDef):
            inputs = [ast.arg(arg=name) for name in ("self", *row.names.inputs.values())]
            forward.args = ast.arguments(
                posonlyargs=[], args=inputs, kwonlyargs=[], kw_defaults=[], defaults=[]
            )
        return "\n".join(map(ast.unparse, body)) + "\n"


def _forward_of(row: WriterRow) -> str:
    """The program's own, as a reply."""
    tree = parse(row.names.program(row.source))
    target = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model")
    methods = [n for n in target.body if isinstance(n, ast.FunctionDef)]
    return ast.unparse(next(n for n in methods if n.name == "forward")) + "\n"


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
        **{f"parsed_of_{k}": _of_k([_parsed(v) for v in judged], k) for k in BEST_OF},
        **{f"right_of_{k}": _of_k([_right(v) for v in judged], k) for k in BEST_OF},
        **{f"own_of_{k}": _of_k([_own(row, arm, known) for row in rows], k) for k in BEST_OF},
    }


def _parsed(verdicts: Sequence[WriterVerdict]) -> list[bool]:
    return [verdict.parsed for verdict in verdicts]


def _right(verdicts: Sequence[WriterVerdict]) -> list[bool]:
    return [verdict.right for verdict in verdicts]


def _own(row: WriterRow, arm: Arm, known: dict[str, WriterVerdict]) -> list[bool]:
    """Right, and with a kernel of its own: not another order of library calls."""
    found = _judged_replies(row, arm, known)
    return [verdict.right and has_kernel(text) for text, verdict in found]


def _verdicts(row: WriterRow, arm: Arm, known: dict[str, WriterVerdict]) -> list[WriterVerdict]:
    return [verdict for _, verdict in _judged_replies(row, arm, known)]


def _judged_replies(
    row: WriterRow, arm: Arm, known: dict[str, WriterVerdict]
) -> list[tuple[str, WriterVerdict]]:
    """Those replies to a task that were judged."""
    pairs = ((text, known.get(WrittenCase(row, text).key)) for text in arm[row.name])
    return [(text, verdict) for text, verdict in pairs if verdict and not verdict.unknown]


def _of_k(samples: Sequence[Sequence[bool]], k: int) -> Json | None:
    """The chance that one of k samples holds, over tasks; None where no task has as many."""
    return _over_tasks([one_of(len(s), sum(s), k) for s in samples if len(s) >= k])


def _over_tasks(values: Sequence[float]) -> Json | None:
    if not values:
        return None
    low, high = interval(values)
    return {"tasks": len(values), "mean": _mean(values), "low": low, "high": high}


def _differences(
    rows: Sequence[WriterRow], arms: dict[str, Arm], known: dict[str, WriterVerdict]
) -> Json:
    """What reinforcement, a choice of drafts, skills and a second turn add to the chance that one of k
    is right."""
    pairs = {
        "rl - sft": ("rl-sampled", "sampled"),
        "rl - sft, without skills": ("rl-sampled-plain", "sampled-plain"),
        "chosen - greedy": ("chosen", "greedy"),
        "skills - none": ("sampled", "sampled-plain"),
        "skills - none, rl": ("rl-sampled", "rl-sampled-plain"),
        "second turn - first": ("second", "first"),
        "second turn - first, rl": ("rl-second", "rl-first"),
    }
    return {
        name: {f"right_of_{k}": _difference(rows, arms[a], arms[b], known, k) for k in BEST_OF}
        for name, (a, b) in pairs.items()
        if a in arms and b in arms
    }


def _difference(
    rows: Sequence[WriterRow], more: Arm, less: Arm, known: dict[str, WriterVerdict], k: int
) -> Json | None:
    """Task by task, of those that have k samples in both arms."""
    found = []
    for row in rows:
        pair = [_right(_verdicts(row, arm, known)) for arm in (more, less)]
        if min(map(len, pair)) >= k:
            first, second = (one_of(len(one), sum(one), k) for one in pair)
            found.append(first - second)
    return _over_tasks(found)


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
        for name in _timed_arms(arms):
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
