"""Write task files from the tables.

`python -m benchmarks.suite` rewrites benchmarks/tasks; files that no table names any more are
removed. `python -m benchmarks.suite FOLDER` writes the tasks of training in half precision
(training.py) into a folder that is new or empty; ``--seed`` draws others; the name of another table
(``--streaming``, ``--moves``, ``--odd``, ``--pieces``) writes the tasks of that one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.suite import chains, models, moves, odd, operators, pieces, streaming, training
from benchmarks.suite.task import SuiteTask, source

TASKS = Path(__file__).resolve().parent.parent / "tasks"
GROUPS: dict[str, list[SuiteTask]] = {
    "operators": operators.TASKS,
    "chains": chains.TASKS,
    "models": models.TASKS,
}
TABLES: dict[str, tuple[Callable[[], dict[str, list[SuiteTask]]], str]] = {
    "streaming": (
        lambda: {"streaming": streaming.tasks(), "trained": streaming.trained()},
        "streaming work, forward alone",
    ),
    "moves": (lambda: {"moves": moves.tasks()}, "slices, rolls, pads and repeats"),
    "odd": (lambda: {"odd": odd.tasks()}, "sizes that no power of two divides"),
    "pieces": (lambda: {"pieces": pieces.tasks()}, "heads, images, maxima, stored weights"),
}
"""Tables whose tasks are not committed: their tasks by group, and what they are of."""


def files() -> dict[Path, str]:
    """Every task file and its text."""
    return {
        TASKS / group / f"{task.name}.py": source(task)
        for group, tasks in GROUPS.items()
        for task in tasks
    }


def training_files(seed: int = 0) -> dict[str, str]:
    """Relative path and text of every task of training in half precision."""
    return _texts({"operators": training.operators(seed), "chains": training.chains(seed)})


def table_files(table: str) -> dict[str, str]:
    """Relative path and text of every task of one of TABLES."""
    make, _ = TABLES[table]
    return _texts(make())


def _texts(groups: dict[str, list[SuiteTask]]) -> dict[str, str]:
    return {
        f"{group}/{task.name}.py": source(task) for group, tasks in groups.items() for task in tasks
    }


def write(folder: Path, made: dict[str, str]) -> None:
    """Raises SystemExit where the folder has something in it already."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: name a new folder")
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print(f"{len(made)} tasks in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, help="where tasks that are not committed go"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the training tasks")
    one = parser.add_mutually_exclusive_group()
    for table, (_, content) in TABLES.items():
        one.add_argument(
            f"--{table}", dest="table", action="store_const", const=table, help=content
        )
    options = parser.parse_args()
    if options.folder is not None:
        made = table_files(options.table) if options.table else training_files(options.seed)
        return write(options.folder, made)
    wanted = files()
    for stale in set(TASKS.rglob("*.py")) - set(wanted):
        stale.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print({group: len(tasks) for group, tasks in GROUPS.items()})
    return None


if __name__ == "__main__":
    main()
