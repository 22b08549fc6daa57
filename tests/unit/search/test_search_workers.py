"""Generating and judging at the same time: no device waits for a model; on one GPU they take
turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import manual_clock
import pytest
import search_helpers as helpers
from search_helpers import proposal, verdict

from kernel_lsp.records import (
    Context,
    ProposedDraft,
    SearchBudget,
    SearchJudgement,
    SearchTask,
    StopReason,
)
from kernel_lsp.search.best import BestOf
from kernel_lsp.search.budget import SpentBudget
from kernel_lsp.search.ledger import MemoryArchive
from kernel_lsp.search.loop import SearchLoop
from kernel_lsp.search.workers import SearchWorkers

REPLY_S, JUDGE_S, SAMPLES = 2.0, 0.3, 8
"""Eight samples of a 2 s backbone give four candidates a second; the judge takes 3.3."""


@dataclass
class Device:
    """A judge on one device, which adds up how long it was busy between its first and last
    verdict."""

    clock: Callable[[], float]
    seconds: float = JUDGE_S
    busy: float = 0.0
    first: float | None = None
    last: float = 0.0
    at_work: int = 0
    together: list[str] = field(default_factory=list)

    async def __call__(self, made: Any, *, full: bool) -> SearchJudgement:
        start = self.clock()
        self.first = start if self.first is None else self.first
        self.at_work += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.at_work -= 1
        self.last = self.clock()
        self.busy += self.last - start
        return SearchJudgement(proposal=proposal(made, verdict(1.0, full=full)))

    @property
    def idle(self) -> float:
        assert self.first is not None
        return 1 - self.busy / (self.last - self.first)


@dataclass
class Model:
    device: Device
    seconds: float = REPLY_S
    name: str = "m"
    slow: bool = True
    at_work: int = 0
    most: int = 0

    async def propose(self, task: SearchTask, context: Context) -> ProposedDraft:
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await asyncio.sleep(self.seconds)
            if self.device.at_work:
                self.device.together.append(str(context.number))
        finally:
            self.at_work -= 1
        return ProposedDraft(candidate=helpers.candidate(name=f"c{context.number}"))


def search(device: Device, model: Model, workers: SearchWorkers, candidates: int) -> SearchLoop:
    return SearchLoop(
        task=helpers.task("cuda"),
        strategy=BestOf(0),
        proposers=[model],
        moves={},
        judge=device,
        archive=MemoryArchive(),
        budget=SpentBudget(
            limits=SearchBudget(candidates=candidates, seconds=None, stagnation=9999)
        ),
        workers=workers,
    )


def test_the_device_is_idle_less_than_a_tenth_of_the_time() -> None:
    async def main() -> tuple[Device, Model, StopReason]:
        device = Device(asyncio.get_running_loop().time)
        model = Model(device)
        reason = await search(device, model, SearchWorkers(judges=1, samples=SAMPLES), 60).run()
        return device, model, reason

    device, model, reason = manual_clock.run(main())
    assert reason is StopReason.CANDIDATES and model.most == SAMPLES
    assert device.idle < 0.1, f"{device.idle:.1%} idle"


@pytest.mark.alone
async def test_the_same_on_the_real_clock() -> None:
    """A tenth of the times: 0.2 s for a reply, 30 ms for a verdict; what the loop takes counts
    here. The best of some, because a machine that stands still for a moment is no fault of the
    loop's."""
    shares = []
    while len(shares) < 5 and min(shares, default=1.0) >= 0.1:
        device = Device(time.monotonic, JUDGE_S / 10)
        model = Model(device, REPLY_S / 10)
        await search(device, model, SearchWorkers(judges=1, samples=SAMPLES), 60).run()
        shares.append(device.idle)
    assert min(shares) < 0.1, f"{min(shares):.1%} idle"


def test_candidates_do_not_pile_up_before_a_slow_device() -> None:
    async def main() -> tuple[SearchLoop, int]:
        device = Device(asyncio.get_running_loop().time, seconds=60.0)
        loop = search(device, Model(device), SearchWorkers(judges=1, samples=SAMPLES), 5)
        await loop.run()
        return loop, len(loop.archive.unfinished)

    _, waiting = manual_clock.run(main())
    assert waiting <= 2 + SAMPLES


@pytest.mark.parametrize("judges", [1, 3])
def test_a_model_on_the_gpu_that_judges_takes_turns_with_it(judges: int) -> None:
    async def main() -> tuple[Device, Model, StopReason, float]:
        device = Device(asyncio.get_running_loop().time)
        model = Model(device)
        workers = SearchWorkers(judges=judges, samples=4, apart=True)
        reason = await search(device, model, workers, 24).run()
        return device, model, reason, asyncio.get_running_loop().time()

    device, model, reason, took = manual_clock.run(main())
    assert reason is StopReason.CANDIDATES
    assert device.together == [] and model.most == 4
    assert took < 24 * (JUDGE_S + REPLY_S)  # in batches, not one by one
