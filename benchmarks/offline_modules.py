"""Sessions on modules of families never seen: does what was judged there help their other tasks?

    PYTHONPATH=. python3 benchmarks/offline_modules.py [results/plans-h200-DATE.json.xz]
        [--sessions 500] [--deals 20] [--out FILE]

Recorded plans are dealt by family: of old families a policy learns every plan (*before*); on half
of the tasks of new ones sessions are held, the other half is asked about. A session judges the
rule's first plan and what the policy draws, by recorded times; *after* has learned these too,
*control* has learned them with the times dealt anew among each task's plans. A score is the speed
of the first suggestion over another's for the same task; intervals are bootstraps in which whole
families are drawn.

The policy is a ridge regression, the smallest that learns from plans at all: ln(speedup) less its
task's mean, on which skills a plan uses, on which operators and with which parameters. So this says
what sessions on modules are worth to a policy that sees steps, on one device; not what a larger one
would make of them. Not covered: the journal (tests/unit/trainer/test_trainer_sessions.py), what people
keep, plans that nobody recorded."""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.reporting import write_record
from kernel_lsp.records import Json
from trainer.data.intervals import of_groups

RESULTS = Path(__file__).parent / "results"
SESSIONS, DEALS, JUDGED = 500, 20, 4
"""Plans that a session judges beside the rule's first."""
RIDGE, SHARPNESS = 3.0, 0.1
"""ln(gain) by which one plan is drawn e times as often as another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    name: str
    family: str
    features: tuple[frozenset[str], ...]
    """Of each plan; the first is the rule's."""
    values: tuple[float, ...]
    """ln(speedup) of each plan; what fails is half as fast as the slowest."""


def load(path: Path) -> list[Task]:
    """Tasks of which at least two plans differ."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        recorded = json.load(file)["tasks"]
    found = []
    for name, task in sorted(recorded.items()):
        eager = task["baseline_ms"]["eager"]
        known = [_speedup(eager, row) for row in task["rows"]]
        worst = min((one for one in known if one is not None), default=0.0) - math.log(2)
        features = tuple(frozenset(words(row["steps"])) for row in task["rows"])
        if len(set(features)) > 1 and any(one is not None for one in known):
            values = tuple(worst if one is None else one for one in known)
            found.append(Task(name=name, family=task["family"], features=features, values=values))
    return found


def _speedup(eager: float, row: Json) -> float | None:
    passed = row["status"] == "passed"
    return math.log(eager / row["ms"]["candidate"]) if passed else None


def words(steps: Sequence[Json]) -> Iterable[str]:
    """What a policy sees of a plan."""
    yield f"{len(steps)} steps"
    for step in steps:
        skill = step["skill"]
        yield skill
        yield from (f"{skill} {name}={value}" for name, value in step["parameters"].items())
        operators = [part.rstrip("_0123456789") for part in step["site"].split("+")]
        yield f"{skill} of {len(operators)}"
        yield from (f"{skill} on {one}" for one in operators)


class Policy:
    """w = (X'X + ridge I)^-1 X'y over rows of centered values; a plan's worth is the sum of its
    words' weights."""

    def __init__(self, rows: Sequence[tuple[frozenset[str], float]]) -> None:
        names = sorted({word for features, _ in rows for word in features})
        self._places = {name: place for place, name in enumerate(names)}
        table = np.zeros((len(rows), len(names)))
        for number, (features, _) in enumerate(rows):
            table[number, [self._places[word] for word in features]] = 1.0
        values = np.array([value for _, value in rows])
        square = table.T @ table + RIDGE * np.eye(len(names))
        self._weights = np.linalg.solve(square, table.T @ values)

    def scores(self, task: Task) -> list[float]:
        return [
            float(sum(self._weights[self._places[w]] for w in plan if w in self._places))
            for plan in task.features
        ]

    def first(self, task: Task) -> float:
        """ln(speedup) of what it suggests first; of equals the earliest plan."""
        scores = self.scores(task)
        return task.values[scores.index(max(scores))]


JudgedTimes = dict[str, dict[int, float]]
"""Task -> plan -> ln(speedup)."""


def sessions(tasks: Sequence[Task], policy: Policy, count: int, seed: int) -> JudgedTimes:
    """What is judged in ``count`` sessions, one task after the other."""
    found: JudgedTimes = defaultdict(dict)
    for number in range(count):
        task, draw = tasks[number % len(tasks)], random.Random(f"{seed}/{number}")
        noisy = [
            score / SHARPNESS - math.log(-math.log(draw.uniform(1e-12, 1.0)))
            for score in policy.scores(task)
        ]
        order = sorted(range(len(noisy)), key=lambda place: -noisy[place])
        for place in {0, *order[:JUDGED]}:
            found[task.name][place] = task.values[place]
    return found


def dealt_anew(judged: JudgedTimes, seed: int) -> JudgedTimes:
    found = {}
    for name, plans in judged.items():
        values = list(plans.values())
        random.Random(f"{seed}/{name}").shuffle(values)
        found[name] = dict(zip(plans, values, strict=True))
    return found


def rows_of(tasks: Iterable[Task], judged: JudgedTimes) -> list[tuple[frozenset[str], float]]:
    """Values less their task's mean: what is fast everywhere teaches no choice."""
    found = []
    for task in tasks:
        plans = judged.get(task.name, {})
        mean = fmean(plans.values()) if plans else 0.0
        found += [(task.features[place], value - mean) for place, value in plans.items()]
    return found


def deal(tasks: Sequence[Task], seed: int) -> tuple[list[Task], list[Task], list[Task]]:
    """(old families, of new ones those with sessions, those that are asked about)."""
    families: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        families[task.family].append(task)
    draw = random.Random(seed)
    shared = sorted(name for name, own in families.items() if len(own) > 1)
    new = set(draw.sample(shared, len(shared) // 2))
    worked, asked = [], []
    for name in sorted(new):
        own = draw.sample(families[name], len(families[name]))
        worked += own[: len(own) // 2]
        asked += own[len(own) // 2 :]
    return [task for task in tasks if task.family not in new], worked, asked


def run(tasks: Sequence[Task], count: int, deals: int) -> Json:
    """First suggestions, as ln of ratios by task, over all deals."""
    gains: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    families = {task.name: task.family for task in tasks}
    judged_plans = []
    for seed in range(deals):
        old, worked, asked = deal(tasks, seed)
        learned = rows_of(old, {task.name: dict(enumerate(task.values)) for task in old})
        before = Policy(learned)
        judged = sessions(worked, before, count, seed)
        judged_plans.append(sum(map(len, judged.values())))
        after = Policy([*learned, *rows_of(worked, judged)])
        control = Policy([*learned, *rows_of(worked, dealt_anew(judged, seed))])
        for task in asked:
            ends = {name: one.first(task) for name, one in
                    (("before", before), ("after", after), ("control", control))}  # fmt: skip
            best = max(task.values)
            gains["after / before"][task.name].append(ends["after"] - ends["before"])
            gains["control / before"][task.name].append(ends["control"] - ends["before"])
            gains["after / control"][task.name].append(ends["after"] - ends["control"])
            gains["after / rule"][task.name].append(ends["after"] - task.values[0])
            gains["before / rule"][task.name].append(ends["before"] - task.values[0])
            for name, end in (*ends.items(), ("rule", task.values[0])):
                gains[f"{name} / best"][task.name].append(end - best)
    return {
        "tasks": len(tasks),
        "families": len(set(families.values())),
        "deals": deals,
        "sessions": count,
        "plans judged in a deal": fmean(judged_plans),
        "asked about": len(gains["after / before"]),
        "ratios": {name: _ratio(own, families) for name, own in gains.items()},
    }


def _ratio(by_task: dict[str, list[float]], families: dict[str, str]) -> Json:
    """Of several deals a task has the mean; whole families are drawn."""
    groups: dict[str, list[float]] = defaultdict(list)
    for name, values in by_task.items():
        groups[families[name]].append(fmean(values))
    low, high = of_groups(groups.values())
    mean = fmean(value for values in groups.values() for value in values)
    return {"mean": math.exp(mean), "low": math.exp(low), "high": math.exp(high)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "plans", type=Path, nargs="?", default=max(RESULTS.glob("plans-*.json.xz"), default=None)
    )
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--deals", type=int, default=DEALS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {"plans": options.plans.name} | run(
        load(options.plans), options.sessions, options.deals
    )
    for name, one in result["ratios"].items():
        print(f"{name:<18} {one['mean']:.3f} [{one['low']:.3f}, {one['high']:.3f}]")
    write_record(options.out, result)


if __name__ == "__main__":
    main()
