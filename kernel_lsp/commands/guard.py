"""``kernel-lsp guard``: do the rewrites that a repository has accepted still pay?"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import typer

from kernel_lsp import guarding, interpreter, notebooks, signatures
from kernel_lsp.commands import console, keys
from kernel_lsp.commands.loudness import with_loudness
from kernel_lsp.errors import EvaluationError, KernelLspError, SignatureError, Unsigned
from kernel_lsp.evaluator import COMPILED, open_gate
from kernel_lsp.evaluator.evidence import PATIENCE
from kernel_lsp.files import read_source
from kernel_lsp.guarding.branching import FoundAcceptances
from kernel_lsp.journal import outcomes
from kernel_lsp.pipeline import kept
from kernel_lsp.presenter import guarding as presenting
from kernel_lsp.records import (
    Acceptance,
    EventKind,
    Guarded,
    Holding,
    Program,
    Proposal,
    Target,
    Workload,
)


class GuardFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


@with_loudness
def guard(
    path: Path = typer.Argument(
        Path(), help="A repository, a folder of it, or one file.", exists=True
    ),
    format: GuardFormat = typer.Option(GuardFormat.TEXT, help="How the result is printed."),
    patch: Path | None = typer.Option(
        None, dir_okay=False, help="Write a patch here that takes back what failed, for git apply."
    ),
    device: str = typer.Option("auto", help="auto, cuda or cpu."),
    unsigned: bool = keys.UNSIGNED,
    allow_rollback: bool = keys.ALLOW_ROLLBACK,
) -> None:
    """Judge every accepted rewrite again, on this machine and with these versions.

    Reads .kernel-lsp/accepted, which --apply and the editors write; runs code of the repository in
    confined processes. In CI each must be signed (`kernel-lsp keys sign`), unless --unsigned says
    that the review of the repository covers it; a signature that does not hold is never passed
    over. Exit code 0: all pay or are right where speed cannot be judged, 1: one became wrong or
    slow, 2: one could not be judged."""
    inside = path.absolute()
    root = console.workspace_of(inside / "here" if inside.is_dir() else inside)
    read = list(guarding.acceptances(root))
    problems = [str(one) for _, one in read if isinstance(one, EvaluationError)]
    chosen: FoundAcceptances = [
        (file, one)
        for file, one in read
        if isinstance(one, Acceptance) and (root / one.path).is_relative_to(inside)
    ]
    chosen, unbelieved = _is_believed(chosen, unsigned=unsigned, allow_rollback=allow_rollback)
    problems += unbelieved
    found = console.run(_judge(root, chosen, device)) if chosen else []
    if patch is not None:
        _write(patch, root, found)
    render = {
        GuardFormat.TEXT: presenting.guarded_text,
        GuardFormat.JSON: presenting.guarded_json,
        GuardFormat.SARIF: presenting.guarded_sarif,
    }
    console.write(render[format](found, problems).rstrip("\n") + "\n")
    raise typer.Exit(_exit_code(found, problems))


def _is_believed(
    chosen: FoundAcceptances, *, unsigned: bool, allow_rollback: bool
) -> tuple[FoundAcceptances, list[str]]:
    """What is signed, or need not be; and what is wrong with the others."""
    ring, believed, problems = keys.keyring(), list[tuple[Path, Acceptance]](), list[str]()
    for file, one in chosen:
        try:
            ring.verify(file, kind=keys.Kind.EVIDENCE.value, allow_rollback=allow_rollback)
        except Unsigned as error:
            if signatures.refuses_unsigned() and not unsigned:
                remedy = "sign it (`kernel-lsp keys sign`), or say --unsigned"
                problems.append(f"{error.cause}: refused in CI ({remedy})")
                continue
        except SignatureError as error:
            problems.append(str(error))
            continue
        believed.append((file, one))
    return believed, problems


def keep(proposals: Sequence[Proposal], *, folder: Path, path: Path) -> None:
    """Put the evidence of rewrites that --apply has written beside them. What cannot be written is
    said."""
    events = outcomes.events(EventKind.ACCEPTED, proposals, folder=folder, path=path, client=None)
    for event, proposal in zip(events, proposals, strict=True):
        try:
            kept = guarding.accept(event, Path(proposal.evidence)) if proposal.evidence else None
            if kept is not None:
                where = kept.relative_to(folder)
                console.err.print(
                    f"guard: commit {where} with the rewrite", markup=False, soft_wrap=True
                )
        except OSError as error:
            cause = f"{folder / guarding.FOLDER} cannot be written: {error.strerror}"
            console.err.print(f"guard: {cause}; this rewrite will not be guarded", markup=False)


async def _judge(root: Path, chosen: FoundAcceptances, device: str) -> list[Guarded]:
    settings = console.settings(root, device=device)
    console.require_consent(settings, root)
    data_dir = Path(settings.data_dir)
    async with open_gate(settings, cache=data_dir / COMPILED) as gate:
        probe = await gate.elsewhere() or await interpreter.probe(
            interpreter.find(root, settings.python).path
        )
        if probe.remedy:
            raise EvaluationError("could not judge: no torch", probe.remedy)
        if settings.device == "cuda" and not probe.cuda:
            raise EvaluationError(
                "could not judge: torch sees no CUDA device", "use --device cpu or auto"
            )

        def reopen(path: Path, text: str, target: Target) -> tuple[Program, Workload] | None:
            found = kept.find_call(path, text, target, data_dir)
            return None if found is None else (found.program, found.workload)

        with console.progress("guard") as report:
            judged = guarding.guard(
                root,
                chosen,
                report,
                gate=gate,
                python=probe.python,
                cuda=bool(probe.cuda) and settings.device != "cpu",
                timeout_s=PATIENCE * settings.evaluate_timeout_s,
                data_dir=data_dir,
                reopen=reopen,
            )
            return [one async for one in judged]


def _write(patch: Path, root: Path, found: list[Guarded]) -> None:
    """Also where there is nothing to take back: the file is empty then."""
    failed = {one.acceptance.path for one in found if one.failed}
    texts = {path: _read(root / path, root) for path in failed}
    try:
        patch.write_text(guarding.combine_patches(found, texts), encoding="utf-8", newline="")
    except OSError as error:
        console.fail(
            KernelLspError(f"{patch} cannot be written: {error.strerror}", "name another file")
        )


def _read(path: Path, root: Path) -> str:
    """The text of the file as it lies there."""
    if notebooks.is_notebook(path):
        return notebooks.read_json(path, within=root)
    return read_source(path, within=root).text


def _exit_code(found: list[Guarded], problems: list[str]) -> int:
    if any(one.failed for one in found):
        return console.EXIT_NO
    unknown = any(one.holding is Holding.UNKNOWN for one in found)
    return console.EXIT_CANNOT if problems or unknown else console.EXIT_OK
