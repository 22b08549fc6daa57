"""A real Ray cluster of two nodes on this machine, of which the last test kills one."""

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

from kernel_lsp.cluster import About, Cluster, connection, station
from kernel_lsp.commands.app import app
from kernel_lsp.errors import ClusterError, JobFailed
from kernel_lsp.evaluator import EvaluationRequest
from kernel_lsp.records import Program, TargetKind, Workload, WorkloadOrigin
from tests.unit.cluster_workers import noting
from trainer import judging
from trainer.judge import Case
from trainer.records import Outcome, Status

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
ROOT = Path(__file__).resolve().parents[2]
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
RIGHT = ("torch.relu(x) + 1", "x.clamp_min(0) + 1", "1 + torch.relu(x)", "torch.where(x > 0, x, 0) + 1")
WRONG = {
    "torch.relu(x) + 2": Status.WRONG_RESULT,
    "x.nothing()": Status.RUNTIME_ERROR,
    "torch.relu(x)) + 1": Status.COMPILE_ERROR,
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head and a second node, each of one core."""
    connection.library()  # with what it sets before the first import
    from ray.cluster_utils import Cluster as Nodes

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        made = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.second = made.add_node(num_cpus=1)
        yield made
        made.shutdown()


def notes(folder: Path) -> Counter[str]:
    path = folder / "notes"
    return Counter(line.rpartition(" ")[0] for line in path.read_text().splitlines() if path.exists())


def pids(folder: Path, what: str) -> set[int]:
    lines = (folder / "notes").read_text().splitlines()
    return {int(line.rpartition(" ")[2]) for line in lines if line.startswith(what)}


async def until(holds: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.05)


async def test_jobs_are_done_on_both_nodes_and_failures_come_back_in_words(
    nodes: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = list[str]()
    async with Cluster(address=nodes.address, make=noting(tmp_path), say=said.append) as cluster:
        names = [str(number) for number in range(8)]
        found = await asyncio.gather(*(cluster.do(name, name) for name in [*names, *names]))
        assert found == [f"{name} on cpu" for name in [*names, *names]]
        assert notes(tmp_path) == {f"{what} {name}": 1 for name in names for what in ("begun", "done")}
        assert len(pids(tmp_path, "done")) == 2 and cluster.doing == {}
        for work, words in (("an error", "this cannot be"), ("a bug", "ZeroDivisionError")):
            with pytest.raises(JobFailed, match=words):
                await cluster.do(work, work)
        assert await cluster.do("deadly once", "deadly once") == "deadly once on cpu"
        assert notes(tmp_path)["begun deadly once"] == 2 and notes(tmp_path)["done deadly once"] == 1

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
    assert time.monotonic() - begun < 15
    with pytest.raises(ClusterError, match="closed"):
        await last
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive and capfd.readouterr().out == ""
    assert said[0] == "cluster: starting 2 processes on 2 nodes" and said[1].startswith("cluster: 2 x ")
    assert any("lost a process" in line for line in said)


def test_what_cannot_be_a_cluster_is_refused_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def opened(address: str) -> None:
        await connection.Connection(address).open()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for wrong, words in (
        (address, f"no node answers at {address}.*ray start --head"),
        ("nowhere", "nowhere is no address"),
        ("ray://127.0.0.1:10001", "ray start --address"),
    ):
        with pytest.raises(ClusterError, match=words):
            asyncio.run(opened(wrong))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"has no ray.*kernel-lsp\[cluster\]"):
        asyncio.run(opened("local"))


def test_what_results_depend_on_is_compared_and_what_is_unknown_is_not() -> None:
    one = About(host="a", version="1", sources="x", skills="y", python="3.11", torch="2.6", triton="3.2")
    assert station.differences(one, replace(one, host="b", device_name="H200", torch=None)) == []
    found = station.differences(one, replace(one, version="2", torch="2.7"))
    assert found == ["kernel-lsp 2 instead of 1", "torch 2.7 instead of 2.6"]
    packages = ("kernel_lsp",)
    assert station.stand(packages) == station.stand(packages) != station.stand(("tests", "kernel_lsp"))


async def test_nodes_with_other_versions_and_without_gpus_are_refused(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match=r"no node of the cluster has a GPU.*--device cpu"):
        async with Cluster(address=nodes.address, make=noting(tmp_path), device="cuda"):
            pass
    newer = replace(station.stand(("kernel_lsp", "tests")), version="99.0")
    monkeypatch.setattr(station, "stand", lambda packages: newer)
    with pytest.raises(ClusterError, match=r"versions differ: .* has kernel-lsp 0\.\d.* instead of 99\.0"):
        async with Cluster(address=nodes.address, make=noting(tmp_path)):
            pass


async def test_every_gpu_has_a_process_of_its_own_that_sees_no_other(nodes: Any, tmp_path: Path) -> None:
    """Ray is told of two GPUs; what the processes say of themselves comes back when they are refused."""
    blind = tmp_path / "python"
    blind.write_text("#!/bin/sh\nexit 3\n")
    blind.chmod(0o755)
    node = nodes.add_node(num_cpus=1, num_gpus=2)
    try:
        with pytest.raises(ClusterError) as refused:
            async with Cluster(address=nodes.address, make=noting(tmp_path), python=str(blind)):
                pass
    finally:
        nodes.remove_node(node)
    problems = refused.value.cause.split("; ")
    assert sorted(one.split(", GPU ")[1][0] for one in problems) == ["0", "1"]
    assert len({one.split(", GPU ")[0] for one in problems}) == 1  # both on the node that has them


def test_a_suite_on_the_nodes_has_a_row_for_every_task(nodes: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "tasks", tmp_path / "rows.json"
    folder.mkdir()
    plain = "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    inputs = "\ndef get_inputs():\n    return [torch.randn(4)]\n"
    for number in range(3):
        (folder / f"bare{number}.py").write_text(f'"""Family: bare."""\n{plain}')
    (folder / "plain.py").write_text(plain + inputs)
    command = [
        "bench",
        str(folder),
        "--cluster",
        nodes.address,
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
    assert rows["bare0.py"]["note"].startswith("no workload") and rows["bare0.py"]["family"] == "bare"
    note, spent = rows["plain.py"]["note"], rows["plain.py"]["phases_s"]
    assert not note.startswith("no workload") and spent["capture"] > 0
    assert told["runs"][0]["cluster"] == nodes.address and json.loads(out.read_text())["tasks"] == rows
    assert "cluster: 2 x " in ran.stderr and "4 of 4" in ran.stderr


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


def told(outcome: Outcome) -> tuple[Any, ...]:
    """All but how long it took."""
    return outcome.status, outcome.correct, outcome.speedups, outcome.complete, outcome.complaint


async def judged(pool: judging.JudgePool, cases: list[Case]) -> list[Outcome]:
    try:
        return await pool.judge(cases)
    finally:
        await pool.close()


def test_a_node_that_is_killed_midway_loses_no_evaluation_and_doubles_none(nodes: Any) -> None:
    cases = [case(body) for body in (*RIGHT, *WRONG)] + [Case(task="t"), case(RIGHT[1])]
    local = asyncio.run(judged(judging.Local(), cases))
    said, done = list[str](), list[str]()

    async def with_a_death() -> list[Outcome]:
        first = asyncio.Event()
        pool = judging.Clustered(nodes.address, "cpu", say=said.append)
        await pool._cluster.open()
        settle = pool._cluster._jobs.settle
        pool._opened = True

        def counted(job: Any, *value: Any, **more: Any) -> None:
            done.append(job.id)
            first.set()
            settle(job, *value, **more)

        pool._cluster._jobs.settle = counted  # type: ignore[method-assign]
        judging_all = asyncio.create_task(judged(pool, cases))
        await first.wait()
        assert len(pool._cluster.doing) == 2
        nodes.second.kill_raylet()
        return await judging_all

    spread = asyncio.run(with_a_death())
    assert [one.status for one in local] == [Status.PASSED] * 4 + [*WRONG.values()] + [
        Status.REFUSED,
        Status.PASSED,
    ]
    assert list(map(told, spread)) == list(map(told, local))
    assert sorted(done) == sorted({one.id for one in cases})
    assert any("lost a process" in line or "is gone" in line for line in said)
