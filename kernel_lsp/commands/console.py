"""What all commands share: results on standard output, progress and failures on standard error."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.markup import escape
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar
from rich.segment import Segment
from rich.text import Text

from kernel_lsp import config, interpreter
from kernel_lsp.config import Settings
from kernel_lsp.confinement import entry
from kernel_lsp.consent import ConsentAnswer, Consents
from kernel_lsp.errors import ConsentRequired, KernelLspError
from kernel_lsp.plain import plain
from kernel_lsp.presenter.objects import to_versioned_json
from kernel_lsp.records import Progress

T = TypeVar("T")
EXIT_OK, EXIT_NO, EXIT_CANNOT = 0, 1, 2
_verbose = False
SPEED_S = 3600.0
"""What the time left is estimated from: one task of a suite may take minutes."""


class _PlainRenderable:
    """What is printed, without what the terminal would obey; rich's own colors and cursor stay."""

    def __init__(self, printed: ConsoleRenderable) -> None:
        self._printed = printed

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._printed, options):
            if segment.control:
                yield segment
            else:
                yield Segment(plain(segment.text), segment.style)


class _Plain(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """What is printed, with characters that would steer the terminal taken out."""
        return [_PlainRenderable(printed) for printed in renderables]


out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
"""Progress and notices: `volume` can switch it off."""
failures = Console(stderr=True, highlight=False)
for console in (out, err, failures):
    console.push_render_hook(_Plain())


def write(text: str) -> None:
    """Prints a result on standard output as plain text: what a terminal would obey is taken out,
    also where a script reads it."""
    sys.stdout.write(plain(text))


def print_json(**content: Any) -> None:
    """Prints one object on standard output as JSON, with its schema version."""
    write(to_versioned_json(**content) + "\n")


def fail(error: KernelLspError) -> NoReturn:
    """Prints cause and way out on standard error and ends with exit code 2."""
    failures.print(f"[bold red]error[/] {_escape(error.cause)}")
    if error.remedy:
        failures.print(f"      {_escape(error.remedy)}", soft_wrap=True)
    raise typer.Exit(EXIT_CANNOT)


def run(work: Coroutine[Any, Any, T], *, cancelled: str = "cancelled") -> T:
    """Run to the end; Ctrl-C ends every child before it ends us."""
    try:
        return asyncio.run(work)
    except KernelLspError as error:
        fail(error)
    except KeyboardInterrupt:
        err.print(cancelled)
        raise typer.Exit(130) from None


def settings(folder: Path, **flags: Any) -> Settings:
    """The folder's settings; what cannot be used is said once and its default counts."""
    loaded, problems = config.load(folder, flags=flags)
    for problem in problems:
        err.print(f"[yellow]setting[/] {_escape(str(problem))}")
    return loaded


def require_consent(settings: Settings, folder: Path) -> None:
    """Checks, before a command starts the folder's interpreter, that it may. Raises ConsentRequired
    when that lies in the folder and nobody has allowed the folder's code to run. What its user has
    accepted and was promised counts from now on for all that is started."""
    entry.require(Consents(settings.data_dir).required(folder))
    if (cause := refusal(settings, folder)) is not None:
        raise ConsentRequired(cause, f"allow it with: kernel-lsp trust {folder.absolute()}")


def refusal(settings: Settings, folder: Path) -> str | None:
    """Why the folder's interpreter may not be started; None: it may."""
    found = interpreter.find(folder, settings.python)
    if not interpreter.needs_consent(found, folder, settings.python):
        return None
    answer = Consents(settings.data_dir).answer(folder, setting=settings.consent)
    if answer in (ConsentAnswer.ALLOW, ConsentAnswer.ON_REQUEST):
        return None
    return f"{found.path} lies in the folder, and nobody has allowed code of the folder to run"


@contextmanager
def volume(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Leaves out progress and notices inside the block, or makes each step a line of its own."""
    global _verbose
    before = err.quiet, _verbose
    err.quiet, _verbose = quiet, verbose
    try:
        yield
    finally:
        err.quiet, _verbose = before


@contextmanager
def progress(
    title: str, *, lines: bool = True, timed: bool = False
) -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error when it is a terminal, with the time left where the total is known;
    else one line per step, unless the command writes its own. ``timed``: these lines say when."""
    if _verbose or (timed and not err.is_terminal):
        begun = time.monotonic()
        yield lambda step: err.print(
            f"{time.monotonic() - begun:8.2f} s  {title}: {_escape(step.message)}", soft_wrap=True
        )
        return
    if not err.is_terminal:
        yield lambda step: err.print(f"{title}: {_escape(step.message)}") if lines else None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), _Count(), _Left())
    clock = TimeElapsedColumn()
    with Bar(*columns, clock, console=err, transient=True, speed_estimate_period=SPEED_S) as bar:
        task = bar.add_task(title, total=None)

        def report(step: Progress) -> None:
            if step.total is None:
                bar.tasks[0].total = None  # which update() takes for "as before"
            bar.update(
                task, description=_escape(step.message), total=step.total, completed=step.done or 0
            )

        yield report


class _Count(ProgressColumn):
    """3 of 40."""

    def render(self, task: Task) -> Text:
        """ "3 of 10"; empty while the total is unknown."""
        return Text("" if task.total is None else f"{task.completed:.0f} of {task.total:.0f}")


class _Left(ProgressColumn):
    """Nothing before it can be known, where rich shows dashes."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """ "0:00:12 left"; empty while the total is unknown."""
        left = None if task.total is None else task.time_remaining
        return Text("" if left is None else f"{timedelta(seconds=round(left))} left")


def workspace_of(path: Path) -> Path:
    """The nearest folder upward with a project file, else the file's own folder."""
    start = path.absolute().parent
    marks = ("pyproject.toml", ".git", ".kernel-lsp")
    return next(
        (f for f in (start, *start.parents) if any((f / mark).exists() for mark in marks)), start
    )


def _escape(text: str) -> str:
    """No markup of somebody else's; before rich sees it, or an escape would hide a bracket from
    it."""
    return escape(plain(text))
