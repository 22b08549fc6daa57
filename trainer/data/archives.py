"""Search archives as trajectories: prompts, replies and verdicts of every attempt, in their order.

A rollout of a language model is one trajectory; attempts without one (planner, mutations, chains)
form one per tree that grew from an attempt. Archives are read and never changed, moved or locked.
Consent is not in them: the journal's rows of the same search have it, or the exporter says that
the archive is theirs. Not covered: attempts whose verdict was never noted; they are counted."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from kernel_lsp import wire
from kernel_lsp.errors import ArchiveError
from kernel_lsp.records import Attempt, Exchange, Program, Step, Workload
from kernel_lsp.search.archive import APPLICATION, DONE, SCHEMA
from trainer.data.reading import UNREADABLE, calls_for, outcome_of, versions_of
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
    Versions,
)
from trainer.tasks.families import structure
from trainer.tasks.task_suites import task_id

T = TypeVar("T")
UNFINISHED = "begun, and its verdict was never noted"


@dataclass(kw_only=True)
class ArchivedSearch:
    """One archive's content, as far as it can be read."""

    id: str
    name: str
    """Of the file."""
    program: Program
    workload: Workload
    device: str
    device_name: str | None
    versions: Versions
    attempts: dict[int, Attempt] = field(default_factory=dict)
    exchanges: dict[int, list[Exchange]] = field(default_factory=lambda: defaultdict(list))


def read(path: Path, tally: Tally) -> ArchivedSearch | None:
    """None: of another schema, which is counted. Raises ArchiveError where there is no archive to
    be read."""
    if not path.is_file():
        raise ArchiveError(
            f"there is no search archive {path}", "`kernel-lsp optimize --archive` writes one"
        )
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return _read(database, path.name, tally)
    except sqlite3.Error as error:
        raise ArchiveError(
            f"{path} cannot be read: {error}", "name a search archive, or leave it out"
        ) from error


def _read(database: sqlite3.Connection, name: str, tally: Tally) -> ArchivedSearch | None:
    ((ours,),), ((schema,),) = (
        database.execute(f"PRAGMA {pragma}").fetchall()
        for pragma in ("application_id", "user_version")
    )
    if ours != APPLICATION:
        raise ArchiveError(f"{name} is no search archive", "name one, or leave it out")
    ((number,),) = database.execute("SELECT count(*) FROM attempts").fetchall()
    tally.read += number
    if schema != SCHEMA:
        tally.skip(
            f"the archive has schema {schema}, and this kernel-lsp reads {SCHEMA}", name, number
        )
        return None
    search = _begin_search(dict(database.execute("SELECT name, value FROM meta")), name)
    for place, state, body in database.execute(
        "SELECT number, state, body FROM attempts ORDER BY number"
    ):
        attempt = _parse_body(Attempt, body) if state == DONE else None
        if attempt is not None:
            search.attempts[place] = attempt
        else:
            tally.skip(UNREADABLE if state == DONE else UNFINISHED, f"{name}#{place}")
    for place, body in database.execute("SELECT number, body FROM exchanges ORDER BY rowid"):
        exchange = _parse_body(Exchange, body)
        if exchange is None:
            tally.skip(
                "a prompt or reply cannot be read: its attempt is left out", f"{name}#{place}"
            )
            search.attempts.pop(place, None)
        else:
            search.exchanges[place].append(exchange)
    return search


def _begin_search(meta: Mapping[str, str], name: str) -> ArchivedSearch:
    try:
        identity = json.loads(meta["identity"])
        return ArchivedSearch(
            id=meta["id"],
            name=name,
            program=wire.from_json(Program, identity["program"]),
            workload=wire.from_json(Workload, identity["workload"]),
            device=str(identity["device"]),
            device_name=identity.get("device_name"),
            versions=Versions(torch=identity.get("torch"), triton=identity.get("triton")),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ArchiveError(
            f"{name} does not say what was searched ({error!r})", "leave it out"
        ) from error


def _parse_body(kind: type[T], body: str) -> T | None:
    try:
        return wire.from_json(kind, json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


# --- putting together ----------------------------------------------------------------------------


def trajectories(
    search: ArchivedSearch, permission: Permission, outcomes: Mapping[str, Human]
) -> list[Trajectory]:
    """One per rollout and per tree of attempts without a model. ``humans``: proposal -> what its
    user did."""
    groups: dict[tuple[str, int], list[Attempt]] = defaultdict(list)
    for number in sorted(search.attempts):
        attempt = search.attempts[number]
        groups[_group(search, attempt)].append(attempt)
    built = structure(search.program.source, search.program.entry)
    task = task_id(search.program.source, search.workload)
    made = []
    for (kind, place), attempts in sorted(groups.items()):
        turns = _turns(search, attempts, outcomes)
        if not turns:
            continue
        offered = [turn.human for turn in turns if turn.human is not None]
        first = attempts[0]
        evaluation = first.proposal.evaluation if first.proposal else None
        versions = versions_of(evaluation)
        made.append(
            Trajectory(
                id="",
                task=task,
                task_name=search.program.entry,
                entry=search.program.entry,
                family=built.family if built else None,
                program=search.program.source,
                workload=wire.to_json(search.workload),
                device=search.device,
                device_name=search.device_name,
                versions=replace(
                    search.versions, kernel_lsp=versions.kernel_lsp, python=versions.python
                ),
                source=TrajectorySource.ARCHIVE,
                origin=f"{search.name}#{place}",
                rollout=f"{search.id}/{kind}{place}",
                scheme=_scheme(turns) if kind == "rollout" else None,
                turns=tuple(turns),
                human=offered[-1] if offered else None,
                permission=permission,
                created=first.created,
            )
        )
    return made


def _group(search: ArchivedSearch, attempt: Attempt) -> tuple[str, int]:
    if attempt.rollout is not None:
        return "rollout", attempt.rollout
    root = attempt
    while (
        root.parent is not None
        and (above := search.attempts.get(root.parent))
        and above.rollout is None
    ):
        if above.number >= root.number:  # only a damaged archive says so
            break
        root = above
    return "tree", root.number


def _scheme(turns: Sequence[ModelTurn]) -> str:
    """The skills that the rollout was given; ``null``: none."""
    given = sorted({skill for turn in turns for skill in turn.skills})
    return "+".join(given) or "null"


def _turns(
    search: ArchivedSearch, attempts: Sequence[Attempt], outcomes: Mapping[str, Human]
) -> list[ModelTurn]:
    turns: list[ModelTurn] = []
    numbers: dict[int, int] = {}
    """Attempt -> its last turn."""
    late: list[tuple[Attempt, Exchange]] = []
    for attempt in attempts:
        exchanges = search.exchanges.get(attempt.number, [])
        late += [(attempt, one) for one in exchanges if one.agent == Agent.SUMMARY]
        early = [one for one in exchanges if one.agent != Agent.SUMMARY]
        template = _template(search, attempt, numbers, outcomes)
        policy = [place for place, one in enumerate(early) if one.agent == Agent.POLICY]
        for place, exchange in enumerate(early):
            final = bool(policy) and place == policy[-1]
            turns.append(_exchange_turn(exchange, template if final else None, attempt, len(turns)))
        if not policy:
            before = _steps(search, attempt.parent)
            calls = calls_for(attempt.candidate, before)
            turns.append(replace(template, number=len(turns), calls=calls))
        numbers[attempt.number] = max(t.number for t in turns if t.agent is Agent.POLICY)
    return turns + [
        _exchange_turn(one, None, attempt, len(turns) + place)
        for place, (attempt, one) in enumerate(late)
    ]


def _template(
    search: ArchivedSearch,
    attempt: Attempt,
    numbers: Mapping[int, int],
    outcomes: Mapping[str, Human],
) -> ModelTurn:
    """The turn that the attempt's verdict belongs to, without what was said."""
    proposal, candidate = attempt.proposal, attempt.candidate
    above = search.attempts.get(attempt.parent) if attempt.parent is not None else None
    return ModelTurn(
        number=0,
        agent=Agent.POLICY,
        steps=candidate.steps if candidate else (),
        outcome=attempt_outcome(attempt),
        step=_depth(search, attempt),
        parent=None if attempt.parent is None else numbers.get(attempt.parent),
        parent_outcome=attempt_outcome(above) if above else None,
        human=outcomes.get(proposal.id) if proposal else None,
        candidate=candidate.id if candidate else None,
        skills=candidate.advice if candidate else (),
        model=attempt.proposer,
        seconds=attempt.cost.model_s + attempt.cost.evaluation_s,
    )


def _exchange_turn(
    exchange: Exchange, judged: ModelTurn | None, attempt: Attempt, number: int
) -> ModelTurn:
    """One prompt and its reply; with the verdict, where that is what was judged."""
    reply, parsed = exchange.reply, exchange.parsed
    status = TurnStatus.NONE if parsed.calls else TurnStatus.REFUSED
    base = judged or ModelTurn(
        number=0, agent=Agent(exchange.agent), outcome=TurnOutcome(status=status)
    )
    return replace(
        base,
        number=number,
        messages=exchange.prompt.messages,
        tools=exchange.prompt.tools,
        reply=reply.text,
        calls=parsed.calls,
        problems=tuple(map(str, parsed.problems)),
        reply_ids=reply.token_ids,
        logprobs=reply.logprobs if reply.token_ids is not None else None,
        step=base.step if judged else max(0, attempt.turn - 1),
        model=attempt.proposer,
        seconds=reply.latency_s,
        prompt_tokens=reply.usage.prompt_tokens,
        reply_tokens=reply.usage.completion_tokens,
    )


def attempt_outcome(attempt: Attempt) -> TurnOutcome:
    """What became of an attempt of an archive, as rewards look at it."""
    if attempt.proposal is None:
        return TurnOutcome(status=TurnStatus.REFUSED, complaint=attempt.complaint)
    uses_triton = attempt.proposal.candidate.uses_triton
    return outcome_of(attempt.proposal.evaluation, attempt.complete, uses_triton)


def _depth(search: ArchivedSearch, attempt: Attempt) -> int:
    depth, parent = 0, attempt.parent
    seen: set[int] = set()
    while parent is not None and parent not in seen and parent in search.attempts:
        seen.add(parent)
        depth, parent = depth + 1, search.attempts[parent].parent
    return depth


def _steps(search: ArchivedSearch, number: int | None) -> tuple[Step, ...]:
    above: Any = search.attempts.get(number) if number is not None else None
    return above.candidate.steps if above and above.candidate else ()
