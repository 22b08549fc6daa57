"""Turns on a device: one job at a time, a search's lanes together, and nobody waits long behind a
search."""

import asyncio
from pathlib import Path

import pytest
from filelock import FileLock

from kernel_lsp.pipeline import turns
from kernel_lsp.pipeline.turns import DeviceTurns, SharedTurn
from kernel_lsp.records import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def device(tmp_path: Path) -> DeviceTurns:
    return DeviceTurns(tmp_path / "locks" / "cpu.lock")


def turn(
    device: DeviceTurns, said: list[str] | None = None, clock: Clock | None = None
) -> SharedTurn:
    def report(progress: Progress) -> None:
        if said is not None:
            said.append(progress.message)

    return SharedTurn(device, report, clock or Clock())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def inside(turn: SharedTurn, name: str, log: list[str], end: asyncio.Event) -> None:
    async with turn():
        log.append(name)
        await end.wait()
    log.append(f"{name} ends")


async def test_lanes_of_one_search_share_their_turn_and_a_job_comes_between(
    device: DeviceTurns,
) -> None:
    log, said, clock = list[str](), list[str](), Clock()
    search, job = turn(device, clock=clock), turn(device, said)
    first, second, third, quick = (asyncio.Event() for _ in range(4))
    async with asyncio.TaskGroup() as group:
        group.create_task(inside(search, "a", log, first))
        group.create_task(inside(search, "b", log, second))
        await settle()
        group.create_task(inside(job, "job", log, quick))
        await settle()
        assert log == ["a", "b"]
        assert said == ["waiting for the measurement before this one"]
        clock.now = 19.0
        first.set()
        await settle()
        clock.now = 21.0  # from here on the search lets nobody else of its own in
        group.create_task(inside(search, "c", log, third))
        await settle()
        assert log == ["a", "b", "a ends"]
        second.set()
        await settle()
        assert log[-2:] == ["b ends", "job"]
        quick.set()
        await settle()
        assert log[-2:] == ["job ends", "c"]
        third.set()


async def test_a_search_keeps_the_device_while_nobody_waits(device: DeviceTurns) -> None:
    log, clock, end = list[str](), Clock(), asyncio.Event()
    search = turn(device, clock=clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(inside(search, "a", log, end))
        await settle()
        clock.now = 1000.0
        group.create_task(inside(search, "b", log, end))
        await settle()
        assert log == ["a", "b"]
        end.set()


async def test_whoever_is_cancelled_while_it_waits_leaves_the_device_to_others(
    device: DeviceTurns,
) -> None:
    log, end = list[str](), asyncio.Event()
    first = asyncio.create_task(inside(turn(device), "a", log, end))
    await settle()
    waiting = asyncio.create_task(inside(turn(device), "b", log, end))
    await settle()
    waiting.cancel()
    await settle()
    end.set()
    await first
    async with asyncio.timeout(120), turn(device)():
        assert log == ["a", "a ends"]


async def test_another_editor_is_waited_for_and_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LOCK_POLL_S", 0.02)
    path = tmp_path / "locks" / "cpu.lock"
    path.parent.mkdir()
    said, mine = list[str](), DeviceTurns(path)
    theirs = FileLock(path)
    theirs.acquire()
    waiting = asyncio.create_task(inside(turn(mine, said), "mine", said, asyncio.Event()))
    async with asyncio.timeout(120):
        while "another editor measures on this device" not in said:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert DeviceTurns(path).wanted  # they can see that somebody waits
        theirs.release()
        while "mine" not in said:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    theirs.acquire(timeout=0)
    theirs.release()
