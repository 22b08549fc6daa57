"""One warm gate on a CUDA device, used as the server uses it: verdicts, faults between them,
evidence.

The gate is opened once for all tests, so that every one of them is also a test of what the one
before left behind."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

torch = pytest.importorskip("torch")

from kernel_lsp.confinement import Confinement, Limits  # noqa: E402
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, Gate, evidence  # noqa: E402
from kernel_lsp.evaluator.processes.pool import ZygotePool  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402
from kernel_lsp.records import EvalStatus, Evaluation, Evidence  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.asyncio(loop_scope="module"),
]

REFERENCE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1024))

    def forward(self, x):
        y = torch.relu(x * self.scale + 1) - x
        return y * y + torch.where(x > 0, x, 0.5 * x)

def get_inputs():
    return [torch.randn(4096, 1024)]

def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def fused(x_ptr, scale_ptr, out_ptr, n, columns, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    scale = tl.load(scale_ptr + offs % columns, mask=mask)
    y = tl.maximum(x * scale + 1, 0.0, propagate_nan=tl.PropagateNan.ALL) - x
    tl.store(out_ptr + offs, y * y + tl.where(x > 0, x, 0.5 * x), mask=mask)

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1024))

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 1024),)
        fused[grid](x, self.scale, out, x.numel(), x.shape[-1], BLOCK=1024)
        return out
"""
QUICK = EvaluationBudget(compile_s=0, timing_s=0.5, call_s=20)


def asked(*changes: tuple[str, str], require_speed: bool = False) -> EvaluationRequest:
    source = CANDIDATE
    for before, after in changes:
        assert before in source
        source = source.replace(before, after, 1)
    made = request_from_files(
        REFERENCE, source, device="cuda", has_cuda=True, inference=True, require_speed=require_speed
    )
    return replace(made, budget=QUICK)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate():
    async with Gate() as opened:
        yield opened


async def passes(gate: Gate) -> None:
    evaluation = await gate.evaluate(asked())
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail


async def test_a_right_and_faster_kernel_is_accepted_with_times_of_the_device(gate):
    evaluation: Evaluation = await gate.evaluate(asked(require_speed=True))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert evaluation.device == "cuda" and evaluation.device_name == torch.cuda.get_device_name(0)
    assert evaluation.faster(), evaluation.speedups  # one pass over memory instead of eight
    assert {"eager", "candidate"} <= {timing.provider for timing in evaluation.timings}
    assert all(timing.median_ms > 0 and timing.cold_cache for timing in evaluation.timings)
    assert [kernel.name for kernel in evaluation.kernels] == ["fused"]
    assert evaluation.peak_bytes["candidate"] < evaluation.peak_bytes["eager"]


@pytest.mark.parametrize(
    "change",
    [
        ("y * y +", "y * y * 1.01 +"),
        ("mask = offs < n", "mask = offs < n - 5"),
        ("x > 0, x", "x > 1, x"),
    ],
    ids=["another-factor", "tail-not-written", "another-branch"],
)
async def test_a_wrong_kernel_is_rejected(gate, change):
    evaluation = await gate.evaluate(asked(change))
    assert evaluation.status is EvalStatus.WRONG_RESULT, evaluation.detail
    assert evaluation.speedup is None


async def test_a_kernel_that_does_not_compile_says_why(gate):
    evaluation = await gate.evaluate(asked(("tl.maximum(", "tl.no_such_function(")))
    assert evaluation.status is EvalStatus.COMPILE_ERROR
    assert "no_such_function" in evaluation.detail


async def test_after_an_illegal_address_the_next_candidate_is_judged(gate):
    broken = await gate.evaluate(
        asked(("tl.load(x_ptr + offs,", "tl.load(x_ptr + offs * 1099511627776,"))
    )
    assert broken.status is EvalStatus.RUNTIME_ERROR, broken.detail
    await passes(gate)


async def test_after_all_memory_was_taken_the_next_candidate_is_judged(gate):
    taking = "out = [torch.empty(2**33, dtype=torch.uint8, device='cuda') for _ in range(64)][0]"
    broken = await gate.evaluate(asked(("out = torch.empty_like(x)", taking)))
    assert broken.status is EvalStatus.RUNTIME_ERROR, broken.detail
    assert "memory" in broken.detail
    await passes(gate)


async def test_the_evidence_names_everything_that_the_verdict_rests_on(gate, tmp_path: Path):
    kept: list[Evidence] = []
    evaluation = await gate.evaluate(asked(require_speed=True), None, kept.append)
    (found,) = kept
    assert found.evaluation == evaluation and found.seed is not None
    assert found.candidate_source == CANDIDATE and found.reference.source == REFERENCE
    assert len(found.trials) >= 8 and all(trial.passed for trial in found.trials)
    assert {"eager", "candidate"} <= {samples.provider for samples in found.samples}
    assert {"torch", "device_name", "driver_version"} <= set(evaluation.environment)
    evidence.write(tmp_path / "verdict.json", found)
    assert evidence.read(tmp_path / "verdict.json") == found


async def test_two_candidates_at_a_time_get_each_its_own_verdict(gate):
    wrong = asked(("0.5 * x", "0.75 * x"))
    right, other = await asyncio.gather(
        gate.evaluate(asked(require_speed=True)), gate.evaluate(wrong)
    )
    assert right.status is EvalStatus.PASSED, right.detail
    assert other.status is EvalStatus.WRONG_RESULT, other.detail


@pytest.mark.parametrize("imports", ["", "triton", "compiler"])
async def test_every_kind_of_child_is_forked_and_confined(imports: str, tmp_path: Path) -> None:
    """An import that opened the driver once made all children of all jobs start afresh,
    unconfined."""
    pool = ZygotePool()
    child = await pool.start(
        "kernel_lsp.evaluator.running.worker",
        "cuda",
        python=sys.executable,
        limits=Limits(),
        confinement=Confinement(scratch=tmp_path, gpu=True),
        environment={},
        imports=imports,
    )
    try:
        assert "seccomp" in child.confined and pool.unfit == {}
        await child.ask({"do": "ready"}, timeout_s=60)
    finally:
        await child.kill()
        await pool.close()


LOOKUP = """
import torch
import torch.nn.functional as F

class Model(torch.nn.Module):
    def forward(self, ids, table):
        return F.embedding(ids, table)

def get_inputs():
    return [torch.randint(4096, (512,)), torch.randn(4096, 64)]
"""


async def test_a_reference_that_loses_the_device_on_a_smaller_table_is_judged_on_its_own(
    gate: Gate,
) -> None:
    """Indices beyond a smaller table are an assertion on the device, after which the judge cannot
    go on."""
    right = LOOKUP.replace("F.embedding(ids, table)", "table.index_select(0, ids)")
    request = request_from_files(
        LOOKUP, right, device="cuda", has_cuda=True, inference=True, require_speed=False
    )
    evaluation = await gate.evaluate(replace(request, budget=QUICK))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    told = [check.detail for check in evaluation.checks if check.name == "other-inputs"]
    assert told and "a batch of" in told[0] and "assert" in told[0], told


COMPILED_ONLY = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        rows = torch.arange(x.shape[0], device=x.device)
        if torch.compiler.is_compiling():
            rows = rows + 2**40
        return x[rows] * 2

def get_inputs():
    return [torch.randn(4096, 1024)]
"""


async def test_a_compiled_reference_that_loses_the_device_is_no_baseline_and_costs_nobody_the_verdict(
    gate: Gate,
) -> None:
    right = COMPILED_ONLY.split("        rows")[0] + "        return x + x\n"
    request = request_from_files(COMPILED_ONLY, right, device="cuda", has_cuda=True, inference=True)
    evaluation = await gate.evaluate(replace(request, budget=replace(QUICK, compile_s=60)))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert "compile" not in evaluation.speedups and "eager" in evaluation.speedups
    told = [check.detail for check in evaluation.checks if check.name == "compile-baseline"]
    assert told and "no baseline" in told[0], told
