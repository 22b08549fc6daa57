"""``kernel-lsp skills``: list, show and lint the library."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from kernel_lsp import config, skillbook
from kernel_lsp.commands import console
from kernel_lsp.errors import SkillError
from kernel_lsp.presenter import library
from kernel_lsp.search.bandit import Arms
from kernel_lsp.skillbook import Skillbook

app = typer.Typer(help="The library of optimization skills.", no_args_is_help=True)
AS_JSON = typer.Option(False, "--json", help="One JSON object on standard output.")


@app.command("list")
def list_skills(as_json: bool = AS_JSON) -> None:
    """Every skill, and what searches have learned of it; then what was left out and why.

    tries: candidates with it that were judged; wins: those that were verified to be faster; mean gain: over
    all tries, a failure counting as 1. With --json also by what limits the target, and by device.
    """
    book = _load()
    arms = Arms(Path(config.load(Path.cwd())[0].data_dir)).stats()
    render = library.skills_json if as_json else library.skills_text
    sys.stdout.write(render(book.skills, book.problems, arms) + "\n")


@app.command()
def show(name: str = typer.Argument(..., help="A skill's name."), as_json: bool = AS_JSON) -> None:
    """One skill whole."""
    book = _load()
    skill = book.get(name)
    if skill is None:
        console.fail(SkillError(f"no skill is called {name}", "`kernel-lsp skills list` shows the names"))
    sys.stdout.write((library.skill_json(skill) if as_json else library.skill_text(skill)) + "\n")


@app.command()
def lint(
    folders: list[Path] | None = typer.Argument(None, help="Skill folders; default: the built-in ones."),
    as_json: bool = AS_JSON,
) -> None:
    """Check folders of skills against the format. Exit code 1 when there is a problem."""
    places = folders or sorted(path for path in skillbook.built_in_folder().iterdir() if path.is_dir())
    problems = [problem for folder in places for problem in skillbook.lint(folder)]
    render = library.lint_json if as_json else library.lint_text
    sys.stdout.write(render(problems, num_skills=len(places)) + "\n")
    raise typer.Exit(int(bool(problems)))


def _load() -> Skillbook:
    settings, _ = config.load(Path.cwd())
    places = skillbook.folders(settings.skill_folders, workspace=Path.cwd(), data_dir=Path(settings.data_dir))
    return skillbook.load(places)
