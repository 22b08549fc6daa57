"""``kernel-lsp train``: starts the trainer as a process of its own, with the interpreter that has
torch.

The trainer is a package of its own name that only its own processes can import: a wheel has it in
a folder that is on nobody else's path, because another well-known package is named so too. It
needs the ``train`` extra. Not covered: what it does (trainer/)."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NoReturn

import typer

from kernel_lsp.commands import console
from kernel_lsp.errors import ConfigError, KernelLspError

app = typer.Typer(help="Train the policy on recorded or logged rewrites.", no_args_is_help=True)
PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED, CHECKOUT = PACKAGE / "_trainer", PACKAGE.parent
FOUND = INSTALLED if INSTALLED.is_dir() else CHECKOUT
"""The folder in which the trainer package lies."""
RECIPE = typer.Argument(..., help="A TOML file, e.g. trainer/recipes/cpu-smoke.toml.")
DRY_RUN = typer.Option(
    False, "--dry-run", help="Say what would be done, with memory and steps; start nothing."
)
PYTHON = typer.Option(None, "--python", help="Interpreter with the train extra; default: this one.")
NEEDED = ("torch", "transformers", "accelerate", "safetensors", "tensorboard", "trainer")
TRAINING = (*NEEDED[:-1], "pyarrow", "peft", "scipy")
"""The extra `train` of pyproject.toml by name: kernel-lsp itself may come from a file."""
MISSING = (
    "import importlib.util, sys; print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) "
    "is None))"
)


@app.command()
def sft(recipe: Path = RECIPE, dry_run: bool = DRY_RUN, python: str | None = PYTHON) -> None:
    """Supervised or offline training."""
    _start("sft", recipe, dry_run, python)


@app.command()
def rl(recipe: Path = RECIPE, dry_run: bool = DRY_RUN, python: str | None = PYTHON) -> None:
    """Multi-turn reinforcement learning of the three agents."""
    _start("rl", recipe, dry_run, python)


@app.command()
def evaluate(recipe: Path = RECIPE, dry_run: bool = DRY_RUN, python: str | None = PYTHON) -> None:
    """The newest checkpoint on tasks that training never saw."""
    _start("evaluate", recipe, dry_run, python)


@app.command("tool", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_tool(
    context: typer.Context,
    name: str = typer.Argument(
        ..., help="E.g. export, generated, recording: a module of the trainer."
    ),
    python: str | None = PYTHON,
) -> None:
    """Another program of the trainer, with its own options: in a checkout `python -m trainer.NAME`,
    or of one of the trainer's rooms, `python -m trainer.rollouts.NAME`."""
    try:
        module = module_of(name)
    except KernelLspError as error:
        console.fail(error)
    _wait([python or sys.executable, "-m", module, *context.args])


def module_of(name: str) -> str:
    """The trainer's module of that name, in whichever of its rooms: `parents` is
    `trainer.rollouts.parents`. KernelLspError: there is none."""
    found = sorted((FOUND / "trainer").rglob(f"{name}.py")) if name.isidentifier() else []
    if not found:
        cause = f"the trainer has no program {name}"
        raise KernelLspError(cause, "docs/how-to/training.md names some")
    return ".".join(found[0].relative_to(FOUND).with_suffix("").parts)


def _start(what: str, recipe: Path, dry_run: bool, python: str | None) -> None:
    """Ends with the trainer's exit code; Ctrl-C reaches it, and it goes on from its checkpoint
    next time."""
    try:
        command = command_of(what, recipe, dry_run, python or sys.executable)
    except KernelLspError as error:
        console.fail(error)
    _wait(command)


def _wait(command: list[str]) -> NoReturn:
    child = subprocess.Popen(command, env=_environment())
    while True:
        try:
            raise typer.Exit(child.wait())
        except KeyboardInterrupt:
            continue  # it has got the signal too, and ends by itself


def command_of(what: str, recipe: Path, dry_run: bool, python: str) -> list[str]:
    """What is run. Raises ConfigError when it could not start."""
    if not recipe.is_file():
        raise ConfigError(f"there is no recipe {recipe}", "trainer/recipes has some")
    tried = subprocess.run(
        [python, "-c", MISSING, *NEEDED], env=_environment(), capture_output=True, text=True
    )
    if tried.returncode or tried.stdout.strip():
        reason = (tried.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        lacks = f"it lacks {', '.join(tried.stdout.split())}" if not tried.returncode else reason
        raise ConfigError(
            f"{python} cannot run the trainer: {lacks}",
            f"{python} -m pip install {' '.join(TRAINING)}",
        )
    settings = _read(recipe) if what != "evaluate" and not dry_run else {}
    if "cluster" in settings:
        return [python, "-m", "trainer.cluster_run", what, str(recipe)]
    several = _gpus(settings)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={several}"]
    module = [*(launcher if several > 1 else []), "-m", f"trainer.{what}", str(recipe)]
    return [python, *module, *(["--dry-run"] if dry_run else [])]


def _read(recipe: Path) -> dict[str, Any]:
    """As the recipe has it; what is wrong with it, the trainer says better."""
    try:
        return tomllib.loads(recipe.read_text())
    except ValueError:
        return {}


def _gpus(settings: dict[str, Any]) -> int:
    """Of the trainer."""
    try:
        return int(settings.get("hardware", {}).get("gpus", 0))
    except (ValueError, TypeError, AttributeError):
        return 0


def _environment() -> dict[str, str]:
    """With the trainer findable, wherever the command was called."""
    paths = [str(FOUND), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
