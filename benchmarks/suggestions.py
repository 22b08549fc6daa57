"""First suggestions of trained policies and of the rule for the same programs, timed together on a device.

    PYTHONPATH=. python3 benchmarks/suggestions.py --model FOLDER --tasks benchmarks/tasks \\
        --only names.json --table plans.json --out suggestions.json --limit-s 90

Unlike trainer.evaluate, which looks measured plans up, this asks as the product does: the checkpoint in its
own child on the CPU, the whole grammar, the engine in between, the program that would be offered. The best
plan of a table takes part, so that "first over best" is known on the same clock; the best is whatever was
fastest here. Models and Triton kernels alike. Not covered: full judgements (the tuner drops what is far from
the reference), other courses than the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp import interpreter
from kernel_lsp.agents.backbones.small.runtime import Runtime
from kernel_lsp.agents.kernel_planner import KernelPlanner
from kernel_lsp.agents.learned import LearnedPlanner
from kernel_lsp.agents.plan import Course, Planner
from kernel_lsp.evaluator.tuning import ORIGINAL
from kernel_lsp.files import replace_file
from kernel_lsp.records import Step
from kernel_lsp.rewrite.client import Capture, Engine
from trainer import lanes, tasks
from trainer.intervals import ratios
from trainer.recording import Place, entered, opened, placed, tuned
from trainer.talks import situation_of
from trainer.tasks import SuiteTask

ROUNDS, TIMED_S, LONGEST_S = 21, 3.0, 60.0
RULE, BEST = "rule", "table"


async def suggested(
    task: SuiteTask, place: Place, models: dict[str, Runtime], margin: float, best: Sequence[Step]
) -> dict[str, Any]:
    """Milliseconds of each one's first suggestion. Raises KernelLspError."""
    async with opened(task, place) as (engine, capture):
        made = {RULE: await _first(Planner(engine.make, engine.look, weigh=engine.weigh), capture, place)}
        for name, runtime in models.items():
            made[name] = await _first(_learned(engine, capture, place, name, runtime, margin), capture, place)
        if best:
            made[BEST] = Course(candidate=await engine.make(best), sites=(), steps=tuple(best))
    plans = [course for course in made.values() if course is not None]
    async with place.gate.tuner(tuned(task, place, plans)) as tuner:
        names = await entered(tuner, plans)
        times = (await tuner.timed(list(dict.fromkeys(names)), ROUNDS, TIMED_S)).median_ms
    return {
        "family": task.family,
        "eager": times[ORIGINAL],
        "ms": {who: times.get(course.candidate.id) if course else None for who, course in made.items()},
        "steps": {who: [[s.skill, s.parameters] for s in c.steps] for who, c in made.items() if c},
    }


async def _first(
    planner: Planner | LearnedPlanner | KernelPlanner, capture: Capture, place: Place
) -> Course | None:
    async for course in planner.courses(capture.sites, triton=place.triton):
        return course
    return None


def _learned(
    engine: Engine, capture: Capture, place: Place, name: str, runtime: Runtime, margin: float
) -> LearnedPlanner | KernelPlanner:
    """For a Triton kernel it has to be a policy for kernels."""
    rule = Planner(engine.make, engine.look, weigh=engine.weigh)
    situation = situation_of(capture, place.device, place.probe.capability)
    if situation is None:
        return KernelPlanner(
            name=name,
            answer=runtime.reply,
            launched=engine.launched,
            make=engine.make,
            rule=rule,
            capability=place.probe.capability,
            margin=margin,
        )
    return LearnedPlanner(
        situation,
        name=name,
        answer=runtime.reply,
        view=engine.view,
        make=engine.make,
        rule=rule,
        margin=margin,
    )


# --- the run ------------------------------------------------------------------------------------


async def run(options: argparse.Namespace) -> int:
    end = time.monotonic() + options.limit_s
    probe = await interpreter.probe(sys.executable)
    wanted = set(json.loads(options.only.read_text())) if options.only else None
    table = {k: v for path in options.table for k, v in json.loads(path.read_text())["tasks"].items()}
    every = [one for folder in options.tasks for one in tasks.load(folder).tasks]
    waiting = [one for one in every if wanted is None or one.name in wanted]
    random.Random(0).shuffle(waiting)
    number, _, count = options.shard.partition("/")
    waiting = waiting[int(number) :: int(count)]
    found: dict[str, Any] = {}
    async with placed(probe, options.device) as place, _served(options.model) as models:

        async def work(task: SuiteTask) -> None:
            best = _best(table.get(task.name))
            try:
                async with asyncio.timeout(LONGEST_S):
                    found[task.name] = await suggested(task, place, models, options.margin, best)
            except Exception as error:  # one broken task must not cost the others: device time is lent
                print(f"{task.name}: {type(error).__name__}: {error}"[:160], flush=True)

        await lanes.share(lanes.until(end, reversed(waiting)), work, options.lanes, end)
    told = {"device": probe.device if options.device == "cuda" else "cpu", **report(found), "tasks": found}
    replace_file(options.out, (json.dumps(told) + "\n").encode())
    print(json.dumps({key: value for key, value in told.items() if key != "tasks"}, indent=1))
    return 0 if found else 1


@contextlib.asynccontextmanager
async def _served(folders: Sequence[Path]) -> AsyncIterator[dict[str, Runtime]]:
    models = {folder.name: Runtime(folder.absolute(), sys.executable) for folder in folders}
    try:
        yield models
    finally:
        await asyncio.gather(*(runtime.close() for runtime in models.values()))


def _best(entry: dict[str, Any] | None) -> list[Step]:
    rows = [row for row in (entry or {}).get("rows", ()) if row["status"] == "passed"]
    return [Step(**one) for one in min(rows, key=lambda row: row["ms"]["candidate"])["steps"]] if rows else []


def report(found: dict[str, Any]) -> dict[str, Any]:
    """Geometric means over tasks with bootstrapped intervals; what fails leaves the program as it is."""
    who = list(dict.fromkeys(name for one in found.values() for name in one["ms"]))
    first = {
        name: [
            math.log(min(ms for ms in one["ms"].values() if ms) / (one["ms"].get(name) or one["eager"]))
            for one in found.values()
            if any(one["ms"].values())
        ]
        for name in who
    }
    over = {name: [mine - rule for mine, rule in zip(first[name], first[RULE], strict=True)] for name in who}
    return {
        "count": len(found),
        "failed": {name: sum(one["ms"].get(name) is None for one in found.values()) for name in who},
        "first_over_best": {name: _told(values) for name, values in first.items() if values},
        "over_rule": {name: _told(values) for name, values in over.items() if values},
    }


def _told(logarithms: Sequence[float]) -> list[float]:
    """Mean, low, high."""
    return [round(value, 4) for value in ratios(logarithms).values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, action="append", default=[], help="a packed policy's folder")
    parser.add_argument("--margin", type=float, default=0.0, help="to leave the rule's course, for all")
    parser.add_argument("--tasks", type=Path, action="append", required=True)
    parser.add_argument("--only", type=Path, help="a JSON list of the tasks' names")
    parser.add_argument(
        "--table", type=Path, action="append", default=[], help="measured plans: the best one takes part"
    )
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth task, from I")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=90.0)
    parser.add_argument("--lanes", type=int, default=6)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    sys.exit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
