"""Every combination of parameters of 20 rewritten tasks, timed on a GPU: what benchmarks/search.py
replays.

    PYTHONPATH=. python3 benchmarks/record_spaces.py --out spaces-h200-DATE.json --limit-s 340

Of each task the planner's first plan with 40 to 400 combinations (product over all of its steps)
is taken. The engine makes every combination, the gate's tuner compiles, tries and times it: all of
a task with the same number of interleaved rounds in one process, caches flushed, so that near ones
are not apart by accident. What does not compile, does not run or is wrong is recorded with its
reason. Combinations with one id are one program. The file is written after every task; with
--limit-s no task is begun that would not end in time, and what runs at the limit is given up. Not
covered: full judgements (a combination's values are only near the reference's), other devices."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import math
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from kernel_lsp import interpreter, skillbook
from kernel_lsp.agents.plan import Planner, RankedPlan
from kernel_lsp.config import Settings
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.tuning import ORIGINAL, TunedVariant, TuneRequest
from kernel_lsp.pipeline.opened import JobBench, Opened, open_target
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import Candidate, Job, Json, Step
from kernel_lsp.rewrite.choices import free_parameters
from trainer.tasks import timed_tasks
from trainer.tasks.timed_tasks import TableRecording

TASKS = Path(__file__).resolve().parent / "tasks"
SMALLEST, LARGEST = 40, 400
MAX_COURSES = 12
"""Plans of one task that are looked at."""
ENOUGH = 20
NAMES = (
    "chains/bmm_instance_norm_residual",
    "chains/bmm_relu_sum",
    "chains/bmm_scale_softmax",
    "chains/linear_batch_norm_eval",
    "chains/linear_group_norm_clamp",
    "chains/linear_narrow_layer_norm_softmax",
    "chains/linear_narrow_sigmoid_sum",
    "chains/linear_silu_third_clamp_tanh",
    "chains/matmul_batch_norm_bias_silu",
    "chains/linear_dropout_train_third",
    "chains/bmm_bias_gelu_max",
    "chains/linear_gate_residual",
    "chains/linear_scale_residual_relu",
    "chains/matmul_silu_bias",
    "operators/bce_with_logits",
    "operators/log_cosh",
    "operators/kl_divergence",
    "models/mlp_wide",
    "models/convnext_like",
    "models/cross_attention",
    "models/mlp_dropout_eval",
    "models/relu_attention",
    "models/shuffle_block",
    "models/plain_cnn",
    "chains/conv2d_group_norm_residual_logsumexp",
    "chains/conv2d_group_norm_scale_pool_clamp",
    "chains/matmul_third_silu",
    "chains/linear_wide_center_square",
    "chains/matmul_weight_mean",
    "chains/linear_narrow_clamp_low_min",
    "models/selective_scan",
    "chains/linear_narrow_hardswish_bias",
    "operators/attention_linear",
)
"""More than 20, because a space changes with its skill and a task may not run; the first 20 that
do count."""
BATCH = 32
"""Variants that are compiled in one request: their kernels in 16 threads, within the tuner's time
limit."""
ROUNDS, TIMED_S = 15, 12.0
EXPECTED_S = 45.0
"""What a task takes at most on an H200 with three beside each other, at a guess; later the longest
so far."""


@dataclass(kw_only=True)
class Spaces(TableRecording):
    waiting: deque[str]
    enough: int
    running: int = 0
    longest_s: float = 0.0

    def next(self) -> str | None:
        """None: there are enough, or no time is left for another."""
        done = len(self.tasks) + self.running >= self.enough
        return None if done or self.late or not self.waiting else self.waiting.popleft()

    async def space(self, name: str, made: Awaitable[Json]) -> None:
        self.running += 1
        try:
            took = await self.enter(name, made, _describe_task)
        finally:
            self.running -= 1
        self.expected_s = self.longest_s = max(self.longest_s, took)


async def record(name: str, bench: JobBench, gate: Gate, settings: Settings) -> dict[str, Any]:
    """One task. Raises KernelLspError when it cannot be recorded."""
    path = TASKS / f"{name}.py"
    job = Job(text=path.read_text(), path=str(path), qualname="Model", device=bench.device)
    prepared = prepare(job)
    if not isinstance(prepared, PreparedJob):
        raise KernelLspError(prepared.note or "no target")
    async with open_target(prepared, bench, gate, settings, lambda progress: None) as one:
        ranked_plan = await _ranked_plan(one)
        made = [candidate async for candidate in _combinations(one, ranked_plan)]
        return await _timed(one, ranked_plan, made)


async def _ranked_plan(one: Opened) -> RankedPlan:
    planner = Planner(one.engine.make, one.engine.look, weigh=one.engine.weigh)
    count = 0
    async for ranked_plan in planner.ranked_plans(one.sites, triton=one.bench.device == "cuda"):
        if (
            SMALLEST
            <= math.prod(len(c) for axes in _axes(ranked_plan) for c in axes.values())
            <= LARGEST
        ):
            return ranked_plan
        count += 1
        if count == MAX_COURSES:
            break
    raise KernelLspError(f"no plan with {SMALLEST} to {LARGEST} combinations")


def _axes(ranked_plan: RankedPlan) -> list[dict[str, Sequence[Any]]]:
    """Of every step, the parameters that are searched."""
    return [free_parameters(site.parameters) for site in ranked_plan.sites]


async def _combinations(one: Opened, ranked_plan: RankedPlan) -> Any:
    """Candidates for all combinations that the engine makes: the largest step's in one request
    each."""
    axes = _axes(ranked_plan)
    largest = max(
        range(len(axes)), key=lambda place: math.prod(len(c) for c in axes[place].values())
    )
    others = [place for place in range(len(axes)) if place != largest]
    for chosen in product(*(list(_choices(axes[place])) for place in others)):
        steps = list(ranked_plan.steps)
        for place, choice in zip(others, chosen, strict=True):
            steps[place] = replace(steps[place], parameters={**steps[place].parameters, **choice})
        for candidate in await one.engine.variants(steps, largest, LARGEST):
            yield candidate


def _choices(axes: dict[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def tuned(one: Opened) -> TuneRequest:
    """What the gate's tuner is asked for."""
    return TuneRequest(
        reference=one.prepared.program,
        workload=one.prepared.workload,
        device=one.bench.device,
        python=one.bench.probe.python,
        uses_triton=True,
    )


def variants_of(made: Sequence[Candidate]) -> list[TunedVariant]:
    return [TunedVariant(name=c.id, source=c.program, entry=c.entry) for c in made]


async def _timed(one: Opened, ranked_plan: RankedPlan, made: Sequence[Candidate]) -> dict[str, Any]:
    variants = variants_of(made)
    async with one.gate.tuner(tuned(one), lambda progress: None) as tuner:
        names: list[str] = []
        for first in range(0, len(variants), BATCH):
            names += await tuner.enter(variants[first : first + BATCH])
        names = list(dict.fromkeys(names))  # two combinations may give the same program
        if not names:
            reason = next(iter(tuner.known.dropped.values()), "nothing was made")
            raise KernelLspError(f"no combination runs: {reason}")
        known = await tuner.timed(names, ROUNDS, TIMED_S)
    axes = [
        {
            "step": place,
            "skill": site.skill,
            "site": site.site,
            "name": name,
            "choices": list(choices),
        }
        for place, (site, found) in enumerate(
            zip(ranked_plan.sites, _axes(ranked_plan), strict=True)
        )
        for name, choices in found.items()
    ]
    return {
        "summary": ranked_plan.candidate.summary,
        "steps": [
            {"skill": s.skill, "site": s.site, "parameters": s.parameters}
            for s in ranked_plan.steps
        ],
        "axes": axes,
        "original_ms": known.median_ms[ORIGINAL],
        "combinations": [
            [
                _point(c.steps, axes),
                c.id[:12],
                known.median_ms.get(c.id),
                known.dropped.get(c.id, ""),
            ]
            for c in made
        ],
    }


def _point(steps: Sequence[Step], axes: Sequence[dict[str, Any]]) -> list[int]:
    """Place of the choice, per axis."""
    return [
        axis["choices"].index(steps[axis["step"]].parameters.get(axis["name"], axis["choices"][0]))
        for axis in axes
    ]


# --- the run ------------------------------------------------------------------------------------


async def run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    probe = await interpreter.probe(sys.executable)
    if probe.remedy or (options.device == "cuda" and not probe.cuda):
        print(probe.remedy or f"torch in {probe.python} sees no CUDA device")
        return 2
    library = skillbook.load(skillbook.folders(()))
    bench = JobBench(probe=probe, device=options.device, skills=library)
    chosen = [name for name in NAMES if re.search(options.only, name)]
    recording = Spaces(
        out=options.out,
        about={
            "date": datetime.date.today().isoformat(),
            "device": probe.device if options.device == "cuda" else options.device,
            "torch": probe.torch,
            "triton": probe.triton,
            "python": probe.version,
            "rounds": ROUNDS,
        },
        limit=started + options.limit_s,
        expected_s=EXPECTED_S,
        breaks="], [[",
        waiting=deque(chosen),
        enough=options.most,
    )
    with tempfile.TemporaryDirectory(prefix="record-spaces-") as folder:
        settings = Settings(data_dir=folder)
        async with Gate(cache=Path(folder) / "compiled") as gate:

            async def work(name: str) -> None:
                await recording.space(name, record(name, bench, gate, settings))

            if not await timed_tasks.share(recording.next, work, options.lanes, recording.limit):
                print("the time is over: what was running is given up", flush=True)
    recording.write()
    took = time.monotonic() - started
    print(f"{len(recording.tasks)} of {options.most} tasks in {took:.0f} s: {options.out}")
    return 0 if len(recording.tasks) >= options.most else 1


def _describe_task(task: Json) -> str:
    times = [ms for _, _, ms, _ in task["combinations"] if ms]
    default = task["combinations"][0][2]
    first = f"{task['original_ms'] / default:.2f}x" if default else "-"
    best = task["original_ms"] / min(times)
    return f"{len(times)} of {len(task['combinations'])} run, first {first}, best {best:.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=340.0, help="of the whole run")
    parser.add_argument(
        "--lanes", type=int, default=3, help="tasks beside each other (timing is exclusive)"
    )
    parser.add_argument("--only", default="", help="regular expression on names of tasks")
    parser.add_argument("--most", type=int, default=ENOUGH, help="tasks to record")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    sys.exit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
