"""``kernel-lsp serve`` (its help text) and ``kernel-lsp trust`` (consent without an editor)."""

from __future__ import annotations

from pathlib import Path

import typer

from kernel_lsp import config, consent
from kernel_lsp.commands import console
from kernel_lsp.errors import KernelLspError


def serve(
    tcp: str | None = typer.Option(
        None, metavar="HOST:PORT", help="Listen here instead of on standard input."
    ),
    stdio: bool = typer.Option(False, "--stdio", help="Standard input and output, which is the default."),
) -> None:
    """The language server. Editors start this."""
    from kernel_lsp.server import main  # the server's own imports are only for the server

    main(["--tcp", tcp] if tcp else [])


def trust(
    folder: Path = typer.Argument(Path(), exists=True, file_okay=False, help="The workspace folder."),
    answer: consent.Answer = typer.Option(consent.Answer.ALLOW, help="May code of this folder be run?"),
) -> None:
    """Say whether kernel-lsp may run code of FOLDER to measure it; the answer holds in every editor."""
    settings, _ = config.load(folder)
    try:
        consent.trust(folder, settings.data_dir, answer)
    except KernelLspError as error:
        console.fail(error)
    console.out.print(f"{folder.resolve()}: {answer.value}", markup=False)
