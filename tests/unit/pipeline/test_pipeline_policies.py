"""Which policy a job gets, and the reason where it is the rule. Nothing is started."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.agents.kernel_planner import KernelPlanner
from kernel_lsp.agents.learned import LearnedPlanner
from kernel_lsp.agents.plan import Planner
from kernel_lsp.interpreter import Probe
from kernel_lsp.models import GRAPH, KERNEL, TARGETS, PolicyStore, seal
from kernel_lsp.pipeline.opened import JobBench
from kernel_lsp.pipeline.policies import Policies
from kernel_lsp.records import GraphView
from kernel_lsp.skillbook import Skillbook
from tests.unit.models.test_models import CHECK, checkpoint


@pytest.fixture
def store(tmp_path: Path) -> PolicyStore:
    return PolicyStore(tmp_path / "data", packaged=tmp_path / "package")


def policies(store: PolicyStore, tmp_path: Path) -> Policies:
    return Policies(tmp_path / "data", store)


def test_a_switch_counts_from_the_next_request(store: PolicyStore, tmp_path: Path) -> None:
    mine = policies(store, tmp_path)
    assert mine.used("cuda") is None and mine.trouble is None
    store.install(checkpoint(tmp_path / "made"))
    assert mine.used("cuda") is None  # installing is not using
    store.use("plan-small")
    used = mine.used("cuda")
    assert used is not None and used.id == "plan-small@1"
    store.use("rule")
    assert mine.used("cuda") is None and mine.trouble is None


def test_where_it_was_not_trained_the_rule_plans(store: PolicyStore, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "made")
    seal(folder, name="plan-small", version="1", held_out=CHECK, devices=("cuda",))
    store.install(folder)
    store.use("plan-small")
    mine = policies(store, tmp_path)
    assert mine.used("cuda") is not None
    assert mine.used("cpu") is None
    assert mine.trouble == "plan-small@1 was not trained for cpu"


def test_what_is_gone_or_cannot_be_read_is_a_reason_and_no_failure(
    store: PolicyStore, tmp_path: Path
) -> None:
    store.install(checkpoint(tmp_path / "made"))
    store.use("plan-small")
    mine = policies(store, tmp_path)
    shutil.rmtree(tmp_path / "data" / "models" / "plan-small-1")
    assert mine.used("cuda") is None
    assert mine.trouble is not None and "no policy is called plan-small@1" in mine.trouble
    (tmp_path / "data" / "models" / "used.json").write_text(
        json.dumps({"schema": 99, "history": []})
    )
    assert mine.used("cuda") is None
    assert "another version" in str(mine.trouble)


def test_each_kind_of_target_has_its_own(store: PolicyStore, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "made", name="kernels", targets=(KERNEL,))
    seal(folder, name="kernels", version="1", held_out=CHECK, targets=(KERNEL,), devices=("cuda",))
    store.install(folder)
    store.use("kernels")
    mine = policies(store, tmp_path)
    assert mine.used("cuda") is None and mine.trouble is None
    used = mine.used("cuda", KERNEL)
    assert used is not None and used.id == "kernels@1" and mine.trouble is None
    assert mine.used("cpu", KERNEL) is None
    assert mine.trouble == "kernels@1 was not trained for cpu"
    assert mine.used("cpu") is None and mine.trouble is None  # it is no reason for a graph


def test_that_the_packages_own_is_for_other_devices_is_no_trouble(
    store: PolicyStore, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "package" / "kernels", name="kernels", targets=(KERNEL,))
    seal(folder, name="kernels", version="1", held_out=CHECK, targets=(KERNEL,), devices=("cuda",))
    mine = policies(store, tmp_path)
    used = mine.used("cuda", KERNEL)
    assert used is not None and used.id == "kernels@1"
    assert mine.used("cpu", KERNEL) is None and mine.trouble is None
    store.use("kernels")
    assert mine.used("cpu", KERNEL) is None and mine.trouble == "kernels@1 was not trained for cpu"


def test_one_architecture_is_no_other(store: PolicyStore, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "made", name="kernels", targets=(KERNEL,))
    seal(
        folder,
        name="kernels",
        version="1",
        held_out=CHECK,
        targets=(KERNEL,),
        devices=("cuda:sm_90",),
    )
    store.install(folder)
    store.use("kernels")
    mine = policies(store, tmp_path)
    used = mine.used("cuda", KERNEL, "sm_90")
    assert used is not None and used.id == "kernels@1"
    assert mine.used("cuda", KERNEL, "sm_80") is None
    assert mine.trouble == "kernels@1 was not trained for cuda:sm_80"
    assert (
        mine.used("cuda", KERNEL) is None and mine.trouble == "kernels@1 was not trained for cuda"
    )


def test_what_the_package_uses_by_itself(tmp_path: Path) -> None:
    """For Triton kernels on the architecture that it learned from, and for nothing else."""
    mine = Policies(tmp_path)
    used = mine.used("cuda", KERNEL, "sm_90")
    assert used is not None and used.id == "launch-small@1"
    others = (
        ("cuda", KERNEL, "sm_80"),
        ("cuda", KERNEL, None),
        ("cpu", KERNEL, None),
        ("cuda", GRAPH, "sm_90"),
    )
    assert [mine.used(*other) for other in others] == [None] * 4 and mine.trouble is None


def opened(mine: Policies, target: str, graph: GraphView | None = None) -> Any:
    """As much of an opened target as a planner is made of."""
    bench = JobBench(
        probe=Probe(python="python", capability="sm_90"),
        device="cuda",
        skills=Skillbook(skills=()),
        target=target,
        policy=mine.used("cuda", target),
    )
    engine = SimpleNamespace(**dict.fromkeys(("make", "look", "weigh", "view", "launched")))
    capture = SimpleNamespace(graph=graph, read_bytes=None, written_bytes=None)
    return SimpleNamespace(
        bench=bench, engine=engine, capture=capture, sites=(), known=SimpleNamespace(best=None)
    )


async def test_the_planner_is_of_the_kind_of_the_target(store: PolicyStore, tmp_path: Path) -> None:
    graph = GraphView(operations=())
    store.install(checkpoint(tmp_path / "kernels", name="kernels", targets=(KERNEL,)))
    store.install(checkpoint(tmp_path / "graphs", name="graphs"))
    mine = policies(store, tmp_path)

    def kinds() -> tuple[type, ...]:
        asked = ((GRAPH, graph), (GRAPH, None), (KERNEL, None))
        return tuple(type(mine.planner(opened(mine, *one), lambda progress: None)) for one in asked)

    assert kinds() == (Planner, Planner, Planner)
    store.use("kernels")
    assert kinds() == (Planner, Planner, KernelPlanner)
    store.use("graphs")
    assert kinds() == (LearnedPlanner, Planner, KernelPlanner)
    await mine.close()


async def test_a_policy_for_kernels_leaves_the_rule_s_plan_by_its_own_margin(
    store: PolicyStore, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "made")
    seal(folder, name="kernels", version="1", held_out=CHECK, targets=(KERNEL,), margin=0.25)
    store.install(folder)
    store.use("kernels")
    mine = policies(store, tmp_path)
    planner = mine.planner(opened(mine, KERNEL, None), lambda progress: None)
    assert isinstance(planner, KernelPlanner) and planner._margin == 0.25
    await mine.close()


async def test_one_child_for_each_policy_and_two_at_most(
    store: PolicyStore, tmp_path: Path
) -> None:
    for name, targets in {
        "kernels": (KERNEL,),
        "other": (KERNEL,),
        "graphs": (GRAPH,),
        "both": TARGETS,
    }.items():
        store.install(checkpoint(tmp_path / name, name=name, targets=targets))
    mine = policies(store, tmp_path)

    def serving() -> list[str]:
        """Folders of what has a child or may start one."""
        for target in TARGETS:
            mine.planner(opened(mine, target, GraphView(operations=())), lambda progress: None)
        return sorted(runtime.folder.name for runtime in mine._runtimes.values())

    store.use("kernels")
    assert serving() == ["kernels-1"]
    store.use("graphs")
    assert serving() == ["graphs-1", "kernels-1"]  # kept: another job may still ask it
    store.use("other")
    assert serving() == ["graphs-1", "other-1"]
    store.use("both")
    assert serving() == ["both-1"]
    await mine.close()
    assert not mine._runtimes
