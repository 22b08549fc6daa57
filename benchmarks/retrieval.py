"""How fast skills are recalled from a large library.

    python benchmarks/retrieval.py                  5,000 skills
    python benchmarks/retrieval.py --out FILE       also as text to keep

The library is made of the built-in skills' sentences, tags and descriptions, mixed at random with
a fixed seed, plus words that nobody else uses. Queries are the sources of benchmarks/tasks: longer
than what a capture asks. Wall time counts everybody on the machine, CPU time only this program;
both are printed. Bar: p99 of 20 ms. Building the index is once per change of the library and no
part of it."""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import statistics
import time
from pathlib import Path

import numpy

from kernel_lsp import skillbook
from kernel_lsp.records import Skill
from kernel_lsp.skillbook.recall import Index

TASKS = Path(__file__).parent / "tasks"
BAR_MS = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--skills", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    skills = library(arguments.skills)
    start = time.process_time()
    index = Index(skills)
    building = time.process_time() - start
    queries = [path.read_text() for path in sorted(TASKS.rglob("*.py"))]
    times = [timed(index, query) for _ in range(arguments.rounds) for query in queries]
    text = report(skills, len(queries), times, building)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


def library(count: int) -> list[Skill]:
    """Skills that look like the built-in ones."""
    known = skillbook.load(skillbook.folders()).skills
    sentences = [s for skill in known for s in re.split(r"(?<=[.:])\s+", skill.body) if s.strip()]
    tags = sorted({tag for skill in known for tag in skill.tags})
    dice = random.Random(2026)
    return [_skill(number, known, sentences, tags, dice) for number in range(count)]


def _skill(
    number: int,
    known: tuple[Skill, ...],
    sentences: list[str],
    tags: list[str],
    dice: random.Random,
) -> Skill:
    own = " ".join("".join(dice.choices("bcdfgklmnprstvaeiou", k=8)) for _ in range(4))
    like = dice.choice(known)
    return Skill(
        name=f"{like.name}-{number}",
        description=dice.choice(known).description,
        scope=like.scope,
        tags=tuple(dice.sample(tags, 8)),
        version=1,
        body=" ".join([*dice.choices(sentences, k=16), own]),
        path="",
        executable=False,
    )


def timed(index: Index, query: str) -> tuple[float, float]:
    """Milliseconds of wall and of CPU time."""
    start, cpu = time.perf_counter(), time.thread_time()
    found = index.select(query, 20)
    taken = (time.perf_counter() - start) * 1e3, (time.thread_time() - cpu) * 1e3
    assert len(found) == 20
    return taken


def report(
    skills: list[Skill], queries: int, times: list[tuple[float, float]], building: float
) -> str:
    chars = statistics.mean(len(skill.body) for skill in skills)
    wall, cpu = ([pair[i] for pair in times] for i in (0, 1))
    lines = [
        f"skills                 {len(skills):>8}   (bodies of {chars:.0f} characters)",
        f"queries                {len(times):>8}   ({queries} programs)",
    ]
    for name, values in (("wall", wall), ("CPU", cpu)):
        kept = "kept" if p99(values) <= BAR_MS else "MISSED"
        lines += [
            f"select, {name:4} median    {statistics.median(values):>8.2f} ms",
            f"select, {name:4} p99       {p99(values):>8.2f} ms   (bar {BAR_MS:.0f} ms: {kept})",
            f"select, {name:4} worst     {max(values):>8.2f} ms",
        ]
    machine = f"{os.cpu_count()} cores of {platform.machine()}, Python {platform.python_version()}"
    return "\n".join(
        [
            *lines,
            f"building the index     {building:>8.2f} s of CPU time",
            f"load average {os.getloadavg()[0]:.2f} on {machine}, numpy {numpy.__version__}",
        ]
    )


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


if __name__ == "__main__":
    main()
