"""The tuner on a CPU, in its real process: who takes part, who is dropped and why, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator import Gate, programs  # noqa: E402
from kernel_lsp.evaluator.running.tuner import LaunchOnce, _silence_launches  # noqa: E402
from kernel_lsp.evaluator.tuning import ORIGINAL, TunedVariant, TuneRequest, TunerLost, usable  # noqa: E402
from kernel_lsp.records import Program, Progress, TargetKind, Workload, WorkloadOrigin  # noqa: E402

pytestmark = pytest.mark.torch
in_one_loop = pytest.mark.asyncio(loop_scope="module")

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64))

    def forward(self, x):
        {body}


def get_inputs():
    return [torch.rand(256, 64)]
"""
REQUEST = TuneRequest(
    reference=Program(
        source=SOURCE.format(body="return x * self.weight"),
        entry="Model",
        kind=TargetKind("module"),
    ),
    workload=Workload(name="test", origin=WorkloadOrigin.GET_INPUTS),
    device="cpu",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate() -> AsyncIterator[Gate]:
    """Torch is imported once for all of these tests."""
    async with Gate() as made:
        yield made


def variant(name: str, body: str) -> TunedVariant:
    return TunedVariant(name=name, source=SOURCE.format(body=body), entry="Model")


SLOW = variant("slow", "import time; time.sleep(0.02); return x * self.weight")
FAST = variant("fast", "return x * self.weight")


@pytest.mark.alone
@in_one_loop
async def test_the_fastest_comes_first_and_what_cannot_be_right_is_dropped(gate: Gate) -> None:
    variants = [
        SLOW,
        variant("far", "return x * self.weight * 1.2"),
        variant("broken", "return (x"),
        variant("raises", "raise ValueError('no')"),
        variant("leaves", "raise SystemExit(3)"),
        variant("shape", "return (x * self.weight)[:1]"),
        variant("other", "return x"),
        FAST,
    ]
    said: list[Progress] = []
    async with gate.tuner(REQUEST, said.append) as tuner:
        race = await tuner.race(variants, "fused-thing")
    assert race.order == ["fast", "slow"]
    assert race.dropped.keys() == {"far", "broken", "raises", "leaves", "shape", "other"}
    assert "far from the original" in race.dropped["far"] and "ValueError" in race.dropped["raises"]
    assert race.median_ms["slow"] >= 20 and race.speedup("slow") < 1 and race.speedup("far") == 0
    assert race.median_ms.keys() == {ORIGINAL, "fast", "slow"}
    assert [p.message for p in said if p.phase == "tune"] == [
        "compiling 8 variants of fused-thing",
        "tuning fused-thing: 2 left",
    ]


@pytest.mark.alone
@in_one_loop
async def test_a_second_race_meets_the_winner_of_the_first(gate: Gate) -> None:
    async with gate.tuner(REQUEST) as tuner:
        first = await tuner.race(
            [SLOW, variant("slower", "import time; time.sleep(0.08); return x * self.weight")]
        )
        assert first.order == ["slow", "slower"]
        second = await tuner.race([SLOW, FAST])
        assert second.order == ["fast", "slow", "slower"]


@in_one_loop
async def test_parameters_are_the_references_and_one_copy_serves_all(gate: Gate) -> None:
    """A variant that draws other weights in its constructor is given the original's."""
    source = SOURCE.replace("torch.rand(64)", "torch.zeros(64)").format(
        body="return x * self.weight"
    )
    async with gate.tuner(REQUEST) as tuner:
        race = await tuner.race([TunedVariant(name="zeros", source=source, entry="Model")])
    assert race.order == ["zeros"]


@in_one_loop
async def test_a_variant_that_ends_the_process_loses_the_tuner_and_not_the_gate(gate: Gate) -> None:
    deadly = variant("deadly", "import os; os._exit(1)")
    with pytest.raises(TunerLost, match="could not tune"):
        async with gate.tuner(REQUEST) as tuner:
            await tuner.race([FAST, deadly])
    async with gate.tuner(REQUEST) as tuner:
        assert (await tuner.race([FAST])).order == ["fast"]


@pytest.mark.parametrize(
    "reply",
    [
        {"error": "racing raised ValueError"},
        {},
        {"times_ms": None},
        {"times_ms": {"a": [1.0]}},
        {"times_ms": {"a": [1.0], "b": []}},
        {"times_ms": {"a": [1.0], "b": ["soon"]}},
        {"times_ms": {"a": [1.0], "b": [0.0]}},
        {"times_ms": {"a": [1.0], "b": [float("nan")]}},
        {"times_ms": {"a": [1.0], "b": [float("inf")]}},
    ],
)
def test_times_that_cannot_be_are_a_lost_tuner(reply: dict) -> None:
    with pytest.raises(TunerLost, match="could not tune"):
        usable(reply, ["a", "b"])
    assert usable({"times_ms": {"a": [1], "b": [2.5]}}, ["a", "b"]) == {"a": [1.0], "b": [2.5]}


@in_one_loop
async def test_a_reference_that_fails_is_told(gate: Gate) -> None:
    broken = replace(
        REQUEST, reference=replace(REQUEST.reference, source="import torch\nclass Model(:\n")
    )
    with pytest.raises(TunerLost, match="could not tune"):
        async with gate.tuner(broken):
            raise AssertionError("unreachable")


@in_one_loop
async def test_cancelling_ends_the_process_at_once(gate: Gate) -> None:
    endless = variant("endless", "import time; time.sleep(600)")
    inside = asyncio.Event()

    async def work() -> None:
        async with gate.tuner(REQUEST) as tuner:
            inside.set()
            await tuner.race([endless])

    task = asyncio.create_task(work())
    await inside.wait()
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 120)
    assert task.cancelled()


@pytest.mark.alone
@in_one_loop
async def test_a_trained_workload_is_compared_forward_and_backward(gate: Gate) -> None:
    """A variant that is fast forward and slow backward comes last."""
    slow = (
        "y = x * self.weight; y.register_hook(lambda g: __import__('time').sleep(0.02)); return y"
    )
    trained = replace(REQUEST, workload=replace(REQUEST.workload, training=True))
    async with gate.tuner(trained) as tuner:
        race = await tuner.race([variant("slow", slow), FAST])
    assert race.order == ["fast", "slow"] and race.median_ms["slow"] >= 20


TUNED = """
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": block}) for block in (64, 128)], key=["n"])
@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)


@triton.jit
def plain(x_ptr, n):
    tl.store(x_ptr, 0.0)
"""


def test_configurations_of_autotune_are_collected_once_and_not_measured() -> None:
    pytest.importorskip("triton")
    tried: dict[str, LaunchOnce] = {}
    x = torch.zeros(128)
    for _ in range(2):  # two variants with the same kernel
        module = programs.load(TUNED)
        with _silence_launches(tried) as collected:
            module.kernel[(1,)](x, 128)
            module.plain[(1,)](x, 128)
        assert len(collected) == 1
    assert sorted(block for key in tried for block in (64, 128) if f"'BLOCK', {block}" in key) == [
        64,
        128,
    ]
