"""Every benchmark case, on a device: the generated source agrees with a float64 oracle as eager
does."""

import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "kernels.py"
spec = importlib.util.spec_from_file_location("benchmark_kernels", PROGRAM)
kernels = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = kernels
spec.loader.exec_module(kernels)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", kernels.CASES, ids=lambda case: case.name)
def test_generated_source_is_as_accurate_as_eager(case, dtype):
    eager, fused, inputs = kernels.pair(case, dtype, "cuda")
    with torch.no_grad():
        exact = kernels.oracle(eager, inputs)
        ours, theirs = kernels.error(fused(*inputs), exact), kernels.error(eager(*inputs), exact)
    # Kernels keep float32 inside, so they may only lose against eager by float32 rounding itself.
    assert ours <= 2 * theirs + 2e-6


@pytest.mark.parametrize("case", kernels.CASES, ids=lambda case: case.name)
def test_results_are_the_same_on_each_run(case):
    _, fused, inputs = kernels.pair(case, "float32", "cuda")
    with torch.no_grad():
        assert torch.equal(fused(*inputs), fused(*inputs))
