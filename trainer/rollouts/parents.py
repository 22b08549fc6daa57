"""Stored parents: programs from which GRPO samples anew, as Kernel-Smith trains its improver.

    python -m trainer.rollouts.parents --archive searches/ --out parents.jsonl

Of every recorded rollout the *best step* alone counts (arXiv 2603.28342): all steps leak, because
later prompts hold better programs, and first steps teach translation. A row is where that step
started, {task, steps, speedup, code}: `rl.parents` names such files, and each of them is a group of
fresh samples whose reward is their speedup over the parent's, r_i = C_i s_i / s_parent, and whose
advantage is GRPO's, (r_i - mean r) / (std r + 1e-6). Not covered: what is sampled
(episodes.py) and how rows become advantages (rows.py)."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp import wire
from kernel_lsp.agents.tools import WRITE
from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.records import Interval, Step
from trainer.data import corpora
from trainer.data.reading import Grant
from trainer.records import (
    ModelTurn,
    Tally,
    Trajectory,
    TrajectorySource,
    TurnOutcome,
    TurnStatus,
)

BROKEN = "a stored parent that cannot be read"
NOT_RIGHT = "its best step started from the target, or from what was not right"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredParent:
    """Where the best step of a recorded rollout started."""

    task: str
    """As its suite or table names it; of a search the id of program and workload."""
    steps: tuple[Step, ...] = ()
    code: str | None = None
    """Of a parent that was written by hand: what write_rewrite was given."""
    speedup: float
    """Over eager, as recorded: what the samples' speedups are divided by."""

    @property
    def id(self) -> str:
        """A hash of what the parent is, the same in every run."""
        text = wire.dumps([self.task, self.steps, self.code])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def outcome(self) -> TurnOutcome:
        """Its recorded verdict, as `rewards` looks at it."""
        seen = Interval(low=self.speedup, mid=self.speedup, high=self.speedup)
        return TurnOutcome(status=TurnStatus.PASSED, correct=True, speedups={"eager": seen})


def of_trajectories(found: Iterable[Trajectory], tally: Tally) -> Iterator[StoredParent]:
    """The stored parents: at most one of each trajectory, and no program twice."""
    known: set[str] = set()
    for trajectory in found:
        tally.read += 1
        parent = _parent_of_best(trajectory)
        if parent is None:
            tally.skip(NOT_RIGHT, trajectory.id)
        elif parent.id not in known:
            known.add(parent.id)
            tally.kept += 1
            yield parent


def _parent_of_best(trajectory: Trajectory) -> StoredParent | None:
    best = trajectory.best
    turns = {turn.number: turn for turn in trajectory.turns}
    parent = turns.get(best.parent) if best is not None and best.parent is not None else None
    if parent is None:
        return None
    named = trajectory.source in (TrajectorySource.TABLE, TrajectorySource.ROLLOUT)
    task = trajectory.task_name if named else trajectory.task
    if task is None:
        return None
    eager = parent.outcome.speedups.get("eager")
    code = _code(parent)
    if eager is None or not (parent.steps or code):
        return None
    return StoredParent(task=task, steps=parent.steps, code=code, speedup=eager.mid)


def _code(turn: ModelTurn) -> str | None:
    """What a model wrote; None: the engine made it of steps, or the text was not kept."""
    written = [call for call in turn.calls if call.name == WRITE]
    return str(written[-1].arguments["code"]) if written and not turn.steps else None


def write(parents: Iterable[StoredParent], path: Path) -> int:
    """How many were written, one a line."""
    lines = [wire.dumps(parent) for parent in parents]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


def read(patterns: Sequence[str], folder: Path, tally: Tally) -> list[StoredParent]:
    """Raises ConfigError when a pattern finds no file."""
    found: dict[str, StoredParent] = {}
    for pattern in patterns:
        paths = sorted((folder / pattern).parent.resolve().glob(Path(pattern).name))
        if not paths:
            raise ConfigError(
                f"rl.parents: {folder / pattern} finds no file",
                "make it with `python -m trainer.rollouts.parents`",
            )
        for path in paths:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    parent = wire.from_json(StoredParent, json.loads(line))
                except (ValueError, TypeError, KeyError) as error:
                    tally.skip(BROKEN, f"{path.name}:{number}: {error}")
                    continue
                found[parent.id] = parent
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the parents and says what was left out; the exit code: 1 where none was found, 2 for a
    source that cannot be used."""
    options = _parser().parse_args(arguments)
    tally = Tally()
    try:
        corpus = corpora.read(
            journals=options.journal,
            archives=_archives(options.archive),
            grant=Grant(own=options.own),
        )
        count = write(of_trajectories(corpus.trajectories, tally), options.out)
    except (KernelLspError, OSError) as error:
        print(f"parents: {error}", file=sys.stderr)
        return 2
    print(f"{count} parents in {options.out}")
    for one in (*corpus.skipped, *tally.skipped):
        print(f"left out: {one.count} x {one.reason}")
    return 0 if count else 1


def _archives(named: Sequence[Path]) -> list[Path]:
    """Files as they are; of folders all archives below them."""
    return [
        one for path in named for one in (sorted(path.rglob("*.db")) if path.is_dir() else [path])
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.rollouts.parents", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, required=True, metavar="JSONL")
    parser.add_argument("--journal", action="append", default=[], metavar="FILE_OR_ADDRESS")
    parser.add_argument("--archive", type=Path, action="append", default=[], metavar="PATH")
    parser.add_argument("--own", action="store_true", help="archives are yours to train on")
    return parser


if __name__ == "__main__":
    sys.exit(main())
