"""Which turns teach by example: filters, diversity and mix, each pure and each counting what it
leaves out.

The dual filter of Kernel-Smith (arXiv 2603.28342): a first step is kept when it is correct, a
later one when it is correct and faster than its parent; all steps would let a model copy better
kernels from its own later prompts, first steps alone teach translation. The diversity filter of
daVinci-kernel (arXiv 2606.16497) clusters and down-samples, so that what is easy to find does not
drown the rest; theirs embeds with a language model and clusters by HDBSCAN, ours compares
operators, skills and parameters and needs neither."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kernel_lsp import wire
from kernel_lsp.records import Step
from trainer.records import (
    Agent,
    Human,
    ModelTurn,
    Skipped,
    Tally,
    Trajectory,
    TurnOutcome,
    TurnStatus,
)
from trainer.tasks.families import structure
from trainer.tasks.likeness import Likeness
from trainer.tasks.task_suites import DataPart, FamilySplit

AGENTS = (Agent.POLICY, Agent.SELECTION, Agent.SUMMARY)
DIMENSIONS = 256
"""Of hashed features."""
ALIKE = 0.9
"""Cosine from which two rows are of one cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRow:
    """One turn of a data set."""

    trajectory: Trajectory
    turn: ModelTurn
    part: DataPart
    before: tuple[Step, ...] = ()
    """The plan that the turn started from."""
    left_out: str | None = None
    """Why it is no example to imitate; None: it is one. It stays in the data set either way,
    because offline training learns from bad turns too."""

    @property
    def example(self) -> bool:
        """Whether it may be learned from."""
        return self.left_out is None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleChoice:
    """How examples are chosen."""

    per_cluster: int = 32
    """Most examples of one cluster."""
    mix: Mapping[Agent, float] | None = None
    """Shares of the agents among examples; None: as they come."""
    seed: int = 0


def deal_parts(
    trajectories: Iterable[Trajectory], split: FamilySplit, benchmark: Likeness | None = None
) -> tuple[dict[DataPart, list[Trajectory]], tuple[Skipped, ...]]:
    """Trajectories by part; those that could leak are left out: of unknown family, or like a
    benchmark's."""
    tally, parts = Tally(), {part: list[Trajectory]() for part in DataPart}
    for one in trajectories:
        if one.family is None:
            tally.skip(
                "its program was not kept, so its family is unknown and could leak", one.origin
            )
        elif benchmark and one.program is None:
            tally.skip(
                "its program was not kept, so it cannot be compared with the benchmark", one.origin
            )
        elif benchmark and one.program and (likeness := benchmark.why(one.program, one.entry)):
            tally.skip(f"repeats a benchmark file: {likeness}", one.origin)
        else:
            parts[split.part(one.family)].append(one)
    return parts, tally.skipped


def rows(
    trajectories: Iterable[Trajectory], part: DataPart, choice: ExampleChoice
) -> list[DatasetRow]:
    """Every turn, with what keeps it from being an example."""
    found: list[DatasetRow] = []
    for one in trajectories:
        by_number = {turn.number: turn for turn in one.turns}
        for turn in one.turns:
            above = by_number.get(turn.parent) if turn.parent is not None else None
            made = DatasetRow(
                trajectory=one, turn=turn, part=part, before=above.steps if above else ()
            )
            found.append(replace(made, left_out=unfit(one, turn)))
    return mix_agents(diverse(once(found), choice), choice)


def reasons(found: Iterable[DatasetRow]) -> tuple[Skipped, ...]:
    """How many rows were left out, by reason, with a few of each."""
    tally = Tally()
    for row in found:
        if row.left_out:
            tally.skip(row.left_out, f"{row.trajectory.origin}/{row.turn.number}")
    return tally.skipped


# --- the dual filter -----------------------------------------------------------------------------


def unfit(trajectory: Trajectory, turn: ModelTurn) -> str | None:
    """Why a turn is no example; None: it is."""
    if turn.problems or turn.outcome.status is TurnStatus.REFUSED:
        return "the reply was no valid call, or was refused"
    if not turn.calls:
        return "there is no call to imitate"
    if turn.agent is Agent.SELECTION:
        return (
            None
            if _has_paid(trajectory)
            else "selection: its rollout found nothing right and faster"
        )
    if turn.agent is Agent.SUMMARY:
        drafts = [skill for call in turn.calls for skill in call.arguments.get("new_skills", ())]
        return None if drafts else "summary: nothing was written down"
    if turn.outcome.status is TurnStatus.NONE:
        return (
            None if _has_paid(trajectory) else "reading: its rollout found nothing right and faster"
        )
    if turn.human in (Human.REVERTED, Human.DISMISSED):
        return "its user took it back or said no"
    if turn.human is Human.CHANGED:
        return "its user made something else of it, which is the example"
    if turn.changes is not None:
        return None  # nobody judged it, but somebody keeps it who saw the right one
    return dual(turn)


def dual(turn: ModelTurn) -> str | None:
    """Kernel-Smith's filter, and which half of it a policy turn fails."""
    which = "first step" if turn.step == 0 else "later step"
    if turn.outcome.correct is None:
        return f"{which}: it was not judged"
    if not turn.outcome.correct:
        return f"{which}: not correct"
    if turn.step == 0:
        return None
    if turn.parent_outcome is None:
        return "later step: its parent's outcome is unknown"
    faster = gain(turn.outcome, turn.parent_outcome)
    if faster is None:
        return "later step: its speed cannot be compared with its parent's"
    return None if faster > 1.0 else "later step: not faster than its parent"


def gain(outcome: TurnOutcome, parent: TurnOutcome) -> float | None:
    """How many times faster than the parent: the smallest ratio over baselines that both were
    timed against, else of times. A parent that was wrong is beaten by whatever is right
    (infinity). None: unknown."""
    if parent.correct is False:
        return math.inf
    common = outcome.speedups.keys() & parent.speedups.keys()
    if common:
        return min(outcome.speedups[name].mid / parent.speedups[name].mid for name in common)
    if outcome.candidate_ms and parent.candidate_ms:
        return parent.candidate_ms / outcome.candidate_ms
    return None


def _has_paid(trajectory: Trajectory) -> bool:
    best = trajectory.best
    return best is not None and (best.outcome.lower_bound or 0.0) > 1.0


def once(found: Sequence[DatasetRow]) -> list[DatasetRow]:
    """All rows; an example that repeats an answer to the same question is marked as left out."""
    seen: set[str] = set()
    out = []
    for row in found:
        if row.example:
            asked = row.turn.messages or [
                row.trajectory.task,
                row.trajectory.device_name,
                row.before,
            ]
            key = _hash(wire.dumps([row.turn.agent, asked, row.turn.calls]))
            row = (
                replace(row, left_out="the same answer to the same question")
                if key in seen
                else row
            )
            seen.add(key)
        out.append(row)
    return out


# --- diversity -----------------------------------------------------------------------------------


def diverse(found: Sequence[DatasetRow], choice: ExampleChoice) -> list[DatasetRow]:
    """At most ``per_cluster`` examples of every cluster: tasks take turns, the best of each comes
    first."""
    kept: set[int] = set()
    examples = [place for place, row in enumerate(found) if row.example]
    for cluster in clusters([found[place] for place in examples]):
        places = [examples[member] for member in cluster]
        kept |= set(_spread(found, places)[: choice.per_cluster])
    late = "its cluster has enough examples"
    return [
        replace(row, left_out=late) if row.example and place not in kept else row
        for place, row in enumerate(found)
    ]


def clusters(found: Sequence[DatasetRow], alike: float = ALIKE) -> list[list[int]]:
    """Leader clustering: each row joins the first leader that it resembles, else leads. Places, in
    order.

    One pass and one number; the order is that of a hash, so that the result does not depend on the
    sources'."""
    order = sorted(range(len(found)), key=lambda place: _hash(_name(found[place])))
    leaders = np.zeros((64, DIMENSIONS))
    members: list[list[int]] = []
    for place in order:
        vector = features(found[place])
        scores = leaders[: len(members)] @ vector
        if scores.size and scores.max() >= alike:
            members[int(scores.argmax())].append(place)
            continue
        if len(members) == len(leaders):
            leaders = np.vstack([leaders, np.zeros_like(leaders)])
        leaders[len(members)] = vector
        members.append([place])
    return [sorted(cluster) for cluster in members]


def features(row: DatasetRow) -> NDArray[np.float64]:
    """Hashed counts of operators, agent, skills, parameters and outcome, of length one."""
    vector = np.zeros(DIMENSIONS)
    for name, weight in _features(row):
        vector[int(_hash(name)[:8], 16) % DIMENSIONS] += weight
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


def _features(row: DatasetRow) -> Iterable[tuple[str, float]]:
    one = row.trajectory
    built = structure(one.program, one.entry) if one.program else None
    ops = built.ops if built else (one.family or "",)
    yield f"agent {row.turn.agent}", 2.0
    for first, second in zip(("", *ops), ops, strict=False):
        yield f"op {second}", 1.0
        yield f"pair {first} {second}", 0.5
    for call in row.turn.calls:
        yield f"call {call.name} {call.arguments.get('skill', '')}", 2.0
        for key, value in (call.arguments.get("parameters") or {}).items():
            yield f"parameter {key} {value}", 0.5
    yield f"step {min(row.turn.step, 3)}", 0.5


def _spread(found: Sequence[DatasetRow], places: Sequence[int]) -> list[int]:
    """All first choices of the tasks, then all second ones, and so on."""
    of_task: dict[str, list[int]] = defaultdict(list)
    for place in sorted(
        places, key=lambda p: (-(found[p].turn.outcome.lower_bound or 0.0), _name(found[p]))
    ):
        of_task[found[place].trajectory.task].append(place)
    ranked = [
        (rank, task, place) for task, mine in of_task.items() for rank, place in enumerate(mine)
    ]
    return [place for _, _, place in sorted(ranked)]


# --- mix -----------------------------------------------------------------------------------------


def mix_agents(found: Sequence[DatasetRow], choice: ExampleChoice) -> list[DatasetRow]:
    """All rows; of agents with more examples than their share some are marked as left out. None is
    ever repeated."""
    if choice.mix is None:
        return list(found)
    wanted = quotas(
        {agent: sum(r.example and r.turn.agent is agent for r in found) for agent in AGENTS},
        choice.mix,
    )
    kept: set[int] = set()
    for agent, number in wanted.items():
        mine = [place for place, row in enumerate(found) if row.example and row.turn.agent is agent]
        kept |= set(sorted(mine, key=lambda p: _hash(f"{choice.seed} {_name(found[p])}"))[:number])
    return [
        replace(row, left_out=f"the mix has enough of {row.turn.agent}")
        if row.example and place not in kept
        else row
        for place, row in enumerate(found)
    ]


def quotas(counts: Mapping[Agent, int], mix: Mapping[Agent, float]) -> dict[Agent, int]:
    """How many examples of each agent fit the shares; one that has none gives its share to the
    others."""
    shares = {
        agent: mix.get(agent, 0.0)
        for agent in AGENTS
        if counts.get(agent) and mix.get(agent, 0.0) > 0
    }
    if not shares:
        return dict.fromkeys(AGENTS, 0)
    whole = sum(shares.values())
    total = min(counts[agent] * whole / share for agent, share in shares.items())
    return {
        agent: min(counts[agent], round(total * shares.get(agent, 0.0) / whole))
        for agent in AGENTS
        if agent in counts
    }


def _name(row: DatasetRow) -> str:
    return f"{row.trajectory.id}/{row.turn.number}"


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
