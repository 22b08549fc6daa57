"""Learned skills on a device: drafted from recorded plans, verified on other families, again on fresh ones.

    PYTHONPATH=. python3 benchmarks/learned_skills.py --table plans-0.json --table plans-1.json \\
        --tasks /tmp/gen6 --tasks benchmarks/tasks --out learned-h200-DATE.json --limit-s 240 --gpus 0,1,2,3

Drafts are made of the recorded tasks (drafting.py), against what the rule suggests first now. Families
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
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from benchmarks import drafting
from benchmarks.learned_results import Results
from kernel_lsp import wire
from kernel_lsp.config import Settings
from kernel_lsp.files import replace_file
from kernel_lsp.library import Library, store
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.pipeline.proving import Asked, Proving
from kernel_lsp.records import Json, Requirements, Standing, Verification
from kernel_lsp.skillbook import conditions
from kernel_lsp.skillbook.conditions import Surroundings
from trainer import lessons, tasks
from trainer.tasks import SuiteTask

MOST_HAVE = 0.75
"""Of the tasks that taught a draft: kinds of operators that so many have are looked for."""
MOST_OPENED = 10
"""Times as many tasks are opened, at most, as are judged: on many the rule does what a draft says."""
PLACING = 0.3
"""Of the time that is left, where drafts are verified in the same run."""
LAST_S = 25.0
"""A verification takes about this long: none is begun with less left."""


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
        chosen = {name: one for name, one in drafts.items() if re.search(self.options.only, name)}
        skills = list(dict.fromkeys(one["recipe"][0]["skill"] for one in chosen.values()))
        mine = [name for name, one in chosen.items() if one["recipe"][0]["skill"] in skills[number::count]]
        for name in mine:
            if "verified" not in drafts[name] or self._again(drafts[name]["verified"]):
                await self._verified(name, "verified")
            if drafts[name].get("verified", {}).get("accepted") and "fresh" not in drafts[name]:
                await self._verified(name, "fresh")

    def _again(self, known: Json) -> bool:
        """Whether more tasks could decide it."""
        more = self.options.most > known["uplift"]["tasks"] if known["uplift"] else False
        return bool(self.options.again and known["undecided"] and more)

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

        enough = len(named) >= drafting.NAMED * self.options.most
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
        draft = self.results.drafts[name]
        if where in draft:  # what was undecided stays told
            draft.setdefault("earlier", []).append(draft[where])
        draft[where] = wire.to_json(found)
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
        parts=drafting.dealt(options, every),
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
        asyncio.run(drafting.drafted(options, results))
        if options.place:
            share = 1.0 if options.draft_only else PLACING
            asyncio.run(drafting.place_all(options, results, time.time() + share * (until - time.time())))
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
    before = dict(results.drafts)
    for child, out in children:
        child.wait()
        part = Results(path=out)
        part.load()
        results.drafts |= {name: one for name, one in part.drafts.items() if one != before[name]}
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
    parser.add_argument("--only", default="", metavar="REGEX", help="of drafts' names")
    parser.add_argument("--again", action="store_true", help="what fewer tasks left undecided, too")
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
