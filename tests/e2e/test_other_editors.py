"""Editors that are not installed here, as they introduce themselves.

Newer Neovim and Emacs as pytest-lsp captured them; Helix, Zed, LSP4IJ and Sublime as their sources
say (capabilities/*.json name file and commit). Each lives the story with a host that answers at
once; captured editors with a real host and real verdicts are in test_main_flow.py."""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from editor_client import EXAMPLE, Editor, Launch, until
from lsprotocol import types
from pygls.protocol import default_converter
from pytest_lsp import client_capabilities
from raw_client import running
from stories import CLIENTS, ROOT, seen

CAPABILITIES = Path(__file__).with_name("capabilities")
CAPTURED = {"neovim-0.11": "neovim@v0.11.0", "emacs-29": "emacs@v29.1"}
TITLES = {"neovim-0.11": "Neovim 0.11", "emacs-29": "Emacs 29.1", "helix": "Helix", "zed": "Zed"}
TITLES |= {"jetbrains": "JetBrains (LSP4IJ)", "sublime": "Sublime Text (LSP)"}


def capabilities(name: str) -> types.ClientCapabilities:
    if name in CAPTURED:
        captured = client_capabilities(CAPTURED[name])
        return getattr(captured, "capabilities", captured)
    found = json.loads((CAPABILITIES / f"{name}.json").read_text())["capabilities"]
    return default_converter().structure(found, types.ClientCapabilities)


@contextlib.asynccontextmanager
async def editor(launch: Launch, name: str) -> AsyncIterator[Editor]:
    mine = capabilities(name)

    def become(given: types.ClientCapabilities) -> None:
        for field in ("workspace", "text_document", "window", "general", "experimental"):
            setattr(given, field, getattr(mine, field))

    async with launch(
        CAPTURED.get(name, "neovim@v0.11.0"), fault="search", strip=become
    ) as session:
        yield session


@pytest.mark.parametrize("name", TITLES)
async def test_the_story_as_the_editor_introduces_itself(launch: Launch, name: str) -> None:
    announced = capabilities(name)
    statuses: list[Any] = []
    async with editor(launch, name) as session:

        @session.client.feature("experimental/serverStatus")
        def on_status(params: Any) -> None:
            statuses.append(params)

        features = await _story(session, announced, statuses)
    assert session.edits or features["apply"]
    seen(name, {"editor": TITLES[name], "how": "its capabilities", "features": features})


async def _story(
    session: Editor,
    announced: types.ClientCapabilities,
    statuses: list[Any],
) -> dict[str, Any]:
    uri, client = session.open("model.py", EXAMPLE), session.client
    await session.command("optimize", uri=uri, qualname="Model")
    hint = await session.hint(uri)
    document = types.TextDocumentIdentifier(uri=uri)
    hover = await client.text_document_hover_async(
        types.HoverParams(text_document=document, position=hint.range.start)
    )
    assert announced.text_document is not None
    with_bar = announced.window is not None and bool(announced.window.work_done_progress)
    lenses: Any = None
    if announced.text_document.code_lens is not None:
        lenses = await client.text_document_code_lens_async(
            types.CodeLensParams(text_document=document)
        )
    action = await session.rewrite(uri)
    assert action.command is not None
    await session.command("showEvidence", **action.command.arguments[0])
    applied = await session.take(uri, action)
    await until(lambda: "accepted" in session.kinds())
    session.change(uri, EXAMPLE)
    await session.hint(uri)
    await until(lambda: "reverted" in session.kinds())
    searched, stopped, bar = await _search(session, uri, with_bar=with_bar)
    dismissals = [a for a in await session.actions(uri) if a.title.startswith("Dismiss ")]
    assert dismissals[0].command is not None
    await session.command("dismiss", **dismissals[0].command.arguments[0])
    await until(lambda: not any("verified" in d.message for d in client.diagnostics.get(uri, ())))
    await until(lambda: "dismissed" in session.kinds())
    return {
        "consent": len(session.questions) == 1,
        "hint": True,
        "hover": "verified" in str(hover),
        "lens": bool(lenses),
        "menu": True,
        "diff": None,
        "apply": applied != EXAMPLE,
        "undo": True,
        "evidence": bool(client.shown_documents),
        "dismiss": True,
        "search": searched,
        "cancel": stopped,
        "progress": bar,
        "status": any("Model" in str(status) for status in statuses),
    }


async def _search(session: Editor, uri: str, *, with_bar: bool) -> tuple[bool, bool, bool]:
    """(a better rewrite replaced the offer, the search ended when told, it had a bar with a stop
    button)"""
    client = session.client
    await session.command("searchDeeper", uri=uri, qualname="Model")
    await session.hint(uri, words="3.00x")
    if with_bar:
        await until(lambda: _bars(client))
    bars = _bars(client)
    if bars:
        client.window_work_done_progress_cancel(types.WorkDoneProgressCancelParams(token=bars[-1]))
    else:
        await session.command("cancel", uri=uri, kind="search")
    await until(lambda: "host_cancelled" in session.kinds())
    await session.jobs()
    return True, True, bool(bars)


def _bars(client: Any) -> list[Any]:
    """Tokens of searches that have begun and can be stopped."""
    begun = [(token, found[0]) for token, found in client.progress_reports.items() if found]
    return [token for token, bar in begun if bar.cancellable and "search" in bar.title]


def test_an_editor_that_knows_no_project_and_shows_no_question(tmp_path: Path) -> None:
    """As Kate 22.12, which was driven (test_kate.py). Its root is then the home directory: what is
    asked about is the file's folder, and who cannot be asked is told how to allow it."""
    folder = tmp_path / "project"
    paths = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
    fault = {"KERNEL_LSP_HOST": "fault_host", "FAULT": "offer", "PYTHONPATH": paths}
    refusal = {"error": {"code": -32601, "message": "window/showMessageRequest"}}
    announced = json.loads((CAPABILITIES / "kate.json").read_text())["capabilities"]
    with running(folder, HOME=str(tmp_path), **fault) as client:
        client.answers["window/showMessageRequest"] = lambda _: refusal
        client.initialize(rootUri=tmp_path.as_uri(), capabilities=announced, workspaceFolders=[])
        uri = client.open(EXAMPLE)
        target = {"uri": uri, "qualname": "Model"}
        optimize = {"command": "kernel-lsp.optimize", "arguments": [target]}
        client.ask("workspace/executeCommand", optimize)
        told = client.until(lambda message: message.get("method") == "window/showMessage")
        assert f"`kernel-lsp trust {folder}`" in told["params"]["message"]
        asked = [one for one in client.messages if one.get("method") == "window/showMessageRequest"]
        assert [f"run code from {folder} " in one["params"]["message"] for one in asked] == [True]


def test_the_recipes_are_what_the_editors_read() -> None:
    helix = tomllib.loads((CLIENTS / "helix" / "languages.toml").read_text())
    (python,) = helix["language"]
    assert set(python["language-servers"]) >= set(helix["language-server"]) == {"kernel-lsp"}
    server = helix["language-server"]["kernel-lsp"]
    zed = json.loads((CLIENTS / "zed" / "settings.json").read_text())
    binary = zed["lsp"]["pylsp"]["binary"]
    assert "pylsp" in zed["languages"]["Python"]["language_servers"]
    sublime = json.loads((CLIENTS / "sublime" / "LSP.sublime-settings").read_text())["clients"][
        "kernel-lsp"
    ]
    template = json.loads((CLIENTS / "jetbrains" / "kernel-lsp" / "template.json").read_text())
    commands = [
        [server["command"], *server["args"]],
        [binary["path"], *binary["arguments"]],
        sublime["command"],
        template["programArgs"]["default"].split(),
    ]
    kate = json.loads((CLIENTS / "kate" / "settings.json").read_text())
    commands.append(kate["servers"]["python"]["command"])
    assert commands == [["kernel-lsp", "serve"]] * 5
    assert sublime["selector"] == "source.python"
    assert template["fileTypeMappings"][0]["languageId"] == "python"


def test_the_table_is_written_from_the_records() -> None:
    import runpy

    written = runpy.run_path(str(CLIENTS / "table.py"))
    readme = (CLIENTS / "README.md").read_text()
    assert written["with_table"](readme) == readme, "run: python editor-clients/table.py"
