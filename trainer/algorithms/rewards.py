"""Rewards of one judged turn, as named terms: five published ones and ours. Pure, no torch.

Every reward is a function `Judged -> terms`, so recipes exchange them by name (`REWARDS`) and
curves show each term. None is an answer: what was not measured earns nothing, costs nothing, and
is no row. A decoy (right values without the claimed work) is not right here, and nothing reads a
second flag for it. Each function names the paper that it comes from; what differs from it is said
beside. Not covered: credit over turns and between agents (advantages.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from trainer.records import Human, ModelTurn, TurnOutcome, TurnStatus

RewardTerms = dict[str, float]
"""Name -> weighted part; the reward is their sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedTurn:
    """What rewards may look at. All speedups are baseline time / candidate time of the same
    judgement."""

    correct: bool
    """Right, and no decoy."""
    speedup: float | None = None
    """Over eager; the middle of the interval."""
    lower: float | None = None
    """Lower confidence bound over the best baseline that took part."""
    over_eager: float | None = None
    """Lower bound."""
    over_compile: float | None = None
    """Lower bound; None: torch.compile did not take part."""
    coverage: float | None = None
    """Share of the GPU time that is spent in the candidate's own kernels, 0..1."""
    parent: float | None = None
    """Speedup over eager of the turn that it started from; None: it started from the target
    itself, or from one that was not right."""
    human: Human | None = None


Reward = Callable[[JudgedTurn], RewardTerms | None]


def judge_turn(turn: ModelTurn, parent: ModelTurn | None = None) -> JudgedTurn | None:
    """What is known of a turn; None: nobody could judge it, which is no fault of the reply.

    Where ``parent`` is None its outcome is what the turn itself knows (``parent_outcome``)."""
    outcome = turn.outcome
    if outcome.status in (TurnStatus.NOT_RUN, TurnStatus.NONE):
        return None
    eager = outcome.speedups.get("eager") if _right(outcome) else None
    compiled = outcome.speedups.get("compile") if _right(outcome) else None
    return JudgedTurn(
        correct=_right(outcome),
        speedup=eager.mid if eager else None,
        lower=outcome.lower_bound if _right(outcome) else None,
        over_eager=eager.low if eager else None,
        over_compile=compiled.low if compiled else None,
        coverage=outcome.coverage,
        parent=_speedup(turn.parent_outcome if parent is None else parent.outcome),
        human=turn.human,
    )


def _right(outcome: TurnOutcome) -> bool:
    """By the status alone: a cheat may well have had the right values."""
    return outcome.status is TurnStatus.PASSED


def _speedup(outcome: TurnOutcome | None) -> float | None:
    if outcome is None or not _right(outcome):
        return None
    eager = outcome.speedups.get("eager")
    return eager.mid if eager else None


# --- published -----------------------------------------------------------------------------------


def davinci(found: JudgedTurn, cap: float = 6.0) -> RewardTerms | None:
    """r = 0.5 C + 0.5 min(s, U) C + 0.5 PR C with U = 6; failures and decoys 0.

    daVinci-kernel (arXiv 2606.16497, released code). There is no lower limit of s: a right
    but slow kernel earns its fraction.
    """
    return _halves(found, cap, 0.5)


def dr_kernel(found: JudgedTurn, cap: float = 3.0) -> RewardTerms | None:
    """r = C + C min(s, 3) + C PR; failures and decoys 0.

    Dr. Kernel (arXiv 2602.05885). Its released code has half of it, which no advantage with a
    group mean can tell apart from a smaller learning rate.
    """
    return _halves(found, cap, 1.0)


def _halves(found: JudgedTurn, cap: float, weight: float) -> RewardTerms | None:
    if not found.correct:
        return {"correct": 0.0, "speed": 0.0, "coverage": 0.0}
    if found.speedup is None or found.coverage is None:
        return None
    speed = min(found.speedup, cap)
    return {"correct": weight, "speed": weight * speed, "coverage": weight * found.coverage}


def kevin(found: JudgedTurn) -> RewardTerms | None:
    """S = 0.3 C + C s, without an upper limit; failures 0. Kevin (arXiv 2507.11948)."""
    if not found.correct:
        return {"correct": 0.0, "speed": 0.0}
    return None if found.speedup is None else {"correct": 0.3, "speed": found.speedup}


def parent_relative(found: JudgedTurn) -> RewardTerms | None:
    """r = C s / s_parent. Kernel-Smith (arXiv 2603.28342).

    Without a parent that was right, the target itself is the parent (s_parent = 1).
    """
    if not found.correct:
        return {"speed": 0.0}
    return None if found.speedup is None else {"speed": found.speedup / (found.parent or 1.0)}


def milestone(found: JudgedTurn, by: float = 1.05) -> RewardTerms | None:
    """-1 failed, 1 right, 2 more than 5 % faster than eager, 3 also than torch.compile.

    CUDA Agent (arXiv 2602.24286). Our speedups are lower bounds. Faster than eager and never
    compared with torch.compile is unknown: 2 or 3.
    """
    if not found.correct:
        return {"milestone": -1.0}
    if found.over_eager is None:
        return None
    if found.over_eager <= by:
        return {"milestone": 1.0}
    if found.over_compile is None:
        return None
    return {"milestone": 3.0 if found.over_compile > by else 2.0}


# --- ours ----------------------------------------------------------------------------------------

HUMAN = {
    Human.KEPT: 0.25,
    Human.ACCEPTED: 0.1,
    Human.CHANGED: 0.0,
    Human.DISMISSED: -0.1,
    Human.REVERTED: -0.25,
}
"""Changed is neither: it was worth taking, and not worth leaving as it was. Kept counts as much as
28 % more speed (exp 0.25): more than noise, less than a rewrite's usual gain, so a liked slow one
never beats a fast one. Reverted is the opposite."""
RIGHT, SLOWEST, CAP = 0.5, -0.5, 6.0


def bound(found: JudgedTurn) -> RewardTerms | None:
    """r = 0.5 C + C clip(ln l, -0.5, ln 6) + h: what may be claimed, and what a person made of it.

    l: lower confidence bound of the speedup over the best baseline that took part. The logarithm
    makes twice as fast worth as much as half as fast costs. A right one at 1/sqrt(e) = 0.61x or
    slower earns 0 like a failure, never less. h: `HUMAN`, and no term where nobody said anything;
    failures keep theirs."""
    human = {} if found.human is None else {"human": HUMAN[found.human]}
    if not found.correct:
        return {"correct": 0.0, "speed": 0.0} | human
    if found.lower is None:
        return None
    return {
        "correct": RIGHT,
        "speed": min(max(math.log(found.lower), SLOWEST), math.log(CAP)),
    } | human


REWARDS: dict[str, Reward] = {
    "davinci": davinci,
    "dr_kernel": dr_kernel,
    "kevin": kevin,
    "parent_relative": parent_relative,
    "milestone": milestone,
    "bound": bound,
}


def total(terms: RewardTerms) -> float:
    """The reward: the sum of its terms."""
    return sum(terms.values())


# --- what selections and summaries earn ----------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardedRollout:
    """One rollout's policy rewards, turn by turn; turns without a reward are left out."""

    id: str
    """Its own: rollouts of one scheme that share one collapse into their last (a fault of the code
    of arXiv 2606.16497)."""
    scheme: str
    skills: frozenset[str] = frozenset()
    """What the scheme had chosen; schemes with the same set are one."""
    rewards: tuple[float, ...] = ()


OVER_TURNS: dict[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "mean": lambda values: math.fsum(values) / len(values),
    "first": lambda values: values[0],
}
OVER_ROLLOUTS = {"mean": OVER_TURNS["mean"], "max": OVER_TURNS["max"]}


def schemes(
    rollouts: Iterable[RewardedRollout], over_turns: str = "max", over_rollouts: str = "mean"
) -> dict[str, float]:
    """Scheme -> what its skills were worth: over turns first (max), then over its rollouts (mean).

    R(scheme) = (1 / M) sum over its M rollouts of max over turns t of r_t.

    daVinci-kernel (arXiv 2606.16497). All rollouts of schemes with the same skills are pooled. The
    null scheme
    is one like any other, so that the baseline knows what no skills are worth (a fault of the
    released code, where it is left out). Schemes none of whose turns have a reward are not in the
    answer. Raises ValueError when two rollouts have one id."""
    pools: dict[Hashable, list[float]] = {}
    of_scheme: dict[str, Hashable] = {}
    seen: set[str] = set()
    for rollout in rollouts:
        if rollout.id in seen:
            raise ValueError(f"two rollouts are called {rollout.id}: each needs an id of its own")
        seen.add(rollout.id)
        of_scheme[rollout.scheme] = rollout.skills
        if rollout.rewards:
            pools.setdefault(rollout.skills, []).append(OVER_TURNS[over_turns](rollout.rewards))
    found = {skills: OVER_ROLLOUTS[over_rollouts](values) for skills, values in pools.items()}
    return {scheme: found[skills] for scheme, skills in of_scheme.items() if skills in found}


def summary(uplifts: Sequence[Sequence[float]]) -> float:
    """What a summary earns: R = max(0, max over its drafts d of mean over tasks u of uplift(d, u)).

    ``uplifts``: per accepted draft ln(speedup with / without) on each task *other than its
    source*, paired. daVinci-kernel takes the speedup of one greedy sample on the source task
    itself (arXiv 2606.16497; a fault of 1.12), which rewards remembering the task. A draft without
    a measured task earns nothing."""
    means = [math.fsum(of_draft) / len(of_draft) for of_draft in uplifts if of_draft]
    return max([0.0, *means])
