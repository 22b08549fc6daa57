"""``kernel-lsp skills lineage``: walk an expert Triton kernel back, and keep what each step
teaches."""

from __future__ import annotations

from pathlib import Path

import typer

from kernel_lsp.commands import console
from kernel_lsp.config import Settings
from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.files import read_source
from kernel_lsp.presenter import lineages as presenting
from kernel_lsp.records import Job, Lineage, Workload

STOPPED = "stopped; what was judged is kept, and the same command goes on from there"


def lineage(
    target: str = typer.Argument(
        ..., metavar="FILE::KERNEL", help="A @triton.jit kernel and its file."
    ),
    device: str = typer.Option(
        "auto", help="auto, cuda or cpu; without a GPU nothing is measured."
    ),
    workload: str | None = typer.Option(
        None,
        help='What the launcher is called with, e.g. "x=bf16[4096,4096]"; default: what is known.',
    ),
    out: Path | None = typer.Option(
        None, file_okay=False, help="Also write lineage.json and lineage.md into this folder."
    ),
    fresh: bool = typer.Option(False, "--fresh", help="Judge again what earlier runs have judged."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """Simplify an expert kernel step by step; what made it fast becomes drafts of skills.

    A simplification is accepted when it compiles, the gate finds it right and it is not faster;
    the walk ends where none is left. Each accepted step is turned around into a skill with its
    conditions, its measured effect and what failed; those that pay are staged for `kernel-lsp
    skills verify`. Without a GPU the interpreter judges: nothing is measured and nothing is
    staged. Runs code of the file in confined processes. A run that was stopped goes on where it
    was. Exit code 0: steps were accepted, 1: none, 2: could not judge."""
    name, _, qualname = target.partition("::")
    path = Path(name)
    try:
        if not qualname:
            raise ConfigError(f"{target} names no kernel", "write FILE::KERNEL")
        job, settings = _job(path, qualname, device)
        given = _workload(workload)
    except KernelLspError as error:
        console.fail(error)
    found, place = console.run(_walk(settings, job, given, fresh=fresh), cancelled=STOPPED)
    if out is not None:
        _copy(found, out)
    if as_json:
        console.print_json(lineage=found, folder=str(place))
    else:
        console.err.print(f"written to {place}", markup=False, soft_wrap=True)
        console.write(presenting.brief(found) + "\n")
    raise typer.Exit(console.EXIT_OK if found.steps else console.EXIT_NO)


def _job(path: Path, qualname: str, device: str) -> tuple[Job, Settings]:
    try:
        text = read_source(path).text
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "name a Python file") from error
    folder = console.workspace_of(path)
    settings = console.settings(folder, device=device)
    job = Job(
        text=text, path=str(path), qualname=qualname, device=settings.device, folder=str(folder)
    )
    return job, settings


def _workload(text: str | None) -> Workload | None:
    from kernel_lsp.workloads import pragma

    return None if text is None else pragma.parse(text)


async def _walk(
    settings: Settings, job: Job, workload: Workload | None, *, fresh: bool
) -> tuple[Lineage, Path]:
    from kernel_lsp.lineage import environment, kept, lessons, walking
    from kernel_lsp.pipeline import Pipeline

    if job.folder:
        console.require_consent(settings, Path(job.folder))
    pipeline, asked = Pipeline(settings), environment.LineageRequest(job=job, workload=workload)
    try:
        with console.progress("lineage") as report:
            async with environment.set_up(pipeline, asked, report) as on:
                judgements = kept.Judgements(on.place, fresh=fresh)
                walk = walking.LineageWalk(on=on, judgements=judgements, report=report)
                found = await lessons.learn(walk, await walk.run())
                kept.write(on.place, found, presenting.markdown(found))
                return found, on.place
    finally:
        await pipeline.close()


def _copy(found: Lineage, out: Path) -> None:
    from kernel_lsp.lineage import kept

    try:
        kept.write(out, found, presenting.markdown(found))
    except KernelLspError as error:
        console.fail(error)
