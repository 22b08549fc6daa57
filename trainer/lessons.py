"""What a table of measured plans teaches beyond the rule: drafts of skills, with what speaks for them.

Of each task the first plan is the rule's first suggestion (recording.py). Plans with the same steps and other
parameters show what a value is worth: since they change several at once, ln(first / plan) is regressed on the
values that differ (ridge, all kinds of sites together), and the best values of a kind of site are a draft.
Plans of other steps are put together by their steps, and those that were faster on average are drafts too.
All of it is a guess about other tasks: what a draft is worth is shown by verification (pipeline/proving.py).
Not covered: where tables come from; which tasks teach and which verify (benchmarks/learned_skills.py).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernel_lsp.agents import summary_rule
from kernel_lsp.agents.summary_rule import Seen, anchors, generalized, parameters
from kernel_lsp.records import ArgSpec, Bounds, Json, RecipeStep, Requirements, SkillDraft, Step
from kernel_lsp.skillbook.conditions import elements, layout
from trainer.records import Trajectory
from trainer.tasks import SuiteTask

LEAST_TASKS = 4
"""That speak for a draft."""
WORTH_A_VALUE, WORTH = 0.01, 0.02
"""ln of the speedup that a value, and a draft, are expected to gain where they change something."""
RIDGE = 1.0
WILD = 0.7
"""ln: beyond a factor of two it is another algorithm, not a better parameter."""
HALVES = 10
"""Tasks of a kind from which small and large ones are looked at apart, too."""

Kind = tuple[str, tuple[str, ...]]
"""Skill, and the operations of the site that are not pointwise."""
Value = tuple[Kind, str, str]
"""Of a parameter, as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One task of a table."""

    task: SuiteTask
    inputs: tuple[ArgSpec, ...]
    first: tuple[Step, ...]
    others: tuple[tuple[tuple[Step, ...], float], ...]
    """Steps, ln(time of the first / their time)."""

    @property
    def elements(self) -> int:
        return max(map(elements, self.inputs), default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Taught:
    draft: SkillDraft
    expected: float
    """Mean ln of the speedup over the first suggestion, on tasks where it changes something."""
    tasks: tuple[SuiteTask, ...]
    """That speak for it, the one with the largest gain first."""
    instead_of: tuple[Step, ...]
    """What the rule had suggested for that one."""


def measured(trajectory: Trajectory, task: SuiteTask) -> Measured | None:
    """None: its first plan did not run, or nothing else did."""
    first, *others = trajectory.turns
    bar = first.outcome.candidate_ms
    if not bar or not first.outcome.correct:
        return None
    known = [
        (turn.steps, math.log(bar / turn.outcome.candidate_ms))
        for turn in others
        if turn.outcome.correct and turn.outcome.candidate_ms
    ]
    inputs = inputs_of(task)
    return Measured(task=task, inputs=inputs, first=first.steps, others=tuple(known)) if known else None


def inputs_of(task: SuiteTask) -> tuple[ArgSpec, ...]:
    """The tensors that get_inputs() of one of our own tasks makes, without making them."""
    names: dict[str, Any] = {}
    with torch.device("meta"):
        exec(compile(task.source, str(task.path), "exec"), names)
        made = names["get_inputs"]()
    return tuple(
        ArgSpec(
            name=None,
            dtype=str(one.dtype).removeprefix("torch."),
            shape=tuple(one.shape),
            stride=None if one.is_contiguous() else tuple(one.stride()),
        )
        for one in made
        if isinstance(one, torch.Tensor)
    )


def taught(table: Sequence[Measured], seen: Seen) -> list[Taught]:
    """Drafts, most promising first. ``seen``: the device; inputs are those of the tasks."""
    found = {one.draft.name: one for one in (*_ordered(table, seen), *_tuned(table, seen))}
    return sorted(found.values(), key=lambda one: (-one.expected, one.draft.name))


# --- parameters ----------------------------------------------------------------------------------


def changed(first: Sequence[Step], steps: Sequence[Step]) -> dict[Value, int] | None:
    """Values that differ from the first plan's, and at how many sites.

    None: other steps, or another precision, which is a person's choice.
    """
    if not _same_places(first, steps):
        return None
    found: dict[Value, int] = defaultdict(int)
    for before, after in zip(first, steps, strict=True):
        if _kept_apart(before, after):
            return None
        usual = parameters(before)
        for name, value in parameters(after).items():
            if usual.get(name) != value:
                found[(after.skill, anchors(after.site)), name, json.dumps(value)] += 1
    return dict(found)


def _same_places(first: Sequence[Step], steps: Sequence[Step]) -> bool:
    return [(s.skill, s.site) for s in first] == [(s.skill, s.site) for s in steps]


def _kept_apart(before: Step, after: Step) -> bool:
    return any(before.parameters.get(n) != after.parameters.get(n) for n in summary_rule.LEFT_OUT)


def worth(table: Iterable[Measured]) -> dict[Value, float]:
    """ln(speedup) of each value against the rule's choice, where it was measured on enough tasks."""
    rows: list[dict[Value, int]] = []
    gains: list[float] = []
    met: dict[Value, set[str]] = defaultdict(set)
    for one in table:
        for steps, gain in one.others:
            if values := changed(one.first, steps):
                rows.append(values)
                gains.append(min(max(gain, -WILD), WILD))
                for value in values:
                    met[value].add(one.task.name)
    places = {value: place for place, value in enumerate(met)}
    matrix = np.zeros((len(rows), len(places)))
    for number, values in enumerate(rows):
        for value, count in values.items():
            matrix[number, places[value]] = count
    square = matrix.T @ matrix + RIDGE * np.eye(len(places))
    solved: NDArray[np.float64] = np.linalg.solve(square, matrix.T @ np.array(gains))
    return {value: float(solved[places[value]]) for value in met if len(met[value]) >= LEAST_TASKS}


def _tuned(table: Sequence[Measured], seen: Seen) -> Iterator[Taught]:
    kinds = {(step.skill, anchors(step.site)) for one in table for step in one.first if parameters(step)}
    for part in _parts(table):
        values = worth(part)
        for kind in sorted(kinds):
            mine = {value: gain for value, gain in values.items() if value[0] == kind}
            best = _best(mine)
            for chosen in {tuple(best), tuple(best[:1])}:
                if chosen and (made := _of_values(kind, chosen, mine, part, seen)) is not None:
                    yield made


def _parts(table: Sequence[Measured]) -> Iterator[Sequence[Measured]]:
    """All, and small and large tasks by themselves: what is best often depends on the size."""
    yield table
    middle = median(one.elements for one in table) if table else 0
    halves = [o for o in table if o.elements < middle], [o for o in table if o.elements >= middle]
    yield from (half for half in halves if len(half) >= HALVES)


def _best(values: dict[Value, float]) -> list[Value]:
    """Of each parameter the best value, those that gain most first."""
    names = {name for _, name, _ in values}
    best = (max((v for v in values if v[1] == name), key=lambda v: (values[v], v)) for name in names)
    return sorted((v for v in best if values[v] >= WORTH_A_VALUE), key=lambda v: (-values[v], v))


def _of_values(
    kind: Kind, chosen: Sequence[Value], gains: dict[Value, float], part: Sequence[Measured], seen: Seen
) -> Taught | None:
    expected = sum(gains[value] for value in chosen)
    told: Json = {name: json.loads(value) for _, name, value in chosen}
    near = [(one, gain) for one in part if (gain := _gain(one, chosen)) is not None]
    if expected < WORTH or len(near) < LEAST_TASKS:
        return None
    step = RecipeStep(skill=kind[0], covers=kind[1], parameters=told, planned=True)
    return _taught((step,), expected, near, seen)


def _gain(one: Measured, chosen: Sequence[Value]) -> float | None:
    """The largest of a plan that has one of these values; None: the task says nothing of them."""
    found = [gain for steps, gain in one.others if set(chosen) & set(changed(one.first, steps) or ())]
    return max(found, default=None)


# --- other steps ---------------------------------------------------------------------------------


def _ordered(table: Iterable[Measured], seen: Seen) -> Iterator[Taught]:
    """Steps that were faster than the first suggestion on average, with the parameters that all had."""
    found: dict[tuple[Any, ...], dict[str, list[tuple[Measured, Sequence[Step], float]]]] = {}
    for one in table:
        for steps, gain in one.others:
            if not _same_places(one.first, steps):
                order = tuple((step.skill, step.covers, step.every) for step in generalized(steps))
                found.setdefault(order, {}).setdefault(one.task.name, []).append((one, steps, gain))
    for of_task in found.values():
        near = [(rows[0][0], fmean(gain for _, _, gain in rows)) for rows in of_task.values()]
        expected = fmean(min(gain, WILD) for _, gain in near)
        recipe = _agreed([list(generalized(steps)) for rows in of_task.values() for _, steps, _ in rows])
        if expected >= WORTH and len(near) >= LEAST_TASKS and recipe:
            yield _taught(recipe, expected, near, seen)


def _agreed(recipes: Sequence[Sequence[RecipeStep]]) -> tuple[RecipeStep, ...]:
    """One order with what all of these have."""
    first, *others = recipes
    return tuple(
        replace(
            step,
            parameters={
                name: value
                for name, value in step.parameters.items()
                if all(other[place].parameters.get(name) == value for other in others)
            },
        )
        for place, step in enumerate(first)
    )


# --- drafts --------------------------------------------------------------------------------------


def _taught(
    recipe: tuple[RecipeStep, ...], expected: float, near: Sequence[tuple[Measured, float]], seen: Seen
) -> Taught:
    ranked = [one for one, _ in sorted(near, key=lambda pair: (-pair[1], pair[0].task.name))]
    asked = _joined(ranked, seen)
    draft = summary_rule.drafted(recipe, replace(seen, inputs=ranked[0].inputs))
    return Taught(
        draft=replace(draft, requires=asked),
        expected=expected,
        tasks=tuple(one.task for one in ranked),
        instead_of=ranked[0].first,
    )


def _joined(of: Sequence[Measured], seen: Seen) -> Requirements:
    """What held on all of these tasks, sizes as they were: several of them need no guessed margin."""
    asked = [summary_rule.requirements(replace(seen, inputs=one.inputs)) for one in of]
    layouts = {layout(spec) for one in of for spec in one.inputs}
    ranks = [one.ranks for one in asked if one.ranks]
    sizes = [one.elements for one in of]
    return replace(
        asked[0],
        dtypes=tuple(sorted({dtype for one in asked for dtype in one.dtypes})),
        layouts=tuple(sorted(layouts)),
        ranks=Bounds(least=min(r.least for r in ranks), most=max(r.most for r in ranks)) if ranks else None,
        elements=Bounds(least=min(sizes), most=max(sizes)),
    )
