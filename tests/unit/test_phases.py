"""Where a job's time goes: overlaps, tasks, and nobody who asks."""

from __future__ import annotations

import asyncio

import pytest

from kernel_lsp import phases
from kernel_lsp.phases import Phases


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([(0.0, 2.0)], 2.0),
        ([(0.0, 2.0), (1.0, 3.0)], 3.0),  # two at a time count once
        ([(4.0, 5.0), (0.0, 2.0)], 3.0),
        ([(0.0, 9.0), (1.0, 2.0), (3.0, 4.0)], 9.0),
        ([(1.0, 1.0)], 0.0),
    ],
)
def test_an_instant_counts_once(spans: list[tuple[float, float]], seconds: float) -> None:
    assert Phases(spans={"judge": spans}).seconds() == {"judge": seconds}


def test_names_come_in_the_order_in_which_they_began() -> None:
    found = Phases(spans={"tune": [(5.0, 6.0)], "capture": [(0.0, 1.0)], "judge": [(2.0, 9.0)]})
    assert list(found.seconds()) == ["capture", "judge", "tune"]


async def test_tasks_count_for_the_job_that_started_them() -> None:
    async def work(name: str) -> None:
        with phases.phase(name):
            await asyncio.sleep(0)

    async def job(*names: str) -> list[str]:
        with phases.collect_phases() as found:
            await asyncio.gather(*(asyncio.create_task(work(name)) for name in names))
        return sorted(found.spans)

    assert await asyncio.gather(job("a", "b"), job("c")) == [["a", "b"], ["c"]]


def test_what_fails_took_time_as_well_and_without_a_collector_nothing_is_kept() -> None:
    with phases.collect_phases() as found:
        with pytest.raises(ValueError, match="broke"), phases.phase("a"):
            raise ValueError("broke")
        assert len(found.spans["a"]) == 1
    with phases.phase("b"):
        pass
    assert "b" not in found.spans
