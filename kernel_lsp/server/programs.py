"""Code actions for whole programs: what `kernel-lsp optimize -- …` has found for a program of this
workspace, all of it or some.

The command line measured it and left it in the user's data folder (offers.py). Nothing here runs
or measures; an edit is made only of files that are still what was measured."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from lsprotocol import types

from kernel_lsp import documents, offers
from kernel_lsp.errors import WorkloadError
from kernel_lsp.presenter import lsp
from kernel_lsp.presenter.lsp import ChangedFile
from kernel_lsp.presenter.plurals import count
from kernel_lsp.records import Json, ProgramEdit, ProgramOffer
from kernel_lsp.server.app import KernelServer


def actions(ls: KernelServer, uri: str) -> list[types.CodeAction]:
    """The actions of a document that an offer changes: apply all of it, choose, or read the
    page."""
    document = ls.session.documents[uri]
    path = documents.path_of(uri)
    if path is None:
        return []
    data_dir, found = Path(ls.settings(document.folder).data_dir), []
    for root in path.parents:  # the command line's workspace may be within the editor's, or around
        for offer in offers.read(data_dir, root):
            if str(path) in offer.paths:
                found += _of_offer(ls, offer)
    return found


def _of_offer(ls: KernelServer, offer: ProgramOffer) -> list[types.CodeAction]:
    name = shlex.join(offer.command)
    what = f"{count(len(offer.edits), 'edit')} in {count(len(offer.paths), 'file')}"
    title = f"Make {name} faster: {what}, {offer.gain}"
    show = lsp.command_action(
        f"Show what was measured of {name}",
        "kernel-lsp.showProgram",
        {"folder": offer.root, "command": list(offer.command)},
    )
    files = _files(ls, offer)
    if (changed := _first_changed(files, offer)) is not None:
        if not ls.abilities.disabled:
            return [show]
        stale = types.CodeAction(title=title, kind=lsp.REWRITE)
        reason = (
            f"{Path(changed).name} changed since it was measured: run kernel-lsp optimize again"
        )
        stale.disabled = types.CodeActionDisabled(reason=reason)
        return [stale, show]
    _log_offer(ls, offer)
    whole = types.CodeAction(title=title, kind=lsp.REWRITE, edit=_edit(ls, files, offer.edits))
    return [whole, *_choices(ls, files, offer, name), show]


def _log_offer(ls: KernelServer, offer: ProgramOffer) -> None:
    """From here on the journal follows what becomes of its rewrites, in files that are open and in
    those that are not."""
    for path in offer.paths:
        folder, relative = ls.place(Path(path).as_uri())
        mine = [one for one in offer.rewrites if one.path == path]
        ls.record(ls.session.offered_in_program(folder, relative, mine))


def _choices(
    ls: KernelServer, files: dict[str, ChangedFile], offer: ProgramOffer, name: str
) -> list[types.CodeAction]:
    """One that asks for every edit, where the client can ask; else one for each edit. A part of
    what was measured together has no number of its own."""
    if len(offer.edits) < 2:
        return []
    if ls.abilities.annotations:
        edit = _edit(ls, files, offer.edits, ask=True)
        title = f"Choose from the edits of {name} (measured all together)"
        return [types.CodeAction(title=title, kind=lsp.REWRITE, edit=edit)]
    return [
        types.CodeAction(
            title=f"Of {name} only: {one.label} (measured with the others)",
            kind=lsp.REWRITE,
            edit=_edit(ls, files, [one]),
        )
        for one in offer.edits
    ]


def _edit(
    ls: KernelServer,
    files: dict[str, ChangedFile],
    edits: Sequence[ProgramEdit],
    *,
    ask: bool = False,
) -> types.WorkspaceEdit:
    changes = [(edit.label, change) for edit in edits for change in edit.changes]
    return lsp.program_edit(
        files,
        changes,
        versioned=ls.abilities.versioned,
        creates=ls.abilities.creates,
        ask=ask,
    )


def _files(ls: KernelServer, offer: ProgramOffer) -> dict[str, ChangedFile]:
    """Every file as the editor has it; what is not open, as the disk has it."""
    found = {}
    for path in offer.paths:
        uri = Path(path).as_uri()
        opened = ls.session.documents.get(uri)
        snapshot = opened.snapshot if opened is not None else documents.read(uri, offer.root)
        found[path] = ChangedFile(
            uri=uri,
            version=opened.snapshot.version if opened is not None else None,
            positions=ls.positions(snapshot) if snapshot is not None else None,
            text=snapshot.text if snapshot is not None else None,
        )
    return found


def _first_changed(files: dict[str, ChangedFile], offer: ProgramOffer) -> str | None:
    """A file that is not what was measured any more. What was not there has to be absent."""
    for path, file in files.items():
        found = None if file.text is None else offers.digest(file.text)
        if found != offer.before.get(path):
            return path
    return None


def page(ls: KernelServer, folder: str, command: list[str]) -> Json:
    """The page of a program. Raises WorkloadError."""
    path = offers.page_of(Path(ls.settings(folder).data_dir), Path(folder), command)
    try:
        return {"path": str(path), "report": path.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(
            f"nothing is known of {shlex.join(command)}",
            f"run it once: kernel-lsp optimize -- {shlex.join(command)}",
        ) from error
