"""Before against after learning from sessions: who sees which tasks, and what deals of families say together.

Used by offline.py (graphs) and offline_kernels.py. Not covered: policies, sessions (simulated.py).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, Protocol, TypeVar

from kernel_lsp.records import Json
from trainer.intervals import of_groups

RULE, BEFORE = "rule", "before"
CONTROL = "rewards dealt anew (must not help)"


class Placed(Protocol):
    """A task of a structural family."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...


T = TypeVar("T", bound=Placed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deal(Generic[T]):
    """Tasks that the policy before has learned, that people work on, and that nobody sees."""

    old: list[T]
    sessions: list[T]
    held_out: list[T]

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(getattr(self, name)) for name in ("old", "sessions", "held_out")}

    def families(self, part: str) -> int:
        return len({task.family for task in getattr(self, part)})


def dealt(every: Sequence[T], share: float, seed: int) -> Deal[T]:
    """New families have at least two tasks: some are worked on, the rest (a half, rounded down) held out."""
    families: dict[str, list[T]] = defaultdict(list)
    for task in every:
        families[task.family].append(task)
    old, sessions, held_out = list[T](), list[T](), list[T]()
    wanted = share * len(every)
    for family in sorted(families, key=lambda name: _mark(seed, name)):
        mine = sorted(families[family], key=lambda task: _mark(seed, task.name))
        if len(mine) < 2 or len(sessions) + len(held_out) + len(mine) > wanted:
            old += mine
            continue
        held_out += mine[: len(mine) // 2]
        sessions += mine[len(mine) // 2 :]
    return Deal(old=old, sessions=sessions, held_out=held_out)


def _mark(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}\0{name}".encode()).hexdigest()


def spread(values: Mapping[str, float], of: Mapping[str, str], seed: int = 0) -> tuple[float, float, float]:
    """exp of (low, mean, high): 95 % of means when whole families are drawn again (cluster bootstrap).

    ``of``: task -> family.
    """
    families: dict[str, list[float]] = defaultdict(list)
    for task, value in values.items():
        families[of[task]].append(value)
    low, high = of_groups(families.values(), seed)
    return math.exp(low), math.exp(fmean(values.values())), math.exp(high)


def pooled(runs: Sequence[Json]) -> Json:
    """Several deals of the families as one result: of a task that was held out more than once, the mean."""
    names = list(runs[0]["suggestions"])
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in names}
    for run_ in runs:
        for name in names:
            for task, value in run_["suggestions"][name].items():
                found[name][task].append(value)
    means = {name: {task: fmean(values) for task, values in of.items()} for name, of in found.items()}
    families = {task: family for run_ in runs for task, family in run_["held out"].items()}
    first = means[BEFORE]
    return {
        "deals": len(runs),
        "held out": len(families),
        "first / best": {name: spread(values, families) for name, values in means.items()},
        "after / before": {
            name: spread({task: value - first[task] for task, value in means[name].items()}, families)
            for name in names
            if name not in (RULE, BEFORE)
        },
        "runs": list(runs),
    }


def say(begun: float, text: str) -> None:
    print(f"{time.monotonic() - begun:5.0f} s  {text}", flush=True)


def lines(result: Json) -> Iterator[str]:
    told = f"{result['held out']} held-out tasks, {result['deals']} deals"
    yield f"{told:36s} {'first / best':>22s} {'after / before':>22s}"
    for name, told in result["first / best"].items():
        gained = result["after / before"].get(name)
        yield f"{name:36s} {_interval(told):>22s} {_interval(gained) if gained else '':>22s}"


def _interval(told: Sequence[float]) -> str:
    low, mid, high = told
    return f"{mid:.3f} [{low:.3f}, {high:.3f}]"
