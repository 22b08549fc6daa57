"""On which tasks a draft of a skill would change the rule's first suggestion. Used by learned_skills.py.

Half a second of one core a task, in processes of their own, on fake tensors: no GPU. Not covered: judging.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernel_lsp import skillbook
from kernel_lsp.agents.plan import Planner
from kernel_lsp.errors import KernelLspError
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline import recipes
from kernel_lsp.records import Skill
from kernel_lsp.skillbook import conditions
from trainer import ruling, tasks
from trainer.ruling import InProcess
from trainer.tasks import SuiteTask

Bench = tuple[str, Probe]
"""Kind of device, and what is installed there."""
AT_ONCE = 8
"""Tasks that are given to the processes, for each of them, before their answers are looked at."""


def firsts(paths: Sequence[Path], device: str, jobs: int) -> list[ruling.Places]:
    """What the rule suggests first for each task now; empty where nothing applies or it cannot be opened."""
    with _pool(jobs) as pool:
        return list(pool.map(_first, paths, [device] * len(paths), chunksize=4))


def found(
    parts: Mapping[str, Sequence[SuiteTask]],
    drafts: Sequence[Skill],
    bench: Bench,
    jobs: int,
    wanted: Mapping[str, int],
) -> Iterator[tuple[str, SuiteTask, list[str]]]:
    """(part, task, drafts that change something there); parts in turn, tasks in random order, until every
    draft has as many as ``wanted`` in each part."""
    mixed = [[(part, task) for task in random.Random(0).sample(own, len(own))] for part, own in parts.items()]
    queue = [one for several in zip_longest(*mixed) for one in several if one is not None]
    have: dict[str, Counter[str]] = {part: Counter() for part in parts}

    def left(part: str) -> list[Skill]:
        return [skill for skill in drafts if have[part][skill.name] < wanted[part]]

    with _pool(jobs) as pool:
        for start in range(0, len(queue), AT_ONCE * jobs):
            some = [(part, task, left(part)) for part, task in queue[start : start + AT_ONCE * jobs]]
            asked = [(part, task, pool.submit(_places, task.path, s, bench)) for part, task, s in some if s]
            for part, task, job in asked:
                names = job.result()
                have[part].update(names)
                yield part, task, names


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _opened(path: Path, device: str) -> tuple[Any, Any] | None:
    """(session, what was captured)."""
    from kernel_lsp.rewrite import engine

    task = tasks.read_task(path, path.stem)
    if isinstance(task, str):
        return None
    executable = [skill for skill in skillbook.load(skillbook.folders(())).skills if skill.executable]
    session = engine.opened(task.program, task.workload, device, executable)
    return session, session.capture()


def _first(path: Path, device: str) -> ruling.Places:
    try:
        opened = _opened(path, device)
        return asyncio.run(ruling.first(opened[0], opened[1].sites)) if opened else ()
    except KernelLspError:
        return ()


def _places(path: Path, drafts: Sequence[Skill], bench: Bench) -> list[str]:
    try:
        opened = _opened(path, bench[0])
        return asyncio.run(_changing(opened[1], InProcess(opened[0]), drafts, bench)) if opened else []
    except KernelLspError:
        return []


async def _changing(capture: Any, engine: InProcess, drafts: Sequence[Skill], bench: Bench) -> list[str]:
    about = SimpleNamespace(device=bench[0], probe=bench[1])
    one: Any = SimpleNamespace(bench=about, sites=capture.sites, engine=engine)
    around, triton = recipes.surroundings(one.bench, capture.inputs), bench[0] == "cuda"
    planner = Planner(engine.make, engine.look, weigh=engine.weigh)
    first = await anext(planner.courses(capture.sites, triton=triton), None)
    names = []
    for skill in drafts:
        if not any(conditions.unmet(skill.requires, around)):
            mine = await recipes.course_of(skill, one)
            if mine is not None and (first is None or mine.candidate.id != first.candidate.id):
                names.append(skill.name)
    return names
