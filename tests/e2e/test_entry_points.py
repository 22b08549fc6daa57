"""From a target that nobody called to its share of a recorded run: through the real server and a
shell."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from editor_client import PATIENCE_S, ROOT, Editor, Launch
from lsprotocol import types
from pygls.exceptions import JsonRpcException

pytestmark = pytest.mark.torch
PROGRAM = """import pathlib
import sys

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sum(x * 2.0, dim=1)


if __name__ == "__main__":
    pathlib.Path("ran").write_text(repr(sys.argv[1:]))
    model = Model()
    for _ in range(50):
        model(torch.randn(64, 64))
"""
NAME = "my train's $(touch taken).py"
SILENT = {"consent": "never"}


async def lens(session: Editor, uri: str, words: str) -> str:
    document = types.TextDocumentIdentifier(uri=uri)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await session.client.text_document_code_lens_async(
                types.CodeLensParams(text_document=document)
            )
            titles = [one.command.title for one in found or [] if one.command is not None]
            if titles and words in titles[0]:
                return str(titles[0])
            await asyncio.sleep(0.1)


def in_a_terminal(session: Editor, point: dict[str, Any]) -> None:
    environment = {
        **os.environ,
        "KERNEL_LSP_DATA_DIR": str(session.data_dir),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["sh", "-c", point["record"]],
        cwd=point["path"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def test_a_target_nobody_called_is_recorded_and_then_has_its_share(launch: Launch) -> None:
    """The server lists and runs nothing; the line runs in a shell as it is; the lens changes by
    itself."""
    async with launch(options=SILENT) as session:

        def processes() -> set[int]:
            return {
                child.pid for child in psutil.Process(session.server_pid).children(recursive=True)
            }

        uri = session.open(NAME, PROGRAM)
        assert await lens(session, uri, "record") == "▷ record a run to measure"
        actions = [action.title for action in await session.actions(uri)]
        assert actions[:2] == ["Record a run that calls Model…", "Optimize Model"]
        before = processes()
        found = await session.command("entryPoints", uri=uri)
        (point,) = found["points"]
        assert (point["name"], point["kind"]) == (NAME, "script")
        assert found["complete"] and not found["problems"]
        assert not (session.folder / "ran").exists()
        assert processes() == before
        words = shlex.split(point["record"])
        assert words[: words.index("--")] == [
            *(sys.executable, "-P", "-m", "kernel_lsp"),
            *("record", "--root", str(session.folder)),
        ]
        assert words[-1] == NAME
        assert shlex.split(point["optimize"])[4:6] == ["optimize", "--"]
        in_a_terminal(session, point)
        assert (session.folder / "ran").read_text() == "[]"
        assert not (session.folder / "taken").exists()
        assert "% of the recorded time" in await lens(session, uri, "recorded time")
        (row,) = await session.command("listKernels", uri=uri)
        assert row["qualname"] == "Model" and 0 < row["share"] <= 1
        assert (await session.actions(uri))[0].title == "Optimize Model"


async def test_debug_configurations_come_from_the_editor_or_from_its_file(launch: Launch) -> None:
    async with launch(options=SILENT) as session:
        uri = session.open("train.py", PROGRAM)
        (session.folder / ".vscode").mkdir()
        (session.folder / ".vscode" / "launch.json").write_text(
            '{"configurations": [{"name": "file", "type": "python", "request": "launch", '
            '"module": "train"}]}'
        )
        one = {
            "name": "editor",
            "type": "debugpy",
            "request": "launch",
            "program": "${workspaceFolder}/train.py",
        }
        read = [{**one, "args": ["it's"], "env": {"SIZE": "$HOME"}}]
        given = await session.command("entryPoints", uri=uri, configurations=read)
        assert [point["name"] for point in given["points"]] == ["editor", "train.py"]
        words = shlex.split(given["points"][0]["record"])
        assert words[:2] == ["env", "SIZE=$HOME"] and words[-2:] == ["train.py", "it's"]
        found = await session.command("entryPoints", uri=uri)
        assert [point["name"] for point in found["points"]] == ["train.py", "file"]


@pytest.mark.parametrize(
    ("options", "arguments", "why"),
    [
        ({"isTrusted": False}, {}, "is not trusted"),
        ({}, {"uri": 3}, "uri 3 is no text"),
        ({}, {"configurations": "all"}, "configurations is no list"),
    ],
)
async def test_what_is_not_answered_says_why(
    launch: Launch, options: dict[str, Any], arguments: dict[str, Any], why: str
) -> None:
    async with launch(options={**SILENT, **options}) as session:
        session.open("train.py", PROGRAM)
        with pytest.raises(JsonRpcException, match=why):
            await session.command("entryPoints", **arguments)


async def test_a_large_workspace_delays_no_other_answer(launch: Launch, tmp_path: Path) -> None:
    """Looked through beside the loop, while hovers are answered."""
    folder = tmp_path / "project" / "many"
    folder.mkdir(parents=True)
    for number in range(3000):
        (folder / f"m{number}.py").write_text(f"{PROGRAM}\n# {number}\n")
    async with launch(options=SILENT) as session:
        uri = session.open("train.py", PROGRAM)
        asked = asyncio.ensure_future(session.command("entryPoints", uri=uri))
        at = types.Position(line=0, character=0)
        document = types.TextDocumentIdentifier(uri=uri)
        answered = 0
        while not asked.done():
            await session.client.text_document_hover_async(
                types.HoverParams(text_document=document, position=at)
            )
            answered += 1
        found = await asked
        assert found["points"][0]["name"] == "train.py" and not found["complete"]
        assert answered > 20


@pytest.mark.parametrize(
    "text", [PROGRAM, PROGRAM.replace("__main__", "__other__")], ids=["script", "none"]
)
async def test_an_editor_without_a_terminal_is_told_the_line(launch: Launch, text: str) -> None:
    async with launch(options=SILENT) as session:
        uri = session.open("train.py", text)
        await lens(session, uri, "record")
        action = (await session.actions(uri))[0]
        assert action.command is not None and action.command.command == "kernel-lsp.recordRun"
        found = await session.command("recordRun", **action.command.arguments[0])
        async with asyncio.timeout(PATIENCE_S):
            while not session.client.messages:  # noqa: ASYNC110 - in the server
                await asyncio.sleep(0.05)
        said = session.client.messages[0].message
        assert found["record"] in said
        assert ("train.py" in said) == bool(found["points"])
