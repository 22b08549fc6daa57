"""How verified skills do at work, per hardware, and which of them has stopped helping.

After every quick job in which a learned skill's candidate was judged, one row is added up: was it
the offer, and how much faster was it than the best that was judged beside it. What is far behind
is not judged in full, so the pairs see the close cases and the lost ones; therefore a skill is
retired only when it is seldom the offer, too. One small SQLite file that any number of processes
add to. A disk that refuses, or a damaged file, costs the statistics alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.library.uplift import t95
from kernel_lsp.records import EvalStatus, Proposal, UsageStats, Verdict
from kernel_lsp.skillbook import learned
from kernel_lsp.tallies import Tallies

FILE = "usage.db"
PROPOSER = "recipe:"
"""What the proposer of a learned skill's candidate begins with; the skill's name follows."""
MIN_USES, MIN_PAIRS = 8, 4
SELDOM = 0.25
"""Share of its uses in which it was the offer."""
TABLE = (
    "CREATE TABLE IF NOT EXISTS usage (skill TEXT, hardware TEXT, uses INTEGER NOT NULL,"
    " wins INTEGER NOT NULL, pairs INTEGER NOT NULL, uplift_sum REAL NOT NULL, uplift_squares "
    "REAL NOT NULL,"
    " PRIMARY KEY (skill, hardware))"
)
ADD = (
    "INSERT INTO usage VALUES (?, ?, 1, ?, ?, ?, ?) ON CONFLICT (skill, hardware) DO UPDATE SET"
    " uses = uses + 1, wins = wins + excluded.wins, pairs = pairs + excluded.pairs,"
    " uplift_sum = uplift_sum + excluded.uplift_sum,"
    " uplift_squares = uplift_squares + excluded.uplift_squares"
)


class UsageStatistics:
    """The statistics of one user."""

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / learned.FOLDER / FILE
        self._tallies = Tallies(path, table=TABLE, add=ADD, marks="counted")

    def stats(self) -> tuple[UsageStats, ...]:
        """The usage of every skill on every hardware."""
        columns = "skill, hardware, uses, wins, pairs, uplift_sum, uplift_squares"
        rows = self._tallies.rows(f"SELECT {columns} FROM usage ORDER BY 1, 2")
        return tuple(
            UsageStats(
                skill=skill,
                hardware=hardware,
                uses=uses,
                wins=wins,
                pairs=pairs,
                uplift_sum=total,
                uplift_squares=squares,
            )
            for skill, hardware, uses, wins, pairs, total, squares in rows
        )

    def count(self, proposals: Sequence[Proposal], hardware: str) -> None:
        """What one job has judged; once per judgement, however often it is reported."""
        if rows := _rows(proposals, hardware):
            self._tallies.add((mark, [row]) for mark, row in rows)


def helps_no_more(found: UsageStats) -> str | None:
    """Why the skill should be retired; None: it helps, or too little is known.

    Retired where m + t(n - 1) sqrt(v / n) <= 0 (one-sided, 95 %) over n pairs of mean m = S / n and
    variance v = (Q - n m^2) / (n - 1), S and Q the sums of their uplifts and squares."""
    seldom = found.wins <= SELDOM * found.uses
    if found.uses < MIN_USES or found.pairs < MIN_PAIRS or not seldom:
        return None
    mean = found.uplift_sum / found.pairs
    variance = max(0.0, found.uplift_squares - found.pairs * mean**2) / (found.pairs - 1)
    high = mean + t95(found.pairs - 1) * math.sqrt(variance / found.pairs)
    if high > 0:
        return None
    text = f"{math.exp(mean):.3f}x of the best without it, at most {math.exp(high):.3f}x"
    where = f"stopped helping on {found.hardware}"
    return f"{where}: the offer in {found.wins} of {found.uses} jobs, {text} over {found.pairs}"


def skill_of(proposal: Proposal) -> str | None:
    """The learned skill that led to this candidate."""
    proposer = proposal.candidate.proposer
    return proposer.removeprefix(PROPOSER) if proposer.startswith(PROPOSER) else None


def _rows(
    proposals: Sequence[Proposal], hardware: str
) -> list[tuple[str, tuple[str, str, int, int, float, float]]]:
    judged = [one for one in proposals if one.evaluation.status is not EvalStatus.NOT_RUN]
    offer = next((one for one in proposals if one.verdict is Verdict.FASTER), None)
    rows = []
    for skill in sorted({name for one in judged if (name := skill_of(one))}):
        mine = [one for one in judged if skill_of(one) == skill]
        others = [_speed(one) for one in judged if skill_of(one) != skill]
        uplift = math.log(max(map(_speed, mine)) / max(others)) if others else 0.0
        won = int(offer is not None and offer in mine)
        mark = " ".join(sorted(f"{one.id} {one.created}" for one in mine))
        rows.append((mark, (skill, hardware, won, int(bool(others)), uplift, uplift**2)))
    return rows


def _speed(proposal: Proposal) -> float:
    """Over eager, as a person gets it: what is wrong, slower or not timed leaves the original."""
    eager = proposal.evaluation.speedups.get("eager")
    right = proposal.evaluation.status is EvalStatus.PASSED
    return max(1.0, eager.mid) if right and eager else 1.0
