"""Which judges a gate keeps: none is closed that somebody has begun to use."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kernel_lsp.evaluator import Gate, judges
from kernel_lsp.evaluator.judges import JudgeBench, Judges
from kernel_lsp.evaluator.processes.pool import ZygotePool


class SlowlyClosedBench(JudgeBench):
    """A bench without a judge; ``meanwhile`` runs while it is closed."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.users = self.expecting = 0
        self.used, self.is_closed = True, False
        self._meanwhile = meanwhile

    @property
    def idle(self) -> bool:
        return not self.users

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._meanwhile()
        self.is_closed = True


def judges_with(**benches: SlowlyClosedBench) -> Judges:
    made = Judges(ZygotePool())
    made._benches.update(benches)
    return made


async def test_a_judge_that_is_asked_for_while_another_closes_stays() -> None:
    second = SlowlyClosedBench()
    first = SlowlyClosedBench(lambda: setattr(second, "users", 1))
    kept = judges_with(first=first, second=second)
    await kept.close_idle()
    assert first.is_closed and not second.is_closed and "second" in kept._benches


async def test_two_who_make_room_close_each_judge_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "MAX_JUDGES", 0)
    benches = {name: SlowlyClosedBench() for name in ("first", "second", "third")}
    kept = judges_with(**benches)
    await asyncio.gather(kept._make_room(), kept._make_room(), kept.close_idle())
    assert all(bench.is_closed for bench in benches.values()) and not kept._benches


class SlowlyGivenUp(Gate):
    """A gate that makes nothing, and takes some turns of the loop to end it."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    async def _expect(self, request: Any, report: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for step in ("judge", "worker", "timer"):
                await asyncio.sleep(0)
                self.ended.append(step)


@pytest.mark.parametrize("turns", range(4))
async def test_who_gives_up_and_then_leaves_ends_all_that_was_made(turns: int) -> None:
    """A second cancellation cut short the first one's work: a judge ran on, and nobody read its
    log ("Task was destroyed but it is pending")."""
    gate = SlowlyGivenUp()
    async with gate.expecting(None) as give_up:  # type: ignore[arg-type]
        await asyncio.sleep(0)
        give_up()
        for _ in range(turns):
            await asyncio.sleep(0)
    assert gate.ended == ["judge", "worker", "timer"]


async def test_who_is_cancelled_while_it_is_ended_leaves_it_ending() -> None:
    gate = SlowlyGivenUp()

    async def expecting() -> None:
        async with gate.expecting(None):  # type: ignore[arg-type]
            await asyncio.sleep(0)

    job = asyncio.create_task(expecting())
    for _ in range(4):
        await asyncio.sleep(0)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    for _ in range(4):
        await asyncio.sleep(0)
    assert gate.ended == ["judge", "worker", "timer"]


@pytest.mark.parametrize(
    ("used", "users", "closed", "rested"),
    [(False, 0, True, False), (True, 0, False, True), (False, 1, False, False)],
)
async def test_a_judge_that_nobody_came_to_is_closed_and_one_that_was_used_rests(
    monkeypatch: pytest.MonkeyPatch, used: bool, users: int, closed: bool, rested: bool
) -> None:
    bench, resting = SlowlyClosedBench(), list[bool]()
    bench.used, bench.users = used, users
    kept = judges_with(only=bench)

    async def found(request: Any) -> JudgeBench:
        return bench

    async def rest() -> None:
        resting.append(True)

    monkeypatch.setattr(kept, "_found", found)
    monkeypatch.setattr(bench, "rest", rest)
    async with kept.expecting(None):  # type: ignore[arg-type]
        assert bench.expecting == 1
    assert (bench.is_closed, bool(resting), bench.expecting) == (closed, rested, 0)
    assert ("only" in kept._benches) is not closed
