"""``--quiet`` and ``--verbose`` of the commands that take their time: what is said beside the
result.

Standard output is the result and stays as it is. Quiet leaves out progress and notices; causes of
a failure are always said. Verbose says each step in a line of its own with the seconds since the
start, what the log has, and at the end where the time went."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from kernel_lsp import phases
from kernel_lsp.commands import console
from kernel_lsp.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])
OPTIONS = {
    "quiet": typer.Option(False, "--quiet", "-q", help="No progress and no notices."),
    "verbose": typer.Option(
        False, "--verbose", "-v", help="Each step with its time, the log, and where the time went."
    ),
}


def with_loudness(command: Command) -> Command:
    """The command with both options; one that it takes itself it is also given."""
    signature = inspect.signature(command)
    own = signature.parameters.keys() & OPTIONS.keys()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=bool)
        for name, option in OPTIONS.items()
        if name not in own
    ]

    @functools.wraps(command)
    def run(*arguments: Any, quiet: bool = False, verbose: bool = False, **options: Any) -> Any:
        if quiet and verbose:
            console.fail(ConfigError("--quiet and --verbose exclude each other", "take one"))
        given = {"quiet": quiet, "verbose": verbose}
        options |= {name: given[name] for name in own}
        with console.volume(quiet=quiet, verbose=verbose), phases.collect_phases() as spent:
            if verbose:
                _start_log()
            try:
                return command(*arguments, **options)
            finally:
                if verbose and (seconds := spent.seconds()):
                    console.err.print("where the time went, in seconds that overlap:")
                    for name, took in seconds.items():
                        console.err.print(f"  {took:8.2f}  {name}", markup=False)

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *added]
    )
    run.__annotations__ = {**command.__annotations__, **{one.name: bool for one in added}}
    return run  # type: ignore[return-value]


def _start_log() -> None:
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("kernel_lsp").setLevel(logging.DEBUG)
