"""Work side by side, until nothing is left or the time is over; and the file that it
fills."""

import asyncio
import json
import math
import time
from pathlib import Path

from kernel_lsp.records import Json
from trainer.tasks import timed_tasks


async def test_every_item_is_done_once_and_as_many_at_a_time_as_there_are_lanes() -> None:
    done, under_way, most = list[int](), 0, 0

    async def work(item: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        done.append(item)

    assert await timed_tasks.share(timed_tasks.until(math.inf, range(7)), work, 3)
    assert sorted(done) == [*range(7)] and most == 3


async def test_at_the_end_nothing_is_begun_and_what_runs_is_given_up() -> None:
    begun = []

    async def hangs(item: int) -> None:
        begun.append(item)
        await asyncio.Event().wait()

    now = time.monotonic()
    assert await timed_tasks.share(timed_tasks.until(now, range(7)), hangs, 2) and begun == []
    assert not await timed_tasks.share(
        timed_tasks.until(math.inf, range(7)), hangs, 2, now + 0.01
    ) and begun == [0, 1]


async def test_a_broken_task_is_told_with_its_reason_and_what_is_measured_is_in_the_file(
    tmp_path: Path, capsys
) -> None:
    out = tmp_path / "new" / "table.json"
    recording = timed_tasks.TableRecording(
        out=out, about={"rounds": 3}, limit=math.inf, expected_s=1.0, breaks='}, {"steps"'
    )

    async def made(rows: list[Json]) -> Json:
        if not rows:
            raise ValueError("no rows")
        return {"rows": rows}

    for name, rows in (("broken", []), ("whole", [{"steps": 1}, {"steps": 2}])):
        await recording.enter(name, made(rows), lambda task: f"{len(task['rows'])} rows")
    assert json.loads(out.read_text()) == {
        "rounds": 3,
        "tasks": {"whole": {"rows": [{"steps": 1}, {"steps": 2}]}},
        "skipped": {"broken": "ValueError: no rows"},
    }
    assert out.read_text().count("\n") == 2
    said = capsys.readouterr().out
    assert "broken: skipped, ValueError: no rows" in said and "whole: 2 rows" in said
    assert not recording.late


def test_a_task_that_would_probably_not_end_in_time_is_late(tmp_path: Path) -> None:
    limit = time.monotonic() + 3600
    made = timed_tasks.TableRecording(
        out=tmp_path / "x", about={}, limit=limit, expected_s=7200, breaks=", "
    )
    assert made.late
