"""Diagnostics that the client asks for (LSP 3.17), of open documents and of the whole workspace.

A client that pulls is pushed nothing: editors show both, so each finding would stand there twice.
It must take `workspace/diagnostic/refresh`, because a verdict may come long after the text was
analyzed; others are pushed to. Cells of notebooks are pushed to all. Files that nobody has open
are read only where the setting ``workspace_diagnostics`` says so; what was found in one is kept
until it changes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types

from kernel_lsp import documents, session
from kernel_lsp.config import Settings
from kernel_lsp.positions import LineIndex
from kernel_lsp.server.app import KernelServer
from kernel_lsp.session import Document

MAX_FILES = 5_000
"""Of a workspace; who has more uses `kernel-lsp check`."""

DiagnosticReport = (
    types.WorkspaceFullDocumentDiagnosticReport | types.WorkspaceUnchangedDocumentDiagnosticReport
)


@dataclass(frozen=True, slots=True)
class _Known:
    """One file as it was read."""

    stamp: tuple[object, ...]
    items: tuple[types.Diagnostic, ...]


class Pulls:
    """What one client has asked for."""

    def __init__(self, ls: KernelServer) -> None:
        self._ls = ls
        self._known: dict[str, _Known] = {}
        self._changed = asyncio.Event()
        self._has_answered = False

    def note_change(self) -> None:
        """Files or settings are others: whoever waits for news of the workspace has some."""
        self._changed.set()

    async def of_document(
        self, params: types.DocumentDiagnosticParams
    ) -> types.DocumentDiagnosticReport:
        """The document's diagnostics, as soon as the text is analyzed. Of a text that does not
        parse the client keeps what it has: it moves those with the edits."""
        uri = params.text_document.uri
        await self._ls.wait_for_analysis(uri)
        document = self._ls.session.documents.get(uri)
        if document is not None and not document.current and params.previous_result_id:
            return types.RelatedUnchangedDocumentDiagnosticReport(params.previous_result_id)
        items = self._ls.pulled(uri)
        identity = result_id(items)
        if identity == params.previous_result_id:
            return types.RelatedUnchangedDocumentDiagnosticReport(identity)
        return types.RelatedFullDocumentDiagnosticReport(items=items, result_id=identity)

    async def of_workspace(
        self, params: types.WorkspaceDiagnosticParams
    ) -> types.WorkspaceDiagnosticReport:
        """The first time at once; later when something is new, as the protocol recommends: clients
        that take partial results ask again as soon as they are answered, also where there is
        nothing to tell. Others ask when a user does, who waits for the answer."""
        previous = {known.uri: known.value for known in params.previous_result_ids}
        while True:
            self._changed.clear()
            reports = await self._reports(previous)
            news = any(
                isinstance(one, types.WorkspaceFullDocumentDiagnosticReport) for one in reports
            )
            if news or not self._has_answered or params.partial_result_token is None:
                self._has_answered = True
                return types.WorkspaceDiagnosticReport(items=reports)
            await self._changed.wait()

    async def _reports(self, previous: dict[str, str]) -> list[DiagnosticReport]:
        reports: dict[str, DiagnosticReport] = {}
        for root in self._ls.roots():
            if not self._ls.settings(root).workspace_diagnostics:
                continue
            for path in await asyncio.to_thread(_files, Path(root), self._ls.settings(root)):
                uri = path.as_uri()
                if uri not in self._ls.session.documents:  # the client asks for what it has open
                    items = await self._of_file(uri, path)
                    reports[uri] = _report(uri, items, previous.get(uri))
        for uri in previous.keys() - reports.keys():  # gone, open by now, or not asked for any more
            reports[uri] = _report(uri, (), previous[uri])
        return list(reports.values())

    async def _of_file(self, uri: str, path: Path) -> tuple[types.Diagnostic, ...]:
        """Analyzed between what the user types: one file at a time, on the same thread."""
        folder, relative = self._ls.place(uri)
        settings = self._ls.settings(folder)
        stamp = (*_stamp(path), settings, self._ls.session.count_dismissals(folder))
        known = self._known.get(uri)
        if known is None or known.stamp != stamp:
            found = await self._ls.off_loop(_read_file, uri, folder, relative)
            items = () if found is None else self._items(found)
            known = self._known[uri] = _Known(stamp, items)
        return known.items

    def _items(self, document: Document) -> tuple[types.Diagnostic, ...]:
        positions = LineIndex(document.snapshot.text, self._ls.position_encoding)
        hints = self._ls.session.hints_of(document)
        return tuple(self._ls.diagnostic(hint, positions) for hint in hints)


def result_id(items: Sequence[types.Diagnostic]) -> str:
    """The same for the same diagnostics, in every session."""
    return hashlib.blake2b(repr(list(items)).encode(), digest_size=12).hexdigest()


def _report(uri: str, items: Sequence[types.Diagnostic], previous: str | None) -> DiagnosticReport:
    identity = result_id(items)
    if identity == previous:
        return types.WorkspaceUnchangedDocumentDiagnosticReport(uri=uri, result_id=identity)
    return types.WorkspaceFullDocumentDiagnosticReport(uri=uri, items=items, result_id=identity)


def _files(root: Path, settings: Settings) -> list[Path]:
    """For a thread. Settings are those of the workspace's folder, as for what is open there."""
    from kernel_lsp.checker import discovery  # costs each start what few clients ask for

    found = discovery.discover([root], discovery.Projects(lambda folder: settings))
    return [one.path for one in found if one.path.suffix == ".py"][:MAX_FILES]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0)
    return stat.st_mtime_ns, stat.st_size


def _read_file(uri: str, folder: str, relative: str) -> Document | None:
    """For a thread."""
    snapshot = documents.read(uri, folder)
    if snapshot is None or not documents.is_wanted(uri, snapshot.text):
        return None
    found = session.examine(snapshot)
    return Document(
        snapshot=snapshot, folder=folder, path=relative, analysis=found, analyzed=snapshot
    )
