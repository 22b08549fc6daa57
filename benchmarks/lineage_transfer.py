"""Do skills of lineages help on other kernels? The same short search with them and without them.

    PYTHONPATH=. python3 benchmarks/lineage_transfer.py --device cuda --limit-s 540 --out transfer-DATE.json

For each of --kernels kernels of benchmarks/triton (none is an expert of a lineage) two searches may judge
--steps candidates each: the planner's courses, then other parameters of the best so far. One of them tries
what lineages teach (drafts in --data, made by lineage.py) after the planner's first course: that course with
the parameters of a recipe, whole recipes before single steps. Whole recipes before anything else cost 4.0
evaluations instead of 2.2 and found nothing better (6 kernels, 2026-11-22). A candidate that both come to
is judged once, so its noise is the same in both. The best of both and the kernel as it is are then timed by
turns in one process, and these numbers count: judged one after the other, pairs that are about equal differed
by up to 6 % (2026-11-23). Silent, wrong and slower count as 1.0. Requirements of the drafts are not asked,
since this shows whether they hold too narrowly; the engine proves each step all the same. Every judgement
lies under --data: the same command goes on. On a CPU nothing has a speed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import triton_targets
from benchmarks.record_spaces import tuned, variants_of
from kernel_lsp import config
from kernel_lsp.agents.plan import Planner
from kernel_lsp.errors import CaptureError, EvaluationError, RewriteError
from kernel_lsp.evaluator import Budget, EvaluationRequest
from kernel_lsp.files import replace_file
from kernel_lsp.library import Library
from kernel_lsp.lineage import kept
from kernel_lsp.lineage.kept import Judgements
from kernel_lsp.lineage.walking import State, identity, judgement
from kernel_lsp.pipeline import Pipeline, recipes
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.records import Candidate, EvalStatus, Interval, Job, Judgement, RecipeStep, Skill
from trainer import lanes
from trainer.intervals import ratios

QUICK = Budget(compile_s=0.0)
MOST_RECIPES = 4
"""Of the steps: the rest is left to what the other search does."""
VARIANTS = 4
ROUNDS, TIMED_S = 300, 8.0
REACHED = 0.98
"""Of the lesser of both results: from there on a search has come as far."""
Row = dict[str, Any]


@dataclass(kw_only=True)
class Arm:
    """One search under way."""

    one: Opened
    judge: Judge
    steps: int
    skills: Sequence[Skill] = ()
    found: list[tuple[Candidate, float]] = field(default_factory=list)
    """Judged ones in order, with their speedup; 1.0 for what is wrong or slower."""

    async def run(self) -> None:
        seen: set[str] = set()
        async for candidate in self._proposals():
            if candidate.id not in seen:
                seen.add(candidate.id)
                self.found.append((candidate, await self.judge.speed(candidate)))
            if len(self.found) >= self.steps:
                return

    async def _proposals(self) -> AsyncIterator[Candidate]:
        planner = Planner(self.one.engine.make, self.one.engine.look)
        courses = planner.courses(self.one.sites, triton=True)
        if (first := await anext(courses, None)) is not None:
            yield first.candidate
        async for candidate in self._taught():
            yield candidate
        async for planned in courses:
            yield planned.candidate
        tried: set[str] = set()
        while (best := self.best) is not None and best.id not in tried:
            tried.add(best.id)
            for place in reversed(range(len(best.steps))):
                for variant in await self._variants(best, place):
                    yield variant

    async def _taught(self) -> AsyncIterator[Candidate]:
        made: set[str] = set()
        for skill in self.skills:
            if len(made) == MOST_RECIPES:
                return
            course = await recipes.course_of(skill, self.one)
            if course is not None and course.candidate.id not in made:
                made.add(course.candidate.id)
                yield course.candidate

    async def _variants(self, best: Candidate, place: int) -> tuple[Candidate, ...]:
        try:
            return await self.one.engine.variants(best.steps, place, VARIANTS)
        except RewriteError:
            return ()

    @property
    def best(self) -> Candidate | None:
        return max(self.found, key=lambda pair: pair[1], default=(None, 0.0))[0]

    @property
    def faster(self) -> bool:
        return any(speed > 1.0 for _, speed in self.found)


class Judge:
    """Speedups over the kernel as it is, each measured once."""

    def __init__(self, one: Opened, place: Path) -> None:
        self._one, self._known = one, Judgements(place)

    async def speed(self, candidate: Candidate) -> float:
        return _speed(await self._judged(candidate))

    async def together(self, bests: Sequence[Candidate]) -> dict[str, float]:
        """By candidate; those that cannot be timed are left out. All are right: they were judged."""
        if not bests:
            return {}
        once = {candidate.id: candidate for candidate in bests}
        async with self._one.gate.tuner(tuned(self._one)) as tuner:
            names = await tuner.enter(variants_of(list(once.values())))
            race = await tuner.timed(names, ROUNDS, TIMED_S)
        return {name: max(1.0, race.speedup(name)) for name in names}

    async def _judged(self, candidate: Candidate) -> Judgement:
        known = self._known
        parent = State(program=self._one.prepared.program)
        child = State(program=replace(parent.program, source=candidate.program))
        if (found := known.get(parent.id, child.id)) is not None:
            return found
        gpu = self._one.bench.device == "cuda"
        evaluation = await self._one.gate.evaluate(
            EvaluationRequest(
                reference=parent.program,
                candidate_source=candidate.program,
                candidate_entry=candidate.entry,
                workload=self._one.prepared.workload,
                device="cuda" if gpu else "interpreter",
                python=self._one.bench.probe.python,
                require_speed=gpu,
                uses_triton=True,
                budget=QUICK,
            )
        )
        made = judgement(parent, child, evaluation)
        if evaluation.status is not EvalStatus.NOT_RUN:
            known.add(made)
        return made


def _speed(found: Judgement) -> float:
    """Over the kernel as it is; 1.0 for what is wrong, slower or was not timed."""
    effect = found.effect if found.status is EvalStatus.PASSED else None
    return max(1.0, 1.0 / effect.mid) if effect is not None else 1.0


def lessons(data: Path) -> list[Skill]:
    """Recipes of lineages, whole ones first, then by what they gained; their parameters for planned steps."""
    drafts = [
        one for one in Library(data).staged() if one.papers.origin.event == "lineage" and one.skill.recipe
    ]
    drafts.sort(key=lambda one: (-len(one.skill.recipe), -_gain(one.papers.origin.speedup), one.skill.name))
    return [replace(one.skill, requires=None, recipe=_planned(one.skill)) for one in drafts]


def _planned(skill: Skill) -> tuple[RecipeStep, ...]:
    return tuple(replace(step, planned=True) for step in skill.recipe)


def _gain(found: Interval | None) -> float:
    return found.mid if found else 1.0


async def compared(pipeline: Pipeline, job: Job, skills: Sequence[Skill], options: argparse.Namespace) -> Row:
    """One kernel, both searches."""
    name = triton_targets.name(job)
    async with pipeline.opened(replace(job, background=True)) as one:
        place = kept.folder(options.data / "transfer", job.qualname, identity(one.prepared.program))
        judge = Judge(one, place)
        arms = {
            "without": Arm(one=one, judge=judge, steps=options.steps),
            "with": Arm(one=one, judge=judge, steps=options.steps, skills=skills),
        }
        for search in arms.values():
            await search.run()
        found = await judge.together([s.best for s in arms.values() if s.best and s.faster])
        row: Row = {"kernel": name}
        for arm, search in arms.items():
            best = search.best
            row[arm] = {
                "speed": found.get(best.id, 1.0) if best else 1.0,
                "judged": [round(speed, 4) for _, speed in search.found],
                "steps": [(s.skill, s.parameters) for s in best.steps] if best else [],
            }
    goal = REACHED * min(max(row[arm]["judged"], default=1.0) for arm in arms)
    for arm in arms:
        row[arm]["reached_after"] = first_at(row[arm]["judged"], goal)
    return row


def first_at(speeds: Sequence[float], goal: float) -> int:
    """Evaluations until the goal; 0 where the kernel as it is has reached it."""
    if goal <= 1.0:
        return 0
    return next((number for number, speed in enumerate(speeds, 1) if speed >= goal), len(speeds))


def ratio(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Geometric mean of with over without, and its 95 % interval by bootstrap over kernels."""
    logs = [math.log(row["with"]["speed"] / row["without"]["speed"]) for row in rows]
    if not logs:
        return 1.0, 1.0, 1.0
    found = ratios(logs)
    return found["low"], found["mean"], found["high"]


async def run(options: argparse.Namespace) -> list[Row]:
    end, rows, skills = time.monotonic() + options.limit_s, list[Row](), lessons(options.data)
    every = sorted(triton_targets.jobs(options.device, options.only, None), key=_mixed)[: options.kernels]
    print(f"{len(skills)} recipes of lineages, {len(every)} kernels", flush=True)
    pipeline = Pipeline(replace(config.load(None)[0], data_dir=str(options.data / "search")))

    async def one(job: Job) -> None:
        try:
            rows.append(await compared(pipeline, job, skills, options))
            print(line(rows[-1]), flush=True)
        except (CaptureError, RewriteError, EvaluationError) as error:
            print(f"{job.qualname}: passed over: {error}", flush=True)

    try:
        await lanes.share(lanes.until(end, every), one, options.lanes, end)
    finally:
        await pipeline.close()
    return rows


def _mixed(job: Job) -> str:
    """Kernels of all files, always the same ones."""
    return hashlib.sha256(triton_targets.name(job).encode()).hexdigest()


def line(row: Row) -> str:
    told = [
        f"{arm} {row[arm]['speed']:.3f}x (after {row[arm]['reached_after']})" for arm in ("without", "with")
    ]
    return f"{row['kernel']:44} {'  '.join(told)}"


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    low, mid, high = ratio(rows)
    arms = ("without", "with")
    count = max(1, len(rows))
    return {
        "kernels": len(rows),
        "with over without": [low, mid, high],
        "geomean": {a: math.exp(sum(math.log(r[a]["speed"]) for r in rows) / count) for a in arms},
        "evaluations to reach the lesser": {
            a: sum(r[a]["reached_after"] for r in rows) / count for a in arms
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--limit-s", type=float, default=540, help="stops then, and goes on next time (540)")
    parser.add_argument("--kernels", type=int, default=22)
    parser.add_argument("--steps", type=int, default=10, help="candidates that a search may judge (10)")
    parser.add_argument("--lanes", type=int, default=4, help="kernels at a time (4)")
    parser.add_argument("--only", default="", help="only kernels whose file::name matches this expression")
    parser.add_argument("--data", type=Path, default=Path(".kernel-lsp/lineage"), help="what lineage.py kept")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = asyncio.run(run(options))
    found = summary(rows)
    print(json.dumps(found, indent=1))
    if options.out:
        about = {"schema_version": 1, "date": time.strftime("%Y-%m-%d"), "device": options.device}
        replace_file(options.out, (json.dumps({**about, **found, "rows": rows}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
