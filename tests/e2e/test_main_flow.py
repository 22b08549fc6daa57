"""The main job through the real server, host, engine, judge and worker, on the CPU, with nothing replaced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, Editor, Launch, until

from kernel_lsp.journal.store import FILE_NAME, Journal

pytestmark = pytest.mark.torch
EXAMPLE = '''"""A product with a diagonal matrix: 2 * 768**3 operations where 768**2 would do."""

import torch
from torch import nn


class Model(nn.Module):
    # the comment stays
    def forward(self, gain, signal):
        return torch.diag(gain) @ signal


def get_inputs():
    return [torch.rand(768), torch.randn(768, 768)]
'''
ON_CPU = {"KERNEL_LSP_DEVICE": "cpu"}
PATIENCE_S = 240
"""For other people's load on the same cores; a quiet machine needs a fifth."""


def kinds(data_dir: Path) -> list[str]:
    """All events of the journal, oldest first."""
    if not (data_dir / FILE_NAME).exists():
        return []
    with Journal.open(data_dir / FILE_NAME) as journal:
        events = [event for row in journal.sessions() for event in journal.session(row.id)[1]]
    return [event.kind.value for event in sorted(events, key=lambda event: event.time)]


def told(data_dir: Path) -> list[str]:
    """What became of the offer; how many candidates were judged is not the point here."""
    return [kind for kind in kinds(data_dir) if kind != "evaluated"]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of verdicts for the module: its first test measures, the others find it measured."""
    return tmp_path_factory.mktemp("verdicts")


@pytest.fixture
def with_verdicts(tmp_path: Path, verdicts: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cache").symlink_to(verdicts)


@pytest.mark.usefixtures("with_verdicts")
@pytest.mark.parametrize("editor", ["visual-studio-code@v1.65.2", "neovim@v0.11.0", "emacs@v29.1"])
async def test_open_hint_apply_undo_and_the_journal_tells_it(launch: Launch, editor: str) -> None:
    async with launch(editor, fault=None, environment=ON_CPU) as session:
        uri = session.open("example.py", EXAMPLE)
        await session.hint(uri, seconds=PATIENCE_S)
        action = await session.rewrite(uri)
        assert action.command is not None
        report = await session.command("showEvidence", **action.command.arguments[0])
        assert "x (" in report["title"]
        after = await session.take(uri, action)
        assert after != EXAMPLE
        assert "Verified on cpu" in after
        assert "# the comment stays" in after
        await until(lambda: "accepted" in told(session.data_dir), 60)
        lenses = await session.command("listKernels", uri=uri)
        assert any("x (" in row["state"] for row in lenses)
        session.change(uri, EXAMPLE)
        await session.hint(uri)
        await until(lambda: "reverted" in told(session.data_dir), 60)
        assert (await session.command("status"))["folders"][0]["consent"] == "allow"
    assert told(session.data_dir) == ["offered", "chosen", "accepted", "reverted"]


@pytest.mark.usefixtures("with_verdicts")
async def test_what_was_measured_once_is_known_without_measuring(launch: Launch) -> None:
    async with launch(fault=None, environment=ON_CPU) as session:
        await session.hint(session.open("example.py", EXAMPLE), seconds=PATIENCE_S)
    background = {**ON_CPU, "KERNEL_LSP_BACKGROUND": "no"}
    async with launch(fault=None, environment=background) as session:
        await session.hint(session.open("example.py", EXAMPLE), seconds=60)


async def test_every_judged_candidate_is_in_the_journal(launch: Launch) -> None:
    async with launch(fault=None, environment=ON_CPU) as session:
        await session.hint(session.open("example.py", EXAMPLE), seconds=PATIENCE_S)
        await until(lambda: "evaluated" in kinds(session.data_dir), 60)


def line(process: psutil.Process) -> str:
    """Its command line; empty when it ended between being listed and being asked."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def workers(session: Editor) -> list[psutil.Process]:
    """Everything below the host: engine, judge and worker, with their wrappers."""
    below = psutil.Process(session.server_pid).children(recursive=True)
    found = [process for process in below if "kernel_lsp.host" not in line(process)]
    return found if any("evaluator.running.worker" in line(process) for process in found) else []


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone(processes: list[psutil.Process]) -> bool:
    return all(gone(process) for process in processes)


async def judging(session: Editor) -> list[psutil.Process]:
    """Start a real job and wait until a worker runs; returns every process of the job."""
    uri = session.open("example.py", EXAMPLE)
    await session.command("benchmark", uri=uri, qualname="Model")
    found: list[psutil.Process] = []

    def started() -> bool:
        found[:] = workers(session)
        return bool(found)

    await until(started, PATIENCE_S)
    return found


async def test_cancel_ends_every_process_of_a_real_job(launch: Launch) -> None:
    async with launch(fault=None, environment=ON_CPU) as session:
        processes = await judging(session)
        await session.command("cancel")
        await until(lambda: all_gone(processes), 60)
        assert (await session.command("status"))["jobs"] == []


async def test_kill_of_the_server_ends_every_process_of_a_real_job(launch: Launch) -> None:
    async with launch(fault=None, environment=ON_CPU, stop=False) as session:
        processes = await judging(session)
        os.kill(session.server_pid, signal.SIGKILL)
        await until(lambda: all_gone(processes), 60)


@pytest.mark.skipif(shutil.which("nvim") is None, reason="Neovim is not installed (apt install neovim)")
def test_neovim_applies_the_verified_rewrite_and_undoes_it(tmp_path: Path) -> None:
    folder, data_dir = tmp_path / "project", tmp_path / "data"
    folder.mkdir()
    file = folder / "example.py"
    file.write_text(EXAMPLE)
    environment = {
        **os.environ,
        **ON_CPU,
        "KERNEL_LSP_DATA_DIR": str(data_dir),
        "KL_FILE": str(file),
        "KL_ROOT": str(folder),
        "KL_PYTHON": sys.executable,
        "KL_PATIENCE_MS": str(PATIENCE_S * 1000),
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    script = Path(__file__).with_name("nvim_flow.lua")
    command = ["nvim", "--headless", "-u", "NONE", "-i", "NONE", "-n", "-c", f"luafile {script}"]
    limit = PATIENCE_S + 40
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=limit, check=False
    )
    steps = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert steps == ["ASKED", "HINT", "CHOSE", "APPLIED", "UNDONE", "DONE"], done.stdout + done.stderr
    assert file.read_text() == EXAMPLE
    assert told(data_dir) == ["offered", "chosen", "accepted", "reverted"]
