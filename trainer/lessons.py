"""What a table of measured plans teaches beyond the rule: drafts of skills, with what speaks for them.

Of each task the first plan is the rule's first suggestion (recording.py). Plans with the same steps and other
parameters show what a value is worth: since they change several at once, ln(first / plan) is regressed on the
values that differ (ridge, all kinds of sites together), and a value is worth what is left of it task by task.
Plans of other steps are put together by their steps and by what they do without. Both are looked at in cells
(width of numbers, size), and what was better on average is a draft for such programs.
All of it is a guess about other tasks, and the best of many guesses: what a draft is worth is shown by
verification (pipeline/proving). Not covered: where tables come from; which tasks verify
(benchmarks/learned_skills.py).
"""

from __future__ import annotations

import functools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernel_lsp.agents import summary_rule
from kernel_lsp.agents.summary_rule import Seen, anchors, generalized, parameters
from kernel_lsp.library import uplift
from kernel_lsp.records import ArgSpec, Bounds, RecipeStep, Requirements, SkillDraft, Step
from kernel_lsp.skillbook.conditions import elements, layout
from trainer.records import Trajectory
from trainer.tasks import SuiteTask

LEAST_TASKS = 4
"""That speak for a draft."""
WORTH, SURE = 0.008, -0.03
"""ln of the speedup that a draft is expected to gain at least where it changes something, and its lower
bound: below zero, because verification decides, and its tasks are found before without a GPU."""
RIDGE = 1.0
WILD = 0.7
"""ln: beyond a factor of two a plan counts as one of two, so that one task does not decide."""
SIZES = (2**18, 2**20, 2**22)
"""Elements of the largest input: what is best depends on them by such steps."""

Kind = tuple[str, tuple[str, ...]]
"""Skill, and the operations of the site that are not pointwise."""
Value = tuple[Kind, str, str]
"""Of a parameter, as JSON."""
Cell = tuple[str, ...]
"""Programs of one sort."""


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


Evidence = tuple[Measured, float]
"""A task and the ln(speedup) over the rule's first suggestion there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taught:
    draft: SkillDraft
    expected: float
    """Mean ln of the speedup over the first suggestion, on tasks where it changes something."""
    low: float
    """Its lower bound over tasks (library.uplift.bounds); the best of many looks better than it is."""
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
    """The tensors that a kernel is launched with, or that get_inputs() of one of our own tasks makes, without
    making them."""
    if task.workload.inputs is not None:
        return tuple(spec for spec in task.workload.inputs if spec.shape is not None)
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
    """Drafts, those that are surest first. ``seen``: the device; inputs are those of the tasks."""
    found: dict[str, Taught] = {}
    for one in sorted((*_ordered(table, seen), *_tuned(table, seen)), key=lambda one: -one.low):
        found.setdefault(one.draft.name, one)
    return list(found.values())


def cells(one: Measured) -> list[Cell]:
    """All programs, those of its width of numbers, of its size, of both."""
    half = any(spec.dtype in ("float16", "bfloat16") for spec in one.inputs)
    width = "16 bit" if half else "32 bit"
    size = next((f"below {bound}" for bound in SIZES if one.elements < bound), "large")
    return [(), (width,), (size,), (width, size)]


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


def worth(table: Iterable[Measured], *, near: bool) -> dict[Value, dict[str, float]]:
    """Of each value, by task, the ln(speedup) against the rule's choice that is left when the effects of what
    else differed are taken away. ``near``: sites of other operations are other kinds."""
    rows: list[tuple[str, set[Value], float]] = []
    for one in table:
        for steps, gain in one.others:
            if values := changed(one.first, steps):
                told: set[Value] = {((skill, ops if near else ()), n, v) for (skill, ops), n, v in values}
                rows.append((one.task.name, told, min(max(gain, -WILD), WILD)))
    every = sorted({value for _, own, _ in rows for value in own})
    places = {value: place for place, value in enumerate(every)}
    matrix = np.zeros((len(rows), len(places)))
    for number, (_, own, _) in enumerate(rows):
        matrix[number, [places[value] for value in own]] = 1.0
    gains = np.array([gain for _, _, gain in rows])
    square = matrix.T @ matrix + RIDGE * np.eye(len(places))
    effects: NDArray[np.float64] = np.linalg.solve(square, matrix.T @ gains)
    left = gains - matrix @ effects
    found: dict[Value, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, (name, own, _) in enumerate(rows):
        for value in own:
            found[value][name].append(float(left[number] + effects[places[value]]))
    return {value: {name: fmean(all_) for name, all_ in of.items()} for value, of in found.items()}


def _tuned(table: Sequence[Measured], seen: Seen) -> Iterator[Taught]:
    by_name = {one.task.name: one for one in table}
    for near in (True, False):
        for (kind, name, value), of_task in worth(table, near=near).items():
            step = RecipeStep(
                skill=kind[0], covers=kind[1], parameters={name: json.loads(value)}, planned=True
            )
            told = [(by_name[task], gain) for task, gain in of_task.items()]
            yield from _sure(told, functools.partial(_taught, (step,), seen=seen))


def _sure(told: Sequence[Evidence], make: Callable[[Sequence[Evidence]], Taught | None]) -> Iterator[Taught]:
    """What is worth trying, in every cell that has enough tasks."""
    of_cell: dict[Cell, list[Evidence]] = defaultdict(list)
    for one, gain in told:
        for cell in cells(one):
            of_cell[cell].append((one, gain))
    for part in of_cell.values():
        if len(part) >= LEAST_TASKS and (made := make(part)) and made.expected >= WORTH and made.low >= SURE:
            yield made


# --- other steps ---------------------------------------------------------------------------------


def _ordered(table: Iterable[Measured], seen: Seen) -> Iterator[Taught]:
    """Steps instead of others that the rule suggests first, with what all such plans had in common."""
    found: dict[Any, dict[str, tuple[Measured, list[tuple[Sequence[Step], float]]]]] = {}
    for one in table:
        usual = {step.skill for step in one.first}
        for steps, gain in one.others:
            if _same_places(one.first, steps):
                continue
            mine = {step.skill for step in steps}
            order = tuple((step.skill, step.every) for step in generalized(steps))
            for lost in (None, *sorted(usual - mine)):
                key = order, lost, tuple(sorted(mine - usual))
                plans = found.setdefault(key, {}).setdefault(one.task.name, (one, []))[1]
                plans.append((steps, min(max(gain, -WILD), WILD)))
    for (_, lost, new), of_task in found.items():
        plans_of = {name: plans for name, (_, plans) in of_task.items()}
        told = [(one, fmean(gain for _, gain in plans)) for one, plans in of_task.values()]

        def make(
            part: Sequence[Evidence],
            plans_of: Any = plans_of,
            lost: str | None = lost,
            new: tuple[str, ...] = new,
        ) -> Taught | None:
            every = [generalized(steps) for one, _ in part for steps, _ in plans_of[one.task.name]]
            return _taught(_agreed([*map(list, every)]), part, seen, (lost,) if lost else (), new)

        yield from _sure(told, make)


def _agreed(recipes: Sequence[Sequence[RecipeStep]]) -> tuple[RecipeStep, ...]:
    """One order with what all of these have."""
    first, *others = recipes
    return tuple(
        replace(
            step,
            covers=tuple(c for c in step.covers if all(c in other[place].covers for other in others)),
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
    recipe: tuple[RecipeStep, ...],
    part: Sequence[Evidence],
    seen: Seen,
    planned: tuple[str, ...] = (),
    unplanned: tuple[str, ...] = (),
) -> Taught | None:
    """None: too few tasks for a bound."""
    found = uplift.bounds([gain for _, gain in part])
    if found is None:
        return None
    ranked = [one for one, _ in sorted(part, key=lambda pair: (-pair[1], pair[0].task.name))]
    draft = summary_rule.drafted(recipe, replace(seen, inputs=ranked[0].inputs), planned, unplanned)
    asked = replace(_joined(ranked, seen), planned=planned, unplanned=unplanned)
    return Taught(
        draft=replace(draft, requires=asked),
        expected=found.mean,
        low=found.low,
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
