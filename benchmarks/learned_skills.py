"""Learned skills on a device: drafted from recorded plans, verified on other families, again on fresh ones.

    PYTHONPATH=. python3 benchmarks/learned_skills.py --table plans-0.json --table plans-1.json \\
        --tasks /tmp/gen6 --tasks benchmarks/tasks --out learned-h200-DATE.json --limit-s 240 --gpus 0,1,2,3

Drafts are made of the recorded tasks (trainer/lessons.py), against what the rule suggests first now. Families
of all other tasks are dealt out by a hash: on the first part the product's verification
(pipeline/proving, the real gate) admits or refuses a draft, and whoever is admitted is verified once more
on the second, which neither has seen. Drafts about one skill go to one GPU, the surest first. The file is
written after every verification; what is in it is not done again. `--draft-only --place 8` makes it without a
GPU, with the tasks that each draft would change (placing.py): opening tasks in vain took two thirds of the
first lent run. Not covered: recording (trainer/recording.py), one user's own library.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import placing
from kernel_lsp import interpreter, skillbook, wire
from kernel_lsp.agents.summary_rule import Seen
from kernel_lsp.config import Settings
from kernel_lsp.files import replace_file
from kernel_lsp.interpreter import Probe
from kernel_lsp.library import Library, store
from kernel_lsp.pipeline import Pipeline, learning
from kernel_lsp.pipeline.proving import Asked, Proving
from kernel_lsp.records import (
    Lesson,
    Origin,
    Requirements,
    Standing,
    Verification,
)
from kernel_lsp.skillbook import conditions
from kernel_lsp.skillbook.conditions import Surroundings
from trainer import lessons, ruling, tables, tasks
from trainer.reading import Grant
from trainer.records import Tally
from trainer.tasks import Part, Split, SuiteTask

MOST_HAVE = 0.75
"""Of the tasks that taught a draft: kinds of operators that so many have are looked for."""
NAMED = 3
"""Times as many tasks as are judged have to name what a draft covers: then only these count."""
MOST_OPENED = 10
"""Times as many tasks are opened, at most, as are judged: on many the rule does what a draft says."""
MOST_OF_A_KIND = 2
"""Drafts about the same skill at the same operations."""
PLACING = 0.3
"""Of the time that is left, where drafts are verified in the same run."""
LAST_S = 25.0
"""A verification takes about this long: none is begun with less left."""


# --- drafting -----------------------------------------------------------------------------------


def measured(
    options: argparse.Namespace, suites: Sequence[tasks.Suite], results: Results
) -> list[lessons.Measured]:
    """Every task of the tables whose plans have what the rule suggests first now: drafts are to beat that."""
    by_id = {task.id: task for suite in suites for task in suite.tasks}
    tally, grant = Tally(), Grant(own=True)
    read = [one for path in options.table for one in tables.read(path, suites, grant, tally)]
    for skipped in tally.skipped:
        print(f"left out: {skipped.count} x {skipped.reason}", flush=True)
    asked = [one for one in (by_id[told.task] for told in read) if one.name not in results.firsts]
    jobs = options.place or len(os.sched_getaffinity(0))
    firsts = placing.firsts([one.path for one in asked], options.device, jobs)
    results.firsts |= {one.name: first for one, first in zip(asked, firsts, strict=True)}
    found, unknown = list[lessons.Measured](), 0
    for trajectory in read:
        first = results.firsts[by_id[trajectory.task].name]
        same = [turn for turn in trajectory.turns if ruling.places(turn.steps) == first]
        if not first or not same:
            unknown += 1
            continue
        others = (turn for turn in trajectory.turns if turn is not same[0])
        told = replace(trajectory, turns=(same[0], *others))
        if one := lessons.measured(told, by_id[trajectory.task]):
            found.append(one)
    print(f"left out: {unknown} x a task whose first suggestion was not measured", flush=True)
    return found


async def drafted(options: argparse.Namespace, results: Results) -> None:
    """Stage what the table teaches, at most ``--drafts``."""
    suites = [tasks.load(place) for place in options.tasks]
    table, seen = measured(options, suites, results), await _seen(options)
    found = lessons.taught(table, seen)
    print(f"{len(table)} tasks teach {len(found)} drafts", flush=True)
    results.about = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": seen.device_name,
        "torch": seen.torch,
        "triton": seen.triton,
        "tables": [path.name for path in options.table],
        "teaching": len(table),
        "samples": options.samples,
        "most": options.most,
    }
    library, book = Library(options.data), skillbook.load([skillbook.built_in_folder()])
    kinds: Counter[str] = Counter()
    for one in found:
        kind = kind_of(one)
        if kinds.total() == options.drafts or kinds[kind] == MOST_OF_A_KIND:
            continue
        lesson = Lesson(draft=one.draft, origin=_origin(one, seen), instead_of=one.instead_of)
        for papers in learning.stage([lesson], library, book):
            told = f"{math.exp(one.expected):.3f}x ({math.exp(one.low):.3f}) of {len(one.tasks)} tasks"
            print(f"  {papers.standing}: {papers.name}, {told} {papers.reason}", flush=True)
            if papers.standing is Standing.STAGED:
                kinds[kind] += 1
                results.expect(papers.name, one)


async def _seen(options: argparse.Namespace) -> Seen:
    """The device; where drafts alone are made, that of the table."""
    probe = await interpreter.probe(sys.executable)
    cuda = options.device == "cuda"
    told = json.loads(options.table[0].read_text())
    here = probe.cuda or not cuda
    versions = {"torch": probe.torch, "triton": probe.triton} if here else told.get("versions", {})
    return Seen(
        device=options.device,
        device_name=told.get("device_name") or told.get("device"),
        architecture=(probe.capability or options.capability) if cuda else None,
        inputs=(),
        layouts=(),
        torch=versions.get("torch"),
        triton=versions.get("triton"),
    )


def dealt(options: argparse.Namespace, every: Sequence[SuiteTask]) -> dict[str, list[SuiteTask]]:
    """Tasks that no table has: on which drafts are verified, and fresh ones."""
    recorded = {name for path in options.table for name in json.loads(path.read_text())["tasks"]}
    split, found = Split(seed=options.split, test=0.4), dict[str, list[SuiteTask]](verified=[], fresh=[])
    for task in every:
        if task.name not in recorded:
            found["fresh" if split.part(task.family) is Part.TEST else "verified"].append(task)
    return found


def _origin(one: lessons.Taught, seen: Seen) -> Origin:
    return Origin(
        event="search",
        fingerprint=one.tasks[0].fingerprint,
        qualname=one.tasks[0].name,
        hardware=f"cuda:{seen.architecture}" if seen.device == "cuda" else "cpu",
        device_name=seen.device_name,
        writer="table/1",
        created=store.now(),
    )


def kind_of(one: lessons.Taught) -> str:
    """Of the sites, in words."""
    steps = " ".join(f"{step.skill}@{'+'.join(step.covers)}" for step in one.draft.recipe)
    asked = one.draft.requires
    return f"{steps} instead of {' '.join(asked.planned)}" if asked and asked.planned else steps


async def place_all(options: argparse.Namespace, results: Results, until: float) -> None:
    """Which tasks each draft is worth a judgement on; the file is kept up with what is found."""
    seen = await _seen(options)
    probe = Probe(python=sys.executable, torch=seen.torch, triton=seen.triton, capability=seen.architecture)
    drafts = [one.skill for one in Library(options.data).staged() if one.papers.name in results.drafts]
    parts = dealt(options, [task for folder in options.tasks for task in tasks.load(folder).tasks])
    wanted = dict.fromkeys(parts, NAMED * options.most)
    for part, task, names in placing.found(parts, drafts, (options.device, probe), options.place, wanted):
        for name in names:
            known = results.drafts[name].setdefault("places", {}).setdefault(part, [])
            known += [task.name] if task.name not in known else []
        if names:
            results.write()
        if time.time() > until:
            print("no time for more places", flush=True)
            break


# --- results ------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Results:
    """The file: one entry per draft, in the order of their promise."""

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    drafts: dict[str, dict[str, Any]] = field(default_factory=dict)
    firsts: dict[str, ruling.Places] = field(default_factory=dict)
    """Recorded task -> what the rule suggests first there now."""

    def load(self) -> None:
        if self.path.exists():
            known = json.loads(self.path.read_text())
            self.about, self.drafts = known["about"], known["drafts"]
            told = known.get("firsts", {}).items()
            self.firsts = {name: tuple((skill, site) for skill, site in steps) for name, steps in told}

    def expect(self, name: str, one: lessons.Taught) -> None:
        self.drafts.setdefault(name, {}).update(
            kind=kind_of(one),
            recipe=wire.to_json(one.draft.recipe),
            requires=wire.to_json(one.draft.requires),
            expected=math.exp(one.expected),
            low=math.exp(one.low),
            taught_by=[task.name for task in one.tasks],
        )

    def write(self) -> None:
        told = {"about": self.about, "drafts": self.drafts, "firsts": self.firsts}
        replace_file(self.path, (json.dumps(told) + "\n").encode())

    def lines(self) -> Iterator[str]:
        """The table, then what the bars ask for."""
        yield f"{'skill':58s} {'admission':>30s} {'fresh tasks':>30s}"
        for name, one in self.drafts.items():
            yield f"{name[:58]:58s} {_told(one.get('verified')):>30s} {_told(one.get('fresh')):>30s}"
        judged = [one for one in self.drafts.values() if "verified" in one]
        admitted = [one for one in judged if one["verified"]["accepted"]]
        again = [one["fresh"] for one in admitted if one.get("fresh", {}).get("uplift")]
        positive = sum(one["uplift"]["mean"] > 0 for one in again)
        bounded = sum(one["uplift"]["low"] > 0 for one in again)
        yield (
            f"{len(self.drafts)} drafts, {len(judged)} verified, {len(admitted)} admitted; on fresh tasks "
            f"{positive} of {len(again)} positive, {bounded} with a bound above zero"
        )


def _told(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    if not (uplift := found.get("uplift")):
        return str(found["reason"])[:30]
    low, mid, high = (math.exp(uplift[name]) for name in ("low", "mean", "high"))
    return f"{'' if found['accepted'] else 'no: '}{mid:.3f} ({low:.3f}-{high:.3f}) n={uplift['tasks']}"


# --- verifying ----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Worker:
    """One process with one GPU (or the CPU)."""

    options: argparse.Namespace
    pipeline: Pipeline
    library: Library
    results: Results
    every: dict[str, SuiteTask]
    parts: dict[str, list[SuiteTask]]
    end: float
    """On the clock of `time.time`."""

    async def all(self) -> None:
        number, count = map(int, self.options.share.split("/"))
        drafts = self.results.drafts
        skills = list(dict.fromkeys(one["recipe"][0]["skill"] for one in drafts.values()))
        mine = [name for name, one in drafts.items() if one["recipe"][0]["skill"] in skills[number::count]]
        for name in mine:
            if "verified" not in drafts[name]:
                await self._verified(name, "verified")
            if drafts[name].get("verified", {}).get("accepted") and "fresh" not in drafts[name]:
                await self._verified(name, "fresh")

    def _candidates(self, name: str, requires: Requirements | None, part: str) -> list[Path]:
        """Tasks that the skill is for, by their inputs, and that look like those that taught it."""
        drafted = self.results.drafts[name]
        if "places" in drafted:
            return [self.every[one].path for one in drafted["places"].get(part, ())]
        taught_by = [self.every[one].structure for one in drafted["taught_by"]]
        counts = Counter(kind for one in taught_by for kind in set(one.kinds))
        common = {kind for kind, count in counts.items() if count >= MOST_HAVE * len(taught_by)}
        covered = {op for step in drafted["recipe"] for op in step["covers"]}
        fit = [task for task in self.parts[part] if common.issubset(task.structure.kinds)]
        named = [task for task in fit if covered.issubset(task.structure.ops)]

        def alike(task: SuiteTask) -> float:
            ops = set(task.structure.ops)
            return fmean(len(ops & set(one.ops)) / len(ops | set(one.ops)) for one in taught_by)

        enough = len(named) >= NAMED * self.options.most
        chosen = [task for task in (named if enough else fit) if not any(self._unmet(requires, task))]
        ranked = sorted(chosen, key=lambda task: (-alike(task), task.name))
        return [task.path for task in ranked[: MOST_OPENED * self.options.most]]

    def _unmet(self, requires: Requirements | None, task: SuiteTask) -> Iterator[str]:
        """By what the program is called with alone: the machine is the one that taught."""
        asked = (
            replace(requires, device=None, architectures=(), torch=None, triton=None) if requires else None
        )
        yield from conditions.unmet(asked, Surroundings(device="", inputs=lessons.inputs_of(task)))

    async def _verified(self, name: str, where: str) -> None:
        """Nothing is kept where there was no time, or it could not be judged."""
        left, shelved = self.end - time.time(), self.library.find(name)
        if left < LAST_S or shelved is None:
            return
        others = [s.skill for s in self.library.shelved() if s.papers.standing is Standing.VERIFIED]
        asked = Asked(
            tasks=tuple(self._candidates(name, shelved.skill.requires, where)),
            samples=self.options.samples,
            most=self.options.most,
            jobs=self.options.jobs,
        )
        proving = Proving(
            pipeline=self.pipeline, shelved=shelved, library=others, asked=asked, report=lambda step: None
        )
        begun = time.time()
        try:
            async with asyncio.timeout(left):
                found = await proving.run()
        except TimeoutError:
            print(f"{name} ({where}): out of time", flush=True)
            return
        except Exception as error:  # one broken draft must not cost the others: device time is lent
            print(f"{name} ({where}): {type(error).__name__}: {error}", flush=True)
            return
        self._keep(name, where, found)
        print(f"{name} ({where}): {found.reason}, {time.time() - begun:.0f} s {found.skipped}", flush=True)
        if where == "verified":  # a second look must not change who is in the library
            store.settle(self.library, shelved, found)

    def _keep(self, name: str, where: str, found: Verification) -> None:
        self.results.drafts[name][where] = wire.to_json(found)
        self.results.write()


async def work(options: argparse.Namespace) -> None:
    """A child's part: verifies its share of the drafts, into a file of its own."""
    number, count = map(int, options.share.split("/"))
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // count)
    os.sched_setaffinity(0, cores[number * each : (number + 1) * each] or cores)
    results = Results(path=options.out)
    results.load()
    suites = [tasks.load(folder) for folder in options.tasks]
    every = [task for suite in suites for task in suite.tasks]
    pipeline = Pipeline(Settings(data_dir=str(options.data), device=options.device, gpu_when_busy="ignore"))
    worker = Worker(
        options=options,
        pipeline=pipeline,
        library=Library(options.data),
        results=results,
        every={task.name: task for task in every},
        parts=dealt(options, every),
        end=options.until,
    )
    try:
        await worker.all()
    finally:
        await pipeline.close()


# --- the run ------------------------------------------------------------------------------------


def main() -> None:
    options = _options()
    if options.share:
        asyncio.run(work(options))
        return
    until, results = time.time() + options.limit_s, Results(path=options.out)
    results.load()
    with tempfile.TemporaryDirectory(prefix="learned-") as folder:
        options.data = options.data or Path(folder)
        asyncio.run(drafted(options, results))
        if options.place:
            share = 1.0 if options.draft_only else PLACING
            asyncio.run(place_all(options, results, time.time() + share * (until - time.time())))
        results.write()
        if results.drafts and not options.draft_only:
            _spread(options, results, until)
    print("\n".join(results.lines()), flush=True)


def _spread(options: argparse.Namespace, results: Results, until: float) -> None:
    """One child per GPU; their files are put together at the end."""
    children = []
    gpus = options.gpus.split(",")
    for number, gpu in enumerate(gpus):
        data = options.data / f"gpu{number}"
        shutil.copytree(options.data / "library", data / "library", dirs_exist_ok=True)
        out = data / "results.json"
        replace_file(out, options.out.read_bytes())
        share = f"{number}/{len(gpus)}"
        own = ("--data", str(data), "--out", str(out), "--share", share, "--until", str(until))
        seen = {"CUDA_VISIBLE_DEVICES": gpu} if options.device == "cuda" else {}
        command = [sys.executable, __file__, *sys.argv[1:], *own]  # of two the later one counts
        children.append((subprocess.Popen(command, env={**os.environ, **seen}), out))
    for child, out in children:
        child.wait()
        part = Results(path=out)
        part.load()
        for name, one in part.drafts.items():
            results.drafts[name].update({key: one[key] for key in ("verified", "fresh") if key in one})
    results.write()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", type=Path, action="append", required=True, help="of trainer.recording")
    parser.add_argument("--tasks", type=Path, action="append", required=True, help="a folder of tasks")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="where libraries and judgements are kept; default: nowhere")
    parser.add_argument("--drafts", type=int, default=24, help="at most so many are verified")
    parser.add_argument("--draft-only", action="store_true", help="say what would be verified; needs no GPU")
    parser.add_argument(
        "--place",
        type=int,
        default=0,
        metavar="JOBS",
        help="find out before which tasks drafts change, in so many processes; no GPU",
    )
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--most", type=int, default=8, help="tasks that a skill changes, per verification")
    parser.add_argument("--jobs", type=int, default=8, help="tasks under way at once on a GPU")
    parser.add_argument("--gpus", default="0", help="their numbers, e.g. 0,1,2,3")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--capability", default="sm_90", help="of the GPU, where drafts are made without it")
    parser.add_argument("--split", type=int, default=6, help="seed of the deal of families")
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--share", default="", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
