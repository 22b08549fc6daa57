"""What every kind of source needs to become trajectories: permission, redaction, identity,
outcomes.

Permission is settled here, once: a row is used when its own record says that its user allows it,
or when the person who runs the export says that what was not asked about is theirs (`Grant.own`);
a recorded no stays a no. Texts then lose secrets and absolute paths, or are left out altogether.
Not covered: how rows are stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel_lsp import wire
from kernel_lsp.agents.secrets import Redaction, each_text
from kernel_lsp.agents.tools import APPLY, WRITE
from kernel_lsp.records import Candidate, EvalStatus, Evaluation, Message, Step, ToolCall
from trainer.records import (
    Human,
    ModelTurn,
    Permission,
    Tally,
    Trajectory,
    TurnOutcome,
    TurnStatus,
    Versions,
)

REFUSED = "its user did not allow training on it"
UNASKED = "nobody was asked whether it may be trained on"
_PATH = re.compile(
    r"(?<![\w./\\~])(?:[A-Za-z]:[\\/]|/(?=(?:home|Users|root|mnt|media|srv|opt|data|scratch|workspaces?|tmp|var|"
    r"usr|Volumes|private|nfs|fsx|lustre|gpfs)/))(?:[^\s\\/:'\"<>|,;()]+[\\/])+(?P<last>[^\s\\/:'\"<>|,;()]*)"
)
"""Absolute paths that begin as paths do: in code, ``(a)/b/c`` is a division."""
UNREADABLE = "the row cannot be read: half-written, or of another form"
TWICE = "the same rollout was read already"
CHANGED = "its reference changed since it was measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What the person who runs the export says of rows that say nothing themselves."""

    own: bool = False
    """They are mine, and I allow it: rows from before consent was recorded, and archives."""
    unchanged: bool = False
    """Tables without hashes of their tasks were recorded from the files that are there now."""

    def permission(self, training: bool | None, source: bool, where: str) -> Permission | str:
        """What a row may be used for, or the reason why it may not be used."""
        if training is False:
            return REFUSED
        if training is None and not self.own:
            return UNASKED
        because = (
            f"{where}: training" if training else f"{where}: the exporter says that it is theirs"
        )
        return Permission(training=True, source=source, redacted=True, because=because)


# --- outcomes ------------------------------------------------------------------------------------


def outcome_of(
    evaluation: Evaluation, complete: bool, uses_triton: bool | None = None
) -> TurnOutcome:
    """What a verdict says of a turn. ``uses_triton``: whether the candidate holds kernels; None:
    unknown."""
    passed = evaluation.status is EvalStatus.PASSED
    times = {timing.provider: timing.median_ms for timing in evaluation.timings}
    return TurnOutcome(
        status=TurnStatus(evaluation.status.value),
        correct=None if evaluation.status is EvalStatus.NOT_RUN else passed,
        speedups=dict(evaluation.speedups) if passed else {},
        complete=complete,
        coverage=coverage_of(evaluation, uses_triton),
        candidate_ms=times.pop("candidate", None),
        baseline_ms=times,
        evaluation_s=evaluation.seconds,
        complaint="" if passed else evaluation.detail,
    )


def coverage_of(evaluation: Evaluation, uses_triton: bool | None) -> float | None:
    """T_own / T_all of a candidate that passed (PR in Dr. Kernel, arXiv 2602.05885), as profiled.

    One without any kernel of its own spends nothing in them, so its 0 needs no profile. None: not
    known, which is no 0."""
    if evaluation.status is not EvalStatus.PASSED:
        return None
    if evaluation.coverage is None and uses_triton is False:
        return 0.0
    return evaluation.coverage


def versions_of(evaluation: Evaluation | None, kernel_lsp: str | None = None) -> Versions:
    """The versions under which something was evaluated; None for those that are not known."""
    found = evaluation.environment if evaluation else {}
    named = {name: found.get(name) for name in ("kernel_lsp", "torch", "triton", "python")}
    named["kernel_lsp"] = named["kernel_lsp"] or kernel_lsp
    return Versions(**{name: value for name, value in named.items() if isinstance(value, str)})


def calls_for(candidate: Candidate | None, before: Sequence[Step]) -> tuple[ToolCall, ...]:
    """The calls that lead from some steps to a candidate: what a model would have had to say."""
    if candidate is None:
        return ()
    if candidate.steps:
        known = list(before)
        fresh = [step for step in candidate.steps if step not in known]
        return tuple(
            ToolCall(
                name=APPLY,
                arguments={"skill": s.skill, "site": s.site, "parameters": dict(s.parameters)},
            )
            for s in fresh or candidate.steps
        )
    if candidate.edit is None or not candidate.edit.target:
        return ()
    parts = (*candidate.edit.imports, candidate.edit.definitions, candidate.edit.target)
    return (ToolCall(name=WRITE, arguments={"code": "\n".join(part for part in parts if part)}),)


def last(events: Iterable[str]) -> Human | None:
    """What a person did in the end, from kinds of events, oldest first."""
    found: Human | None = None
    for kind in events:
        match kind:
            case "accepted":
                found = Human.ACCEPTED
            case "kept" | "kept_committed":
                found = Human.KEPT
            case "reverted":
                found = Human.REVERTED
            case "dismissed" if (
                found is not Human.KEPT
            ):  # a rewrite that stands is not refused by a later no
                found = Human.DISMISSED
            case "modified" if found in (Human.ACCEPTED, Human.KEPT):
                found = Human.CHANGED
            case "deleted" if found in (Human.KEPT, Human.CHANGED):
                found = Human.ACCEPTED
    return found


# --- texts ---------------------------------------------------------------------------------------


def clear_private(found: Trajectory, known: Sequence[str] = ()) -> Trajectory:
    """The trajectory as its permission says: without any text of the user's code, or with secrets
    and paths replaced."""
    if not found.permission.source:
        turns = tuple(_without_text(turn) for turn in found.turns)
        return replace(found, turns=turns, program=None, task_name=None, entry="")
    redaction = Redaction(list(_texts(found)), known)

    def hide(text: str) -> str:
        # Paths first: where a home is hidden already, the rest of a path is none any more.
        return redaction.hide(_PATH.sub(lambda match: f".../{match['last']}", text))

    return replace(
        found,
        turns=tuple(_redact_turn(turn, hide) for turn in found.turns),
        program=None if found.program is None else hide(found.program),
        task_name=None if found.task_name is None else hide(found.task_name),
    )


def _without_text(turn: ModelTurn) -> ModelTurn:
    calls = tuple(call for call in turn.calls if call.name != WRITE)
    parent = turn.parent_outcome and replace(turn.parent_outcome, complaint="")
    return replace(
        turn,
        messages=None,
        tools=(),
        reply=None,
        calls=calls,
        problems=(),
        prompt_ids=None,
        reply_ids=None,
        logprobs=None,
        outcome=replace(turn.outcome, complaint=""),
        parent_outcome=parent,
    )


def _redact_turn(turn: ModelTurn, hide: Callable[[str], str]) -> ModelTurn:
    def message(one: Message) -> Message:
        return replace(one, text=hide(one.text), calls=tuple(call(c) for c in one.calls))

    def call(one: ToolCall) -> ToolCall:
        return replace(one, arguments=each_text(one.arguments, hide))

    hidden = replace(
        turn,
        messages=None if turn.messages is None else tuple(message(one) for one in turn.messages),
        reply=None if turn.reply is None else hide(turn.reply),
        calls=tuple(call(one) for one in turn.calls),
        problems=tuple(hide(problem) for problem in turn.problems),
        outcome=replace(turn.outcome, complaint=hide(turn.outcome.complaint)),
        parent_outcome=turn.parent_outcome
        and replace(turn.parent_outcome, complaint=hide(turn.parent_outcome.complaint)),
    )
    same = (hidden.messages, hidden.reply) == (turn.messages, turn.reply)
    # Tokens spell out what was hidden: they stay only where nothing was.
    return hidden if same else replace(hidden, prompt_ids=None, reply_ids=None, logprobs=None)


def _texts(found: Trajectory) -> Iterable[str]:
    yield found.program or ""
    for turn in found.turns:
        yield turn.reply or ""
        yield turn.outcome.complaint
        yield from turn.problems
        yield from (repr(call.arguments) for call in turn.calls)
        for message in turn.messages or ():
            yield message.text
            yield from (repr(call.arguments) for call in message.calls)


# --- identity ------------------------------------------------------------------------------------


def identify(found: Trajectory) -> Trajectory:
    """The trajectory with the id that its content gives it, wherever it was read."""
    entries: list[Any] = [found.task, found.device, found.device_name]
    entries += [[t.agent, t.reply, t.candidate, t.steps, t.calls, t.outcome] for t in found.turns]
    return replace(found, id=hashlib.sha256(wire.dumps(entries).encode()).hexdigest()[:24])


class TrajectorySet:
    """Trajectories so far, each once."""

    def __init__(self, tally: Tally) -> None:
        self.found: dict[str, Trajectory] = {}
        self._tally = tally

    def add(self, one: Trajectory) -> None:
        """Cleared and named. Of two copies the one with a person's judgement stays."""
        made = identify(clear_private(one))
        known = self.found.get(made.id)
        if known is not None:
            self._tally.skip(TWICE, made.origin)
        if known is None or (known.human is None and made.human is not None):
            self.found[made.id] = made
