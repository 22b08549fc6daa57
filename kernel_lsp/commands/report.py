"""``kernel-lsp report``: what was offered and kept, learned and trained, as one HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import typer

from kernel_lsp import __version__, config
from kernel_lsp.commands import console, journaling
from kernel_lsp.commands.loudness import with_loudness
from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.journal import Journal
from kernel_lsp.library import SkillLibrary
from kernel_lsp.library.store import LibraryVersion, now
from kernel_lsp.library.usage import UsageStatistics
from kernel_lsp.lineage import kept
from kernel_lsp.presenter import report as pages
from kernel_lsp.presenter.report import ReportFacts, Version
from kernel_lsp.records import Event, EventKind, Json, LearnedSkill, Proposal, Standing

CURVE = "curve.jsonl"
"""What a training run logs, one JSON object a line (trainer/training/runs.py)."""
OUT = Path("report.html")


@with_loudness
def report(
    out: Path = typer.Option(OUT, dir_okay=False, help="The page; an existing one is replaced."),
    run: list[Path] | None = typer.Option(
        None, "--run", help="A training run's folder, for its curves; give it as often as needed."
    ),
    policy: list[Path] | None = typer.Option(
        None,
        "--policy",
        dir_okay=False,
        help="What the trainer's evaluation wrote, a policy against the rule.",
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on standard output."),
) -> None:
    """One HTML page: suggestions and their fate, speedups, learned skills, training. Nothing is
    sent."""
    settings = config.load(Path.cwd())[0]
    try:
        with journaling.journal(settings) as journal, console.progress("report"):
            journaling.log_outcomes(
                journal, console.workspace_of(Path("here")), Path(settings.data_dir)
            )
            facts = gather_facts(journal, Path(settings.data_dir), run or [], policy or [])
        text = pages.page(facts)
        replace_file(out, text.encode())
    except KernelLspError as error:
        console.fail(error)
    except OSError as error:
        console.fail(
            ConfigError(f"{out} cannot be written: {error.strerror}", "choose another --out")
        )
    if as_json:
        console.print_json(
            report=str(out.absolute()),
            bytes=len(text.encode()),
            offered=len(facts.proposals),
            learned=len(facts.learned),
        )
    else:
        console.out.print(f"{out.absolute()}", markup=False, soft_wrap=True)


def gather_facts(
    journal: Journal, data_dir: Path, runs: list[Path], policies: list[Path]
) -> ReportFacts:
    """Everything of this user. Raises ConfigError for a run or file that is none."""
    library = SkillLibrary(data_dir)
    history = library.history()
    events = journal.events()
    return ReportFacts(
        made=now()[:16].replace("T", " "),
        version=__version__,
        events=events,
        proposals=tuple(_offered_proposals(journal, events)),
        learned=tuple(_learned_skills(library)),
        usage=UsageStatistics(data_dir).stats(),
        library=tuple(_version(snapshot) for snapshot in history),
        lineages=tuple(kept.lineages(data_dir)),
        curves={_name(path): _curve(path) for path in runs},
        policies={path.stem: _policy(path) for path in policies},
    )


def _offered_proposals(journal: Journal, events: Sequence[Event]) -> list[Proposal]:
    shown = {event.proposal for event in events if event.kind is EventKind.OFFERED}
    return [one.proposal for one in journal.proposals() if one.proposal.id in shown]


def _learned_skills(library: SkillLibrary) -> list[LearnedSkill]:
    """Those in use first, then drafts, then the rest."""
    inside = list(library.current.skills)
    names = {papers.name for papers in inside}
    every = [*inside, *(one.papers for one in library.staged() if one.papers.name not in names)]
    order = (Standing.VERIFIED, Standing.STAGED, Standing.RETIRED, Standing.REFUSED)
    return sorted(every, key=lambda papers: (order.index(papers.standing), papers.name))


def _version(snapshot: LibraryVersion) -> Version:
    used = sum(papers.standing is Standing.VERIFIED for papers in snapshot.skills)
    return Version(
        number=snapshot.number,
        created=snapshot.created,
        action=snapshot.action,
        in_use=used,
        retired=len(snapshot.skills) - used,
    )


def _name(run: Path) -> str:
    return "/".join(run.absolute().parts[-2:])


def _curve(run: Path) -> list[dict[str, float]]:
    """Whole lines only: a run that is being written, or was killed, may end in half of one."""
    path = run / CURVE if run.is_dir() else run
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{run} is no training run: {error}", f"name a folder that has {CURVE}"
        ) from error
    found = []
    for line in lines:
        try:
            data = json.loads(line)
            step = float(data["step"])
        except (ValueError, KeyError, TypeError):
            continue
        numbers = {
            k: float(v) for k, v in data.items() if isinstance(v, int | float) and math.isfinite(v)
        }
        found.append({**numbers, "step": step})
    return found


def _policy(path: Path) -> Json:
    try:
        data: Json = json.loads(path.read_text(encoding="utf-8"))
        for key in ("first_over_best", "rule_over_best"):
            [float(data[key][end]) for end in ("low", "mean", "high")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "name what `python -m trainer.evaluate --out FILE` has written"
        raise ConfigError(f"{path} compares no policy with the rule", remedy) from error
    return data
