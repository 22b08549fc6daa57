"""Journals as trajectories: what was proposed for one target, how it was judged, and what its user
did.

A journal is read and never changed: a file is opened for reading, a server's transaction is
read-only, older schemas are read as they are. A target's proposals are one trajectory, each a turn
with the question that a model would have had where everything for it was kept (asked.py), else
without a prompt; calls are those that would have made its steps. What a person made of an accepted
rewrite is a turn of its own. Not covered: where prompts and
replies are, which is the archives'."""

from __future__ import annotations

import functools
import hashlib
import json
import sqlite3
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Select, Text, cast, create_engine, func, inspect, select
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from kernel_lsp import skillbook, wire
from kernel_lsp.errors import JournalError
from kernel_lsp.journal import migrations
from kernel_lsp.journal.converting import REFERENCE
from kernel_lsp.journal.models import EventRow, ProposalRow, SchemaRow, SourceRow
from kernel_lsp.journal.privacy import put_source
from kernel_lsp.journal.remote import DRIVER, encryption, is_address
from kernel_lsp.journal.tracker import CHANGED as CHANGED_TEXT
from kernel_lsp.records import EventKind, Offered, Proposal, Skill
from trainer.data import asked
from trainer.data.forgetting import contributor_of
from trainer.data.reading import (
    CHANGED,
    REFUSED,
    TWICE,
    UNREADABLE,
    Grant,
    calls_for,
    last,
    outcome_of,
    versions_of,
)
from trainer.records import (
    Agent,
    Human,
    ModelTurn,
    Permission,
    Tally,
    Trajectory,
    TrajectorySource,
    TurnOutcome,
    TurnStatus,
)
from trainer.tasks.families import structure
from trainer.tasks.task_suites import TaskSuite, TrainingTask, fingerprint_id, task_id

BATCH = 500
MAX_SHARE, MIN_CONTRIBUTORS = 0.25, 3
"""Of what people did, that one contributor's may be; from so many contributors on."""
TOO_LOUD = "its contributor's word counts for a quarter of all already: what was done is left out"
CodePlace = tuple[str, str, str]
"""Proposal, folder, path: the key of a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """One proposal of a journal that may be used."""

    proposal: Proposal
    permission: Permission
    where: str
    """Name of the journal."""
    folder: str
    path: str
    reference: str | None
    """The program before, where it was kept."""
    human: Human | None
    version: str | None
    """Of kernel-lsp."""
    changed: str | None = None
    """What its user made of the rewritten target after accepting it, where that was kept."""


@dataclass(kw_only=True)
class Journals:
    """What some journals say, before it is put together."""

    logged: dict[CodePlace, Logged] = field(default_factory=dict)
    """By proposal, folder (whoever's it is) and path: a file and a server may have the same
    rows."""
    searches: dict[str, Permission] = field(default_factory=dict)
    """Search -> what all of its rows allow: the consent for its archive."""
    denied: set[str] = field(default_factory=set)
    """Searches of which a row says no."""
    humans: dict[str, Human] = field(default_factory=dict)
    """Proposal -> what its user did."""
    offered: dict[str, Offered] = field(default_factory=dict)
    """Proposal -> what could be chosen when it was made."""


def read(
    place: str | Path, into: Journals, grant: Grant, tally: Tally, suites: Sequence[TaskSuite] = ()
) -> None:
    """Add one journal: a file, or a server's address. Raises JournalError where there is none to
    be read."""
    engine, name = _engine(place)
    try:
        with engine.connect() as connection:
            version = _schema(connection, name)
            if version > migrations.NEWEST:
                number = connection.scalar(select(func.count(ProposalRow.id))) or 1
                tally.read += number
                tally.skip("the journal was written by a newer kernel-lsp", name, number)
                return
            into.offered |= _offered(connection)
            for logged in _proposals(connection, name, into, grant, tally, suites):
                _note(into, logged, tally)
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise JournalError(
            f"{name} cannot be read: {cause}", "name a journal's file or address"
        ) from error
    finally:
        engine.dispose()


def trajectories(journals: Journals, covered: frozenset[str], tally: Tally) -> Iterator[Trajectory]:
    """The trajectories of everything but the searches whose archives were read (``covered``): these
    hold more."""
    groups: dict[tuple[str, ...], list[Logged]] = defaultdict(list)
    bounded = bound_voices(journals.logged.values(), tally)
    for one in bounded:
        search = (one.proposal.candidate.search or "").split("#")[0]
        if search and search in covered:
            tally.skip("complete in its search's archive, which was read", one.proposal.id)
            continue
        target = one.folder, one.path, one.proposal.qualname, one.proposal.fingerprint
        groups[
            *target, wire.dumps(one.proposal.workload), one.proposal.evaluation.device, search
        ].append(one)
    for group in groups.values():
        ordered = sorted(group, key=lambda one: (one.proposal.created, one.proposal.id))
        yield _trajectory(ordered, journals.offered)


def bound_voices(logged: Iterable[Logged], tally: Tally) -> list[Logged]:
    """What people did, where no contributor's word counts for more than `MAX_SHARE` of it.

    A client that accepts everything (broken, or poisoned) would else decide what is learned. Whose
    words are too many keeps the first ones by a hash; the others' rows stay, without what was done
    with them. A journal with fewer than `MIN_CONTRIBUTORS` contributors is their own."""
    every = list(logged)
    voices: dict[str, list[Logged]] = defaultdict(list)
    for one in every:
        if one.human is not None:
            voices[_contributor(one)].append(one)
    if len(voices) < MIN_CONTRIBUTORS:
        return every
    counts = sorted(map(len, voices.values()))
    limit = max(counts[0], int(MAX_SHARE * sum(counts)))
    silent: set[int] = set()
    for name, mine in voices.items():
        ordered = sorted(mine, key=lambda one: hashlib.sha256(one.proposal.id.encode()).digest())
        silent |= {id(one) for one in ordered[limit:]}
        if len(mine) > limit:
            tally.skip(TOO_LOUD, name, len(mine) - limit)
    return [replace(one, human=None, changed=None) if id(one) in silent else one for one in every]


def _contributor(one: Logged) -> str:
    """Whose row it is: of a team's journal its owner, else the folder."""
    owner, _, folder = one.folder.rpartition(":")
    return owner or folder


# --- rows ----------------------------------------------------------------------------------------


def _engine(place: str | Path) -> tuple[Engine, str]:
    """For reading only, and the name to show: without a password, without a user's folders."""
    if is_address(str(place)):
        url = make_url(str(place)).set(drivername=DRIVER)
        options = "-c default_transaction_read_only=on"
        how = {"options": options, "connect_timeout": 10, **encryption(url)}
        engine = create_engine(url, poolclass=NullPool, connect_args=how)
        return engine, f"postgresql {url.host or 'here'}/{url.database}"
    path = Path(place)
    if not path.is_file():
        raise JournalError(f"there is no journal {path}", "`kernel-lsp doctor` says where yours is")
    uri = f"{path.absolute().as_uri()}?mode=ro"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True)

    return create_engine("sqlite://", creator=connect, poolclass=NullPool), path.name


def _schema(connection: Connection, name: str) -> int:
    if not inspect(connection).has_table(SchemaRow.__tablename__):
        raise JournalError(f"{name} is no journal", "name the file journal.db of a data folder")
    return connection.scalar(select(SchemaRow.version)) or 0


def _proposals(
    connection: Connection,
    name: str,
    into: Journals,
    grant: Grant,
    tally: Tally,
    suites: Sequence[TaskSuite],
) -> Iterator[Logged]:
    present = {
        column["name"] for column in inspect(connection).get_columns(ProposalRow.__tablename__)
    }
    humans, texts = _humans(connection), _sources(connection)
    for row in connection.execution_options(yield_per=BATCH).execute(_query(present)).mappings():
        tally.read += 1
        place: CodePlace = row["id"], row["folder"], row["path"]
        permission = grant.permission(row.get("training"), bool(row["keep_source"]), name)
        if isinstance(permission, str):
            tally.skip(permission, row["id"])
            if permission == REFUSED and (denied := _search(row["body"])):
                into.denied.add(denied)
            continue
        mine = texts.get(place, {}) if permission.source else {}
        proposal = _proposal(row["body"], mine)
        if proposal is None:
            tally.skip(UNREADABLE, row["id"])
        elif _is_changed(proposal, row["path"], suites):
            tally.skip(CHANGED, row["id"])
        else:
            yield Logged(
                proposal=proposal,
                permission=permission,
                where=name,
                folder=row["folder"],
                path=row["path"],
                reference=mine.get(REFERENCE) or _of_suite(proposal, suites),
                human=last(humans.get(place, ())),
                version=row["version"],
                changed=mine.get(CHANGED_TEXT),
            )


def _query(present: set[str]) -> Select[Any]:
    """JSON as text, so that a damaged row costs only itself; without columns that an older schema
    lacks."""
    columns: list[Any] = [
        cast(column, Text).label("body") if column.name == "body" else column
        for column in ProposalRow.__table__.columns
        if column.name in present and column.name not in ("skills",)
    ]
    return select(*columns).order_by(ProposalRow.saved, ProposalRow.id)


def _proposal(body: str, texts: dict[str, str]) -> Proposal | None:
    try:
        data = json.loads(body)
        return wire.from_json(Proposal, {**data, "candidate": put_source(data["candidate"], texts)})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _search(body: str) -> str | None:
    """Of a row that may not be used: which search said no."""
    try:
        return str(json.loads(body)["candidate"]["search"]).split("#")[0]
    except (ValueError, TypeError, KeyError):
        return None


def _humans(connection: Connection) -> dict[CodePlace, list[str]]:
    """Kinds of events of each proposal, oldest first."""
    columns = (EventRow.proposal, EventRow.folder, EventRow.path, EventRow.kind)
    found: dict[CodePlace, list[str]] = defaultdict(list)
    for proposal, folder, path, kind in connection.execute(
        select(*columns).order_by(EventRow.time, EventRow.id)
    ):
        found[proposal, folder or "", path or ""].append(kind)
    return found


def _offered(connection: Connection) -> dict[str, Offered]:
    """Proposal -> what could be chosen, the newest."""
    query = select(EventRow.data).where(EventRow.kind == EventKind.ASKED.value)
    found: dict[str, Offered] = {}
    for (data,) in connection.execute(query.order_by(EventRow.time, EventRow.id)):
        if isinstance(data, dict) and (offered := asked.offered_in(data.get("offered"))):
            found |= {str(name): offered for name in data.get("proposals") or ()}
    return found


def _sources(connection: Connection) -> dict[CodePlace, dict[str, str]]:
    found: dict[CodePlace, dict[str, str]] = defaultdict(dict)
    columns = (
        SourceRow.proposal,
        SourceRow.folder,
        SourceRow.path,
        SourceRow.field,
        SourceRow.text,
    )
    try:
        for proposal, folder, path, name, text in connection.execute(select(*columns)):
            found[proposal, folder, path][name] = text
    except DBAPIError:
        if inspect(connection).has_table(SourceRow.__tablename__):
            raise
    return found


def _is_changed(proposal: Proposal, path: str, suites: Sequence[TaskSuite]) -> bool:
    """Whether it is for a suite's file as that was before."""
    found = _by_name(path, proposal.qualname, suites)
    return found is not None and found.fingerprint != proposal.fingerprint


def _of_suite(proposal: Proposal, suites: Sequence[TaskSuite]) -> str | None:
    fits = (t for suite in suites for t in suite.tasks if t.fingerprint == proposal.fingerprint)
    return next((task.program.source for task in fits), None)


def _by_name(path: str, qualname: str, suites: Sequence[TaskSuite]) -> TrainingTask | None:
    bare = path.removesuffix(".py")
    for suite in suites:
        for name, task in suite.by_name.items():
            if (bare == name or bare.endswith(f"/{name}")) and qualname == task.program.entry:
                return task
    return None


# --- putting together ----------------------------------------------------------------------------


def _note(into: Journals, one: Logged, tally: Tally) -> None:
    place = one.proposal.id, one.folder.rpartition(":")[2], one.path
    if (same := into.logged.get(place)) is not None:
        tally.skip(TWICE, one.proposal.id)
        one = replace(same, human=one.human or same.human)
    into.logged[place] = one
    if one.human is not None:
        into.humans[one.proposal.id] = one.human
    search = (one.proposal.candidate.search or "").split("#")[0]
    if search:
        known = into.searches.get(search)
        if known is None or (known.source and not one.permission.source):
            into.searches[search] = one.permission


def _turns_of(group: Sequence[Logged], offered: Mapping[str, Offered]) -> list[ModelTurn]:
    """Of one target's proposals, oldest first, then what people changed in them."""
    turns: list[ModelTurn] = []
    numbers: dict[str, int] = {}
    for number, one in enumerate(group):
        candidate = one.proposal.candidate
        parent = numbers.get(candidate.parent or "")
        above = group[parent] if parent is not None else None
        made = _turn(one, number, turns[parent] if parent is not None else None)
        turns.append(_asked_again(made, one, above, offered.get(one.proposal.id)))
        numbers.setdefault(candidate.id, number)
    for number, one in enumerate(group):
        if (changed := _changed(turns[number], one, len(turns))) is not None:
            turns.append(changed)
    return turns


def _trajectory(group: Sequence[Logged], offered: Mapping[str, Offered]) -> Trajectory:
    first, turns = group[0], _turns_of(group, offered)
    narrow = all(one.permission.source for one in group)
    proposal, reference = (
        first.proposal,
        next((one.reference for one in group if one.reference), None),
    )
    shown = [turn for turn in turns if turn.human is not None and turn.changes is None]
    built = structure(reference, proposal.qualname) if reference else None
    return Trajectory(
        id="",
        task=task_id(reference, proposal.workload)
        if reference
        else fingerprint_id(proposal.fingerprint, proposal.workload),
        task_name=proposal.qualname,
        entry=proposal.qualname,
        family=built.family if built else None,
        program=reference,
        workload=wire.to_json(proposal.workload),
        device=proposal.evaluation.device,
        device_name=proposal.evaluation.device_name,
        versions=versions_of(proposal.evaluation, first.version),
        source=TrajectorySource.JOURNAL,
        origin=f"{first.where}#{proposal.id}",
        rollout=f"{proposal.id}@{first.folder.rpartition('-')[2]}",
        turns=tuple(turns),
        human=shown[-1].human if shown else None,
        permission=first.permission
        if narrow
        else next(o.permission for o in group if not o.permission.source),
        created=proposal.created,
        contributor=contributor_of(first.folder),
    )


def _asked_again(
    turn: ModelTurn, one: Logged, above: Logged | None, offered: Offered | None
) -> ModelTurn:
    """With the question that a model would have had, where everything for it is there."""
    if offered is None or one.reference is None or not one.permission.source:
        return turn
    parent = above.proposal if above is not None and above.proposal.candidate.edit else None
    prompt = asked.question(one.proposal, one.reference, offered, _skills(), parent)
    if prompt is None:
        return turn
    call = asked.answer(one.proposal.candidate, prompt, fresh=parent is None)
    if call is None:
        return turn
    return replace(turn, messages=prompt.messages, tools=prompt.tools, calls=(call,))


def _changed(turn: ModelTurn, one: Logged, number: int) -> ModelTurn | None:
    """What its user made of an accepted rewrite, as the better answer to the same question."""
    edit = one.proposal.candidate.edit
    stays = one.human is Human.CHANGED and one.changed is not None and edit is not None
    if not stays or edit is None or one.changed is None or turn.messages is None:
        return None
    call = asked.written(edit, textwrap.dedent(one.changed))
    if call is None:
        return None
    return replace(
        turn,
        number=number,
        calls=(call,),
        steps=(),
        outcome=TurnOutcome(status=TurnStatus.NOT_RUN, complaint="changed by its user"),
        human=Human.KEPT,
        candidate=None,
        changes=turn.number,
        model=None,
    )


@functools.cache
def _skills() -> dict[str, Skill]:
    """As they are on disk now: the text of a skill in a prompt is what a model would read today."""
    return {skill.name: skill for skill in skillbook.load(skillbook.folders(())).skills}


def _turn(one: Logged, number: int, parent: ModelTurn | None) -> ModelTurn:
    proposal = one.proposal
    candidate = proposal.candidate
    return ModelTurn(
        number=number,
        agent=Agent.POLICY,
        calls=calls_for(candidate, parent.steps if parent else ()),
        steps=candidate.steps,
        outcome=outcome_of(
            proposal.evaluation, len(proposal.evaluation.speedups) > 1, candidate.uses_triton
        ),
        step=parent.step + 1 if parent else 0,
        parent=parent.number if parent else None,
        parent_outcome=parent.outcome if parent else None,
        human=one.human,
        candidate=candidate.id,
        skills=candidate.advice,
        model=candidate.proposer,
    )
