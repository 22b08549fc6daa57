"""Which skills have paid, by what limits the target and by device: a bandit over all of a user's
searches.

Optimistic (UCB1-Tuned, Auer, Cesa-Bianchi and Fischer 2002): what was never tried comes first,
then mean gain plus a bonus that shrinks with tries and with how much the gains agree. One small
SQLite file that any number of processes add to. It only orders; a disk that refuses, or a damaged
file, costs the statistics and nothing else. Not covered: whether a skill applies or is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.records import ArmStats, Attempt, Bottleneck, EvalStatus, Verdict
from kernel_lsp.search.fitness import gain
from kernel_lsp.tallies import Tallies

FILE = "skill-arms.db"
TABLE = (
    "CREATE TABLE IF NOT EXISTS arms (skill TEXT, bottleneck TEXT, device TEXT, tries INTEGER "
    "NOT NULL,"
    " wins INTEGER NOT NULL, gain_sum REAL NOT NULL, gain_squares REAL NOT NULL,"
    " PRIMARY KEY (skill, bottleneck, device))"
)
LEARN = (
    "INSERT INTO arms VALUES (?, ?, ?, 1, ?, ?, ?) ON CONFLICT (skill, bottleneck, device) DO "
    "UPDATE SET"
    " tries = tries + 1, wins = wins + excluded.wins, gain_sum = gain_sum + excluded.gain_sum,"
    " gain_squares = gain_squares + excluded.gain_squares"
)
QUARTER = 0.25
"""The largest variance of gains between 0 and 1 (UCB1-Tuned's bound); gains here are logs, mostly
below 1."""


class BanditArms:
    """A `SkillArms`."""

    def __init__(self, data_dir: Path) -> None:
        self._tallies = Tallies(data_dir / FILE, table=TABLE, add=LEARN, marks="learned")

    def stats(self) -> tuple[ArmStats, ...]:
        """What is known by skill, bottleneck and device."""
        columns = "skill, bottleneck, device, tries, wins, gain_sum, gain_squares"
        rows = self._tallies.rows(f"SELECT {columns} FROM arms ORDER BY 1, 2, 3")
        kinds = set(Bottleneck)
        return tuple(
            ArmStats(
                skill=skill,
                bottleneck=Bottleneck(kind),
                device=device,
                tries=tries,
                wins=wins,
                gain_sum=total,
                gain_squares=squares,
            )
            for skill, kind, device, tries, wins, total, squares in rows
            if kind in kinds
        )

    def order(self, skills: Sequence[str], bottleneck: Bottleneck, device: str) -> list[str]:
        """The skills by the upper bound of what they are worth at this bottleneck and device,
        untried ones first."""
        known = {
            s.skill: s for s in self.stats() if (s.bottleneck, s.device) == (bottleneck, device)
        }
        total = sum(arm.tries for arm in known.values())
        worth = {name: upper(known[name], total) if name in known else math.inf for name in skills}
        return sorted(skills, key=lambda name: -worth[name])  # stable: of equals the caller's order

    def learn(self, attempt: Attempt, bottleneck: Bottleneck, device: str) -> None:
        """Counts the attempt for its skills, once per judgement, however often it is reported."""
        proposal = attempt.proposal
        if proposal is None or _is_unknown(attempt, proposal.evaluation.status):
            return
        steps = [step.skill for step in proposal.candidate.steps]
        skills = tuple(dict.fromkeys(steps or proposal.candidate.advice))
        won, share = proposal.verdict is Verdict.FASTER, gain(attempt) / max(1, len(skills))
        mark = f"{proposal.id} {proposal.created}"
        rows = [(name, str(bottleneck), device, int(won), share, share**2) for name in skills]
        self._tallies.add([(mark, rows)])


def _is_unknown(attempt: Attempt, status: EvalStatus) -> bool:
    """Nobody knows whether it is faster: it could not be judged, or was right and not timed."""
    return status is EvalStatus.NOT_RUN or (status is EvalStatus.PASSED and attempt.fitness is None)


def upper(arm: ArmStats, total: int) -> float:
    """Mean gain plus the bonus of UCB1-Tuned, among ``total`` tries of all arms.

    x + sqrt(ln n / m min(1/4, V)) with V = (sum x^2 / m - x^2) + sqrt(2 ln n / m) for an arm of
    mean x after m of n tries (Auer, Cesa-Bianchi and Fischer 2002, section 4). Four tries with
    gains 0, 0, 1, 1 among 100: 0.5 + sqrt(1.151 / 4) = 1.036."""
    mean = arm.gain_sum / arm.tries
    often = math.log(max(total, 2)) / arm.tries
    variance = max(0.0, arm.gain_squares / arm.tries - mean**2) + math.sqrt(2 * often)
    return mean + math.sqrt(often * min(QUARTER, variance))
