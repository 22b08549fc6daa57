"""The team's registry: releases, decisions, measured parameters and usage, in its PostgreSQL.

Every method is one transaction; a race for one row is tried again. Raises TeamAway while the
server does not answer, TeamError for what it refuses. Not covered: files (objects.py), what this
machine makes of it (syncing.py)."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from kernel_lsp.errors import JournalError, TeamAway, TeamError
from kernel_lsp.journal import Journal, row_security
from kernel_lsp.journal.remote import open_engine, owner_of
from kernel_lsp.records import UsageStats
from kernel_lsp.teams import tables
from kernel_lsp.teams.releases import Decision, DecisionKind, OwnerUsage, Release

T = TypeVar("T")
ATTEMPTS = 4
AGAIN = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock not available: another try may do."""
TAKEN, REFUSED, NO_TABLE = "23505", "42501", "42P01"
LOCK = 0x6B6C7465
"""Of PostgreSQL's advisory locks, the one for making a team."""
MAX_TUNING = 20_000
MAX_PARAMETERS = 2_000
"""Characters of one site's parameters."""
RegistryRow = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamInfo:
    name: str
    files: str
    """Address of the folder of files, as fsspec reads it."""
    coordinators: tuple[str, ...]
    role: str
    """Of this connection."""


class Registry:
    """See the top of the file. For one thread at a time."""

    def __init__(self, address: str, data_dir: Path) -> None:
        """``data_dir`` holds this machine's id as an owner of rows. Raises TeamError."""
        try:
            if make_url(address).password:
                raise TeamError(
                    "the address has a password in it, which would lie in a file",
                    "write it into ~/.pgpass",
                )
            self._engine = open_engine(address)
            self.owner = owner_of(data_dir)
        except JournalError as error:
            raise TeamError(error.cause, error.remedy) from error
        except ValueError as error:
            raise TeamError(f"the address cannot be read: {error}", _ADDRESS) from error
        self.name = make_url(address).render_as_string(hide_password=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()

    # --- the team ------------------------------------------------------------------------------

    def found(
        self, address: str, data_dir: Path, team: str, files: str, coordinators: Sequence[str]
    ) -> None:
        """Make the journal's tables, where there are none, and the team's."""
        try:
            with Journal.open(address, data_dir=data_dir):
                pass
        except JournalError as error:
            raise TeamError(error.cause, error.remedy) from error

        def make(connection: Connection) -> None:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
            mine = str(connection.scalar(text("SELECT current_user")))
            tables.make(connection, team, files, sorted({mine, *coordinators}))

        self._run(make)

    def admit(self, members: Sequence[str]) -> None:
        """Give roles of the server what a member needs. For the owner of the tables."""
        self._run(lambda connection: tables.grant(connection, members))

    def info(self) -> TeamInfo:
        """Claims this machine's id for the role of the address, as the journal does."""

        def read(connection: Connection) -> TeamInfo:
            row_security.claim(connection, self.owner)
            found = connection.execute(text("SELECT version, name, files FROM team_info")).one()
            if found.version > tables.VERSION:
                raise TeamError(
                    f"the team's tables have version {found.version}", "upgrade kernel-lsp"
                )
            roles = connection.scalars(text("SELECT role::text FROM team_coordinators ORDER BY 1"))
            role = str(connection.scalar(text("SELECT current_user")))
            return TeamInfo(
                name=found.name, files=found.files, coordinators=tuple(roles), role=role
            )

        return self._run(read)

    def exclude(self, role: str, reason: str) -> None:
        """What a role has measured counts no more for anybody; for coordinators."""
        self._run(
            lambda c: c.execute(
                text("INSERT INTO team_exclusions (role, reason) VALUES (:role, :reason)"),
                {"role": role, "reason": reason},
            )
        )

    def exclusions(self) -> dict[str, str]:
        """The roles whose measurements no longer count, each with the reason."""
        rows = self._rows("SELECT role::text AS role, reason FROM team_exclusions ORDER BY 1")
        return {row["role"]: row["reason"] for row in rows}

    # --- releases ------------------------------------------------------------------------------

    def releases(self) -> list[Release]:
        """All, with what was decided of them; by kind, name and number. Rows that are none of this
        version's, or name another place, are passed over."""
        decisions: dict[tuple[str, str, int], list[Decision]] = defaultdict(list)
        query = (
            "SELECT kind, name, number, action, role::text AS by, time, share, reason"
            " FROM team_decisions ORDER BY kind, name, number, place"
        )
        releases = (
            "SELECT kind, name, number, digest, evidence, better, pushed_by::text AS pushed_by,"
            " time FROM team_releases ORDER BY kind, name, number"
        )

        def read(connection: Connection) -> list[Release]:
            for row in connection.execute(text(query)).mappings():
                if row["action"] not in set(DecisionKind):
                    continue
                decisions[row["kind"], row["name"], row["number"]].append(
                    Decision(
                        action=DecisionKind(row["action"]),
                        by=row["by"],
                        time=row["time"],
                        share=row["share"],
                        reason=row["reason"],
                    )
                )
            found = [
                Release(**row, decisions=tuple(decisions[row["kind"], row["name"], row["number"]]))
                for row in connection.execute(text(releases)).mappings()
            ]
            return [release for release in found if release.is_plain]

        return self._run(read)

    def next_number(self, kind: str, name: str) -> int:
        """The number that the next release of that name will have, from 1."""
        query = "SELECT max(number) AS last FROM team_releases WHERE kind = :kind AND name = :name"
        return int(self._rows(query, kind=kind, name=name)[0]["last"] or 0) + 1

    def push(self, release: Release) -> None:
        """Adds the release. Raises TeamError where somebody has pushed this number meanwhile."""
        query = (
            "INSERT INTO team_releases (kind, name, number, digest, evidence, better, time)"
            " VALUES (:kind, :name, :number, :digest, :evidence, :better, :time)"
        )
        names = ("kind", "name", "number", "digest", "evidence", "better", "time")
        values = {name: getattr(release, name) for name in names}
        self._run(lambda c: c.execute(text(query), values))

    def decide(
        self,
        release: Release,
        action: DecisionKind,
        *,
        share: float | None = None,
        reason: str = "",
    ) -> None:
        """Add a decision to what ``release`` has. Raises TeamError where it does not follow from
        these, where somebody decided meanwhile, and where the server refuses."""
        if not release.allows(action):
            raise TeamError(
                f"{release.id} is {release.standing.value}: it takes no {action.value}",
                "`kernel-lsp team status` shows what stands where",
            )
        query = (
            "INSERT INTO team_decisions (kind, name, number, place, action, time, share, reason)"
            " VALUES (:kind, :name, :number, :place, :action, :time, :share, :reason)"
        )
        values = {
            "kind": release.kind,
            "name": release.name,
            "number": release.number,
            "place": len(release.decisions),
            "action": action.value,
            "time": time.time(),
            "share": share,
            "reason": reason[:500],
        }
        self._run(lambda c: c.execute(text(query), values))

    # --- what machines measured ----------------------------------------------------------------

    def report_tuning(self, rows: Iterable[tuple[str, str, dict[str, Any]]]) -> int:
        """(key, skill, parameters) that won here; returns how many were new or changed."""
        query = (
            "INSERT INTO team_tuning VALUES (:owner, :key, :skill, CAST(:parameters AS jsonb),"
            " :time) ON CONFLICT (owner, key) DO UPDATE SET parameters = excluded.parameters,"
            " time = excluded.time WHERE team_tuning.parameters <> excluded.parameters"
        )
        now = time.time()
        values = [
            {"owner": self.owner, "key": key, "skill": skill, "parameters": found, "time": now}
            for key, skill, parameters in rows
            if len(found := json.dumps(parameters, sort_keys=True)) <= MAX_PARAMETERS
        ]

        def write(connection: Connection) -> int:
            return sum(connection.execute(text(query), row).rowcount for row in values)

        return self._run(write)

    def tuning(self) -> dict[str, dict[str, Any]]:
        """Key -> the parameters that most owners have found the fastest, the newest of equals.
        One owner has one voice for each key; excluded roles have none."""
        query = (
            "SELECT key, parameters, t.time FROM team_tuning t JOIN owners o ON o.owner = t.owner"
            " WHERE o.role NOT IN (SELECT role FROM team_exclusions)"
            f" ORDER BY t.time DESC LIMIT {MAX_TUNING}"
        )
        voices: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self._rows(query):  # the newest first, and Counter keeps this order of equals
            if isinstance(row["parameters"], dict):
                voices[row["key"]][json.dumps(row["parameters"], sort_keys=True)] += 1
        return {key: json.loads(found.most_common(1)[0][0]) for key, found in voices.items()}

    def report_usage(self, release: Release, rows: Iterable[UsageStats]) -> None:
        """What a release did here since it came; replaces what was sent before."""
        columns = ("uses", "wins", "pairs", "uplift_sum", "uplift_squares")
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns)
        query = (
            "INSERT INTO team_usage VALUES (:owner, :kind, :name, :number, :hardware, "
            + ", ".join(f":{name}" for name in columns)
            + f") ON CONFLICT (owner, kind, name, number, hardware) DO UPDATE SET {changes}"
        )
        place = {"kind": release.kind, "name": release.name, "number": release.number}
        values = [
            {**place, "owner": self.owner, "hardware": row.hardware}
            | {name: getattr(row, name) for name in columns}
            for row in rows
        ]
        if values:
            self._run(lambda c: c.execute(text(query), values))

    def usage(self, release: Release) -> list[OwnerUsage]:
        """The release's usage by owner, over all hardware; without excluded roles."""
        query = (
            "SELECT u.owner, sum(uses) AS uses, sum(wins) AS wins, sum(pairs) AS pairs,"
            " sum(uplift_sum) AS uplift_sum, sum(uplift_squares) AS uplift_squares"
            " FROM team_usage u JOIN owners o ON o.owner = u.owner WHERE kind = :kind"
            " AND name = :name AND number = :number"
            " AND o.role NOT IN (SELECT role FROM team_exclusions) GROUP BY u.owner ORDER BY 1"
        )
        place = {"kind": release.kind, "name": release.name, "number": release.number}
        return [OwnerUsage(**row) for row in self._rows(query, **place)]

    # --- forgetting ----------------------------------------------------------------------------

    def forget(self) -> dict[str, int]:
        """Erase this machine's measurements and this role's releases that nobody approved; note
        that the owner is to be forgotten. Returns how many rows of which table went."""

        def erase(connection: Connection) -> dict[str, int]:
            mine = {"owner": self.owner}
            gone = {
                table: connection.execute(
                    text(f"DELETE FROM {table} WHERE owner = :owner"), mine
                ).rowcount
                for table in ("team_tuning", "team_usage")
            }
            gone["team_releases"] = connection.execute(
                text(
                    "DELETE FROM team_releases WHERE pushed_by = current_user AND"
                    " NOT EXISTS (SELECT 1 FROM team_decisions d WHERE d.kind = team_releases.kind"
                    " AND d.name = team_releases.name AND d.number = team_releases.number"
                    " AND d.action = 'approve')"
                )
            ).rowcount
            connection.execute(
                text("INSERT INTO team_forgotten VALUES (:owner, :time) ON CONFLICT DO NOTHING"),
                {**mine, "time": time.time()},
            )
            return gone

        return self._run(erase)

    def forgotten(self) -> list[str]:
        """Owners who asked for it."""
        return [row["owner"] for row in self._rows("SELECT owner FROM team_forgotten ORDER BY 1")]

    # --- parts ---------------------------------------------------------------------------------

    def _rows(self, query: str, **values: Any) -> list[RegistryRow]:
        return self._run(lambda c: [dict(row) for row in c.execute(text(query), values).mappings()])

    def _run(self, work: Callable[[Connection], T]) -> T:
        for number in range(ATTEMPTS):
            try:
                with self._engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                state = getattr(error.orig, "sqlstate", None) or ""
                if state not in AGAIN:
                    raise self._failure(state, error) from error
                time.sleep(0.05 * 2**number)
            except JournalError as error:  # the owner is another role's
                raise TeamError(error.cause, error.remedy) from error
        raise TeamAway(f"{self.name} is kept busy by others", _AWAY)

    def _failure(self, state: str, error: DBAPIError) -> TeamError:
        line = (str(error.orig).splitlines() or [type(error.orig).__name__])[0]
        if state == TAKEN:
            return TeamError(
                "somebody else was first: " + line,
                "`kernel-lsp team status` shows it; then say again what shall be done",
            )
        if state == REFUSED:
            return TeamError(
                f"{self.name} refuses it: {line}",
                "reviews are a coordinator's, and never of one's own release; "
                "`kernel-lsp team status` names the coordinators",
            )
        if state == NO_TABLE:
            return TeamError(
                f"{self.name} has no team that this role may see",
                "`kernel-lsp team init` makes one; who made it admits a role by `team admit`",
            )
        if state.startswith(("22", "42")):
            return TeamError(f"{self.name} refuses it: {line}", "check names and the address")
        return TeamAway(f"{self.name} cannot be used: {line}", _AWAY)


_ADDRESS = "write postgresql+psycopg://ROLE@HOST/NAME"
_AWAY = "see that the server runs; what is here already stays in use"
