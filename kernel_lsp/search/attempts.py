"""Contexts, drafts and verdicts become attempts: what a row of the archive says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kernel_lsp.records import (
    Attempt,
    Candidate,
    Context,
    Cost,
    Json,
    Move,
    Proposal,
    ProposedDraft,
    SearchJudgement,
    Verdict,
)
from kernel_lsp.search import features
from kernel_lsp.search.fitness import EAGER, fitness
from kernel_lsp.search.ledger import MemoryArchive

Digest = Callable[[SearchJudgement], Json]
"""What a next turn reads of a verdict."""


def begin_attempt(proposer: str, context: Context, draft: ProposedDraft) -> Attempt:
    """The attempt of a draft, before anything was judged."""
    return Attempt(
        number=context.number,
        move=context.move,
        proposer=proposer,
        complaint=draft.complaint,
        island=context.island,
        rollout=context.rollout,
        turn=context.turn,
        parent=context.parent.number if context.parent else None,
        cost=draft.cost,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def stamp_candidate(
    candidate: Candidate, attempt: Attempt, context: Context, search: str
) -> Candidate:
    """The candidate with where it comes from: evidence, cards and the journal show it."""
    parent = context.parent.candidate if context.parent else None
    return replace(
        candidate,
        proposer=attempt.proposer,
        move=str(attempt.move),
        turn=attempt.turn,
        parent=parent.id if parent else None,
        search=f"{search}#{attempt.number}",
    )


def finish_attempt(
    attempt: Attempt,
    found: SearchJudgement,
    digest: Digest,
    *,
    full: bool,
    seconds: float,
    gpu: bool,
) -> Attempt:
    """The attempt with its verdict, and what that has cost: ``seconds`` of wall time."""
    spent = Cost(evaluations=1, evaluation_s=seconds, gpu_s=seconds if gpu else 0.0)
    return replace(
        attempt,
        proposal=found.proposal,
        complete=full,
        feedback=digest(found),
        fitness=fitness(found.proposal.evaluation),
        cell=features.cell(found.proposal.candidate),
        cost=attempt.cost + spent,
    )


def enter(archive: MemoryArchive, seeds: Sequence[Proposal], digest: Digest) -> None:
    """The initial population: what the quick search has judged. What is known already is passed
    over."""
    known = {attempt.candidate.id for attempt in archive.attempts if attempt.candidate}
    known |= {candidate.id for _, candidate in archive.unfinished}
    for proposal in seeds:
        if proposal.candidate.id not in known:
            known.add(proposal.candidate.id)
            archive.add(_seed(archive.reserve(), proposal, digest))


def _seed(number: int, proposal: Proposal, digest: Digest) -> Attempt:
    evaluation = proposal.evaluation
    return Attempt(
        number=number,
        move=Move.SEED,
        proposer=proposal.candidate.proposer,
        proposal=proposal,
        complete=proposal.verdict is Verdict.FASTER or bool(evaluation.speedups.keys() - {EAGER}),
        feedback=digest(SearchJudgement(proposal=proposal)),
        fitness=fitness(evaluation),
        cell=features.cell(proposal.candidate),
        created=proposal.created,
    )
