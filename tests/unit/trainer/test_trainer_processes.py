"""Two processes with gloo learn what one does, and go on from a checkpoint with the same
numbers."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import trainer_ranks
from tests.unit.trainer.test_trainer_runs import one_thread, recipe  # noqa: F401
from trainer import config
from trainer.training import checkpoints

pytestmark = pytest.mark.torch
CHILD = Path(__file__).parents[2] / "helpers" / "trainer_ranks.py"
ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def two_processes(path: Path, *mode: str) -> Iterator[list[subprocess.Popen[str]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, str(CHILD), str(path), *mode],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def ranks(path: Path, *mode: str) -> dict[str, Any]:
    """What two processes wrote, by how they divide the work."""
    with two_processes(path, *mode) as started:
        for process in started:
            _, said = process.communicate(timeout=500)
            assert process.returncode == 0, said
    found: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return found


def test_two_processes_have_the_losses_of_one_and_go_on_with_the_same_numbers(
    tmp_path: Path,
) -> None:
    found = ranks(recipe(tmp_path, output="two"))
    expected = trainer_ranks.losses(config.load(recipe(tmp_path, output="one")))
    assert len(expected) == trainer_ranks.STEPS
    for kind, told in found.items():
        assert told["sharded"] is (kind == "fsdp")
        assert told["whole"] == pytest.approx(expected, rel=1e-4)
        assert told["again"] == told["whole"][-1:]
        last = checkpoints.find_checkpoints(tmp_path / "two" / kind / "sft")[0]
        assert last.name == f"step-{trainer_ranks.STEPS:08d}"
        one = checkpoints.weights_of(last)
        other = checkpoints.weights_of(tmp_path / "two" / kind / "whole" / last.name)
        assert one and all(torch.equal(one[name], other[name]) for name in one)


def test_a_process_that_is_lost_in_a_step_ends_the_others_and_its_step_is_done_again(
    tmp_path: Path,
) -> None:
    path = recipe(tmp_path, output="two")
    with two_processes(path, "lost") as (first, second):
        assert second.wait(timeout=300) == -signal.SIGKILL
        assert first.wait(timeout=120) not in (None, 0)  # it does not wait for ever
    assert not path.with_suffix(".json").exists()
    kept = checkpoints.find_checkpoints(tmp_path / "two" / "lost" / "sft")
    assert kept[0].name == f"step-{trainer_ranks.STEPS - 1:08d}"
    expected = trainer_ranks.losses(config.load(recipe(tmp_path, output="one")))
    again = ranks(path, "again")["again"]
    assert again == pytest.approx(expected[-1:], rel=1e-4)
