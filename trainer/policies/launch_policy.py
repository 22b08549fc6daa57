"""A policy for Triton kernels, from measured launches: which of two states is faster, and by how
much.

    python -m trainer.policies.launch_policy --launches launches.json.xz --out DIR --limit-s 150

Rows are questions (prompt_encoding/launching.py): every plan over the kernel as it is, and over
other measured plans of the same kernel, which teaches the same numbers from other sides. A model
imitates the gains, then raises the reward that it expects of its own choice among each kernel's
plans (exact.py). Whole families are held out, others inside the training families choose the
schedule; seed 0 is what ships. `--crossed` holds every family out once instead. Not covered:
recording (recording.py); what the product may ask beyond these plans."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from kernel_lsp.agents.prompt_encoding.launching import LaunchQuestion
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.models import HeldOut
from kernel_lsp.records import Json
from trainer import config
from trainer.algorithms.batches import dialog_example
from trainer.policies import exact, launches, models, packed, plan_values, shipping
from trainer.policies.exact import FormLesson, Schedule
from trainer.policies.launch_report import OrderedPlans, comparable, policy, report
from trainer.policies.launches import KernelPlans
from trainer.tasks.spaces import split

CAPABILITY = "sm_90"
SIDES = 6
"""Measured plans of a kernel that each of its plans is also compared with."""
HELD_OUT, INNER, FOLDS, SEEDS = 0.25, 0.25, 4, 4
SCHEDULES = {
    "plain": Schedule(form="weigh", batch=256, steps=500, tasks=32, rl_steps=200),
    "forgetting": Schedule(form="weigh", batch=256, steps=500, tasks=32, rl_steps=200, drop=0.1),
    "longer": Schedule(form="weigh", batch=512, steps=1000, tasks=32, rl_steps=200, drop=0.1),
    "imitation": Schedule(form="weigh", batch=256, steps=500, tasks=32, rl_steps=10, drop=0.05),
}
TINY = replace(SCHEDULES["plain"], steps=6, rl_steps=3, batch=16, tasks=3)
RESERVE_S = 5.0

SHAPE = {"hidden": 192, "layers": 4, "heads": 3, "key_heads": 1, "head": 64, "inner": 512}
"""1.9 M parameters."""
TINY_SHAPE = {"hidden": 32, "layers": 1, "heads": 1, "key_heads": 1, "head": 32, "inner": 64}
"""For tests."""


# --- rows -----------------------------------------------------------------------------------------


def values(task: KernelPlans) -> list[float]:
    """ln(speedup) of each plan; what fails counts as half of the slowest."""
    known = [math.log(plan.speedup) for plan in task.plans if plan.speedup]
    worst = min([0.0, *known]) - math.log(2)
    return [math.log(plan.speedup) if plan.speedup else worst for plan in task.plans]


def questions(
    task: KernelPlans, sides: int, capability: str = CAPABILITY
) -> Iterator[tuple[int, int, float, list[int]]]:
    """(order, plan, ln of its gain, tokens): order 0 over the kernel as it is, others over one of
    its plans."""
    speeds, draw = values(task), random.Random(task.name)
    able = [place for place, plan in enumerate(task.plans) if plan.speedup]
    sides_ = [None, *draw.sample(able, min(sides, len(able)))]
    for order, side in enumerate(sides_):
        before = task.before if side is None else task.plans[side].view
        bar = 0.0 if side is None else speeds[side]
        for place, plan in enumerate(task.plans):
            asked = LaunchQuestion(before=before, after=plan.view, capability=capability)
            yield order, place, speeds[place] - bar, asked.tokens


def lesson(
    tasks: Sequence[KernelPlans], device: str, sides: int = SIDES, capability: str = CAPABILITY
) -> FormLesson:
    """All rows of these kernels; numbers of tasks are their places."""
    learned, gains, targets, ruled = [], [], [], []
    for number, task in enumerate(tasks):
        speeds = values(task)
        liked = [speed + plan.liking for speed, plan in zip(speeds, task.plans, strict=True)]
        best = max(0.0, *liked)
        for order, place, gain, tokens in questions(task, sides, capability):
            said = [False] * len(tokens) + [True]
            row = dialog_example(
                [*tokens, plan_values.OFFERED[0]], said, [()] * len(tokens) + [plan_values.OFFERED]
            )
            learned.append((row, number, place, packed.QUESTIONS, order))
            targets.append(gain)
            gains.append(max(liked[place] - best, -exact.WORST))
            ruled.append(task.plans[place].rule)
    return FormLesson(
        form="weigh",
        rows=packed.rows_of(learned),
        gains=np.array(gains, dtype=np.float32),
        targets=np.array(targets, dtype=np.float32),
        kept=np.ones(len(learned), dtype=bool),
        ruled=np.array(ruled),
        pad=int(models.compact_tokenizer().pad_token_id),
        device=device,
    )


# --- learning -------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class LaunchTraining:
    tasks: list[KernelPlans]
    known: FormLesson
    name: str
    """Of the file of results."""
    out: Path
    end: float
    tiny: bool
    result: Json
    begun: float

    @property
    def left(self) -> float:
        """Seconds until the time for the training is over."""
        return self.end - time.monotonic()

    def note(self, text: str) -> None:
        """Writes the result as it is now, and prints a line."""
        replace_file(
            self.out / f"{self.name}.json", (json.dumps(self.result, indent=1) + "\n").encode()
        )
        print(f"{time.monotonic() - self.begun:5.0f} s  {text}", flush=True)


def fresh(seed: int, device: str, tiny: bool) -> Any:
    """A model of random weights."""
    shape = (TINY_SHAPE if tiny else SHAPE) | {"words": "compact", "context": 4096}
    recipe = config.read({"seed": seed, "model": shape, "sft": {}}, Path("launch.toml"))
    return models.load(recipe, ())[0].to(device)


def learn_policy(
    run: LaunchTraining, learned: Schedule, chosen: Sequence[int], asked: Sequence[int], seed: int
) -> Any:
    """(model, what it suggests for ``asked`` after imitation, and after reinforcement)."""
    model, imitated = fresh(seed, run.known.device, run.tiny), list[OrderedPlans]()

    def look() -> None:
        imitated.extend(suggest(run, model, asked))

    exact.learn(model, run.known, learned, chosen, seed, look)
    return model, imitated, suggest(run, model, asked)


def suggest(run: LaunchTraining, model: Any, asked: Sequence[int]) -> list[OrderedPlans]:
    """The plans of the asked tasks in the order in which the model would try them."""
    scores = exact.scores(model, run.known, asked)
    return [policy(run.tasks[place], scores[place]) for place in asked]


def schedules(run: LaunchTraining) -> dict[str, Schedule]:
    """The schedules that are tried, by name."""
    return {"tiny": TINY} if run.tiny else SCHEDULES


def chosen_schedule(run: LaunchTraining, training: Sequence[KernelPlans]) -> str:
    """The schedule that does best on families held out of the training ones, within a third of the
    time."""
    inner, other = split(training, INNER, 1)
    numbers = {task.name: place for place, task in enumerate(run.tasks)}
    able = set(comparable(run.tasks))
    learn, look = ([numbers[task.name] for task in side] for side in (inner, other))
    tried, until = run.result.setdefault("tried", {}), run.begun + (run.end - run.begun) / 3
    for name, learned in schedules(run).items():
        if time.monotonic() > until and tried:
            break
        begun = time.monotonic()
        _, imitated, reinforced = learn_policy(
            run, learned, learn, [place for place in look if place in able], 0
        )
        means = [
            round(math.exp(fmean(one.first for one in own)), 4) for own in (imitated, reinforced)
        ]
        tried[name] = [*means, round(time.monotonic() - begun, 1)]
        run.note(
            f"{name}: first / best on inner families {means[0]} imitated, {means[1]} reinforced"
        )
    return max(tried, key=lambda name: max(tried[name][:2]))


def for_good(run: LaunchTraining) -> None:
    """The held-out families, seed after seed; the first one is packed."""
    training, other = split(run.tasks, HELD_OUT, 0)
    run.result["held_out"] = sorted({task.family for task in other})
    name = run.result.setdefault("chosen", chosen_schedule(run, training))
    numbers = {task.name: place for place, task in enumerate(run.tasks)}
    learn = [numbers[task.name] for task in training]
    asked = sorted({numbers[task.name] for task in other} & set(comparable(run.tasks)))
    longest = 0.0
    for seed in range(SEEDS):
        if seed and run.left < longest + RESERVE_S:
            break
        begun = time.monotonic()
        model, *found = learn_policy(run, schedules(run)[name], learn, asked, seed)
        record = {
            one: report(own) for one, own in zip(("imitated", "reinforced"), found, strict=True)
        }
        run.result.setdefault("seeds", {})[str(seed)] = record
        if seed == 0:
            _pack(run, model, record["reinforced"])
            names = [run.tasks[place].name for place in asked]
            replace_file(run.out / "held-out.json", json.dumps(names).encode())
        longest = time.monotonic() - begun
        one = record["reinforced"]
        run.note(
            f"seed {seed}: first / best {one['first_over_best']}, the rule "
            f"{one['rule_over_best']}, "
            f"evaluations {one['evaluations_to_95']}"
        )


def cross_validate(run: LaunchTraining) -> None:
    """Every family held out once, by the first schedule."""
    families = sorted({task.family for task in run.tasks})
    random.Random(2).shuffle(families)
    able, found = comparable(run.tasks), list[OrderedPlans]()
    for fold in range(FOLDS):
        out = set(families[fold::FOLDS])
        learn = [place for place, task in enumerate(run.tasks) if task.family not in out]
        asked = [place for place in able if run.tasks[place].family in out]
        found += learn_policy(run, next(iter(schedules(run).values())), learn, asked, fold)[-1]
        run.result["crossed"] = {"folds": fold + 1, **report(found)}
        learned = run.result["crossed"]
        run.note(f"fold {fold}: {learned['first_over_best']}, rule {learned['rule_over_best']}")


def _pack(run: LaunchTraining, model: Any, learned: Json) -> None:
    """As it is shipped, beside the results."""
    low, mean, high = learned["first_over_best"]
    check = HeldOut(
        metric="first/best",
        tasks=learned["kernels"],
        value=mean,
        low=low,
        high=high,
        rule=learned["rule_over_best"][1],
        device="NVIDIA H200" if run.known.device == "cuda" else "a rehearsal on a CPU",
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        shipping.pack(
            Path(folder),
            run.out / "launch-small",
            name="launch-small",
            version="1",
            held_out=check,
            devices=(f"cuda:{CAPABILITY}",),
            weighs=True,
            targets=("kernel",),
            # until whole searches with it offer no less (benchmarks/triton_targets.py)
            unasked=False,
            notes="Trained by trainer.policies.launch_policy; trainer/LOG.md has data, curves and limits.\n",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--launches", type=Path, action="append", required=True, help="of trainer.policies.launches"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for results and the policy")
    parser.add_argument("--limit-s", type=float, default=150.0)
    parser.add_argument("--crossed", action="store_true", help="every family is held out once")
    parser.add_argument(
        "--tiny", action="store_true", help="a few steps of a tiny model: a rehearsal"
    )
    options = parser.parse_args()
    begun, device = time.monotonic(), "cuda" if torch.cuda.is_available() else "cpu"
    try:
        tasks = [task for path in options.launches for task in launches.load(path)]
    except KernelLspError as error:
        sys.exit(f"launch_policy: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    run = LaunchTraining(
        tasks=tasks,
        known=lesson(tasks, device, 1 if options.tiny else SIDES),
        name="launch-crossed" if options.crossed else "launch-policy",
        out=options.out,
        end=begun + options.limit_s,
        tiny=options.tiny,
        result={"device": device, "torch": torch.__version__, "kernels": len(tasks)},
        begun=begun,
    )
    print(
        f"{time.monotonic() - begun:.0f} s  {len(tasks)} kernels, {len(run.known.targets)} rows",
        flush=True,
    )
    (cross_validate if options.crossed else for_good)(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
