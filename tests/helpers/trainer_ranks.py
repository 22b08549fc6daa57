"""One of several processes of supervised runs: `python trainer_ranks.py RECIPE`, with torchrun's
variables.

First plain (DDP), then with divided weights (FSDP): trains to the end, then a second run in the
same processes goes on from the last checkpoint but one. The main process writes all losses beside
the recipe. ``lost`` after the recipe: the second process kills itself in the middle of the last
step, ``again``: both go on. accelerate offers FSDP where there are accelerators alone, so it is
told that this
machine's cores are one; sharding, gathering and gloo are the real ones."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from trainer import config, sft, sources
from trainer.config import Recipe
from trainer.policies import models
from trainer.records import Tally
from trainer.rollouts import held_out
from trainer.training import runs as training

STEPS = 3


def run_of(recipe: Recipe) -> tuple[training.TrainingRun, list[sources.Example]]:
    world, _ = held_out.worlds_of(recipe, Tally())
    model, tokenizer = models.load(recipe, world.texts())
    run = training.TrainingRun(
        recipe=recipe, kind="sft", model=model, tokenizer=tokenizer, steps=STEPS
    )
    return run, list(sources.demonstrations(world, tokenizer))


def losses(recipe: Recipe, die: bool = False) -> list[float]:
    """From wherever its newest checkpoint is, saving every step."""
    assert recipe.sft is not None
    run, examples = run_of(recipe)
    run.restore()
    found = []
    while run.step < STEPS:
        if die and run.step == STEPS - 1:
            run.scorer.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        rows = sft.batch_of(examples, recipe.sft.batch, run.step, recipe.seed)
        found.append(sft.learn(run, recipe.sft, rows, [], [])["loss"])
        run.save({"step": run.step})
    return found


def trained(recipe: Recipe, main: bool, wait: Callable[[], None]) -> dict[str, Any]:
    whole = losses(recipe)
    folder = Path(recipe.output, recipe.name, "sft")
    wait()
    if main:
        shutil.copytree(folder, folder.parent / "whole")
        shutil.rmtree(folder / f"step-{STEPS:08d}")
    wait()
    again = losses(recipe)
    sharded = any(hasattr(one, "full_tensor") for one in run_of(recipe)[0].scorer.parameters())
    return {"whole": whole, "again": again, "sharded": sharded}


def main() -> None:
    path = Path(sys.argv[1])
    recipe = config.load(path)
    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    assert state.num_processes == 2 and state.distributed_type is DistributedType.MULTI_CPU
    if len(sys.argv) > 2:
        die = sys.argv[2] == "lost" and not state.is_main_process
        own = losses(replace(recipe, name="lost"), die)
        finish(path, state, {sys.argv[2]: own})
        return
    found: dict[str, Any] = {}
    for kind in ("ddp", "fsdp"):
        if kind == "fsdp":
            AcceleratorState._reset_state()
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
            recipe = replace(recipe, hardware=replace(recipe.hardware, fsdp=True))
        found[kind] = trained(
            replace(recipe, name=kind), state.is_main_process, state.wait_for_everyone
        )
    finish(path, state, found)


def finish(path: Path, state: PartialState, found: dict[str, Any]) -> None:
    if state.is_main_process:
        path.with_suffix(".json").write_text(json.dumps(found))
    state.destroy_process_group()


if __name__ == "__main__":
    main()
