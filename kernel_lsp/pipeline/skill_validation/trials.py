"""Candidates of one task judged once per sample, against eager.

Every judgement lies in a search archive of its own per task and sample before the next is begun, so
a run that is killed goes on where it was, and another skill's run does not judge the same candidate
again. Not covered: which candidates (treatment.py, prompted.py), what the judgements come to
(pairs.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.agents import feedback
from kernel_lsp.cache import Cache
from kernel_lsp.errors import EvaluationError
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.records import (
    Attempt,
    Candidate,
    Context,
    EvalStatus,
    Move,
    ProposedDraft,
    SearchJudgement,
)
from kernel_lsp.search import attempts
from kernel_lsp.search.archive import SUFFIX, SqliteArchive

FOLDER = "library/trials"
"""In the user's data folder."""
MAX_TRIES = 3
"""Of one judgement that could not be reached: the device was busy, a process was lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationTrials:
    """Of one verification."""

    data_dir: Path
    fresh: bool
    """Judge again what earlier runs have judged."""

    def archive(self, one: Opened, number: int, **more: str) -> SqliteArchive:
        """The archive of one sample of a task. ``more``: what else its candidates depend on."""
        identity = {**one.identity(), "sample": number, **more}
        path = self.data_dir / FOLDER / f"{Cache.key(**identity)[:24]}-{number}{SUFFIX}"
        return SqliteArchive.open(path, identity, fresh=self.fresh)

    async def sample(
        self, one: Opened, candidates: Sequence[Candidate], number: int
    ) -> dict[str, Attempt]:
        """Judges each candidate once, by its id; which comes first changes with the number, against
        drift."""
        archive, found = self.archive(one, number), dict[str, Attempt]()
        try:
            for candidate in reversed(candidates) if number % 2 else candidates:
                attempt = await _attempt(one, archive, candidate)
                if attempt is not None:
                    found[candidate.id] = attempt
            return found
        finally:
            archive.close()


async def _attempt(one: Opened, archive: SqliteArchive, candidate: Candidate) -> Attempt | None:
    """What is known of it in this sample, else its judgement; None: it could not be judged."""
    context = Context(number=archive.reserve(), seed=0, move=Move.SEED)
    attempt = attempts.begin_attempt(
        candidate.proposer, context, ProposedDraft(candidate=candidate)
    )
    stamped = attempts.stamp_candidate(candidate, attempt, context, archive.id)
    if (earlier := archive.begin(attempt, stamped)) is not None:
        if earlier.proposal is not None:
            return earlier
        attempt, stamped = next(
            pair for pair in archive.unfinished if pair[0].number == earlier.number
        )
    return await conclude(one, archive, attempt, stamped)


async def conclude(
    one: Opened, archive: SqliteArchive, attempt: Attempt, stamped: Candidate
) -> Attempt | None:
    """What was begun, judged and kept, unless a killed run had come to that; None: it could not be
    judged."""
    found = one.tournament.recalled(stamped, full=False) or await _judge(one, stamped)
    if found is None:
        return None
    seconds = found.proposal.evaluation.seconds or 0.0
    gpu = one.bench.device == "cuda"
    done = attempts.finish_attempt(
        attempt, found, feedback.digest, full=False, seconds=seconds, gpu=gpu
    )
    archive.add(done)
    return done


async def _judge(one: Opened, candidate: Candidate) -> SearchJudgement | None:
    """What could not be judged is not kept: the next run tries again."""
    for again in range(MAX_TRIES):
        try:
            found = await one.tournament.judged(candidate, full=False)
        except EvaluationError:
            if again == MAX_TRIES - 1:
                raise
            continue
        if found.proposal.evaluation.status is not EvalStatus.NOT_RUN:
            return found
    return None
