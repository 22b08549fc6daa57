"""Advantages of rows, agent by agent: TRLOO, leave-one-out, GRPO, Kevin's, and one shared by all
agents.

An `AdvantageRow` is one reply with its reward or return. Each scheme is a function `rows -> one
number per row`, so recipes exchange them by name (`ADVANTAGES`); rows of the same group are
compared with each other and with nothing else. Pure, no torch. Rejected rows stay in their group:
rejection masks tokens, later (losses.py; arXiv 2602.05885, "order matters"). Not covered: token
masks; which turns are worth a row at all (batches.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from trainer.records import Agent

K = TypeVar("K", bound=Hashable)

SELECTION_WEIGHT, SUMMARY_WEIGHT = 0.3, 0.5
"""daVinci-kernel's "loss weights", which it applies to advantages (arXiv 2606.16497)."""
KEVIN_GAMMA = 0.4
GAMMAS = {"trloo": 1.0, "grpo": 1.0, "kevin": KEVIN_GAMMA, "shared": 1.0}
"""By advantage: the published one, where a recipe says nothing."""
EPSILON = 1e-6
"""Added to a deviation: a group whose rewards are all alike teaches nothing instead of dividing by
0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageRow:
    """One reply that a loss may learn from, or a group's member without one (the null scheme)."""

    agent: Agent
    task: str
    rollout: str
    """Unique per task and agent with the step: of a selection its scheme, of a summary its
    sample."""
    step: int = 0
    """The turn, from 0; groups of policy rows are (task, step) over all schemes of the task."""
    reward: float
    """Of this turn alone; later turns are added by `discounted_returns`."""
    final: float | None = None
    """What its whole rollout came to (the best turn), for `shared_advantages`; None: as
    ``reward``."""


Advantage = Callable[[Sequence[AdvantageRow], float], list[float]]
"""(rows, gamma) -> one number per row, in their order."""


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_t = sum over u >= t of gamma^(u - t) r_u: credit for what a turn made possible."""
    found: list[float] = []
    for reward in reversed(rewards):
        found.append(reward + gamma * (found[-1] if found else 0.0))
    return found[::-1]


def trloo(rows: Sequence[AdvantageRow], gamma: float = 1.0) -> list[float]:
    """Policy: A = N / (N - 1) (G - mean G) within (task, turn), over all schemes; N = 1 gives A =
    G.

    G: return over the rollout's turns (daVinci-kernel and Dr. Kernel, arXiv 2606.16497 and arXiv
    2602.05885; published gamma
    1). The factor makes the mean that of the *others*: a mean that counts the row itself shrinks
    the gradient by 1 - 1/N, and N differs by turn. No division by a deviation. Selection and
    summary: `leave_one_out` with 0.3 and 0.5."""
    returns = _returns(rows, gamma)
    keys = [(row.agent, row.task, row.step) for row in rows]
    found = _of_agents(rows, returns)
    for members in _groups(keys).values():
        if rows[members[0]].agent is Agent.POLICY:
            values = _others([returns[i] for i in members], alone=True)
            for i, value in zip(members, values, strict=True):
                found[i] = value
    return found


def grpo(rows: Sequence[AdvantageRow], gamma: float = 1.0) -> list[float]:
    """Policy: A = (G - mean G) / (std G + 1e-6) within (task, turn), the mean with the row itself.

    GRPO (arXiv 2402.03300) on the groups and returns of `trloo`, for comparison; std is the
    unbiased one, and a row without others gets 0. Selection and summary as in `trloo`."""
    return _score_rows(
        rows, _returns(rows, gamma), [(row.agent, row.task, row.step) for row in rows]
    )


def kevin(rows: Sequence[AdvantageRow], gamma: float = KEVIN_GAMMA) -> list[float]:
    """Policy: A = (G - mean G) / (std G + 1e-6) over *all* turns of all rollouts of the task,
    gamma 0.4.

    Kevin (arXiv 2507.11948): with m rollouts of n turns, m n rows in one group. Selection and
    summary as in `trloo`.
    """
    return _score_rows(rows, _returns(rows, gamma), [(row.agent, row.task) for row in rows])


def shared_advantages(rows: Sequence[AdvantageRow], gamma: float = 1.0) -> list[float]:
    """One advantage for all agents of a rollout: A = N / (N - 1) (F - mean F) over all rows of the
    task.

    F: what the row's rollout came to in the end. For the ablation (issue 6: shared instead of
    per-agent): a selection is then credited like the turns after it, and gamma is not used."""
    ends = [row.reward if row.final is None else row.final for row in rows]
    found = [0.0] * len(rows)
    for members in _groups([row.task for row in rows]).values():
        for i, value in zip(members, _others([ends[i] for i in members], alone=True), strict=True):
            found[i] = value
    return found


ADVANTAGES: dict[str, Advantage] = {
    "trloo": trloo,
    "grpo": grpo,
    "kevin": kevin,
    "shared": shared_advantages,
}


def leave_one_out(rewards: Sequence[float], weight: float) -> list[float]:
    """A_j = w (R_j - mean of the other R); one that is alone gets 0, having nothing to be compared
    with.

    daVinci-kernel (arXiv 2606.16497), w = 0.3 for selections of a task and 0.5 for summaries of
    one trigger."""
    return [weight * value for value in _others(rewards, alone=False)]


def mean_absolute(advantages: Sequence[float], rows: Sequence[AdvantageRow]) -> list[float]:
    """Divided by the mean |A| of the task's policy rows; a task of zeros stays zero.

    The released daVinci-kernel scripts set this (``adv_cross_scheme``, arXiv 2606.16497); there
    per token, here per row, so that long replies do not set the scale.
    """
    found = list(advantages)
    policy = [i for i, row in enumerate(rows) if row.agent is Agent.POLICY]
    for members in _groups([rows[i].task for i in policy]).values():
        own = [policy[place] for place in members]
        scale = math.fsum(abs(advantages[i]) for i in own) / len(own)
        for i in own:
            found[i] = advantages[i] / scale if scale > 0 else 0.0
    return found


def informative(rows: Sequence[AdvantageRow]) -> set[str]:
    """Tasks some of whose groups have different rewards: only these teach.

    daVinci-kernel drops the others, judged by the last turn (arXiv 2606.16497); here any turn of
    any agent counts, or a task whose first turns differ is lost."""
    groups = _groups([(row.agent, row.task, row.step) for row in rows])
    return {
        rows[members[0]].task
        for members in groups.values()
        if max(rows[i].reward for i in members) > min(rows[i].reward for i in members)
    }


# --- parts ---------------------------------------------------------------------------------------


def _returns(rows: Sequence[AdvantageRow], gamma: float) -> list[float]:
    """Of policy rows the return over their rollout, of others the reward. Raises ValueError on
    twins."""
    found = [row.reward for row in rows]
    for (agent, _, rollout), members in _groups(
        [(r.agent, r.task, r.rollout) for r in rows]
    ).items():
        ordered = sorted(members, key=lambda i: rows[i].step)
        if len({rows[i].step for i in ordered}) < len(ordered):
            raise ValueError(
                f"two {agent} rows of rollout {rollout} have one step: ids must be unique"
            )
        if agent is Agent.POLICY:
            for i, value in zip(
                ordered, discounted_returns([rows[i].reward for i in ordered], gamma), strict=True
            ):
                found[i] = value
    return found


def _of_agents(rows: Sequence[AdvantageRow], returns: Sequence[float]) -> list[float]:
    """Leave-one-out of selections and summaries; 0 for policy rows, which the caller fills."""
    found = [0.0] * len(rows)
    weights = {Agent.SELECTION: SELECTION_WEIGHT, Agent.SUMMARY: SUMMARY_WEIGHT}
    for (agent, _), members in _groups([(row.agent, row.task) for row in rows]).items():
        if agent in weights:
            values = leave_one_out([returns[i] for i in members], weights[agent])
            for i, value in zip(members, values, strict=True):
                found[i] = value
    return found


def _score_rows(
    rows: Sequence[AdvantageRow], returns: Sequence[float], keys: Sequence[Hashable]
) -> list[float]:
    found = _of_agents(rows, returns)
    for members in _groups(keys).values():
        if rows[members[0]].agent is Agent.POLICY:
            for i, value in zip(members, _z([returns[i] for i in members]), strict=True):
                found[i] = value
    return found


def _others(values: Sequence[float], *, alone: bool) -> list[float]:
    """Each minus the mean of the others; one without others is itself (``alone``) or 0."""
    count = len(values)
    if count == 1:
        return [values[0] if alone else 0.0]
    mean = math.fsum(values) / count
    return [count / (count - 1) * (value - mean) for value in values]


def _z(values: Sequence[float]) -> list[float]:
    count = len(values)
    if count == 1:
        return [0.0]
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return [(value - mean) / (deviation + EPSILON) for value in values]


def _groups(keys: Sequence[K]) -> dict[K, list[int]]:
    found: dict[K, list[int]] = {}
    for place, key in enumerate(keys):
        found.setdefault(key, []).append(place)
    return found
