"""Recorded rewrites of tasks as dialogs in the compact form: what the shipped policy's cold start
learns from.

    python -m trainer.policies.plan_dialogs --tasks benchmarks/tasks --table
    benchmarks/results/spaces-h200-DATE.json \\
        --unchanged --out dialogs.jsonl [--most 3] [--device cuda]

For each task the engine captures the program (on fake tensors, no GPU), then every chosen plan is
written step by step exactly as the product writes it (`compact.Dialog`, `Engine.view`): the same words
that serve. Chosen are the fastest right plans of a task, no slower than 3 % over its best; with
``--draw`` others are drawn too, and every row has advantages per word: ln of its speedup minus the
mean of the task's rows. What the engine does not offer any more is counted with its reason. Not
covered: several turns in one dialog; which skills to select is answered with those of the plan. """

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kernel_lsp import process, skillbook
from kernel_lsp.agents.learned import usable
from kernel_lsp.agents.prompt_encoding import Dialog, Situation
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.records import Step
from kernel_lsp.rewrite.client import Capture, Engine
from trainer.data import tables
from trainer.data.reading import Grant
from trainer.records import Tally, Trajectory, TurnOutcome
from trainer.tasks import task_suites
from trainer.tasks.task_suites import TrainingTask

NEAR = 1.03
"""Recorded times scatter by 3 %: plans within that of the best are as good as the best."""
STOP = ("stop", ".")
NOT_OFFERED = "a plan that the engine does not offer any more"
NOTHING_RIGHT = "a task without a plan that was right and timed"
NO_CAPTURE = "a task that the engine cannot read"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedPlan:
    """One recorded rewrite."""

    steps: tuple[Step, ...]
    speedup: float
    best: bool


async def hold_dialog(engine: Engine, situation: Situation, steps: Sequence[Step]) -> Dialog:
    """One turn: the plan's skills are selected, its steps named, the engine's answers written.

    Raises ValueError or RewriteError where the plan is not offered.
    """
    dialog = Dialog(situation)
    if dialog.phase.value == "select":
        dialog.say(dialog.reply_selecting(step.skill for step in steps))
    for count, step in enumerate(steps, 1):
        dialog.say(dialog.reply_for(step))
        dialog.saw(await engine.view(steps[:count]))
    if dialog.phase.value == "step":
        dialog.say(STOP)
    return dialog


def situation_of(capture: Capture, device: str, capability: str | None) -> Situation | None:
    """The situation as the product's pipeline makes it; None: the engine showed no graph."""
    if capture.graph is None:
        return None
    triton = device == "cuda"
    return Situation(
        graph=capture.graph,
        sites=usable(capture.sites, triton=triton),
        device=device,
        capability=capability,
        triton=triton,
        read_bytes=capture.read_bytes,
        written_bytes=capture.written_bytes,
    )


def plans(trajectory: Trajectory, most: int, draw: int) -> list[RecordedPlan]:
    """The best ones, one per program, then ``draw`` others."""
    seen: dict[str, RecordedPlan] = {}
    known = [(turn, _speedup(turn.outcome)) for turn in trajectory.policy_turns]
    right = [(turn, speedup) for turn, speedup in known if speedup is not None and turn.steps]
    if not right:
        return []
    bar = max(speedup for _, speedup in right) / NEAR
    for turn, speedup in sorted(right, key=lambda pair: -pair[1]):
        seen.setdefault(
            turn.candidate or repr(turn.steps),
            RecordedPlan(steps=turn.steps, speedup=speedup, best=speedup >= bar),
        )
    best = [plan for plan in seen.values() if plan.best][:most]
    others = [plan for plan in seen.values() if plan not in best]
    return best + random.Random(trajectory.task).sample(others, min(draw, len(others)))


def _speedup(outcome: TurnOutcome) -> float | None:
    if not outcome.correct:
        return None
    if outcome.speedup is not None:
        return outcome.speedup.mid
    eager = outcome.baseline_ms.get("eager")
    return eager / outcome.candidate_ms if eager and outcome.candidate_ms else None


async def rows(
    task: TrainingTask,
    trajectory: Trajectory,
    options: argparse.Namespace,
    engine: Engine,
    tally: Tally,
) -> list[dict[str, Any]]:
    """Dialogs of one task as JSON, with what they are worth."""
    chosen = plans(trajectory, options.most, options.draw)
    if not chosen:
        tally.skip(NOTHING_RIGHT, task.name)
        return []
    executable = [
        skill for skill in skillbook.load(skillbook.folders(())).skills if skill.executable
    ]
    capture = await engine.open(task.program, task.workload, options.device, executable)
    situation = situation_of(capture, options.device, options.capability)
    found = []
    for plan in chosen if situation else ():
        tally.read += 1
        try:
            dialog = await hold_dialog(engine, situation, plan.steps) if situation else None
        except (ValueError, KernelLspError) as error:
            tally.skip(NOT_OFFERED, f"{task.name}: {error}")
            continue
        if dialog is not None:
            found.append((plan, dialog.sample()))
    mean = fmean(math.log(plan.speedup) for plan, _ in found) if found else 0.0
    tally.kept += len(found)
    return [
        {
            "task": task.name,
            "family": task.family,
            "speedup": plan.speedup,
            "example": plan.best,
            "tokens": sample.tokens,
            "said": sample.said,
            "offered": sample.offered,
            **(
                {"advantages": [math.log(plan.speedup) - mean] * sum(sample.said)}
                if options.draw
                else {}
            ),
        }
        for plan, sample in found
    ]


async def run(options: argparse.Namespace) -> int:
    """Writes the dialogs of the chosen plans to ``out``, one a line; the exit code."""
    tally = Tally()
    suites = [task_suites.load(folder) for folder in options.tasks]
    by_id = {task.id: task for suite in suites for task in suite.tasks}
    grant = Grant(own=True, unchanged=options.unchanged)
    lines: list[str] = []
    # Our own tasks on fake tensors: nothing of a user's runs, so nothing has to be confined.
    engine = Engine(python=sys.executable, limits=process.Limits(), confinement=None)
    try:
        for trajectory in _recorded_trajectories(options.table, suites, grant, tally):
            task = by_id[trajectory.task]
            try:
                made = await rows(task, trajectory, options, engine, tally)
            except KernelLspError as error:
                tally.skip(NO_CAPTURE, f"{task.name}: {error}")
                continue
            lines += [json.dumps(row) for row in made]
            print(f"{task.name}: {len(made)} dialogs", flush=True)
    finally:
        await engine.close()
    for one in tally.skipped:
        print(f"left out: {one.count} x {one.reason} ({', '.join(one.examples[:2])})")
    if not lines:
        print("nothing was written", file=sys.stderr)
        return 1
    replace_file(options.out, ("\n".join(lines) + "\n").encode())
    print(f"{len(lines)} dialogs in {options.out}")
    return 0


def _recorded_trajectories(
    paths: Sequence[Path], suites: Sequence[task_suites.TaskSuite], grant: Grant, tally: Tally
) -> Iterator[Trajectory]:
    for path in paths:
        yield from tables.read(path, suites, grant, tally)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tasks", type=Path, action="append", required=True, help="a folder of tasks"
    )
    parser.add_argument(
        "--table", type=Path, action="append", required=True, help="recorded evaluations"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=3, help="best plans of a task")
    parser.add_argument("--draw", type=int, default=0, help="other plans of a task, for advantages")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--capability", default="sm_90", help="of the device that was recorded on")
    parser.add_argument(
        "--unchanged", action="store_true", help="the tasks are those that were recorded"
    )
    try:
        sys.exit(asyncio.run(run(parser.parse_args())))
    except KernelLspError as error:
        sys.exit(f"dialogs: {error}")


if __name__ == "__main__":
    main()
