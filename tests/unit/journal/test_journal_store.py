"""What goes into the journal comes out again, once, and nothing else goes in."""

import contextlib
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from journal_schemas import JOURNALS, schema_of
from sqlalchemy import create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable
from typer.testing import CliRunner

from kernel_lsp import wire
from kernel_lsp.commands.app import app
from kernel_lsp.commands.report import gather_facts
from kernel_lsp.errors import JournalError
from kernel_lsp.journal import columns, migrations, open_journal, privacy
from kernel_lsp.journal.models import Base
from kernel_lsp.journal.store import Forgotten, Journal, default_path
from kernel_lsp.journal.tracker import Identity, Offer, Tracker, is_silenced
from kernel_lsp.presenter import sessions
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    Event,
    EventKind,
    Interval,
    Proposal,
    SourceEdit,
    Step,
    Verdict,
    Workload,
    WorkloadOrigin,
)

SECRET = "class Net:  # the crown jewels"
FOLDER = "/home/ada/enigma"


def event(kind: str = "offered", second: int = 0, **changes: object) -> Event:
    base = Event(
        kind=EventKind(kind),
        proposal="p1",
        time=f"2026-01-02T03:04:{second:02d}.500+00:00",
        folder=FOLDER,
        path="src/net.py",
        qualname="Net",
        client="Neovim 0.10",
        data={"before": "A"},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def proposal(**changes: object) -> Proposal:
    where = f"{FOLDER}/src/net.py"
    detail = f'Traceback:\n  File "{where}", line 3\n    {SECRET}\nRuntimeError: in {where}'
    base = Proposal(
        id="p1",
        fingerprint="A",
        fingerprint_after="B",
        qualname="Net",
        workload=Workload(name="w", origin=WorkloadOrigin.PRAGMA),
        candidate=Candidate(
            id="c1",
            edit=SourceEdit(qualname="Net", imports=("import torch",), target=SECRET),
            program=f"import torch\n{SECRET}",
            entry="Net",
            steps=(
                Step(skill="fuse", site="s"),
                Step(skill="fuse", site="t"),
                Step(skill="hoist", site="u"),
            ),
        ),
        evaluation=Evaluation(
            status=EvalStatus.PASSED,
            device="cpu",
            detail=detail,
            speedups={"eager": Interval(low=1.4, mid=1.5, high=1.6)},
            environment={"python": "/home/ada/venv/bin/python", "torch": "2.13.0"},
        ),
        verdict=Verdict.FASTER,
        created="2026-01-02T03:04:05+00:00",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def save(journal: Journal, keep_source: bool = False, **changes: object) -> None:
    journal.save(proposal(**changes), folder=FOLDER, path="src/net.py", keep_source=keep_source)


def on_disk(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file())


def test_events_come_back_in_order_across_processes_lives(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record([event("chosen", 2), event("offered", 1)])
    with Journal.open(path) as journal:
        (summary,) = journal.sessions()
        again, events = journal.session(summary.id[:6])
    assert again == summary and summary.client == "Neovim 0.10" and summary.ended is not None
    assert summary.counts == {"chosen": 1, "offered": 1}
    assert [e.kind.value for e in events] == ["offered", "chosen"]
    assert events[0] == event("offered", 1, folder=privacy.folder_key(FOLDER))


def test_an_event_sent_twice_counts_once(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record([event(), event("chosen", 1)])
        journal.record([event("chosen", 1), event("accepted", 2)])
    with Journal.open(path) as journal:
        journal.record([event()])
        totals = [summary.counts for summary in journal.sessions() if summary.counts]
    assert totals == [{"accepted": 1, "chosen": 1, "offered": 1}]


def test_each_editor_and_folder_is_a_session_of_its_own(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record(
            [event(), event(client="Emacs 30"), event(folder="/srv/other"), event(second=1)]
        )
        clients = {(s.client, s.folder) for s in journal.sessions()}
        assert len(clients) == len(journal.sessions()) == 3
        assert len(journal.sessions(folder="/srv/other")) == 1


@pytest.mark.parametrize("identifier", ["nothing", ""])
def test_a_session_that_is_not_one_is_refused(path: Path, identifier: str) -> None:
    with Journal.open(path) as journal:
        journal.record([event(), event(client="Emacs 30")])
        with pytest.raises(JournalError, match="session"):
            journal.session(identifier)


def test_without_consent_no_source_and_no_absolute_path_reaches_the_disk(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record(
            [event(path=f"{FOLDER}/src/net.py", data={"reason": f"see {FOLDER}/src/net.py"})]
        )
        save(journal)
        (stored,) = journal.proposals()
    raw = on_disk(path.parent)
    assert b"crown jewels" not in raw and b"/home/ada" not in raw and b"src/net.py" in raw
    assert stored.proposal.candidate.program == "" and stored.proposal.candidate.edit is None
    assert stored.hashes["program"] == privacy.sha256(proposal().candidate.program)
    assert stored.proposal.evaluation.detail == "Traceback:\n...\nRuntimeError: in .../net.py"
    assert stored.proposal.evaluation.environment == {"python": ".../python", "torch": "2.13.0"}
    assert stored.proposal.evaluation.speedup == Interval(low=1.4, mid=1.5, high=1.6)


def test_with_consent_the_whole_candidate_comes_back(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, keep_source=True)
        (stored,) = journal.proposals()
    assert stored.keep_source and stored.proposal.candidate == proposal().candidate


def test_saving_again_replaces_and_consent_withdrawn_removes_the_text(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, keep_source=True)
        save(journal, verdict=Verdict.REJECTED)
        (stored,) = journal.proposals()
    assert stored.proposal.verdict is Verdict.REJECTED and stored.proposal.candidate.program == ""


def test_proposals_are_found_by_folder_session_and_id(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal)
        save(journal, id="p2")
        journal.save(proposal(), folder="/srv/other", path="net.py", keep_source=False)
        session = journal.sessions(folder="/srv/other")[0].id
        assert [s.proposal.id for s in journal.proposals(folder=FOLDER + "/")] == ["p1", "p2"]
        assert [s.folder for s in journal.proposals(session=session)] == [
            privacy.folder_key("/srv/other")
        ]
        assert len(journal.proposals(proposal="p1")) == 2 and len(journal.proposals()) == 3


def test_a_dismissal_silences_in_its_folder_only(path: Path) -> None:
    offer = Offer(
        proposal="p1",
        identity=Identity(folder=FOLDER, path="src/net.py", qualname="Net"),
        before="A",
        after="B",
        skills=("fuse",),
    )
    tracker = Tracker("s")
    tracker.offered(offer, 100.0)
    with Journal.open(path) as journal:
        journal.record(tracker.dismissed("p1", "proposal", "wrong", 101.0))
        assert is_silenced(offer, journal.dismissals(FOLDER), 102.0)
        assert journal.dismissals("/srv/other") == ()


def test_the_tracker_goes_on_after_a_restart(path: Path) -> None:
    identity = Identity(folder=FOLDER, path="net.py", qualname="Net")
    offer = Offer(proposal="p1", identity=identity, before="A", after="B")
    tracker = Tracker("s1")
    tracker.chosen(offer, 1.0)
    tracker.observed(identity, "B", "save", 2.0)
    with Journal.open(path) as journal:
        journal.save_tracker(tracker.export())
    assert b"/home/ada" not in on_disk(path.parent)
    with Journal.open(path) as journal:
        again = Tracker.restore(journal.tracker_state(FOLDER), session="s2")
        assert Tracker.restore(journal.tracker_state("/srv/other")).phase("p1") is None
    assert [e.kind.value for e in again.observed(identity, "A", "open", 3.0)] == ["reverted"]


def test_what_was_only_shown_is_not_carried_into_the_next_session(path: Path) -> None:
    identity = Identity(folder=FOLDER, path="net.py", qualname="Net")
    tracker = Tracker("s")
    tracker.offered(Offer(proposal="shown", identity=identity, before="A", after="B"), 1.0)
    tracker.chosen(Offer(proposal="taken", identity=identity, before="A", after="C"), 1.0)
    with Journal.open(path) as journal:
        journal.save_tracker(tracker.export())
        kept = journal.tracker_state(FOLDER)["proposals"]
    assert [item["offer"]["proposal"] for item in kept] == ["taken"]


def test_of_two_editors_states_the_later_one_stays(path: Path) -> None:
    identity = Identity(folder=FOLDER, path="net.py", qualname="Net")
    old, new = Tracker("old"), Tracker("new")
    old.chosen(Offer(proposal="p1", identity=identity, before="A", after="B"), 1.0)
    new.chosen(Offer(proposal="p1", identity=identity, before="A", after="B"), 1.0)
    new.observed(identity, "B", "change", 2.0)
    with Journal.open(path) as journal:
        journal.save_tracker(new.export())
        journal.save_tracker(old.export())
        phase = Tracker.restore(journal.tracker_state(FOLDER)).phase("p1")
    assert phase is not None and phase.value == "accepted"


def test_forgetting_everything_leaves_no_trace_in_any_file(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record([event(data={"note": "unforgettable"})])
        save(journal, keep_source=True)
        (path.parent / "journal.corrupt-20260101T000000.db").write_bytes(b"unforgettable")
        assert b"crown jewels" in on_disk(path.parent)
        assert journal.forget(everything=True) == Forgotten(sessions=2, events=1, proposals=1)
        raw = on_disk(path.parent)
        assert b"crown jewels" not in raw and b"unforgettable" not in raw and b"Net" not in raw
        journal.record([event("chosen")])  # the journal goes on
        assert [s.counts for s in journal.sessions()] == [{"chosen": 1}]


def test_forgetting_takes_only_what_was_named(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record(
            [event(), event("chosen", 30), event(folder="/srv/other", client="Emacs 30")]
        )
        save(journal)
        cut = 1767323040.0 + 10  # 2026-01-02T03:04:10Z
        assert journal.forget(older_than=cut, folder=FOLDER).events == 1
        assert journal.forget(folder="/srv/other") == Forgotten(sessions=1, events=1, proposals=0)
        left = next(s for s in journal.sessions() if s.counts)
        assert left.counts == {"chosen": 1}
        assert journal.forget(session=left.id[:8]) == Forgotten(sessions=1, events=1, proposals=0)
        assert len(journal.proposals()) == 1


def test_forgetting_nothing_in_particular_is_refused(path: Path) -> None:
    with Journal.open(path) as journal, pytest.raises(JournalError, match="nothing was named"):
        journal.forget()


def test_the_export_is_plain_json_with_everything(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record([event()])
        save(journal)
        data = journal.export()
    assert data["schema_version"] == 1 and wire.dumps(data)
    assert [e["kind"] for s in data["sessions"] for e in s["events"]] == ["offered"]
    assert data["proposals"][0]["proposal"]["verdict"] == "faster"


def test_a_newer_schema_is_refused_and_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(migrations, "NEWEST", 5)
        Journal.open(path).close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="schema 5, written by a newer kernel-lsp") as error:
        Journal.open(path)
    assert (
        error.value.remedy is not None
        and "upgrade" in error.value.remedy
        and path.read_bytes() == before
    )


def test_an_older_journal_is_migrated_once_and_whole(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(path) as journal:
        journal.record([event()])
    shutil.copytree(migrations.SCRIPTS, tmp_path / "scripts")
    monkeypatch.setattr(migrations, "SCRIPTS", tmp_path / "scripts")
    ran = tmp_path / "ran"

    def script(number: int, *lines: str) -> Path:
        body = [
            "from alembic import op",
            "from pathlib import Path",
            "from kernel_lsp.errors import JournalError",
            f'revision, down_revision = "{number}", "{number - 1}"',
            "def upgrade():",
            *(f"    {line}" for line in lines),
        ]
        made = tmp_path / "scripts" / "versions" / f"v{number}_added.py"
        made.write_text("\n".join(body) + "\n")
        return made

    script(
        migrations.NEWEST + 1,
        "op.execute('ALTER TABLE events ADD COLUMN note TEXT')",
        f"ran = Path({str(ran)!r})",
        "ran.write_text((ran.read_text() if ran.exists() else '') + 'x')",
    )
    failing = script(migrations.NEWEST + 2, "raise JournalError('second step failed')")
    monkeypatch.setattr(migrations, "NEWEST", migrations.NEWEST + 2)
    with pytest.raises(JournalError, match="second step"):
        Journal.open(path)
    failing.unlink()
    monkeypatch.setattr(migrations, "NEWEST", migrations.NEWEST - 1)
    for _ in range(2):
        with Journal.open(path) as journal:
            assert [s.counts for s in journal.sessions()] == [{"offered": 1}]
    assert ran.read_text() == "xx"  # rolled back with the failed run, then for good


def test_the_newest_number_is_that_of_the_last_script() -> None:
    numbers = sorted(
        int(path.stem.split("_")[0].removeprefix("v"))
        for path in (migrations.SCRIPTS / "versions").glob("v*.py")
    )
    assert numbers == list(range(1, migrations.NEWEST + 1))


def test_a_migrated_journal_equals_a_fresh_one(tmp_path: Path) -> None:
    made = []
    for name, make in (
        ("fresh", migrations.migrate),
        ("migrated", lambda connection: migrations.upgrade(connection, None)),
    ):
        engine = create_engine(f"sqlite:///{tmp_path / name}")
        with engine.begin() as connection:
            make(connection)
            made.append(schema_of(connection))
        engine.dispose()
    assert made[0] == made[1]
    assert {"proposals", "schema_version"} <= made[0].keys() and "alembic_version" not in made[0]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_journal_that_the_functions_before_alembic_made_opens(path: Path, version: int) -> None:
    """tests/cases/journals: `sqlite3 journal.db .dump` of those that these wrote."""
    dumped = JOURNALS / f"schema-{version}.sql"
    with sqlite3.connect(path) as older:
        older.executescript(dumped.read_text())
    older.close()
    with Journal.open(path) as journal:
        (stored,) = journal.proposals()
        assert [s.counts for s in journal.sessions() if s.counts] == [{"offered": 1}]
        journal.record([event(second=1)])
    assert stored.training is (None if version == 1 else True)
    fresh = create_engine("sqlite://")
    opened = create_engine(f"sqlite:///{path}")
    with fresh.begin() as one, opened.begin() as other:
        migrations.migrate(one)
        assert schema_of(one) == schema_of(other)
    for engine in (fresh, opened):
        engine.dispose()


def test_rows_from_before_training_was_asked_about_say_neither_yes_nor_no(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, keep_source=True)
    with sqlite3.connect(path) as older:
        older.execute("ALTER TABLE proposals DROP COLUMN training")
        older.execute("UPDATE schema_version SET version = 1")
    with Journal.open(path) as journal:
        (stored,) = journal.proposals()
        journal.save(
            proposal(id="p2"),
            folder=FOLDER,
            path="n.py",
            keep_source=True,
            training=True,
            reference="R",
        )
        later = journal.proposals(proposal="p2")[0]
    assert stored.training is None and stored.reference is None
    assert later.training is True and later.reference == "R"


def test_the_program_before_is_source_text_too(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.save(
            proposal(),
            folder=FOLDER,
            path="n.py",
            keep_source=False,
            training=True,
            reference="R" * 999,
        )
        (stored,) = journal.proposals()
    assert stored.reference is None and b"R" * 999 not in on_disk(path.parent)


def test_the_file_is_the_users_alone(path: Path) -> None:
    Journal.open(path).close()
    assert path.stat().st_mode & 0o077 == 0


def test_the_place_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "here"))
    assert default_path() == tmp_path / "here" / "journal.db"
    assert open_journal(tmp_path / "there").path == tmp_path / "there" / "journal.db"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("/home/ada/x.py", ".../x.py"),
        ('File "/home/ada/x.py", line 3', 'File ".../x.py", line 3'),
        (r"C:\Users\ada\x.py failed", ".../x.py failed"),
        ("a/b x / y 3//4 src/net.py", "a/b x / y 3//4 src/net.py"),
        ("2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05+00:00"),
        ("/tmp", "/tmp"),
        ("see /home/ada/", "see .../"),
    ],
)
def test_absolute_paths_shrink_to_their_last_part(text: str, short: str) -> None:
    assert privacy.redact([{"k": text}]) == [{"k": short}]


def test_a_folder_reached_through_a_link_is_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert privacy.folder_key(str(tmp_path / "link")) == privacy.folder_key(str(tmp_path / "real"))


def test_a_folder_key_is_readable_stable_and_no_path() -> None:
    key = privacy.folder_key("/home/ada/enigma")
    assert key is not None and key.startswith("enigma-") and "/" not in key and "ada" not in key
    assert (
        key
        == privacy.folder_key("/home/ada/enigma/")
        == privacy.folder_key("/home/ada/x/../enigma")
    )
    assert key != privacy.folder_key("/home/bob/enigma") and privacy.folder_key("/") is not None


def test_every_table_is_one_that_postgresql_takes_too() -> None:
    for table in Base.metadata.sorted_tables:
        ddl = str(CreateTable(table).compile(dialect=postgresql.dialect()))
        assert ddl.strip().startswith("CREATE TABLE") and "DATETIME" not in ddl


def damage(path: Path) -> None:
    """What a teammate's newer client, or anybody who may write, puts beside our rows."""
    with sqlite3.connect(path) as connection:
        (session,) = connection.execute("SELECT id FROM sessions").fetchone()
        columns = "digest, session, kind, proposal, time, folder, path, qualname, client, data"
        rows = [
            ("x1", session, "praised", "p1", 1.0, "{}"),
            ("x2", session, "offered", "p1", 1e300, "{}"),
            ("x3", session, "modified", "p1", 3.0, '{"by": 7}'),
            ("x4", session, "refused", "p1", 4.0, '{"client_said": "no"}'),
            ("x5", session, "dismissed", "p1", 5.0, "[1]"),
        ]
        connection.executemany(
            f"INSERT INTO events ({columns}) VALUES (?,?,?,?,?,NULL,NULL,NULL,NULL,?)", rows
        )
        connection.execute(
            "INSERT INTO proposals SELECT 'p2', folder, path, session, saved, qualname, verdict, "
            "status,"
            " device, device_name, speedup_low, speedup_mid, speedup_high, skills, version, "
            "keep_source,"
            ' \'{"verdict": "splendid"}\', training FROM proposals'
        )
        connection.execute("UPDATE sessions SET started = 1e300")
    connection.close()


def test_a_row_that_would_fill_the_memory_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_CHARS", 1000)
    with Journal.open(tmp_path / "journal.db") as journal:
        journal.record([event(), event(second=1, data={"x": "a" * 1000})])
        (session,) = journal.sessions()
        assert session.counts == {"offered": 2}
        for read in (journal.session(session.id)[1], journal.events()):
            assert [one.data for one in read] == [{"before": "A"}]


ODD_VALUES = (
    "x'00ff80'",
    "cast(x'ff80' as text)",
    "9223372036854775807",
    "9e999",
    "'no JSON'",
    "char(0) || 'abc'",
    "''",
    "NULL",
    "'[1, 2]'",
    f"'{'[' * 5000}'",
    f"""'{'{"a":' * 900}1{"}" * 900}'""",
    "printf('%.*c', 20000, 'x')",
)
"""As SQL. Any column of SQLite may hold any of them."""


KEYS = {
    "sessions": {"id"},
    "events": {"id", "digest"},
    "proposals": {"id"},
    "sources": {"field"},
    "tracker": {"target"},
}
"""Columns by which a copy of a row is another row."""


def spoil(path: Path) -> None:
    """Put copies of the first row of each table beside it, each with one odd value."""
    with sqlite3.connect(path) as connection:
        for table, keys in KEYS.items():
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            changes = [(name, value) for name in names for value in ODD_VALUES]
            for number, (name, value) in enumerate(changes, start=1000):
                copied = [str(number) if n in keys else n for n in names]
                copied[names.index(name)] = value
                with contextlib.suppress(sqlite3.IntegrityError):  # an id that is no number
                    connection.execute(
                        f"INSERT OR IGNORE INTO {table} SELECT {', '.join(copied)} FROM {table} "
                        "WHERE rowid = 1"
                    )
    connection.close()


def test_no_row_of_ones_own_journal_hides_the_others(path: Path, tmp_path: Path) -> None:
    """Bytes in a column of names ended `sessions list`, text that is no JSON `sessions show`."""
    identity = Identity(folder=FOLDER, path="net.py", qualname="Net")
    tracker = Tracker("s1")
    tracker.chosen(Offer(proposal="p1", identity=identity, before="A", after="B"), 1.0)
    tracker.observed(identity, "B", "save", 2.0)
    with Journal.open(path) as journal:
        journal.record([event("dismissed")])
        save(journal, keep_source=True)
        journal.save_tracker(tracker.export())
        (first,) = (summary.id for summary in journal.sessions() if summary.counts)
    spoil(path)
    with Journal.open(path) as journal:
        assert first in sessions.sessions_text(journal.sessions())
        assert first in sessions.sessions_json(journal.sessions(folder=FOLDER))
        for shown in (sessions.session_text, sessions.session_json):
            assert "Net" in shown(*journal.session(first))
        assert journal.dismissals(FOLDER) and journal.events(EventKind.DISMISSED)
        candidates = [kept.proposal.candidate for kept in journal.proposals()]
        assert proposal().candidate in candidates
        assert Tracker.restore(journal.tracker_state(FOLDER), session="s2").phase("p1")
        assert first in wire.dumps(journal.export())
        gather_facts(journal, tmp_path, [], [])
        assert journal.forget(everything=True).sessions > 50
        assert not journal.problems


def test_a_lost_table_is_made_again_and_foreign_ones_are_said(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.record([event()])
        save(journal)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE events")
    connection.close()
    with Journal.open(path) as journal:
        journal.record([event()])
        assert journal.proposals() and journal.events()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE sessions RENAME COLUMN client TO editor")
    connection.close()
    with Journal.open(path) as journal:
        with pytest.raises(JournalError, match="no such column") as raised:
            journal.sessions()
        assert raised.value.remedy is not None and "move the file away" in raised.value.remedy


@pytest.mark.parametrize("version", ["'two'", "x'00'", "-1", "1e300"])
def test_a_schema_that_is_no_number_is_refused(path: Path, version: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE schema_version (version)")
        connection.execute(f"INSERT INTO schema_version VALUES ({version})")
    connection.close()
    with pytest.raises(JournalError, match="never existed"):
        Journal.open(path)


def test_rows_that_this_version_cannot_read_are_kept_and_passed_over(
    path: Path, tmp_path: Path
) -> None:
    """One of them ended `sessions show` and `report`."""
    with Journal.open(path) as journal:
        journal.record([event("offered"), event("accepted", 1)])
        journal.save(
            proposal(), folder=FOLDER, path="src/net.py", keep_source=False, client="Neovim 0.10"
        )
    damage(path)
    with Journal.open(path) as journal:
        (summary,) = journal.sessions()
        _, events = journal.session(summary.id)
        kinds = ["modified", "refused", "dismissed", "offered", "accepted"]
        assert [one.kind.value for one in events] == kinds
        assert journal.events(EventKind.ACCEPTED) and len(journal.proposals()) == 1
        assert journal.dismissals(FOLDER) == () and journal.export()["proposals"]
        gather_facts(journal, tmp_path, [], [])
    shown = CliRunner().invoke(
        app, ["sessions", "show", summary.id], env={"KERNEL_LSP_DATA_DIR": str(path.parent)}
    )
    assert (
        shown.exit_code == 0 and "not shown: 2 events that this version cannot read" in shown.output
    )
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (7,), (
            "nothing is removed"
        )
    connection.close()
