"""Generated tasks run, are the same for one seed, depend on their inputs, and repeat nothing."""

import json
import warnings
from pathlib import Path

import pytest

from trainer.records import Tally
from trainer.tasks import generated, task_suites
from trainer.tasks.generated import build, check, generate, main, on_meta, with_values
from trainer.tasks.likeness import Likeness, mark

pytestmark = pytest.mark.torch

PROLOG = (
    "import torch\nimport torch.nn as nn\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
)


def some(count: int, seed: int, **options: object) -> list[generated.GeneratedTask]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(generate(count, seed, **options))  # type: ignore[arg-type]


def test_thirty_tasks_are_of_many_families_and_all_are_read_as_tasks(tmp_path: Path) -> None:
    tally = Tally()
    made = some(30, 5, tally=tally)
    assert len(made) == 30 == tally.kept and tally.read == 30 + sum(s.count for s in tally.skipped)
    assert len({task.structure.family for task in made}) >= 18
    assert len({task.source.split("def get_inputs")[0].split("class")[1] for task in made}) == 30
    generated.write(made, tmp_path, {"seed": 5})
    suite = task_suites.load(tmp_path)
    assert len(suite.tasks) == 30 and suite.skipped == ()
    assert {t.name: t.family for t in suite.tasks} == {t.name: t.structure.family for t in made}


def test_one_seed_gives_one_suite_and_another_seed_another() -> None:
    first = [build(1, number) for number in range(40)]
    assert first == [build(1, number) for number in range(40)]
    assert not set(first) & {build(2, number) for number in range(40)}


def test_sizes_for_a_cpu_are_smaller() -> None:
    def numbers(source: str) -> int:
        inputs = source.split("def get_inputs")[1]
        return sum(
            int(word)
            for word in inputs.replace("(", " ").replace(",", " ").split()
            if word.isdigit()
        )

    assert sum(numbers(build(1, n, large=False)) for n in range(30)) * 3 < sum(
        numbers(build(1, n)) for n in range(30)
    )


@pytest.mark.parametrize(
    "line, problem",
    [
        ("        return torch.relu(x) * 0", "hardly depends"),
        ("        return torch.log(-torch.abs(x) - 1)", "not finite"),
        ("        return x @ x", "does not run: RuntimeError"),
        ("        return torch.sum(x)", None),
    ],
)
def test_a_task_that_teaches_nothing_is_refused(line: str, problem: str | None) -> None:
    found = with_values(
        f"{PROLOG}{line}\ndef get_inputs(): return [torch.randn(5, 4)]\ndef get_init_inputs(): "
        f"return []"
    )
    assert found is None if problem is None else problem in str(found)


def test_a_task_that_would_fill_the_memory_is_refused_without_using_any() -> None:
    tail = (
        "\ndef get_inputs(): return [torch.randn(1 << 16, 1 << 10)]\ndef get_init_inputs(): "
        "return []"
    )
    assert on_meta(f"{PROLOG}        return x @ x.T{tail}") == "needs too much memory"
    assert on_meta(f"{PROLOG}        return x * 2{tail}") is None


def test_a_twin_with_other_operators_is_refused() -> None:
    assert check(build(1, 3), build(1, 9, tiny=True)) == "its twin has other operators"


def test_what_a_benchmark_has_is_not_generated() -> None:
    held = some(12, 6)
    tally = Tally()
    marks = [found for task in held if (found := mark(task.source))]
    again = some(12, 6, without=Likeness(marks), tally=tally)
    assert not {task.structure.ops for task in held} & {task.structure.ops for task in again}
    assert sum(s.count for s in tally.skipped if "benchmark" in s.reason) >= 12


def test_at_most_so_many_tasks_have_the_same_operators() -> None:
    alike = [task.structure.ops for task in some(25, 7, most_alike=1)]
    assert len(alike) == len(set(alike))


def test_the_command_writes_a_suite_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "suite"
    arguments = ["--out", str(out), "--count", "5", "--seed", "1", "--sizes", "cpu", "--json"]
    assert main(arguments) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["tasks"] == 5 and len(list(out.glob("*.py"))) == 5
    assert json.loads((out / task_suites.MANIFEST).read_text())["seed"] == 1
    assert main(arguments) == 2 and "is not empty" in capsys.readouterr().err
    assert (
        main(
            [*arguments[:1], str(tmp_path / "x"), *arguments[2:], "--without", str(tmp_path / "no")]
        )
        == 2
    )


def test_fewer_than_wanted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        generated, "build", lambda *a, **k: "class Model: pass\ndef get_inputs(): pass"
    )
    tally = Tally()
    assert some(3, 1, tally=tally) == [] and tally.kept == 0
    assert tally.count("nothing is computed") == 3 * generated.TRIES
