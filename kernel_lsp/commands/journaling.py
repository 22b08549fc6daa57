"""The journal as commands use it: opened once, its problems said, outcomes and acceptance written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kernel_lsp.commands import console
from kernel_lsp.config import Settings
from kernel_lsp.journal import Journal, open_journal
from kernel_lsp.records import Event, EventKind, Outcome, Proposal

CLIENT = "kernel-lsp command line"


@contextmanager
def journal(settings: Settings) -> Iterator[Journal]:
    opened = open_journal(Path(settings.data_dir))
    try:
        yield opened
    finally:
        for problem in opened.problems:
            console.err.print(f"journal: {problem}", markup=False)
        opened.close()


def save(journal: Journal, outcome: Outcome, *, folder: Path, path: Path, keep_source: bool) -> None:
    """Every judged candidate of a fresh outcome; one from the cache was written when it was new."""
    if outcome.cached:
        return
    for proposal in outcome.proposals:
        journal.save(
            proposal, folder=str(folder), path=relative(path, folder), keep_source=keep_source, client=CLIENT
        )
    journal.record(_events(EventKind.EVALUATED, outcome.proposals, folder, path))


def accepted(journal: Journal, proposals: Sequence[Proposal], *, folder: Path, path: Path) -> None:
    """A rewrite written by --apply was offered, chosen and accepted in one go."""
    for kind in (EventKind.OFFERED, EventKind.CHOSEN, EventKind.ACCEPTED):
        journal.record(_events(kind, proposals, folder, path))


def relative(path: Path, folder: Path) -> str:
    absolute = path.absolute()
    return str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else str(absolute)


def _events(kind: EventKind, proposals: Sequence[Proposal], folder: Path, path: Path) -> list[Event]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return [
        Event(
            kind=kind,
            proposal=proposal.id,
            time=now,
            folder=str(folder),
            path=relative(path, folder),
            qualname=proposal.qualname,
            client=CLIENT,
            data={
                "verdict": proposal.verdict.value,
                "before": proposal.fingerprint,
                "after": proposal.fingerprint_after,
            },
        )
        for proposal in proposals
    ]
