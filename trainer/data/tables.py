"""Recorded evaluations as trajectories: task, steps and times, measured once on a lent device.

Read are results of `kernel-lsp bench` (benchmarks/results/suite-*.json), spaces of parameters
(benchmarks/record_spaces.py), and tables of our own: ``{"schema_version": 1, "kind":
"evaluations", "device", "device_name", "versions", "tasks": {name: {"reference": sha256 of the
file, "baseline_ms": {…}, "rows": [{"steps": […], "status", "speedups": {baseline: {"low", "mid",
"high"}}, "ms", "candidate", "seconds"}]}}}``. A table is about tasks of suites that are given with
it: theirs is the program, and where its hash is another one than was measured, the task is left
out. Not covered: prompts; there were none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp import wire
from kernel_lsp.agents.tools import APPLY
from kernel_lsp.errors import ConfigError
from kernel_lsp.records import Interval, Json, Step, ToolCall
from trainer.data.reading import CHANGED, UNREADABLE, Grant
from trainer.records import (
    Agent,
    ModelTurn,
    Permission,
    Tally,
    Trajectory,
    TrajectorySource,
    TurnOutcome,
    TurnStatus,
    Versions,
)
from trainer.tasks.task_suites import TaskSuite, TrainingTask, digest

UNKNOWN = "no task of this name in the suites that were given"
UNHASHED = "the table has no hash of its task (--unchanged says that the files are the same)"


def read(
    path: Path, suites: Sequence[TaskSuite], grant: Grant, tally: Tally
) -> Iterator[Trajectory]:
    """One trajectory per task. Raises ConfigError where there is no table to be read."""
    table = _load(path)
    known = {name: task for suite in suites for name, task in suite.by_name.items()}
    for name, entry in table["tasks"].items():
        rows = list(_rows(entry)) if isinstance(entry, dict) else []
        tally.read += max(1, len(rows))
        task = known.get(name.removesuffix(".py"))
        turns = [turn for place, row in enumerate(rows) if (turn := _turn(row, place, entry))]
        if problem := _problem(task, entry, grant):
            tally.skip(problem, name, max(1, len(rows)))
        elif not rows:
            tally.skip("nothing was tried on it", name)
        elif task is not None:
            if len(turns) < len(rows):
                tally.skip(UNREADABLE, name, len(rows) - len(turns))
            if turns:
                yield _trajectory(table, task, entry, turns)


def _load(path: Path) -> Json:
    """The table, its tasks by name. Raises ConfigError."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return {**table, "name": path.name, "tasks": dict(table["tasks"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no table of evaluations: {error!r}", "see trainer/data/tables.py"
        ) from error


def _problem(task: TrainingTask | None, entry: Any, grant: Grant) -> str | None:
    if task is None:
        return UNKNOWN
    measured = entry.get("reference") if isinstance(entry, dict) else None
    if measured is None:
        return None if grant.unchanged else UNHASHED
    return None if measured in (digest(task.source), task.fingerprint, task.id) else CHANGED


def _rows(entry: Json) -> Iterator[Json]:
    """Of any of the three forms: {"steps", "status", "speedups", "ms", "detail"}."""
    yield from entry.get("rows", ())
    yield from entry.get("rejected", ())
    if offered := entry.get("offered"):
        yield {"status": "passed", "speedups": entry["speedups"], "ms": entry["ms"], **offered}
    for point, name, milliseconds, reason in entry.get("combinations", ()):
        steps = [dict(step, parameters=dict(step["parameters"])) for step in entry["steps"]]
        for axis, chosen in zip(entry["axes"], point, strict=True):
            steps[axis["step"]]["parameters"][axis["name"]] = axis["choices"][chosen]
        times = {"eager": entry["original_ms"]} | (
            {"candidate": milliseconds} if milliseconds else {}
        )
        status = (
            "passed" if milliseconds else "wrong_result" if "differ" in reason else "runtime_error"
        )
        yield {"steps": steps, "status": status, "ms": times, "candidate": name, "detail": reason}


def _turn(row: Json, number: int, entry: Json) -> ModelTurn | None:
    try:
        steps = tuple(wire.from_json(Step, step) for step in row["steps"])
        status = TurnStatus(row["status"])
        passed = status is TurnStatus.PASSED
        speedups = {k: wire.from_json(Interval, v) for k, v in row.get("speedups", {}).items()}
        times = {**entry.get("baseline_ms", {}), **row.get("ms", {})}
        outcome = TurnOutcome(
            status=status,
            correct=None if status is TurnStatus.NOT_RUN else passed,
            speedups=speedups if passed else {},
            complete=len(speedups) > 1,
            candidate_ms=times.pop("candidate", None),
            baseline_ms={name: float(value) for name, value in times.items()},
            evaluation_s=row.get("seconds"),
            complaint=str(row.get("detail", "")),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    calls = (
        ToolCall(
            name=APPLY,
            arguments={"skill": s.skill, "site": s.site, "parameters": dict(s.parameters)},
        )
        for s in steps
    )
    return ModelTurn(
        number=number,
        agent=Agent.POLICY,
        calls=tuple(calls),
        steps=steps,
        outcome=outcome,
        candidate=row.get("candidate"),
        model=row.get("proposer"),
        seconds=row.get("seconds"),
    )


def _trajectory(
    table: Json, task: TrainingTask, entry: Json, turns: Sequence[ModelTurn]
) -> Trajectory:
    device_name = table.get("device_name") or entry.get("device_name") or table.get("device")
    device = table.get("device")
    found = table.get("versions") or entry.get("environment") or table
    return Trajectory(
        id="",
        task=task.id,
        task_name=task.name,
        entry=task.program.entry,
        family=task.family,
        program=task.program.source,
        workload=wire.to_json(task.workload),
        device=device if device in ("cuda", "cpu") else "cuda" if device_name else "cpu",
        device_name=device_name,
        versions=Versions(
            **{
                key: found[key]
                for key in ("kernel_lsp", "torch", "triton", "python")
                if found.get(key)
            }
        ),
        source=TrajectorySource.TABLE,
        origin=f"{table['name']}#{task.name}",
        rollout=f"{table['name']}#{task.name}",
        turns=tuple(turns),
        permission=Permission(
            training=True, source=True, redacted=True, because="a task of our own suite"
        ),
    )
