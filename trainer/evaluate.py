"""How good a policy is on tasks it never saw: `python -m trainer.evaluate RECIPE [--checkpoint
FOLDER]`.

What is measured, and how, says rollouts/held_out.py; a policy in the compact form is measured by
policies/ranking.py."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from kernel_lsp.errors import ConfigError, KernelLspError
from trainer import config
from trainer.config import Recipe
from trainer.records import Tally
from trainer.rollouts import held_out as measuring
from trainer.rollouts.generation import LocalSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument(
        "--checkpoint", type=Path, help="default: the newest of the recipe's rl, else sft"
    )
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument(
        "--skip", action="store_true", help="compact form: without the selection agent"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="say what would be evaluated")
    options = parser.parse_args()
    try:
        sys.exit(run(config.load(options.recipe), options))
    except KernelLspError as error:
        sys.exit(f"trainer: {error}")


def run(recipe: Recipe, options: argparse.Namespace) -> int:
    """Measures a checkpoint on held-out tasks and prints what was found; the exit code."""
    place = options.checkpoint or newest(recipe)
    metrics_found = (
        _dialogs(recipe, place, options)
        if recipe.model.words == "compact"
        else _table(recipe, place, options)
    )
    if metrics_found is None:
        return 0
    text = json.dumps({"checkpoint": str(place), **metrics_found}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


def _dialogs(recipe: Recipe, place: Path, options: argparse.Namespace) -> dict[str, object] | None:
    """In the compact form, on measured plans."""
    from trainer.policies import models, plan_values, ranking
    from trainer.rollouts import rl_tasks
    from trainer.training import checkpoints

    _, held_out = rl_tasks.plans_of(recipe)
    if not held_out:
        raise ConfigError("nothing is held out", "set world.held_out, and have two families")
    print(f"{place}: {len(held_out)} held-out tasks", flush=True)
    if options.dry_run:
        return None
    checkpoints.check(place)
    shape = replace(recipe.model, path=str(place.absolute()))
    model, tokenizer = models.load(replace(recipe, model=shape), ())
    if recipe.hardware.gpus:
        model = model.to("cuda")
    pad, rule = tokenizer.pad_token_id, ranking.rule(held_out)
    ranked = ranking.policies(held_out, model, pad, ranking.MARGINS, skip=options.skip)
    chosen, margin = ranking.cross_validate(ranked)
    weighed = plan_values.rank_plans(held_out, model, pad) if recipe.world.weighings else None
    firsts = {
        str(m): {one.task.name: round(one.first, 4) for one in own} for m, own in ranked.items()
    }
    return {
        **ranking.report(chosen, rule, recipe.seed),
        "without_margin": ranking.report(ranked[0.0], rule, recipe.seed),
        "margin": margin,
        "firsts": firsts,
        **({"weighed": ranking.report(weighed, rule, recipe.seed)} if weighed else {}),
    }


def _table(recipe: Recipe, place: Path, options: argparse.Namespace) -> dict[str, object] | None:
    from trainer.policies import models
    from trainer.training import checkpoints

    _, held_out = measuring.worlds_of(recipe, Tally())
    if not held_out.names:
        raise ConfigError("nothing is held out", "set world.held_out, and have two families")
    print(f"{place}: {len(held_out.names)} held-out tasks", flush=True)
    if options.dry_run:
        return None
    checkpoints.check(place)
    shape = replace(recipe.model, path=str(place.absolute()))
    model, tokenizer = models.load(replace(recipe, model=shape, lora=None), ())
    sampler = LocalSampler(
        model, tokenizer, max_tokens=recipe.rollouts.max_tokens, batch=recipe.rollouts.batch
    )
    pool = measuring.pool_of(recipe, held_out)
    found = asyncio.run(measuring.attempts(held_out, sampler, pool, options.turns, recipe.seed))
    return measuring.report(held_out, found, recipe.seed)


def newest(recipe: Recipe) -> Path:
    """Raises ConfigError when the recipe was never run."""
    from trainer.training import checkpoints

    for kind in ("rl", "sft"):
        if places := checkpoints.find_checkpoints(Path(recipe.output, recipe.name, kind)):
            return places[0]
    where = Path(recipe.output, recipe.name)
    raise ConfigError(
        f"there is no checkpoint in {where}", "run trainer.rl, or name one with --checkpoint"
    )


if __name__ == "__main__":
    main()
