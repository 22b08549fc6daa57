"""The journal as commands use it: opened once, its problems said, outcomes and acceptance written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernel_lsp.commands import console
from kernel_lsp.config import Settings
from kernel_lsp.errors import JournalError
from kernel_lsp.journal import Journal, open_journal, outcomes
from kernel_lsp.records import EventKind, Job, Outcome, Proposal

CLIENT = "kernel-lsp command line"


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
    """What this run has judged, and what it offers: an interrupted search had found that, and told nobody."""
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
        reference=reference(job) if settings.keep_source and judged else None,
    )


def accepted(journal: Journal, proposals: Sequence[Proposal], *, folder: Path, path: Path) -> None:
    """A rewrite written by --apply was offered, chosen and accepted in one go."""
    for kind in (EventKind.OFFERED, EventKind.CHOSEN, EventKind.ACCEPTED):
        journal.record(outcomes.events(kind, proposals, folder=folder, path=path, client=CLIENT))
