"""Measured plans of Triton kernels, each with the state that it leads to: what a policy for kernels learns.

    python -m trainer.launches --table plans.json --tasks kernels/ --out launches.json.xz

A table of `trainer.recording` has steps and times. Here every plan is applied once more, on fake tensors in
this very process, and told as a `KernelView`: what the product's question is made of (compact/launching.py).
Plans that the engine refuses today are left out with a count. Not covered: graphs (shown.py).
"""

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
from typing import Any

from kernel_lsp import wire
from kernel_lsp.agents.plan import NAME
from kernel_lsp.errors import ConfigError, KernelLspError, RewriteError
from kernel_lsp.files import replace_file
from kernel_lsp.records import Json, KernelView, Step
from trainer import ruling, tables, tasks
from trainer.reading import Grant
from trainer.records import Status, Tally, Trajectory
from trainer.tasks import SuiteTask

SCHEMA = 1
REFUSED = "a plan that the engine refuses today"
NO_KERNEL = "a task whose kernel cannot be opened"
TOO_FEW = "a task with fewer than two plans that can be told"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One measured course."""

    steps: tuple[Step, ...]
    view: KernelView
    """Of the kernel after these steps."""
    speedup: float | None
    """Over the kernel as it is; None: it failed."""
    rule: bool
    """The rule proposed it when plans were recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launches:
    """One kernel with its plans."""

    name: str
    family: str
    before: KernelView
    first: int | None
    """Place of what the rule suggests first today; None: that was not measured."""
    plans: tuple[Plan, ...]

    @property
    def best(self) -> float:
        """The kernel as it is counts too."""
        return max(1.0, *(plan.speedup or 0.0 for plan in self.plans))


# --- making ----------------------------------------------------------------------------------------


def make(trajectory: Trajectory, task: SuiteTask) -> tuple[Json | None, Tally]:
    """One task as JSON; None: the tally says why."""
    from kernel_lsp import skillbook
    from kernel_lsp.rewrite.engine import opened

    tally = Tally()
    tally.read = len(trajectory.turns)
    executable = [skill for skill in skillbook.load(skillbook.folders(())).skills if skill.executable]
    try:
        session: Any = opened(task.program, task.workload, "cuda", executable)
        before, capture = session.launched([]), session.capture()
        first = asyncio.run(ruling.first(session, capture.sites))
    except KernelLspError as error:
        tally.skip(NO_KERNEL, f"{task.name}: {error}")
        return None, tally
    plans = tuple(_plans(trajectory, session, tally))
    if len(plans) < 2:
        tally.skip(TOO_FEW, task.name)
        return None, tally
    same = [place for place, plan in enumerate(plans) if ruling.places(plan.steps) == first]
    head = min(same, key=lambda place: not plans[place].rule, default=None)
    made = Launches(name=task.name, family=task.family, before=before, first=head, plans=plans)
    tally.kept = len(plans)
    return wire.to_json(made), tally


def _plans(trajectory: Trajectory, session: Any, tally: Tally) -> Iterator[Plan]:
    """Those that were judged and can be told."""
    for turn in trajectory.policy_turns:
        outcome = turn.outcome
        eager = outcome.baseline_ms.get("eager")
        if not turn.steps or outcome.status is Status.NOT_RUN or not eager:
            continue
        try:
            view = session.launched(list(turn.steps))
        except RewriteError as error:
            tally.skip(REFUSED, f"{trajectory.task_name}: {error}")
            continue
        right = outcome.correct and outcome.candidate_ms
        speedup = eager / outcome.candidate_ms if right and outcome.candidate_ms else None
        yield Plan(steps=turn.steps, view=view, speedup=speedup, rule=turn.model == NAME)


def read(options: argparse.Namespace) -> tuple[list[Json], Tally]:
    """Every task of the tables, in their order."""
    suites, left = [tasks.load(folder) for folder in options.tasks], Tally()
    known = {task.id: task for suite in suites for task in suite.tasks}
    asked = [one for path in options.table for one in tables.read(path, suites, Grant(own=True), left)]
    made = []
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(make, one, known[one.task]) for one in asked]
        for number, job in enumerate(jobs, 1):
            found, own = job.result()
            made += [found] if found else []
            left.kept += own.kept
            for one in own.skipped:
                left.skip(one.reason, one.examples[0] if one.examples else "", one.count)
            if number % 50 == 0:
                print(f"{number} of {len(jobs)} tasks", file=sys.stderr, flush=True)
    return made, left


# --- files -----------------------------------------------------------------------------------------


def save(made: Sequence[Json], path: Path) -> None:
    text = json.dumps({"schema_version": SCHEMA, "kind": "launches", "tasks": list(made)})
    replace_file(path, lzma.compress(text.encode()))


def load(path: Path) -> list[Launches]:
    """Raises ConfigError for what is no such file."""
    try:
        data = json.loads(lzma.decompress(path.read_bytes()))
        if (data["kind"], data["schema_version"]) != ("launches", SCHEMA):
            raise ValueError(f"kind {data['kind']!r}, schema {data['schema_version']!r}")
        return [wire.from_json(Launches, one) for one in data["tasks"]]
    except (OSError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        cause = f"{path} holds no measured launches: {type(error).__name__}: {error}"
        raise ConfigError(cause, "make it with python -m trainer.launches") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, action="append", required=True, help="of trainer.recording")
    parser.add_argument("--tasks", type=Path, action="append", required=True, help="a folder of kernels")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
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
