"""``kernel-lsp serve`` (its help text) and ``kernel-lsp trust`` (consent without an editor)."""

from __future__ import annotations

from pathlib import Path

import typer

from kernel_lsp import config, consent, origins
from kernel_lsp.commands import console
from kernel_lsp.confinement import held
from kernel_lsp.confinement.layers import GUARANTEES
from kernel_lsp.consent import subjects
from kernel_lsp.errors import KernelLspError


def serve(
    tcp: str | None = typer.Option(
        None, metavar="HOST:PORT", help="Listen here instead of on standard input."
    ),
    stdio: bool = typer.Option(
        False, "--stdio", help="Standard input and output, which is the default."
    ),
    log_level: str = typer.Option(
        "info", metavar="LEVEL", help="What is logged: error, warning, info or debug."
    ),
    log_file: Path | None = typer.Option(
        None, metavar="FILE", help="Append the log to this file too, with the time of each line."
    ),
) -> None:
    """The language server. Editors start this."""
    from kernel_lsp.server import main  # the server's own imports are only for the server

    to_file = [] if log_file is None else ["--log-file", str(log_file)]
    main([*(["--tcp", tcp] if tcp else []), "--log-level", log_level, *to_file])


def trust(
    folder: Path = typer.Argument(
        Path(), exists=True, file_okay=False, help="The workspace folder."
    ),
    answer: consent.ConsentAnswer = typer.Option(
        consent.ConsentAnswer.ALLOW, help="May code of this folder be run?"
    ),
    remote: str | None = typer.Option(
        None,
        metavar="ORIGIN",
        help="Prompts with its code may go to this server of a language model (--answer never: "
        "may not).",
    ),
    accept_weaker: bool = typer.Option(
        False,
        "--accept-weaker",
        help="Also where this machine leaves open what is otherwise refused; what that is, "
        "is said.",
    ),
) -> None:
    """Say whether kernel-lsp may run code of FOLDER to measure it; the answer holds in every
    editor.

    It is about what lies there now, and rests on the layers that confine here: where they are
    fewer later, nothing is run until you answer again.

    With --remote only the question is answered whether code may leave this machine, e.g. for
    https://api.example.com.
    """
    settings, _ = config.load(folder)
    try:
        if remote is None:
            said = answer.value
            if answer is not consent.ConsentAnswer.NEVER:
                said += f". {_store_answer(folder, settings, answer, accept_weaker=accept_weaker)}"
            else:
                consent.trust(folder, settings.data_dir, answer)
        else:
            origin = origins.endpoint(remote).origin
            allowed = answer is not consent.ConsentAnswer.NEVER
            consent.trust_remote(folder, settings.data_dir, origin, allowed=allowed)
            said = f"prompts with its code {'may' if allowed else 'may not'} go to {origin}"
    except KernelLspError as error:
        console.fail(error)
    console.out.print(f"{folder.resolve()}: {said}", markup=False)


def _store_answer(
    folder: Path, settings: config.Settings, answer: consent.ConsentAnswer, *, accept_weaker: bool
) -> str:
    """Store the answer with what holds here; what was stored, in words."""
    here = console.run(held.try_layers())
    weaker = frozenset(GUARANTEES) - here.promise
    accepted = weaker if accept_weaker else frozenset[str]()
    consent.trust(folder, settings.data_dir, answer, promise=here.promise, accepted=accepted)
    words = [f"What holds here: {here.words}", f"It covers {subjects.words(folder)}"]
    if weaker:
        opened = "; ".join((*here.open, *([here.problem] if here.problem else [])))
        kept = "accepted" if accept_weaker else "nothing is run until --accept-weaker accepts it"
        words.insert(1, f"Left open: {opened} ({kept})")
    return ". ".join(words)
