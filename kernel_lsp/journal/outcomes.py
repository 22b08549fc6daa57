"""A job's outcome into the journal: every judged proposal, and one ``evaluated`` event for each.

Shared by the host (behind the editor) and the command line. Not covered: what a person did with an
offer, which the server's tracker reports as events of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_lsp import wire
from kernel_lsp.records import Event, EventKind, Json, Outcome, Proposal

if TYPE_CHECKING:  # SQLAlchemy: commands that write nothing do not wait for it
    from kernel_lsp.journal.store import Journal


def save_proposals(
    journal: Journal,
    proposals: Iterable[Proposal],
    *,
    folder: Path | str,
    path: Path | str,
    keep_source: bool,
    client: str | None,
    when: str | None = None,
    training: bool = False,
    reference: str | None = None,
) -> None:
    """Store freshly judged proposals. One that is saved again is replaced and gets another event.

    ``when`` they were judged (see :func:`now`), where that is not this moment. ``training``: their
    user allows to learn from them. ``reference``: the program that they rewrite, kept only with
    ``keep_source``."""
    proposals = list(proposals)
    within = relative_path(path, folder)
    for proposal in proposals:
        journal.save(
            proposal,
            folder=str(folder),
            path=within,
            keep_source=keep_source,
            client=client,
            training=training,
            reference=reference if keep_source else None,
        )
    judged = events(
        EventKind.EVALUATED, proposals, folder=folder, path=path, client=client, when=when
    )
    journal.record(judged)


def save_question(
    journal: Journal, outcome: Outcome, *, folder: Path | str, path: Path | str, client: str | None
) -> None:
    """What a fresh job could choose from. Only for users who allow to learn from it, and without
    any text of theirs; nothing where nothing was judged."""
    if outcome.cached or outcome.offered is None or not outcome.proposals:
        return
    asked = Event(
        kind=EventKind.ASKED,
        proposal=outcome.proposals[0].id,
        time=now(),
        folder=str(folder),
        path=relative_path(path, folder),
        qualname=outcome.qualname,
        client=client,
        data={
            "offered": wire.to_json(outcome.offered),
            "proposals": [proposal.id for proposal in outcome.proposals],
        },
    )
    journal.record([asked])


def events(
    kind: EventKind,
    proposals: Iterable[Proposal],
    *,
    folder: Path | str,
    path: Path | str,
    client: str | None,
    when: str | None = None,
) -> list[Event]:
    """One event per proposal, all of one moment: ``when``, or now."""
    return [
        Event(
            kind=kind,
            proposal=proposal.id,
            time=when or now(),
            folder=str(folder),
            path=relative_path(path, folder),
            qualname=proposal.qualname,
            client=client,
            data=_data(kind, proposal),
        )
        for proposal in proposals
    ]


def _data(kind: EventKind, proposal: Proposal) -> Json:
    """Which verdict it is about; when that was reached also who proposed it, and at which cost."""
    data: Json = {
        "verdict": proposal.verdict.value,
        "before": proposal.fingerprint,
        "after": proposal.fingerprint_after,
    }
    if kind is EventKind.EVALUATED:
        data["provenance"] = wire.to_json(proposal.candidate.provenance)
        data["cost"] = {"evaluation_s": proposal.evaluation.seconds}
    return data


def fresh(outcome: Outcome, begun: str) -> list[Proposal]:
    """What a job that began at ``begun`` (:func:`now`) has judged itself.

    Nothing of the cache's; and a search that goes on tells what it had found earlier again.
    """
    if outcome.cached:
        return []
    if outcome.search is None:
        return list(outcome.proposals)
    start = datetime.fromisoformat(begun)
    return [p for p in outcome.proposals if datetime.fromisoformat(p.created) >= start]


def now() -> str:
    """The time now in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def relative_path(path: Path | str, folder: Path | str) -> str:
    """The path below the folder; a file outside keeps its name only, because the journal holds no
    full paths."""
    absolute = Path(path).absolute()
    return str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else absolute.name
