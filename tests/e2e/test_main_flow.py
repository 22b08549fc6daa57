"""The main job through the real server, host, engine, judge and worker, on the CPU, with nothing replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Launch, apply_edit

from kernel_lsp.journal.store import FILE_NAME, Journal

pytestmark = pytest.mark.torch
EXAMPLE = ROOT / "examples" / "matmul_then_sum.py"


def kinds(data_dir: Path) -> list[str]:
    """All events of the journal, oldest first."""
    with Journal.open(data_dir / FILE_NAME) as journal:
        events = [event for row in journal.sessions() for event in journal.session(row.id)[1]]
    return [event.kind.value for event in sorted(events, key=lambda event: event.time)]


async def test_open_hint_apply_undo_and_the_journal_tells_it(launch: Launch) -> None:
    text = EXAMPLE.read_text()
    async with launch(fault=None, environment={"KERNEL_LSP_DEVICE": "cpu"}) as session:
        uri = session.open("example.py", text)
        await session.hint(uri, seconds=240)
        action = await session.rewrite(uri)
        resolved = await session.client.code_action_resolve_async(action)
        after = apply_edit(text, resolved.edit, uri, str(session.result.capabilities.position_encoding))
        session.change(uri, after)
        await session.command("chosen", **action.command.arguments[0])
        report = await session.command("showEvidence", **action.command.arguments[0])
        assert "x (" in report["title"]
        lenses = await session.command("listKernels", uri=uri)
        assert any("on" in row["state"] and "x (" in row["state"] for row in lenses)
        session.change(uri, text)
        await session.hint(uri)
        assert (await session.command("status"))["folders"][0]["consent"] == "allow"
    assert kinds(session.data_dir) == ["offered", "chosen", "accepted", "reverted"]


async def test_a_second_session_knows_the_verdict_without_measuring(launch: Launch) -> None:
    text = EXAMPLE.read_text()
    environment = {"KERNEL_LSP_DEVICE": "cpu"}
    async with launch(fault=None, environment=environment) as session:
        await session.hint(session.open("example.py", text), seconds=240)
    environment["KERNEL_LSP_BACKGROUND"] = "no"
    async with launch(fault=None, environment=environment) as session:
        await session.hint(session.open("example.py", text), seconds=30)


@pytest.mark.skipif(shutil.which("nvim") is None, reason="Neovim is not installed (apt install neovim)")
def test_neovim_applies_the_verified_rewrite_and_undoes_it(tmp_path: Path) -> None:
    folder, data_dir = tmp_path / "project", tmp_path / "data"
    folder.mkdir()
    file = folder / "example.py"
    shutil.copy(EXAMPLE, file)
    environment = {
        **os.environ,
        "KERNEL_LSP_DATA_DIR": str(data_dir),
        "KERNEL_LSP_DEVICE": "cpu",
        "KL_FILE": str(file),
        "KL_ROOT": str(folder),
        "KL_PYTHON": sys.executable,
        "KL_PATIENCE_MS": "240000",
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    script = Path(__file__).with_name("nvim_flow.lua")
    command = ["nvim", "--headless", "-u", "NONE", "-i", "NONE", "-n", "-c", f"luafile {script}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    steps = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert steps == ["ASKED", "HINT", "CHOSE", "APPLIED", "UNDONE", "DONE"], done.stdout + done.stderr
    assert file.read_text() == EXAMPLE.read_text()
    assert kinds(data_dir) == ["offered", "chosen", "accepted", "reverted"]
