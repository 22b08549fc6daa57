"""All commands as one typer application."""

from __future__ import annotations

import typer

from kernel_lsp import __version__
from kernel_lsp.commands import (
    bench,
    check,
    doctor,
    guard,
    models,
    optimize,
    record,
    report,
    serve,
    sessions,
    skills,
    train,
    verify,
)

app = typer.Typer(
    name="kernel-lsp",
    help="Measured, checked rewrites of PyTorch and Triton code: in your editor, and here.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kernel-lsp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Global options."""


app.command()(serve.serve)
app.command()(check.check)
app.command()(optimize.optimize)
app.command()(verify.verify)
app.command(context_settings=record.SETTINGS)(record.record)
app.command()(bench.bench)
app.command()(doctor.doctor)
app.command()(serve.trust)
app.command()(guard.guard)
app.command()(report.report)
app.add_typer(skills.app, name="skills")
app.add_typer(models.app, name="models")
app.add_typer(sessions.app, name="sessions")
app.add_typer(train.app, name="train")
