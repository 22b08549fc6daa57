"""Notebooks in the real server: cells are one program, findings and fixes stand in their cells."""

from __future__ import annotations

from pathlib import Path

import pytest
from editor_client import EDITORS, Editor, Launch, until
from lsprotocol import types

CASES = Path(__file__).parents[1] / "cases"
IMPORTS = "%matplotlib inline\nimport torch\nname = '\U0001f600'\n"
DIAG = "# '\U0001f600'\ndef f(a: torch.Tensor):\n    return torch.diag(a) @ a"
OPTIONS = {"consent": "never"}


class Notebook:
    """What an editor has open: code cells by number."""

    def __init__(self, session: Editor, *sources: str) -> None:
        self.session = session
        self.uri = (session.folder / "work.ipynb").as_uri()
        self.cells = [f"vscode-notebook-cell:{self.uri[5:]}#{n}" for n in range(len(sources))]
        items = [
            types.TextDocumentItem(uri=cell, language_id="python", version=1, text=source)
            for cell, source in zip(self.cells, sources, strict=True)
        ]
        code = types.NotebookCellKind.Code
        document = types.NotebookDocument(
            uri=self.uri,
            notebook_type="jupyter-notebook",
            version=1,
            cells=[types.NotebookCell(kind=code, document=cell) for cell in self.cells],
        )
        session.client.notebook_document_did_open(
            types.DidOpenNotebookDocumentParams(
                notebook_document=document, cell_text_documents=items
            )
        )

    def type(self, number: int, text: str, version: int = 2) -> None:
        """Replace the text of one cell."""
        whole = types.TextDocumentContentChangeWholeDocument(text=text)
        cell = types.VersionedTextDocumentIdentifier(uri=self.cells[number], version=version)
        content = types.NotebookDocumentCellContentChanges(document=cell, changes=[whole])
        self.session.client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(
                notebook_document=types.VersionedNotebookDocumentIdentifier(
                    uri=self.uri, version=version
                ),
                change=types.NotebookDocumentChangeEvent(
                    cells=types.NotebookDocumentCellChanges(text_content=[content])
                ),
            )
        )

    def close(self) -> None:
        self.session.client.notebook_document_did_close(
            types.DidCloseNotebookDocumentParams(
                notebook_document=types.NotebookDocumentIdentifier(uri=self.uri),
                cell_text_documents=[types.TextDocumentIdentifier(uri=cell) for cell in self.cells],
            )
        )

    def found(self, number: int) -> list[types.Diagnostic]:
        return list(self.session.client.diagnostics.get(self.cells[number], ()))


@pytest.mark.parametrize("editor", [EDITORS[0], EDITORS[-1]])
async def test_a_finding_stands_in_its_cell_and_an_edit_of_another_counts(
    launch: Launch, editor: str
) -> None:
    async with launch(editor, options=OPTIONS) as session:
        notebook = Notebook(session, IMPORTS, DIAG)
        await until(lambda: notebook.found(1))
        (found,) = notebook.found(1)
        assert (found.code, found.range.start, found.range.end) == (
            "KL105",
            types.Position(line=2, character=11),
            types.Position(line=2, character=28),
        )
        assert notebook.cells[0] not in session.client.diagnostics
        notebook.type(0, "torch = 1\n")  # another torch: nothing is known of it
        await until(lambda: not notebook.found(1))
        notebook.type(0, "import torch\nx = (\n", 3)  # a cell that does not parse costs no other
        notebook.type(0, IMPORTS, 4)
        await until(lambda: notebook.found(1))
        notebook.close()
        await until(lambda: not notebook.found(1))


async def test_settings_count_in_notebooks_and_are_read_anew(launch: Launch) -> None:
    async with launch(options=OPTIONS) as session:
        notebook = Notebook(session, IMPORTS, DIAG)
        await until(lambda: notebook.found(1))
        (session.folder / "pyproject.toml").write_text('[tool.kernel-lsp]\nexclude = ["*.ipynb"]\n')
        await until(lambda: not notebook.found(1))


async def test_a_fix_edits_the_cell_of_its_finding(launch: Launch) -> None:
    text = (CASES / "KL203_int32_offset_overflow.py").read_text()
    cut = text.index("\n@triton.jit") + 1
    async with launch(options=OPTIONS) as session:
        notebook = Notebook(session, text[:cut], text[cut:])
        await until(lambda: [one for one in notebook.found(1) if one.code == "KL203"])
        found = next(one for one in notebook.found(1) if one.code == "KL203")
        params = types.CodeActionParams(
            text_document=types.TextDocumentIdentifier(uri=notebook.cells[1]),
            range=found.range,
            context=types.CodeActionContext(diagnostics=[found]),
        )
        (fix,) = await session.client.text_document_code_action_async(params) or ()
        assert isinstance(fix, types.CodeAction) and fix.edit and fix.edit.document_changes
        (change,) = fix.edit.document_changes
        assert (
            isinstance(change, types.TextDocumentEdit)
            and change.text_document.uri == notebook.cells[1]
        )
        (edit,) = change.edits
        line = text[cut:].splitlines()[edit.range.start.line]
        assert "base = batch * length" in line and edit.new_text.endswith(".to(tl.int64)")
