"""Supervised and offline training: `python -m trainer.sft RECIPE`.

Rows are prompts with replies; losses look at replies alone. Besides plain imitation of good
examples there are two losses for logged sessions, which have no log-probabilities: weights by
advantage, and best steps only; and a preference for what a person kept over what the same target's
owner refused.

What is simple here: no packing (rows are sorted by length and cut by padded tokens), no evaluation
in between. The order of rows follows from seed and epoch, so the same command goes on after a kill
at any point, with the same numbers."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from kernel_lsp.errors import ConfigError
from trainer import sources, starting
from trainer.algorithms import batches, losses
from trainer.algorithms.batches import Batch, Example
from trainer.config import Recipe, Sft
from trainer.policies import imitation, models, plan_values
from trainer.records import Tally
from trainer.rollouts import held_out, rl_tasks
from trainer.training.runs import TrainingRun, say

ExamplePair = tuple[Example, Example]


def train(recipe: Recipe, sft: Sft) -> int:
    # ----------------------------------------------------------------------------------------------
    # Model and rows
    """Runs supervised training by a recipe; the exit code."""
    tally = Tally()
    if recipe.world.shown and not sft.data:
        model, tokenizer = models.load(recipe, ())
        plans, world_settings = rl_tasks.plans_of(recipe)[0], recipe.world
        rows = imitation.examples(plans, world_settings.orders) + plan_values.rows(
            plans, world_settings.weighings
        )
        data = sources.Data(examples=tuple(rows))
    else:
        world, _ = held_out.worlds_of(recipe, tally) if not sft.data else (held_out.NO_WORLD, None)
        model, tokenizer = models.load(recipe, world.texts())
        data = sources.read(recipe, sft, world, tokenizer, tally)
    examples = batches.usable(data.examples, model.config.max_position_embeddings, tally)
    for one in tally.skipped:
        say(f"left out: {one.count} x {one.reason}")
    if not examples:
        raise ConfigError(
            "nothing is left to learn from", "see above for what was left out, and why"
        )
    pairs = [
        pair
        for pair in data.pairs
        if all(len(x) <= model.config.max_position_embeddings for x in pair)
    ]
    steps = sft.epochs * -(-len(examples) // sft.batch)
    run = TrainingRun(recipe=recipe, kind="sft", model=model, tokenizer=tokenizer, steps=steps)
    start = _start(run, sft, pairs)
    run.restore()
    run.open_curves()
    say(f"{len(examples)} rows, {len(pairs)} pairs; from step {run.step} of {steps}")

    # ----------------------------------------------------------------------------------------------
    # Steps
    while run.step < steps:
        begun = time.perf_counter()
        rows = batch_of(examples, sft.batch, run.step, recipe.seed)
        chosen = _pairs_of(pairs, len(rows), run.step) if sft.preference else []
        metrics = learn(run, sft, rows, [pairs[i] for i in chosen], [start[i] for i in chosen])
        metrics["step/s"] = time.perf_counter() - begun
        run.log(metrics)
        say(f"{run.place()}  loss {metrics['loss']:.4f}  {metrics['tokens_per_s']:.0f} tokens/s")
        if run.step == steps or run.step % recipe.checkpoints.every == 0:
            run.save({"step": run.step})
    run.close()
    say(f"the model is in {run.folder}")
    return 0


def batch_of(examples: Sequence[Example], size: int, step: int, seed: int) -> list[Example]:
    """The examples of a step (from 0): every epoch has an order of its own; its last batch may be
    smaller."""
    per_epoch = -(-len(examples) // size)
    epoch, place = divmod(step, per_epoch)
    order = list(range(len(examples)))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return [examples[i] for i in order[place * size : (place + 1) * size]]


def _pairs_of(pairs: Sequence[ExamplePair], size: int, step: int) -> list[int]:
    """Places of a step's pairs: a quarter as many as rows, in turn."""
    count = min(len(pairs), max(1, size // 4))
    return [(step * count + i) % len(pairs) for i in range(count)]


def learn(
    run: TrainingRun,
    sft: Sft,
    rows: Sequence[Example],
    pairs: Sequence[ExamplePair],
    start: Sequence[tuple[float, float]],
) -> dict[str, float]:
    """Makes one step over rows and pairs, and returns its metrics. ``start``: log-probabilities of
    each pair's replies under the first weights."""
    pulls, margin_metrics = _pulls(run, sft, pairs, start)
    examples = [*rows, *(one for pair in pairs for one in pair)]
    mask = torch.zeros(len(rows), max(len(one.counted) for one in rows), dtype=torch.bool)
    for row, one in enumerate(rows):
        mask[row, : len(one.counted)] = True

    def loss(batch: Batch, logprobs: Tensor, places: Tensor) -> Tensor:
        own = places < len(rows)
        tokens = _tokens(sft, batch, logprobs)
        value = losses.mean_tokens(tokens, batch.mask & own[:, None], mask.to(tokens.device))
        if pairs:
            pull = pulls.to(logprobs.device)[(places - len(rows)).clamp(min=0)] * ~own
            value = value + (pull * (logprobs * batch.mask).sum(dim=1)).sum()
        return value

    kept = [True] * len(examples)
    return (
        run.update(examples, loss, tokens=sft.tokens, kept=kept, temperature=1.0) | margin_metrics
    )


def _tokens(sft: Sft, batch: Batch, logprobs: Tensor) -> Tensor:
    match sft.loss:
        case "advantage_weighted":
            return losses.advantage_weighted(logprobs, batch.advantages, sft.temperature)
        case "best_step":
            best = torch.tensor([one.best for one in batch.examples], device=logprobs.device)
            return losses.best_step(logprobs, best)
    return losses.supervised_loss(logprobs)


def _pulls(
    run: TrainingRun, sft: Sft, pairs: Sequence[ExamplePair], start: Sequence[tuple[float, float]]
) -> tuple[Tensor, dict[str, float]]:
    """(2 P,): how much each reply of the pairs (accepted, rejected, accepted, …) is pulled; and
    the term."""
    if not pairs:
        return torch.zeros(1), {}
    now = torch.tensor(_sums(run, sft, pairs))
    first = torch.tensor(start)
    columns = (now[:, 0], now[:, 1], first[:, 0], first[:, 1])
    pull = sft.preference * losses.pull(*columns, sft.beta) / len(pairs)
    term = losses.preference(*columns, sft.beta).mean()
    return torch.stack([pull, -pull], dim=1).flatten(), {"preference": float(term)}


def _start(run: TrainingRun, sft: Sft, pairs: Sequence[ExamplePair]) -> list[tuple[float, float]]:
    """What the first weights thought of the pairs: the same after a restart, because these are
    made anew."""
    return _sums(run, sft, pairs) if sft.preference and pairs else []


def _sums(run: TrainingRun, sft: Sft, pairs: Sequence[ExamplePair]) -> list[tuple[float, float]]:
    found = run.logprobs([one for pair in pairs for one in pair], sft.tokens, 1.0)
    sums = [sum(values) for values in found]
    return list(zip(sums[::2], sums[1::2], strict=True))


if __name__ == "__main__":
    starting.main("sft", __doc__, train)
