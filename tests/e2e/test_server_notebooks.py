"""Notebooks in the real server: cells are one program; findings, fixes and measured rewrites stand
in their cells."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from editor_client import EDITORS, Editor, Launch, apply_edit, until
from lsprotocol import types
from stories import ON_CPU, PATIENCE_S, ROOT, TAKEN_BACK, told

from kernel_lsp import guarding
from kernel_lsp.records import Acceptance

CASES = Path(__file__).parents[1] / "cases"
IMPORTS = "%matplotlib inline\nimport torch\nname = '\U0001f600'\n"
DIAG = "# '\U0001f600'\ndef f(a: torch.Tensor):\n    return torch.diag(a) @ a"
OPTIONS = {"consent": "never"}


class Notebook:
    """What an editor has open: code cells by number."""

    def __init__(self, session: Editor, *sources: str) -> None:
        self.session = session
        self.uri = (session.folder / "work.ipynb").as_uri()
        self.cells = [  # as VS Code names them, escapes included
            f"vscode-notebook-cell:{self.uri[5:]}#W{n}sZmlsZQ%3D%3D" for n in range(len(sources))
        ]
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
        """Without the hint that nobody said what a target is called with."""
        shown = self.session.client.diagnostics.get(self.cells[number], ())
        return [one for one in shown if one.code != "KL000"]


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
        found_actions = await session.client.text_document_code_action_async(params) or ()
        fix, ignore = (
            one for one in found_actions if isinstance(one, types.CodeAction) and one.edit
        )
        assert fix.edit and fix.edit.document_changes and "Ignore on this line" in ignore.title
        (change,) = fix.edit.document_changes
        assert (
            isinstance(change, types.TextDocumentEdit)
            and change.text_document.uri == notebook.cells[1]
        )
        (edit,) = change.edits
        line = text[cut:].splitlines()[edit.range.start.line]
        assert "base = batch * length" in line and "batch.to(tl.int64) *" in edit.new_text


MEASURED = (
    "%matplotlib inline\nimport torch\nfrom torch import nn\nname = '\U0001f600'",
    "%%time\n# '\U0001f600'\nclass Model(nn.Module):\n    # the comment stays\n"
    "    def forward(self, gain, signal):\n        return torch.diag(gain) @ signal",
    "!ls\ndef get_inputs():\n    return [torch.rand(768), torch.randn(768, 768)]",
)
"""stories.EXAMPLE in cells, without its words: verdicts are known by what is computed."""


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("editor", [EDITORS[0], EDITORS[-1]])
async def test_a_rewrite_is_measured_offered_applied_and_undone_in_its_cell(
    launch: Launch, editor: str, judged: Path, tmp_path: Path
) -> None:
    """With edits by cell; what became of it is told as of a file, and the cells without a change
    are left alone."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cache").symlink_to(judged)
    async with launch(editor, fault=None, environment=ON_CPU) as session:
        notebook = Notebook(session, *MEASURED)
        cell = notebook.cells[1]
        session.texts[cell] = MEASURED[1]
        hint = await session.hint(cell, seconds=PATIENCE_S)
        assert hint.range.start == types.Position(line=2, character=6)
        lenses = await session.client.text_document_code_lens_async(
            types.CodeLensParams(types.TextDocumentIdentifier(uri=cell))
        )
        (lens,) = lenses or ()
        assert lens.range.start.line == 2 and lens.command and "x (" in lens.command.title
        hover = await session.client.text_document_hover_async(
            types.HoverParams(types.TextDocumentIdentifier(uri=cell), hint.range.start)
        )
        assert hover and hover.range == hint.range
        others = [types.TextDocumentIdentifier(uri=notebook.cells[n]) for n in (0, 2)]
        assert not [
            one
            for name in others
            for one in await session.client.text_document_code_lens_async(
                types.CodeLensParams(name)
            )
            or ()
        ]
        action = await session.rewrite(cell, seconds=PATIENCE_S)
        assert action.command is not None
        if action.data is None:  # Emacs: the server asks for the edit
            await session.command("apply", **action.command.arguments[0])
            edit = session.edits[-1].edit
        else:
            resolved = await session.client.code_action_resolve_async(action)
            assert resolved.edit is not None
            edit = resolved.edit
            await session.command("chosen", **action.command.arguments[0])
        named = [one.text_document.uri for one in edit.document_changes or ()] or list(
            edit.changes or ()
        )
        assert named == [cell]
        encoding = str(session.result.capabilities.position_encoding or "utf-16")
        after = apply_edit(MEASURED[1], edit, cell, encoding)
        assert after.startswith(
            "%%time\n# '\U0001f600'\nclass Model(nn.Module):\n    # the comment"
        )
        assert "Verified on cpu" in after and not after.endswith("\n")
        notebook.type(1, after)
        await until(lambda: "accepted" in told(session.data_dir))
        notebook.type(1, MEASURED[1], 3)
        await session.hint(cell)
        await until(lambda: "reverted" in told(session.data_dir))
    assert told(session.data_dir) in TAKEN_BACK


async def test_what_needs_a_magic_is_not_measured_and_says_so(
    launch: Launch, tmp_path: Path
) -> None:
    text = "# kernel-lsp: workload x=f32[8,8]\ndef f(x: torch.Tensor):\n    return torch.sum(x * n)"
    async with launch(fault=None, environment=ON_CPU) as session:
        notebook = Notebook(session, "import torch\nn = !nproc", text)
        session.texts[notebook.cells[1]] = text
        actions: list[types.CodeAction] = []

        async def optimize() -> types.CodeAction | None:
            actions[:] = await session.actions(notebook.cells[1], "def f")
            found = (one for one in actions if one.title.startswith("Optimize f"))
            return next(found, None)

        while (optimizing := await optimize()) is None:  # noqa: ASYNC110 - in the server
            await asyncio.sleep(0.1)
        assert optimizing.command is not None
        await session.command("optimize", **optimizing.command.arguments[0])
        await session.jobs()
        await optimize()
        (refused,) = [one for one in actions if one.disabled]
        assert refused.disabled and "only IPython understands" in refused.disabled.reason


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_the_command_line_writes_a_rewrite_into_its_cell_and_a_branch_takes_it(
    judged: Path, tmp_path: Path
) -> None:
    """Every byte outside of that cell's source stays, so that taking the rewrite back gives the
    committed file."""
    output = {"output_type": "stream", "name": "stdout", "text": ["0.37\n"]}
    cells = [
        {
            "cell_type": "code",
            "execution_count": number,
            "metadata": {},
            "outputs": [output],
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate(MEASURED, 1)
    ]
    body = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    before = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    data.mkdir()
    (data / "cache").symlink_to(judged)
    path = project / "work.ipynb"
    path.write_text(before)
    environment = {**os.environ, **ON_CPU, "KERNEL_LSP_DATA_DIR": str(data)}
    environment |= {"KERNEL_LSP_CONSENT": "always", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=False
        )

    person = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    for words in (["init", "-q"], ["add", "work.ipynb"], [*person, "commit", "-q", "-m", "one"]):
        assert run("git", *words).returncode == 0
    ours = (sys.executable, "-m", "kernel_lsp")
    done = run(*ours, "optimize", "work.ipynb", "--device", "cpu", "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "+++ b/work.ipynb/cell 2" in done.stdout and "applied." in done.stdout
    after = path.read_text()
    source = json.loads(after)["cells"][1]["source"]
    assert source[0] == "%%time\n" and "Verified on cpu" in "".join(source)
    changed = {**body, "cells": [cells[0], {**cells[1], "source": source}, cells[2]]}
    assert after == json.dumps(changed, indent=1, ensure_ascii=False) + "\n"
    for name in ("user.name", "user.email"):
        run("git", "config", name, "a@b.c")
    branch = run(*ours, "pr")
    assert branch.returncode == 0, branch.stdout + branch.stderr
    ((kept, acceptance),) = guarding.acceptances(project)
    assert isinstance(acceptance, Acceptance) and kept.exists()
    assert guarding.without(after, acceptance) == before
