"""``kernel-lsp skills``: the library of skills, and the life of those that were learned."""

from __future__ import annotations

from pathlib import Path

import typer

from kernel_lsp import config, skillbook
from kernel_lsp.commands import console, searching
from kernel_lsp.commands.lineage import lineage
from kernel_lsp.commands.loudness import with_loudness
from kernel_lsp.config import Settings
from kernel_lsp.errors import KernelLspError, SkillError
from kernel_lsp.library import SkillLibrary, store
from kernel_lsp.library.store import Shelved
from kernel_lsp.library.usage import UsageStatistics
from kernel_lsp.presenter import learned, library
from kernel_lsp.records import LearnedSkill, Standing, Verification
from kernel_lsp.search.bandit import BanditArms
from kernel_lsp.skillbook import Skillbook

app = typer.Typer(
    help="The library of optimization skills, and what was learned from accepted work.",
    no_args_is_help=True,
)
AS_JSON = typer.Option(False, "--json", help="One JSON object on standard output.")
NAME = typer.Argument(..., help="A skill's name.")
TASKS = typer.Option(
    None,
    "--tasks",
    help="Folders or files with class Model and get_inputs, or with Triton kernels; as often as "
    "needed.",
)
STOPPED = "stopped; what was judged is kept, and the same command goes on from there"


@app.command("list")
def list_skills(as_json: bool = AS_JSON) -> None:
    """Every skill, what searches have learned of it, drafts and retired ones; then what was left
    out and why.

    tries: candidates with it that were judged; wins: those that were verified to be faster; mean
    gain: over all tries, a failure counting as 1. With --json also by what limits the target, and
    by device."""
    settings = _settings()
    book, data_dir = _load(settings), Path(settings.data_dir)
    arms = BanditArms(data_dir).stats()
    papers = [one.papers for one in _shelve(SkillLibrary(data_dir))]
    if as_json:
        text = library.skills_json(book.skills, book.problems, arms, papers)
        console.write(text + "\n")
        return
    console.write(library.skills_text(book.skills, book.problems, arms) + "\n\n")
    console.write(learned.papers_text(papers) + "\n")


@app.command()
def show(name: str = NAME, as_json: bool = AS_JSON) -> None:
    """One skill whole; of a learned one also its papers: origin, verifications, use."""
    settings = _settings()
    mine = SkillLibrary(Path(settings.data_dir))
    skill, found = _load(settings).get(name), mine.find(name)
    skill = skill or (found.skill if found else None)
    if skill is None:
        console.fail(
            SkillError(f"no skill is called {name}", "`kernel-lsp skills list` shows the names")
        )
    papers = found.papers if found and found.skill.name == skill.name else None
    if as_json:
        console.write(library.skill_json(skill, papers) + "\n")
        return
    usage = UsageStatistics(Path(settings.data_dir)).stats()
    more = learned.paper_lines(papers, usage) if papers else []
    console.write("\n\n".join([library.skill_text(skill), *more]) + "\n")


@app.command()
def lint(
    folders: list[Path] | None = typer.Argument(
        None, help="Skill folders; default: the built-in ones."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Check folders of skills against the format. Exit code 1 when there is a problem."""
    places = folders or sorted(
        path for path in skillbook.built_in_folder().iterdir() if path.is_dir()
    )
    problems = [problem for folder in places for problem in skillbook.lint(folder)]
    render = library.lint_json if as_json else library.lint_text
    console.write(render(problems, num_skills=len(places)) + "\n")
    raise typer.Exit(int(bool(problems)))


@app.command()
def learn(as_json: bool = AS_JSON) -> None:
    """Draft skills from rewrites that were kept. Nothing is used before it was verified.

    What --apply has written into files of this folder counts as kept when it is still there.
    """
    from kernel_lsp.commands import journaling  # SQLAlchemy: the list of skills need not load it
    from kernel_lsp.pipeline import learning

    settings = _settings()
    try:
        with journaling.journal(settings) as journal:
            data_dir = Path(settings.data_dir)
            drafted = journaling.log_outcomes(journal, console.workspace_of(Path("here")), data_dir)
            drafted += learning.from_journal(journal, SkillLibrary(data_dir), _load(settings))
    except KernelLspError as error:
        console.fail(error)
    if as_json:
        console.print_json(drafted=drafted)
        return
    text = (
        learned.papers_text(drafted)
        if drafted
        else "nothing new: every rewrite that was kept is known"
    )
    console.write(text + "\n")


app.command()(lineage)


@app.command()
@with_loudness
def verify(
    names: list[str] | None = typer.Argument(
        None, help="Drafts or learned skills; default: every draft."
    ),
    tasks: list[Path] | None = TASKS,
    samples: int = typer.Option(3, min=2, help="Judgements of each candidate on a task."),
    most: int = typer.Option(
        6, min=3, help="Tasks that the skill changes; no further one is judged."
    ),
    device: str = typer.Option("auto", help="auto, cuda or cpu."),
    jobs: int = typer.Option(
        1, min=1, help="Tasks under way at once: on a GPU four or more save time."
    ),
    fresh: bool = typer.Option(False, "--fresh", help="Judge again what earlier runs have judged."),
    policy: str | None = searching.POLICY,
    model: str | None = searching.MODEL,
    endpoint: str | None = searching.ENDPOINT,
    allow_remote: bool = searching.ALLOW_REMOTE,
    as_json: bool = AS_JSON,
) -> None:
    """Show on other tasks that a skill helps: what is suggested first, with it and without it.

    Accepted only when the lower bound of the uplift is positive over at least three tasks and
    correctness does not fall; then it comes into the library at once. A recipe is applied by the
    engine; a skill that is text needs a language model to read it. Runs code of the tasks in
    confined processes. A run that was stopped goes on where it was. Exit code 0: all were
    accepted, 1: not all, 2: could not be judged."""
    flags = {"policy": policy, "model": model, "endpoint": endpoint}
    settings = console.settings(Path.cwd(), device=device, **flags)
    mine = SkillLibrary(Path(settings.data_dir))
    try:
        chosen = [_find(mine, name) for name in names] if names else _drafts(mine)
        from kernel_lsp.pipeline import skill_validation

        asked = skill_validation.VerificationRequest(
            tasks=skill_validation.tasks_of(tasks or []),
            samples=samples,
            most=most,
            jobs=jobs,
            fresh=fresh,
            allowed_origin=searching.allowed_origin(settings, Path.cwd(), now=allow_remote),
        )
    except KernelLspError as error:
        console.fail(error)
    results = console.run(_verify(settings, mine, chosen, asked), cancelled=STOPPED)
    if as_json:
        console.write(learned.verified_json(results) + "\n")
    else:
        for papers, found in results:
            text = learned.verification_text(found)
            console.write(f"{papers.name} is {papers.standing.value}: {text}\n\n")
    raise typer.Exit(int(not all(found.accepted for _, found in results)))


@app.command()
def promote(
    name: str = NAME,
    unverified: bool = typer.Option(
        False, "--unverified", help="Although nothing has shown that it helps."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Add a verified draft to the library, or bring a retired skill back."""
    mine = SkillLibrary(Path(_settings().data_dir))
    try:
        papers = _find(mine, name).papers
        if papers.standing is Standing.VERIFIED:
            raise SkillError(f"{name} is in the library already")
        if not papers.verified_on and not unverified:
            remedy = (
                f"`kernel-lsp skills verify {name} --tasks FOLDER`, or --unverified on your own "
                f"account"
            )
            raise SkillError(f"nothing has shown that {name} helps", remedy)
        made = mine.promote(
            name, reason="promoted by hand" + (", unverified" if unverified else "")
        )
    except KernelLspError as error:
        console.fail(error)
    _print_drafts(made, as_json)


@app.command()
def retire(
    name: str = NAME,
    reason: str = typer.Option("retired by hand", help="What `skills show` will say."),
    as_json: bool = AS_JSON,
) -> None:
    """Take a learned skill out of use. Nothing is deleted: promote brings it back."""
    try:
        made = SkillLibrary(Path(_settings().data_dir)).retire(name, reason)
    except KernelLspError as error:
        console.fail(error)
    _print_drafts(made, as_json)


@app.command()
def rollback(
    version: int | None = typer.Argument(
        None, help="Which; default: the one before. 0 is the empty library."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """The learned library as it was in an earlier version; `skills history` shows them."""
    try:
        made = SkillLibrary(Path(_settings().data_dir)).rollback(version)
    except KernelLspError as error:
        console.fail(error)
    _print_drafts(made, as_json)


@app.command()
def history(as_json: bool = AS_JSON) -> None:
    """Every version of the learned library, oldest first."""
    found = SkillLibrary(Path(_settings().data_dir)).history()
    if as_json:
        console.print_json(versions=found)
        return
    for one in found:
        console.write(f"{_version(one)}\n")
    if not found:
        console.write("nothing was learned yet\n")


# --- parts --------------------------------------------------------------------------------


async def _verify(
    settings: Settings, mine: SkillLibrary, chosen: list[Shelved], asked: object
) -> list[tuple[LearnedSkill, Verification]]:
    """One after the other; each is settled as soon as it is known."""
    from kernel_lsp.pipeline import Pipeline, skill_validation

    assert isinstance(asked, skill_validation.VerificationRequest)
    pipeline, results = Pipeline(settings), []
    try:
        for shelved in chosen:
            verified = [s.skill for s in mine.shelved() if s.papers.standing is Standing.VERIFIED]
            with console.progress(shelved.papers.name) as report:
                found = await skill_validation.Validating(
                    pipeline=pipeline, shelved=shelved, library=verified, asked=asked, report=report
                ).run()
            results.append((store.settle(mine, shelved, found), found))
        return results
    finally:
        await pipeline.close()


def _drafts(mine: SkillLibrary) -> list[Shelved]:
    found = [one for one in mine.staged() if one.papers.standing is Standing.STAGED]
    waiting = [one for one in found if mine.current.get(one.papers.name) is None]
    if not waiting:
        raise SkillError(
            "there is no draft to verify", "`kernel-lsp skills learn` makes them from kept work"
        )
    return waiting


def _find(mine: SkillLibrary, name: str) -> Shelved:
    found = mine.find(name)
    if found is None:
        raise SkillError(
            f"no learned skill is called {name}", "`kernel-lsp skills list` shows the names"
        )
    return found


def _shelve(mine: SkillLibrary) -> list[Shelved]:
    """What is in the library, and drafts that are not."""
    inside = mine.shelved()
    names = {one.papers.name for one in inside}
    return [*inside, *(one for one in mine.staged() if one.papers.name not in names)]


def _print_drafts(made: store.LibraryVersion, as_json: bool) -> None:
    if as_json:
        console.print_json(version=made)
    else:
        console.write(f"{_version(made)}\n")


def _version(made: store.LibraryVersion) -> str:
    used = sum(papers.standing is Standing.VERIFIED for papers in made.skills)
    retired = len(made.skills) - used
    return f"version {made.number}, {made.created}, {made.action}: {used} in use, {retired} retired"


def _settings() -> Settings:
    return config.load(Path.cwd())[0]


def _load(settings: Settings) -> Skillbook:
    places = skillbook.folders(
        settings.skill_folders, workspace=Path.cwd(), data_dir=Path(settings.data_dir)
    )
    return skillbook.load(places, data_dir=Path(settings.data_dir))
