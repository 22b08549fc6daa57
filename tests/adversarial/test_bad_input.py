"""Candidates and references that hang, crash, flood or bite: a named result each, and no orphans.

One warm gate serves most of them: after each verdict nothing is left but what keeps it warm, and
nothing at all when it is closed."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from kernel_lsp import scratch
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, Gate, evaluate
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import (
    ArgSpec,
    EvalStatus,
    Evaluation,
    Program,
    TargetKind,
    Workload,
    WorkloadOrigin,
)

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]
REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + 1

def get_inputs():
    return [torch.rand(32, 16)]
"""
HONEST = """
import torch

{top}

class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
        return torch.tanh(x) + 1
"""
GIB = 1024**3


def request(candidate: str, reference: str = REFERENCE, **budget: float) -> EvaluationRequest:
    limits = {"memory_bytes": 6 * GIB, **budget}
    return replace(
        request_from_files(reference, candidate),
        require_speed=False,
        budget=EvaluationBudget(**limits),
    )


def candidate(top: str = "", body: str = "pass") -> str:
    return HONEST.format(top=top, body=body)


WARM = ("evaluator.processes.zygote", "evaluator.judging.judge")
"""What a gate keeps between two candidates."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gate]:
    """Torch is imported once. Scratch folders of its children lie in a folder of their own, which
    is how they are told from others'."""
    with pytest.MonkeyPatch.context() as patch:
        scratch_in(tmp_path_factory.mktemp("scratch"), patch)
        async with Gate(idle_s=600) as made:
            yield made
        assert not left_over()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For a test with processes of its own, none of which may be left."""
    scratch_in(tmp_path, monkeypatch)
    return tmp_path


def scratch_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """This process has one room for its whole life otherwise, wherever its first caller was."""
    patch.setattr(tempfile, "tempdir", str(folder))
    patch.setattr(scratch, "room", lambda: folder)


def left_over() -> list[str]:
    """Processes of this module that still run, at any depth, and folders that still exist."""
    return running() + os.listdir(tempfile.gettempdir())


def running() -> list[str]:
    mark, found = tempfile.gettempdir().encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return found


async def judged(gate: Gate, asked: EvaluationRequest) -> Evaluation:
    """By the warm gate; no worker and no timer, nor anything they started, outlives the verdict."""
    try:
        return await gate.evaluate(asked)
    finally:
        assert not [line for line in running() if not any(name in line for name in WARM)]


@pytest.mark.parametrize(
    ("endless", "limit"),
    [(candidate(top="while True: pass"), "load_s"), (candidate(body="while True: pass"), "call_s")],
    ids=["at import", "in a call"],
)
async def test_an_endless_loop_is_ended_in_time(gate: Gate, endless: str, limit: str) -> None:
    """The reference is opened before, since these limits are its own, too."""
    start = time.monotonic()
    assert (await judged(gate, request(candidate()))).status is EvalStatus.PASSED
    evaluation = await judged(gate, request(endless, **{limit: 6}))
    assert evaluation.status is EvalStatus.TIMED_OUT and "6 s" in evaluation.detail
    assert time.monotonic() - start < 250


async def test_a_segmentation_fault_is_named(gate: Gate) -> None:
    evaluation = await judged(
        gate, request(candidate(body="x.untyped_storage().resize_(0); x.add_(1)"))
    )
    assert evaluation.status is EvalStatus.RUNTIME_ERROR and "SIGSEGV" in evaluation.detail


async def test_leaving_the_process_is_no_success(gate: Gate) -> None:
    evaluation = await judged(
        gate, request(candidate(top="leave = vars(torch)['os']", body="vars(leave)['_exit'](0)"))
    )
    assert evaluation.status is EvalStatus.RUNTIME_ERROR and "exited with 0" in evaluation.detail


async def test_output_on_stdout_is_no_message_and_a_flood_does_not_fill_memory(gate: Gate) -> None:
    flood = "for _ in range(2000): print('x' * 1000)"
    evaluation = await judged(gate, request(candidate(top=flood)))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail


async def test_a_fork_leaves_no_orphan(gate: Gate) -> None:
    forking = candidate(top="system = vars(torch)['os']", body="system.fork() or system.setsid()")
    evaluation = await judged(gate, request(forking))
    assert evaluation.status is EvalStatus.CHEATED and "starts a process" in evaluation.detail


async def test_allocating_far_too_much_says_so(gate: Gate) -> None:
    evaluation = await judged(gate, request(candidate(body="y = torch.zeros(25 * 1024**3)")))
    assert evaluation.status is EvalStatus.RUNTIME_ERROR and "memory" in evaluation.detail


async def test_filling_the_disk_is_no_way_to_pass(gate: Gate) -> None:
    body = "torch.from_file('fill', shared=True, size=2**34).fill_(1)"
    evaluation = await judged(gate, request(candidate(body=body)))
    assert evaluation.status in (EvalStatus.RUNTIME_ERROR, EvalStatus.CHEATED)


async def test_a_missing_module_and_a_syntax_error_are_named(gate: Gate) -> None:
    evaluation = await judged(gate, request(candidate(top="import a_module_that_nobody_has")))
    assert evaluation.status is EvalStatus.RUNTIME_ERROR
    assert "a_module_that_nobody_has" in evaluation.detail and "line 4" in evaluation.detail


@pytest.mark.parametrize(
    "reference, words",
    [
        (
            REFERENCE.replace("return [torch.rand(32, 16)]", "raise OSError('no data')"),
            "get_inputs() failed",
        ),
        (
            REFERENCE.replace("torch.rand(32, 16)", "torch.rand(30 * 1024**3)"),
            "get_inputs() failed",
        ),
        (REFERENCE.replace("torch.rand(32, 16)", "object()"), "a value of type object"),
        (REFERENCE.replace("return torch.tanh(x) + 1", "return x @ x"), "fails on its own inputs"),
        (REFERENCE.replace("return torch.tanh(x) + 1", "return 3"), "no tensor"),
        (
            REFERENCE.replace("import torch", "import torch, a_module_that_nobody_has", 1),
            "nobody_has",
        ),
        (REFERENCE + "\nwhile True: pass\n", "no answer within"),
    ],
    ids=[
        "raises",
        "allocates",
        "no-tensor-in",
        "crashes",
        "no-tensor-out",
        "missing-import",
        "hangs",
    ],
)
async def test_a_reference_that_cannot_be_judged_by_is_refused_with_the_reason(
    gate: Gate, reference: str, words: str
) -> None:
    with pytest.raises(EvaluationError, match="could not judge") as caught:
        await judged(
            gate, request(candidate(), reference, load_s=10 if "while True" in reference else 60)
        )
    assert words in str(caught.value)


async def test_random_output_is_judged_only_on_the_same_stream(gate: Gate) -> None:
    noisy = REFERENCE.replace("torch.tanh(x) + 1", "torch.nn.functional.dropout(x, 0.5)")
    same = noisy.replace("class Model(", "class ModelNew(")
    assert (await judged(gate, request(same, noisy))).status is EvalStatus.PASSED
    evaluation = await judged(gate, request(candidate(), noisy))
    assert evaluation.status is EvalStatus.NOT_RUN and "random output" in evaluation.detail


async def test_buffers_that_the_reference_updates_must_be_updated(gate: Gate) -> None:
    norm = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(16)

    def forward(self, x):
        return {forward}

def get_inputs():
    return [torch.rand(32, 16)]
"""
    reference = norm.format(forward="self.norm(x)")
    stale = "torch.nn.functional.batch_norm(x, None, None, self.norm.weight, self.norm.bias, True)"
    assert (await judged(gate, request(reference, reference))).status is EvalStatus.PASSED
    evaluation = await judged(gate, request(norm.format(forward=stale), reference))
    assert evaluation.status is EvalStatus.WRONG_RESULT


async def test_a_constant_output_is_reported_and_earns_no_claim_of_speed(gate: Gate) -> None:
    constant = REFERENCE.replace("torch.tanh(x) + 1", "torch.softmax(x[:, :1], dim=1)")
    evaluation = await judged(
        gate,
        replace(request(constant.replace("Model(", "ModelNew("), constant), require_speed=True),
    )
    assert evaluation.status is EvalStatus.PASSED and evaluation.speedup is None
    dull = next(check for check in evaluation.checks if check.name == "degenerate")
    assert dull.passed is False


async def test_functions_with_keywords_integers_and_strides_can_be_judged(gate: Gate) -> None:
    source = (
        "def pick(table, *, index, scale=1.0):\n    return [table[index] * scale, {'n': index "
        "+ 1}]\n"
    )
    workload = Workload(
        name="recorded",
        origin=WorkloadOrigin.RECORDED,
        inputs=(
            ArgSpec(name=None, dtype="float32", shape=(8, 4), stride=(1, 8)),
            ArgSpec(name="index", dtype="int64", shape=(5,), distribution="index:8"),
            ArgSpec(name="scale", value=2.5),
        ),
    )
    asked = EvaluationRequest(
        reference=Program(source=source, entry="pick", kind=TargetKind.FUNCTION),
        candidate_source=source.replace("table[index]", "table.index_select(0, index)"),
        candidate_entry="pick",
        workload=workload,
        require_speed=False,
    )
    evaluation = await judged(gate, asked)
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    off = replace(asked, candidate_source=source.replace("index + 1", "index + 2"))
    assert (await judged(gate, off)).status is EvalStatus.WRONG_RESULT


async def test_cancelling_ends_judge_and_worker(folder: Path) -> None:
    task = asyncio.create_task(evaluate(request(candidate(body="while True: pass"), call_s=600)))
    async with asyncio.timeout(240):
        while not any(folder.glob("*/worker")):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    assert left_over()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not left_over()
