"""Memory that does not suffice: nobody is blamed for what is not its own, and a refusal says how
much it takes."""

import asyncio
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.errors import OutOfMemory  # noqa: E402
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, Gate, tensors  # noqa: E402
from kernel_lsp.evaluator.findings import PartialEvaluation  # noqa: E402
from kernel_lsp.evaluator.judging import needs, planning  # noqa: E402
from kernel_lsp.evaluator.sharing.room import Room  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402
from kernel_lsp.records import EvalStatus, Evaluation, Progress  # noqa: E402

pytestmark = pytest.mark.torch
REFERENCE = """
import os
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        {body}
        return torch.tanh(x) + 1

def get_inputs():
    return [torch.rand(32, 16)]
"""
FULL = 'raise MemoryError("no room")'
FULL_IN_A_WORKER = f'if os.path.basename(os.getcwd()) == "worker": {FULL}'
GREEDY = "held = torch.zeros(2**34, dtype=torch.int8)"
SOME_BYTES = 8 * 2**30


def request(reference: str, candidate: str) -> EvaluationRequest:
    texts = [REFERENCE.format(body=body) for body in (reference, candidate)]
    made = request_from_files(*texts, device="cpu", inference=True)
    budget = EvaluationBudget(memory_bytes=SOME_BYTES)
    return replace(made, require_speed=False, budget=budget)


async def test_a_candidate_is_not_blamed_where_the_original_has_no_room_either() -> None:
    async with Gate() as gate:
        with pytest.raises(OutOfMemory, match=r"needs about .* GiB, .* are free"):
            await gate.evaluate(request(FULL_IN_A_WORKER, FULL))


@pytest.mark.parametrize("candidate", [FULL, GREEDY])
async def test_a_candidate_that_needs_more_than_the_original_is_refused(candidate: str) -> None:
    async with Gate() as gate:
        evaluation = await gate.evaluate(request("pass", candidate))
    assert evaluation.status is EvalStatus.RUNTIME_ERROR
    assert "memory" in evaluation.detail or "no room" in evaluation.detail


async def test_a_reference_without_room_is_no_verdict() -> None:
    async with Gate() as gate:
        with pytest.raises(OutOfMemory, match=r"^could not judge: needs about .* GiB, .* are free"):
            await gate.evaluate(request(GREEDY, "pass"))


async def test_what_had_no_room_beside_others_is_judged_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    inside: list[str] = []
    release = asyncio.Event()

    async def judged(self: Gate, asked: EvaluationRequest, *rest: Any) -> Any:
        begun.append(asked.candidate_source)
        if inside:
            raise OutOfMemory("could not judge: needs about 9.0 GiB, 1.0 are free")
        inside.append(asked.candidate_source)
        if asked.candidate_source == "first":
            await release.wait()
        inside.remove(asked.candidate_source)
        return PartialEvaluation(), Evaluation(status=EvalStatus.PASSED, device="cpu")

    monkeypatch.setattr(Gate, "_judged", judged)
    waiting: list[str] = []
    said = asyncio.Event()

    def note(progress: Progress) -> None:
        waiting.append(progress.message)
        said.set()

    one = request("pass", "pass")
    async with Gate() as gate:
        gate._places["cpu"] = asyncio.Semaphore(2)
        first = asyncio.create_task(gate.evaluate(replace(one, candidate_source="first")))
        second = asyncio.create_task(gate.evaluate(replace(one, candidate_source="second"), note))
        await said.wait()
        assert begun == ["first", "second"] and "waiting until nothing else" in waiting[0]
        release.set()
        assert (await second).status is EvalStatus.PASSED and (await first).status
    assert begun == ["first", "second", "second"]


async def test_who_waits_to_be_alone_goes_before_later_ones() -> None:
    room, order = Room(), list[str]()
    leave = asyncio.Event()

    async def enter(name: str, way: Callable[[], Any], until: asyncio.Event | None = None) -> None:
        async with way():
            order.append(name)
            if until is not None:
                await until.wait()
            assert name != "alone" or room.inside == 1

    tasks = [asyncio.create_task(enter("first", room.beside_others, leave))]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(enter("alone", room.alone)))
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(enter("later", room.beside_others)))
    await asyncio.sleep(0.01)
    leave.set()
    await asyncio.gather(*tasks)
    assert order == ["first", "alone", "later"] and room.inside == 0


def test_a_value_that_no_file_can_hold_goes_through_the_pipe(tmp_path: Path) -> None:
    value = torch.arange(2 * tensors.FILE_BYTES, dtype=torch.int32)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (tensors.FILE_BYTES, hard))
    try:
        out = tensors.TensorOutbox(tmp_path)
        spec = tensors.encode([value], out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir()) and len(out.blobs) == 1
    assert torch.equal(tensors.decode(spec, out.blobs)[0], value)


def test_errors_of_memory_are_known_below_others() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("the reference fails") from error
    except ValueError as error:
        assert needs.is_out_of_memory(error)
    assert needs.is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not needs.is_out_of_memory(ValueError("another")) and needs.free_bytes("cpu") > 0


class Large:
    """What `planning.plan` asks of a reference."""

    range_bound = is_module = grad = may_record_gradients = random = False
    edges: tuple[str, ...] = ()
    sizes: tuple[Any, ...] = ()
    changed: tuple[str, ...] = ()
    circumstances: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    own_state: dict[str, Any] = {}
    batch = ((0,), [7])

    class subject:
        has_single = False

    def __init__(self, elements: int) -> None:
        self.elements = elements


def test_a_huge_workload_has_full_size_first_and_last_and_few_rows_between() -> None:
    huge = planning.plan(Large(planning.HUGE + 1), 0)  # type: ignore[arg-type]
    usual = planning.plan(Large(planning.HUGE), 0)  # type: ignore[arg-type]
    assert huge[0]["batch"] is None and huge[-1]["batch"] is None
    families = [t for t in huge[1:-1] if t["edit"] is None]
    assert len(families) >= 6 and {t["batch"] for t in families} == {7}
    assert {t["family"] for t in huge} == {t["family"] for t in usual}
    assert {t["batch"] for t in usual if t["family"] == "negated"} == {None}
