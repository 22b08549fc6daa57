"""Recorded evaluations: what every combination of parameters of a task took, on one device, once.

The files are those of benchmarks/record_spaces.py. `synthetic` makes up a table of the same form
from a formula, for trying the trainer where no recording is at hand; its device says so, and
nothing that was trained on it says anything about kernels. Not covered: full judgements. A
recorded time is near the gate's, not the same (RACE_SCATTER)."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kernel_lsp.errors import ConfigError
from kernel_lsp.records import Interval, Json, Step
from kernel_lsp.search.space import Point
from trainer.records import Tally, TurnOutcome, TurnStatus

RACE_SCATTER = 1.03
"""Times of one race scatter by 3 % (pipeline/search.py), so no tighter interval is claimed of
them."""
NEAR = 0.95
"""Of the best recorded time of a task: what counts as found."""
SYNTHETIC = "synthetic (a formula, no device)"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedAxis:
    """One parameter of one step."""

    step: int
    name: str
    choices: tuple[Any, ...]
    """Default first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSpace:
    """All of one task that was recorded."""

    name: str
    family: str
    """Tasks of one family are on one side of the split."""
    device: str
    facts: tuple[str, ...] = ()
    """What a prompt may tell of it: operators, shapes."""
    steps: tuple[Step, ...]
    """The plan; parameters not among the axes are fixed here."""
    axes: tuple[RecordedAxis, ...]
    original_ms: float
    times: dict[Point, float]
    """Combinations that run and are right."""
    dropped: dict[Point, str]
    """The others, with their reason."""

    @property
    def default(self) -> Point:
        """The point at which every parameter has its default."""
        return (0,) * len(self.axes)

    @property
    def best(self) -> float:
        """The largest speedup that was recorded."""
        return self.original_ms / min(self.times.values())

    def speedup(self, point: Point) -> float | None:
        """The recorded speedup over the original at a point; None where nothing was recorded."""
        return self.original_ms / self.times[point] if point in self.times else None

    def at(self, point: Point) -> tuple[Step, ...]:
        """The steps with this point's parameters."""
        chosen: list[dict[str, Any]] = [dict(step.parameters) for step in self.steps]
        for axis, place in zip(self.axes, point, strict=True):
            chosen[axis.step][axis.name] = axis.choices[place]
        return tuple(
            Step(skill=step.skill, site=step.site, parameters=parameters)
            for step, parameters in zip(self.steps, chosen, strict=True)
        )

    def point(self, steps: Sequence[Step]) -> Point | None:
        """None: these steps are not in the table."""
        if [(s.skill, s.site) for s in steps] != [(s.skill, s.site) for s in self.steps]:
            return None
        try:
            return tuple(
                axis.choices.index(steps[axis.step].parameters[axis.name]) for axis in self.axes
            )
        except (KeyError, ValueError):
            return None


def looked_up(space: RecordedSpace, steps: Sequence[Step]) -> TurnOutcome:
    """What the table says of these steps."""
    point = space.point(steps)
    if point is None or (point not in space.times and point not in space.dropped):
        return TurnOutcome(status=TurnStatus.NOT_RUN, complaint="was never recorded")
    speedup = space.speedup(point)
    if speedup is None:
        return TurnOutcome(
            status=_why(space.dropped[point]), correct=False, complaint=space.dropped[point]
        )
    interval = Interval(low=speedup / RACE_SCATTER, mid=speedup, high=speedup * RACE_SCATTER)
    return TurnOutcome(
        status=TurnStatus.PASSED,
        correct=True,
        speedups={"eager": interval},
        candidate_ms=space.times[point],
    )


def _why(reason: str) -> TurnStatus:
    low = reason.lower()
    if "wrong" in low or "differ" in low or "error of" in low:
        return TurnStatus.WRONG_RESULT
    return TurnStatus.TIMED_OUT if "time" in low and "out" in low else TurnStatus.RUNTIME_ERROR


# --- files ----------------------------------------------------------------------------------------


def load(patterns: Iterable[str], folder: Path, tally: Tally) -> list[RecordedSpace]:
    """Raises ConfigError when a pattern finds nothing or a file is no recording."""
    found: dict[str, RecordedSpace] = {}
    for pattern in patterns:
        paths = sorted((folder / pattern).parent.resolve().glob(Path(pattern).name))
        if not paths:
            raise ConfigError(
                f"world.tables: {folder / pattern} finds no file",
                "record with benchmarks/record_spaces.py, or set world.synthetic to try the "
                "trainer",
            )
        for path in paths:
            for space in _file(Path(path), tally):
                found[space.name] = space  # the newest file, by name, knows best
    return list(found.values())


def _file(path: Path, tally: Tally) -> list[RecordedSpace]:
    try:
        data = json.loads(path.read_text())
        device, tasks = str(data["device"]), dict(data["tasks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no recording: {type(error).__name__}: {error}",
            "files of benchmarks/record_spaces.py are",
        ) from error
    spaces = []
    for name, task in tasks.items():
        tally.read += 1
        try:
            space = _space(name, device, task)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            tally.skip("a recorded task that cannot be read", f"{path.name}: {name}: {error}")
            continue
        if len(set(space.times.values())) < 2:
            tally.skip("a recorded task with nothing to choose", f"{path.name}: {name}")
            continue
        spaces.append(space)
    tally.kept += len(spaces)
    return spaces


def _space(name: str, device: str, task: Json) -> RecordedSpace:
    times: dict[Point, float] = {}
    dropped: dict[Point, str] = {}
    for point, _, milliseconds, reason in task["combinations"]:
        if milliseconds:
            times[tuple(point)] = float(milliseconds)
        else:
            dropped[tuple(point)] = reason or "did not run"
    words = name.rpartition("/")[2].split("_")
    return RecordedSpace(
        name=name,
        family=str(task.get("family") or name.partition("/")[0] + "/" + words[0]),
        device=device,
        facts=tuple(task.get("facts") or (" ".join(words), str(task["summary"]))),
        steps=tuple(
            Step(skill=step["skill"], site=step["site"], parameters=dict(step["parameters"]))
            for step in task["steps"]
        ),
        axes=tuple(
            RecordedAxis(step=axis["step"], name=axis["name"], choices=tuple(axis["choices"]))
            for axis in task["axes"]
        ),
        original_ms=float(task["original_ms"]),
        times=times,
        dropped=dropped,
    )


class OfFamily(Protocol):
    @property
    def family(self) -> str:
        """What it was made from: alike tasks share one."""


T = TypeVar("T", bound=OfFamily)


def split(spaces: Sequence[T], held_out: float, seed: int) -> tuple[list[T], list[T]]:
    """(training, held out): whole families, and at least one on each side where there are two."""
    families = sorted({space.family for space in spaces})
    random.Random(seed).shuffle(families)
    count = round(held_out * len(families))
    if held_out > 0 and len(families) > 1:
        count = min(max(count, 1), len(families) - 1)
    out = set(families[:count])
    return [s for s in spaces if s.family not in out], [s for s in spaces if s.family in out]


# --- a made-up table ------------------------------------------------------------------------------

_SKILLS: dict[str, dict[str, tuple[int, ...]]] = {
    "fuse-pointwise": {"BLOCK": (128, 256, 512, 1024), "WARPS": (1, 2, 4, 8)},
    "fuse-rows": {"BLOCK": (128, 256, 512, 1024), "WARPS": (1, 2, 4, 8)},
    "split-reduction": {"PARTS": (1, 2, 4, 8), "WARPS": (1, 2, 4, 8)},
    "tile-product": {"M": (32, 64, 128), "N": (32, 64, 128), "STAGES": (2, 3, 4)},
}
_FAMILIES: dict[str, tuple[str, ...]] = {
    "gelu scale": ("fuse-pointwise",),
    "layer_norm": ("fuse-rows", "fuse-pointwise"),
    "softmax": ("fuse-rows",),
    "mean square": ("split-reduction",),
    "linear relu": ("tile-product", "fuse-pointwise"),
    "linear sum": ("tile-product", "split-reduction"),
    "bias tanh": ("fuse-pointwise",),
    "rms_norm gate": ("fuse-rows", "fuse-pointwise"),
}


def synthetic(count: int, seed: int) -> list[RecordedSpace]:
    """Tasks whose best parameters follow from their sizes by a rule that can be learned."""
    draw = random.Random(seed)
    names = sorted(_FAMILIES)
    return [_made_up(names[i % len(names)], i, draw) for i in range(count)]


def _made_up(family: str, number: int, draw: random.Random) -> RecordedSpace:
    rows, columns = draw.randint(7, 14), draw.randint(8, 13)
    skills = _FAMILIES[family]
    steps = tuple(Step(skill=skill, site=f"node_{place}") for place, skill in enumerate(skills))
    axes = tuple(
        RecordedAxis(step=place, name=name, choices=choices)
        for place, skill in enumerate(skills)
        for name, choices in _SKILLS[skill].items()
    )
    times: dict[Point, float] = {}
    dropped: dict[Point, str] = {}
    for point in product(*(range(len(axis.choices)) for axis in axes)):
        cost = 0.0
        values: dict[str, int] = {}
        for axis, place in zip(axes, point, strict=True):
            values[axis.name] = axis.choices[place]
            cost += 0.28 * abs(math.log2(axis.choices[place]) - _ideal(axis.name, rows, columns))
        if values.get("M", 0) * values.get("N", 0) * values.get("STAGES", 0) > 128 * 128 * 3:
            dropped[point] = "out of resource: shared memory"
        else:
            noise = draw.gauss(0.0, 0.01)
            times[point] = 0.4 * math.exp(0.6 * cost + noise)
    return RecordedSpace(
        name=f"synthetic/{family.replace(' ', '_')}_{number}",
        family=f"synthetic/{family}",
        device=SYNTHETIC,
        facts=(family, f"rows 2^{rows} columns 2^{columns}"),
        steps=steps,
        axes=axes,
        original_ms=1.0,
        times=times,
        dropped=dropped,
    )


def _ideal(name: str, rows: int, columns: int) -> float:
    """Logarithm of the best value."""
    match name:
        case "BLOCK":
            return min(max(columns, 7), 10)
        case "WARPS":
            return min(max(columns - 8, 0), 3)
        case "PARTS":
            return min(max(12 - rows, 0), 3)
        case "M":
            return 5 + min(max((rows - 7) / 2, 0), 2)
        case "N":
            return 5 + min(max((columns - 7) / 2, 0), 2)
    return 1.5
