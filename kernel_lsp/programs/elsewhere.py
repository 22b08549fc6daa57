"""Optimizers that an installed package makes for a program: in words, what its user can do.

Their text is not the program's, so that no edit of its files gives them a fused implementation. What
a package takes is read from the call that made the optimizer. Standard library only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.analysis.scripts import FUSED_OPTIMIZERS
from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import PACKAGE_FOLDERS, read_source
from kernel_lsp.parsing import parse_text


def advice_on(
    optimizers: Sequence[dict[str, Any]], is_own: Callable[[Path], bool]
) -> Iterator[str]:
    """`advice` on each of them; what is said of two alike, once."""
    yield from dict.fromkeys(filter(None, (advice(one, is_own) for one in optimizers)))


def advice(optimizer: dict[str, Any], is_own: Callable[[Path], bool]) -> str | None:
    """What to say of an optimizer that a run has seen (`StepRun.optimizers`); None: nothing.

    ``is_own``: whether a file is the program's own, which is edited instead.
    """
    kind, made = str(optimizer["kind"]), optimizer.get("made")
    is_torch = str(optimizer.get("module")).startswith("torch.optim")
    is_chosen = optimizer["fused"] is not None or optimizer["foreach"] is not None
    if (
        made is None
        or is_chosen
        or not is_torch
        or kind not in FUSED_OPTIMIZERS
        or is_own(Path(made[0]))
    ):
        return None
    file, line = Path(made[0]), int(made[1])
    call = _call_at(file, line, kind)
    return (
        f"{kind} has a fused version, which this program does not use: it is made in "
        f"{_place_words(file)}:{line}, which is not edited; "
        f"{_what_to_do(call, kind)}; it was not timed"
    )


def _what_to_do(call: ast.Call | None, kind: str) -> str:
    if call is None:
        return "see whether the package takes arguments for it (fused=True)"
    given = [ast.unparse(one.value) for one in call.keywords if one.arg is None]
    made = ast.unparse(call.func)
    ways = [f"what the package takes as {one} may hold fused=True" for one in given]
    if made.rpartition(".")[2] != kind:
        words = f"where the package takes the class from you ({made} there), give it"
        ways.append(f"{words} functools.partial(torch.optim.{kind}, fused=True)")
    return ", or ".join(ways) or "the package passes nothing on to it, so nothing can be set"


def _call_at(file: Path, line: int, kind: str) -> ast.Call | None:
    """The call of this line that may have made the optimizer: the one by its name, else one
    that passes arguments on, else the longest that is given something."""
    try:
        tree = parse_text(read_source(file).text)
    except (OSError, KernelLspError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _holds(node, line)]
    # Of what goes on for many lines only its own statement: a call around it began before.
    first = max((one.lineno for one in calls), default=0)
    near = (
        [one for one in calls if ast.unparse(one.func).rpartition(".")[2] == kind]
        or [one for one in calls if any(given.arg is None for given in one.keywords)]
        or [one for one in calls if one.lineno == first]
    )
    return max(near, key=lambda one: len(ast.unparse(one)), default=None)


def _holds(call: ast.Call, line: int) -> bool:
    is_there = call.lineno <= line <= (call.end_lineno or call.lineno)
    return is_there and bool(call.args or call.keywords)


def _place_words(file: Path) -> str:
    """From the package on."""
    names = file.parts
    place = max((n for n, name in enumerate(names) if name in PACKAGE_FOLDERS), default=None)
    return "/".join(names[place + 1 :]) if place is not None else str(file)
