"""``kernel-lsp optimize``: the main job in a terminal, a CI job or an agent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text

from kernel_lsp import analysis, notebooks, workloads
from kernel_lsp.commands import console, guard, journaling, programs, searching
from kernel_lsp.commands.loudness import with_loudness
from kernel_lsp.config import Settings
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import (
    SourceFile,
    installed_file,
    is_installed,
    read_source,
    replace_file,
    write_source,
)
from kernel_lsp.journal import outcomes
from kernel_lsp.notebooks import placing
from kernel_lsp.patching import store as patching
from kernel_lsp.pipeline import Pipeline, callers
from kernel_lsp.presenter import breaks, cards, charts, near_misses, pictures
from kernel_lsp.presenter.searches import search_lines
from kernel_lsp.records import (
    COMPILE,
    Analysis,
    Job,
    Numerics,
    Outcome,
    Proposal,
    SearchPlan,
    Snapshot,
    TargetKind,
    Verdict,
)
from kernel_lsp.rewrite import edit
from kernel_lsp.snapshots.store import recordings

MIN_TABLE_COLUMNS = 110
"""Of a terminal, for a proposal's numbers on one line."""
CANCELLED = (
    "cancelled; what was tried is kept: the same command goes on from there, --fresh begins anew"
)


@dataclass(frozen=True, kw_only=True)
class Request:
    path: Path
    source: SourceFile
    """Of a notebook its cells as one program."""
    qualname: str
    notebook: notebooks.NotebookProgram | None = None
    """As it was when it was read."""


@with_loudness
def optimize(
    words: list[str] = typer.Argument(
        ...,
        metavar="FILE[::TARGET] | -- COMMAND…",
        help="A Python file or notebook, or one class or function in it; or a whole program, as in "
        "a shell.",
    ),
    device: str = typer.Option("auto", help="auto, cuda or cpu."),
    budget: int = typer.Option(
        8, min=1, help="Candidates that the quick search may judge per target."
    ),
    search: searching.SearchChoice = searching.SEARCH,
    policy: str | None = searching.POLICY,
    model: str | None = searching.MODEL,
    endpoint: str | None = searching.ENDPOINT,
    candidates: int | None = searching.CANDIDATES,
    seconds: float | None = searching.SECONDS,
    tokens: int | None = searching.TOKENS,
    gpu_seconds: float | None = searching.GPU_SECONDS,
    archive: Path | None = typer.Option(
        None, dir_okay=False, help="Where a search keeps all it tried; it goes on from there."
    ),
    fresh: bool = typer.Option(
        False,
        "--fresh",
        help="Begin the search anew; the old archive is kept beside. Of a program: record anew.",
    ),
    allow_remote: bool = searching.ALLOW_REMOTE,
    show_prompt: bool = typer.Option(
        False, "--show-prompt", help="Print what a language model would be sent, and send nothing."
    ),
    apply: bool = typer.Option(
        False, "--apply", help="Write the best verified rewrite into the file."
    ),
    plot: Path | None = typer.Option(
        None,
        dir_okay=False,
        help="Draw times, their least and profiles of what was found, as SVG; of a file.",
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
    steps: int = typer.Option(
        30, min=8, help="Of a program: steps that are recorded, and of each timed run."
    ),
    step: str | None = typer.Option(
        None,
        metavar="FUNCTION",
        help="Of a program: a call of it is one step: train_step, or package.module:Trainer.step.",
    ),
    minutes: float = typer.Option(
        10.0, min=0.0, help="Of a program: how long its targets are worked on at most."
    ),
    within: float = typer.Option(
        20.0,
        min=0.0,
        help="Of a program: minutes for all of it; the same command goes on from there.",
    ),
    run_seconds: float = typer.Option(
        300.0, min=10.0, help="Of a program: how long one run may take to its last step."
    ),
) -> None:
    """Find what can be faster in FILE, prove, check and measure rewrites, and show the evidence.

    Runs code of FILE in a confined process. Exit code 0: a verified rewrite was found (and applied
    with --apply), 1: none, 2: could not judge.

    With -- COMMAND the program is recorded for a few steps, its modules are rewritten from the
    top, and its own step is timed: as it is, by torch.compile, and with all verified edits
    together."""
    if len(words) > 1:
        programs.optimize(
            tuple(words),
            device=device,
            budget=budget,
            steps=steps,
            minutes=minutes,
            within=within,
            run_seconds=run_seconds,
            fresh=fresh,
            step=step,
            apply=apply,
            as_json=as_json,
        )
    requests = _requests(words[0])
    folder = _workspace_of(requests[0].path)
    settings = console.settings(
        folder, device=device, budget=budget, policy=policy, model=model, endpoint=endpoint
    )
    try:
        plan = searching.plan(
            settings,
            search,
            candidates=candidates,
            seconds=seconds,
            tokens=tokens,
            gpu_seconds=gpu_seconds,
            archive=archive,
            fresh=fresh,
        )
        console.require_consent(settings, folder)
        origin = searching.allowed_origin(settings, folder, now=allow_remote)
        jobs = [
            _job(one, folder, settings, plan, origin) for one in _of_one_target(requests, archive)
        ]
    except KernelLspError as error:
        console.fail(error)
    if show_prompt:
        console.out.print(
            console.run(_prompts(Pipeline(settings), jobs)), markup=False, soft_wrap=True
        )
        raise typer.Exit
    _require_plots(plot)
    begun = outcomes.now()
    work = _run_all(Pipeline(settings), jobs, requests)
    results = console.run(work, cancelled=CANCELLED if plan else "cancelled")
    applied = _record_results(results, begun, settings, folder, apply=apply)
    _draw(plot, results)
    if as_json:
        console.print_json(
            path=str(requests[0].path),
            outcomes=[o for _, o in results],
            applied=[p.id for p in applied],
        )
    else:
        _show(results, applied)
    raise typer.Exit(_exit_code([outcome for _, outcome in results]))


def _require_plots(path: Path | None) -> None:
    """Before anything is measured."""
    if path is not None and charts.bars({"x": 1}, {}) is None:
        console.fail(
            KernelLspError(
                "plots need matplotlib", f"install it: {sys.executable} -m pip install matplotlib"
            )
        )


def _draw(path: Path | None, results: list[tuple[Request, Outcome]]) -> None:
    """The best proposal of each target. What was measured is shown also where this fails."""
    if path is None:
        return
    found = pictures.svg([outcome.proposals[0] for _, outcome in results if outcome.proposals])
    if found is None:
        console.err.print("nothing was timed that could be drawn")
        return
    try:
        replace_file(path, found.encode())
    except OSError as error:
        console.err.print(f"{path} cannot be written: {error.strerror}", markup=False)


def _workspace_of(path: Path) -> Path:
    """Of an installed package's file the workspace that the command runs in: its rewrite belongs
    there."""
    return console.workspace_of(Path.cwd() / "here" if is_installed(path) else path)


def _requests(argument: str) -> list[Request]:
    name, _, target = argument.partition("::")
    path = installed_file(Path(name)) or Path(name)
    try:
        source, notebook = _read(path)
    except (OSError, ValueError, SyntaxError) as error:
        cause = getattr(error, "strerror", None) or error
        remedy = "name a Python file or a notebook"
        console.fail(KernelLspError(f"{name} cannot be read: {cause}", remedy))
    snapshot = Snapshot(uri=path.absolute().as_uri(), text=source.text)
    found = analysis.analyze(snapshot)
    if found.problem:
        console.fail(
            KernelLspError(
                f"{name}, line {found.problem.line}: {found.problem.message}", "mend the syntax"
            )
        )
    names = _name_targets(snapshot, found, target) if target else _names(found)
    shares = workloads.shares_in(path, _workspace_of(path))
    # What takes most of a recorded run first.
    names.sort(key=lambda qualname: -shares.get(qualname, 0.0))
    if not names:
        console.fail(
            KernelLspError(
                f"{name} holds no module, tensor function or launched kernel",
                "name a file with one",
            )
        )
    return [
        Request(path=path, source=source, qualname=qualname, notebook=notebook)
        for qualname in names
    ]


def _read(path: Path) -> tuple[SourceFile, notebooks.NotebookProgram | None]:
    """Raises OSError, SyntaxError or ValueError."""
    if not notebooks.is_notebook(path):
        return read_source(path), None
    program = notebooks.program(notebooks.parse(notebooks.read_json(path)).cells)
    return SourceFile(text=program.text, encoding="utf-8"), program


def _name_targets(snapshot: Snapshot, found: Analysis, target: str) -> list[str]:
    """A module or function, and the Triton kernels that it comes to; of a launcher these alone."""
    kernels = callers.kernels_of(snapshot, found, target)
    return (
        kernels if kernels and analysis.find_target(found, target) is None else [target, *kernels]
    )


def _names(found: Analysis) -> list[str]:
    """Every target; a function that launches a kernel is optimized with it, not by itself."""
    launchers = {name for target in found.targets for name in target.launchers}
    return [
        target.qualname
        for target in found.targets
        if (
            target.launchers
            if target.kind is TargetKind.TRITON_KERNEL
            else target.qualname not in launchers
        )
    ]


def _record_results(
    results: list[tuple[Request, Outcome]],
    begun: str,
    settings: Settings,
    folder: Path,
    *,
    apply: bool,
) -> list[Proposal]:
    """What is in the file now; the journal knows of that and of all that was judged."""
    with journaling.journal(settings) as journal:
        journaling.log_outcomes(journal, folder, Path(settings.data_dir))
        for request, outcome in results:
            job = _job(request, folder, settings, None, None)
            journaling.save(journal, outcome, begun, job=job, folder=folder, settings=settings)
        path = results[0][0].path
        if apply and is_installed(path):
            applied, path = _patch(path, results, folder, settings)
            journaling.record_patch(journal, applied, folder=folder, path=path)
        else:
            applied = _apply(path, results) if apply else []
            journaling.record_acceptance(journal, applied, folder=folder, path=path)
        guard.keep(applied, folder=folder, path=path)
    return applied


def _of_one_target(requests: list[Request], archive: Path | None) -> list[Request]:
    if archive is not None and len(requests) > 1:
        raise KernelLspError(
            "an archive belongs to one target", f"name it: {requests[0].path}::NAME"
        )
    return requests


def _job(
    request: Request, folder: Path, settings: Settings, plan: SearchPlan | None, origin: str | None
) -> Job:
    return Job(
        text=request.source.text,
        path=str(request.path),
        qualname=request.qualname,
        folder=str(folder),
        device=settings.device,
        budget=settings.budget,
        search=plan,
        allowed_origin=origin,
    )


async def _run_all(
    pipeline: Pipeline, jobs: list[Job], requests: list[Request]
) -> list[tuple[Request, Outcome]]:
    try:
        found = [await _run(pipeline, job, alone=len(jobs) == 1) for job in jobs]
        return list(zip(requests, found, strict=True))
    finally:
        await pipeline.close()


async def _prompts(pipeline: Pipeline, jobs: list[Job]) -> str:
    try:
        return "\n\n".join([await pipeline.prompts(job) for job in jobs])
    finally:
        await pipeline.close()


async def _run(pipeline: Pipeline, job: Job, *, alone: bool) -> Outcome:
    """One target. Where there are several, a failure of one is its outcome."""
    with console.progress(job.qualname) as report:
        try:
            return await pipeline.optimize(job, report)
        except KernelLspError as error:
            if alone:
                raise
            return Outcome(qualname=job.qualname, note=str(error))


def _apply(path: Path, results: list[tuple[Request, Outcome]]) -> list[Proposal]:
    """Write every winner; the file must still be what was judged."""
    winners, source = _winners(path, results)
    text = _with(winners, path, source.text)
    if winners:
        try:
            notebooks.write_source(path, text, source.encoding)
        except ValueError as error:
            remedy = "it is as it was: write the change by hand"
            console.fail(KernelLspError(f"{path} cannot be written: {error}", remedy))
    return winners


def _patch(
    path: Path, results: list[tuple[Request, Outcome]], folder: Path, settings: Settings
) -> tuple[list[Proposal], Path]:
    """Write every winner of an installed file into a patch module of the workspace: which it is."""
    winners, source = _winners(path, results)
    path = path.absolute()
    module, command = _call_target(path, Path(settings.data_dir), folder)
    library = patching.library_of(path, module)
    place = patching.place_of(folder, Path.cwd(), command)
    file = place.file(library)
    if not winners:
        return [], file
    text = _with(winners, path, patching.begin_patch(place, library, source.text))
    try:
        made = patching.files(place, library, source.text, text)
        for one, content in made.items():
            one.parent.mkdir(parents=True, exist_ok=True)
            write_source(one, content, read_source(one).encoding if one.exists() else "utf-8")
    except (KernelLspError, OSError, UnicodeEncodeError) as error:
        console.fail(
            KernelLspError(f"the patch cannot be written: {error}", "the library is as it was")
        )
    words = f"patch: {', '.join(str(one.relative_to(folder)) for one in made)}"
    if place.script is None:
        words += f"; add to your program, before its models are made: {patching.LINE}"
    console.err.print(words, markup=False, soft_wrap=True)
    return winners, file


def _call_target(path: Path, data_dir: Path, folder: Path) -> tuple[str, tuple[str, ...]]:
    """Under which name a program has imported an installed file, and the command that did."""
    for recording in recordings(data_dir, folder):
        for way in recording.ways:
            if recording.path_of(way).resolve() == path.resolve() and way.get("module"):
                return str(way["module"]), recording.command
    module = patching.module_of(path)
    if module is None:
        console.fail(
            KernelLspError(f"{path} lies in no folder of packages", "record the program first")
        )
    return module, ()


def _winners(
    path: Path, results: list[tuple[Request, Outcome]]
) -> tuple[list[Proposal], SourceFile]:
    source = notebooks.read_source(path)
    if source.text != results[0][0].source.text:
        console.fail(KernelLspError(f"{path} changed while it was judged", "run the command again"))
    return [outcome.best for _, outcome in results if outcome.best], source


def _with(winners: list[Proposal], path: Path, text: str) -> str:
    for winner in winners:
        snapshot = Snapshot(uri=path.absolute().as_uri(), text=text)
        target = analysis.named_target(snapshot, winner.qualname)
        if target is None or winner.candidate.edit is None:
            continue
        if target.fingerprint == winner.fingerprint or is_installed(path):
            # An older patch may be in it.
            text = edit.apply_edit(text, target.span, winner.candidate.edit)
    return text


def _show(results: list[tuple[Request, Outcome]], applied: list[Proposal]) -> None:
    for request, outcome in results:
        console.out.print(
            f"[bold]{outcome.qualname}[/]" + ("  (from the cache)" if outcome.cached else "")
        )
        if outcome.proposals:
            console.out.print(_table(outcome.proposals))
        if outcome.note:
            console.out.print(f"  {outcome.note}", markup=False)
        name, placed = request.path.name, _placed(request)
        for line in breaks.lines(outcome, name):
            console.out.print(f"  {placed(line)}", markup=False, highlight=False, soft_wrap=True)
        for line in near_misses.lines(outcome, name):
            console.out.print(f"    {placed(line)}", markup=False, highlight=False, soft_wrap=True)
        for line in search_lines(outcome.search) if outcome.search else ():
            console.out.print(line, markup=False, soft_wrap=True)
        if outcome.best:
            diff = _diff(request, outcome.best)
            if console.out.is_terminal:
                console.out.print(Syntax(diff, "diff", background_color="default", word_wrap=True))
            else:
                console.write(diff)  # a patch: no line is cut or wrapped
            if outcome.best.evidence:
                console.out.print(
                    f"evidence: {outcome.best.evidence}", markup=False, soft_wrap=True
                )
            done = outcome.best in applied
            console.out.print(
                "applied." if done else "apply it with --apply, or as a code action in your editor."
            )


def _placed(request: Request) -> Callable[[str], str]:
    """Words about lines of the file; in a notebook these are lines of its cells."""
    program = request.notebook
    if program is None:
        return lambda line: line
    return lambda line: placing.in_cells(program, line, name=request.path.name)


def _diff(request: Request, best: Proposal) -> str:
    """The change as a patch; of a notebook one for each cell that changes."""
    name, after = request.path.name, _after(request, best)
    if request.notebook is None:
        return cards.unified_diff(request.source.text, after, name)
    parts = []
    for cell, edits in request.notebook.edits(after):
        source = notebooks.edit_source(cell.source, edits)
        parts.append(cards.unified_diff(cell.source, source, f"{name}/cell {cell.number}"))
    return "".join(parts)


def _table(proposals: tuple[Proposal, ...]) -> RenderableType:
    """A row for each; where there is no room for the numbers of one, a block for each."""
    names = ["now", "torch.compile", "candidate", "speedup (99 % interval)", "error / eager's"]
    if console.out.width < MIN_TABLE_COLUMNS:
        return Group(*(_block(proposal, names) for proposal in proposals))
    columns = (Column(name, min_width=len(name)) for name in names)
    table = Table("verdict", "rewrite", *columns)
    for proposal in proposals:
        table.add_row(_verdict(proposal), Text(proposal.candidate.summary), *_numbers(proposal))
    return table


def _block(proposal: Proposal, names: list[str]) -> Table:
    block = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    block.add_row(_verdict(proposal), Text(proposal.candidate.summary))
    for name, number in zip(names, _numbers(proposal), strict=True):
        if number.plain:
            block.add_row(f"  {name}", number)
    return block


def _verdict(proposal: Proposal) -> str:
    colors = {Verdict.FASTER: "green", Verdict.CORRECT: "yellow", Verdict.REJECTED: "red"}
    return f"[{colors.get(proposal.verdict, 'white')}]{proposal.verdict.value}[/]"


def _numbers(proposal: Proposal) -> list[Text]:
    evaluation = proposal.evaluation
    times = {timing.provider: timing.median_ms for timing in evaluation.timings}
    numbers = [
        _milliseconds(times.get(evaluation.baseline or "")),
        _milliseconds(times.get(COMPILE)),
        _milliseconds(times.get("candidate")),
        cards.spread(evaluation.speedup) if evaluation.speedup else evaluation.detail[:60],
        _error(evaluation.numerics),
    ]
    return [Text(number) for number in numbers]


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} ms"


def _after(request: Request, winner: Proposal) -> str:
    """The file as it would be; the edit was placed on this very text when it was judged."""
    snapshot = Snapshot(uri=request.path.absolute().as_uri(), text=request.source.text)
    target = analysis.named_target(snapshot, winner.qualname)
    assert target is not None and winner.candidate.edit is not None
    return edit.apply_edit(request.source.text, target.span, winner.candidate.edit)


def _error(numerics: Numerics | None) -> str:
    """Candidate's error against eager's own, both against float64."""
    return (
        ""
        if numerics is None
        else f"{numerics.candidate_error:.1e} / {numerics.reference_error:.1e}"
    )


def _exit_code(outcomes: list[Outcome]) -> int:
    if any(outcome.best for outcome in outcomes):
        return console.EXIT_OK
    judged = any(
        p.verdict is not Verdict.UNKNOWN for outcome in outcomes for p in outcome.proposals
    )
    return (
        console.EXIT_NO
        if judged or any(o.note and not o.proposals for o in outcomes)
        else console.EXIT_CANNOT
    )
