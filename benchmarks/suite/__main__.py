"""Write benchmarks/tasks from the tables; files that no table names any more are removed."""

from __future__ import annotations

from pathlib import Path

from benchmarks.suite import chains, models, operators
from benchmarks.suite.task import Task, source

TASKS = Path(__file__).resolve().parent.parent / "tasks"
GROUPS: dict[str, list[Task]] = {
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


def main() -> None:
    wanted = files()
    for stale in set(TASKS.rglob("*.py")) - set(wanted):
        stale.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print({group: len(tasks) for group, tasks in GROUPS.items()})


if __name__ == "__main__":
    main()
