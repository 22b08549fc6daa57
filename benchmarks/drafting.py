"""Drafts of skills from recorded plans, and the tasks on which each would change something. No GPU is needed.

Used by learned_skills.py. Not covered: whether a draft helps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import placing
from benchmarks.learned_results import Results, kind_of
from kernel_lsp import interpreter, skillbook
from kernel_lsp.agents.summary_rule import Seen
from kernel_lsp.interpreter import Probe
from kernel_lsp.library import Library, store
from kernel_lsp.pipeline import learning
from kernel_lsp.records import Lesson, Origin, Standing
from trainer import lessons, ruling, tables, tasks
from trainer.reading import Grant
from trainer.records import Tally
from trainer.tasks import Part, Split, SuiteTask

NAMED = 3
"""Times as many tasks as are judged have to name what a draft covers: then only these count."""
MOST_OF_A_KIND = 3
"""Drafts about the same skill at the same operations."""


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
