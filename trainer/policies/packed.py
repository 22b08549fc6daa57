"""Rows of measured plans as arrays in one file, encoded before a machine is lent: there they are
only read.

    python -m trainer.policies.packed --tasks tasks/ --tasks benchmarks/tasks --table plans.json \\
        --earlier policy.json --out .whl.policy [--jobs 16]

Encoding 7,000 dialogs took most of the 45 s that the second run on a GPU spent before its first
step. Here every plan is written as a question (plan_values.py) and as dialogs (imitation.py), in several
orders; a word's valid alternatives are numbered, since most words share theirs. Beside ``rows.npz``
lies ``held-out.json.xz``, the tasks that are decoded word by word in the end. Not covered: what is
learned of them (exact.py)."""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import multiprocessing
import os
import random
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.records import Json
from trainer.algorithms.batches import Example, dialog_example
from trainer.policies import imitation, plan_data, plan_values, ruling
from trainer.policies.plan_data import TaskPlans

ROWS, HELD_OUT = "rows.npz", "held-out.json.xz"
QUESTIONS, DIALOGS, SKIPPED = 0, 1, 2
"""Kinds of rows: weighings, dialogs with their skills selected, dialogs without a selection."""
PackedExample = tuple[Example, int, int, int, int]
"""A row with its task, plan, kind and order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedTask:
    """One task without its words."""

    name: str
    family: str
    held_out: bool
    current: bool
    """The first plan is what the rule of the day suggests."""
    speedups: tuple[float | None, ...]
    """Of its plans, over eager; the first is the rule's."""
    rules: tuple[bool, ...]
    """The rule proposed them."""
    recorded: int
    """The plan that the rule of the recording suggested first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRows:
    """R rows with C chosen words in all. Tokens and choices of a row are contiguous."""

    tokens: Any
    starts: Any
    """(R + 1,)"""
    places: Any
    """(C,): of a chosen word in its row."""
    choices: Any
    """(R + 1,): where each row's begin."""
    among: Any
    """(C,): number of the list that it was chosen from."""
    lists: Any
    """(lists, K), -1 padded."""
    tasks: Any
    plans: Any
    kinds: Any
    orders: Any
    """(R,) each: 0 is the order in which sites are ranked."""


def rows_of(made: Iterable[PackedExample]) -> PackedRows:
    """The packed rows of (example, task, plan, kind, order)."""
    tokens, places, among, about = (
        list[int](),
        list[int](),
        list[int](),
        list[tuple[int, int, int, int]](),
    )
    starts, choices, lists = [0], [0], dict[tuple[int, ...], int]()
    for example, *facts in made:
        assert example.allowed is not None
        tokens += example.prompt + example.reply
        places += [place + len(example.prompt) for place in example.counted]
        offered = [example.allowed[place] or () for place in example.counted]
        among += [lists.setdefault(one, len(lists)) for one in offered]
        starts.append(len(tokens))
        choices.append(len(places))
        about.append((facts[0], facts[1], facts[2], facts[3]))
    padded = np.full((len(lists), max(map(len, lists), default=0)), -1, dtype=np.int16)
    for one, number in lists.items():
        padded[number, : len(one)] = one
    columns = np.array(about, dtype=np.int32).reshape(-1, 4).T
    return PackedRows(
        tokens=np.array(tokens, dtype=np.int16),
        starts=np.array(starts, dtype=np.int64),
        places=np.array(places, dtype=np.int16),
        choices=np.array(choices, dtype=np.int64),
        among=np.array(among, dtype=np.int32),
        lists=padded,
        tasks=columns[0],
        plans=columns[1],
        kinds=columns[2],
        orders=columns[3],
    )


def encode_plans(
    tasks: Sequence[TaskPlans], orders: int, without: Collection[str] = (), jobs: int = 1
) -> list[PackedExample]:
    """Every plan as a question and as dialogs; ``orders``: more of the latter, in turn with and
    without a selection; ``without``: tasks of which dialogs are not written, since nobody learns
    them."""
    asked = [(task, number, orders, task.name in without) for number, task in enumerate(tasks)]
    if jobs == 1:
        return [row for one in asked for row in _of(*one)]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [row for own in pool.map(_of, *zip(*asked, strict=True)) for row in own]


def _of(task: TaskPlans, number: int, orders: int, brief: bool) -> list[PackedExample]:
    rows = list[PackedExample]()
    for plan, tokens in enumerate(plan_values.questions(task)):
        said = [False] * len(tokens) + [True]
        asked = dialog_example(
            [*tokens, plan_values.OFFERED[0]], said, [()] * len(tokens) + [plan_values.OFFERED]
        )
        rows.append((asked, number, plan, QUESTIONS, 0))
    if brief:
        return rows
    for skip in (False, True):
        rows += _dialogs(task, number, skip, 0)
    for order in range(1, orders + 1):
        anew = plan_data.shuffle_sites(task, random.Random(f"{task.name} {order - 1}"))
        rows += _dialogs(anew, number, order % 2 == 0, order)
    return rows


def _dialogs(task: TaskPlans, number: int, skip: bool, order: int) -> Iterator[PackedExample]:
    for place, plan in enumerate(task.plans):
        with contextlib.suppress(ValueError):
            # in another order a site may be one too many to be encoded
            yield (
                imitation.example(task, plan, skip=skip),
                number,
                place,
                SKIPPED if skip else DIALOGS,
                order,
            )


# --- files ----------------------------------------------------------------------------------------


def save(tasks: Sequence[PackedTask], rows: PackedRows, path: Path) -> None:
    """Writes tasks and rows to one packed file."""
    about = json.dumps(
        [{name: getattr(task, name) for name in PackedTask.__slots__} for task in tasks]
    )
    arrays = {name: getattr(rows, name) for name in PackedRows.__slots__}
    begun = path.with_suffix(".part.npz")
    np.savez_compressed(begun, about=np.frombuffer(about.encode(), dtype=np.uint8), **arrays)
    begun.replace(path)  # somebody may wait for it


def load(path: Path) -> tuple[list[PackedTask], PackedRows]:
    """The packed tasks and rows that a file holds. Raises ConfigError."""
    try:
        with np.load(path, allow_pickle=False) as found:
            about = json.loads(bytes(found["about"]))
            rows = PackedRows(**{name: found[name] for name in PackedRows.__slots__})
        return [_task(one) for one in about], rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        cause = f"{path} holds no packed rows: {type(error).__name__}: {error}"
        raise ConfigError(cause, "make it with python -m trainer.policies.packed") from error


def _task(one: Json) -> PackedTask:
    return PackedTask(**(one | {"speedups": tuple(one["speedups"]), "rules": tuple(one["rules"])}))


def tasks_of(every: Sequence[TaskPlans], table: Json, earlier: Json) -> list[PackedTask]:
    """``earlier``: results whose held-out families are held out again
    (benchmarks/results/policy-…)."""
    named = next(iter(earlier["arms"].values()))["each"]
    held_out = {table["tasks"][name]["family"] for name in named if name in table["tasks"]}
    return [
        PackedTask(
            name=task.name,
            family=task.family,
            held_out=task.family in held_out,
            current=task.current,
            speedups=tuple(plan.speedup for plan in task.plans),
            rules=tuple(plan.rule for plan in task.plans),
            recorded=_recorded_index(task, table["tasks"][task.name]["rows"]),
        )
        for task in every
    ]


def _recorded_index(task: TaskPlans, rows: Sequence[Json]) -> int:
    """The plan that heads the table; the present rule's where that cannot be encoded any more."""
    steps = [(one["skill"], one["site"]) for one in rows[0]["steps"]]
    same = [
        place for place, plan in enumerate(task.plans) if list(ruling.places(plan.steps)) == steps
    ]
    return min(same, key=lambda place: not task.plans[place].rule, default=0)


def run(options: argparse.Namespace) -> int:
    """Packs plans with their measurements, which are made first where none are named; the exit
    code."""
    if (options.out / ROWS).exists() and (options.out / HELD_OUT).exists():
        print(f"{options.out} has been packed already")
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the children: there is one for each core
    options.out.mkdir(parents=True, exist_ok=True)
    paths = options.shown or [options.out / "shown.json.xz"]
    if not options.shown and not paths[0].exists():
        made = plan_data.run(
            argparse.Namespace(
                tasks=options.tasks,
                table=[options.table],
                out=paths[0],
                jobs=options.jobs,
                capability="sm_90",
                unchanged=False,
            )
        )
        if made:
            return made
    pack(paths, options)
    return 0


def pack(paths: Sequence[Path], options: argparse.Namespace) -> None:
    """Writes the rows to learn from, and the held-out tasks apart from them."""
    every = [task for path in paths for task in plan_data.load(path)]
    every = every[: options.most] if options.most else every
    tasks = tasks_of(
        every, *(json.loads(path.read_text()) for path in (options.table, options.earlier))
    )
    kept = {task.name for task in tasks if task.held_out}
    rows = rows_of(encode_plans(every, options.orders, kept, options.jobs))
    files = [json.loads(lzma.decompress(path.read_bytes())) for path in paths]
    about = {key: files[0][key] for key in ("device", "versions")}
    named = [one for file in files for one in file["tasks"] if one["name"] in kept]
    plan_data.save(named, options.out / HELD_OUT, about)
    save(tasks, rows, options.out / ROWS)
    size = sum((options.out / name).stat().st_size for name in (ROWS, HELD_OUT)) / 1e6
    print(
        f"{len(rows.tasks)} rows of {len(tasks)} tasks, {len(kept)} held out, in {options.out}, "
        f"{size:.1f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shown",
        type=Path,
        action="append",
        help="of trainer.policies.plan_data; else it is made first",
    )
    parser.add_argument("--tasks", type=Path, action="append", help="folders of tasks, to make it")
    parser.add_argument("--table", type=Path, required=True, help="recorded evaluations")
    parser.add_argument(
        "--earlier", type=Path, required=True, help="results with the families to hold out"
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument(
        "--orders", type=int, default=2, help="more orders in which dialogs are written"
    )
    parser.add_argument("--most", type=int, default=0, help="tasks; 0: all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    if not (options.shown or options.tasks):
        parser.error(
            "name what trainer.policies.plan_data made with --shown, or what it is made of with --tasks"
        )
    try:
        sys.exit(run(options))
    except KernelLspError as error:
        sys.exit(f"packed: {error}")


if __name__ == "__main__":
    main()
