"""--quiet and --verbose: what is said beside a result, which is the same with each."""

from __future__ import annotations

import io
import logging

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from kernel_lsp import phases
from kernel_lsp.commands import console
from kernel_lsp.commands.app import PLACES, application
from kernel_lsp.commands.loudness import with_loudness
from kernel_lsp.errors import KernelLspError
from kernel_lsp.records import Progress


def work(name: str = typer.Argument("it"), fails: bool = False) -> None:
    """Do the work."""
    with console.progress("work") as report, phases.phase("sleeping"):
        report(Progress(phase="work", message=f"[b]{name}"))
        logging.getLogger("kernel_lsp.somewhere").debug("a detail")
        console.err.print("a notice")
    if fails:
        console.fail(KernelLspError("it failed", "do better"))
    console.write("done\n")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What goes to standard error, but for the log."""
    stream = io.StringIO()
    for name in ("err", "failures"):
        monkeypatch.setattr(console, name, Console(file=stream, width=100))
    return stream


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(with_loudness(work))
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stdout


def test_the_result_is_the_same_and_quiet_says_nothing_else(
    said: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    assert run() == (0, "done\n")
    assert said.getvalue() == "work: [b]it\na notice\n"
    said.truncate(0)
    assert run("-q") == (0, "done\n") == run("x", "--quiet")
    assert not said.getvalue().strip("\0") and not caplog.messages
    assert run() == (0, "done\n")  # and it does not stay so
    assert "a notice" in said.getvalue()


def test_a_failure_is_told_to_the_quiet_too(said: io.StringIO) -> None:
    assert run("-q", "--fails") == (2, "")
    assert said.getvalue().split() == ["error", "it", "failed", "do", "better"]


def test_verbose_has_the_time_of_steps_the_log_and_where_the_time_went(
    said: io.StringIO, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("kernel_lsp")
    monkeypatch.setattr(logger, "level", logger.level)  # put back behind the test
    try:
        assert run("-v") == (0, "done\n")
    finally:
        logger.setLevel(logging.NOTSET)
    lines = said.getvalue().splitlines()
    assert lines[0].split() == ["0.00", "s", "work:", "[b]it"]
    assert lines[-1].split() == ["0.00", "sleeping"]
    assert caplog.messages == ["a detail"]


def test_both_together_are_refused(said: io.StringIO) -> None:
    assert run("-q", "-v") == (2, "")
    assert "exclude each other" in said.getvalue()


@pytest.mark.parametrize("name", ["check", "optimize", "verify", "record", "bench", "guard"])
def test_the_commands_that_take_their_time_have_both(name: str) -> None:
    words = CliRunner().invoke(application(PLACES), [name, "--help"]).stdout
    assert "--quiet" in words and "--verbose" in words
