"""What goes wrong on users' machines, through the real server: a clear message, and a server that
goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from editor_client import EXAMPLE, PATIENCE_S, Editor, Launch, until
from lsprotocol import types
from test_main_flow import all_gone, judging, kinds

DIAGONAL = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, gain, signal):
        return torch.diag(gain) @ signal


def get_inputs():
    return [torch.rand(8), torch.randn(8, 8)]
"""
QUIET = {"KERNEL_LSP_BACKGROUND": "no", "KERNEL_LSP_DEVICE": "cpu"}


def logged(session: Editor) -> str:
    return "\n".join(message.message for message in session.client.log_messages)


def read(uri: str) -> bytes:
    return Path(uri.removeprefix("file://")).read_bytes()


def write(uri: str, content: bytes) -> None:
    Path(uri.removeprefix("file://")).write_bytes(content)


def remove(uri: str) -> None:
    Path(uri.removeprefix("file://")).unlink()


async def static_hint(session: Editor, uri: str) -> types.Diagnostic:
    return await session.hint(uri, words="diag")


async def dismiss(session: Editor, uri: str) -> None:
    await session.command("dismiss", uri=uri, qualname="Model", code="KL105", scope="proposal")
    await until(lambda: not session.client.diagnostics[uri])


async def test_ten_thousand_lines_are_answered_for(launch: Launch) -> None:
    block = DIAGONAL[DIAGONAL.index("class") : DIAGONAL.index("def get_inputs")]
    blocks = [block.replace("Model", f"Model{n}") for n in range(10_000 // block.count("\n"))]
    text = "import torch\nfrom torch import nn\n\n\n" + "".join(blocks)
    async with launch(environment=QUIET) as session:
        uri = session.open("long.py", text)
        hint = await session.hint(uri, words="diag")
        assert len(session.client.diagnostics[uri]) == 10  # the budget of one file
        assert hint.range.start.line < 200
        assert await session.actions(uri, f"class Model{len(blocks) - 1}(")


async def test_a_rule_is_linked_and_says_what_it_found(launch: Launch) -> None:
    async with launch(environment=QUIET) as session:
        hint = await static_hint(session, session.open("model.py", DIAGONAL))
        assert hint.code_description is not None
        assert read(hint.code_description.href).startswith(b"# KL105")
        assert hint.data["qualname"] == "Model"
        assert hint.data["line"] == 7


async def test_a_file_that_is_no_utf8_on_disk_is_not_taken_for_deleted(launch: Launch) -> None:
    async with launch() as session:
        uri = session.open("model.py", EXAMPLE)
        await session.take(uri, await session.rewrite(uri))
        await session.event("accepted")
        session.save(uri)
        await session.event("kept")
        document = types.TextDocumentIdentifier(uri=uri)
        session.client.text_document_did_close(
            types.DidCloseTextDocumentParams(text_document=document)
        )
        await asyncio.sleep(0.5)
        write(uri, b"# caf\xe9\n" + read(uri))
        await asyncio.sleep(1.5)
        assert "deleted" not in session.kinds(), session.events()[-1]
        remove(uri)
        await session.event("deleted")


async def test_a_damaged_journal_is_set_aside_with_a_message(
    launch: Launch, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "journal.db").write_bytes(b"this is no database" * 100)
    async with launch(fault=None, environment=QUIET) as session:
        uri = session.open("model.py", DIAGONAL)
        await static_hint(session, uri)
        await dismiss(session, uri)
        await until(lambda: "it was set aside" in logged(session))  # by the host, not by kinds()
        await until(lambda: "dismissed" in kinds(data))
    aside = [file for file in data.iterdir() if file.name.startswith("journal") and file.is_file()]
    assert any(file.read_bytes().startswith(b"this is no database") for file in aside)


async def test_a_home_that_cannot_be_written_costs_only_the_memory(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    nowhere = {**QUIET, "KERNEL_LSP_DATA_DIR": str(tmp_path / "file" / "data")}
    nowhere["KERNEL_LSP_PYTHON"] = "/nonexistent/python"
    async with launch(fault=None, environment=nowhere) as session:
        uri = session.open("model.py", DIAGONAL)
        await static_hint(session, uri)
        await dismiss(session, uri)
        await until(lambda: "journal: " in logged(session))
        await session.command("benchmark", uri=uri, qualname="Model")
        await until(lambda: session.client.messages)
        assert "set kernel-lsp.python" in session.client.messages[0].message
        assert "cannot be written" in logged(session)
        await session.jobs()


MAKER = "def get_inputs():\n"
FOREVER = "def forever():\n    while True: pass\n\n\nX = forever()\n\n\nclass Model"
BROKEN = {
    "missing import": (
        "import no_such_module_here as nope\n"
        + DIAGONAL.replace("diag(gain)", "diag(nope.f(gain))"),
        "no_such_module_here",
    ),
    "get_inputs raises": (
        DIAGONAL.replace(MAKER, MAKER + "    raise OSError('no data')\n"),
        "no data",
    ),
    "get_inputs of 100 GB": (
        DIAGONAL.replace(MAKER, MAKER + "    bytearray(100 * 2**30)\n"),
        "MemoryError",
    ),
}
ENDLESS = DIAGONAL.replace("class Model", FOREVER).replace("diag(gain)", "diag(X or gain)")


async def is_explained(session: Editor, name: str, text: str, words: str) -> None:
    """Nothing of it could be measured: the editor is told why, and the text stays."""
    uri, before = session.open(name, text), len(session.client.messages)
    await static_hint(session, uri)
    await session.command("benchmark", uri=uri, qualname="Model")
    explained: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while not explained:
            explained += [message.message for message in session.client.messages[before:]]
            explained += [a.disabled.reason for a in await session.actions(uri) if a.disabled]
            await asyncio.sleep(0.2)
    assert words in explained[0], explained
    assert "Traceback" not in explained[0]
    await session.jobs()
    assert session.texts[uri] == text


@pytest.mark.torch
async def test_code_that_cannot_run_is_explained_and_the_next_file_too(launch: Launch) -> None:
    environment = {**QUIET, "KERNEL_LSP_CAPTURE_TIMEOUT_S": "120", "KERNEL_LSP_MEMORY_MB": "8000"}
    async with launch(fault=None, environment=environment) as session:
        for number, (text, words) in enumerate(BROKEN.values()):
            await is_explained(session, f"model{number}.py", text, words)


@pytest.mark.torch
async def test_code_that_does_not_end_is_explained(launch: Launch) -> None:
    environment = {**QUIET, "KERNEL_LSP_CAPTURE_TIMEOUT_S": "10", "KERNEL_LSP_MEMORY_MB": "8000"}
    async with launch(fault=None, environment=environment) as session:
        await is_explained(session, "model.py", ENDLESS, "loop")


@pytest.mark.torch
async def test_two_editors_take_turns_on_one_device(launch: Launch) -> None:
    async with (
        launch(fault=None, environment=QUIET) as first,
        launch(fault=None, environment=QUIET) as other,
    ):
        processes = await judging(first)
        uri = other.open("second.py", DIAGONAL)
        await other.command("benchmark", uri=uri, qualname="Model")

        def said() -> str:
            return str(
                [report for reports in other.client.progress_reports.values() for report in reports]
            )

        await until(lambda: "another editor measures" in said())
        assert not all_gone(processes)
        await first.command("cancel")
        await until(lambda: "capture" in said())
        await other.command("cancel")


@pytest.mark.parametrize(
    "place",
    [
        lambda path: path.write_text("a = " + "[" * 5000 + "]" * 5000),
        lambda path: path.write_bytes(b"#" * 20_000_000),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("/dev/stdin"),
    ],
    ids=["nested", "20 MB", "a pipe", "endless", "the protocol"],
)
async def test_a_repository_cannot_stop_the_server_from_starting(
    launch: Launch, tmp_path: Path, place: Callable[[Path], object]
) -> None:
    """Nobody has allowed anything yet: each of these ended `initialize`, or was never answered."""
    folder = tmp_path / "project"
    (folder / ".kernel-lsp").mkdir(parents=True)
    for name in ("pyproject.toml", ".kernel-lsp/workloads.toml", "other.py"):
        place(folder / name)
    async with asyncio.timeout(PATIENCE_S), launch(fault=None, environment=QUIET) as session:
        uri = session.open("model.py", DIAGONAL)
        await static_hint(session, uri)
        await until(lambda: "pyproject.toml cannot be read" in logged(session))
