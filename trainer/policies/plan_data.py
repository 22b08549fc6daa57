"""Measured plans with what the engine shows along them: all that a rollout in the compact form
needs.

    python -m trainer.policies.plan_data --tasks tasks/ --tasks benchmarks/tasks --table plans-0.json \\
        --out shown.json.xz [--jobs 2]

A rollout of the shipped policy asks an engine for the graph after each step. Here every step that
a recorded plan takes has been asked for once (on fake tensors, no GPU, 0.5 s a task), so training
needs neither engines nor programs. Tasks whose program changed since it was measured, and plans
that cannot be encoded, are counted with their reason. Proofs are left out: only sites all of whose
proofs hold are ever recorded. Not covered: measuring (recording.py). """

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
import multiprocessing
import random
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from kernel_lsp import wire
from kernel_lsp.agents.plan import NAME
from kernel_lsp.agents.prompt_encoding import Dialog, DialogPhase, Situation
from kernel_lsp.agents.prompt_encoding.situations import MAX_FIRST_SITES
from kernel_lsp.errors import ConfigError, KernelLspError, RewriteError
from kernel_lsp.files import replace_file
from kernel_lsp.records import CallCost, EvalStatus, Interval, Json, Site, Step, Viewed
from trainer.data import tables
from trainer.data.reading import Grant
from trainer.policies import ruling
from trainer.policies.plan_dialogs import NO_CAPTURE, NOT_OFFERED, STOP, situation_of
from trainer.policies.ruling import PlanPlaces
from trainer.records import Tally, Trajectory, TurnOutcome, TurnStatus
from trainer.tasks import task_suites
from trainer.tasks.spaces import RACE_SCATTER

T = TypeVar("T", Site, Step)
SCHEMA = 1
TOO_FEW = "a task with fewer than two plans that can be encoded"
NO_RULE = "a task whose first plan, the rule's, cannot be encoded: nothing to compare with"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPlan:
    """One measured rewrite."""

    steps: tuple[Step, ...]
    keys: tuple[str, ...]
    """Of its steps; equal ones are one step."""
    outcome: TurnOutcome
    rule: bool
    """The rule proposed it when plans were recorded; what it suggests first now is the first
    plan."""

    @property
    def speedup(self) -> float | None:
        """The speedup over eager; None: it failed."""
        return self.outcome.speedups["eager"].mid if "eager" in self.outcome.speedups else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPlans:
    """One task with its plans."""

    name: str
    family: str
    situation: Situation
    plans: tuple[MeasuredPlan, ...]
    views: dict[tuple[str, ...], Viewed | None]
    """Keys of the steps so far -> what the engine showed; None: it refused the last one."""
    before: CallCost | None = None
    """Of the program as it was; None: a file from before it was kept."""
    current: bool = True
    """The first plan is what the rule suggests now; False: what it suggested then."""

    @property
    def best(self) -> float:
        """The largest speedup of a recorded plan; 0 where none was timed."""
        return max(plan.speedup or 0.0 for plan in self.plans)


def key_of(step: Step) -> str:
    """A text that is the same for equal steps."""
    return json.dumps(wire.to_json(step), sort_keys=True)


def encode_plan(
    task: TaskPlans,
    plan: MeasuredPlan,
    *,
    skip: bool = False,
    selected: Sequence[str] | None = None,
) -> Dialog:
    """A dialog that says a plan after the rule's; ``selected``: words of the selection, else the
    plan's skills.

    Raises ValueError where the plan cannot be said.
    """
    dialog = Dialog(task.situation, skip=skip)
    if dialog.phase is DialogPhase.SELECT:
        dialog.say(selected or dialog.reply_selecting(step.skill for step in plan.steps))
    advise(dialog, task)
    _say(dialog, task, plan)
    return dialog


def advise(dialog: Dialog, task: TaskPlans) -> None:
    """The rule's first suggestion as a turn before the policy's own: what it has to beat, or to
    repeat."""
    start = len(dialog.words)
    _say(dialog, task, task.plans[0])
    dialog.heard(EvalStatus.PASSED)  # nobody has measured it yet
    dialog.disown(start)


def _say(dialog: Dialog, task: TaskPlans, plan: MeasuredPlan) -> None:
    """One turn. Raises ValueError where the plan cannot be said."""
    for count, step in enumerate(plan.steps, 1):
        dialog.say(dialog.reply_for(step))
        show(dialog, task, plan.keys[:count])
    if dialog.phase is DialogPhase.STEP:
        dialog.say(STOP)
    if dialog.steps != plan.steps:
        raise ValueError("the engine refuses one of its steps")


def show(dialog: Dialog, task: TaskPlans, keys: tuple[str, ...]) -> None:
    """What the engine answers to the step that was said last."""
    viewed = task.views[keys]
    if viewed is None:
        dialog.refused()
    else:
        dialog.saw(viewed)


def nameless(task: TaskPlans) -> TaskPlans:
    """Its skills are called a, b, c, … by their first sites: for the arm that knows no skills."""
    names: dict[str, str] = {}

    def hidden(one: T) -> T:
        return replace(one, skill=names.setdefault(one.skill, chr(ord("a") + len(names) % 26)))

    sites = tuple(map(hidden, task.situation.sites))
    known = {
        key: hidden(step)
        for plan in task.plans
        for key, step in zip(plan.keys, plan.steps, strict=True)
    }
    keys = {key: key_of(step) for key, step in known.items()}
    return replace(
        task,
        situation=replace(task.situation, sites=sites),
        plans=tuple(
            replace(
                plan,
                steps=tuple(known[key] for key in plan.keys),
                keys=tuple(keys[key] for key in plan.keys),
            )
            for plan in task.plans
        ),
        views={
            tuple(keys[key] for key in path): viewed
            and replace(viewed, sites=tuple(map(hidden, viewed.sites)))
            for path, viewed in task.views.items()
            if all(k in keys for k in path)
        },
    )


def shuffle_sites(task: TaskPlans, draw: random.Random) -> TaskPlans:
    """Its sites in another order, before and after every step: the same task in other words."""

    def mixed(sites: Sequence[Site]) -> tuple[Site, ...]:
        return tuple(draw.sample(sites, len(sites)))

    told_first = task.situation.sites[:MAX_FIRST_SITES]
    sites = (*mixed(told_first), *task.situation.sites[MAX_FIRST_SITES:])
    views = {
        keys: viewed and replace(viewed, sites=mixed(viewed.sites))
        for keys, viewed in task.views.items()
    }
    return replace(task, situation=replace(task.situation, sites=sites), views=views)


# --- making ---------------------------------------------------------------------------------------


def make(trajectory: Trajectory, source: str, capability: str | None) -> tuple[Json | None, Tally]:
    """One task as JSON; None: the tally says why. Runs an engine's session in this very process."""
    from kernel_lsp import skillbook
    from kernel_lsp.records import Program, TargetKind, Workload
    from kernel_lsp.rewrite.engine import EngineSession

    tally = Tally()
    tally.read = len(trajectory.turns)
    executable = [
        skill for skill in skillbook.load(skillbook.folders(())).skills if skill.executable
    ]
    program = Program(source=source, entry=trajectory.entry, kind=TargetKind.MODULE)
    workload = wire.from_json(Workload, trajectory.workload)
    try:
        session = EngineSession(program, workload, trajectory.device, executable)
        capture = session.capture()
        first = asyncio.run(ruling.first(session, capture.sites))
        situation = situation_of(capture, trajectory.device, capability)
    except KernelLspError as error:
        tally.skip(NO_CAPTURE, f"{trajectory.task_name}: {error}")
        return None, tally
    if situation is None:
        tally.skip(NO_CAPTURE, str(trajectory.task_name))
        return None, tally
    views: dict[tuple[str, ...], Viewed | None] = {}
    plans = tuple(_plans(trajectory, first))
    shown = TaskPlans(
        name=str(trajectory.task_name),
        family=str(trajectory.family),
        situation=replace(situation, sites=_bare(situation.sites)),
        plans=plans,
        views=views,
        before=session.view([]).cost,
        current=bool(plans) and ruling.places(plans[0].steps) == first,
    )
    kept = []
    for plan in shown.plans:
        for count in range(1, len(plan.steps) + 1):
            if plan.keys[:count] not in views:
                views[plan.keys[:count]] = _view_steps(session, plan.steps[:count])
        try:
            encode_plan(shown, plan)
        except ValueError as error:
            tally.skip(NOT_OFFERED, f"{shown.name}: {error}")
        else:
            kept.append(plan)
    if len(kept) < 2 or kept[0] is not shown.plans[0]:
        tally.skip(TOO_FEW if len(kept) < 2 else NO_RULE, shown.name)
        return None, tally
    tally.kept = len(kept)
    return _json(replace(shown, plans=tuple(kept))), tally


def _plans(trajectory: Trajectory, first: PlanPlaces) -> list[MeasuredPlan]:
    """Only what was judged: a failure is a lesson, what could not be judged is none. What the rule
    suggests first comes first, where it was measured; else what it suggested then."""
    found = [
        MeasuredPlan(
            steps=turn.steps,
            keys=tuple(map(key_of, turn.steps)),
            outcome=_time_outcome(turn.outcome),
            rule=turn.model == NAME,
        )
        for turn in trajectory.policy_turns
        if turn.steps and turn.outcome.status is not TurnStatus.NOT_RUN
    ]
    same = [plan for plan in found if ruling.places(plan.steps) == first]
    head = sorted(same, key=lambda plan: not plan.rule)[:1]
    return [*head, *(plan for plan in found if plan not in head)]


def _time_outcome(outcome: TurnOutcome) -> TurnOutcome:
    """With an interval where only medians of one race are known."""
    found = replace(outcome, complaint="")
    eager, own = outcome.baseline_ms.get("eager"), outcome.candidate_ms
    if outcome.speedups or not outcome.correct or not eager or not own:
        return found
    mid = eager / own
    return replace(
        found,
        speedups={"eager": Interval(low=mid / RACE_SCATTER, mid=mid, high=mid * RACE_SCATTER)},
    )


def _view_steps(session: Any, steps: Sequence[Step]) -> Viewed | None:
    try:
        found: Viewed = session.view(list(steps))
    except RewriteError:
        return None
    return replace(found, sites=_bare(found.sites))


def _bare(sites: Iterable[Site]) -> tuple[Site, ...]:
    """Without what a dialog never tells."""
    sound = (site for site in sites if all(proof.holds for proof in site.proofs))
    return tuple(replace(site, proofs=(), summary="", kind="") for site in sound)


# --- files ----------------------------------------------------------------------------------------


def _json(task: TaskPlans) -> Json:
    """Views are encoded once each: most prefixes of a task's plans lead to the same."""
    unique: dict[str, int] = {}
    numbers: dict[tuple[str, ...], int] = {}
    for keys, viewed in task.views.items():
        text = "null" if viewed is None else wire.dumps(viewed)
        numbers[keys] = unique.setdefault(text, len(unique))
    return {
        "name": task.name,
        "family": task.family,
        "situation": wire.to_json(task.situation),
        "before": wire.to_json(task.before),
        "current": task.current,
        "views": [json.loads(text) for text in unique],
        "plans": [
            {
                "steps": wire.to_json(list(plan.steps)),
                "seen": [numbers[plan.keys[: count + 1]] for count in range(len(plan.steps))],
                "outcome": wire.to_json(plan.outcome),
                "rule": plan.rule,
            }
            for plan in task.plans
        ],
    }


def _task(record: Json) -> TaskPlans:
    known = [None if one is None else wire.from_json(Viewed, one) for one in record["views"]]
    plans, views = [], {}
    for one in record["plans"]:
        steps = wire.from_json(tuple[Step, ...], one["steps"])
        keys = tuple(map(key_of, steps))
        views.update({keys[: i + 1]: known[number] for i, number in enumerate(one["seen"])})
        outcome = wire.from_json(TurnOutcome, one["outcome"])
        plans.append(MeasuredPlan(steps=steps, keys=keys, outcome=outcome, rule=one["rule"]))
    return TaskPlans(
        name=record["name"],
        family=record["family"],
        situation=wire.from_json(Situation, record["situation"]),
        plans=tuple(plans),
        views=views,
        before=wire.from_json(CallCost, record["before"]) if record.get("before") else None,
        current=record.get("current", True),
    )


def save(made: Sequence[Json], path: Path, about: Json) -> None:
    """Writes what was shown of tasks to a packed file, in one step; ``about``: where it comes
    from."""
    text = json.dumps({"schema_version": SCHEMA, "kind": "shown", **about, "tasks": list(made)})
    replace_file(path, lzma.compress(text.encode()))


def load(path: Path) -> list[TaskPlans]:
    """Raises ConfigError for what is no such file."""
    try:
        data = json.loads(lzma.decompress(path.read_bytes()))
        if (data["kind"], data["schema_version"]) != ("shown", SCHEMA):
            raise ValueError(f"kind {data['kind']!r}, schema {data['schema_version']!r}")
        return [_task(one) for one in data["tasks"]]
    except (OSError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        cause = f"{path} holds no measured plans: {type(error).__name__}: {error}"
        raise ConfigError(cause, "make it with python -m trainer.policies.plan_data") from error


def run(options: argparse.Namespace) -> int:
    """Shows the plans of recorded tables and writes them to ``out``; the exit code: 1 where none was left."""
    tally = Tally()
    suites = [task_suites.load(folder) for folder in options.tasks]
    grant = Grant(own=True, unchanged=options.unchanged)
    asked = [one for path in options.table for one in tables.read(path, suites, grant, tally)]
    for one in tally.skipped:
        print(f"left out: {one.count} x {one.reason} ({', '.join(one.examples[:2])})")
    made, left = [], Tally()
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(make, one, str(one.program), options.capability) for one in asked]
        for number, job in enumerate(jobs, 1):
            found, own = job.result()
            made += [found] if found else []
            left.read, left.kept = left.read + own.read, left.kept + own.kept
            for one in own.skipped:
                left.skip(one.reason, one.examples[0] if one.examples else "", one.count)
            if number % 50 == 0:
                print(f"{number} of {len(jobs)} tasks", flush=True)
    for one in left.skipped:
        print(f"left out: {one.count} x {one.reason} ({', '.join(one.examples[:2])})")
    if not made:
        print("nothing was written", file=sys.stderr)
        return 1
    save(
        made,
        options.out,
        {"device": asked[0].device_name, "versions": wire.to_json(asked[0].versions)},
    )
    size = options.out.stat().st_size / 1e6
    plans = median(len(one["plans"]) for one in made)
    print(
        f"{len(made)} tasks, {left.kept} plans (median {plans:.0f}) in {options.out}, {size:.1f} MB"
    )
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tasks", type=Path, action="append", required=True, help="a folder of tasks"
    )
    parser.add_argument(
        "--table", type=Path, action="append", required=True, help="recorded evaluations"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--capability", default="sm_90", help="of the device that was recorded on")
    parser.add_argument(
        "--unchanged", action="store_true", help="the tasks are those that were recorded"
    )
    try:
        sys.exit(run(parser.parse_args()))
    except KernelLspError as error:
        sys.exit(f"shown: {error}")


if __name__ == "__main__":
    main()
