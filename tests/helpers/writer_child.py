"""Reinforcement that is killed with SIGKILL: `python writer_child.py WHOLE KILLED DELAY…`.

WHOLE is run to its end; KILLED is killed the given seconds after each first step that it says, then
run to its end. Imports once and forks each run, because a test's process must not fork threads."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from writer_helpers import PLAN, CountingJudge, write_run

from trainer.writer import reinforcing

torch.set_num_threads(1)
torch.set_num_interop_threads(1)
STEPS = replace(PLAN, steps=6, turns=2)


def started(folder: Path, output: int) -> int:
    """A fork whose output goes to ``output``."""
    child = os.fork()
    if child == 0:
        os.dup2(output, 1)
        code = 1
        try:
            asyncio.run(reinforcing.run(folder, STEPS, "cpu", CountingJudge(folder)))
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return child


def ended(folder: Path) -> None:
    _, status = os.waitpid(started(folder, 2), 0)
    assert os.waitstatus_to_exitcode(status) == 0


def killed(folder: Path, delay: float) -> None:
    reader, writer = os.pipe()
    child = started(folder, writer)
    os.close(writer)
    with os.fdopen(reader) as lines:
        next(line for line in lines if line.startswith("step"))
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main() -> None:
    whole, other = map(Path, sys.argv[1:3])
    for folder in (whole, other):
        write_run(folder)
    ended(whole)
    for delay in sys.argv[3:]:
        killed(other, float(delay))
    ended(other)


main()
