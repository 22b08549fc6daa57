"""Settings in the real server: of each folder its own, and every switch without a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from editor_client import PATIENCE_S, Editor, Launch, until
from lsprotocol import types

DIAG = "import torch\n\n\ndef f(a: torch.Tensor):\n    return torch.diag(a) @ a\n"
OPTIONS = {"consent": "never"}


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    return one, two


def configure(session: Editor, *, scope: Path | None = None, **values: object) -> None:
    """What the user sets, for a folder or for all."""
    uri = None if scope is None else scope.as_uri()
    session.client.set_configuration({"kernel-lsp": values}, scope_uri=uri)
    session.client.workspace_did_change_configuration(
        types.DidChangeConfigurationParams(settings=None)
    )


def put(session: Editor, path: Path, text: str = DIAG) -> str:
    """Open a file at a place of its own."""
    return session.open(str(path), text)


def codes(session: Editor, uri: str) -> dict[object, types.DiagnosticSeverity | None]:
    return {one.code: one.severity for one in session.client.diagnostics.get(uri, ())}


async def lenses(session: Editor, uri: str) -> list[types.CodeLens]:
    params = types.CodeLensParams(text_document=types.TextDocumentIdentifier(uri=uri))
    found = await asyncio.wait_for(session.client.text_document_code_lens_async(params), PATIENCE_S)
    return list(found or ())


async def test_each_folder_of_a_workspace_has_the_settings_of_its_scope(
    launch: Launch, roots: tuple[Path, Path]
) -> None:
    one, two = roots
    async with launch(folders=[one, two], options=OPTIONS) as session:
        first, second = (put(session, root / "a.py") for root in roots)
        await until(lambda: "KL105" in codes(session, first) and "KL105" in codes(session, second))
        configure(session, scope=two, ignore=["KL105"], python=str(two / "bin" / "python"))
        await until(lambda: "KL105" not in codes(session, second))
        assert "KL105" in codes(session, first)
        status = await session.command("status")
        found = {row["folder"]: row["settings"] for row in status["folders"]}
        assert found[str(two)]["python"] == str(two / "bin" / "python")
        assert found[str(one)]["python"] is None and found[str(one)]["ignore"] == []


async def test_a_folder_that_is_added_brings_its_settings(
    launch: Launch, roots: tuple[Path, Path]
) -> None:
    one, two = roots
    async with launch(folders=[one], options=OPTIONS) as session:
        session.client.set_configuration(
            {"kernel-lsp": {"ignore": ["KL105"]}}, scope_uri=two.as_uri()
        )
        uri = put(session, two / "a.py")
        await until(lambda: "KL105" in codes(session, uri))
        added = types.WorkspaceFoldersChangeEvent(
            added=[types.WorkspaceFolder(uri=two.as_uri(), name="two")], removed=[]
        )
        session.client.workspace_did_change_workspace_folders(
            types.DidChangeWorkspaceFoldersParams(event=added)
        )
        await until(lambda: "KL105" not in codes(session, uri))


async def test_switches_count_without_a_restart(launch: Launch) -> None:
    async with launch(options=OPTIONS) as session:
        uri = session.open("a.py", DIAG)
        await until(lambda: "KL105" in codes(session, uri))
        assert len(await lenses(session, uri)) == 1
        seen = len(session.requests)
        configure(session, code_lens=False)
        await until(lambda: types.WORKSPACE_CODE_LENS_REFRESH in session.requests[seen:])
        assert await lenses(session, uri) == []
        configure(session, code_lens=True)
        await until(lambda: session.requests[seen:].count(types.WORKSPACE_CODE_LENS_REFRESH) > 1)
        assert len(await lenses(session, uri)) == 1


async def test_rules_and_severities_of_pyproject_count_and_are_read_anew(launch: Launch) -> None:
    async with launch(options=OPTIONS) as session:
        uri = session.open("a.py", DIAG)
        await until(lambda: codes(session, uri).get("KL105") == types.DiagnosticSeverity.Hint)
        project = session.folder / "pyproject.toml"
        project.write_text('[tool.kernel-lsp]\nseverity = {KL105 = "error"}\n')
        await until(lambda: codes(session, uri).get("KL105") == types.DiagnosticSeverity.Error)
        project.write_text('[tool.kernel-lsp.per-file-ignores]\n"a.py" = ["KL1"]\n')
        await until(lambda: "KL105" not in codes(session, uri))


async def test_what_does_nothing_is_faded_where_the_editor_can(launch: Launch) -> None:
    text = (Path(__file__).parents[1] / "cases" / "KL214_duplicate_autotune_config.py").read_text()
    async with launch(options=OPTIONS) as session:
        uri = session.open("kernels.py", text)
        found = await session.hint(uri, words="compiled and measured twice")
        assert [*(found.tags or ())] == [types.DiagnosticTag.Unnecessary]
