"""A team's journal in a real PostgreSQL: eight writers, a server that goes away, rows that stay
one's own."""

import multiprocessing
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from journal_schemas import schema_of
from postgres_server import Postgres, programs
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InternalError
from test_journal_store import FOLDER, SECRET, event, proposal
from typer.testing import CliRunner

from kernel_lsp.commands import sessions
from kernel_lsp.errors import JournalError
from kernel_lsp.journal import migrations, remote
from kernel_lsp.journal.store import Journal
from kernel_lsp.journal.tracker import Identity, Offer, Tracker
from trainer.data import corpora, journals, reading
from trainer.records import Human

pytestmark = pytest.mark.skipif(
    programs() is None, reason="no PostgreSQL (scripts/setup installs it)"
)
ROOT = Path(__file__).parents[3]
FORK = multiprocessing.get_context("fork")
"""Eight fresh interpreters that import SQLAlchemy take half a minute on two busy cores."""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    made = Postgres(programs() or Path())
    yield made
    made.remove()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow to answer is there."""
    monkeypatch.setattr(remote, "CONNECT_S", 60)


@pytest.fixture
def url(server: Postgres) -> str:
    server.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public;")
    return server.url


def test_what_goes_in_comes_out_as_from_a_file(url: str, tmp_path: Path) -> None:
    found = []
    for place in (url, tmp_path / "file.db"):
        with Journal.open(place, data_dir=tmp_path / "ada") as journal:
            journal.record([event("chosen", 2), event("offered", 1), event("offered", 1)])
            for keep_source in (False, True):
                journal.save(
                    proposal(id=f"p{keep_source}"), folder=FOLDER, path="n.py",
                    keep_source=keep_source,
                    training=keep_source, reference=SECRET, client="Neovim 0.10",
                )  # fmt: skip
            journal.save_tracker(_tracked("p1").export())
            (session,) = journal.sessions(folder=FOLDER)
            events = [e.kind for e in journal.session(session.id)[1]]
            stored = journal.proposals(folder=FOLDER)
            state = journal.tracker_state(FOLDER)["proposals"]
            assert journal.problems == ()
        found.append(
            (events, [(p.proposal, p.training, p.reference, p.hashes) for p in stored], len(state))
        )
    assert found[0] == found[1]
    assert [(p[1], p[2]) for p in found[0][1]] == [(False, None), (True, SECRET)]


def test_eight_writers_at_once_lose_and_double_nothing(
    server: Postgres, url: str, tmp_path: Path
) -> None:
    each = 12
    ready = FORK.Barrier(8)
    writers = [
        FORK.Process(
            target=_write, args=(url, tmp_path / "shared", tmp_path / f"{n}", n * each, each, ready)
        )
        for n in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(240)
    assert [writer.exitcode for writer in writers] == [0] * 8
    said = [(tmp_path / f"{n}").read_text().split() for n in range(8)]
    assert said == [[str(number) for number in range(n * each, (n + 1) * each)] for n in range(8)]
    assert (
        server.sql("SELECT count(*), count(DISTINCT id) FROM proposals") == f"{8 * each}|{8 * each}"
    )
    assert server.sql("SELECT count(*) FROM events WHERE proposal <> 'everybody''s'") == str(
        8 * each
    )
    assert server.sql("SELECT count(*) FROM events WHERE proposal = 'everybody''s'") == "1"
    assert server.sql("SELECT count(*) FROM sessions WHERE ended IS NULL") == "0"
    assert server.sql("SELECT version FROM schema_version") == "3"


def test_a_server_that_crashes_and_comes_back_costs_nothing(
    server: Postgres, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RETRY_S", 0.0)
    with Journal.open(url, data_dir=tmp_path) as journal:
        journal.record([event(proposal="before")])
        server.stop()
        try:
            journal.record([event(proposal="during")])
            journal.save(proposal(id="during"), folder=FOLDER, path="n.py", keep_source=True)
            with pytest.raises(JournalError, match="does not answer"):
                journal.sessions()
            (problem,) = journal.problems
            assert "events wait in" in problem.cause and "ada@" in problem.cause
        finally:
            server.start()
        journal.record([event(proposal="after")])
        assert [p.proposal.id for p in journal.proposals()] == ["during"]
    assert (
        server.sql("SELECT string_agg(proposal, ' ' ORDER BY id) FROM events")
        == "before during after"
    )
    assert _waiting(tmp_path) == 0


def test_what_a_killed_process_could_not_deliver_the_next_one_does(
    server: Postgres, url: str, tmp_path: Path
) -> None:
    with Journal.open(url, data_dir=tmp_path):
        pass
    said = tmp_path / "said"
    writer = FORK.Process(target=_write, args=(url, tmp_path, said, 0, 100_000))
    writer.start()
    _until(lambda: _lines(said) >= 5)
    server.stop()
    try:
        cut = _lines(said)
        _until(lambda: _lines(said) >= cut + 5)
        writer.kill()
        writer.join()
        last = said.read_text().split("\n")[_lines(said) - 1]
        assert _waiting(tmp_path) > 0
    finally:
        server.start()
    with Journal.open(url, data_dir=tmp_path) as journal:
        stored = {p.proposal.id for p in journal.proposals()}
    assert stored >= {f"p{number}" for number in range(int(last) + 1)} and _waiting(tmp_path) == 0


def test_without_a_server_from_start_to_end_it_says_where_the_rows_wait(
    server: Postgres, tmp_path: Path
) -> None:
    nowhere = f"postgresql+psycopg://ada:hush@/x?host={tmp_path}"
    with Journal.open(nowhere, data_dir=tmp_path) as journal:
        journal.record([event()])
    assert len(journal.problems) == 2 and not any("hush" in str(p) for p in journal.problems)
    assert "rows wait in" in journal.problems[1].cause and _waiting(tmp_path) > 0


def test_what_the_server_will_never_take_does_not_hold_up_the_rest(
    url: str, tmp_path: Path
) -> None:
    with Journal.open(tmp_path / remote.SPOOL) as spool:
        spool.record([event(client="a\0b")])
    with Journal.open(url, data_dir=tmp_path) as journal:
        journal.record([event(proposal="later")])
        assert [s.counts for s in journal.sessions()] == [{"offered": 1}]
        (problem,) = journal.problems
    assert "cannot be delivered" in problem.cause and _waiting(tmp_path) == 2


def test_each_persons_rows_are_their_own(server: Postgres, url: str, tmp_path: Path) -> None:
    with (
        Journal.open(url, data_dir=tmp_path / "ada") as ada,
        Journal.open(url, data_dir=tmp_path / "bob") as bob,
    ):
        for journal, name in ((ada, "a"), (bob, "b")):
            journal.record(
                [event("dismissed", proposal=name, data={"scope": "folder", "reason": "style"})]
            )
            journal.save(proposal(id="same"), folder=FOLDER, path="n.py", keep_source=True)
            journal.save_tracker(_tracked(name).export())
        assert len(ada.dismissals(FOLDER)) == len(ada.tracker_state(FOLDER)["proposals"]) == 1
        assert ada.forget(everything=True).proposals == 1
        assert len(ada.dismissals(FOLDER)) == 0 and len(bob.dismissals(FOLDER)) == 1
        assert len(bob.proposals()) == 1 and len(bob.tracker_state(FOLDER)["proposals"]) == 1
        assert bob.proposals()[0].proposal.candidate.program.endswith(SECRET)
    assert server.sql("SELECT count(*) FROM sources") == "3"


@pytest.fixture
def roles(server: Postgres, url: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Addresses of two teammates without special rights, as docs/how-to/team-journal.md sets them
    up."""
    Journal.open(url, data_dir=tmp_path / "admin").close()
    for name in ("bob", "eve"):
        server.sql(
            f"DROP OWNED BY {name}" if _has_role(server, name) else f"CREATE ROLE {name} LOGIN"
        )
    page = (ROOT / "docs/how-to/team-journal.md").read_text()
    (granted,) = re.findall(r"```sql\n.*?;\n(GRANT .*?)```", page, re.DOTALL)
    server.sql(granted.replace("TO bob", "TO bob, eve"))
    yield {name: server.url.replace("ada@", f"{name}@") for name in ("bob", "eve")}


def test_the_server_lets_nobody_write_under_anothers_name(
    server: Postgres, roles: dict[str, str], tmp_path: Path
) -> None:
    with Journal.open(roles["bob"], data_dir=tmp_path / "bob") as bob:
        bob.record([event("dismissed", proposal="b", data={"scope": "folder", "reason": "style"})])
        bob.save(proposal(id="b"), folder=FOLDER, path="n.py", keep_source=True)
        bob.save_tracker(_tracked("b").export())
        assert bob.problems == ()
        with Journal.open(roles["eve"], data_dir=tmp_path / "eve") as eve:
            eve.record([event(proposal="e")])
            assert eve.problems == () and len(eve.sessions()) == 3  # everybody reads
        owner = (tmp_path / "bob" / remote.OWNER).read_text()
        session = server.sql(f"SELECT id FROM sessions WHERE folder LIKE '{owner}:%' LIMIT 1")
        own = (tmp_path / "eve" / remote.OWNER).read_text()
        values = "1, 'offered', 'x', 0, NULL, NULL, NULL, '{}'"
        columns = (
            "(digest, session, folder, id, kind, proposal, time, path, qualname, client, data)"
        )
        for attack in (
            f"INSERT INTO events {columns} VALUES ('1', '{session}', '{owner}:x', {values})",
            f"INSERT INTO events {columns} VALUES ('1', '{session}', '{own}:x', {values})",
            f"INSERT INTO sessions (id, folder, version, started) VALUES ('s', '{owner}:x', "
            f"'1', 0)",
            f"INSERT INTO tracker VALUES ('{owner}:x', 'b', 't', 9e9, '{{}}')",
            f"INSERT INTO owners VALUES ('{owner}', 'eve')",
            "INSERT INTO owners VALUES ('new', 'bob')",
            f"UPDATE sessions SET folder = '{owner}:x' WHERE folder LIKE '{own}:%'",
            "ALTER TABLE events DISABLE ROW LEVEL SECURITY",
            "DROP POLICY as_oneself ON events",
        ):
            with pytest.raises(AssertionError, match=r"policy|owner|duplicate"):
                server.sql(attack, user="eve")
        for harmless in ("events", "proposals", "sources", "tracker", "sessions"):
            server.sql(f"DELETE FROM {harmless} WHERE folder LIKE '{owner}:%'", user="eve")
        server.sql(f"UPDATE owners SET role = 'eve' WHERE owner = '{owner}'", user="eve")
        server.sql("UPDATE schema_version SET version = 99", user="eve")
        assert len(bob.dismissals(FOLDER)) == len(bob.tracker_state(FOLDER)["proposals"]) == 1
        assert bob.proposals()[0].proposal.candidate.program.endswith(SECRET)
        with Journal.open(roles["eve"], data_dir=tmp_path / "eve") as eve:
            assert eve.forget(everything=True).events == 1
        assert bob.forget(everything=True).proposals == 1
        assert server.sql("SELECT count(*) FROM sources") == "0"


def test_a_machines_rows_stay_with_the_role_that_it_came_with(
    roles: dict[str, str], tmp_path: Path
) -> None:
    Journal.open(roles["bob"], data_dir=tmp_path / "bob").close()
    with pytest.raises(JournalError, match="belong to the role bob"):
        Journal.open(roles["eve"], data_dir=tmp_path / "bob")


def test_a_journal_from_before_row_security_is_brought_up(
    server: Postgres, url: str, tmp_path: Path
) -> None:
    with Journal.open(url, data_dir=tmp_path / "ada") as journal:
        journal.record([event(proposal="old")])
    for table in ("sessions", "events", "proposals", "sources", "tracker", "schema_version"):
        names = "SELECT policyname FROM pg_policies WHERE tablename"
        for policy in server.sql(f"{names} = '{table}'").split():
            server.sql(f"DROP POLICY {policy} ON {table}")
        server.sql(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY")
    server.sql("DROP TABLE owners; UPDATE schema_version SET version = 2")
    with Journal.open(url, data_dir=tmp_path / "ada") as journal:
        journal.record([event(proposal="new")])
        assert journal.problems == () and len(journal.sessions()) == 2
    assert server.sql("SELECT count(*) FROM pg_policies WHERE tablename = 'events'") == "4"
    assert server.sql("SELECT version FROM schema_version") == "3"


def test_a_migrated_journal_equals_a_fresh_one(server: Postgres, url: str, tmp_path: Path) -> None:
    Journal.open(url, data_dir=tmp_path).close()
    engine = remote.open_engine(url)
    with engine.begin() as connection:
        fresh = schema_of(connection)
        for table in (*fresh, "owners"):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table} CASCADE")
        migrations.upgrade(connection, None)
        migrated = schema_of(connection)
    engine.dispose()
    assert fresh == migrated and len(fresh["events"]["policies"]) == 4


def test_the_trainer_reads_a_teams_journal_and_cannot_change_it(url: str, tmp_path: Path) -> None:
    with Journal.open(url, data_dir=tmp_path) as journal:
        for name, training in (("a", True), ("b", False)):
            journal.save(
                proposal(id=name), folder=FOLDER, path="n.py", keep_source=True, training=training
            )
        journal.record([event("accepted", proposal="a", path="n.py")])
    corpus = corpora.read(journals=[url])
    assert [one.human for one in corpus.trajectories] == [Human.ACCEPTED]
    assert (
        corpus.reasons == {reading.REFUSED: 1}
        and corpus.trajectories[0].origin == "postgresql here/team#a"
    )
    engine, _ = journals._engine(url)
    with pytest.raises(InternalError, match="read-only"), engine.connect() as connection:
        connection.exec_driver_sql("DELETE FROM proposals")
    engine.dispose()


def test_a_newer_schema_is_refused(server: Postgres, url: str, tmp_path: Path) -> None:
    Journal.open(url, data_dir=tmp_path).close()
    server.sql("UPDATE schema_version SET version = 99")
    with pytest.raises(JournalError, match="schema 99"):
        Journal.open(url, data_dir=tmp_path)


@pytest.mark.parametrize("address", ["mysql://host/x", "://"])
def test_an_address_that_cannot_be_one_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="journal"):
        Journal.open(address, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("postgresql://u@db.example.com/k", {"sslmode": "require"}),
        ("postgresql://u@10.0.0.7:5432/k", {"sslmode": "require"}),
        ("postgresql://u@/k?host=db1:5432&host=db2:5432", {"sslmode": "require"}),
        ("postgresql://u@[2001:db8::1]/k", {"sslmode": "require"}),
        ("postgresql://u@db.example.com/k?sslmode=verify-full", {}),
        ("postgresql://u@db.example.com/k?sslmode=disable", {}),
        ("postgresql://u@localhost:5433/k", {}),
        ("postgresql://u@127.0.0.1/k", {}),
        ("postgresql://u@[::1]/k", {}),
        ("postgresql:///k", {}),
        ("postgresql://u@/k?host=/run/postgresql", {}),
    ],
)
def test_another_machine_is_asked_by_tls_alone(
    address: str, asked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGSSLMODE", "PGSERVICE", "PGHOST"):
        monkeypatch.delenv(name, raising=False)
    assert remote.encryption(make_url(address)) == asked


def test_the_environment_names_a_teams_journal(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_LSP_JOURNAL", url)
    with Journal.open(data_dir=tmp_path) as journal:
        journal.record([event()])
    with Journal.open(url, data_dir=tmp_path) as again:
        assert [s.counts for s in again.sessions()] == [{"offered": 1}]


@pytest.mark.parametrize("address", ["mysql://host/x", "postgresql://127.0.0.1:1/x"])
def test_the_command_line_says_why_it_cannot_read(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_LSP_JOURNAL", address)
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path))
    said = CliRunner().invoke(sessions.app, ["list"])
    assert said.exit_code == 2 and isinstance(said.exception, SystemExit)


def _write(url: str, folder: Path, said: Path, first: int, count: int, ready: Any = None) -> None:
    """One writer: a process of its own, which notes each number once it was written."""
    with Journal.open(url, data_dir=folder) as journal, said.open("w") as notes:
        if ready:
            ready.wait(200)
        for number in range(first, first + count):
            journal.record([event(proposal=f"p{number}", second=number % 60)])
            journal.save(proposal(id=f"p{number}"), folder=FOLDER, path="n.py", keep_source=True)
            journal.record([event(proposal="everybody's")])
            notes.write(f"{number}\n")
            notes.flush()
        assert journal.problems == ()


def _has_role(server: Postgres, name: str) -> bool:
    return server.sql(f"SELECT count(*) FROM pg_roles WHERE rolname = '{name}'") == "1"


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _tracked(name: str) -> Tracker:
    tracker = Tracker("s", "Neovim")
    identity = Identity(folder=FOLDER, path="n.py", qualname="Net")
    tracker.chosen(Offer(proposal=name, identity=identity, before="A", after="B"), 1.0)
    return tracker


def _waiting(folder: Path) -> int:
    """Rows in the spool."""
    path = folder / remote.SPOOL
    if not path.exists():
        return 0
    with sqlite3.connect(path) as database:
        return sum(
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("events", "proposals", "sources", "tracker", "sessions")
        )
