"""A real Ray cluster of two nodes on this machine, of which a test kills one; what is left works
on.

Processes take most of the time: 2 s of a core for a node, 1.3 s for an actor, 2 s for each torch.
Not covered: GPUs (Ray is told of two that are not there), and nodes on other machines.
"""

import asyncio
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from kernel_lsp.cluster import About, Cluster, connection, node_worker
from kernel_lsp.commands import rows
from kernel_lsp.commands.app import app
from kernel_lsp.config import Settings
from kernel_lsp.errors import ClusterError, JobFailed
from kernel_lsp.evaluator import EvaluationRequest
from kernel_lsp.records import Program, TargetKind, Workload, WorkloadOrigin
from tests.helpers.cluster_workers import noting
from tests.helpers.ray_nodes import kill_node, raylet, start
from trainer.records import TurnOutcome, TurnStatus
from trainer.rollouts import judging
from trainer.rollouts.judge import Case

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Program(
    entry="Model",
    kind=TargetKind.MODULE,
    source="""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

def get_inputs():
    return [torch.randn(64, 64)]
""",
)
RIGHT = ("torch.relu(x) + 1", "x.clamp_min(0) + 1", "x.relu() + 1")
WRONG = {
    "torch.relu(x) + 2": TurnStatus.WRONG_RESULT,
    "x.nothing()": TurnStatus.RUNTIME_ERROR,
    "torch.relu(x)) + 1": TurnStatus.COMPILE_ERROR,
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head and a second node, which is told that it has two GPUs."""
    connection.library()  # with what it sets before the first import
    from ray.cluster_utils import Cluster as Nodes

    # A node that does not answer is dead after five looks, which Ray would take 15 s for.
    often = {"health_check_period_ms": 500}
    head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, "_system_config": often}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        made = start(lambda: Nodes(initialize_head=True, head_node_args=head))
        made.second = start(lambda: made.add_node(num_cpus=1, num_gpus=2))
        yield made
        made.shutdown()


@pytest.fixture
def head(nodes: Any) -> str:
    """The address of the head alone: the second node has died, at the latest now."""
    if raylet(nodes.second).poll() is None:
        kill_node(nodes.second)
    asyncio.run(gone(nodes))
    return str(nodes.address)


async def gone(nodes: Any) -> None:
    """Ray takes some seconds to notice that a node is dead."""
    known = connection.Connection(nodes.address)
    await known.open()
    try:
        while len(await known.nodes()) > 1:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.1)
    finally:
        await known.close()


def answering(folder: Path) -> str:
    """An interpreter that says what it has, and spares two seconds of importing torch."""
    path = folder / "python"
    facts = {"version": "3.11.0", "torch": "2.6.0", "triton": "3.2.0", "cuda": False}
    path.write_text(f"#!/bin/sh\nprintf '%s%s' \"$4\" '{json.dumps(facts)}'\n")
    path.chmod(0o755)
    return str(path)


def notes(folder: Path) -> Counter[str]:
    path = folder / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(line.rpartition(" ")[0] for line in lines)


def pids(folder: Path, what: str) -> set[int]:
    lines = (folder / "notes").read_text().splitlines()
    return {int(line.rpartition(" ")[2]) for line in lines if line.startswith(what)}


async def until(holds: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.05)


async def test_jobs_are_done_on_both_nodes_and_failures_come_back_in_words(
    nodes: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = list[str]()
    async with Cluster(
        address=nodes.address,
        make=noting(tmp_path),
        device="cpu",
        python=answering(tmp_path),
        say=said.append,
    ) as cluster:
        names = [str(number) for number in range(8)]
        found = await asyncio.gather(*(cluster.do(name, name) for name in [*names, *names]))
        assert found == [f"{name} on cpu" for name in [*names, *names]]
        assert notes(tmp_path) == {
            f"{what} {name}": 1 for name in names for what in ("begun", "done")
        }
        assert len(pids(tmp_path, "done")) == 2 and cluster.doing == {}
        for work, words in (("an error", "this cannot be"), ("a bug", "ZeroDivisionError")):
            with pytest.raises(JobFailed, match=words):
                await cluster.do(work, work)
        assert await cluster.do("deadly once", "deadly once") == "deadly once on cpu"
        assert (
            notes(tmp_path)["begun deadly once"] == 2 and notes(tmp_path)["done deadly once"] == 1
        )

        # Cancelled: the job ends where it runs, and its place is free again.
        endless = asyncio.create_task(cluster.do("endless", "endless"))
        await until(lambda: notes(tmp_path)["begun endless"])
        endless.cancel()
        await asyncio.gather(endless, return_exceptions=True)
        await until(lambda: notes(tmp_path)["cancelled endless"])
        last = asyncio.create_task(cluster.do("endless 2", "endless"))
        await until(lambda: notes(tmp_path)["begun endless"] == 2)
        workers = [psutil.Process(pid) for pid in pids(tmp_path, "begun") if psutil.pid_exists(pid)]
        begun = time.monotonic()
    assert time.monotonic() - begun < 120  # the last one sleeps for ten minutes
    with pytest.raises(ClusterError, match="closed"):
        await last
    _, alive = psutil.wait_procs(workers, timeout=120)
    assert not alive and capfd.readouterr().out == ""
    assert said[0] == "cluster: starting 2 processes on 2 nodes" and said[1].startswith(
        "cluster: 2 x "
    )
    assert any("lost a process" in line for line in said)


def test_what_cannot_be_a_cluster_is_refused_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def opened(address: str) -> None:
        await connection.Connection(address).open()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        # ours, so that nobody else listens there meanwhile
        address = f"127.0.0.1:{free.getsockname()[1]}"
        for wrong, words in (
            (address, f"no node answers at {address}.*ray start --head"),
            ("nowhere", "nowhere is no address"),
            ("ray://127.0.0.1:10001", "ray start --address"),
        ):
            with pytest.raises(ClusterError, match=words):
                asyncio.run(opened(wrong))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"has no ray.*pip install ray"):
        asyncio.run(opened("local"))


def test_what_results_depend_on_is_compared_and_what_is_unknown_is_not() -> None:
    one = About(
        host="a", version="1", sources="x", skills="y", python="3.11", torch="2.6", triton="3.2"
    )
    assert (
        node_worker.differences(one, replace(one, host="b", device_name="H200", torch=None)) == []
    )
    found = node_worker.differences(one, replace(one, version="2", torch="2.7"))
    assert found == ["kernel-lsp 2 instead of 1", "torch 2.7 instead of 2.6"]
    packages = ("kernel_lsp",)
    assert (
        node_worker.stand(packages)
        == node_worker.stand(packages)
        != node_worker.stand(("tests", "kernel_lsp"))
    )


async def test_every_gpu_has_a_process_of_its_own_that_sees_no_other(
    nodes: Any, tmp_path: Path
) -> None:
    """Ray is told of two GPUs; what the processes say of themselves comes back when they are
    refused."""
    with pytest.raises(ClusterError, match="sees no CUDA device") as refused:
        async with Cluster(
            address=nodes.address, make=noting(tmp_path), python=answering(tmp_path)
        ):
            pass
    problems = refused.value.cause.split("; ")
    assert sorted(one.split(", GPU ")[1][0] for one in problems) == ["0", "1"]
    assert len({one.split(", GPU ")[0] for one in problems}) == 1  # both on the node that has them


async def test_the_interpreter_that_is_asked_is_the_one_that_will_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may name its own in the environment, as its judge and its rows find it too."""
    monkeypatch.setenv("KERNEL_LSP_PYTHON", answering(tmp_path))
    packages = ("kernel_lsp",)
    about = await node_worker.NodeActor(noting(tmp_path), "cpu", packages, None).about(
        node_worker.stand(packages)
    )
    assert (about.torch, about.problem) == ("2.6.0", None)
    named = str(tmp_path / "absent")
    about = await node_worker.NodeActor(noting(tmp_path), "cpu", packages, named).about(
        node_worker.stand(packages)
    )
    assert about.torch is None and "KERNEL_LSP_PYTHON" in str(about.problem)
    made = rows.spread(Settings(), rows.RowOptions())("cpu")
    assert made.settings.python == answering(tmp_path) and made.settings.device == "cpu"


def case(body: str) -> Case:
    request = EvaluationRequest(
        reference=PROGRAM,
        candidate_source=PROGRAM.source.replace("torch.relu(x) + 1", body),
        candidate_entry="Model",
        workload=Workload(name="get_inputs()", origin=WorkloadOrigin.GET_INPUTS),
        require_speed=False,
        seed=7,
    )
    return Case(task="t", request=request)


def told(outcome: TurnOutcome) -> tuple[Any, ...]:
    """All but how long it took."""
    return outcome.status, outcome.correct, outcome.speedups, outcome.complete, outcome.complaint


async def on_this_machine(cases: list[Case]) -> list[TurnOutcome]:
    pool = judging.LocalJudge()
    try:
        return await pool.judge(cases)
    finally:
        await pool.close()


async def with_a_death(
    nodes: Any, cases: list[Case], python: str, said: list[str]
) -> tuple[Any, ...]:
    """Outcomes, the ids that were settled, and what had run on the node that is killed after the
    first."""
    pool, first, settled = (
        judging.Clustered(nodes.address, "cpu", say=said.append),
        asyncio.Event(),
        [],
    )
    pool._cluster.python = python  # is asked for versions alone, the gate finds the real one
    jobs = pool._cluster._jobs
    settle = jobs.settle

    def counted(job: Any, *value: Any, **more: Any) -> None:
        settled.append(job.id)
        first.set()
        settle(job, *value, **more)

    jobs.settle = counted  # type: ignore[method-assign]
    asked = asyncio.create_task(pool.judge(cases))
    try:
        await first.wait()
        assert len(pool._cluster.doing) == 2  # one on each node, and others wait
        ran = kill_node(nodes.second)
        return await asked, settled, ran
    finally:
        await pool.close()


def test_a_node_that_is_killed_midway_loses_no_evaluation_and_doubles_none(
    nodes: Any, tmp_path: Path
) -> None:
    cases = [case(body) for body in (*RIGHT, *WRONG)] + [Case(task="t"), case(RIGHT[1])]
    said = list[str]()
    spread, settled, ran = asyncio.run(with_a_death(nodes, cases, answering(tmp_path), said))
    assert sorted(settled) == sorted({one.id for one in cases})
    # The job that was under way there, or else the next that was sent there, met the death before
    # all ended.
    assert [line for line in said if "lost a process" in line or "is gone" in line], said
    _, alive = psutil.wait_procs(ran, timeout=120)
    assert not alive, "judges and workers end with their node"
    local = asyncio.run(on_this_machine(cases))
    assert [one.status for one in local] == [
        *[TurnStatus.PASSED] * len(RIGHT),
        *WRONG.values(),
        TurnStatus.REFUSED,
        TurnStatus.PASSED,
    ]
    assert list(map(told, spread)) == list(map(told, local))


def test_a_suite_on_what_is_left_has_a_row_for_every_task(head: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "tasks", tmp_path / "rows.json"
    folder.mkdir()
    plain = (
        "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return "
        "x + 1\n"
    )
    inputs = "\ndef get_inputs():\n    return [torch.randn(4)]\n"
    for number in range(3):
        (folder / f"bare{number}.py").write_text(f'"""Family: bare."""\n{plain}')
    (folder / "plain.py").write_text(plain + inputs)
    command = [
        "bench",
        str(folder),
        "--cluster",
        head,
        "--device",
        "cpu",
        "--out",
        str(out),
        "--json",
    ]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.stderr
    told = json.loads(ran.stdout)
    rows = told["tasks"]
    assert {name: row["status"] for name, row in rows.items()} == {
        f"{name}.py": "silent" for name in ("bare0", "bare1", "bare2", "plain")
    }
    assert (
        rows["bare0.py"]["note"].startswith("no workload") and rows["bare0.py"]["family"] == "bare"
    )
    note, spent = rows["plain.py"]["note"], rows["plain.py"]["phases_s"]
    assert not note.startswith("no workload") and spent["capture"] > 0
    assert told["runs"][0]["cluster"] == head and json.loads(out.read_text())["tasks"] == rows
    assert "cluster: 1 x " in ran.stderr and "4 of 4" in ran.stderr


async def test_a_cluster_without_gpus_is_none_for_cuda(head: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no node of the cluster has a GPU.*--device cpu"):
        async with Cluster(address=head, make=noting(tmp_path), device="cuda"):
            pass


async def test_nodes_with_other_versions_are_refused(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = replace(node_worker.stand(("kernel_lsp", "tests")), version="99.0")
    monkeypatch.setattr(node_worker, "stand", lambda packages: newer)
    with pytest.raises(
        ClusterError, match=r"versions differ: .* has kernel-lsp 0\.\d.* instead of 99\.0"
    ):
        async with Cluster(address=head, make=noting(tmp_path), device="cpu"):
            pass
