"""The task suite: files are what the tables say, and every program runs (on fake tensors, at full
size)."""

from pathlib import Path

import pytest

from benchmarks.suite.__main__ import GROUPS, TASKS, files
from kernel_lsp import analysis, workloads
from kernel_lsp.records import Snapshot, WorkloadOrigin

WRITTEN = {str(path.relative_to(TASKS)): text for path, text in files().items()}


def test_the_files_are_what_the_tables_say() -> None:
    found = {str(path.relative_to(TASKS)): path.read_text() for path in TASKS.rglob("*.py")}
    assert found == WRITTEN, "run `python -m benchmarks.suite`"


def test_there_are_enough_tasks_and_no_two_are_the_same_program() -> None:
    assert all(
        len(GROUPS[group]) >= low
        for group, low in (("operators", 100), ("chains", 100), ("models", 40))
    )
    bodies = [text.split('"""', 2)[2] for text in WRITTEN.values()]
    assert len(bodies) == len(set(bodies)) >= 200


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_analysis_finds_the_target_and_its_workload(name: str) -> None:
    snapshot = Snapshot(uri=(TASKS / name).as_uri(), text=WRITTEN[name])
    target = analysis.find_target(analysis.analyze(snapshot), "Model")
    assert target is not None
    known, problems = workloads.workloads_for(snapshot, target, None)
    assert [w.origin for w in known] == [WorkloadOrigin.GET_INPUTS] and not problems


@pytest.mark.torch
@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_program_runs_on_its_own_inputs(group: str) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    for name in sorted(n for n in WRITTEN if Path(n).parent.name == group):
        space: dict[str, object] = {}
        with FakeTensorMode(), torch.no_grad():
            exec(compile(WRITTEN[name], name, "exec"), space)
            model = space["Model"](*space["get_init_inputs"]())  # type: ignore[operator]
            out = model(*space["get_inputs"]())  # type: ignore[operator]
        first = out[0] if isinstance(out, tuple) else out
        assert isinstance(first, torch.Tensor) and first.numel() > 0, name
