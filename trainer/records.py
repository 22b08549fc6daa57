"""What the trainer learns from: turns, trajectories, and what was left out of them with its
reason.

Rules as in `kernel_lsp.records`: frozen, keyword-only, units in the names, ``None`` is unknown
(never 0 or 1.0), JSON both ways through `kernel_lsp.wire`. A trajectory holds what its row's
consent allows and no more; `Permission` says what that was, and travels with every row that is made
of it. Standard library only. Not covered: rewards and advantages, which are computed from these
(rewards.py, advantages.py)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from kernel_lsp.records import Interval, Json, Message, Step, ToolCall, ToolSchema

SCHEMA_VERSION = 1
"""Of what `export.py` writes."""


class Agent(StrEnum):
    """Whose turn it was: one model, three prompts."""

    SELECTION = "selection"
    POLICY = "policy"
    SUMMARY = "summary"


class TrajectorySource(StrEnum):
    JOURNAL = "journal"
    """What an editor or the command line logged; never with a prompt, tokens or
    log-probabilities."""
    ARCHIVE = "archive"
    """A search: prompts, replies and verdicts of every attempt."""
    TABLE = "table"
    """Evaluations that were recorded once (benchmarks/results): steps and times, no prompts."""
    ROLLOUT = "rollout"
    """The trainer's own sampling: with log-probabilities."""


class TurnStatus(StrEnum):
    """What became of a turn: `EvalStatus`, and what happens before anything could be judged."""

    PASSED = "passed"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    WRONG_RESULT = "wrong_result"
    TIMED_OUT = "timed_out"
    CHEATED = "cheated"
    NOT_RUN = "not_run"
    """Could not be judged: no lesson about the candidate."""
    REFUSED = "refused"
    """The reply was no valid call, or the engine refused to apply it: nothing was judged."""
    NONE = "none"
    """Nothing to judge by its nature: a selection or a summary, whose worth shows in later
    turns."""


class Human(StrEnum):
    """What a person did with an offer, as far as the journal has proof; the last one counts."""

    ACCEPTED = "accepted"
    KEPT = "kept"
    """Saved, or committed: still there later."""
    CHANGED = "changed"
    """Accepted, and then made into something else: what became of it is the better answer."""
    REVERTED = "reverted"
    DISMISSED = "dismissed"


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnOutcome:
    """What the gate said of one turn."""

    status: TurnStatus
    correct: bool | None = None
    """None: it was not judged."""
    speedups: dict[str, Interval] = field(default_factory=dict)
    """baseline (eager, eager_tf32, compile) -> baseline time / candidate time; empty: not timed."""
    complete: bool = False
    """Judged in full: against every baseline, not eager alone."""
    coverage: float | None = None
    """Share of the GPU time that is spent in kernels of the candidate's own, 0..1."""
    candidate_ms: float | None = None
    baseline_ms: dict[str, float] = field(default_factory=dict)
    """Medians of the same baselines; also where ``speedups`` is empty because no interval was
    recorded."""
    evaluation_s: float | None = None
    complaint: str = ""
    """Why nothing was judged, or what was wrong; redacted like any other text."""

    @property
    def speedup(self) -> Interval | None:
        """The speedup over the best baseline that took part; None unless correct and timed."""
        if not self.correct or not self.speedups:
            return None
        return min(self.speedups.values(), key=lambda found: found.mid)

    @property
    def lower_bound(self) -> float | None:
        """Lower confidence bound of the speedup over every baseline that took part."""
        if not self.correct or not self.speedups:
            return None
        return min(found.low for found in self.speedups.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTurn:
    """One reply of the model and what came of it: one row for a loss."""

    number: int
    """From 0, unique and increasing in its trajectory, over all agents."""
    agent: Agent
    messages: tuple[Message, ...] | None = None
    """The prompt; None: it was not kept, or was not allowed to be."""
    tools: tuple[ToolSchema, ...] = ()
    reply: str | None = None
    """Text that the model wrote (empty where the server parsed the call); None: not kept, or there
    was no model (a planner's, a table's)."""
    calls: tuple[ToolCall, ...] = ()
    """Valid ones. Without a model: the calls that would have made the same steps."""
    problems: tuple[str, ...] = ()
    """What was wrong with the reply."""
    steps: tuple[Step, ...] = ()
    """The whole plan after this turn, its parent's steps included; empty for code written by
    hand."""
    prompt_ids: tuple[int, ...] | None = None
    reply_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """Of ``reply_ids``, natural logarithm, under the model that sampled them; same length."""
    outcome: TurnOutcome
    step: int = 0
    """The refinement step that it belongs to, 0 for what starts from the target: turns of several
    agents (or a skill that was read first) share one."""
    parent: int | None = None
    """Number of the policy turn that it started from; None: the target itself, or a turn of another
    trajectory, whose outcome ``parent_outcome`` is."""
    parent_outcome: TurnOutcome | None = None
    """Of what it started from; None: the target itself, or unknown."""
    human: Human | None = None
    """Of this turn's candidate; None: it was never offered, or nothing is known."""
    candidate: str | None = None
    """Content hash of the rewritten program."""
    changes: int | None = None
    """Number of the turn whose accepted rewrite a person made into this; nobody has judged it."""
    skills: tuple[str, ...] = ()
    """In its prompt, as text; empty: none (the null arm), or unknown."""
    model: str | None = None
    """``backbone:model@version`` or ``plan/2``: who answered."""
    seconds: float | None = None
    prompt_tokens: int | None = None
    reply_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Permission:
    """What a row's owner allowed. Made once, where the row is read; nothing later may widen it."""

    training: bool
    """It may be learned from. Rows without this are counted and never become a trajectory."""
    source: bool
    """Text of the user's code may be used; without it messages, replies and programs are None."""
    redacted: bool
    """Secrets and absolute paths were replaced in every text."""
    because: str
    """Where that is known from: ``proposals.train``, ``--own-archive``, ``our own task``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    kernel_lsp: str | None = None
    torch: str | None = None
    triton: str | None = None
    python: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """All turns of one rollout (or one logged session's proposals for one target), oldest first."""

    id: str
    """Content hash: the same rollout read twice has the same one."""
    task: str
    """`tasks.task_id`: hash of the reference program and workload."""
    task_name: str | None = None
    """Where it stands in its suite, or the class that a session rewrote; for people."""
    entry: str = "Model"
    """Class or function of ``program`` that is rewritten."""
    family: str | None = None
    """Structural family (families.py); None: the program was not kept, so it is unknown."""
    program: str | None = None
    """Source of the reference; None: not allowed or not kept."""
    workload: Json = field(default_factory=dict)
    """`kernel_lsp.records.Workload` as JSON."""
    device: str
    """cuda or cpu."""
    device_name: str | None = None
    versions: Versions = Versions()
    source: TrajectorySource
    origin: str
    """File or database and row that it came from, without credentials and without a user's
    folders."""
    rollout: str
    """Its own id, also among rollouts of one scheme; the group of an advantage is (task, step)."""
    scheme: str | None = None
    """Which draw of skills it ran under; ``null``: none on purpose."""
    turns: tuple[ModelTurn, ...]
    human: Human | None = None
    """Of the turn that was offered last; the turns have their own."""
    permission: Permission
    created: str | None = None
    """ISO 8601, UTC."""
    contributor: str | None = None
    """Whose rows of a team's journal it is made of, as a hash (forgetting.py); None: nobody's but
    this machine's."""

    @property
    def policy_turns(self) -> tuple[ModelTurn, ...]:
        """The turns of the policy agent."""
        return tuple(turn for turn in self.turns if turn.agent is Agent.POLICY)

    @property
    def best(self) -> ModelTurn | None:
        """The policy turn with the largest lower bound; None: none was right and timed."""
        timed = [turn for turn in self.policy_turns if turn.outcome.lower_bound is not None]
        return max(timed, key=lambda turn: turn.outcome.lower_bound or 0.0, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """Rows that were left out for one reason."""

    reason: str
    """One of few fixed sentences, so that it can be counted."""
    count: int
    examples: tuple[str, ...] = ()
    """Up to five names of rows; never their text."""


MAX_EXAMPLES = 5


class Tally:
    """Counts what is read, kept and left out, with its reason: nothing is dropped without one."""

    def __init__(self) -> None:
        self.read = 0
        self.kept = 0
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}

    def skip(self, reason: str, example: str = "", count: int = 1) -> None:
        """Counts what was left out, and keeps a few examples of each reason."""
        self._counts[reason] += count
        shown = self._examples.setdefault(reason, [])
        if example and len(shown) < MAX_EXAMPLES:
            shown.append(example)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The most frequent reason first."""
        return tuple(
            Skipped(reason=reason, count=count, examples=tuple(self._examples[reason]))
            for reason, count in sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))
        )

    def count(self, reason: str) -> int:
        """How often something was left out for this reason."""
        return self._counts[reason]


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Trajectories of some sources, and what of these is not among them."""

    trajectories: tuple[Trajectory, ...]
    read: int
    """Rows that were looked at: proposals, attempts or recorded evaluations."""
    skipped: tuple[Skipped, ...] = ()

    @property
    def reasons(self) -> dict[str, int]:
        """How much was left out, by reason."""
        return {one.reason: one.count for one in self.skipped}
