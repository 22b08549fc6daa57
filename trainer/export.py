"""Make a data set from journals, search archives and recorded evaluations.

    python -m trainer.export --out data/ --journal ~/.local/share/kernel-lsp/journal.db --archive
    searches/ \\
        --tasks tasks/ --table evaluations.json --without BENCHMARK_FOLDER

Families of tasks are dealt to train, validation and test; what could leak, was not allowed or
cannot be read is left out and counted. Nothing is sent anywhere, and no source is changed. Exit 0:
written; 1: nothing was left to write; 2: a source or option cannot be used. """

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_lsp import __version__
from kernel_lsp.errors import KernelLspError
from trainer.data import corpora, datasets, parquet
from trainer.data.datasets import ExampleChoice
from trainer.data.reading import Grant
from trainer.records import Agent, Corpus, Skipped
from trainer.tasks import task_suites
from trainer.tasks.likeness import Likeness, mark
from trainer.tasks.task_suites import DataPart, FamilySplit, TaskSuite


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the data set and a summary; the exit code, see above."""
    options = _parser().parse_args(arguments)
    try:
        summary = run(options)
    except KernelLspError as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"export: {options.out} cannot be written: {error.strerror or error}", file=sys.stderr
        )
        return 2
    print(json.dumps(summary) if options.json else _text(summary))
    return 0 if summary["turns"] else 1


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Raises KernelLspError or OSError; then the folder has no manifest."""
    suites = [task_suites.load(folder) for folder in options.tasks]
    held = [task_suites.load(folder) for folder in options.held_out]
    files = task_suites.source_files(options.without)
    marks = [found for path in files if (found := mark(path.read_text("utf-8", "replace")))]
    split = FamilySplit(
        seed=options.seed,
        validation=options.validation,
        test=options.test,
        held_out=frozenset().union(*(task_suites.families(suite.tasks) for suite in held)),
    )
    corpus = corpora.read(
        journals=options.journal,
        archives=_archives(options.archive),
        tables=options.table,
        suites=suites,
        grant=Grant(own=options.own, unchanged=options.unchanged),
        report=_say,
    )
    parts, leaks = datasets.deal_parts(
        corpus.trajectories, split, Likeness(marks) if marks else None
    )
    choice = ExampleChoice(per_cluster=options.per_cluster, mix=options.mix, seed=options.seed)
    rows = {part: datasets.rows(mine, part, choice) for part, mine in parts.items()}
    summary = _summary(corpus, suites, leaks, rows)
    if summary["turns"]:
        about = {
            "kernel_lsp": __version__,
            "seed": options.seed,
            "compared_with": len(marks),
            "counts": summary,
        }
        parquet.write(options.out, rows, about, _say)
    return {"schema_version": 1, "out": str(options.out) if summary["turns"] else None, **summary}


def _archives(named: Sequence[Path]) -> list[Path]:
    """Files as they are; of folders all archives below them."""
    found: list[Path] = []
    for path in named:
        found += sorted(path.rglob("*.db")) if path.is_dir() else [path]
    return found


def _summary(
    corpus: Corpus,
    suites: Sequence[TaskSuite],
    leaks: Sequence[Skipped],
    rows: dict[DataPart, list[datasets.DatasetRow]],
) -> dict[str, Any]:
    everything = [row for mine in rows.values() for row in mine]
    return {
        "read": corpus.read,
        "trajectories": len({row.trajectory.id for row in everything}),
        "turns": len(everything),
        "examples": sum(row.example for row in everything),
        "parts": {
            part.value: {
                "turns": len(mine),
                "examples": sum(row.example for row in mine),
                "agents": dict(
                    sorted(Counter(r.turn.agent.value for r in mine if r.example).items())
                ),
                "families": len({row.trajectory.family for row in mine}),
                "tasks": len({row.trajectory.task for row in mine}),
            }
            for part, mine in rows.items()
        },
        "suite_files_left_out": _counts(s for suite in suites for s in suite.skipped),
        "rows_left_out": _counts(corpus.skipped),
        "trajectories_left_out": _counts(leaks),
        "turns_that_are_no_examples": _counts(datasets.reasons(everything)),
    }


def _counts(skipped: Any) -> list[dict[str, Any]]:
    return [{"reason": s.reason, "count": s.count, "examples": list(s.examples)} for s in skipped]


def _text(summary: dict[str, Any]) -> str:
    if not summary["turns"]:
        lines = [f"nothing was written: of {summary['read']} rows that were read, none can be used"]
    else:
        lines = [
            f"{summary['turns']} turns of {summary['trajectories']} trajectories in "
            f"{summary['out']}, "
            f"{summary['examples']} of them examples to imitate"
        ]
        for part, mine in summary["parts"].items():
            agents = (
                ", ".join(f"{count} {agent}" for agent, count in mine["agents"].items()) or "none"
            )
            lines.append(
                f"  {part:10} {mine['turns']:6} turns, {mine['tasks']} tasks, {mine['families']} "
                f"families; "
                f"examples: {agents}"
            )
    for title, key in (
        ("files of suites that were left out", "suite_files_left_out"),
        ("rows that were left out", "rows_left_out"),
        ("trajectories that could leak", "trajectories_left_out"),
        ("turns that are no examples", "turns_that_are_no_examples"),
    ):
        if found := summary[key]:
            lines.append(f"{title}: {sum(one['count'] for one in found)}")
            lines += [f"  {one['count']:6}  {one['reason']}" for one in found]
    return "\n".join(lines)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _mix(text: str) -> dict[Agent, float]:
    """``policy=0.7,selection=0.2,summary=0.1``."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        found = {Agent(name.strip()): float(share) for name, share in pairs}
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"write policy=0.7,selection=0.2,summary=0.1 ({error})"
        ) from error
    if any(share < 0 for share in found.values()) or not sum(found.values()):
        raise argparse.ArgumentTypeError("shares are positive")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the data set; must be new or empty"
    )
    source = parser.add_argument_group("sources, each any number of times")
    source.add_argument("--journal", **several, metavar="FILE_OR_ADDRESS",
                        help="journal.db, or postgresql+psycopg://HOST/NAME")  # fmt: skip
    source.add_argument(
        "--archive", type=Path, **several, metavar="FILE_OR_FOLDER", help="of searches"
    )
    source.add_argument(
        "--table", type=Path, **several, metavar="JSON", help="recorded evaluations"
    )
    source.add_argument("--tasks", type=Path, **several, metavar="FOLDER",
                        help="suites that tables and journals are about")  # fmt: skip
    consent = parser.add_argument_group("what the sources do not say themselves")
    consent.add_argument("--own", action="store_true",
                         help="archives, and rows from before consent was recorded, are yours to "
                              "train on; "
                         "a recorded no stays a no")  # fmt: skip
    consent.add_argument("--unchanged", action="store_true",
                         help="tables without hashes are about the tasks as they are now")  # fmt: skip
    deal = parser.add_argument_group("what goes where")
    deal.add_argument("--test", type=float, default=0.2, help="share of families (default 0.2)")
    deal.add_argument(
        "--validation", type=float, default=0.1, help="share of families (default 0.1)"
    )
    deal.add_argument("--held-out", type=Path, **several, metavar="FOLDER",
                      help="families of this suite's tasks go to test")  # fmt: skip
    deal.add_argument("--without", type=Path, **several, metavar="FOLDER",
                      help="leave out what repeats a file of this benchmark")  # fmt: skip
    deal.add_argument("--seed", type=int, default=0)
    deal.add_argument(
        "--per-cluster", type=int, default=32, help="most examples that are alike (default 32)"
    )
    deal.add_argument("--mix", type=_mix, default=None, metavar="policy=0.7,selection=0.2,summary=0.1",
                      help="shares of the agents among examples; by default as they come")  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="the counts as one JSON object on standard output"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
