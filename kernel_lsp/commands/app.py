"""The commands as a typer application: all of them, or only the one that is asked for.

Most of what a command costs to start are imports that other commands need (SQLAlchemy, the
pipeline, a cluster): `main` reads the name first. All are there for the help, and for a name that
is none."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from kernel_lsp import __version__

if TYPE_CHECKING:
    app: typer.Typer
    """All commands."""

PLACES = {
    "serve": "serve",
    "check": "check",
    "optimize": "optimize",
    "verify": "verify",
    "record": "record",
    "bench": "bench",
    "doctor": "doctor",
    "trust": "serve",
    "guard": "guard",
    "pr": "pr",
    "report": "report",
    "patches": "patches",
    "skills": "skills",
    "models": "models",
    "keys": "keys",
    "sessions": "sessions",
    "team": "team",
    "train": "train",
}
"""Command -> the module beside this one that has it: a function of that name, or an `app` with
more commands. In the order of the help."""


def main(arguments: list[str]) -> None:
    """What ``kernel-lsp`` does: run the command that the arguments name."""
    application(arguments[:1] if arguments[:1] and arguments[0] in PLACES else PLACES)()


def application(names: Iterable[str]) -> typer.Typer:
    """The application with these commands, and nothing imported for others."""
    made = typer.Typer(
        name="kernel-lsp",
        help="Measured, checked rewrites of PyTorch and Triton code: in your editor, and here.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_root)
    for name in names:
        module = import_module(f"kernel_lsp.commands.{PLACES[name]}")
        if hasattr(module, "app"):
            made.add_typer(module.app, name=name)
        else:
            made.command(context_settings=getattr(module, "SETTINGS", None))(getattr(module, name))
    return made


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kernel-lsp {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Global options."""


def __getattr__(name: str) -> Any:
    """`app` only when it is asked for, since it takes all of them."""
    if name == "app":
        return application(PLACES)
    raise AttributeError(name)
