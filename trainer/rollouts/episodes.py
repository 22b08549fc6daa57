"""One batch of rollouts in words: selections, turns of the policy, judgements, summaries.

The order of daVinci-kernel's step (arXiv 2606.16497), with its faults mended: every rollout has
its own id, the
null scheme takes part in the selections' baseline, a summary is measured on other tasks than its
source. All asks of one kind go to the sampler together. Nothing here is random but the sampler,
whose seed is (run, step, question), so that a step that is repeated after a crash is the same
step. Not covered: rewards and advantages (rows.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp.agents.summary import BETTER
from kernel_lsp.records import ToolCall
from trainer.algorithms import rewards
from trainer.config import Rl
from trainer.records import (
    Agent,
    ModelTurn,
    Permission,
    Trajectory,
    TrajectorySource,
    TurnOutcome,
    TurnStatus,
    Versions,
)
from trainer.rollouts.generation import Ask, Generator, Sampled
from trainer.rollouts.judge import Case
from trainer.rollouts.judging import JudgePool
from trainer.rollouts.parents import StoredParent
from trainer.rollouts.worlds import TableWorld, WorldState

NULL = "null"
OURS = Permission(training=True, source=True, redacted=True, because="our own task")
NOTHING_APPLIES = "none of the chosen skills applies here"


@dataclass(kw_only=True)
class Rollout:
    """One rollout that is going on."""

    id: str
    scheme: str
    state: WorldState
    skills: frozenset[str]
    group: str
    """What its turns are compared within: its task, or the stored parent that it starts from."""
    start: TurnOutcome | None = None
    """Of that parent."""
    turns: list[ModelTurn] = field(default_factory=list)
    sampled: dict[int, Sampled] = field(default_factory=dict)
    """By the turn's number."""
    earlier: dict[int, tuple[Sampled, ...]] = field(default_factory=dict)
    """Replies of the same turn before that one: what they learn is what the turn came to."""


@dataclass(kw_only=True)
class Selection:
    task: str
    scheme: str
    skills: tuple[str, ...]
    call: ToolCall
    ask: Ask
    sampled: Sampled


@dataclass(kw_only=True)
class Summary:
    task: str
    number: int
    reward: float
    call: ToolCall
    ask: Ask
    sampled: Sampled


@dataclass(kw_only=True)
class Episodes:
    """All of one step's."""

    rollouts: list[Rollout]
    selections: list[Selection]
    summaries: list[Summary]


def seed_of(*parts: object) -> int:
    """A number for a sampler, from what names its question."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")


async def roll(
    world: TableWorld, tasks: Sequence[str], sampler: Generator, pool: JudgePool, rl: Rl, seed: int
) -> Episodes:
    """Plays the tasks and returns their episodes. ``seed``: of the run and the step together."""
    selections = _selections(world, tasks, sampler, rl, seed)
    rollouts = list(_begin_rollouts(world, tasks, selections, rl))
    for turn in range(rl.turns):
        await _turn(world, rollouts, sampler, pool, turn, seed_of(seed, "policy", turn))
    summaries = _summaries(world, rollouts, sampler, rl, seed) if rl.summaries else []
    return Episodes(rollouts=rollouts, selections=selections, summaries=summaries)


async def roll_parents(
    world: TableWorld,
    parents: Sequence[StoredParent],
    sampler: Generator,
    pool: JudgePool,
    rl: Rl,
    seed: int,
) -> Episodes:
    """Fresh samples of one turn from stored parents; parents that the world lacks give none.

    Kernel-Smith (arXiv 2603.28342): each row of its RL is one parent, sampled 8 times."""
    begun = [(parent, world.begin_at(parent)) for parent in parents]
    rollouts = [
        Rollout(
            id=f"{parent.task}/{parent.id}/{number}",
            scheme=NULL,
            state=state,
            skills=frozenset({NULL}),
            group=f"{parent.task}/{parent.id}",
            start=parent.outcome,
        )
        for parent, state in begun
        if state is not None
        for number in range(rl.rollouts)
    ]
    await _turn(world, rollouts, sampler, pool, 0, seed_of(seed, "parents"))
    return Episodes(rollouts=rollouts, selections=[], summaries=[])


def _selections(
    world: TableWorld, tasks: Sequence[str], sampler: Generator, rl: Rl, seed: int
) -> list[Selection]:
    asked = [
        (task, str(scheme), world.selection(task)) for task in tasks for scheme in range(rl.schemes)
    ]
    found = []
    answers = sampler.generate([ask for _, _, ask in asked], seed_of(seed, "selection"))
    for (task, scheme, ask), sampled in zip(asked, answers, strict=True):
        call, names = world.selected(sampled.text)
        one = Selection(task=task, scheme=scheme, skills=names, call=call, ask=ask, sampled=sampled)
        found.append(one)
    return found


def _begin_rollouts(
    world: TableWorld, tasks: Sequence[str], selections: Sequence[Selection], rl: Rl
) -> Iterable[Rollout]:
    schemes: list[tuple[str, str, tuple[str, ...] | None]] = [
        (one.task, one.scheme, one.skills) for one in selections
    ]
    schemes += [(task, NULL, None) for task in tasks if rl.null]
    for task, scheme, skills in schemes:
        for number in range(rl.rollouts):
            yield Rollout(
                id=f"{task}/{scheme}/{number}",
                scheme=scheme,
                state=world.begin(task, skills),
                skills=frozenset(skills or ()) if skills is not None else frozenset({NULL}),
                group=task,
            )


async def _turn(
    world: TableWorld,
    rollouts: Sequence[Rollout],
    sampler: Generator,
    pool: JudgePool,
    step: int,
    seed: int,
) -> None:
    """One turn of every rollout."""
    asks = [(rollout, world.policy(rollout.state)) for rollout in rollouts]
    able = [(rollout, ask) for rollout, ask in asks if ask is not None]
    for rollout, ask in asks:
        if ask is None and step == 0:
            refused = TurnOutcome(status=TurnStatus.REFUSED, complaint=NOTHING_APPLIES)
            rollout.turns.append(ModelTurn(number=0, agent=Agent.POLICY, outcome=refused, step=0))
    answers = sampler.generate([ask for _, ask in able], seed)
    planned = [
        world.applied(rollout.state, sampled.text)
        for (rollout, _), sampled in zip(able, answers, strict=True)
    ]
    cases = [
        Case(task=rollout.state.task, steps=steps)
        for (rollout, _), (_, steps) in zip(able, planned, strict=True)
    ]
    outcomes = await pool.judge(cases)
    for (rollout, ask), sampled, (call, steps), outcome in zip(
        able, answers, planned, outcomes, strict=True
    ):
        number = len(rollout.turns)
        rollout.turns.append(
            replace(
                _make_turn(Agent.POLICY, ask, call, sampled, outcome),
                number=number,
                step=step,
                steps=steps,
                parent=_parent(rollout),
                parent_outcome=rollout.start if not rollout.turns else None,
                skills=tuple(sorted(rollout.skills - {NULL})),
            )
        )
        rollout.sampled[number] = sampled
        rollout.state = world.after(rollout.state, steps, outcome)


def _parent(rollout: Rollout) -> int | None:
    """The best turn so far: where `TableWorld.after` goes on."""
    right = [turn for turn in rollout.turns if turn.outcome.speedup is not None]
    return max(right, key=lambda turn: speedup(turn) or 0.0).number if right else None


def speedup(turn: ModelTurn) -> float | None:
    """The speedup over eager; None: it was not timed."""
    return turn.outcome.speedup.mid if turn.outcome.speedup else None


def _summaries(
    world: TableWorld, rollouts: Sequence[Rollout], sampler: Generator, rl: Rl, seed: int
) -> list[Summary]:
    """Of the best rollout of each task, where it clearly improved."""
    bests = _best_improved(rollouts)
    asks = [(one.state.task, ask) for one in bests if (ask := world.summary(one.state)) is not None]
    asked = [(task, number, ask) for task, ask in asks for number in range(rl.summaries)]
    answers = sampler.generate([ask for _, _, ask in asked], seed_of(seed, "summary"))
    found = []
    for (task, number, ask), sampled in zip(asked, answers, strict=True):
        call, drafts = world.advised(sampled.text)
        uplifts = [world.uplifts(draft, task, world.names) for draft in drafts]
        reward = rewards.summary(uplifts)
        one = Summary(task=task, number=number, reward=reward, call=call, ask=ask, sampled=sampled)
        found.append(one)
    return found


def _best_improved(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The fastest of each task, of those that clearly improved."""
    by_task: dict[str, list[Rollout]] = {one.state.task: [] for one in rollouts}
    for one in rollouts:
        if _has_improved(one):
            by_task[one.state.task].append(one)
    improved = filter(None, by_task.values())
    return [max(some, key=lambda one: one.state.speedup or 0.0) for some in improved]


def _has_improved(rollout: Rollout) -> bool:
    """The trigger of the product's summary agent, over policy turns
    (kernel_lsp/agents/summary.py)."""
    bounds = [turn.outcome.lower_bound for turn in rollout.turns]
    if not bounds or bounds[0] is None:
        return False
    return max(one or 0.0 for one in bounds) >= BETTER * max(1.0, bounds[0])


def _make_turn(
    agent: Agent, ask: Ask, call: ToolCall, sampled: Sampled, outcome: TurnOutcome
) -> ModelTurn:
    return ModelTurn(
        number=0,
        agent=agent,
        messages=ask.messages,
        reply=sampled.text,
        calls=(call,),
        prompt_ids=sampled.prompt_ids,
        reply_ids=sampled.reply_ids,
        logprobs=sampled.logprobs,
        outcome=outcome,
        prompt_tokens=len(sampled.prompt_ids),
        reply_tokens=len(sampled.reply_ids),
    )


def trajectories(episodes: Episodes, world: TableWorld, model: str) -> list[Trajectory]:
    """The rollouts as records, for whoever keeps them."""
    selected = {(one.task, one.scheme): one for one in episodes.selections}
    return [_trajectory(rollout, selected, world, model) for rollout in episodes.rollouts]


def _trajectory(
    rollout: Rollout, selected: dict[tuple[str, str], Selection], world: TableWorld, model: str
) -> Trajectory:
    task = rollout.state.task
    space = world.spaces[task]
    turns = list(rollout.turns)
    if one := selected.get((task, rollout.scheme)):
        nothing = TurnOutcome(status=TurnStatus.NONE)
        asked = _make_turn(Agent.SELECTION, one.ask, one.call, one.sampled, nothing)
        turns = [
            asked,
            *(
                replace(t, number=t.number + 1, parent=None if t.parent is None else t.parent + 1)
                for t in turns
            ),
        ]
    text = repr((model, rollout.id, [turn.reply for turn in turns])).encode()
    return Trajectory(
        id=hashlib.sha256(text).hexdigest()[:16],
        task=hashlib.sha256(task.encode()).hexdigest()[:16],
        task_name=task,
        family=space.family,
        device="cuda" if "NVIDIA" in space.device else "cpu",
        device_name=space.device,
        versions=Versions(),
        source=TrajectorySource.ROLLOUT,
        origin=model,
        rollout=rollout.id,
        scheme=rollout.scheme,
        turns=tuple(replace(turn, model=model) for turn in turns),
        permission=OURS,
    )
