"""What the journal survives: damage, two editors, kill -9, no disk, a full disk, a vanished
file."""

import errno
import inspect
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kernel_lsp.commands.app import app
from kernel_lsp.errors import JournalError
from kernel_lsp.journal import database
from kernel_lsp.journal.store import Journal
from kernel_lsp.records import Event, EventKind


def event(number: int, client: str = "test") -> Event:
    time = f"2026-01-02T03:04:05.{number:06d}+00:00"
    return Event(
        kind=EventKind.OFFERED, proposal=f"p{number}", time=time, folder="/w", client=client
    )


def proposals(path: Path) -> list[str]:
    """Which events the file has, read by sqlite3 itself."""
    with sqlite3.connect(path) as connection:
        return sorted(row[0] for row in connection.execute("SELECT proposal FROM events"))


def run(code: str, *arguments: str | Path, wait: bool = True) -> subprocess.Popen[bytes]:
    header = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        from pathlib import Path
        from kernel_lsp.journal.store import Journal
        from kernel_lsp.records import Event, EventKind
        path = Path(sys.argv[1])
    """
    program = "\n".join([textwrap.dedent(header), inspect.getsource(event), textwrap.dedent(code)])
    argv = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    if wait:
        assert process.wait(240) == 0
        assert process.stdout is not None
        process.stdout.close()
    return process


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "journal.db"


def written(path: Path, count: int = 200) -> None:
    with Journal.open(path) as journal:
        journal.record([event(i) for i in range(count)])


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"this is a shopping list, not a database\n" * 99),
        lambda path: overwrite(path, 0, b"\0" * 100),
        lambda path: overwrite(path, 4096, os.urandom(40_000)),
        lambda path: os.truncate(path, path.stat().st_size // 2 + 7),
    ],
    ids=["not a database", "no header", "noise in the pages", "cut off"],
)
def test_a_damaged_file_is_set_aside_whole_and_a_new_one_works(path: Path, damage: object) -> None:
    written(path)
    damage(path)  # type: ignore[operator]
    content = path.read_bytes()
    with Journal.open(path) as journal:
        journal.record([event(1)])
        (problem,) = journal.problems
    assert "damaged" in problem.cause and "set aside as" in problem.cause and problem.remedy
    (aside,) = path.parent.glob("journal.corrupt-*.db")
    assert aside.read_bytes() == content and str(aside) in problem.cause
    assert proposals(path) == ["p1"]


def test_damage_during_a_session_costs_the_old_rows_and_not_the_new(path: Path) -> None:
    written(path)
    with Journal.open(path) as journal:
        journal.record([event(900)])
        size = path.stat().st_size
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        overwrite(path, 0, os.urandom(size))
        journal.record([event(901)])
        journal.record([event(902)])
        assert any("damaged" in p.cause for p in journal.problems)
    assert proposals(path) == ["p901", "p902"]
    assert len(list(path.parent.glob("journal.corrupt-*.db"))) == 1


def test_an_empty_file_is_a_new_journal_and_no_damage(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with Journal.open(path) as journal:
        journal.record([event(1)])
        assert journal.problems == ()


def test_a_file_deleted_under_us_is_made_again(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record([event(1)])
        for file in path.parent.iterdir():
            file.unlink()
        journal.record([event(2)])
    assert proposals(path) == ["p2"]


def test_without_a_disk_everything_waits_in_memory_and_is_written_when_there_is_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RETRY_S", 0.0)
    path.parent.touch()  # a file where the folder should be: not even root can write there
    journal = Journal.open(path)
    for i in range(5):
        journal.record([event(i)])
    (problem,) = journal.problems
    assert "cannot be opened" in problem.cause and "kept in memory" in problem.cause
    assert problem.remedy is not None and "data_dir" in problem.remedy
    assert journal.sessions()[0].counts == {"offered": 5}, "what waits can be read"
    with pytest.raises(JournalError, match="cannot be written"):
        journal.forget(everything=True)
    path.parent.unlink()
    journal.record([event(5)])
    assert journal.sessions()[0].counts == {"offered": 6}
    journal.close()
    assert proposals(path) == [f"p{i}" for i in range(6)]


def test_a_disk_that_comes_back_only_at_the_end_gets_everything(path: Path) -> None:
    path.parent.touch()
    journal = Journal.open(path)
    for i in range(3):
        journal.record([event(i)])
    path.parent.unlink()
    journal.close()
    assert proposals(path) == ["p0", "p1", "p2"]


def test_what_could_never_be_saved_is_said_at_the_end(path: Path) -> None:
    path.parent.touch()
    journal = Journal.open(path)
    journal.record([event(1)])
    journal.close()
    assert "could not be saved" in journal.problems[-1].cause


def test_a_full_disk_loses_nothing(path: Path) -> None:
    """A file size limit stands for the full disk; SQLite sees the same refusal from write()."""
    code = """
        import resource
        from kernel_lsp.journal import database
        database.RETRY_S = 0.0
        journal = Journal.open(path)
        journal.record([event(0)])
        size = max(p.stat().st_size for p in path.parent.iterdir())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        for start in range(1, 2000, 100):
            journal.record([event(i) for i in range(start, start + 100)])
        assert "kept in memory" in journal.problems[0].cause, journal.problems
        assert len(journal.problems) == 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        journal.record([event(9999)])
        journal.close()
        assert len(journal.problems) == 1
    """
    path.parent.mkdir()
    run(code, path)
    assert len(proposals(path)) == 2002


def editor(path: Path, who: int) -> None:
    database.BUSY_TIMEOUT_S = 120.0  # eight may wait for each other as long as a slow disk takes
    journal = Journal.open(path)
    for i in range(25):
        first = who * 10_000 + i * 2
        journal.record([event(first, f"editor {who}"), event(first + 1, f"editor {who}")])
    journal.close()
    assert not journal.problems, journal.problems


def test_eight_editors_write_at_once_and_nothing_is_lost(path: Path) -> None:
    # Forked: eight imports of SQLAlchemy would take longer than the writing.
    editors = [
        multiprocessing.get_context("fork").Process(target=editor, args=(path, i)) for i in range(8)
    ]
    for process in editors:
        process.start()
    for process in editors:
        process.join(240)
    assert [process.exitcode for process in editors] == [0] * 8
    with Journal.open(path) as journal:
        assert sorted(s.counts["offered"] for s in journal.sessions()) == [50] * 8
        assert journal.problems == ()


def test_kill_9_in_the_middle_loses_at_most_the_batch_that_was_being_written(path: Path) -> None:
    code = """
        journal = Journal.open(path)
        batch = 0
        while True:
            journal.record([event(batch * 10 + i) for i in range(10)])
            print(batch, flush=True)
            batch += 1
    """
    process = run(code, path, wait=False)
    assert process.stdout is not None
    with process.stdout as lines:
        acknowledged = [int(lines.readline()) for _ in range(30)][-1]
        process.send_signal(signal.SIGKILL)
        process.wait(240)
        acknowledged = max([acknowledged, *(int(line) for line in lines.read().split())])
    with Journal.open(path) as journal:
        assert journal.problems == ()
        (summary,) = journal.sessions()
        assert summary.ended is None
    found = len(proposals(path))
    assert found % 10 == 0 and acknowledged + 1 <= found // 10 <= acknowledged + 2


def test_forgetting_while_another_editor_has_the_journal_open(path: Path) -> None:
    with Journal.open(path) as editor, Journal.open(path) as terminal:
        editor.record([event(1)])
        assert terminal.forget(everything=True).events == 1
        editor.record([event(2)])
        assert [s.counts for s in terminal.sessions()] == [{"offered": 1}]
    assert proposals(path) == ["p2"]


def test_two_editors_that_meet_the_same_damage_set_it_aside_once(path: Path) -> None:
    written(path)
    with Journal.open(path) as one, Journal.open(path) as two:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        overwrite(path, 0, os.urandom(path.stat().st_size))
        for number, journal in enumerate([one, two, one, two]):
            journal.record([event(900 + number)])
    assert proposals(path) == ["p900", "p901", "p902", "p903"]
    assert len(list(path.parent.glob("journal.corrupt-*.db"))) == 1


def test_a_journal_made_unreadable_between_two_sessions_is_said_and_not_fatal(path: Path) -> None:
    path.parent.mkdir()
    path.mkdir()  # a folder in its place: cannot be opened, cannot be set aside
    journal = Journal.open(path)
    journal.record([event(1)])
    assert "cannot be opened" in journal.problems[0].cause
    path.rmdir()
    journal.close()
    assert proposals(path) == ["p1"]


def listed(path: Path) -> Result:
    return CliRunner().invoke(
        app, ["sessions", "list"], env={"KERNEL_LSP_DATA_DIR": str(path.parent)}
    )


def test_a_journal_that_cannot_be_written_is_listed_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to be empty."""
    written(path, 3)
    refused = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(database.Database, "_connect", Mock(side_effect=refused))
    found = listed(path)
    assert found.exit_code == 0 and "test" in found.stdout and "Read-only" in found.stderr
    with Journal.open(path) as journal:
        assert journal.unread is None
        journal.record([event(3)])
        assert journal.sessions()[0].counts == {"offered": 1}
        assert journal.sessions()[1].counts == {"offered": 3}


def test_a_journal_that_cannot_be_read_is_not_called_empty(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.01)
    written(path, 3)
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        found = listed(path)
        other.rollback()
    other.close()
    assert found.exit_code == 2 and "database is locked" in found.stderr
    assert "empty" not in found.stdout
    path.unlink()
    path.mkdir()
    found = listed(path)
    assert found.exit_code == 2 and "Is a directory" in found.stderr
