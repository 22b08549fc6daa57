"""Generated kernels compute what they say, are the same for one seed, and are tasks like any
other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_lsp.records import WorkloadOrigin
from trainer.tasks import task_suites
from trainer.tasks.generated_kernels import build
from trainer.tasks.kernel_forms import FORMS

pytestmark = pytest.mark.torch
COUNT = 12
CHECK = """
from dataclasses import replace
from trainer.tasks.generated_kernels import build, check

one = build(3, 0)
print(check(one))
print(check(replace(one, form=replace(one.form, plain=one.form.plain + " + 0.01"))))
print(check(replace(one, source=one.source.replace("tl.load(", "tl.lode("))))
"""
EACH = """
import random
from trainer.tasks.generated_kernels import TEMPLATE, Built, check
from trainer.tasks.kernel_forms import FORMS, Draw

for make in FORMS:
    for number in range(3):
        form = make(Draw(random.Random(f"{make.__name__} {number}")))
        source = TEMPLATE.format(number=0, seed=0, kernel=form.kernel, workload="", launcher=form.launcher)
        problem = check(Built(name="one", source=source, form=form))
        if problem and problem != "its result is constant":  # a chain may leave nothing of it
            print(make.__name__, number, problem)
"""


def interpreted(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Triton has to know before it is imported."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kernels") / "new"
    done = interpreted(
        "-m",
        "trainer.tasks.generated_kernels",
        "--out",
        str(out),
        "--count",
        str(COUNT),
        "--seed",
        "3",
    )
    assert done.returncode == 0 and f"{COUNT} kernels" in done.stdout, done.stderr
    return out


def test_all_of_them_are_read_as_tasks_that_a_kernel_is_the_target_of(folder: Path) -> None:
    suite = task_suites.load(folder)
    assert len(suite.tasks) == COUNT and suite.skipped == ()
    for task in suite.tasks:
        assert (task.program.kernel, task.program.entry) == ("kernel", "launch")
        assert task.workload.origin is WorkloadOrigin.PRAGMA
        assert task.workload.inputs
    assert len({task.family for task in suite.tasks}) > 3


def test_a_kernel_that_computes_something_else_or_does_not_run_is_no_task() -> None:
    done = interpreted("-c", CHECK)
    right, wrong, broken = done.stdout.splitlines()
    assert (right, wrong) == ("None", "its result is not that of PyTorch")
    assert broken.startswith("does not run: ")


def test_every_form_computes_what_it_says() -> None:
    done = interpreted("-c", EACH)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_forms_are_of_many_families() -> None:
    families = {build(1, number).task.structure.family for number in range(300)}
    assert len(families) >= 22 and len(FORMS) > 35


def test_one_seed_gives_one_suite_and_every_form_comes_up() -> None:
    first = [build(1, number) for number in range(150)]
    assert [one.source for one in first] == [build(1, number).source for number in range(150)]
    assert not {one.source for one in first} & {build(2, number).source for number in range(150)}
    assert len({tuple(one.form.inputs) for one in first}) > 6 and len(FORMS) > 10


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda text: text.replace("# kernel-lsp: workload", "# once:"),
            "its launcher has no workload",
        ),
        (lambda text: text.replace("kernel[grid]", "print"), "no single kernel"),
    ],
)
def test_a_kernel_that_cannot_be_launched_is_no_task(change: object, why: str) -> None:
    one = next(one for number in range(50) if "kernel[grid]" in (one := build(1, number)).source)
    assert callable(change)
    found = task_suites.make_task(change(one.source), one.name, Path(f"{one.name}.py"))
    assert isinstance(found, str) and why in found
