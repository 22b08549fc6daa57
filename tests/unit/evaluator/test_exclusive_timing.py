"""While one child is timed the others stand still, and time in which a child stood still is not
its own."""

import asyncio
import sys
from pathlib import Path

import pytest

from kernel_lsp import process
from kernel_lsp.errors import WorkerLost
from kernel_lsp.evaluator.sharing.exclusive_timing import ExclusiveTiming

CHILD = """
import time
from kernel_lsp import wire
requests, replies = wire.claim_stdio()
while (request := wire.read_frame(requests)) is not None:
    time.sleep(request[0]["sleep_s"])
    wire.write_frame(replies, {}, [])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "sleepy.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "sleepy"


async def started(module: str) -> process.Child:
    child = await process.start(module, python=sys.executable, limits=process.Limits())
    await child.ask({"sleep_s": 0}, timeout_s=120)
    return child


def state(child: process.Child) -> str:
    """The kernel's letter: T is stopped."""
    return Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


async def stands_still(child: process.Child) -> bool:
    for _ in range(12_000):
        if state(child) == "T":
            return True
        await asyncio.sleep(0.005)
    return False


async def test_everybody_but_the_one_that_is_timed_stands_still_and_goes_on_afterwards(
    module: str,
) -> None:
    timed, other, late = [await started(module) for _ in range(3)]
    quiet = ExclusiveTiming()
    quiet.add(timed)
    quiet.add(other)
    async with quiet.alone(timed):
        quiet.add(late)
        assert await stands_still(other) and await stands_still(late)
        await timed.ask({"sleep_s": 0}, timeout_s=120)
    for child in (timed, other, late):
        await child.ask({"sleep_s": 0}, timeout_s=120)
        await child.kill()


async def test_one_window_follows_the_other(module: str) -> None:
    one, two = await started(module), await started(module)
    quiet, inside = ExclusiveTiming(), set[int]()
    for child in (one, two):
        quiet.add(child)

    async def timed(child: process.Child) -> None:
        async with quiet.alone(child):
            inside.add(id(child))
            assert inside == {id(child)} and state(child) != "T"
            await asyncio.sleep(0.05)
            inside.discard(id(child))

    await asyncio.gather(*(timed(child) for child in (one, two, one)))
    await asyncio.gather(one.kill(), two.kill())


async def test_a_failure_inside_sets_the_others_free(module: str) -> None:
    timed, other = await started(module), await started(module)
    quiet = ExclusiveTiming()
    quiet.add(other)
    with pytest.raises(WorkerLost):
        async with quiet.alone(timed):
            raise WorkerLost("the timed process died")
    await other.ask({"sleep_s": 0}, timeout_s=120)
    await asyncio.gather(timed.kill(), other.kill())


async def test_time_in_which_a_child_stood_still_does_not_count_against_its_answer(
    module: str,
) -> None:
    child = await started(module)
    asking = asyncio.create_task(child.ask({"sleep_s": 2}, timeout_s=4))
    await asyncio.sleep(0.05)
    child.pause()
    await asyncio.sleep(4.5)
    assert not asking.done()
    child.resume()
    await asking
    assert 4.4 < child.paused_s < 60
    await child.kill()


async def test_a_child_that_never_answers_is_ended_though_it_was_paused_once(module: str) -> None:
    child = await started(module)
    asking = asyncio.create_task(child.ask({"sleep_s": 60}, timeout_s=0.5))
    child.pause()
    await asyncio.sleep(0.2)
    child.resume()
    with pytest.raises(WorkerLost, match="no answer within"):
        await asking
    assert not child.alive


async def test_a_child_that_stands_still_can_be_killed(module: str) -> None:
    child = await started(module)
    child.pause()
    await child.kill()
    assert not child.alive


async def test_who_has_begun_is_timed_to_the_end_before_others_begin(module: str) -> None:
    one, two, tuner = [await started(module) for _ in range(3)]
    quiet, order = ExclusiveTiming(), list[str]()

    async def window(child: process.Child, name: str, anew: bool = False) -> None:
        async with quiet.alone(child, anew=anew):
            order.append(name)

    await window(one, "one 1")
    await window(tuner, "race 1", anew=True)
    async with quiet.alone(two):
        waiting = [
            asyncio.create_task(window(*asked))  # type: ignore[arg-type]
            for asked in ((tuner, "race 2", True), (two, "two 2"), (one, "one 2"), (one, "one 3"))
        ]
        await asyncio.sleep(0.01)
    await asyncio.gather(*waiting)
    assert order == ["one 1", "race 1", "one 2", "one 3", "two 2", "race 2"]
    await asyncio.gather(*(child.kill() for child in (one, two, tuner)))


async def test_who_stops_waiting_gives_way(module: str) -> None:
    one, two = await started(module), await started(module)
    quiet = ExclusiveTiming()

    async def window(child: process.Child) -> None:
        async with quiet.alone(child):
            pass

    async with quiet.alone(one):
        gone, waiting = asyncio.create_task(window(two)), asyncio.create_task(window(one))
        await asyncio.sleep(0.01)
        gone.cancel()
    await asyncio.wait_for(waiting, 120)
    async with quiet.alone(one):
        late = asyncio.create_task(window(two))
        await asyncio.sleep(0.01)
    late.cancel()  # in the moment in which it is given the window
    await asyncio.wait_for(window(one), 120)
    await asyncio.gather(one.kill(), two.kill())
