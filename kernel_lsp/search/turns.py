"""Rollouts of several turns with feedback, in which fresh starts compete with refinement.

A rollout is a model's attempts in a row, each of which sees what the gate said of those before.
Models cling to their first idea, so whether to begin afresh or to go on is itself learned:
Thompson sampling over how often either has given a new best in this search. Rollouts do not see
each other. Pure: the same archive and number give the same answer. Not covered: what is asked and
how (agents/policy.py)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kernel_lsp.records import Archive, Attempt, Context, EvalStatus, Move, SearchPlan
from kernel_lsp.search.fitness import LOOKS_BETTER, speed

PATIENCE = 2
"""Turns of a rollout in a row without a new best of its own, after which it is finished."""
SPREAD = 0.5
"""Chance to go on with the best unfinished rollout; else with the next one, by the same chance.
Several prompts are in flight at once, and all of the best one would be one turn sampled several
times."""


def is_single(plan: SearchPlan) -> bool:
    """Whether it is one rollout, whose turns follow each other: one prompt at a time."""
    return plan.budget.candidates <= plan.turns


class TurnsStrategy:
    """A `Strategy` for models alone. A turn begins when the one before it in its rollout was
    judged."""

    def __init__(self, plan: SearchPlan, seed: int) -> None:
        self._seed, self._single, self._turns = seed, is_single(plan), plan.turns

    def choose(self, archive: Archive, number: int, *, slow: bool) -> Context | None:
        """The next turn of a rollout that waits for one, or a fresh rollout; None for a quick
        move."""
        if not slow:
            return None
        draw = random.Random(f"{self._seed}:{number}")
        rollouts, busy = _rollouts(archive.attempts), {one.rollout for one, _ in archive.unfinished}
        if self._single:
            if busy:
                return None
            return (
                self._going_on([*rollouts.values()], number, draw)
                if rollouts
                else _fresh(number, draw)
            )
        idle = [
            turns
            for name, turns in rollouts.items()
            if name not in busy and not is_finished(turns, self._turns)
        ]
        if idle and _refine(archive.attempts, draw):
            return self._going_on(idle, number, draw)
        return _fresh(number, draw)

    def _going_on(self, rollouts: list[list[Attempt]], number: int, draw: random.Random) -> Context:
        ordered = sorted(rollouts, key=lambda turns: (-_best_speed(turns), turns[0].number))
        place = next((i for i in range(len(ordered)) if draw.random() < SPREAD), 0)
        turns = ordered[place]
        return Context(
            number=number,
            seed=draw.getrandbits(32),
            move=Move.REFINE,
            parent=start(turns),
            history=tuple(turns),
            rollout=turns[0].rollout,
            turn=max(turn.turn for turn in turns) + 1,
        )


def _fresh(number: int, draw: random.Random) -> Context:
    return Context(
        number=number, seed=draw.getrandbits(32), move=Move.RESTART, rollout=number, turn=1
    )


def start(turns: Sequence[Attempt]) -> Attempt | None:
    """The attempt from which a rollout goes on: its best one, else the last one with a candidate to
    mend."""
    made = [turn for turn in turns if turn.candidate is not None]
    right = [turn for turn in made if _is_right(turn)]
    return max(right, key=speed) if right else made[-1] if made else None


def _is_right(turn: Attempt) -> bool:
    return turn.proposal is not None and turn.proposal.evaluation.status is EvalStatus.PASSED


def is_finished(turns: Sequence[Attempt], limit: int) -> bool:
    """Whether a rollout has had its turns, or the last ones brought nothing. The first is what
    others are compared with."""
    if len(turns) >= limit:
        return True
    best, since = speed(turns[0]), 0
    for turn in turns[1:]:
        since = 0 if speed(turn) > best else since + 1
        best = max(best, speed(turn))
    return since >= PATIENCE


def count_improvements(attempts: Sequence[Attempt]) -> dict[Move, tuple[int, int]]:
    """Move -> (tries, those that gave a new best of the search)."""
    found = {Move.RESTART: (0, 0), Move.REFINE: (0, 0)}
    best = 1.0
    for attempt in attempts:
        better = speed(attempt) > LOOKS_BETTER * best
        if attempt.turn and attempt.move in found:
            tries, wins = found[attempt.move]
            found[attempt.move] = tries + 1, wins + int(better)
        best = speed(attempt) if better else best
    return found


def _refine(attempts: Sequence[Attempt], draw: random.Random) -> bool:
    """Thompson sampling: one draw from each move's posterior Beta(1 + wins, 1 + others)."""
    drawn = {
        move: draw.betavariate(1 + wins, 1 + tries - wins)
        for move, (tries, wins) in count_improvements(attempts).items()
    }
    return drawn[Move.REFINE] > drawn[Move.RESTART]


def _rollouts(attempts: Sequence[Attempt]) -> dict[int, list[Attempt]]:
    """In order of number."""
    found: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.rollout is not None:
            found.setdefault(attempt.rollout, []).append(attempt)
    return found


def _best_speed(turns: Sequence[Attempt]) -> float:
    return max(speed(turn) for turn in turns)
