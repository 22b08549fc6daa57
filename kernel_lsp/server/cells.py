"""Notebooks in editors: the cells as one program, and what is known of it in the cells.

The session has the program as a document of the notebook's name, so findings, measurements and
what becomes of offers are as in a file; here lies the way between it and the cells. pygls keeps
the texts of cells. An edit of one cell is an analysis of all, because a name of one is used in
another; only cells whose findings are others then get them anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import unquote

from lsprotocol import types
from pygls.workspace import TextDocument

from kernel_lsp import documents, notebooks
from kernel_lsp.notebooks import placing
from kernel_lsp.positions import LineIndex
from kernel_lsp.presenter import lsp
from kernel_lsp.presenter.items import Hint, TextEdit
from kernel_lsp.records import Snapshot, Span
from kernel_lsp.server.app import KernelServer


class Notebooks:
    """All open notebooks of one client."""

    def __init__(self, ls: KernelServer) -> None:
        self._ls = ls
        ls.notebooks = self
        self._programs: dict[str, notebooks.NotebookProgram] = {}
        self._names: dict[str, dict[int, str]] = {}
        """By notebook: the names of its cells, by their numbers, as the client writes them."""
        self._changed: set[str] = set()
        """Notebooks whose cells have changed since their program was made."""
        self._published: dict[str, dict[str, list[types.Diagnostic]]] = {}
        """By notebook and cell."""

    # --- what the client tells ---------------------------------------------------------------

    def open(self, uri: str) -> None:
        """Takes a notebook that the client has opened."""
        self._programs[uri] = notebooks.program(())
        self._changed.add(uri)
        self.refresh(uri)
        if uri in self._ls.session.documents:
            self._ls.schedule(uri, delay_s=0.0, how="open")

    def change(self, uri: str) -> None:
        """Analyze soon; a burst of changes is analyzed once, and its program made once."""
        if uri in self._programs:
            self._changed.add(uri)
            self._ls.schedule(uri)

    def close(self, uri: str) -> None:
        """Forgets the notebook and takes its cells' findings away."""
        self._programs.pop(uri, None)
        self._changed.discard(uri)
        self._names.pop(uri, None)
        for cell, shown in self._published.pop(uri, {}).items():
            if shown:
                self._publish(cell, [])

    # --- for the server ----------------------------------------------------------------------

    def holds(self, uri: str) -> bool:
        """Whether that is the name of an open notebook."""
        return uri in self._programs

    def cell(self, uri: str) -> tuple[str, Span, str] | None:
        """(notebook, where it lies in the program, its source) of a cell that is analyzed."""
        for notebook, names in list(self._names.items()):
            if uri in names.values():
                self.refresh(notebook)
                for part in self._programs[notebook].parts:
                    if self._names[notebook].get(part.cell.number) == uri:
                        return notebook, part.span, part.cell.source
        return None

    def refresh(self, uri: str) -> None:
        """Makes the program of the cells as they are now."""
        notebook = self._ls.workspace.get_notebook_document(notebook_uri=uri)
        if uri not in self._changed or notebook is None:
            return
        self._changed.discard(uri)
        names = {
            number: cell.document
            for number, cell in enumerate(notebook.cells, 1)
            if cell.kind is types.NotebookCellKind.Code and self._text(cell.document) is not None
        }
        texts = {number: self._text(name) for number, name in names.items()}
        program = notebooks.program(
            notebooks.Cell(number=number, source=text.source)
            for number, text in texts.items()
            if text
        )
        self._programs[uri], self._names[uri] = program, names
        self._take(uri, Snapshot(uri=uri, text=program.text, version=notebook.version))

    def _take(self, uri: str, snapshot: Snapshot) -> None:
        session = self._ls.session
        document = session.documents.get(uri)
        if not documents.is_wanted(uri, snapshot.text):
            self.publish(uri, [])
            session.close(uri)
        elif document is None:
            folder, path = self._ls.place(uri)
            self._ls.settings(folder)
            session.open(snapshot, folder, path)
        elif document.snapshot.text != snapshot.text:  # an output is no other program
            session.change(snapshot)

    def publish(self, uri: str, hints: Iterable[Hint]) -> None:
        """Tells the client about the cells whose hints are others than before."""
        program, names = self._programs.get(uri), self._names.get(uri, {})
        now: dict[str, list[types.Diagnostic]] = {name: [] for name in names.values()}
        if program is not None:
            for hint in hints:
                part = program.part(hint.span.start)
                if part is not None:
                    shown = self._in_cell(hint, part, program)
                    now[names[part.cell.number]].append(shown)
        before = self._published.get(uri, {})
        self._published[uri] = now
        for cell in before.keys() | now.keys():
            if now.get(cell, []) != before.get(cell, []):
                self._publish(cell, now.get(cell, []))

    def edit(self, uri: str, edits: Iterable[TextEdit]) -> types.WorkspaceEdit:
        """Edits of the program as edits of its cells. Raises ValueError where a line would change
        that only IPython understands."""
        program = self._programs[uri]
        made = program.edits(
            notebooks.edit_source(program.text, [(e.start, e.end, e.new) for e in edits])
        )
        found = types.WorkspaceEdit()
        for cell, changes in made:
            name = self._names[uri][cell.number]
            part = lsp.workspace_edit(
                name,
                text.version if (text := self._text(name)) is not None else None,
                [TextEdit(start=start, end=end, new=new) for start, end, new in changes],
                self._positions(cell.source),
                versioned=self._ls.abilities.versioned,
            )
            found = lsp.join_edits(found, part)
        return found

    def words(self, uri: str, text: str) -> str:
        """Words about lines of the program as words about lines of its cells."""
        return placing.in_cells(self._programs[uri], text)

    def _in_cell(
        self, hint: Hint, part: notebooks.CellPart, program: notebooks.NotebookProgram
    ) -> types.Diagnostic:
        begin = part.span.start
        end = min(hint.span.end, part.span.end)
        here = replace(
            hint,
            span=Span(start=hint.span.start - begin, end=end - begin),
            message=placing.in_cells(program, hint.message),
            data=placing.place_data(hint.data, hint.span, program),
        )
        return self._ls.diagnostic(here, self._positions(part.cell.source))

    def _text(self, cell: str) -> TextDocument | None:
        """What pygls has of a cell, by its name without the escapes that VS Code writes. Asked for
        one that is not open, it reads the disk."""
        found: TextDocument | None = self._ls.workspace.text_documents.get(unquote(cell))
        return found

    def _publish(self, cell: str, found: list[types.Diagnostic]) -> None:
        self._ls.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=cell, diagnostics=found)
        )

    def _positions(self, source: str) -> LineIndex:
        return LineIndex(source, self._ls.position_encoding)
