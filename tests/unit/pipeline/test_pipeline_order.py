"""Which candidates are worth judging on this device, and the sentence that says why nothing is
offered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.agents.plan import RankedPlan
from kernel_lsp.errors import RewriteError
from kernel_lsp.pipeline import order, silence
from kernel_lsp.pipeline.prepare import prepare
from kernel_lsp.presenter import cards
from kernel_lsp.records import (
    ArgSpec,
    Candidate,
    Check,
    EvalStatus,
    Evaluation,
    Interval,
    Job,
    Outcome,
    Proof,
    Proposal,
    Site,
    Step,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite.client import Capture


def capture(num_elements: int, *, plain: bool = False, holds: bool = True) -> Capture:
    proof = Proof(claim="x is positive", holds=holds, because="x may be anything")
    site = Site(
        skill="fused-pointwise", site="n", summary="fuse", proofs=(proof,), plain=plain,
        parameters={"BLOCK": [256, 512]},
    )  # fmt: skip
    spec = ArgSpec(name="x", dtype="float32", shape=(num_elements,))
    return Capture(words=(), sites=(site,), inputs=(spec,))


def ranked_plan(name: str, *, triton: bool) -> RankedPlan:
    made = Candidate(id=name, edit=None, program="", entry="M", uses_triton=triton)
    return RankedPlan(candidate=made, sites=(), steps=())


async def planned(*ranked_plans: RankedPlan) -> AsyncIterator[RankedPlan]:
    for one in ranked_plans:
        yield one


KERNEL, OTHER, PLAIN = (
    ranked_plan("k", triton=True),
    ranked_plan("o", triton=True),
    ranked_plan("p", triton=False),
)


@pytest.mark.parametrize(
    ("device", "num_elements", "budget", "expected"),
    [
        ("cuda", 2**30, 8, ["k", "o", "p"]),
        ("cuda", 2**30, 1, ["k"]),
        ("cpu", 1024, 8, ["p", "k"]),  # plain first, one kernel at most
        ("cpu", 1024, 1, ["k"]),
        ("cpu", silence.MAX_INTERPRETED + 1, 8, ["p"]),
    ],
)
async def test_a_cpu_judges_plain_rewrites_first_and_small_kernels_only(
    device: str, num_elements: int, budget: int, expected: list[str]
) -> None:
    short = order._shortlist(
        planned(KERNEL, OTHER, PLAIN), device, capture(num_elements), budget=budget
    )
    assert [one.candidate.id async for one in short] == expected


def opened(captured: Capture, device: str) -> Any:
    """What the sentence is made of, and an engine that refuses every step."""

    async def make(steps: Sequence[Step]) -> Candidate:
        raise RewriteError(f"{steps[0].parameters} would not compile")

    return SimpleNamespace(
        sites=captured.sites,
        capture=captured,
        bench=SimpleNamespace(device=device),
        engine=SimpleNamespace(make=make),
    )


@pytest.mark.parametrize(
    ("captured", "device", "expected"),
    [
        (Capture(words=(), sites=(), inputs=()), "cpu", "no skill applies to this program"),
        (capture(2**21), "cpu", "too large to check it in Triton's interpreter"),
        (
            capture(2**21),
            "cuda",
            "fused-pointwise applies, but could not be written: {'BLOCK': 256} would",
        ),
        (
            capture(8, plain=True, holds=False),
            "cpu",
            "nothing could be proved safe to rewrite: x is positive (x may be anything)",
        ),
    ],
)
async def test_silence_has_a_reason(captured: Capture, device: str, expected: str) -> None:
    assert expected in (await silence.note(opened(captured, device), ()) or "")


@pytest.mark.parametrize(
    ("device", "checks", "expected"),
    [
        (
            "cuda",
            (Check(name="degenerate", passed=False, detail="the output is always zero"),),
            "a rewrite is right, but the program computes a constant, or nothing: the output is "
            "always zero",
        ),
        (
            "cuda",
            (Check(name="degenerate", passed=True),),
            "a rewrite is right, but it was not timed",
        ),
        ("cpu", (), "a rewrite is right, but its speed is unknown without a GPU (judged by cpu)"),
    ],
)
async def test_a_right_rewrite_that_was_not_timed_has_a_reason(
    device: str, checks: tuple[Check, ...], expected: str
) -> None:
    right = right_proposal(Evaluation(status=EvalStatus.PASSED, device=device, checks=checks))
    assert await silence.note(opened(capture(8), device), (right,)) == expected


def right_proposal(evaluation: Evaluation) -> Proposal:
    return Proposal(
        id="p", fingerprint="f", fingerprint_after="g", qualname="M",
        created="2026-11-21T00:00:00Z",
        workload=Workload(name="w", origin=WorkloadOrigin.GET_INPUTS), candidate=KERNEL.candidate,
        evaluation=evaluation, verdict=Verdict.CORRECT,
    )  # fmt: skip


async def test_a_gain_over_eager_that_torch_compile_exceeds_is_said_with_both() -> None:
    speedups = {"eager": Interval(low=1.61, mid=1.62, high=1.63, confidence=0.99)}
    speedups["compile"] = Interval(low=0.68, mid=0.69, high=0.72, confidence=0.99)
    right = right_proposal(Evaluation(status=EvalStatus.PASSED, device="cuda", speedups=speedups))
    assert await silence.note(opened(capture(8), "cuda"), (right,)) == (
        "the best rewrite is right and 1.61x to 1.63x vs eager on cuda, but 0.68x to 0.72x vs "
        "torch.compile, which is faster still"
    )
    assert "0.69x" in cards.headline(right) and "faster still" in cards.headline(right)


@pytest.mark.parametrize(
    ("text", "qualname", "reason"),
    [
        ("import torch\nclass Model(torch.nn.Module:\n", "Model", "does not parse (line 2"),
        ("import torch\n", "Model", "no such target in the file (found: none)"),
        (
            "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        "
            "return x\n",
            "Model",
            "no workload",
        ),
    ],
)
def test_a_job_that_cannot_start_says_what_is_missing(
    text: str, qualname: str, reason: str
) -> None:
    outcome = prepare(Job(text=text, path="model.py", qualname=qualname))
    assert isinstance(outcome, Outcome)
    assert reason in (outcome.note or "")
