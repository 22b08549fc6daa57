"""Write task files from the tables.

`python -m benchmarks.suite` rewrites benchmarks/tasks; files that no table names any more are
removed. `python -m benchmarks.suite FOLDER` writes the tasks of training in half precision
(training.py) into a folder that is new or empty; ``--seed`` draws others; ``--streaming`` writes
those of streaming.py, ``--moves`` those of moves.py, ``--odd`` those of odd.py, ``--pieces`` those of
pieces.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.suite import chains, models, moves, odd, operators, pieces, streaming, training
from benchmarks.suite.task import SuiteTask, source

TASKS = Path(__file__).resolve().parent.parent / "tasks"
GROUPS: dict[str, list[SuiteTask]] = {
    "operators": operators.TASKS,
    "chains": chains.TASKS,
    "models": models.TASKS,
}


def files() -> dict[Path, str]:
    """Every task file and its text."""
    return {
        TASKS / group / f"{task.name}.py": source(task)
        for group, tasks in GROUPS.items()
        for task in tasks
    }


def training_files(seed: int = 0) -> dict[str, str]:
    """Relative path and text of every task of training in half precision."""
    groups = {"operators": training.operators(seed), "chains": training.chains(seed)}
    return {
        f"{group}/{task.name}.py": source(task) for group, tasks in groups.items() for task in tasks
    }


def streaming_files() -> dict[str, str]:
    groups = {"streaming": streaming.tasks(), "trained": streaming.trained()}
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
    parser.add_argument("folder", nargs="?", type=Path, help="where the training tasks go")
    parser.add_argument("--seed", type=int, default=0, help="draws the training tasks")
    parser.add_argument("--streaming", action="store_true", help="streaming work, forward alone")
    parser.add_argument("--moves", action="store_true", help="slices, rolls, pads and repeats")
    parser.add_argument("--odd", action="store_true", help="sizes that no power of two divides")
    parser.add_argument(
        "--pieces", action="store_true", help="heads, images, maxima, stored weights"
    )
    options = parser.parse_args()
    if options.folder is not None:
        made = streaming_files() if options.streaming else training_files(options.seed)
        if options.moves:
            made = {f"moves/{task.name}.py": source(task) for task in moves.tasks()}
        if options.odd:
            made = {f"odd/{task.name}.py": source(task) for task in odd.tasks()}
        if options.pieces:
            made = {f"pieces/{task.name}.py": source(task) for task in pieces.tasks()}
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
