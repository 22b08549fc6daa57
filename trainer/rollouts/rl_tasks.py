"""The tasks of reinforcement learning: who samples, who judges, and how good a policy is on
held-out tasks.

Three kinds behind one face, which `rl.py` knows alone: the product's own rollouts (live.py),
prompts in words over a recorded table (worlds.py, episodes.py, rows.py), and dialogs in the compact
form over measured plans (plan_data.py, rounds.py), which is what the shipped policy speaks. Tables
are a fast test world: what they ask is never asked by the product."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kernel_lsp.errors import ConfigError
from trainer.algorithms.batches import Example
from trainer.config import Recipe, Rl
from trainer.policies import plan_data, ranking
from trainer.policies.lines import LineWriter
from trainer.policies.plan_data import TaskPlans
from trainer.records import Tally
from trainer.rollouts import episodes, held_out, parents, rounds, rows
from trainer.rollouts.parents import StoredParent
from trainer.rollouts.worlds import TableWorld
from trainer.tasks import spaces

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.runs import TrainingRun

RolledExamples = tuple[list[Example], dict[str, float]]


class RolloutTasks(Protocol):
    training: int
    """Tasks to learn from."""
    held_out: int
    """Tasks of other families."""

    def texts(self) -> list[str]:
        """What a vocabulary is trained on; empty where it is fixed."""

    def begin(self, run: TrainingRun) -> None:
        """With the model that is trained; before everything below."""

    @property
    def apart(self) -> bool:
        """The sampler has weights of its own, which `refresh` replaces."""

    def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Gives what samples these weights of the policy, by number."""

    def rolled(self, rl: Rl, seed: int, tally: Tally) -> RolledExamples:
        """Rows and metrics of one step."""

    def measured(self, rl: Rl) -> dict[str, float]:
        """Metrics on the held-out tasks, for the curves."""

    def close(self) -> None:
        """Ends what samples and what judges."""


def of(recipe: Recipe, tally: Tally) -> RolloutTasks:
    """The tasks that a recipe names. Raises ConfigError."""
    if recipe.world.live is not None:
        from trainer.rollouts.live import (
            LiveTasks,  # the product's pipeline: the others do not need it
        )

        return LiveTasks(recipe, tally)
    return DialogTasks(recipe) if recipe.model.words == "compact" else TableTasks(recipe, tally)


class TableTasks:
    """Prompts in words."""

    def __init__(self, recipe: Recipe, tally: Tally) -> None:
        self._recipe = recipe
        self._worlds = held_out.worlds_of(recipe, tally)
        self.training, self.held_out = (len(world.names) for world in self._worlds)
        self._parents = _parents_of(recipe, self._worlds[0], tally)

    def texts(self) -> list[str]:
        """The words of all tasks to learn from."""
        return self._worlds[0].texts()

    def begin(self, run: TrainingRun) -> None:
        """Makes the sampler of the run's model, and the pool that judges."""
        self._sampler = held_out.sampler_of(self._recipe, run)
        self._pool = held_out.pool_of(self._recipe, *self._worlds)

    @property
    def apart(self) -> bool:
        """Whether the sampler has weights of its own, which `refresh` replaces."""
        return self._sampler.apart

    def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Gives the sampler these weights of the policy, by number."""
        self._sampler.refresh(weights, version)

    def rolled(self, rl: Rl, seed: int, tally: Tally) -> RolledExamples:
        """(examples, metrics) of one step: tasks or stored parents drawn by ``seed``."""
        world = self._worlds[0]
        if self._parents:
            drawn = random.Random(seed).sample(self._parents, min(rl.tasks, len(self._parents)))
            sampled = episodes.roll_parents(world, drawn, self._sampler, self._pool, rl, seed)
            found = rows.make_examples(asyncio.run(sampled), rl, tally)
            return list(found.examples), found.metrics
        names = random.Random(seed).sample(world.names, min(rl.tasks, len(world.names)))
        batch = asyncio.run(episodes.roll(world, names, self._sampler, self._pool, rl, seed))
        found = rows.make_examples(batch, rl, tally)
        return list(found.examples), found.metrics

    def measured(self, rl: Rl) -> dict[str, float]:
        """Metrics of greedy rollouts of the held-out tasks."""
        return held_out.metrics(
            self._worlds[1], self._sampler, self._pool, rl.turns, self._recipe.seed
        )

    def close(self) -> None:
        """Ends the pool that judges, then what samples."""
        asyncio.run(self._pool.close())
        self._sampler.close()


def _parents_of(recipe: Recipe, world: TableWorld, tally: Tally) -> list[StoredParent]:
    """Those of the recipe that the world holds. Raises ConfigError when it names some, and none
    is."""
    settings = recipe.rl.parents if recipe.rl is not None else ()
    found = parents.read(settings, Path(recipe.folder), tally)
    known = [one for one in found if world.begin_at(one) is not None]
    if len(known) < len(found):
        tally.skip("a stored parent of no task to train on", count=len(found) - len(known))
    if settings and not known:
        raise ConfigError(
            f"rl.parents: none of {len(found)} parents is of a task to train on",
            "make them of searches of these tasks",
        )
    return known


class DialogTasks:
    """Dialogs in the compact form."""

    apart = False

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._tasks, self._others = plans_of(recipe)
        self.training, self.held_out = len(self._tasks), len(self._others)

    def texts(self) -> list[str]:
        """Nothing: the compact form has a vocabulary of its own."""
        return []

    def begin(self, run: TrainingRun) -> None:
        """Makes what writes replies with the run's model."""
        settings = self._recipe.rollouts
        self._model, self._pad = run.model, run.pad
        self._writer = LineWriter(
            run.model, run.pad, temperature=settings.temperature, batch=settings.batch
        )

    def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Does nothing: replies are written with the very model that is trained."""

    def rolled(self, rl: Rl, seed: int, tally: Tally) -> RolledExamples:
        """(examples, metrics) of one step: tasks drawn by ``seed``, with their sites in other orders where
        the recipe asks for some."""
        draw, orders = random.Random(seed), self._recipe.world.orders
        tasks = draw.sample(self._tasks, min(rl.tasks, len(self._tasks)))
        tasks = [
            plan_data.shuffle_sites(one, draw) if draw.randint(0, orders) else one for one in tasks
        ]
        found = rounds.make_examples(rounds.roll(tasks, self._writer, rl, seed), rl, tally)
        return list(found.examples), found.metrics

    def measured(self, rl: Rl) -> dict[str, float]:
        """Means over the held-out tasks: the first plan's speed over the best one's and over the rule's,
        and how many evaluations reach 95 % of the best. Empty without such tasks."""
        if not self._others:
            return {}
        ranked = ranking.policy(self._others, self._model, self._pad, skip=rl.schemes == 0)
        found = ranking.report(ranked, ranking.rule(self._others))
        return {
            "held_out/first_over_best": found["first_over_best"]["mean"],
            "held_out/first_over_rules": found["first_over_rules"]["mean"],
            "held_out/evaluations_to_95": found["evaluations_to_95"]["mean"],
        }

    def close(self) -> None:
        """Nothing to end: times are recorded."""


def plans_of(recipe: Recipe) -> tuple[list[TaskPlans], list[TaskPlans]]:
    """(training, held out): whole families. Raises ConfigError."""
    found: dict[str, TaskPlans] = {}
    for pattern in recipe.world.shown:
        place = Path(recipe.folder, pattern)
        paths = sorted(place.parent.resolve().glob(place.name))
        if not paths:
            raise ConfigError(
                f"world.shown: {place} finds no file",
                "make it with python -m trainer.policies.plan_data",
            )
        found |= {task.name: task for path in paths for task in plan_data.load(path)}
    tasks = [plan_data.nameless(task) if recipe.world.nameless else task for task in found.values()]
    training, held_out = spaces.split(tasks, recipe.world.held_out, recipe.seed)
    if not training:
        raise ConfigError(
            "[world] holds no task to train on", "give more plans, or a smaller held_out"
        )
    return training, held_out
