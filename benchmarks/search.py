"""The search without a model on recorded spaces: how near to the best combination with a quarter
of the work.

    PYTHONPATH=. python3 benchmarks/search.py [results/spaces-h200-DATE.json] [--seeds 50] [--out
    FILE]

Replays benchmarks/record_spaces.py's recordings: the real loop, MAP-Elites strategy and parameter
mutations, with a judge that looks the time up. Every run starts from the skills' default
parameters, whose judgement counts as one of its evaluations, and may judge a quarter of the
programs. Beside it, on the same spaces and seeds, random search: as many programs drawn uniformly
without repetition. Both are scored by the speedup of their best over the best speedup of all.
Combinations that lead to the same program count as one, because nothing is judged twice. Bar: 98 %
on average over tasks and seeds. Not covered: noise (a recording has one time per combination) and
changing the chain of steps."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.reporting import write_record
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    Interval,
    Json,
    Move,
    Program,
    Proposal,
    SearchBudget,
    SearchJudgement,
    SearchTask,
    Site,
    Step,
    Strategy,
    TargetKind,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.search import attempts
from kernel_lsp.search.budget import SpentBudget
from kernel_lsp.search.evolution import Evolution
from kernel_lsp.search.ledger import MemoryArchive
from kernel_lsp.search.loop import SearchLoop
from kernel_lsp.search.proposers import Mutate
from kernel_lsp.search.space import Point
from kernel_lsp.search.workers import SearchWorkers

RESULTS = Path(__file__).resolve().parent / "results"
SHARE, BAR, SEEDS = 0.25, 0.98, 50
WORKLOAD = Workload(name="recorded", origin=WorkloadOrigin.GET_INPUTS)


@dataclass(frozen=True, kw_only=True)
class Space:
    """One recorded task: a `Workshop` whose candidates are its programs, and the judge of them."""

    name: str
    offered: tuple[Site, ...]
    axes: tuple[Json, ...]
    steps: tuple[Step, ...]
    original_ms: float
    programs: Mapping[Point, str]
    times: Mapping[str, float | None]
    """None: it does not compile, does not run or is wrong."""

    @property
    def budget(self) -> int:
        return max(2, math.ceil(SHARE * len(self.times)))

    @property
    def best(self) -> float:
        return max(map(self.speedup, self.times))

    def speedup(self, program: str) -> float:
        """0 for what cannot be used."""
        taken = self.times[program]
        return self.original_ms / taken if taken else 0.0

    def point(self, steps: Sequence[Step]) -> Point:
        return tuple(
            axis["choices"].index(
                steps[axis["step"]].parameters.get(axis["name"], axis["choices"][0])
            )
            for axis in self.axes
        )

    def at(self, point: Point) -> tuple[Step, ...]:
        chosen: list[Json] = [dict(step.parameters) for step in self.steps]
        for axis, place in zip(self.axes, point, strict=True):
            chosen[axis["step"]][axis["name"]] = axis["choices"][place]
        return tuple(
            replace(step, parameters=new) for step, new in zip(self.steps, chosen, strict=True)
        )

    async def sites(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        return self.offered[len(steps) : len(steps) + 1]

    async def apply(self, steps: Sequence[Step]) -> Candidate:
        program = self.programs.get(self.point(steps))
        if program is None:
            raise RewriteError("the engine made no such combination", "choose another")
        return Candidate(id=program, edit=None, program="", entry="Model", steps=tuple(steps))

    async def write(self, code: str, parent: Candidate | None) -> Candidate:
        raise RewriteError("nobody writes here")

    def marked(self, parent: Candidate | None) -> str:
        return ""

    async def judge(self, candidate: Candidate, *, full: bool) -> SearchJudgement:
        return SearchJudgement(proposal=self.proposal(candidate))

    def proposal(self, candidate: Candidate) -> Proposal:
        speedup = self.speedup(candidate.id)
        interval = Interval(low=speedup, mid=speedup, high=speedup)
        right = Evaluation(status=EvalStatus.PASSED, device="cuda", speedups={"eager": interval})
        wrong = Evaluation(status=EvalStatus.WRONG_RESULT, device="cuda")
        return Proposal(
            id=candidate.id,
            fingerprint="",
            fingerprint_after="",
            qualname="Model",
            workload=WORKLOAD,
            candidate=candidate,
            evaluation=right if speedup else wrong,
            verdict=Verdict.CORRECT if speedup else Verdict.REJECTED,
            created="",
        )


def spaces(path: Path) -> list[Space]:
    """Every task of a recording. Raises ValueError when it is none."""
    try:
        tasks = json.loads(path.read_text())["tasks"]
        return [_space(name, task) for name, task in tasks.items()]
    except (OSError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no recording of spaces: {error!r}") from error


def _space(name: str, task: Json) -> Space:
    axes = tuple(task["axes"])
    steps = tuple(
        Step(skill=s["skill"], site=s["site"], parameters=s["parameters"]) for s in task["steps"]
    )
    offered = tuple(
        Site(
            skill=step.skill,
            site=step.site,
            summary="",
            proofs=(),
            parameters={axis["name"]: axis["choices"] for axis in axes if axis["step"] == place},
        )
        for place, step in enumerate(steps)
    )
    return Space(
        name=name,
        offered=offered,
        axes=axes,
        steps=steps,
        original_ms=task["original_ms"],
        programs={tuple(point): program for point, program, _, _ in task["combinations"]},
        times={program: ms for _, program, ms, _ in task["combinations"]},
    )


def evolved(space: Space, seed: int) -> float:
    """Share of the best speedup that the search finds."""
    return replayed(space, Evolution(seed), space.budget)


def replayed(space: Space, strategy: Strategy, budget: int) -> float:
    """Share of the best speedup that the product's loop finds under a strategy, the defaults'
    judgement among its ``budget`` evaluations."""
    return asyncio.run(_replayed(space, strategy, budget))


async def _replayed(space: Space, strategy: Strategy, budget: int) -> float:
    archive = MemoryArchive()
    started = await _first_that_runs(space)
    attempts.enter(archive, started, lambda judged: {})
    limits = SearchBudget(
        candidates=budget - len(started), seconds=None, stagnation=len(space.times)
    )
    loop = SearchLoop(
        task=_task(),
        strategy=strategy,
        proposers=(),
        moves={Move.MUTATE: Mutate(space, archive)},
        judge=space.judge,
        archive=archive,
        budget=SpentBudget(limits=limits),
        workers=SearchWorkers(),
    )
    await loop.run()
    assert sum(1 for attempt in archive.attempts if attempt.proposal) <= budget
    return max(attempt.fitness or 0.0 for attempt in archive.attempts) / space.best


async def _first_that_runs(space: Space) -> list[Proposal]:
    """The defaults; where they do not run, also what comes after them, up to the first that
    does."""
    made = [await space.apply(space.steps)]
    others = (program for program in space.times if program != made[0].id)
    while not space.speedup(made[-1].id):
        program = next(others)
        point = next(point for point, name in space.programs.items() if name == program)
        made.append(await space.apply(space.at(point)))
    return [space.proposal(candidate) for candidate in made]


def drawn(space: Space, seed: int, budget: int | None = None) -> float:
    """The same for random search; ``budget``: default a quarter of the programs."""
    count = min(budget or space.budget, len(space.times))
    chosen = random.Random(f"{space.name}:{seed}").sample(sorted(space.times), count)
    return max(map(space.speedup, chosen)) / space.best


def _task() -> SearchTask:
    program = Program(source="", entry="Model", kind=TargetKind.MODULE)
    return SearchTask(
        qualname="Model", fingerprint="", program=program, workload=WORKLOAD, device="cuda"
    )


# --- the table ----------------------------------------------------------------------------------


def compare(found: Sequence[Space], seeds: int) -> list[Json]:
    """A row per task: mean share of the best speedup, for both, and the worst seed's."""
    rows = []
    for space in found:
        ours = [evolved(space, seed) for seed in range(seeds)]
        random_ = [drawn(space, seed) for seed in range(seeds)]
        rows.append(
            {
                "task": space.name,
                "programs": len(space.times),
                "evaluations": space.budget,
                "best_speedup": space.best,
                "default": space.speedup(space.programs[space.point(space.steps)]) / space.best,
                "evolution": statistics.fmean(ours),
                "evolution_worst": min(ours),
                "random": statistics.fmean(random_),
                "random_worst": min(random_),
            }
        )
        print(_describe(rows[-1]), flush=True)
    return rows


def _describe(row: Json) -> str:
    shares = "  ".join(f"{row[name]:7.2%}" for name in COLUMNS)
    counts = f"{row['programs']:>4} {row['evaluations']:>4} {row['best_speedup']:>7.2f}x"
    return f"{row['task']:<44} {counts}  {shares}"


COLUMNS = ("default", "evolution", "evolution_worst", "random", "random_worst")


def newest() -> Path | None:
    return max(RESULTS.glob("spaces-*.json"), key=lambda path: path.name, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recording", type=Path, nargs="?", default=newest())
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.recording is None:
        sys.exit(
            "there is no recording in benchmarks/results: make one with benchmarks/record_spaces.py"
        )
    print(f"{options.recording.name}, {options.seeds} seeds, {SHARE:.0%} of the evaluations")
    print(
        f"{'task':<44} {'all':>4} {'some':>4} {'best':>8}  default   evolution (worst)    random "
        f"(worst)"
    )
    rows = compare(spaces(options.recording), options.seeds)
    means = {name: statistics.fmean(row[name] for row in rows) for name in COLUMNS}
    met = means["evolution"] >= BAR
    print(f"mean of {len(rows)} tasks: evolution {means['evolution']:.2%}, random "
          f"{means['random']:.2%},"
          f" default {means['default']:.2%}; bar {BAR:.0%}: {'met' if met else 'NOT met'}")  # fmt: skip
    if options.out:
        about = {
            "recording": options.recording.name,
            "seeds": options.seeds,
            "share": SHARE,
            "bar": BAR,
        }
        write_record(options.out, {**about, "means": means, "met": met, "rows": rows})
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
