"""Which judges a gate keeps: none is closed that somebody has begun to use."""

import asyncio
from collections.abc import Callable

import pytest

from kernel_lsp.evaluator import judges
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
