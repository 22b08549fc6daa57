"""Rows with advantages of one batch of rollouts in words: one for each reply of an agent.

The policy's turns, the selections that led to them (the null scheme too, which is compared and not
learned) and the summaries. Not covered: how the rollouts came about (episodes.py), the loss
(rl.py)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trainer.algorithms import advantages, rewards
from trainer.algorithms.advantages import AdvantageRow
from trainer.algorithms.batches import Example
from trainer.algorithms.rollout_credit import Learned, geometric, reward, weigh_rows
from trainer.config import Rl
from trainer.records import Agent, ModelTurn, Tally, TurnStatus
from trainer.rollouts.episodes import Episodes, Rollout, speedup
from trainer.rollouts.generation import Sampled

RowCredit = Mapping[str, Sequence[tuple[ModelTurn, float, rewards.JudgedTurn]]]
"""Rollout -> its turns whose reward is known, with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabeledRow:
    """One row with what was said."""

    row: AdvantageRow
    sampled: Sampled | None
    """None: compared with others, and not learned."""
    judged: rewards.JudgedTurn | None = None
    earlier: tuple[Sampled, ...] = ()
    """Replies of the same turn before that one, with the same advantage."""


def make_examples(episodes: Episodes, rl: Rl, tally: Tally) -> Learned:
    """Rewards, advantages and examples, all agents together."""
    terms: Counter[str] = Counter()
    credit = {one.id: [*_rewarded_turns(one, rl, tally, terms)] for one in episodes.rollouts}
    entries = [*_policy(episodes, credit), *_selections(episodes, credit), *_summaries(episodes)]
    rows = [one.row for one in entries]
    examples = tuple(
        _example(one.row, sampled, advantage, one.judged)
        for one, advantage in zip(entries, weigh_rows(rows, rl), strict=True)
        if one.sampled is not None
        for sampled in (*one.earlier, one.sampled)
    )
    return Learned(examples=examples, metrics=_metrics(episodes, rows, credit, terms))


def _rewarded_turns(
    rollout: Rollout, rl: Rl, tally: Tally, terms: Counter[str]
) -> Iterator[tuple[ModelTurn, float, rewards.JudgedTurn]]:
    by_number = {turn.number: turn for turn in rollout.turns}
    for turn in rollout.turns:
        parent = by_number.get(turn.parent) if turn.parent is not None else None
        if (found := reward(turn, parent, rl, tally, terms, rollout.id)) is not None:
            yield turn, *found


def _policy(episodes: Episodes, credit: RowCredit) -> Iterator[LabeledRow]:
    for rollout in episodes.rollouts:
        known = credit[rollout.id]
        final = max((value for _, value, _ in known), default=None)
        for turn, value, judged in known:
            if turn.number in rollout.sampled:
                # The refused turn of a useless selection has no tokens.
                row = AdvantageRow(
                    agent=Agent.POLICY,
                    task=rollout.group,
                    rollout=rollout.id,
                    step=turn.step,
                    reward=value,
                    final=final,
                )
                yield LabeledRow(
                    row=row,
                    sampled=rollout.sampled[turn.number],
                    judged=judged,
                    earlier=rollout.earlier.get(turn.number, ()),
                )


def _selections(episodes: Episodes, credit: RowCredit) -> Iterator[LabeledRow]:
    worth = rewards.schemes(
        rewards.RewardedRollout(
            id=rollout.id,
            scheme=f"{rollout.group}\0{rollout.scheme}",
            skills=frozenset({rollout.group, *rollout.skills}),
            rewards=tuple(value for _, value, _ in credit[rollout.id]),
        )
        for rollout in episodes.rollouts
    )
    selections = {(one.task, one.scheme): one for one in episodes.selections}
    for key, value in worth.items():
        task, _, scheme = key.partition("\0")
        selection = selections.get((task, scheme))
        row = AdvantageRow(agent=Agent.SELECTION, task=task, rollout=scheme, reward=value)
        yield LabeledRow(row=row, sampled=selection.sampled if selection else None)


def _summaries(episodes: Episodes) -> Iterator[LabeledRow]:
    for one in episodes.summaries:
        row = AdvantageRow(
            agent=Agent.SUMMARY, task=one.task, rollout=str(one.number), reward=one.reward
        )
        yield LabeledRow(row=row, sampled=one.sampled)


def _example(
    row: AdvantageRow, sampled: Sampled, advantage: float, found: rewards.JudgedTurn | None
) -> Example:
    return Example(
        prompt=sampled.prompt_ids,
        reply=sampled.reply_ids,
        allowed=sampled.allowed,
        sampled=sampled.logprobs,
        advantage=advantage,
        trajectory=f"{row.agent.value}/{row.task}/{row.rollout}",
        agent=row.agent,
        correct=found is not None and found.correct,
        coverage=found.coverage if found else None,
        version=sampled.version,
    )


def _metrics(
    episodes: Episodes, rows: Sequence[AdvantageRow], credit: RowCredit, terms: Counter[str]
) -> dict[str, float]:
    values = [[value for _, value, _ in known] for known in credit.values()]
    tasks = {rollout.group for rollout in episodes.rollouts}
    turns = [turn for rollout in episodes.rollouts for turn in rollout.turns]
    count = max(1, sum(map(len, values)))
    found = {
        "reward/policy": _mean(value for of in values for value in of),
        "reward/best_turn": _mean(max(of) for of in values if of),
        "turns/correct": _mean(float(turn.outcome.status is TurnStatus.PASSED) for turn in turns),
        "speedup/first_turn": geometric(speedup(turn) for turn in turns if turn.step == 0),
        "speedup/best_turn": geometric(rollout.state.speedup for rollout in episodes.rollouts),
        "groups/informative": len(advantages.informative(rows)) / max(1, len(tasks)),
    }
    found |= _rewards_of(Agent.SELECTION, rows) | _rewards_of(Agent.SUMMARY, rows)
    return found | {f"terms/{name}": value / count for name, value in terms.items()}


def _rewards_of(agent: Agent, rows: Sequence[AdvantageRow]) -> dict[str, float]:
    """The mean of its rewards; nothing where it has none."""
    own = [row.reward for row in rows if row.agent is agent]
    return {f"reward/{agent.value}": fmean(own)} if own else {}


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return fmean(known) if known else math.nan
