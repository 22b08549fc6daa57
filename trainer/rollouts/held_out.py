"""How good a policy is on recorded tasks that it never saw: its suggestions, looked up.

Per held-out task: the greedy first suggestion's speedup over the best that was recorded, and how
many evaluations it takes to come within 5 % of that best, beside the rule (defaults first, then
one change at a time, as the shipped planner's backbone). Intervals are bootstrapped over tasks,
differences are paired. Not covered: tasks without a recording, which take a gate and a device."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from kernel_lsp.errors import ConfigError
from kernel_lsp.search.space import Point
from trainer.config import Recipe
from trainer.data.intervals import ratios
from trainer.records import Tally
from trainer.rollouts import judging
from trainer.rollouts.generation import Generator, LocalSampler
from trainer.rollouts.judge import Case
from trainer.rollouts.judging import Apart, JudgePool, Table
from trainer.rollouts.worlds import TableWorld
from trainer.tasks import spaces
from trainer.tasks.spaces import NEAR, RecordedSpace

if TYPE_CHECKING:
    from trainer.training.runs import TrainingRun

NO_WORLD = TableWorld(())


def worlds_of(recipe: Recipe, tally: Tally) -> tuple[TableWorld, TableWorld]:
    """(training, held out). Raises ConfigError."""
    settings = recipe.world
    if settings.live is not None:
        raise ConfigError(
            "world.live has no recorded best to compare with",
            "its curves (held_out/…) are measured by trainer.rl; name world.tables for this",
        )
    found = spaces.load(settings.tables, Path(recipe.folder), tally)
    if settings.synthetic:
        found += spaces.synthetic(settings.synthetic, recipe.seed)
    training, held_out = spaces.split(found, settings.held_out, recipe.seed)
    if not training:
        raise ConfigError("[world] holds no task to train on", "give tables, or a smaller held_out")
    return TableWorld(training), TableWorld(held_out)


def pool_of(recipe: Recipe, *known: TableWorld) -> JudgePool:
    """Raises ConfigError when the tasks' programs are not where the recipe says."""
    spaces = {name: space for world in known for name, space in world.spaces.items()}
    settings = recipe.judging
    if settings.pool == "table":
        return Table(spaces)
    programs = judging.programs(Path(recipe.folder, settings.tasks or ""), list(spaces))
    if settings.pool == "local":
        return Apart(lambda: judging.LocalJudge(settings.device, settings.timeout_s, programs))
    return Apart(
        lambda: judging.Clustered(settings.address, settings.device, settings.timeout_s, programs)
    )


def sampler_of(recipe: Recipe, run: TrainingRun) -> Generator:
    """What samples for a run: a server of vLLM, or the model that is trained."""
    settings = recipe.rollouts
    if settings.engine == "vllm":
        from trainer.rollouts.serving import Served

        return Served(run.model.config, run.tokenizer, run.folder / "served", settings, recipe.seed)
    return LocalSampler(
        run.model,
        run.tokenizer,
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
        batch=settings.batch,
    )


# --- one policy -----------------------------------------------------------------------------------


async def attempts(
    world: TableWorld, sampler: Generator, pool: JudgePool, turns: int, seed: int
) -> dict[str, list[float | None]]:
    """Task -> speedup of each suggestion, greedy in the first turn and sampled afterwards."""
    states = {}
    names = list(world.names)
    chosen = sampler.generate([world.selection(name) for name in names], seed, greedy=True)
    for name, sampled in zip(names, chosen, strict=True):
        states[name] = world.begin(name, world.selected(sampled.text)[1])
    found: dict[str, list[float | None]] = {name: [] for name in names}
    for turn in range(turns):
        asks = [(name, world.policy(states[name])) for name in names]
        able = [(name, ask) for name, ask in asks if ask is not None]
        for name, ask in asks:
            if ask is None:
                found[name].append(None)
        answers = sampler.generate([ask for _, ask in able], seed + turn + 1, greedy=turn == 0)
        planned = [
            world.applied(states[name], one.text)[1]
            for (name, _), one in zip(able, answers, strict=True)
        ]
        outcomes = await pool.judge(
            [Case(task=name, steps=steps) for (name, _), steps in zip(able, planned, strict=True)]
        )
        for (name, _), steps, outcome in zip(able, planned, outcomes, strict=True):
            states[name] = world.after(states[name], steps, outcome)
            found[name].append(outcome.speedup.mid if outcome.speedup else None)
    return found


def rule_speedups(space: RecordedSpace) -> list[float | None]:
    """Speedups of the rule's suggestions, in its order: defaults, then one other choice at a
    time."""
    points: list[Point] = [space.default]
    for place, axis in enumerate(space.axes):
        points += [
            (*space.default[:place], choice, *space.default[place + 1 :])
            for choice in range(1, len(axis.choices))
        ]
    return [space.speedup(point) for point in points]


def needed_evaluations(space: RecordedSpace, speedups: Sequence[float | None]) -> int | None:
    """Evaluations until one is within 5 % of the best; None: never among these."""
    bar = NEAR * space.best
    return next((i + 1 for i, one in enumerate(speedups) if one is not None and one >= bar), None)


def share(space: RecordedSpace, speedup: float | None) -> float:
    """ln of the first suggestion's speedup over the best; one that fails leaves the original as it
    is."""
    return math.log((speedup or 1.0) / space.best)


def metrics(
    world: TableWorld, sampler: Generator, pool: JudgePool, turns: int, seed: int
) -> dict[str, float]:
    """Geometric means over the held-out tasks, for the curves."""
    if not world.names:
        return {}
    found = asyncio.run(attempts(world, sampler, pool, turns, seed))
    first = [share(world.spaces[name], values[0]) for name, values in found.items()]
    best = [
        share(world.spaces[name], max((v for v in values if v), default=None))
        for name, values in found.items()
    ]
    rule = [share(space, rule_speedups(space)[0]) for space in world.spaces.values()]
    return {
        "held_out/first_over_best": math.exp(fmean(first)),
        "held_out/best_turn_over_best": math.exp(fmean(best)),
        "held_out/rule_over_best": math.exp(fmean(rule)),
    }


def report(world: TableWorld, found: dict[str, list[float | None]], seed: int) -> dict[str, object]:
    """Everything of one evaluation, as JSON."""
    names = list(found)
    first = [share(world.spaces[name], found[name][0]) for name in names]
    rule = [share(world.spaces[name], rule_speedups(world.spaces[name])[0]) for name in names]
    gains = [ours - theirs for ours, theirs in zip(first, rule, strict=True)]
    return {
        "tasks": len(names),
        "first_over_best": ratios(first, seed),
        "rule_over_best": ratios(rule, seed),
        "first_over_rule": ratios(gains, seed),
        "evaluations_to_95": {
            name: {
                "policy": needed_evaluations(world.spaces[name], found[name]),
                "rule": needed_evaluations(world.spaces[name], rule_speedups(world.spaces[name])),
            }
            for name in names
        },
    }
