"""Measured plans of Triton kernels, each with the state that it leads to: what a policy for
kernels learns.

    python -m trainer.policies.launches --table plans.json --tasks kernels/ --out launches.json.xz
    python -m trainer.policies.launches --journal journal.db --out sessions.json.xz  # logged sessions: --own

A table of `trainer.tasks.recording` and a journal have steps and times. Here every plan is applied once
more, on fake tensors in this very process, and described by a `KernelView`: what the product's question
is made of (prompt_encoding/launching.py). Plans that the engine refuses today are left out with a
count; what people did with a plan comes along. Not covered: graphs (plan_data.py)."""

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from kernel_lsp import wire
from kernel_lsp.agents.plan import NAME
from kernel_lsp.errors import ConfigError, KernelLspError, RewriteError
from kernel_lsp.files import replace_file
from kernel_lsp.records import Json, KernelView, Step
from trainer.algorithms import rewards
from trainer.data import corpora, logged_kernels, tables
from trainer.data.reading import Grant
from trainer.policies import ruling
from trainer.records import Human, ModelTurn, Tally, Trajectory, TurnOutcome, TurnStatus
from trainer.tasks import task_suites
from trainer.tasks.task_suites import TaskSuite, TrainingTask

SCHEMA = 1
REFUSED = "a plan that the engine refuses today"
UNTIMED = "a plan that is right and was never timed"
NO_KERNEL = "a task whose kernel cannot be opened"
TOO_FEW = "a task with fewer than two plans that can be encoded"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLaunchPlan:
    """One measured plan."""

    steps: tuple[Step, ...]
    view: KernelView
    """Of the kernel after these steps."""
    speedup: float | None
    """Over the kernel as it is; None: it failed."""
    rule: bool
    """The rule proposed it when plans were recorded."""
    liking: float = 0.0
    """Mean of what people did with it (rewards.HUMAN); 0: nobody said anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelPlans:
    """One kernel with its plans."""

    name: str
    family: str
    before: KernelView
    first: int | None
    """Place of what the rule suggests first today; None: that was not measured."""
    plans: tuple[MeasuredLaunchPlan, ...]
    device_name: str | None = None
    """Of the GPU that measured; None: unknown."""

    @property
    def best(self) -> float:
        """The kernel as it is counts too."""
        return max(1.0, *(plan.speedup or 0.0 for plan in self.plans))


# --- making ---------------------------------------------------------------------------------------


def make(trajectories: Sequence[Trajectory], task: TrainingTask) -> tuple[Json | None, Tally]:
    """One task, by all that was measured of it, as JSON; None: the tally says why."""
    from kernel_lsp import skillbook
    from kernel_lsp.rewrite.engine import open_session

    tally = Tally()
    turns = [turn for one in trajectories for turn in one.policy_turns]
    tally.read = len(turns)
    executable = [
        skill for skill in skillbook.load(skillbook.folders(())).skills if skill.executable
    ]
    try:
        session: Any = open_session(task.program, task.workload, "cuda", executable)
        before, capture = session.launched([]), session.capture()
        first = asyncio.run(ruling.first(session, capture.sites))
    except KernelLspError as error:
        tally.skip(NO_KERNEL, f"{task.name}: {error}")
        return None, tally
    plans = tuple(_plans(task.name, turns, session, tally))
    if len(plans) < 2:
        tally.skip(TOO_FEW, task.name)
        return None, tally
    same = [place for place, plan in enumerate(plans) if ruling.places(plan.steps) == first]
    head = min(same, key=lambda place: not plans[place].rule, default=None)
    made = KernelPlans(
        name=task.name,
        family=task.family,
        before=before,
        first=head,
        plans=plans,
        device_name=trajectories[0].device_name,
    )
    tally.kept = len(plans)
    return wire.to_json(made), tally


def _plans(
    task: str, turns: Sequence[ModelTurn], session: Any, tally: Tally
) -> Iterator[MeasuredLaunchPlan]:
    """Those that were judged and can be encoded, each once."""
    same: dict[str, list[ModelTurn]] = {}
    for turn in turns:
        if turn.steps and turn.outcome.status is not TurnStatus.NOT_RUN:
            same.setdefault(wire.dumps(list(turn.steps)), []).append(turn)
    for found in same.values():
        first, right = found[0], all(turn.outcome.correct for turn in found)
        speeds = [speed for turn in found if (speed := _speedup(turn.outcome)) is not None]
        if right and not speeds:
            tally.skip(UNTIMED, task)
            continue
        try:
            view = session.launched(list(first.steps))
        except RewriteError as error:
            tally.skip(REFUSED, f"{task}: {error}")
            continue
        yield MeasuredLaunchPlan(
            steps=first.steps,
            view=view,
            speedup=median(speeds) if right else None,
            rule=any(turn.model == NAME for turn in found),
            liking=liking([turn.human for turn in found]),
        )


def _speedup(outcome: TurnOutcome) -> float | None:
    """Over the kernel as it is; None: it failed, or was not timed."""
    eager, own = outcome.baseline_ms.get("eager"), outcome.candidate_ms
    return eager / own if outcome.correct and eager and own else None


def liking(said: Sequence[Human | None]) -> float:
    """Mean of what people did with a plan that was offered to some of them."""
    known = [rewards.HUMAN[one] for one in said if one is not None]
    return fmean(known) if known else 0.0


def read(options: argparse.Namespace) -> tuple[list[Json], Tally]:
    """Every task of the tables and journals, in their order."""
    suites, left = [task_suites.load(folder) for folder in options.tasks], Tally()
    measured: dict[tuple[str, str | None], tuple[TrainingTask, list[Trajectory]]] = {}
    known = logged_kernels.known_tasks(suites)
    for one in _trajectories(options, suites, left):
        task = logged_kernels.task_of(one, known)
        if isinstance(task, str):
            left.skip(task, one.origin)
        else:
            measured.setdefault((task.id, one.device_name), (task, []))[1].append(one)
    made = []
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(make, found, task) for task, found in measured.values()]
        for number, job in enumerate(jobs, 1):
            found, own = job.result()
            made += [found] if found else []
            left.kept += own.kept
            for skipped in own.skipped:
                left.skip(skipped.reason, next(iter(skipped.examples), ""), skipped.count)
            if number % 50 == 0:
                print(f"{number} of {len(jobs)} tasks", file=sys.stderr, flush=True)
    return made, left


def _trajectories(
    options: argparse.Namespace, suites: Sequence[TaskSuite], left: Tally
) -> Iterator[Trajectory]:
    for path in options.table:
        yield from tables.read(path, suites, Grant(own=True), left)
    if options.journal:
        corpus = corpora.read(journals=options.journal, suites=suites, grant=Grant(own=options.own))
        for one in corpus.skipped:
            left.skip(one.reason, next(iter(one.examples), ""), one.count)
        yield from corpus.trajectories


# --- files ----------------------------------------------------------------------------------------


def save(made: Sequence[Json], path: Path) -> None:
    """Writes recorded launches to a packed file, in one step."""
    text = json.dumps({"schema_version": SCHEMA, "kind": "launches", "tasks": list(made)})
    replace_file(path, lzma.compress(text.encode()))


def load(path: Path) -> list[KernelPlans]:
    """Raises ConfigError for what is no such file."""
    try:
        data = json.loads(lzma.decompress(path.read_bytes()))
        if (data["kind"], data["schema_version"]) != ("launches", SCHEMA):
            raise ValueError(f"kind {data['kind']!r}, schema {data['schema_version']!r}")
        return [wire.from_json(KernelPlans, one) for one in data["tasks"]]
    except (OSError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        cause = f"{path} holds no measured launches: {type(error).__name__}: {error}"
        raise ConfigError(cause, "make it with python -m trainer.policies.launches") from error


def main() -> int:
    """Writes the measured plans; the exit code: 1 where none was left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--table", type=Path, action="append", default=[], help="of trainer.tasks.recording"
    )
    parser.add_argument(
        "--journal", action="append", default=[], help="a file, or a database's address"
    )
    parser.add_argument(
        "--own", action="store_true", help="rows without a recorded consent are mine"
    )
    parser.add_argument(
        "--tasks", type=Path, action="append", default=[], help="a folder of kernels"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    if not (options.table or options.journal):
        parser.error("name what was measured: --table or --journal")
    try:
        made, left = read(options)
    except KernelLspError as error:
        sys.exit(f"launches: {error}")
    save(made, options.out)
    print(f"{len(made)} kernels, {left.kept} plans: {options.out}")
    for one in left.skipped:
        print(f"  left out {one.count:5d}: {one.reason} ({', '.join(one.examples[:2])})")
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())
