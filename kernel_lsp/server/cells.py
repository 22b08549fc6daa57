"""Notebooks in editors: the cells as one program, and findings and their fixes in the cells.

pygls keeps the texts of cells. An edit of one cell is an analysis of all, because a name of one
is used in another; only cells whose findings are others then are told of it. Not covered:
rewrites that are measured, which need a file that can be run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from lsprotocol import types

from kernel_lsp import cells, documents, notebooks, rulesets
from kernel_lsp.positions import LineIndex
from kernel_lsp.presenter import lsp
from kernel_lsp.presenter.items import TextEdit
from kernel_lsp.records import Finding, Snapshot, Span
from kernel_lsp.server.app import DEBOUNCE_S, KernelServer
from kernel_lsp.session import examine, finding_hint


@dataclass(frozen=True, slots=True)
class _CellDiagnostics:
    """One cell as it was analyzed."""

    source: str
    findings: tuple[Finding, ...]
    """With spans in the cell."""


class Notebooks:
    """All open notebooks of one client."""

    def __init__(self, ls: KernelServer) -> None:
        self._ls = ls
        ls.on_reconfigured, ls.actions_in_cells = self.schedule_all, self.actions
        self._pending: dict[str, asyncio.Task[None]] = {}
        self._published: dict[str, dict[str, _CellDiagnostics]] = {}
        """By notebook and cell."""

    def schedule(self, uri: str, delay_s: float = DEBOUNCE_S) -> None:
        """Analyze soon; a burst of changes is analyzed once."""
        if (earlier := self._pending.pop(uri, None)) is not None:
            earlier.cancel()
        self._pending[uri] = self._ls.spawn(self._analyze(uri, delay_s))

    def schedule_all(self) -> None:
        """Settings are others now."""
        for uri in self._published:
            self.schedule(uri)

    def close(self, uri: str) -> None:
        """Forgets the notebook and takes its cells' findings away."""
        if (pending := self._pending.pop(uri, None)) is not None:
            pending.cancel()
        for cell, shown in self._published.pop(uri, {}).items():
            if shown.findings:
                self._publish(cell, ())

    def actions(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        """What mends the findings at a place of a cell."""
        uri = params.text_document.uri
        shown = next((found[uri] for found in self._published.values() if uri in found), None)
        document = self._ls.workspace.text_documents.get(uri)
        if shown is None or document is None or document.source != shown.source:
            return []
        positions = self._positions(shown.source)
        where = lsp.span_of(params.range, positions)
        return [
            self._fix(uri, document.version, finding, positions, params)
            for finding in shown.findings
            if "fix" in finding.data
            and finding.span.start <= where.end
            and where.start <= finding.span.end
        ]

    def _fix(
        self,
        uri: str,
        version: int | None,
        finding: Finding,
        positions: LineIndex,
        params: types.CodeActionParams,
    ) -> types.CodeAction:
        fix = finding.data["fix"]
        edits = [TextEdit(**edit) for edit in fix["edits"]]
        versioned = self._ls.abilities.versioned
        edit = lsp.workspace_edit(uri, version, edits, positions, versioned=versioned)
        mine = [
            d
            for d in params.context.diagnostics
            if d.source == lsp.SOURCE and d.code == finding.rule
        ]
        return lsp.fix_action(f"{fix['title']} ({finding.rule})", edit, mine)

    async def _analyze(self, uri: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        notebook = self._ls.workspace.get_notebook_document(notebook_uri=uri)
        if notebook is None:
            return
        code = [cell for cell in notebook.cells if cell.kind is types.NotebookCellKind.Code]
        numbers = {cell.document: number for number, cell in enumerate(notebook.cells, 1)}
        texts = self._ls.workspace.text_documents  # asked for another, pygls reads the disk
        sources = {
            cell.document: texts[cell.document].source for cell in code if cell.document in texts
        }
        given = [
            notebooks.Cell(number=numbers[name], source=source) for name, source in sources.items()
        ]
        program = notebooks.program(given)
        if len(program.text) > documents.MAX_CHARS:
            return
        found = await self._ls.off_loop(examine, Snapshot(uri=uri, text=program.text))
        counted = rulesets.of(self._ls.settings(self._ls.place(uri)[0]))
        path = PurePath(self._ls.place(uri)[1])
        findings = () if counted.excludes(path) else counted.applied(found, path).findings
        by_number: dict[int, list[Finding]] = {}
        for number, finding in _in_cells(findings, program):
            by_number.setdefault(number, []).append(finding)
        self._show(
            uri,
            {
                name: _CellDiagnostics(source, tuple(by_number.get(numbers[name], ())))
                for name, source in sources.items()
            },
        )

    def _show(self, uri: str, now: dict[str, _CellDiagnostics]) -> None:
        before = self._published.get(uri, {})
        self._published[uri] = now
        for cell in before.keys() - now.keys():
            if before[cell].findings:
                self._publish(cell, ())
        for cell, shown in now.items():
            if shown.findings != (before[cell].findings if cell in before else ()):
                self._publish(cell, shown.findings, shown.source)

    def _publish(self, cell: str, findings: tuple[Finding, ...], source: str = "") -> None:
        positions = self._positions(source)
        hints = [self._ls.diagnostic(finding_hint(finding), positions) for finding in findings]
        self._ls.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=cell, diagnostics=hints)
        )

    def _positions(self, source: str) -> LineIndex:
        encoding = self._ls.workspace.position_encoding
        return LineIndex(source, str(getattr(encoding, "value", encoding)))


def _in_cells(
    findings: tuple[Finding, ...], program: notebooks.NotebookProgram
) -> Iterator[tuple[int, Finding]]:
    """(number of the cell, finding with its span and its fix in the cell's text)."""
    for finding in findings:
        part = program.part(finding.span.start)
        if part is None:
            continue
        begin, end = finding.span.start - part.span.start, finding.span.end - part.span.start
        within = Span(start=begin, end=min(end, len(part.cell.source)))
        yield part.cell.number, cells.move_finding(cells.place_finding(finding, program), within)
