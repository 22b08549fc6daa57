"""Runs that are killed with SIGKILL at any point: `python trainer_child.py KIND WHOLE KILLED
DELAYS`.

Imports once and forks each run: WHOLE never stops; KILLED is killed the given seconds after each
of its first said steps, then started again until it ends. A child, because a test's process must
not fork threads."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from trainer import config, rl, sft

torch.set_num_threads(1)
torch.set_num_interop_threads(1)


def run(kind: str, path: Path) -> int:
    recipe = config.load(path)
    if kind == "rl":
        assert recipe.rl is not None
        return rl.train(recipe, recipe.rl)
    assert recipe.sft is not None
    return sft.train(recipe, recipe.sft)


def started(kind: str, path: Path, said: int) -> int:
    """A fork whose output goes to ``said``."""
    child = os.fork()
    if child == 0:
        os.dup2(said, 1)
        code = 1
        try:
            code = run(kind, path)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return child


def ended(kind: str, path: Path) -> None:
    child = started(kind, path, 2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"exit code of {path}: {status}"


def killed(kind: str, path: Path, delay: float) -> None:
    """After its first step was said and then some."""
    reader, writer = os.pipe()
    child = started(kind, path, writer)
    os.close(writer)
    with os.fdopen(reader) as lines:
        for line in lines:
            if line.startswith("step"):
                break
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main() -> None:
    kind, whole, other = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    ended(kind, whole)
    for delay in sys.argv[4:]:
        killed(kind, other, float(delay))
    ended(kind, other)


main()
