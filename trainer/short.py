"""A policy within minutes on a lent GPU: schedules tried on inner families, then the best of them for good.

    python -m trainer.short weigh --packed .whl.policy --out DIR --limit-s 240

First every schedule learns on three quarters of the training families and is looked up on the others; the
best one there learns on all of them, once per seed. Each seed is looked up on the held-out families when it
has only imitated and when it was reinforced, and is packed as `kernel-lsp models use` takes it. Nothing is
chosen by the held-out families: the first seed is the one to be shipped, the margin of each half of them is
the other half's (ranking.crossed). Results are written as they come; the same command goes on with what is
missing. Not covered: talks and questions themselves (packed.py), losses (exact.py).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.models import HeldOut
from kernel_lsp.records import Json
from trainer import config, exact, models, packed, ranking, shipping, short_report, shown
from trainer.exact import Lesson, Schedule
from trainer.packed import Task
from trainer.ranking import Ranked
from trainer.shown import Shown
from trainer.spaces import split

SCHEDULES: dict[str, dict[str, Schedule]] = {
    "weigh": {
        "plain": Schedule(form="weigh", batch=256, steps=160),
        "courses": Schedule(form="weigh", batch=256, steps=80, tasks=64, rl_steps=100, courses=True),
        "forgetting": Schedule(form="weigh", batch=256, steps=240, drop=0.1),
        "softer": Schedule(form="weigh", batch=256, steps=160, drop=0.1, sharpness=0.3),
        "both": Schedule(
            form="weigh", batch=256, steps=160, tasks=64, rl_steps=100, drop=0.2, sharpness=0.3, courses=True
        ),
    },
    "talk": {
        "plain": Schedule(form="talk", rl_rate=1e-3),
        "slower": Schedule(form="talk", rl_rate=3e-4),
        "forgetting": Schedule(form="talk", rl_rate=3e-4, drop=0.1),
    },
}
"""The first of a form is for when time ends before the others were tried."""
SHAPES = {
    "weigh": {"hidden": 192, "layers": 4, "heads": 3, "key_heads": 1, "head": 64, "inner": 512},
    "talk": {"hidden": 256, "layers": 6, "heads": 4, "key_heads": 2, "head": 64, "inner": 768},
    "tiny": {"hidden": 32, "layers": 1, "heads": 1, "key_heads": 1, "head": 32, "inner": 64},
}
INNER = 0.25
"""Share of the training families that schedules are chosen by."""
TRYING = {"weigh": 0.45, "talk": 0.3}
"""Share of the time in which schedules are tried."""
FINAL_S = {"weigh": 40.0, "talk": 130.0}
"""What a seed takes at most, evaluation included; less is not begun with (an H200: 29 and 91 s)."""
SEEDS = 4
BOTH = "both"
WAITING_S = 120.0
"""For rows that are being told."""
RESERVE_S = 15.0
"""To write the last results."""


@dataclass(kw_only=True)
class Job:
    """One run of one form."""

    form: str
    known: Lesson
    tasks: list[Task]
    held_out: list[Shown]
    out: Path
    tiny: bool
    end: float
    begun: float = field(default_factory=time.monotonic)
    result: Json = field(default_factory=dict)

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    @property
    def file(self) -> Path:
        return self.out / f"policy-{self.form}.json"

    def note(self, text: str) -> None:
        replace_file(self.file, (json.dumps(self.result, indent=1) + "\n").encode())
        print(f"{time.monotonic() - self.begun:5.0f} s  {text}", flush=True)

    def schedules(self) -> dict[str, Schedule]:
        found = SCHEDULES[self.form]
        if not self.tiny:
            return found
        return {name: replace(one, steps=4, rl_steps=3, batch=16, tasks=3) for name, one in found.items()}

    def model(self, seed: int) -> Any:
        shape = SHAPES["tiny" if self.tiny else self.form] | {"words": "compact", "context": 4096}
        recipe = config.read({"seed": seed, "model": shape, "sft": {}}, Path("short.toml"))
        return models.load(recipe, ())[0].to(self.known.device)


# --- learning --------------------------------------------------------------------------------------


def learned(
    job: Job, told: Schedule, tasks: Sequence[int], seed: int, seen: Callable[[str, Any], None]
) -> list[float]:
    """``seen`` gets the model when it has imitated and when it was reinforced. Returns rewards by step."""
    model = job.model(seed)
    rewards = exact.learn(model, job.known, told, tasks, seed, lambda: seen("sft", model))
    seen("rl", model)
    return rewards


def tried(job: Job, name: str, told: Schedule) -> None:
    """One schedule, on inner families."""
    able = [
        (number, task) for number, task in enumerate(job.tasks) if not task.held_out and any(task.speedups)
    ]
    inner, others = split([task for _, task in able], INNER, 0)
    numbers = {task.name: number for number, task in able}
    train, other = ([numbers[task.name] for task in side] for side in (inner, others))
    found: Json = {"schedule": asdict(told), "tasks": [len(train), len(other)]}
    begun = time.monotonic()

    def seen(stage: str, model: Any) -> None:
        scores = exact.scores(model, job.known, other)
        margins = short_report.MARGINS if job.form == "weigh" else short_report.TALK_MARGINS
        found[stage] = {
            str(m): round(short_report.first(job.tasks, scores, m, courses=job.form == "weigh"), 4)
            for m in margins
        }

    rewards = learned(job, told, train, 0, seen)
    found["rewards"] = [round(one, 4) for one in rewards[:: max(1, len(rewards) // 20)]]
    found["seconds"] = round(time.monotonic() - begun, 1)
    job.result["tried"][name] = found
    job.note(
        f"{name}: imitation {found['sft']['0.0']}, reinforced {found['rl']['0.0']}, {found['seconds']} s"
    )


def best(job: Job) -> str:
    """The schedule that was reinforced to most on inner families, over the margins about it (a single
    margin's best is luck)."""
    tried_ = job.result["tried"]
    if not tried_:
        return next(iter(SCHEDULES[job.form]))
    return max(tried_, key=lambda name: fmean(sorted(tried_[name]["rl"].values())[-4:]))


# --- for good --------------------------------------------------------------------------------------


def final(job: Job, name: str, seed: int) -> None:
    """One seed on all training families, told and packed."""
    told = job.schedules()[name]
    tasks = [number for number, task in enumerate(job.tasks) if not task.held_out and any(task.speedups)]
    found: Json = {"schedule": name, "seed": seed}
    orders: dict[str, dict[str, dict[float, list[Ranked]]]] = {}
    begun = time.monotonic()

    def seen(stage: str, model: Any) -> None:
        orders[stage] = short_report.ranked(model, job.form, job.known, job.tasks, job.held_out)
        found[stage] = {
            asked: short_report.report(own, job.tasks, job.held_out) for asked, own in orders[stage].items()
        }
        job.result["running"] = found
        job.note(
            f"seed {seed}, {stage}: {[one['first_over_rules_families'] for one in found[stage].values()]}"
        )
        if stage == "rl":
            _pack(job, model, f"policy-{job.form}-{seed}", found[stage])

    rewards = learned(job, told, tasks, seed, seen)
    found["rl_over_sft"] = {
        asked: short_report.paired(
            ranking.crossed(orders["rl"][asked])[0], ranking.crossed(orders["sft"][asked])[0]
        )
        for asked in orders["rl"]
    }
    found["rewards"] = [round(one, 4) for one in rewards]
    found["seconds"] = round(time.monotonic() - begun, 1)
    job.result["seeds"][str(seed)] = job.result.pop("running")
    asked = next(iter(orders["rl"]))
    told_ = found["rl"][asked]
    job.note(
        f"seed {seed}: first / best {told_['first_over_best_families']}, times the rule "
        f"{told_['first_over_rules_families']}, times imitation {found['rl_over_sft'][asked]}"
    )


def _pack(job: Job, model: Any, name: str, told: Json) -> None:
    """As it is shipped, beside the results."""
    own = next(iter(told.values()))
    low, mean, high = own["first_over_best_families"]
    check = HeldOut(
        metric="first/best",
        tasks=own["tasks"],
        value=mean,
        low=low,
        high=high,
        rule=own["rule_over_best"][1],
        device="NVIDIA H200" if job.known.device == "cuda" else "a rehearsal on a CPU",
    )
    shutil.rmtree(job.out / name, ignore_errors=True)  # of a run that was cut
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        shipping.pack(
            Path(folder),
            job.out / name,
            name="plan-small",
            version="2",
            held_out=check,
            margin=own["margin"],
            weighs=job.form == "weigh",
            notes=f"{name}, trained by trainer.short: {job.file.name} has its recipe and every number.\n",
        )


def run(options: argparse.Namespace) -> int:
    end = time.monotonic() + options.limit_s
    forms = list(SCHEDULES) if options.form == BOTH else [options.form]
    codes = []
    for number, form in enumerate(forms):
        begun = time.monotonic()
        codes.append(one(form, begun + (end - begun) / (len(forms) - number), options))
    return max(codes)


def one(form: str, end: float, options: argparse.Namespace) -> int:
    job = opened(form, end, options)
    longest = 0.0
    tries = job.begun + TRYING[form] * job.left
    for name, told in job.schedules().items():
        begun = time.monotonic()
        if name not in job.result["tried"] and begun + longest < tries:
            tried(job, name, told)
            longest = max(longest, time.monotonic() - begun)
    needed = 0.0 if job.tiny else FINAL_S[form]
    job.result.setdefault("chosen", best(job))  # a run that goes on keeps to it
    for seed in range(SEEDS):
        begun = time.monotonic()
        if str(seed) not in job.result["seeds"] and job.left > needed + RESERVE_S:
            final(job, job.result["chosen"], seed)
            needed = 1.1 * (time.monotonic() - begun)
    return 0 if job.result["seeds"] else 1


def opened(form: str, end: float, options: argparse.Namespace) -> Job:
    """With what an earlier run of the same command has found. Raises ConfigError."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    patience = time.monotonic() + min(WAITING_S, 0.5 * (end - time.monotonic()))
    while not (options.packed / packed.ROWS).exists() and time.monotonic() < patience:
        time.sleep(1.0)  # another track tells them
    tasks, rows = packed.load(options.packed / packed.ROWS)
    pad = int(models.compact_tokenizer().pad_token_id)
    job = Job(
        form=form,
        known=exact.lesson(form, tasks, rows, pad, device),
        tasks=tasks,
        held_out=shown.load(options.packed / packed.HELD_OUT),
        out=options.out,
        tiny=options.tiny,
        end=end,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    if job.file.exists():
        job.result = json.loads(job.file.read_text())
    job.result |= {"form": form, "device": device, "torch": torch.__version__}
    job.result.setdefault("tried", {})
    job.result.setdefault("seeds", {})
    job.note(f"{form}: {len(tasks)} tasks, {len(rows.tasks)} rows, {len(job.held_out)} held out, on {device}")
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "form", choices=[*SCHEDULES, BOTH], help="weigh: the rule's courses; talk: step by step"
    )
    parser.add_argument("--packed", type=Path, default=Path(".whl.policy"), help="folder of trainer.packed")
    parser.add_argument("--out", type=Path, required=True, help="folder for results and policies")
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--tiny", action="store_true", help="a few steps of a tiny model: a rehearsal")
    try:
        sys.exit(run(parser.parse_args()))
    except KernelLspError as error:
        sys.exit(f"short: {error}")


if __name__ == "__main__":
    main()
