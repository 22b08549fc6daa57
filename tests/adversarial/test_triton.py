"""Triton candidates without a GPU: interpreted for correctness, compiled ahead of time, never
timed."""

import re
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationRequest, Gate, verify
from kernel_lsp.records import EvalStatus, Evaluation

pytestmark = [
    pytest.mark.torch,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux"),
]
pytest.importorskip("triton")

REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.relu(x * y) + 1

def get_inputs():
    return [torch.rand(30, 67), torch.rand(30, 67)]
"""
CANDIDATE = """
import torch
import triton
import triton.language as tl


@triton.jit
def fused(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, tl.maximum(x * y, 0.0, propagate_nan=tl.PropagateNan.ALL) + 1.0, mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        fused[(triton.cdiv(n, 512),)](x, y, out, n, BLOCK=512, num_warps=2)
        return out
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate() -> AsyncIterator[Gate]:
    """Torch is imported once for all of these tests; what a gate leaves behind is tested in
    test_gate."""
    async with Gate() as made:
        yield made


def in_inference(reference: str, candidate: str, device: str = "auto") -> EvaluationRequest:
    """Of kernels without a backward."""
    return verify.request_from_files(reference, candidate, device=device, inference=True)


async def judged(gate: Gate, source: str) -> Evaluation:
    return await gate.evaluate(in_inference(REFERENCE, source))


async def test_a_right_kernel_passes_is_compiled_for_two_gpus_and_earns_no_claim_of_speed(
    gate: Gate,
) -> None:
    evaluation = await judged(gate, CANDIDATE)
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert (
        evaluation.device == "interpreter" and not evaluation.timings and evaluation.speedup is None
    )
    assert [(kernel.name, kernel.arch) for kernel in evaluation.kernels] == [
        ("fused", "sm_80"),
        ("fused", "sm_90"),
    ]
    assert all(kernel.registers and kernel.spill_bytes == 0 for kernel in evaluation.kernels)


@pytest.mark.parametrize(
    "right, wrong, status",
    [
        ("mask = offs < n", "mask = offs < n - 1", EvalStatus.WRONG_RESULT),
        (
            "tl.maximum(x * y, 0.0, propagate_nan=tl.PropagateNan.ALL)",
            "x * y",
            EvalStatus.WRONG_RESULT,
        ),
        ("BLOCK=512,", "BLOCK=500,", EvalStatus.RUNTIME_ERROR),
        ("num_warps=2", "num_warps=3", EvalStatus.COMPILE_ERROR),
        (
            "tl.maximum(x * y, 0.0, propagate_nan=tl.PropagateNan.ALL)",
            "tl.no_such_function(x)",
            EvalStatus.RUNTIME_ERROR,
        ),
    ],
    ids=["tail", "operation", "block", "warps", "missing"],
)
async def test_a_wrong_kernel_is_named(
    gate: Gate, right: str, wrong: str, status: EvalStatus
) -> None:
    evaluation = await judged(gate, CANDIDATE.replace(right, wrong))
    assert evaluation.status is status, (evaluation.status, evaluation.detail)
    assert evaluation.detail


async def test_a_kernel_that_is_defined_and_never_launched_is_a_decoy(gate: Gate) -> None:
    decoy = CANDIDATE.replace(
        "fused[(triton.cdiv(n, 512),)](x, y, out, n, BLOCK=512, num_warps=2)", ""
    )
    evaluation = await judged(gate, decoy.replace("return out", "return torch.relu(x * y) + 1"))
    assert evaluation.status is EvalStatus.CHEATED and "launches none" in evaluation.detail


async def test_triton_on_a_cpu_is_not_judged_and_says_what_to_do(gate: Gate) -> None:
    request = replace(in_inference(REFERENCE, CANDIDATE), device="cpu")
    evaluation = await gate.evaluate(request)
    assert evaluation.status is EvalStatus.NOT_RUN and "interpreter" in evaluation.detail


async def test_a_reference_with_triton_is_interpreted_as_well(gate: Gate) -> None:
    reference = (
        CANDIDATE.replace("ModelNew", "Model") + REFERENCE[REFERENCE.index("def get_inputs") :]
    )
    plain = REFERENCE.replace("class Model", "class ModelNew")
    evaluation = await gate.evaluate(in_inference(reference, plain))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert evaluation.device == "interpreter" and evaluation.speedup is None
    wrong = plain.replace("+ 1", "+ 2")
    assert (await gate.evaluate(in_inference(reference, wrong))).status is EvalStatus.WRONG_RESULT


async def test_of_an_autotuned_kernel_the_first_configuration_is_judged_and_named(
    gate: Gate,
) -> None:
    tuned = CANDIDATE.replace(
        "@triton.jit",
        "@triton.autotune([triton.Config({'BLOCK': b}) for b in (4096, 256, 512)], ['n'],"
        " prune_configs_by={'early_config_prune': lambda configs, *a, **k: "
        "configs[1:]})\n@triton.jit",
    ).replace("(triton.cdiv(n, 512),)", "lambda meta: (triton.cdiv(n, meta['BLOCK']),)")
    evaluation = await judged(gate, tuned.replace(", BLOCK=512, num_warps=2", ""))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    (note,) = (check for check in evaluation.checks if check.name == "autotune")
    assert note.passed is None and "first of 3 configurations (BLOCK: 256" in note.detail


OUT_OF_BOUNDS = """
import torch
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, n, step, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs.to(tl.int64) * step, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


class Model(torch.nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape)
        step = 1 if x.is_contiguous() else 2**40
        double[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), step, BLOCK=64)
        return out
"""
DOUBLED = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""
GIVEN = "\n\ndef get_inputs():\n    return [torch.rand(30, 7)]\n"


async def test_a_reference_that_crashes_in_another_layout_is_judged_by_in_those_that_it_bears(
    gate: Gate,
) -> None:
    right = await gate.evaluate(in_inference(OUT_OF_BOUNDS + GIVEN, DOUBLED))
    assert right.status is EvalStatus.PASSED, right.detail
    told = [check.detail for check in right.checks if check.name == "other-inputs"]
    assert (
        len(told) == 2
        and "SIGSEGV on transposed inputs" in told[0]
        and "outside its tensors" in told[0]
    )
    wrong = await gate.evaluate(in_inference(OUT_OF_BOUNDS + GIVEN, DOUBLED.replace("2", "3")))
    assert wrong.status is EvalStatus.WRONG_RESULT


async def test_a_kernel_that_crashes_is_rejected_and_the_next_candidate_is_judged(
    gate: Gate,
) -> None:
    crashed = await gate.evaluate(in_inference(DOUBLED + GIVEN, OUT_OF_BOUNDS))
    assert crashed.status is EvalStatus.RUNTIME_ERROR
    assert re.search(
        r"(transposed|sliced) inputs.*: the candidate's process died.*outside its", crashed.detail
    )
    evaluation = await gate.evaluate(in_inference(DOUBLED + GIVEN, DOUBLED, device="interpreter"))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail


async def test_a_reference_that_crashes_on_its_own_inputs_is_refused_with_its_reason(
    gate: Gate,
) -> None:
    crashing = OUT_OF_BOUNDS.replace("1 if x.is_contiguous() else ", "")
    with pytest.raises(
        EvaluationError, match=r"crashed by SIGSEGV \(inputs: its own.* mask its loads"
    ):
        await gate.evaluate(in_inference(crashing + GIVEN, DOUBLED))


async def test_what_the_interpreter_cannot_run_is_neither_right_nor_wrong(gate: Gate) -> None:
    assembly = "tl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', [x], tl.float32, True, 1)"
    source = CANDIDATE.replace("x * y, 0.0", f"{assembly} * y, 0.0")
    candidate = await judged(gate, source)
    assert candidate.status is EvalStatus.NOT_RUN and "cannot run inline_asm" in candidate.detail
    reference = source.replace("ModelNew", "Model") + REFERENCE[REFERENCE.index("def get_inputs") :]
    with pytest.raises(
        EvaluationError, match=r"cannot run inline_asm .judge it where there is a GPU"
    ):
        await gate.evaluate(in_inference(reference, REFERENCE))
