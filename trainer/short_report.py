"""What a short run's policies suggest beside the rule: on inner families, and on held-out ones by margin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from kernel_lsp.records import Json
from trainer import exact, ranking
from trainer.exact import Lesson
from trainer.intervals import of_groups
from trainer.packed import Task
from trainer.ranking import Ranked
from trainer.shown import Shown

MARGINS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 100.0)
"""Of weighings: ln(gain) that a plan must promise over the rule's."""
TALK_MARGINS = (0.0, 0.5, 1.0, 2.0, 100.0)
"""Of talks, fewer than ranking.MARGINS: each is decoded on its own."""


def first(
    tasks: Sequence[Task], scores: Mapping[int, Mapping[int, float]], margin: float, *, courses: bool
) -> float:
    """First suggestion over the rule's, geometric mean; ``courses``: among what the rule proposes."""
    gains = []
    for number, own in scores.items():
        speeds = tasks[number].speedups
        asked = [one for one in own if not courses or one == 0 or tasks[number].rules[one]]
        plan = max(asked, key=lambda one: own[one] - (margin if one else 0.0))
        gains.append(math.log(speeds[plan] or 1.0) - math.log(speeds[0] or 1.0))
    return math.exp(fmean(gains))


def ranked(
    model: Any, form: str, known: Lesson, tasks: Sequence[Task], held_out: Sequence[Shown]
) -> dict[str, dict[float, list[Ranked]]]:
    """What is asked -> margin -> the held-out tasks in the model's order."""
    if form == "talk":
        return {"all": ranking.policies(held_out, model, known.pad, TALK_MARGINS)}
    numbers = {task.name: number for number, task in enumerate(tasks)}
    scores = exact.scores(model, known, [numbers[task.name] for task in held_out])
    found = {}
    for asked in ("courses", "all"):
        found[asked] = {
            margin: [
                ordered(one, scores[numbers[one.name]], margin, courses=asked == "courses")
                for one in held_out
            ]
            for margin in MARGINS
        }
    return found


def ordered(task: Shown, scores: Mapping[int, float], margin: float, *, courses: bool) -> Ranked:
    """``courses``: what the rule did not propose comes last, since the product asks about its courses."""

    def key(place: int) -> tuple[bool, float]:
        asked = place == 0 or task.plans[place].rule or not courses
        return asked, scores[place] + (margin if place == 0 else 0.0)

    order = sorted(range(len(task.plans)), key=key, reverse=True)
    return Ranked(task=task, plans=tuple(task.plans[place] for place in order))


def report(by_margin: dict[float, list[Ranked]], tasks: Sequence[Task], held_out: Sequence[Shown]) -> Json:
    """Beside the rule of the day and the one of the recording; intervals also over families."""
    chosen, margin = ranking.crossed(by_margin)
    numbers = {task.name: task for task in tasks}
    rule = ranking.rule(held_out)
    then = [
        replace(one, plans=(one.task.plans[numbers[one.task.name].recorded], *one.task.plans)) for one in rule
    ]
    current = [place for place, one in enumerate(chosen) if numbers[one.task.name].current]
    return {
        **ranking.report(chosen, rule),
        "margin": margin,
        "rule_over_best": _families([one.first for one in rule], rule),
        "first_over_best_families": _families([one.first for one in chosen], chosen),
        "first_over_rules_families": paired(chosen, rule),
        "over_recorded_rules_families": paired(chosen, then),
        "recorded_rule_over_best": _families([one.first for one in then], then),
        "over_rules_where_current": paired([chosen[i] for i in current], [rule[i] for i in current]),
        "without_margin": paired(by_margin[0.0], rule),
        "by_margin": {
            str(m): round(math.exp(fmean(o.first for o in own)), 4) for m, own in by_margin.items()
        },
    }


def paired(found: Sequence[Ranked], against: Sequence[Ranked]) -> list[float]:
    """(low, mean, high) of the ratio of first suggestions; families are drawn again."""
    return _families([one.first - other.first for one, other in zip(found, against, strict=True)], found)


def _families(values: Sequence[float], of: Sequence[Ranked]) -> list[float]:
    groups: dict[str, list[float]] = {}
    for value, one in zip(values, of, strict=True):
        groups.setdefault(one.task.family, []).append(value)
    low, high = of_groups(groups.values())
    return [round(math.exp(value), 4) for value in (low, fmean(values), high)]
