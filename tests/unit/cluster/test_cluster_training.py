"""A run of reinforcement learning on a real Ray cluster of three nodes on this machine, of which
two are killed one after the other."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from kernel_lsp.cluster import connection
from tests.helpers.ray_nodes import kill_node, raylet, start
from tests.unit.trainer.test_trainer_runs import losses_of, recipe
from trainer.training import checkpoints

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]
ROOT = Path(__file__).resolve().parents[3]
STEPS = 4
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One that does no work itself."""
    connection.library()  # with what it sets before the first import
    from ray.cluster_utils import Cluster as Nodes

    often = {"health_check_period_ms": 500}
    idle = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "_system_config": often}
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = start(lambda: Nodes(initialize_head=True, head_node_args=idle))
    yield made
    made.shutdown()


def run_of(path: Path, module: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *(["rl"] if "cluster" in module else []), str(path)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, cwd=path.parent, stdout=subprocess.PIPE, text=True
    )


def until_step(folder: Path, step: int) -> None:
    end = time.monotonic() + 240
    while max((number for number, _ in losses_of(folder)), default=0) < step:
        assert time.monotonic() < end, "it never came so far"
        time.sleep(0.02)


def working(nodes: list[Any]) -> Any:
    """The node on which a trainer runs; waits for it where none does yet."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for node in nodes:
            if any("trainer.rl" in line for line in commands_below(raylet(node).pid)):
                return node
        time.sleep(0.02)
    raise AssertionError("no node trains")


def commands_below(pid: int) -> list[str]:
    found = []
    for one in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            found.append(" ".join(one.cmdline()))
    return found


def test_two_nodes_are_killed_one_after_the_other_and_the_rows_are_those_of_an_undisturbed_run(
    head: Any, tmp_path: Path
) -> None:
    whole = run_of(recipe(tmp_path, STEPS, "whole"), "trainer.rl")
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    path = recipe(tmp_path, STEPS, "killed")
    path.write_text(path.read_text() + f'[cluster]\naddress = "{head.address}"\ngpus = 0\n')
    nodes = [head.add_node(num_cpus=1), head.add_node(num_cpus=1)]
    run, folder = run_of(path, "trainer.cluster_run"), tmp_path / "killed" / "killed" / "rl"
    try:
        for step in (1, 2):
            until_step(folder, step)
            lost = working(nodes)
            nodes.remove(lost)
            kill_node(lost)
            if not nodes[1:]:
                nodes.append(head.add_node(num_cpus=1))
        said, _ = run.communicate(timeout=300)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 0 and said.count("goes on from the newest checkpoint") == 2, said
    rows = losses_of(folder)
    assert [step for step, _ in rows] == list(range(1, STEPS + 1))
    assert rows == losses_of(tmp_path / "whole" / "whole" / "rl")
    ends = [
        checkpoints.weights_of(checkpoints.find_checkpoints(place)[0])
        for place in (folder, tmp_path / "whole" / "whole" / "rl")
    ]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


def test_a_process_on_each_of_two_nodes_learns_what_one_alone_does(
    head: Any, tmp_path: Path
) -> None:
    alone = run_of(recipe(tmp_path, 2, "alone"), "trainer.rl")
    path = recipe(tmp_path, 2, "both")
    placed = f'[cluster]\naddress = "{head.address}"\nnodes = 2\ngpus = 0\n'
    path.write_text(path.read_text() + placed)
    for _ in range(2):
        head.add_node(num_cpus=1)
    both = run_of(path, "trainer.cluster_run")
    for run in (alone, both):
        said, _ = run.communicate(timeout=300)
        assert run.returncode == 0, said
    (one, two) = (losses_of(tmp_path / name / name / "rl") for name in ("alone", "both"))
    assert [step for step, _ in two] == [1, 2]
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], rel=1e-4)
