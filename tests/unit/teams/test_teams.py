"""A team of three on one machine and a real PostgreSQL: releases, measurements, what goes wrong."""

import json
import math
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from file_server import FileServer
from postgres_server import Postgres, programs
from typer.testing import CliRunner

from kernel_lsp import membership, skillbook
from kernel_lsp.commands import team
from kernel_lsp.errors import TeamError
from kernel_lsp.interpreter import Probe
from kernel_lsp.journal import Journal, remote
from kernel_lsp.library.usage import UsageStatistics
from kernel_lsp.models import PolicyStore
from kernel_lsp.pipeline.known import KnownWinners
from kernel_lsp.records import Site
from kernel_lsp.teams import objects, releases, syncing
from kernel_lsp.teams.registry import Registry
from kernel_lsp.teams.releases import Decision, DecisionKind, OwnerUsage, Release, ReleaseStanding
from tests.unit.models.test_models import checkpoint
from trainer.data import forgetting

needs_postgres = pytest.mark.skipif(
    programs() is None, reason="no PostgreSQL (scripts/setup installs it)"
)
SKILL = """---
name: {name}
description: "{description}"
metadata: {{scope: advice, tags: [softmax], version: 1}}
---

## Motivation
Rows are read twice.

## Key Idea
{text}

## Example
```python
row = tl.load(pointer)
```

## Pitfalls
Long rows.
"""


@dataclass(frozen=True)
class Client:
    """One colleague: a role on the server, a data folder, a key."""

    name: str
    root: Path
    server: Postgres

    @property
    def data(self) -> Path:
        return self.root / self.name

    @property
    def key(self) -> Path:
        return self.root / f"{self.name}.key"

    @property
    def address(self) -> str:
        return self.server.url.replace("//ada@", f"//{self.name}@")

    def run(self, *arguments: str) -> Result:
        environment = {"KERNEL_LSP_DATA_DIR": str(self.data)}
        return CliRunner().invoke(team.app, [*arguments], env=environment)

    def say(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.exit_code == 0, done.output
        return done.output

    def refused(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.exit_code == 2, done.output
        return " ".join(done.output.split())

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.say("status", "--json"))
        return found

    def skills(self) -> dict[str, str]:
        book = skillbook.load(skillbook.folders(data_dir=self.data), data_dir=self.data)
        return {one.name: one.description for one in book.skills if one.source == "team"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    made = Postgres(programs() or Path())
    for role in ("cora", "eve", "bob", "ann"):
        made.sql(f"CREATE ROLE {role} LOGIN")
    yield made
    made.remove()


@pytest.fixture
def clients(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Client, Client, Client]]:
    """Coordinators cora and eve, and bob; each trusts the keys of all."""
    yield made_team(server, tmp_path, monkeypatch, str(tmp_path / "files"))


def made_team(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str
) -> tuple[Client, Client, Client]:
    monkeypatch.delenv("KERNEL_LSP_JOURNAL", raising=False)
    monkeypatch.setattr(remote, "CONNECT_S", 60)
    server.sql(
        "DROP SCHEMA public CASCADE; CREATE SCHEMA public;"
        " GRANT ALL ON SCHEMA public TO cora WITH GRANT OPTION"
    )
    made = tuple(Client(name, tmp_path, server) for name in ("cora", "eve", "bob"))
    signers = []
    for one in made:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(one.key)]
        subprocess.run(command, check=True)
        signers.append(f"{one.name} {one.key.with_suffix('.key.pub').read_text()}")
    (tmp_path / "signers").write_text("".join(signers))
    monkeypatch.setenv("KERNEL_LSP_SIGNERS", str(tmp_path / "signers"))
    cora, eve, bob = made
    told = ["--files", files, "--coordinator", "eve", "--member", "bob"]
    cora.say("init", cora.address, *told)
    eve.say("join", eve.address)
    bob.say("join", bob.address)
    return cora, eve, bob


@pytest.fixture
def file_server(tmp_path: Path) -> Iterator[FileServer]:
    made = FileServer(tmp_path / "served")
    yield made
    made.stop()


def _skill(root: Path, text: str, name: str = "read-once") -> Path:
    folder = root / "made" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(
        SKILL.format(name=name, description=f"Read rows once: {text}", text=text)
    )
    return folder


def _push(client: Client, text: str) -> str:
    return client.say("push", str(_skill(client.root, text)), "--key", str(client.key))


def _measure(client: Client, uplifts: list[float], skill: str = "read-once") -> None:
    """What library/usage.py adds up after jobs; the sums themselves, without jobs."""
    rows = [(skill, "cuda H100", 1, 1, one, one**2) for one in uplifts]
    UsageStatistics(client.data)._tallies.add(
        (f"{client.name} {number} {len(uplifts)}", [row]) for number, row in enumerate(rows)
    )


@needs_postgres
def test_a_skill_goes_from_proposal_by_review_and_canary_to_everybody_and_back(
    clients: tuple[Client, Client, Client],
) -> None:
    cora, eve, bob = clients
    assert "skill:read-once#1 is proposed" in _push(bob, "first")
    assert "signed by bob" in cora.say("review", "skill:read-once")
    assert "row-level security" in bob.refused("review", "skill:read-once", "--approve")
    bob.say("sync")
    assert bob.skills() == {}

    cora.say("review", "skill:read-once#1", "--approve", "--share", "1")
    for one in clients:
        one.say("sync")
        assert one.skills() == {"read-once": "Read rows once: first"}
    assert "nothing was measured" in eve.refused("promote", "skill:read-once")
    _measure(eve, [0.1, 0.2, 0.1, 0.15])
    _measure(bob, [0.12, 0.11, 0.2])
    eve.say("sync")
    assert "of 1 users" in cora.refused("promote", "skill:read-once")
    bob.say("sync")
    assert "goes to everybody" in cora.say("promote", "skill:read-once")

    _push(cora, "second")  # one of one's own is not one's own to approve
    assert "never of one's own" in cora.refused("review", "skill:read-once#2", "--approve")
    eve.say("review", "skill:read-once#2", "--approve", "--share", "1")
    bob.say("sync")
    assert bob.skills() == {"read-once": "Read rows once: second"}
    assert "in use with the next sync: skill:read-once#1" in eve.say("rollback", "skill:read-once")
    bob.say("sync")
    assert bob.skills() == {"read-once": "Read rows once: first"}
    found = {row["release"]["number"]: row["standing"] for row in bob.status()["releases"]}
    assert found == {1: "promoted", 2: "withdrawn"}


@needs_postgres
def test_usage_of_an_older_release_says_nothing_of_the_newer(
    clients: tuple[Client, Client, Client],
) -> None:
    cora, eve, bob = clients
    _measure(bob, [0.5] * 9)
    _push(eve, "first")
    cora.say("review", "skill:read-once", "--approve", "--share", "1")
    bob.say("sync")
    _measure(bob, [-0.1, -0.2])
    bob.say("sync")
    (row,) = bob.status()["releases"]
    assert row["uplift"]["pairs"] == 2 and row["uplift"]["mean"] == pytest.approx(-0.15)


@needs_postgres
def test_the_last_good_state_is_used_while_the_registry_or_the_files_are_away(
    clients: tuple[Client, Client, Client], server: Postgres
) -> None:
    cora, eve, bob = clients
    _push(eve, "first")
    cora.say("review", "skill:read-once", "--approve", "--share", "1")
    bob.say("sync")
    server.stop()
    try:
        assert "in use since" in bob.refused("sync")
        assert "skill:read-once#1" in bob.refused("status")
        assert bob.skills() == {"read-once": "Read rows once: first"}
        with Journal.open(data_dir=bob.data) as journal:  # rows wait here
            assert journal.path.name == remote.SPOOL
    finally:
        server.start()
    _push(eve, "second")
    cora.say("review", "skill:read-once", "--approve", "--share", "1")
    files = bob.root / "files"
    files.rename(bob.root / "moved")
    assert "in use since" in bob.refused("sync")
    assert bob.skills() == {"read-once": "Read rows once: first"}
    (bob.root / "moved").rename(files)
    bob.say("sync")
    assert bob.skills() == {"read-once": "Read rows once: second"}


@needs_postgres
def test_a_folder_on_another_machine_is_read_and_written_and_may_go_away_meanwhile(
    server: Postgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file_server: FileServer,
) -> None:
    cora, eve, bob = made_team(server, tmp_path, monkeypatch, file_server.url)
    _push(eve, "first")
    (first,) = (tmp_path / "served" / "releases").iterdir()
    cora.say("review", "skill:read-once", "--approve", "--share", "1")
    bob.say("sync")
    assert bob.skills() == {"read-once": "Read rows once: first"}
    _push(eve, "second")
    (place,) = (one for one in first.parent.iterdir() if one != first)
    cora.say("review", "skill:read-once", "--approve", "--share", "1")
    file_server.stop()
    try:
        assert "in use since" in bob.refused("sync")
        assert bob.skills() == {"read-once": "Read rows once: first"}
    finally:
        file_server.start()
    bob.say("sync")  # the process is the same, and its connection of before is dead
    assert bob.skills() == {"read-once": "Read rows once: second"}
    place.write_bytes(place.read_bytes()[:-1] + b"!")
    with pytest.raises(TeamError, match="another content than was pushed"):
        objects.Objects(file_server.url).get(place.stem)
    objects.Objects(file_server.url).remove(place.stem)
    assert not place.exists()


def test_a_folder_whose_address_has_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(TeamError, match="has a password in it") as error:
        objects.Objects("ftp://ada:hunter2@files.example/releases")
    assert "hunter2" not in str(error.value)


@needs_postgres
def test_every_hour_an_idle_machine_brings_what_the_team_has(
    clients: tuple[Client, Client, Client], server: Postgres
) -> None:
    cora, eve, bob = clients
    assert syncing.sync_if_due(bob.root / "nobody") is None  # in no team
    _push(eve, "first")
    cora.say("review", "skill:read-once", "--approve", "--share", "1")
    bob.say("sync")
    _push(eve, "second")
    cora.say("review", "skill:read-once", "--approve", "--share", "1")
    assert syncing.sync_if_due(bob.data) is None
    assert bob.skills() == {"read-once": "Read rows once: first"}  # the last one is minutes old
    _passes(bob, syncing.DUE_S + 1)
    server.stop()
    try:
        assert "what is here already stays in use" in (syncing.sync_if_due(bob.data) or "")
        assert bob.skills() == {"read-once": "Read rows once: first"}
    finally:
        server.start()
    assert syncing.sync_if_due(bob.data) is None
    assert bob.skills() == {"read-once": "Read rows once: second"}
    assert time.time() - membership.read_state(bob.data).time < syncing.DUE_S


def _passes(client: Client, seconds: float) -> None:
    state = membership.read_state(client.data)
    membership.write_state(client.data, replace(state, time=state.time - seconds))


@needs_postgres
def test_of_two_coordinators_at_once_the_second_hears_of_the_first(
    clients: tuple[Client, Client, Client],
) -> None:
    cora, eve, bob = clients
    _push(bob, "first")
    with Registry(cora.address, cora.data) as one, Registry(eve.address, eve.data) as other:
        (seen_by_one,), (seen_by_other,) = one.releases(), other.releases()
        one.decide(seen_by_one, DecisionKind.REFUSE)
        with pytest.raises(TeamError, match="somebody else was first"):
            other.decide(seen_by_other, DecisionKind.APPROVE, share=1.0)
        assert [found.standing for found in other.releases()] == [ReleaseStanding.REFUSED]


@needs_postgres
def test_what_one_has_measured_serves_the_others_and_a_poisoned_one_can_be_shut_out(
    clients: tuple[Client, Client, Client],
) -> None:
    cora, eve, bob = clients
    probe = Probe(python="python", torch="2.9", triton="3.5", capability="sm_90")
    site = Site(
        skill="triton-rows", site="s", summary="", proofs=(), kind="rows",
        parameters={"BLOCK": [64, 128, 256]},
    )  # fmt: skip

    def best(client: Client, capability: str = "sm_90") -> Any:
        other = Probe(python="python", torch="2.9", triton="3.5", capability=capability)
        return KnownWinners(client.data, other, "cuda").best(site)

    KnownWinners(cora.data, probe, "cuda").keep(site, {"BLOCK": 128})
    assert best(bob) is None
    assert "1 of them new from here" in cora.say("sync")
    bob.say("sync")
    assert best(bob) == {"BLOCK": 128} and best(bob, "sm_80") is None
    KnownWinners(eve.data, probe, "cuda").keep(site, {"BLOCK": 64})
    eve.say("sync")
    bob.say("sync")
    assert best(bob) == {"BLOCK": 64}, "of equals the newest"
    cora.say("exclude", "eve", "--reason", "a broken card")
    bob.say("sync")
    assert best(bob) == {"BLOCK": 128} and bob.status()["excluded"] == {"eve": "a broken card"}
    KnownWinners(bob.data, probe, "cuda").keep(site, {"BLOCK": 256})
    assert best(bob) == {"BLOCK": 256}, "one's own come first"


@needs_postgres
def test_a_policy_is_used_where_nobody_has_chosen_another_and_goes_with_its_rollback(
    clients: tuple[Client, Client, Client],
) -> None:
    cora, eve, bob = clients
    made = checkpoint(cora.root / "made-policy", name="team-plans")
    assert "policy:team-plans#1" in cora.say("push", str(made), "--key", str(cora.key))
    eve.say("review", "policy:team-plans", "--approve", "--share", "1")
    PolicyStore(eve.data).use("rule")
    bob.say("sync")
    assert _planner(bob) == "team-plans@1"
    assert "was chosen here by hand" in " ".join(eve.run("sync").output.split())
    assert _planner(eve) is None
    assert "0.950 (0.930 to 0.970)" in eve.say("promote", "policy:team-plans")
    bob.say("sync")
    eve.say("rollback", "policy:team-plans")
    bob.say("sync")
    assert _planner(bob) is None


def _planner(client: Client) -> str | None:
    used = PolicyStore(client.data).used()
    return used.id if used else None


@needs_postgres
def test_a_contributor_is_forgotten(clients: tuple[Client, Client, Client]) -> None:
    cora, _, bob = clients
    _push(bob, "first")
    cora.say("review", "skill:read-once", "--approve", "--share", "1")
    _push(bob, "second")
    bob.say("sync")
    _measure(bob, [0.1, 0.2])
    bob.say("sync")
    said = bob.say("forget")
    assert "1 team_usage" in said and "released, so a coordinator withdraws it" in said
    count = "SELECT count(*) FROM team_usage"
    assert cora.server.sql(count) == "0"
    assert cora.server.sql("SELECT count(*) FROM team_releases") == "1"
    owner = cora.server.sql("SELECT owner FROM team_forgotten")
    cora.say("sync")
    mine = forgetting.contributor_of(f"{owner}:folder-of-bob")
    assert forgetting.forgotten_contributors(cora.data) == {mine}
    assert forgetting.contributor_of("a-folder") is None


@needs_postgres
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ask https://user:hunter2secret@example.com", "holds a secret"),
        ("see /home/bob/private/plan", "holds a secret"),
    ],
)
def test_secrets_are_not_shared(
    clients: tuple[Client, Client, Client], text: str, why: str
) -> None:
    bob = clients[2]
    folder = _skill(bob.root, text)
    assert why in bob.refused("push", str(folder), "--key", str(bob.key))
    assert bob.status()["releases"] == []


@needs_postgres
def test_what_nobody_trusted_has_signed_or_somebody_changed_is_not_used(
    clients: tuple[Client, Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    cora, eve, bob = clients
    _push(bob, "first")
    cora.say("review", "skill:read-once", "--approve", "--share", "1")
    signers = bob.root / "signers"
    monkeypatch.setenv("KERNEL_LSP_SIGNERS", str(bob.root / "nobody"))
    assert "no signer is trusted here" in " ".join(eve.run("sync").output.split())
    assert eve.skills() == {}
    monkeypatch.setenv("KERNEL_LSP_SIGNERS", str(signers))
    (packed,) = (bob.root / "files").iterdir()
    content = packed.read_bytes()
    packed.write_bytes(content.replace(b"Rows are read twice", b"Rows are run thrice"))
    (eve.data / "team" / "packed" / packed.stem).unlink()
    assert "another content" in " ".join(eve.run("sync").output.split())
    assert eve.skills() == {}
    packed.write_bytes(content)
    eve.say("sync")
    assert eve.skills() == {"read-once": "Read rows once: first"}
    (installed,) = (eve.data / "team" / "skills").glob("*/read-once/SKILL.md")
    installed.write_text(installed.read_text().replace("twice", "thrice"))
    assert eve.skills() == {}


@needs_postgres
def test_what_cannot_be_a_team_is_said(
    clients: tuple[Client, Client, Client], tmp_path: Path
) -> None:
    cora, _, bob = clients
    assert "has a team already" in cora.refused("init", cora.address, "--files", str(tmp_path))
    assert "password" in bob.refused("join", bob.address.replace("bob@", "bob:secret@"))
    assert "cannot be kept in" in bob.refused("join", "mysql://host/name")
    stranger = Client("ann", tmp_path, cora.server)
    assert "no team that this role may see" in stranger.refused("join", stranger.address)
    assert "in no team" in stranger.refused("sync")
    cora.server.sql("CREATE TABLE payroll (who text); ALTER TABLE payroll OWNER TO cora")
    cora.say("admit", "ann")
    can = "SELECT has_table_privilege('ann', 'payroll', 'SELECT, INSERT, UPDATE, DELETE')"
    assert cora.server.sql(can).strip() == "f"  # it is none of the team's
    cora.server.sql("DROP TABLE payroll")
    stranger.say("join", stranger.address)
    stranger.say("leave")
    assert "in no team" in stranger.refused("sync")


# --- pure ----------------------------------------------------------------------------------------


def test_pooled_uplift_as_worked_by_hand() -> None:
    one = OwnerUsage(owner="a", uses=4, wins=4, pairs=4, uplift_sum=0.4, uplift_squares=0.06)
    other = OwnerUsage(owner="b", uses=4, wins=2, pairs=4, uplift_sum=0.2, uplift_squares=0.02)
    found = releases.pool([one, other])
    assert found is not None and found.holds
    assert (found.owners, found.pairs, found.mean) == (2, 8, pytest.approx(0.075))
    assert (found.low, found.high) == pytest.approx((0.0276, 0.1224), abs=1e-4)
    assert found.without_best == pytest.approx(0.05)
    # exp of these: 1.0779, 1.0280, 1.1302
    words = "1.078x [1.028, 1.130] (each bound one-sided, 95 %), 8 pairs of 2 users"
    assert str(found) == words


def test_one_loud_owner_decides_nothing_alone() -> None:
    honest = [
        OwnerUsage(owner=f"h{n}", uses=10, wins=0, pairs=10, uplift_sum=-0.5, uplift_squares=0.03)
        for n in range(3)
    ]
    loud = OwnerUsage(
        owner="loud", uses=9999, wins=9999, pairs=9999, uplift_sum=2000.0, uplift_squares=401.0
    )
    found = releases.pool([*honest, loud])
    assert found is not None and found.low > 0, "bounded, and three are many for one; but"
    assert (
        found.without_best == pytest.approx(-0.05)
        and not found.holds
        and found.left_out == pytest.approx(9979)
    )
    assert not releases.pool([loud]).holds  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("total", "squares"),
    [(math.nan, 1.0), (math.inf, 1.0), (8000.0, 1.0), (-1e308, 1.0), (1.0, math.inf), (1.0, -1.0)],
)
def test_a_measurement_that_is_none_counts_for_nobody(total: float, squares: float) -> None:
    """`team status` ended with an overflow, and one row of NaN kept a release from everybody."""
    honest = [
        OwnerUsage(owner=f"h{n}", uses=4, wins=4, pairs=4, uplift_sum=0.4, uplift_squares=0.05)
        for n in range(2)
    ]
    liar = OwnerUsage(owner="l", uses=9, wins=9, pairs=9, uplift_sum=total, uplift_squares=squares)
    assert releases.pool([*honest, liar]) == releases.pool(honest)
    assert str(releases.pool([liar, *honest])).startswith("1.105x")


@pytest.mark.parametrize("time_", [math.nan, math.inf, -math.inf])
def test_a_release_of_no_time_is_passed_over(time_: float) -> None:
    one = Release(kind="skill", name="a", number=1, digest="0" * 64, pushed_by="x", time=1.0)
    assert one.is_plain and not replace(one, time=time_).is_plain


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_in_the_team_s_folder_keeps_nobody_waiting(
    tmp_path: Path, kind: str
) -> None:
    digest = "0" * 64
    if kind == "pipe":
        os.mkfifo(tmp_path / f"{digest}.tar")
    else:
        (tmp_path / f"{digest}.tar").symlink_to("/dev/zero")
    with pytest.raises(TeamError, match="no regular file"):
        objects.Objects(str(tmp_path)).get(digest)


def test_a_canary_goes_to_the_same_share_each_time() -> None:
    approved = Decision(action=DecisionKind.APPROVE, by="cora", time=1.0, share=0.25)
    first, second = (
        Release(
            kind="skill", name="s", number=number, digest="", pushed_by="bob", time=0.0,
            decisions=(approved,),
        )
        for number in (1, 2)
    )  # fmt: skip
    owners = [f"owner{n}" for n in range(2000)]
    of_first = {one for one in owners if releases.is_canary_user(first, one)}
    of_second = {one for one in owners if releases.is_canary_user(second, one)}
    assert 430 < len(of_first) < 570 and of_first != of_second
    assert {one for one in owners if releases.chosen([first], one)} == of_first


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "link"])
def test_a_package_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        if name == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry, io.BytesIO())
    place = tmp_path / "here"
    place.mkdir()
    with pytest.raises(TeamError, match="in it"):
        objects.unpack(buffer.getvalue(), place)
    assert list(tmp_path.rglob("out")) == []


@needs_postgres
def test_a_teammate_s_row_names_no_place_outside(
    clients: tuple[Client, Client, Client], server: Postgres, tmp_path: Path
) -> None:
    """A member may write rows past the command line: their names lead nowhere."""
    cora, _, bob = clients
    package = tmp_path / "evil"
    package.mkdir()
    (package / "evil.desktop").write_text("Exec=id")
    digest = objects.Objects(str(tmp_path / "files")).put(objects.pack(package))
    outside = tmp_path / "autostart"
    up = "../" * 20
    hostile = {
        str(outside): "skill",
        f"{up}{outside}": "skill",
        "plain": f"{up}{outside}",
        "later": "of another version",
    }
    with Registry(bob.address, bob.data) as registry:
        for name, kind in hostile.items():
            registry.push(
                Release(kind=kind, name=name, number=1, digest=digest, pushed_by="", time=0)
            )
        registry.push(
            Release(kind="skill", name="far", number=1, digest="../evil", pushed_by="", time=0)
        )
    with Registry(cora.address, cora.data) as registry:
        for name, kind in (*hostile.items(), ("far", "skill")):
            one = Release(kind=kind, name=name, number=1, digest=digest, pushed_by="", time=0)
            registry.decide(one, DecisionKind.APPROVE, share=1.0)
    for client in (cora, bob):
        client.say("sync")
    assert not outside.exists()
    with Registry(cora.address, cora.data) as registry:
        assert registry.releases() == []


def test_a_package_is_no_deeper_than_a_release(tmp_path: Path) -> None:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a/" * 2000 + "b"), io.BytesIO())
    with pytest.raises(TeamError, match="in it"):
        objects.unpack(buffer.getvalue(), tmp_path)


def test_a_damaged_state_is_none(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    for content in (b"", b"[]", b'{"schema": 9}', b"\xff"):
        (tmp_path / "team" / "state.json").write_bytes(content)
        (tmp_path / "team" / "tuning.json").write_bytes(content)
        assert membership.read_state(tmp_path).skills == ""
        assert membership.read_tuning(tmp_path) == {}
