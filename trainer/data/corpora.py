"""Everything that can be learned from, read into one corpus: journals, search archives, recorded
evaluations.

    corpus = rollouts.read(journals=["journal.db", "postgresql+psycopg://host/team"],
    archives=[...],
                           tables=[...], suites=[...], grant=Grant())

Each row is kept, or counted with the reason why it was left out: consent, half-written, of another
schema, read already, about a program that changed since. What remains carries its permission, and
has only the text that this allows (reading.py). What a person did with an offer is in the
journals, what a model was asked in the archives; a search that is in both becomes one, from both.
Not covered: where files are looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.data import archives as archived
from trainer.data import journals as logged
from trainer.data import tables as recorded
from trainer.data.reading import Grant, TrajectorySet
from trainer.records import Corpus, Permission, Tally
from trainer.tasks.task_suites import TaskSuite


def read(
    *,
    journals: Sequence[str | Path] = (),
    archives: Sequence[Path] = (),
    tables: Sequence[Path] = (),
    suites: Sequence[TaskSuite] = (),
    grant: Grant | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Corpus:
    """Raises JournalError, ArchiveError or ConfigError for a source that is none."""
    grant, tally = grant or Grant(), Tally()
    kept = TrajectorySet(tally)
    known = logged.Journals()
    for number, place in enumerate(journals):
        report(f"journal {number + 1} of {len(journals)}")
        logged.read(place, known, grant, tally, suites)
    covered = set()
    for number, path in enumerate(archives):
        report(f"archive {number + 1} of {len(archives)}")
        if search := _archive(path, known, grant, tally, kept):
            covered.add(search)
    for one in logged.trajectories(known, frozenset(covered), tally):
        kept.add(one)
    for number, path in enumerate(tables):
        report(f"table {number + 1} of {len(tables)}")
        for one in recorded.read(path, suites, grant, tally):
            kept.add(one)
    found = sorted(kept.found.values(), key=lambda one: (one.source, one.origin, one.id))
    return Corpus(trajectories=tuple(found), read=tally.read, skipped=tally.skipped)


def _archive(
    path: Path, known: logged.Journals, grant: Grant, tally: Tally, kept: TrajectorySet
) -> str | None:
    """The search's id, when its archive was used."""
    search = archived.read(path, tally)
    if search is None:
        return None
    permission: Permission | str | None = known.searches.get(search.id)
    if permission is None or search.id in known.denied:
        permission = grant.permission(
            False if search.id in known.denied else None, True, search.name
        )
    if isinstance(permission, str):
        tally.skip(permission, search.name, len(search.attempts))
        return None
    for one in archived.trajectories(search, permission, known.humans):
        kept.add(one)
    return search.id
