"""The gate on a CUDA device: Triton candidates, TF32, side streams, crashes. Needs no pytest
plugin."""

import asyncio
import time
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator import EvaluationBudget, evaluate  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402
from kernel_lsp.records import EvalStatus, Evaluation  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

REFERENCE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        y = self.linear(x)
        return torch.relu(y) * y + 1

def get_inputs():
    return [torch.rand(1024, 1024)]

def get_init_inputs():
    return [1024]
"""

CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def tail(y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL) * y + 1, mask=mask)

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        {body}
        out = torch.empty_like(y)
        tail[(triton.cdiv(y.numel(), 1024),)](y, out, {count}, BLOCK=1024)
        {after}
        return out
"""


def judged(
    body: str = "y = self.linear(x)",
    count: str = "y.numel()",
    after: str = "pass",
    compile_s: float = 0.0,
    require_speed: bool = True,
) -> Evaluation:
    source = CANDIDATE.format(body=body, count=count, after=after)
    request = request_from_files(
        REFERENCE, source, has_cuda=True, inference=True, require_speed=require_speed
    )
    return asyncio.run(
        evaluate(replace(request, budget=EvaluationBudget(compile_s=compile_s, timing_s=2)))
    )


def test_a_triton_candidate_is_judged_and_timed():
    evaluation = judged(compile_s=60)
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert evaluation.device == "cuda" and evaluation.device_name == torch.cuda.get_device_name(0)
    assert set(evaluation.speedups) >= {"eager"}
    assert all(timing.num_reps >= 10 and timing.median_ms > 0 for timing in evaluation.timings)
    assert evaluation.peak_bytes["candidate"] > 0
    assert evaluation.environment["baselines"] == list(evaluation.speedups)


def test_the_launched_kernel_is_named_with_its_registers():
    evaluation = judged(require_speed=False)
    launched = next(check for check in evaluation.checks if check.name == "kernels-launched")
    assert launched.passed and launched.detail == "tail"
    (kernel,) = evaluation.kernels
    major, minor = torch.cuda.get_device_capability(0)
    assert (kernel.name, kernel.arch) == ("tail", f"sm_{major}{minor}")
    assert kernel.registers > 0 and kernel.spill_bytes == 0


def test_a_kernel_that_is_defined_and_never_launched_is_a_decoy():
    source = CANDIDATE.replace(
        "tail[(triton.cdiv(y.numel(), 1024),)](y, out, {count}, BLOCK=1024)", "pass"
    )
    source = source.format(body="y = self.linear(x)", after="out = torch.relu(y) * y + 1")
    request = request_from_files(
        REFERENCE, source, has_cuda=True, inference=True, require_speed=False
    )
    evaluation = asyncio.run(evaluate(request))
    assert evaluation.status is EvalStatus.CHEATED and "launches none" in evaluation.detail


def test_eager_with_tf32_is_timed_and_is_no_baseline():
    evaluation = judged()
    assert {timing.provider for timing in evaluation.timings} == {
        "eager",
        "eager_tf32",
        "candidate",
    }
    assert set(evaluation.speedups) == {"eager"} and evaluation.environment["baselines"] == [
        "eager"
    ]
    skipped = next(check for check in evaluation.checks if check.name == "compile-baseline")
    assert skipped.passed is None and "not asked for" in skipped.detail


def test_the_flush_writes_past_the_second_level_cache():
    from kernel_lsp.evaluator.devices.cuda import CudaDevice

    device = CudaDevice()
    device.flush()
    assert device._buffer.nbytes > 2 * torch.cuda.get_device_properties(0).L2_cache_size


def test_no_memory_of_the_device_stays_taken():
    free, _ = torch.cuda.mem_get_info()
    assert judged(compile_s=0).status is EvalStatus.PASSED
    for _ in range(50):  # the driver frees a dead process's memory a moment later
        if abs(torch.cuda.mem_get_info()[0] - free) < 2**20:
            return
        time.sleep(0.1)
    raise AssertionError(f"{free - torch.cuda.mem_get_info()[0]} bytes are still taken")


def test_tf32_and_half_precision_are_rejected():
    half = "y = (x.half() @ self.linear.weight.half().T).float() + self.linear.bias"
    evaluation = judged(body=half, require_speed=False)
    assert evaluation.status is EvalStatus.WRONG_RESULT
    switch = "torch.backends.cuda.matmul.allow_tf32 = True; y = self.linear(x)"
    assert judged(body=switch, require_speed=False).status is EvalStatus.CHEATED


def test_a_tail_that_is_not_written_is_found():
    assert judged(count="y.numel() - 5", require_speed=False).status is EvalStatus.WRONG_RESULT


def test_an_illegal_address_is_a_result_and_the_next_candidate_is_judged():
    source = CANDIDATE.replace("tl.load(y_ptr + offs", "tl.load(y_ptr + offs * 2**30")
    source = source.format(body="y = self.linear(x)", count="y.numel()", after="pass")
    broken = asyncio.run(
        evaluate(
            request_from_files(
                REFERENCE, source, has_cuda=True, inference=True, require_speed=False
            )
        )
    )
    assert broken.status is EvalStatus.RUNTIME_ERROR and "CUDA error" in broken.detail, (
        broken.detail
    )
    assert judged(require_speed=False).status is EvalStatus.PASSED


def test_work_on_a_stream_that_is_not_waited_for_earns_no_speed():
    body = "\n        ".join(
        [
            "self.stream = getattr(self, 'stream', None) or torch.cuda.Stream()",
            "with torch.cuda.stream(self.stream):",
            "    for _ in range(20): y = self.linear(x)",
        ]
    )
    evaluation = judged(body=body)
    assert evaluation.status is not EvalStatus.PASSED or evaluation.speedup.mid < 1.0


def test_a_compile_error_in_a_kernel_is_named():
    source = CANDIDATE.replace(
        "tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)", "tl.no_such_function(y)"
    )
    source = source.format(body="y = self.linear(x)", count="y.numel()", after="pass")
    request = request_from_files(
        REFERENCE, source, has_cuda=True, inference=True, require_speed=False
    )
    evaluation = asyncio.run(evaluate(request))
    assert evaluation.status is EvalStatus.COMPILE_ERROR and "no_such_function" in evaluation.detail
