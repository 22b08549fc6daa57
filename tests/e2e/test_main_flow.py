"""The main job through the real server, host, engine, judge and worker, on the CPU, with nothing
replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from editor_client import Editor, Launch, until
from stories import EXAMPLE, ON_CPU, PATIENCE_S, TAKEN_BACK, kinds, told

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


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
        await until(lambda: "accepted" in told(session.data_dir))
        lenses = await session.command("listKernels", uri=uri)
        assert any("x (" in row["state"] for row in lenses)
        session.change(uri, EXAMPLE)
        await session.hint(uri)
        await until(lambda: "reverted" in told(session.data_dir))
        assert (await session.command("status"))["folders"][0]["consent"] == "allow"
    assert told(session.data_dir) in TAKEN_BACK


@pytest.mark.usefixtures("with_verdicts")
async def test_what_was_measured_once_is_known_without_measuring(launch: Launch) -> None:
    async with launch(fault=None, environment=ON_CPU) as session:
        await session.hint(session.open("example.py", EXAMPLE), seconds=PATIENCE_S)
    background = {**ON_CPU, "KERNEL_LSP_BACKGROUND": "no"}
    async with launch(fault=None, environment=background) as session:
        await session.hint(session.open("example.py", EXAMPLE))


async def test_every_judged_candidate_is_in_the_journal(launch: Launch) -> None:
    async with launch(fault=None, environment=ON_CPU) as session:
        await session.hint(session.open("example.py", EXAMPLE), seconds=PATIENCE_S)
        await until(lambda: "evaluated" in kinds(session.data_dir))


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
        await until(lambda: all_gone(processes))
        await session.jobs()


async def test_kill_of_the_server_ends_every_process_of_a_real_job(launch: Launch) -> None:
    async with launch(fault=None, environment=ON_CPU, stop=False) as session:
        processes = await judging(session)
        os.kill(session.server_pid, signal.SIGKILL)
        await until(lambda: all_gone(processes))
