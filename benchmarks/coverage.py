"""What the engine finds in every task: no GPU, no timing, nothing of the programs' size is
allocated.

    python -m benchmarks.coverage [ROOT] [--filter RE] [--silent] [--time-s 2] [--shard 1/8]
    … --reasons      of every task where nothing applies, what the engine says of it: the nearest
                     skill and what it misses, or the roof in figures

Per family how many programs have a place where a skill applies with all preconditions proved and a
saving by the cost model, how many have none, and which could not be captured and why. It says what
may be offered, never that it is right or faster: that is `kernel-lsp bench`'s to say. What goes
around the whole program (torch.compile, a CUDA graph) does not count."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernel_lsp import analysis, skillbook, workloads
from kernel_lsp.commands.rows import family
from kernel_lsp.errors import KernelLspError
from kernel_lsp.records import Explained, Skill, Snapshot
from kernel_lsp.rewrite.engine import EngineSession

TASKS = Path(__file__).resolve().parent / "tasks"


@dataclass(frozen=True, kw_only=True)
class TaskCoverage:
    """One task as the engine sees it."""

    name: str
    group: str
    skills: tuple[str, ...] = ()
    reason: str = ""
    """Why it could not be captured; empty when it was."""
    notes: tuple[str, ...] = ()
    """Skills that failed on it."""
    seconds: float = 0.0
    said: str = ""
    """Why nothing applies, in the words of the engine; empty where something does."""


@dataclass
class FamilyCoverage:
    """One family."""

    found: list[TaskCoverage] = field(default_factory=list)

    @property
    def matched(self) -> list[TaskCoverage]:
        return [task for task in self.found if task.skills]

    @property
    def refused(self) -> list[TaskCoverage]:
        return [task for task in self.found if task.reason]

    @property
    def silent(self) -> list[TaskCoverage]:
        return [task for task in self.found if not task.skills and not task.reason]


def look(path: Path, root: Path, skills: list[Skill]) -> TaskCoverage:
    text, start = path.read_text(), time.monotonic()
    name = path.relative_to(root).as_posix()
    group = f"{name.split('/')[0]}/{family(text) or '-'}"
    snapshot = Snapshot(uri=path.as_uri(), text=text)
    target = analysis.find_target(analysis.analyze(snapshot), "Model")
    try:
        if target is None:
            raise KernelLspError("no Model in the file")
        program = analysis.slice_program(snapshot, target)
        known, _ = workloads.workloads_for(snapshot, target, None)
        session = EngineSession(program, known[0], "cuda", skills)
        sites = session.capture().sites
    except KernelLspError as error:
        return TaskCoverage(name=name, group=group, reason=str(error))
    # A compiler or a recorded graph around everything is no rewrite of any operation.
    names = tuple(dict.fromkeys(site.skill for site in sites if not site.wraps))
    seconds = time.monotonic() - start
    said = "" if names else "; ".join(_reasons(session.explain()))
    return TaskCoverage(
        name=name,
        group=group,
        skills=names,
        notes=tuple(session.notes),
        seconds=seconds,
        said=said,
    )


def _reasons(explained: Explained) -> Iterator[str]:
    for miss in explained.misses:
        yield f"{miss.op}: {miss.skill + ': ' if miss.skill else ''}{miss.missing}"
    if (roof := explained.roof) is not None:
        share = roof.least_s / max(roof.taken_s, 1e-12)
        least_us, taken_us = roof.least_s * 1e6, roof.taken_s * 1e6
        yield f"{roof.kind.value} {least_us:.0f} of {taken_us:.0f} us ({share:.2f})"


def table(lines: dict[str, FamilyCoverage]) -> Iterator[str]:
    yield f"{'family':28}{'tasks':>6}{'matched':>8}{'silent':>7}{'refused':>8}  skills"
    for group in sorted(lines):
        line = lines[group]
        counts = Counter(skill for task in line.found for skill in task.skills)
        skills = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        numbers = (
            f"{len(line.found):6}{len(line.matched):8}{len(line.silent):7}{len(line.refused):8}"
        )
        yield f"{group:28}{numbers}  {skills}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=TASKS)
    parser.add_argument("--filter", default="", help="only tasks whose path matches")
    parser.add_argument(
        "--silent", action="store_true", help="name every task where nothing applies"
    )
    parser.add_argument(
        "--time-s", type=float, default=5.0, help="name tasks that took longer to read"
    )
    parser.add_argument(
        "--reasons", action="store_true", help="why nothing applies, of every such task"
    )
    parser.add_argument("--shard", default="1/1", help="I/N: every N-th task from the I-th")
    options = parser.parse_args()
    number, of = map(int, options.shard.split("/"))
    skills = [s for s in skillbook.load([skillbook.built_in_folder()]).skills if s.executable]
    paths = [p for p in sorted(options.root.rglob("*.py")) if re.search(options.filter, str(p))]
    paths = paths[number - 1 :: of]
    lines: dict[str, FamilyCoverage] = {}
    for path in paths:
        found = look(path, options.root, skills)
        lines.setdefault(found.group, FamilyCoverage()).found.append(found)
        print(".", end="", file=sys.stderr, flush=True)
    print("", file=sys.stderr)
    print("\n".join(table(lines)))
    show([task for line in lines.values() for task in line.found], options)


def show(every: list[TaskCoverage], options: argparse.Namespace) -> None:
    """Print what there is to say of single tasks."""
    matched, refused = sum(bool(t.skills) for t in every), [t for t in every if t.reason]
    print(f"\n{len(every)} tasks: {matched} matched, {len(every) - matched - len(refused)} silent")
    for task in refused:
        print(f"refused  {task.name}: {task.reason}")
    for task in every:
        for note in dict.fromkeys(task.notes):
            print(f"broken   {task.name}: {note}")
        if task.seconds > options.time_s:
            print(f"slow     {task.name}: {task.seconds:.1f} s")
        if options.silent and not task.skills and not task.reason:
            print(f"silent   {task.name}")
        if options.reasons and not task.skills and not task.reason:
            print(f"silent   {task.name}: {task.said}")


if __name__ == "__main__":
    main()
