"""``kernel-lsp pr``: a branch for review from the rewrites that were accepted here."""

from __future__ import annotations

from pathlib import Path

import typer

from kernel_lsp import guarding
from kernel_lsp.commands import console
from kernel_lsp.errors import EvaluationError, KernelLspError
from kernel_lsp.guarding import branching
from kernel_lsp.presenter.guarding import review_text
from kernel_lsp.records import Acceptance


def pr(
    folder: Path = typer.Argument(
        Path(), exists=True, file_okay=False, help="The workspace, in a git repository."
    ),
    branch: str = typer.Option("kernel-lsp/rewrites", help="The new branch."),
    description: Path | None = typer.Option(
        None, dir_okay=False, help="Write the description here too, for your forge's own tool."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """Make a branch with the accepted rewrites that are not committed yet: a commit with the files,
    their evidence and a test for each, and a description with what was measured.

    Your files, index and current branch stay as they are, and nothing is pushed. A file that holds
    other changes too is refused. Exit code 0: the branch is there, 1: there is nothing to commit,
    2: it could not be made."""
    try:
        root = console.workspace_of(folder.absolute() / "here")
        repository = branching.Repository(root)
        read = list(guarding.acceptances(root))
        whole = [(file, one) for file, one in read if isinstance(one, Acceptance)]
        for _, one in read:
            if isinstance(one, EvaluationError):
                console.err.print(f"left out: {one}", markup=False, soft_wrap=True)
        chosen = branching.choose_uncommitted(repository, whole)
        if not chosen:
            console.err.print("no accepted rewrite that is not committed yet")
            raise typer.Exit(1)
        text = review_text([one for _, one in chosen])
        made = branching.make_branch(repository, chosen, name=branch, message=text)
        if description is not None:
            description.write_text(text, encoding="utf-8")
    except KernelLspError as error:
        console.fail(error)
    except OSError as error:
        console.fail(KernelLspError(f"{description} cannot be written: {error.strerror}"))
    if as_json:
        console.print_json(branch=made, description=text)
        return
    console.write(text)
    console.err.print(
        f"branch {made.name} has {len(made.files)} files; look at it: git show {made.name}; "
        f"push it: git push -u origin {made.name}",
        markup=False,
        soft_wrap=True,
    )
