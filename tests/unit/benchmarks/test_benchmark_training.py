"""The suite of training in half precision: shares by weight, a fair order, programs that run."""

from collections import Counter

import pytest

from benchmarks.suite import training
from benchmarks.suite.__main__ import table_files, training_files, write
from benchmarks.suite.task import SuiteTask, source
from kernel_lsp import analysis, workloads
from kernel_lsp.records import Snapshot, WorkloadOrigin

OPERATORS, CHAINS = training.operators(), training.chains()
HALF = ("bfloat16", "float16", "autocast")


def _half(tasks: list[SuiteTask]) -> float:
    return sum(task.name.endswith(HALF) for task in tasks) / len(tasks)


def test_families_have_their_share_of_the_bytes_and_products_are_few() -> None:
    assert (len(OPERATORS), len(CHAINS)) == (300, 120)
    counts = Counter(task.family for task in OPERATORS)
    assert counts["product"] <= 0.15 * len(OPERATORS)
    assert counts["pointwise"] > counts["copy"] > counts["softmax"] > counts["batch_norm"]
    assert min(counts.values()) >= training.MIN
    assert _half(OPERATORS) >= 0.7 and _half(CHAINS) == 1.0
    assert len(set(Counter(task.family for task in CHAINS).values())) == 1


def test_the_beginning_of_a_group_is_a_fair_sample() -> None:
    for part in (OPERATORS[:60], OPERATORS[:100]):
        counts = Counter(task.family for task in part)
        assert set(counts) == set(training.WEIGHTS)
        assert counts["product"] <= 0.2 * len(part)
        assert 0.55 <= _half(part) <= 0.95


def test_a_seed_draws_the_same_tasks_again_and_another_seed_others() -> None:
    assert training.operators(1) == training.operators(1) != OPERATORS
    bodies = [text.split('"""', 2)[2] for text in training_files().values()]
    assert len(bodies) == len(set(bodies)) == 420


def test_files_go_into_an_empty_folder_only(tmp_path) -> None:
    write(tmp_path / "new", training_files())
    assert len(list((tmp_path / "new").rglob("*.py"))) == 420
    with pytest.raises(SystemExit, match="not empty"):
        write(tmp_path / "new", training_files())


def _one_of_each_form() -> dict[str, SuiteTask]:
    found: dict[str, SuiteTask] = {}
    for task in (*CHAINS, *OPERATORS):
        found.setdefault("_".join(task.name.split("_")[1:-2]), task)
    return found


def test_analysis_finds_target_and_inputs_of_each_form() -> None:
    for name, task in _one_of_each_form().items():
        snapshot = Snapshot(uri=f"file:///{task.name}.py", text=source(task))
        target = analysis.find_target(analysis.analyze(snapshot), "Model")
        assert target is not None, name
        known, problems = workloads.workloads_for(snapshot, target, None)
        assert [w.origin for w in known] == [WorkloadOrigin.GET_INPUTS] and not problems


@pytest.mark.torch
def test_each_form_runs_and_hands_gradients_back() -> None:
    import torch

    plain = ("argmax", "argmin_middle")
    for name, task in _one_of_each_form().items():
        space: dict[str, object] = {}
        text = source(task).replace('autocast("cuda"', 'autocast("cpu"')
        with torch.device("meta"):
            exec(compile(text, name, "exec"), space)
            model = space["Model"](*space["get_init_inputs"]())  # type: ignore[operator]
            out = model(*space["get_inputs"]())  # type: ignore[operator]
            outputs = out if isinstance(out, tuple) else (out,)
            assert outputs[0].requires_grad != name.endswith(plain), name
            if outputs[0].requires_grad:
                torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])


@pytest.mark.torch
def test_streaming_tasks_have_the_size_that_they_name_and_run() -> None:
    import torch

    for name, text in table_files("streaming").items():
        space: dict[str, object] = {}
        with torch.device("meta"):
            exec(compile(text, name, "exec"), space)
            model = space["Model"](*space["get_init_inputs"]())  # type: ignore[operator]
            given = space["get_inputs"]()  # type: ignore[operator]
            model(*given)
        size = given[0].numel() * given[0].element_size() / 2**20
        assert abs(size / int(name.split("_")[-2].removesuffix("MB")) - 1) < 0.02, name
        assert given[0].requires_grad == name.startswith("trained"), name
