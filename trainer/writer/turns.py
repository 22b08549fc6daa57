"""Turns of a writer: what a verdict is worth, who is compared with whom, and what a step says.

A group is the samples of one task; a sample whose first reply failed is asked again with the real
failure in its question (short_form.py). Rewards are those of trainer/algorithms/rewards.py, and two
of values alone for where nothing can be timed. A turn that nobody could judge has the reward None
and is no row. Pure, no torch. Not covered: sampling, the update (reinforcing.py)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kernel_lsp.records import Json
from trainer.algorithms import rewards
from trainer.algorithms.advantages import ADVANTAGES, GAMMAS, AdvantageRow
from trainer.algorithms.rewards import JudgedTurn, Reward
from trainer.records import Agent
from trainer.writer.judging import UNCHANGED, WriterVerdict
from trainer.writer.rows import has_kernel

PARSED, RAN = 0.1, 0.2
"""Of `graded`: what a reply gets for the first steps towards being right."""
TIMED = {name: rewards.REWARDS[name] for name in ("kevin", "bound")}
"""Published rewards that need times and no profile."""
NAMES = ("right", "graded", *TIMED)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterTurn:
    task: str
    member: int
    """Of its group."""
    turn: int
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    text: str
    verdict: WriterVerdict | None = None
    """None: it was not judged in time."""


def reward_of(verdict: WriterVerdict | None, name: str) -> float | None:
    """None: nobody could say. A program that was left as it was earns nothing."""
    if verdict is None or verdict.unknown:
        return None
    if name == "right":
        return float(verdict.right)
    if name == "graded":
        return _graded(verdict)
    return _published(verdict, TIMED[name])


def _graded(verdict: WriterVerdict) -> float:
    """r = 0.1 P + 0.2 R + 0.7 C: parsed, its first call ran, right. Ours: where few replies are
    right, most groups of `right` have equal rewards and teach nothing."""
    if verdict.status == UNCHANGED:
        return 0.0
    return PARSED * verdict.parsed + RAN * verdict.compiled + (1 - PARSED - RAN) * verdict.right


def _published(verdict: WriterVerdict, reward: Reward) -> float | None:
    found = JudgedTurn(
        correct=verdict.right,
        speedup=(verdict.speedups or {}).get("eager"),
        lower=verdict.lower,
    )
    terms = reward(found)
    return None if terms is None else rewards.total(terms)


def advantages_of(
    turns: Sequence[WriterTurn], reward: str, advantage: str, gamma: float | None = None
) -> list[tuple[WriterTurn, float]]:
    """Turns with a reward, and their advantages; ``gamma`` None: as published."""
    known = [(turn, reward_of(turn.verdict, reward)) for turn in turns]
    rows = [
        AdvantageRow(
            agent=Agent.POLICY,
            task=turn.task,
            rollout=str(turn.member),
            step=turn.turn,
            reward=worth,
        )
        for turn, worth in known
        if worth is not None
    ]
    discount = GAMMAS[advantage] if gamma is None else gamma
    values = ADVANTAGES[advantage](rows, discount)
    rewarded = [turn for turn, worth in known if worth is not None]
    return list(zip(rewarded, values, strict=True))


def failed(turn: WriterTurn) -> bool:
    """Whether it is asked again: judged, and not right."""
    return _judged(turn) and not _right(turn)


def failure_of(verdict: WriterVerdict) -> str:
    """What a further turn hears."""
    return f"{verdict.status}: {verdict.detail}" if verdict.detail else verdict.status


def shares(turns: Sequence[WriterTurn], reward: str) -> Json:
    """Means over turns that were judged, first turns alone, and what is right after each turn.

    ``right/turn_2`` counts all samples whose first turn was judged: right at first, or mended."""
    first = [turn for turn in turns if turn.turn == 0 and _judged(turn)]
    worth = [reward_of(turn.verdict, reward) for turn in turns]
    found: Json = {
        "replies": len(turns),
        "unknown": sum(not _judged(turn) for turn in turns),
        "reward": _mean([one for one in worth if one is not None]),
        "parsed": _mean([turn.verdict.parsed for turn in first if turn.verdict]),
        "ran": _mean([_ran(turn) for turn in first]),
        "own_kernel": _mean([has_kernel(turn.text) for turn in first if _right(turn)]),
    }
    return found | _right_after(turns, {(turn.task, turn.member) for turn in first})


def _right_after(turns: Sequence[WriterTurn], judged: Collection[tuple[str, int]]) -> Json:
    """``right/turn_1``, …: of these samples those that were right by then."""
    found: Json = {}
    for number in range(1 + max((turn.turn for turn in turns), default=0)):
        right = {(t.task, t.member) for t in turns if t.turn <= number and _right(t)}
        found[f"right/turn_{number + 1}"] = _mean([sample in right for sample in judged])
    return found


def _judged(turn: WriterTurn) -> bool:
    return turn.verdict is not None and not turn.verdict.unknown


def _right(turn: WriterTurn) -> bool:
    return turn.verdict is not None and turn.verdict.right


def _ran(turn: WriterTurn) -> bool:
    """Its first call went through, and it was another program than the original."""
    return turn.verdict is not None and turn.verdict.compiled and turn.verdict.status != UNCHANGED


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
