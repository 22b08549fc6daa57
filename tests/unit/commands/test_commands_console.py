"""Progress of commands in a terminal and beside one."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from kernel_lsp.commands import console
from kernel_lsp.records import Progress


def step(message: str, done: int | None = None, total: int | None = None) -> Progress:
    return Progress(phase="bench", message=message, done=done, total=total)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> io.StringIO:
    made = io.StringIO()
    shown = Console(file=made, force_terminal=request.param, width=100, color_system=None)
    monkeypatch.setattr(console, "err", shown)
    return made


@pytest.mark.parametrize("stream", [True], indirect=True)
def test_a_bar_has_a_total_and_the_time_left_once_both_are_known(stream: io.StringIO) -> None:
    with console.progress("bench") as report:

        def shown(progress: Progress) -> str:
            """What stands behind its message, once the bar is drawn with it."""
            time.sleep(0.02)  # or there is no speed
            report(progress)
            end = time.monotonic() + 60
            while progress.message not in stream.getvalue():
                assert time.monotonic() < end, "it is not drawn"
                time.sleep(0.02)
            return stream.getvalue().rpartition(progress.message)[2]

        assert " of " not in shown(step("reading"))
        assert "0 of 3" in shown(step("three tasks", 0, 3))
        report(step("first", 1, 3))
        assert re.search(r" 2 of 3 0:0\d:\d\d left", shown(step("[b]second", 2, 3)))
        assert " of " not in shown(step("writing"))


@pytest.mark.parametrize("stream", [False], indirect=True)
def test_without_a_terminal_there_is_a_line_per_step_or_none(stream: io.StringIO) -> None:
    for lines in (True, False):
        with console.progress("bench", lines=lines) as report:
            report(step("reading", 1, 3))
    assert stream.getvalue() == "bench: reading\n"
