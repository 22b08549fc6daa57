"""``kernel-lsp optimize -- python train.py``: a whole program, from its recording to its own
step's time."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from rich.table import Column, Table

from kernel_lsp import offers
from kernel_lsp.commands import console, guard, journaling, record
from kernel_lsp.config import Settings
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import read_source, write_source
from kernel_lsp.journal import outcomes
from kernel_lsp.patching.store import LINE, is_own
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.presenter import breaks, cards
from kernel_lsp.programs import measuring, offering, optimizing, stepping
from kernel_lsp.programs.bench import NOT_COMPILED
from kernel_lsp.programs.composing import ProgramVariant
from kernel_lsp.programs.measuring import AS_IS, MeasuredWays
from kernel_lsp.programs.optimizing import ProgramOutcome
from kernel_lsp.programs.runs import ProgramPlan
from kernel_lsp.programs.shares import IN_OPTIMIZER, Shares
from kernel_lsp.programs.stepping import ProgramWay
from kernel_lsp.programs.targets import ProgramTarget
from kernel_lsp.records import Interval, Job, ProgramOffer

SHOWN = 20
MUCH = 0.3
"""Share of the step that no target holds, from which it is said how it can be one."""
UNSURE = 10.0
"""Times the middle of an interval is the upper bound of one that says nothing."""
NO_TARGET = (
    "; what other methods than forward compute (a training_step, a loss) is no target: a module or "
    "a function of its own for it would be one"
)


def optimize(
    command: tuple[str, ...],
    *,
    device: str,
    budget: int,
    steps: int,
    minutes: float,
    within: float,
    run_seconds: float,
    fresh: bool,
    step: str | None,
    apply: bool,
    as_json: bool,
) -> None:
    """Ends by typer.Exit: 0 when the program's step gets faster by our edits, 1 when not, 2: no
    verdict."""
    folder = Path.cwd()
    marked = record.marked_function(step)
    root = console.workspace_of(folder / "here")
    settings = console.settings(
        root, device=device, budget=budget, python=stepping.python_of(command, folder)
    )
    plan = ProgramPlan(
        root=root,
        folder=folder,
        command=command,
        device=device,
        steps=steps,
        minutes=minutes,
        within=within,
        run_s=run_seconds,
        budget=budget,
        fresh=fresh,
        may_compile=settings.torch_compile,
        marked=marked,
    )
    console.err.print(
        "the program runs with your rights, as when you run it; its timed runs write into a "
        "copy of the"
        " workspace, which is thrown away",
        markup=False,
    )
    begun = outcomes.now()
    found = console.run(
        _optimize(plan, settings), cancelled="cancelled; the same command goes on from here"
    )
    _keep(found, begun, plan, settings)
    offered = _find_offer(found)
    applied = _apply(offered, plan, settings) if apply and offered else []
    offer = _offer(found, offered, plan) if offered and not applied else None
    page = _keep_page(page_text(found, offered, applied, plan.root), offer, plan, settings)
    if as_json:
        applied_paths = [str(path) for path in applied]
        console.print_json(
            **_outcome_json(found),
            offered=offered is not None,
            applied=applied_paths,
            page=page and str(page),
        )
    else:
        _show(found, offered, applied)
        if page is not None:
            console.out.print(f"this page: {page}", markup=False, soft_wrap=True)
    measured = found.measured
    if measured is None or measured.step_ms(AS_IS) is None or measured.unfinished:
        raise typer.Exit(console.EXIT_CANNOT)
    raise typer.Exit(console.EXIT_OK if offered else console.EXIT_NO)


async def _optimize(plan: ProgramPlan, settings: Settings) -> ProgramOutcome:
    pipeline = Pipeline(settings)
    try:
        with console.progress(" ".join(plan.command), timed=True) as report:
            return await optimizing.optimize(pipeline, plan, Path(settings.data_dir), report)
    finally:
        await pipeline.close()


def gains(found: ProgramOutcome) -> bool:
    """Whether our edits make the program surely faster than what it can have without them."""
    return found.best is not None and found.beaten_by(found.best) is not None


def _find_offer(found: ProgramOutcome) -> ProgramVariant | None:
    """The edits of the fastest way with any, where it pays."""
    way = found.best
    return found.variants[way.variant] if gains(found) and way is not None and way.variant else None


def _keep(found: ProgramOutcome, begun: str, plan: ProgramPlan, settings: Settings) -> None:
    """The journal knows of everything that was judged."""
    with journaling.journal(settings) as journal:
        for one in found.targets:
            if one.outcome is not None:
                job = _job(one, plan)
                journaling.save(
                    journal, one.outcome, begun, job=job, folder=plan.root, settings=settings
                )


def _job(one: ProgramTarget, plan: ProgramPlan) -> Job:
    text = read_source(one.path).text
    return Job(
        text=text,
        path=str(one.path),
        qualname=one.qualname,
        folder=str(plan.root),
        device=plan.device,
    )


def _apply(offered: ProgramVariant, plan: ProgramPlan, settings: Settings) -> list[Path]:
    """Write all edits of the workspace's files, after a look that every file is still what was
    measured."""
    texts = {path: text for path, text in offered.texts.items() if is_own(path, plan.root)}
    root = plan.root.resolve()
    if away := [path for path in texts if not path.resolve().is_relative_to(root)]:
        cause = f"{away[0]} lies outside of the workspace, by a link, and is not edited"
        console.fail(KernelLspError(cause, "open the folder that it lies in"))
    sources = {path: read_source(path) for path in texts if path.exists()}
    measured = {path: text for path, text in offered.before.items() if path in texts}
    if {path: source.text for path, source in sources.items()} != measured:
        console.fail(
            KernelLspError("a file changed while the program was measured", "run the command again")
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_source(path, text, sources[path].encoding if path in sources else "utf-8")
    _record_edits(offered, plan, settings)
    return list(texts)


def _record_edits(offered: ProgramVariant, plan: ProgramPlan, settings: Settings) -> None:
    """In the journal, and for `kernel-lsp guard`."""
    with journaling.journal(settings) as journal:
        for path in {one.path for one in offered.composed}:
            edits = [one.proposal for one in offered.composed if one.path == path]
            mine = [proposal for proposal in edits if proposal is not None]
            if (place := offered.patches.get(path)) is not None:
                journaling.record_patch(journal, mine, folder=plan.root, path=place)
            else:
                journaling.record_acceptance(journal, mine, folder=plan.root, path=path)
            guard.keep(mine, folder=plan.root, path=place or path)


def _offer(found: ProgramOutcome, offered: ProgramVariant, plan: ProgramPlan) -> ProgramOffer:
    own = {path: text for path, text in offered.before.items() if is_own(path, plan.root)}
    return ProgramOffer(
        root=str(plan.root),
        command=plan.command,
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        gain=gain_words(found) or "",
        edits=offering.edits_of(offered, plan.root),
        before={str(path): offers.digest(text) for path, text in own.items()},
        rewrites=offering.rewrites_of(offered, plan.root),
    )


def _keep_page(
    text: str, offer: ProgramOffer | None, plan: ProgramPlan, settings: Settings
) -> Path | None:
    """Write the page, and the offer that editors show while it is not applied; where the page lies,
    None where nothing can be written."""
    try:
        return offers.write(Path(settings.data_dir), plan.root, plan.command, offer, text)
    except OSError as error:
        console.err.print(f"the page cannot be written: {error}", markup=False)
        return None


def gain_words(found: ProgramOutcome) -> str | None:
    """``412 ms -> 371 ms per step, 1.11x (1.10–1.12) against torch.compile``."""
    measured, mine, other = found.measured, found.best, _compared_with(found)
    if measured is None or mine is None or other is None:
        return None
    ratio, before, after = (
        measured.ratio(other, mine), measured.step_ms(other), measured.step_ms(mine)
    )  # fmt: skip
    if ratio is None or not before or not after:
        return None
    return (
        f"{cards.duration(before)} -> {cards.duration(after)} per step, {_ratio(ratio)}"
        f" against {other.name}"
    )


def _compared_with(found: ProgramOutcome) -> ProgramWay | None:
    """What the best edits are compared with: what they surely beat, else the fastest other way."""
    beaten = found.beaten_by(found.best) if found.best is not None else None
    return beaten or found.without


# --- one page -------------------------------------------------------------------------------------


def _show(found: ProgramOutcome, offered: ProgramVariant | None, applied: list[Path]) -> None:
    console.out.print(_targets(found))
    for one in found.targets:
        for line in breaks.lines(one.outcome, one.path.name) if one.outcome is not None else ():
            console.out.print(line, markup=False, highlight=False, soft_wrap=True)
    if found.shares is not None:
        console.out.print(_where(found, found.shares), markup=False, soft_wrap=True)
    if found.measured is not None:
        console.out.print(_ways(found.measured, found.tokens))
    for line in _conclusion(found, offered, applied):
        console.out.print(line, markup=False, soft_wrap=True)


def page_text(
    found: ProgramOutcome, offered: ProgramVariant | None, applied: list[Path], root: Path
) -> str:
    """The report of a program as Markdown, with the edits as a difference."""
    command = shlex.join(found.recording.command)
    parts = [f"# {command}", *_conclusion(found, offered, applied)]
    if found.measured is not None:
        parts += ["## The program's step", _markdown(_ways(found.measured, found.tokens))]
    parts += ["## Targets", _markdown(_targets(found))]
    if found.shares is not None:
        parts.append(_where(found, found.shares))
    for one in found.targets:
        parts += breaks.lines(one.outcome, one.path.name) if one.outcome is not None else ()
    for path, text in offered.texts.items() if offered is not None else ():
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
        diff = cards.unified_diff(offered.before.get(path, "") if offered else "", text, name)
        parts += [f"## {name}", f"```diff\n{diff}```"]
    return "\n\n".join(parts) + "\n"


def _markdown(table: Table) -> str:
    def row(cells: Iterable[Any]) -> str:
        texts = (str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
        return f"| {' | '.join(texts)} |"

    lines = [row(column.header for column in table.columns), "|---" * len(table.columns) + "|"]
    return "\n".join([*lines, *map(row, zip(*(c.cells for c in table.columns), strict=True))])


def _targets(found: ProgramOutcome) -> Table:
    name = Column("target", overflow="fold")
    table = Table("share", name, "by itself", "what was found", title="targets")
    for one in found.targets[:SHOWN]:
        speedup = one.proposal.evaluation.speedup if one.proposal else None
        table.add_row(
            f"{one.share:.1%}",
            f"{one.qualname} in {one.path.name}",
            cards.spread(speedup) if speedup else "",
            _describe_target(one),
        )
    return table


def _describe_target(one: ProgramTarget) -> str:
    if one.proposal is not None:
        speedup = one.proposal.evaluation.speedup
        here = f"{speedup.mid:.2g}x here, {one.share:.0%} of the step: " if speedup else ""
        return here + one.proposal.candidate.summary
    return (one.outcome.note if one.outcome else one.why_not) or "nothing"


def _where(found: ProgramOutcome, shares: Shares) -> str:
    """What holds the step's time beside targets, and how much of it was looked at."""
    busy = f"; the device is busy {shares.busy:.0%} of the step" if shares.busy is not None else ""
    return (
        f"{found.covered or 0:.0%} of the step's time was opened and timed; optimizers take"
        f" {shares.of_kind(IN_OPTIMIZER):.1%}, what no target holds "
        f"{shares.of_nobody:.1%}{busy}{NO_TARGET if shares.of_nobody > MUCH else ''}"
    )


def _ways(measured: MeasuredWays, tokens: float | None) -> Table:
    """``tokens``: of a step."""
    columns: list[Column | str] = [Column("way", overflow="fold"), "step"]
    columns += ["against as it is (99 %)", "memory", "first step"]
    if tokens:
        columns.insert(2, "tokens/s")
    table = Table(*columns, title="the program's step")
    for way, runs in measured.runs.items():
        step, failed = measured.step_ms(way), measured.failed(way)
        ratio = measured.ratio(AS_IS, way)
        peak = max((run.peak_bytes or 0 for run in runs.values()), default=0)
        first = min((run.first_s for run in runs.values() if run.first_s), default=None)
        speed = [f"{tokens / step * 1e3:,.0f}" if step else ""] if tokens else []
        table.add_row(
            way.name,
            cards.duration(step) if step else "",
            *speed,
            failed or (_ratio(ratio) if ratio and way != AS_IS else ""),
            f"{peak / 2**20:.0f} MB" if peak else "",
            f"{first:.1f} s" if first else "",
        )
    return table


def _ratio(ratio: Interval) -> str:
    """One round has no interval, and that of two that differ says nothing (0.00 to 6216446497)."""
    if not math.isfinite(ratio.high):
        return f"{ratio.mid:.2f}x, measured once"
    if ratio.high > UNSURE * ratio.mid:
        return f"{ratio.mid:.2f}x, too few rounds to be sure"
    return cards.spread(ratio)


def _conclusion(
    found: ProgramOutcome, offered: ProgramVariant | None, applied: list[Path]
) -> Iterator[str]:
    yield from _seen(found)
    measured, mine, other = found.measured, found.best, found.without
    if measured is None or other is None:
        return
    yield from _gain(found, measured)
    if other != AS_IS and (ratio := measured.ratio(AS_IS, other)) is not None and ratio.low > 1.0:
        yield f"without any edit of ours, {other.name} gives {_ratio(ratio)}: {_how(other)}"
    if applied:
        yield f"applied to {', '.join(str(path) for path in applied)}"
    if offered is not None:
        yield from _how_to_use(found, offered, is_applied=bool(applied))
    elif mine is not None and not measured.unfinished:
        yield _why_nothing(measured, other, mine)


def _gain(found: ProgramOutcome, measured: MeasuredWays) -> Iterator[str]:
    """Of the best edits, and over what."""
    mine, other = found.best, found.without
    if mine is None or other is None or (gain := gain_words(found)) is None:
        return
    yield f"{mine.name}: {gain}"
    if _may_be_beaten(found):
        yield (
            "torch.compile was not timed, and may be faster than both: the same command goes on "
            "with it"
        )
    if other != _compared_with(found) and (ratio := measured.ratio(other, mine)) is not None:
        yield f"against {other.name} {_ratio(ratio)}: it had few runs"


def _may_be_beaten(found: ProgramOutcome) -> bool:
    """By torch.compile, which could be called on the program's model and was not timed."""
    has_model = found.clock is not None and bool(found.clock.roots)
    ways = found.measured.runs if found.measured is not None else {}
    is_timed = any(way.mode is not None and not way.is_edited for way in ways)
    return has_model and not is_timed and NOT_COMPILED not in found.notes


def _why_nothing(measured: MeasuredWays, other: ProgramWay, mine: ProgramWay) -> str:
    """``other``: the fastest way without our edits; ``mine``: the fastest with."""
    ratio = measured.ratio(other, mine)
    few = measured.rounds_together(other, mine) < measuring.FEW
    if ratio is not None and ratio.mid >= measuring.WORTH and few:
        return (
            "whether the edits pay is not sure yet, and nothing is offered: the same command goes "
            "on from here"
        )
    return "the edits do not pay in this program: nothing is offered"


def _how_to_use(
    found: ProgramOutcome, offered: ProgramVariant, *, is_applied: bool
) -> Iterator[str]:
    if not is_applied:
        count = len(offered.texts)
        files = "1 file changes" if count == 1 else f"{count} files change"
        yield f"{files}: apply the edits with --apply"
    if offered.patches:
        yield from _patches(offered, Path(found.recording.root))
    if found.best is not None and found.best.mode is not None:
        yield f"and {_how(found.best)}"


def _seen(found: ProgramOutcome) -> Iterator[str]:
    """What was seen of the program besides its times."""
    if found.clock is not None:
        yield found.clock.words
    yield from found.notes
    for name, (calls, original) in found.taken.items():
        yield f"{name}: {calls - original} of {calls} calls took the fast path"
    for name, agreement in found.agreements.items():
        if not agreement.is_known:  # which the notes say
            continue
        same = "the same" if agreement.right else "something else"
        yield f"with {name} the program computes {same}: {agreement.detail}"


def _patches(offered: ProgramVariant, root: Path) -> Iterator[str]:
    names = ", ".join(sorted(str(path.relative_to(root)) for path in offered.patches.values()))
    yield f"rewrites of installed packages are patch modules of the workspace: {names}"
    if any(not is_own(path, root) for path in offered.texts):
        yield (
            f"no script of this workspace runs first; add before the program's models are "
            f"made: {LINE}"
        )


def _how(way: ProgramWay) -> str:
    mode = "" if way.mode == "default" else f"mode={way.mode!r}"
    where = "every repeated block" if way.regional else "the model"
    return (
        f"call .compile({mode}) on {where} before the first step; the first step then takes longer"
    )


def _outcome_json(found: ProgramOutcome) -> dict[str, Any]:
    measured, against = found.measured, _compared_with(found)
    return {
        "command": list(found.recording.command),
        "targets": [
            {
                "path": str(one.path),
                "qualname": one.qualname,
                "share": one.share,
                "calls": one.calls,
                "judged": one.is_judged,
                "outcome": one.outcome,
                "why_not": one.why_not,
            }
            for one in found.targets
        ],
        "step": found.clock,
        "tokens_per_step": found.tokens,
        "covered": found.covered,
        "step_time": found.shares and _shares(found.shares),
        "variants": [
            {
                "name": one.name,
                "files": [str(path) for path in one.texts],
                "targets": [f"{target.path}::{target.qualname}" for target in one.composed],
                "agreement": found.agreements.get(one.name),
                "patches": {str(path): str(place) for path, place in one.patches.items()},
            }
            for one in found.variants.values()
        ],
        "ways": _ways_json(found, measured) if measured else [],
        "best": found.best,
        "best_without": found.without,
        "gain_against": against,
        "gain": measured.ratio(against, found.best)
        if measured and against and found.best
        else None,
        "taken": dict(found.taken),
        "notes": list(found.notes),
    }


def _ways_json(found: ProgramOutcome, measured: MeasuredWays) -> list[dict[str, Any]]:
    return [
        {
            "way": way,
            "step_ms": step_ms,
            "tokens_per_s": found.tokens / step_ms * 1e3 if found.tokens and step_ms else None,
            "failed": measured.failed(way),
            "against_as_is": measured.ratio(AS_IS, way),
            "runs": [
                {
                    "round": n,
                    "step_ms": run.step_ms,
                    "first_s": run.first_s,
                    "peak_bytes": run.peak_bytes,
                }
                for n, run in runs.items()
            ],
        }
        for way, runs in measured.runs.items()
        for step_ms in (measured.step_ms(way),)
    ]


def _shares(shares: Shares) -> dict[str, Any]:
    return {
        "device": shares.device,
        "total_us": shares.total_us,
        "busy": shares.busy,
        "optimizer": shares.of_kind(IN_OPTIMIZER),
        "other": shares.of_nobody,
    }
