"""``kernel-lsp sessions``: what the journal knows, and making it forget."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path

import typer

from kernel_lsp import config, offers
from kernel_lsp.commands import console, journaling
from kernel_lsp.errors import JournalError
from kernel_lsp.journal import Journal
from kernel_lsp.presenter import sessions
from kernel_lsp.snapshots import store

app = typer.Typer(
    help="The log of offers, acceptance and reverts; local, readable, erasable.",
    no_args_is_help=True,
)
AS_JSON = typer.Option(False, "--json", help="One JSON object on standard output.")
SECONDS_PER_DAY = 86400.0
TEXTS = ("evidence", "searches")
"""Folders of the user's data that pipeline/tournament.py and pipeline/deep.py write."""


@app.command("list")
def list_sessions(
    folder: Path | None = typer.Option(None, help="Only sessions of this workspace folder."),
    as_json: bool = AS_JSON,
) -> None:
    """Every session with its numbers of events, newest first."""
    with _journal() as journal:
        _refuse_unread(journal)
        found = journal.sessions(folder=str(folder.resolve()) if folder else None)
    console.write((sessions.sessions_json if as_json else sessions.sessions_text)(found) + "\n")


@app.command()
def show(
    session: str = typer.Argument(..., help="An id, or its beginning."), as_json: bool = AS_JSON
) -> None:
    """One session's events, oldest first."""
    with _journal() as journal:
        _refuse_unread(journal)
        try:
            summary, events = journal.session(session)
        except JournalError as error:
            console.fail(error)
    console.write(
        (sessions.session_json if as_json else sessions.session_text)(summary, events) + "\n"
    )


@app.command()
def forget(
    session: str | None = typer.Option(None, help="This session."),
    folder: Path | None = typer.Option(
        None, help="This workspace folder; alone, its recordings too."
    ),
    older_than_days: float | None = typer.Option(None, min=0, help="What is older."),
    everything: bool = typer.Option(
        False,
        "--all",
        help="All of it: damaged journals, evidence, searches and recordings included.",
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Remove sessions, their events and their proposals for good. Conditions add up."""
    before = None if older_than_days is None else time.time() - older_than_days * SECONDS_PER_DAY
    key = str(folder.resolve()) if folder else None
    with _journal() as journal:
        try:
            gone = journal.forget(
                older_than=before, session=session, folder=key, everything=everything
            )
        except JournalError as error:
            console.fail(error)
    files = _remove_texts() if everything else 0
    is_whole_folder = folder is not None and session is None and before is None
    recordings = (
        _remove_recordings(None if everything else folder) if everything or is_whole_folder else 0
    )
    render = sessions.forgotten_json if as_json else sessions.forgotten_text
    counts = {"sessions": gone.sessions, "events": gone.events, "proposals": gone.proposals}
    counts |= {"files": files, "recordings": recordings}
    console.write(render(**counts) + "\n")


def _remove_recordings(folder: Path | None) -> int:
    """Snapshots of what programs of this workspace (None: of all) called, and what was offered for
    them. Returns the number of recordings."""
    settings, _ = config.load(Path.cwd())
    root = folder.resolve() if folder else None
    try:
        offers.forget(Path(settings.data_dir), root)
        return store.forget(Path(settings.data_dir), root)
    except OSError as error:
        console.fail(
            JournalError(
                f"recordings cannot be removed: {error}", f"remove {settings.data_dir} by hand"
            )
        )


def _remove_texts() -> int:
    """Files beside the journal that hold code of the user's: what was judged, and what searches
    tried."""
    settings, _ = config.load(Path.cwd())
    removed = 0
    for folder in TEXTS:
        for path in sorted((Path(settings.data_dir) / folder).glob("*.*")):
            try:
                path.unlink()
            except OSError as error:
                console.fail(
                    JournalError(
                        f"{path} cannot be removed ({error.strerror})", "remove it by hand"
                    )
                )
            removed += 1
    return removed


def _refuse_unread(journal: Journal) -> None:
    """Ends the command: a journal that cannot be opened is not an empty one. Its problem is said
    when it is closed."""
    if journal.unread is not None:
        raise typer.Exit(console.EXIT_CANNOT)


def _journal() -> AbstractContextManager[Journal]:
    settings, _ = config.load(Path.cwd())
    return journaling.journal(settings)
