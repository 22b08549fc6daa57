"""Why a search stops: at the roofline, when nothing better comes any more, or at a limit. Pure.

Every limit but stagnation counts from the search's beginning, resumed parts included, because
everything is read from the archive. Stagnation counts from where this run began: who asks again
after "nothing better came", perhaps in another mode, wants more. Seeds were judged by the quick
search and count for nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.records import Archive, Attempt, Move, SearchBudget, StopReason
from kernel_lsp.search.fitness import best

AT_THE_ROOF = 1.1
"""Times the least that the device's memory allows. Good kernels reach 90 to 98 % of a copy on an
H200 (benchmarks/results/kernels-h200-2026-11-21.txt), so little is left to win."""
REPEATED = 0.25
"""What an attempt that is the same as an earlier one counts for stagnation."""
WASTED = 12
"""Attempts in a row with nothing to judge that count as stagnation, too: three rollouts of four
turns. A model that answered faster than the gate and repeated itself made 97 attempts in a search
of 12 candidates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpentBudget:
    limits: SearchBudget
    begun: int = 0
    """Number of this run's first attempt."""

    def stop(self, archive: Archive) -> StopReason | None:
        """Why the search has to stop now; None: go on."""
        limits, attempts, cost = self.limits, archive.attempts, archive.cost
        checks = (
            (StopReason.ROOFLINE, _at_the_roof(attempts)),
            (StopReason.CANDIDATES, count_judged(attempts) >= limits.candidates),
            (
                StopReason.CANDIDATES,
                limits.attempts is not None and count_attempts(attempts) >= limits.attempts,
            ),
            (StopReason.STAGNATION, stagnant(attempts, self.begun) >= limits.stagnation),
            (StopReason.STAGNATION, count_wasted(attempts, self.begun) >= WASTED),
            (StopReason.SECONDS, limits.seconds is not None and archive.seconds >= limits.seconds),
            (StopReason.TOKENS, limits.tokens is not None and cost.tokens >= limits.tokens),
            (
                StopReason.GPU_SECONDS,
                limits.gpu_seconds is not None and cost.gpu_s >= limits.gpu_seconds,
            ),
        )
        return next((reason for reason, reached in checks if reached), None)

    def seconds_left(self, archive: Archive) -> float | None:
        """Seconds until the budget's end; None: no limit."""
        return (
            None if self.limits.seconds is None else max(0.0, self.limits.seconds - archive.seconds)
        )


def count_judged(attempts: Sequence[Attempt]) -> int:
    """Candidates that this search has judged."""
    return sum(1 for attempt in attempts if _was_judged(attempt))


def count_attempts(attempts: Sequence[Attempt]) -> int:
    """The number of attempts that are of this search, whatever became of them."""
    return sum(1 for attempt in attempts if attempt.move is not Move.SEED)


def _was_judged(attempt: Attempt) -> bool:
    return attempt.proposal is not None and attempt.move is not Move.SEED


def stagnant(attempts: Sequence[Attempt], begun: int = 0) -> float:
    """Candidates judged since the best one, attempts from number ``begun`` on; repeated ones and
    useless replies count for `REPEATED`."""
    leader = best(attempts)
    first = max(begun, leader.number + 1 if leader else 0)
    later = [a for a in attempts if a.number >= first and a.move is not Move.SEED]
    return sum(1.0 if _was_judged(attempt) else REPEATED for attempt in later)


def count_wasted(attempts: Sequence[Attempt], begun: int = 0) -> int:
    """The newest attempts, from number ``begun`` on, that had nothing to judge."""
    useless = itertools.takewhile(
        lambda a: a.number >= begun and a.move is not Move.SEED and not _was_judged(a),
        reversed(attempts),
    )
    return sum(1 for _ in useless)


def _at_the_roof(attempts: Sequence[Attempt]) -> bool:
    leader = best(attempts)
    share = leader.proposal.evaluation.roofline_share if leader and leader.proposal else None
    return share is not None and share * AT_THE_ROOF >= 1.0
