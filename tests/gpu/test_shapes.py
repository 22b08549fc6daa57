"""Kernels of every shape on a device, against float64 and eager: the cases of
tests/helpers/kernel_cases.py."""

import pytest

torch = pytest.importorskip("torch")

import codegen_child  # noqa: E402
import training_child  # noqa: E402
from kernel_cases import CASES, asked, judged  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_as_close_as_eager_s(name: str) -> None:
    case = CASES[name]
    runs = training_child if case.training else codegen_child
    judged(case, runs.run(asked(case, "cuda")))
