"""The archive on disk: killed at any point, full disks, old and broken files, two processes."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import archive_child
import pytest
import search_helpers as helpers
from hypothesis import given, settings
from hypothesis import strategies as st
from search_helpers import attempt, candidate

from kernel_lsp.errors import ArchiveError
from kernel_lsp.records import (
    Attempt,
    Cost,
    Exchange,
    Move,
    Parsed,
    Prompt,
    Reply,
    SkillDraft,
)
from kernel_lsp.search.archive import SqliteArchive
from kernel_lsp.search.ledger import MemoryArchive

HELPERS = Path(__file__).resolve().parents[2] / "helpers"
IDENTITY = {"program": "p", "device": "cpu"}
KILLS = 100


def begun(number: int, **more: Any) -> Attempt:
    told: dict[str, Any] = {"move": Move.REFINE, "proposer": "m", "created": helpers.CREATED}
    return Attempt(number=number, **(told | more))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "searches" / "one.db"


def opened(path: Path, **more: Any) -> SqliteArchive:
    return SqliteArchive.open(path, IDENTITY, **more)


def test_what_is_added_is_there_after_reopening(path: Path) -> None:
    archive = opened(path)
    number = archive.reserve()
    first = attempt(
        number, 1.5, cost=Cost(prompt_tokens=5, evaluations=1), rollout=3, turn=2, parent=7
    )
    archive.add(first)
    archive.begin(begun(4, cost=Cost(completion_tokens=9)), candidate(name="x"))
    name, seed = archive.id, archive.seed
    archive.close()
    again = opened(path)
    assert list(again.attempts) == [first]
    assert [(a.number, c.id) for a, c in again.unfinished] == [(4, "x")]
    assert again.cost == Cost(prompt_tokens=5, completion_tokens=9, evaluations=1)
    assert (again.id, again.seed, again.reserve()) == (name, seed, 5)
    again.close()


def test_a_candidate_is_known_while_it_is_judged_and_afterwards(path: Path) -> None:
    archive = opened(path)
    made = candidate(name="x")
    assert archive.begin(begun(0), made) is None
    earlier = archive.begin(begun(1), made)
    assert earlier is not None and (earlier.number, earlier.proposal) == (0, None)
    archive.add(attempt(0, 2.0, made))
    archive.close()
    archive = opened(path)
    earlier = archive.begin(begun(2), made)
    assert earlier is not None and earlier.fitness == 2.0
    archive.close()


def test_a_full_judgement_replaces_the_quick_one(path: Path) -> None:
    archive = opened(path)
    quick, full = attempt(0, 2.0, full=False), attempt(0, 1.9, cost=Cost(evaluations=2))
    archive.add(quick)
    archive.add(full)
    assert list(archive.attempts) == [full] and archive.cost == full.cost
    archive.close()
    archive = opened(path)
    assert list(archive.attempts) == [full] and archive.cost == full.cost
    archive.close()


def test_exchanges_and_drafted_skills_are_kept_for_the_trainer(path: Path) -> None:
    archive = opened(path)
    reply = Reply(text="hello", latency_s=1.0, model="m")
    exchange = Exchange(agent="policy", prompt=Prompt(messages=()), reply=reply, parsed=Parsed())
    draft = SkillDraft(name="n", description="d", scope="graph", tags=(), content="c")
    archive.add(begun(0, complaint="no call"), [exchange, exchange], [draft])
    archive.close()
    with sqlite3.connect(path) as database:
        assert (
            database.execute("SELECT number, agent FROM exchanges").fetchall()
            == [(0, "policy")] * 2
        )
        assert database.execute("SELECT count(*) FROM drafts").fetchall() == [(1,)]
    database.close()


def test_seconds_count_across_runs(path: Path) -> None:
    begun = time.monotonic()
    archive = opened(path)
    time.sleep(0.05)
    archive.close()
    again = opened(path)
    assert 0.05 <= again.seconds <= time.monotonic() - begun
    again.close()


# --- files that are not as they should be -------------------------------------------------------


def test_another_target_is_refused_and_named(path: Path) -> None:
    opened(path).close()
    with pytest.raises(ArchiveError, match=r"another search: device changed.*--fresh"):
        SqliteArchive.open(path, {"program": "p", "device": "cuda"})
    opened(path).close()  # and it is still there, and free


def test_two_processes_do_not_share_an_archive(path: Path) -> None:
    archive = opened(path)
    with pytest.raises(ArchiveError, match=r"another process is searching.*wait"):
        opened(path)
    archive.close()
    opened(path).close()


def test_beginning_anew_keeps_the_old_archive(path: Path) -> None:
    archive = opened(path)
    archive.add(attempt(0, 2.0))
    archive.close()
    again = opened(path, fresh=True)
    assert list(again.attempts) == [] and again.id != archive.id
    assert again.problems == (f"the archive before this one is kept as {path}.old",)
    again.close()
    kept = opened(Path(f"{path}.old"))
    assert len(kept.attempts) == 1
    kept.close()


def test_an_archive_of_another_schema_is_kept_and_a_new_one_begun(path: Path) -> None:
    archive = opened(path)
    archive.add(attempt(0, 2.0))
    archive.close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    again = opened(path)
    assert list(again.attempts) == []
    (problem,) = again.problems
    assert "has schema 7" in problem and f"{path}.v7" in problem
    assert Path(f"{path}.v7").exists()
    again.close()


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _zeros_inside(content: bytes) -> bytes:
    return content[:4096] + bytes(8192) + content[12288:]


def _no_header(content: bytes) -> bytes:
    return bytes(100) + content[100:]


@pytest.mark.parametrize("harm", [_cut, _zeros_inside, _no_header])
def test_a_damaged_archive_is_kept_and_a_new_one_begun(path: Path, harm: Any) -> None:
    archive = opened(path)
    for number in range(30):
        archive.add(attempt(number, 2.0))
    archive.close()
    path.write_bytes(harm(path.read_bytes()))
    again = opened(path)
    assert (
        len(again.problems) == 1 and "damaged" in again.problems[0] and list(again.attempts) == []
    )
    again.add(attempt(0, 1.0))
    again.close()
    assert Path(f"{path}.damaged").exists()


def test_a_row_that_cannot_be_read_is_damage(path: Path) -> None:
    archive = opened(path)
    archive.add(attempt(0, 2.0))
    archive.close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE attempts SET body = '{}'")
    database.close()
    again = opened(path)
    assert "damaged" in again.problems[0]
    again.close()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("import torch\n")
    foreign = tmp_path / "theirs.db"
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE t (x)")
    database.close()
    for path in (source, foreign, tmp_path):
        for fresh in (False, True):
            with pytest.raises(ArchiveError, match="no search archive"):
                opened(path, fresh=fresh)
    assert source.read_text() == "import torch\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ArchiveError, match=r"cannot be used.*permissions"):
        opened(tmp_path / "a" / "b.db")


@pytest.fixture
def small_files() -> Iterator[Any]:
    """Files may grow to so many bytes only, like on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_loses_nothing_of_the_running_search(path: Path, small_files: Any) -> None:
    archive = opened(path)
    archive.add(attempt(0, 1.0))
    small_files(path.stat().st_size + 4096)
    for number in range(1, 40):
        archive.add(attempt(number, 1.0))
    assert len(archive.attempts) == 40
    assert len(archive.problems) == 1 and "only in memory (make room" in archive.problems[0]
    small_files(resource.RLIM_INFINITY)
    archive.add(attempt(40, 1.0))  # there is room again: everything is written
    archive.close()
    again = opened(path)
    assert [a.number for a in again.attempts] == list(range(41))
    again.close()


def test_a_disk_that_stays_full_leaves_what_was_written(path: Path, small_files: Any) -> None:
    archive = opened(path)
    small_files(path.stat().st_size + 8192)
    for number in range(40):
        archive.add(attempt(number, 1.0))
    archive.close()
    small_files(resource.RLIM_INFINITY)
    again = opened(path)
    assert [a.number for a in again.attempts] == list(range(len(again.attempts)))
    again.close()


# --- the same as in memory ----------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "begin", "quick", "full", "complain", "reopen"]),
        st.integers(0, 11),
        st.one_of(st.none(), st.floats(0.1, 9.0)),
    ),
    max_size=25,
)


@given(events=EVENTS)
@settings(max_examples=60, deadline=None)
def test_on_disk_it_is_what_it_is_in_memory(tmp_path_factory: Any, events: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("archive")
    path, model = folder / "a.db", MemoryArchive()
    archive: MemoryArchive = SqliteArchive.open(path, IDENTITY)
    for what, number, speed in events:
        made = candidate(name=f"c{number % 7}")
        if what == "reserve":
            assert archive.reserve() >= max((a.number for a in model.attempts), default=0)
        elif what == "begin" and number in {a.number for a in model.attempts}:
            continue  # a number is begun once
        elif what != "begin" and any(
            c.id == made.id and a.number != number for a, c in model.unfinished
        ):
            continue  # it waits for its own verdict
        elif what == "complain" and number in {a.number for a, _ in model.unfinished}:
            continue  # what was begun ends with a verdict
        elif what == "begin":
            both = [a.begin(begun(number), made) for a in (archive, model)]
            assert both[0] == both[1]
        elif what == "reopen":
            archive.close()
            archive = SqliteArchive.open(path, IDENTITY)
        else:
            one = attempt(number, speed, made, full=what == "full", island=number % 4)
            if what == "complain":
                one = replace(one, proposal=None, fitness=None, cell=None, complaint="no")
            for a in (archive, model):
                a.add(one)
        assert list(archive.attempts) == list(model.attempts)
        assert list(archive.unfinished) == list(model.unfinished)
        assert archive.cost == model.cost
        assert [archive.elites(i) for i in range(4)] == [model.elites(i) for i in range(4)]
    archive.close()
    shutil.rmtree(folder)


# --- kill -9 ------------------------------------------------------------------------------------


@pytest.fixture
def searches() -> Iterator[Any]:
    """Search in a folder for so long; True when it came to its end before it was killed."""
    command = [sys.executable, str(HELPERS / "archive_child.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **pipes) as server:
        assert server.stdin is not None and server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def run(folder: Path, seconds: float) -> bool:
            stdin.write(f"{folder}\n")
            child = int(stdout.readline())
            time.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):  # it has come to its end
                os.kill(child, signal.SIGKILL)
            status = int(stdout.readline())
            assert status in (0, signal.SIGKILL)
            return status == 0

        yield run
        stdin.close()


def test_no_evaluation_is_lost_or_repeated_wherever_it_is_killed(
    tmp_path: Path, searches: Any
) -> None:
    """One search after the other, each killed at random points until it has come to its end."""
    draw, kills, number = random.Random(5), 0, 0
    while kills < KILLS:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        begun = kills
        # However slow the machine is, each comes to its end.
        while not searches(folder, draw.uniform(0.0, max(0.2, 0.01 * (kills - begun)))):
            kills += 1
        log = archive_child.logged(folder / "log.jsonl")
        asked = [(name, full) for name, full, _ in log]
        assert len(asked) == len(set(asked))
        archive = SqliteArchive.open(folder / "search.db", archive_child.IDENTITY)
        found = {a.candidate.id: a for a in archive.attempts if a.candidate}
        pending = {made.id for _, made in archive.unfinished}
        assert archive.problems == ()
        for name, full, proposal in log:
            assert name in found and name not in pending
            assert found[name].complete or not full
            if full == found[name].complete:
                assert found[name].proposal == proposal
        assert len(found) >= archive_child.CANDIDATES
        archive.close()
