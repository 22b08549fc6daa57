"""How good an attempt is, in two scales: what may be claimed, and what quick and full verdicts
share.

A quick judgement knows eager alone, a full one also torch.compile, so their `fitness` answers two
questions. `speed` asks both the same one. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kernel_lsp.records import Attempt, EvalStatus, Evaluation

LOOKS_BETTER = 1.03
"""A quick verdict must beat the best full one by this factor to be judged in full: the best of
several noisy results is over-estimated by a few percent."""
EAGER = "eager"


def fitness(evaluation: Evaluation) -> float | None:
    """Lower bound of the speedup over every baseline that took part; None unless right and
    timed."""
    if evaluation.status is not EvalStatus.PASSED or not evaluation.speedups:
        return None
    return min(interval.low for interval in evaluation.speedups.values())


def speed(attempt: Attempt) -> float:
    """Lower bound of the speedup over eager, which takes part in every judgement; 0: not right or
    timed."""
    if attempt.fitness is None or attempt.proposal is None:
        return attempt.fitness or 0.0
    over_eager = attempt.proposal.evaluation.speedups.get(EAGER)
    return over_eager.low if over_eager else attempt.fitness


def gain(attempt: Attempt) -> float:
    """An attempt's ``max(0, ln fitness)``: what it adds to the statistics of the skills in it."""
    return max(0.0, math.log(attempt.fitness)) if attempt.fitness else 0.0


def best(attempts: Iterable[Attempt]) -> Attempt | None:
    """The best one that was judged in full; of equals the first."""
    full = (attempt for attempt in attempts if attempt.complete and attempt.fitness is not None)
    return max(full, key=lambda attempt: attempt.fitness or 0.0, default=None)


def looks_better(attempt: Attempt, leader: Attempt | None) -> bool:
    """Whether a quick verdict is worth a full judgement."""
    bar = max(1.0, speed(leader)) if leader else 1.0
    return not attempt.complete and speed(attempt) > LOOKS_BETTER * bar
