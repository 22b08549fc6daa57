"""What rollouts earn: rewards of their turns, advantages of their rows, and what a step then
learns from.

For both kinds of tasks (rl_tasks.py): rows of prompts in words (rows.py) and dialogs in the compact
form (rounds.py). Not covered: the rewards and advantages themselves (rewards.py, advantages.py)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from trainer.algorithms import advantages, rewards
from trainer.algorithms.advantages import ADVANTAGES, AdvantageRow
from trainer.algorithms.batches import Example
from trainer.config import Rl
from trainer.records import ModelTurn, Tally

UNKNOWN = "a turn whose reward is unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """What a step learns from, and how it went."""

    examples: tuple[Example, ...]
    metrics: dict[str, float]


def reward(
    turn: ModelTurn,
    parent: ModelTurn | None,
    rl: Rl,
    tally: Tally,
    terms: Counter[str],
    rollout: str,
) -> tuple[float, rewards.JudgedTurn] | None:
    """The reward of one turn, counted in ``tally`` and by its parts in ``terms``; None: unknown."""
    tally.read += 1
    judged = rewards.judge_turn(turn, parent)
    parts = None if judged is None else rewards.REWARDS[rl.reward](judged)
    if judged is None or parts is None:
        tally.skip(UNKNOWN, rollout)
        return None
    tally.kept += 1
    terms.update(parts)
    return rewards.total(parts), judged


def weigh_rows(rows: Sequence[AdvantageRow], rl: Rl) -> Sequence[float]:
    """An advantage for each row."""
    gamma = advantages.GAMMAS[rl.advantage] if rl.gamma is None else rl.gamma
    found = ADVANTAGES[rl.advantage](rows, gamma)
    return advantages.mean_absolute(found, rows) if rl.scaled else found


def geometric(values: Iterable[float | None]) -> float:
    """Mean of the known ones; NaN where none is."""
    known = [math.log(value) for value in values if value]
    return math.exp(fmean(known)) if known else math.nan
