"""The look at many training tasks: what counts as ours, silence, the order of tasks."""

from pathlib import Path

import pytest

from benchmarks import training_times
from benchmarks.suite import training
from benchmarks.suite.task import source


def _row(**times: float) -> dict[str, object]:
    return {"device_ms": times, "ms": times}


def test_ours_is_compared_with_the_fastest_of_the_others() -> None:
    row = _row(eager=4.0, compile=2.0, **{"ours 0": 1.6, "ours 1": 1.0, "moving 4k": 0.1})
    assert training_times.best(row, "device_ms") == (2.0, 1.0)
    assert training_times.best(_row(eager=4.0), "device_ms") is None
    assert "2.00x" in training_times.describe("chains/000_gate_pair_8_bfloat16.py", row)


def test_silence_and_what_is_slower_count_as_one_and_failures_not_at_all() -> None:
    rows = {
        "operators/000_copy_stack_8_float16.py": _row(eager=1.0, **{"ours 0": 0.5}),
        "operators/001_copy_stack_9_float16.py": _row(eager=1.0, **{"ours 0": 2.0}),
        "operators/002_copy_stack_7_float16.py": {"failed": "out of memory"},
    }
    lines = list(training_times.summary(rows))  # type: ignore[arg-type]
    assert len(lines) == 2 and all("2 tasks" in line and "mean 1.414" in line for line in lines)


def test_chains_and_operators_take_turns() -> None:
    names = [f"{group}/{n:03}_a.py" for group in ("chains", "operators") for n in range(30)]
    first = sorted(map(Path, names), key=training_times.order)[:21]
    assert sum(path.parent.name == "chains" for path in first) in (6, 7)


@pytest.mark.torch
def test_one_task_is_prepared_and_timed_on_a_cpu(tmp_path) -> None:
    task = next(t for t in training.operators() if "squared_difference" in t.name)
    small = source(task)
    shape = ", ".join(task.name.split("_")[-2].split("x"))
    path = tmp_path / "operators" / "000_pointwise_squared_8_float32.py"
    path.parent.mkdir()
    path.write_text(small.replace(shape, "2, 3, 5, 7"))
    ready = training_times.prepared(path, tmp_path, "cpu", ())
    assert "plan" not in ready.row["notes"]
    row = training_times.measured(ready, "cpu", roof=False)
    assert row["ms"]["eager"] > 0.0
