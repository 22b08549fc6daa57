"""The cases of tests/gpu/test_shapes.py in Triton's interpreter, so that a device is asked what is
right."""

import pytest
from kernel_cases import CASES, asked, judged

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.training])
def test_results_are_as_close_as_eager_s(interpreter, name) -> None:
    case = CASES[name]
    judged(case, interpreter.ask(**asked(case, "cpu", case.interpreted)))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.training])
def test_gradients_are_as_close_as_eager_s(trainer, name) -> None:
    case = CASES[name]
    judged(case, trainer.ask(**asked(case, "cpu", case.interpreted)))


@pytest.mark.parametrize("name", CASES)
def test_what_a_device_runs_is_the_same_kernel(name) -> None:
    """Written for CUDA without any: of the shape that the case is about, behind a guard for
    CUDA."""
    assert ".is_cuda" in asked(CASES[name], "cuda")["after"]
