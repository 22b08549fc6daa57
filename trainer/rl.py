"""Multi-turn reinforcement learning of the three agents with one model: `python -m trainer.rl
RECIPE`.

What a step does: a few tasks are drawn; for each, the selection agent chooses skills k times (and
once nobody does), every choice is rolled out n times over T turns, each turn is judged, clearly
improved rollouts are summed up. Rewards become advantages agent by agent, and all replies together
one update of the weights.

What is simpler than in the published runs (daVinci-kernel, Dr. Kernel): no KL term and no entropy
bonus, as there; one process samples and all of them learn; no over-sampling of prompts, a task
whose rewards are all alike just adds nothing. What is stricter: see episodes.py.

Killed at any point, the same command goes on from the newest checkpoint with the same numbers.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor

from kernel_lsp.errors import ConfigError, KernelLspError
from trainer import starting
from trainer.algorithms import batches, losses
from trainer.algorithms.batches import Batch, Example
from trainer.config import Recipe, Rl
from trainer.policies import models
from trainer.records import Tally
from trainer.rollouts import episodes, rl_tasks
from trainer.training import checkpoints
from trainer.training.runs import TrainingRun, say


def train(recipe: Recipe, rl: Rl) -> int:
    """Runs reinforcement learning by a recipe; the exit code."""
    tally = Tally()
    tasks = rl_tasks.of(recipe, tally)
    model, tokenizer = models.load(load_start(recipe, rl), tasks.texts())
    run = TrainingRun(
        recipe=recipe, kind="rl", model=model, tokenizer=tokenizer, steps=rl.steps * rl.updates
    )
    run.restore()
    run.open_curves()
    tasks.begin(run)
    with contextlib.closing(run), contextlib.closing(tasks):
        # Also when a step fails: judges and samplers end.
        say(
            f"{tasks.training} tasks, {tasks.held_out} held out; from step {run.step} of {run.steps}"
        )
        steps(run, tasks, rl, tally)
    for one in tally.skipped:
        say(f"left out: {one.count} x {one.reason}")
    say(f"the policy is in {run.folder}")
    return 0


def steps(run: TrainingRun, tasks: rl_tasks.RolloutTasks, rl: Rl, tally: Tally) -> None:
    """Makes all steps that are left."""
    recipe = run.recipe
    weights = run.weights() if tasks.apart else {}  # gathered by all processes together
    if run.step == 0 and run.main:
        tasks.refresh(weights, 0)
        run.log(tasks.measured(rl))
    while run.step < run.steps:
        begun = time.perf_counter()
        number = run.step // rl.updates
        weights = run.weights() if tasks.apart else {}
        made: list[Any] = [None]  # by the main process, for all
        if run.main:
            tasks.refresh(weights, run.step)
            made = [tasks.rolled(rl, episodes.seed_of(recipe.seed, number), tally)]
        if run.accelerator.num_processes > 1:
            broadcast_object_list(made)
        examples, metrics = made[0]
        metrics["rollouts/s"] = time.perf_counter() - begun
        metrics |= learn(run, rl, examples, recipe.rollouts.temperature, number)
        metrics["step/s"] = time.perf_counter() - begun
        last = run.step >= run.steps
        weights = run.weights() if last and tasks.apart else {}
        if last and run.main:
            tasks.refresh(weights, run.step)
            metrics |= tasks.measured(rl)
        run.log(metrics)
        say(_line(run.place(), metrics))
        if last or (number + 1) % recipe.checkpoints.every == 0:
            run.save({"step": number + 1})


def load_start(recipe: Recipe, rl: Rl) -> Recipe:
    """The recipe with the weights that the run begins with. Raises ConfigError or
    CheckpointError."""
    if rl.start == "model":
        return recipe
    places = checkpoints.find_checkpoints(Path(recipe.output, recipe.name, "sft"))
    if not places:
        cause = f"rl.start is sft, and {Path(recipe.output, recipe.name, 'sft')} has no checkpoint"
        raise ConfigError(cause, "run trainer.sft with the same recipe first")
    checkpoints.check(places[0])
    return replace(recipe, model=replace(recipe.model, path=str(places[0].absolute())))


def learn(
    run: TrainingRun, rl: Rl, examples: Sequence[Example], temperature: float, number: int
) -> dict[str, float]:
    """The updates on one batch of rollouts."""
    examples, ages = fresh_rows(examples, run.step, rl.staleness)
    examples = batches.usable(examples, run.model.config.max_position_embeddings, Tally())
    if len(examples) < run.accelerator.num_processes:
        run.step += rl.updates  # nothing was chosen anywhere: nothing to learn from
        return {"rows": len(examples), **ages}
    old = _pad(run.logprobs(examples, rl.tokens, temperature)) if _off_policy(rl) else None
    kept, step_metrics = reject_rows(examples, old, rl, number)
    whole = _mask(examples) & torch.tensor(kept)[:, None]
    clips: list[float] = []

    def loss(batch: Batch, logprobs: Tensor, places: Tensor) -> Tensor:
        width = batch.mask.shape[1]
        before = logprobs.detach() if old is None else old[places.cpu(), :width].to(logprobs.device)
        found = losses.clipped_loss(
            logprobs, before, batch.advantages, rl.clip_low, rl.clip_high, rl.dual
        )
        value = found.loss
        if rl.importance_cap:
            weight = losses.truncated_importance(before, batch.sampled, rl.importance_cap)
            value = value * torch.where(batch.mask, weight, 1.0)  # unknown ones are NaN, and masked
        if batch.mask.any():
            clips.append(float(found.clipped[batch.mask].float().mean()))
        return losses.AGGREGATES[rl.aggregate](value, batch.mask, whole.to(value.device))

    for _ in range(rl.updates):
        step_metrics |= run.update(
            examples, loss, tokens=rl.tokens, kept=kept, temperature=temperature
        )
    clipped = sum(clips) / max(1, len(clips))
    return step_metrics | ages | {"rows": len(examples), "clipped": clipped}


def fresh_rows(
    examples: Sequence[Example], step: int, limit: int
) -> tuple[list[Example], dict[str, float]]:
    """Those that were sampled by weights at most ``limit`` updates old, and what the curve says of
    their age. Of a sampler that tells no version nothing is known, and nothing is left out."""
    ages = [step - one.version for one in examples if one.version is not None]
    kept = [one for one in examples if one.version is None or step - one.version <= limit]
    gone = len(examples) - len(kept)
    return kept, {"staleness/oldest": max(ages), "staleness/left_out": gone} if ages else {}


def _off_policy(rl: Rl) -> bool:
    """Whether anything asks what the weights thought before the update; else the ratio is 1 by
    definition."""
    return rl.updates > 1 or bool(rl.band or rl.veto or rl.importance_cap)


def reject_rows(
    examples: Sequence[Example], old: Tensor | None, rl: Rl, number: int
) -> tuple[list[bool], dict[str, float]]:
    """Which rows stay, by the rules that the recipe turns on; advantages have been computed
    before."""
    keep = torch.ones(len(examples), dtype=torch.bool)
    record: dict[str, float] = {}
    if old is not None and (rl.band or rl.veto):
        sampled, mask = _pad([_known_values(one) for one in examples]), _mask(examples)
        if rl.band:
            names = [one.trajectory for one in examples]
            inside = losses.in_band(old, sampled, mask, names, 1 - rl.band, 1 + rl.band)
            record["kept/band"] = float(inside.float().mean())
            keep &= inside
        if rl.veto:
            possible = losses.not_vetoed(old, sampled, mask, rl.veto)
            record["kept/veto"] = float(possible.float().mean())
            keep &= possible
    if rl.profiling:
        draws = [
            random.Random(f"{number}/{one.trajectory}/{i}").random()
            for i, one in enumerate(examples)
        ]
        stays = losses.profile_filter(
            [e.coverage for e in examples], [e.correct for e in examples], draws
        )
        record["kept/profiling"] = sum(stays) / len(stays)
        keep &= torch.tensor(stays)
    return keep.tolist(), record


def _known_values(example: Example) -> list[float]:
    if example.sampled is None:
        raise KernelLspError(
            "the sampler gave no log-probabilities",
            "turn off rl.band and rl.veto, or take another sampler",
        )
    return [example.sampled[place] for place in example.counted]


def _mask(examples: Sequence[Example]) -> Tensor:
    counts = torch.tensor([len(one.counted) for one in examples])
    return torch.arange(int(counts.max()))[None, :] < counts[:, None]


def _pad(values: Sequence[Sequence[float]]) -> Tensor:
    found = torch.zeros(len(values), max(map(len, values)))
    for row, own in enumerate(values):
        found[row, : len(own)] = torch.tensor(own)
    return found


def _line(place: str, metrics: dict[str, float]) -> str:
    shown = ("loss", "reward/policy", "speedup/first_turn", "speedup/best_turn", "step/s")
    return f"{place}  " + "  ".join(f"{k} {metrics[k]:.4g}" for k in shown if k in metrics)


if __name__ == "__main__":
    starting.main("rl", __doc__, train)
