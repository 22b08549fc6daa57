"""The journal as commands use it: opened once, its problems said, outcomes and acceptance written.

What --apply has written counts as accepted. Whether it is kept is seen when a later command looks
at the file (`log_outcomes`): still there, changed, taken back or gone, by the editor's own
tracker. Rewrites that an editor has applied are left to it: it knows of text that is not saved
yet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kernel_lsp import documents
from kernel_lsp.commands import console
from kernel_lsp.config import Settings
from kernel_lsp.errors import JournalError, SkillError
from kernel_lsp.journal import Journal, open_journal, outcomes
from kernel_lsp.journal.tracker import offer_of
from kernel_lsp.records import Event, EventKind, Job, LearnedSkill, Outcome, Proposal
from kernel_lsp.session.offer_tracking import OfferTracking

CLIENT = "kernel-lsp command line"
SESSION = "commands of"
"""How a tracker's session of ours begins; its day follows."""


@contextmanager
def journal(settings: Settings) -> Iterator[Journal]:
    """One that cannot be opened or read ends the command with its cause."""
    try:
        opened = open_journal(Path(settings.data_dir))
        try:
            yield opened
        finally:
            opened.close()  # first: what could not be written until now is a problem, too
            for problem in opened.problems:
                console.err.print(f"journal: {problem}", markup=False)
    except JournalError as error:
        console.fail(error)


def save(
    journal: Journal, outcome: Outcome, begun: str, *, job: Job, folder: Path, settings: Settings
) -> None:
    """Stores what this run has judged, and what it offers: an interrupted search had found that,
    and shown it to nobody."""
    from kernel_lsp.pipeline.prepare import reference  # `sessions list` need not load the pipeline

    judged = outcomes.fresh(outcome, begun)
    if outcome.search and outcome.best and outcome.best not in judged:
        judged.append(outcome.best)
    outcomes.save_proposals(
        journal,
        judged,
        folder=folder,
        path=job.path,
        keep_source=settings.keep_source,
        client=CLIENT,
        training=settings.training,
        reference=reference(job, settings.data_dir) if settings.keep_source and judged else None,
    )
    if settings.training:
        outcomes.save_question(journal, outcome, folder=folder, path=job.path, client=CLIENT)


def record_acceptance(
    journal: Journal, proposals: Sequence[Proposal], *, folder: Path, path: Path
) -> None:
    """A rewrite written by --apply was offered, chosen and accepted in one go."""
    tracking, now = _offers_by_fate(journal, folder), time.time()
    within = outcomes.relative_path(path, folder)
    for proposal in proposals:
        if (offer := offer_of(proposal, str(folder), within)) is not None:
            events = [*tracking.tracker.offered(offer, now), *tracking.tracker.chosen(offer, now)]
            journal.record(
                events + tracking.tracker.observed(offer.identity, offer.after, "change", now)
            )
    if proposals:
        journal.save_tracker(tracking.tracker.export())


def record_patch(
    journal: Journal, proposals: Sequence[Proposal], *, folder: Path, path: Path
) -> None:
    """A rewrite of an installed package was accepted as a patch. What becomes of it, `kernel-lsp
    patches` and guard know: its target stands in no file of the workspace that could be looked
    at."""
    journal.record(
        outcomes.events(EventKind.ACCEPTED, proposals, folder=folder, path=path, client=None)
    )


def log_outcomes(journal: Journal, folder: Path, data_dir: Path) -> list[LearnedSkill]:
    """Log what has become of applied rewrites in a folder's files; returns drafts of what was
    kept."""
    tracking, events = _offers_by_fate(journal, folder), list[Event]()
    for path in sorted(tracking.tracked_paths(str(folder))):
        file = folder / path
        snapshot = documents.read(file.as_uri(), folder)
        if snapshot is not None or not file.exists():
            text = snapshot.text if snapshot else None
            events += tracking.observe_text(str(folder), path, text, "disk")
    if not events:
        return []
    journal.record(events)
    journal.save_tracker(tracking.tracker.export())
    return _drafts(journal, events, data_dir)


def _offers_by_fate(journal: Journal, folder: Path) -> OfferTracking:
    """With the rewrites of earlier commands. A day's commands are one session: what is still there
    on another day has lasted."""
    state = journal.tracker_state(str(folder))
    mine = [
        item for item in state["proposals"] if str(item.get("accepted_session")).startswith(SESSION)
    ]
    tracking = OfferTracking(client=CLIENT, name=f"{SESSION} {datetime.now(UTC).date()}")
    tracking.restore(str(folder), (), {**state, "proposals": mine})
    return tracking


def _drafts(journal: Journal, events: Sequence[Event], data_dir: Path) -> list[LearnedSkill]:
    from kernel_lsp.pipeline import learning  # few commands come so far

    try:
        return learning.from_events(journal, events, data_dir)
    except SkillError as error:
        console.err.print(f"nothing was learned of a kept rewrite: {error}", markup=False)
        return []
