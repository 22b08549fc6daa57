"""One command alone is the same as among all of them, and does not load what only others need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.rich_utils
from typer.main import get_command
from typer.testing import CliRunner

from kernel_lsp.commands import app

ALL = app.app


@pytest.mark.parametrize("name", app.PLACES)
def test_a_command_alone_says_the_same_of_itself(name: str) -> None:
    help_of = [CliRunner().invoke(one, [name, "--help"]) for one in (ALL, app.application([name]))]
    assert [done.exit_code for done in help_of] == [0, 0]
    assert help_of[0].stdout == help_of[1].stdout


def test_the_order_of_the_help_is_that_of_the_table() -> None:
    command = get_command(ALL)
    assert isinstance(command, typer.core.TyperGroup)
    assert command.list_commands(typer.Context(command)) == [*app.PLACES]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--version"], 0, "kernel-lsp "),
        (["optimise"], 2, "optimize"),
        (["trust", "--no-such-option"], 2, "No such option"),
        (["record", "here.py", "--help"], 2, "here.py"),
    ],
    ids=["version", "no such command", "no such option", "a script's own options"],
)
def test_what_is_said_of_a_command_line(
    arguments: list[str], code: int, words: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["kernel-lsp", *arguments])
    with pytest.raises(SystemExit) as end:
        app.main(arguments)
    said = capfd.readouterr()
    assert end.value.code == code, said
    assert words in said.out + said.err


def test_a_command_loads_nothing_that_only_others_need() -> None:
    code = (
        "import sys; from kernel_lsp.commands import app; app.application(['verify']);"
        "assert 'kernel_lsp.evaluator.verify' in sys.modules;"
        "heavy = {'sqlalchemy', 'torch', 'kernel_lsp.pipeline', 'kernel_lsp.server'} & "
        "set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands that are no group, with the words that call them."""
    if isinstance(command, typer.core.TyperGroup):
        for name, one in command.commands.items():
            yield from _leaves(one, (*path, name))
    else:
        yield path, command


@pytest.mark.parametrize(
    ("path", "command"),
    [pytest.param(*leaf, id=" ".join(leaf[0])) for leaf in _leaves(get_command(ALL))],
)
def test_the_help_shows_every_word_that_was_written(
    path: tuple[str, ...], command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets were taken for a color: `[tool.kernel-lsp]` was missing from the help of check."""
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 1000)
    shown = CliRunner().invoke(ALL, [*path, "--help"]).stdout
    texts = [command.help, *(getattr(one, "help", None) for one in command.params)]
    written = [" ".join(part.split()) for text in texts if text for part in text.split("\n\n")]
    missing = [part for part in written if part.replace("`", "") not in shown]
    assert not missing
