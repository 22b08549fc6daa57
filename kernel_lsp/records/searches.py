"""A search for one target: what is tried, from where, at which cost, and when it ends.

One loop (search/loop.py) asks a `Strategy` where to go on, a `Proposer` for a draft and the
`SearchJudge` for a verdict, and keeps every `Attempt` in an `Archive`. Not covered: how any of
them decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kernel_lsp.records.code import Program, Workload
from kernel_lsp.records.common import Json
from kernel_lsp.records.evidence import Evidence
from kernel_lsp.records.models import Exchange, SkillDraft
from kernel_lsp.records.plans import Cost
from kernel_lsp.records.proposals import Proposal
from kernel_lsp.records.rewrites import Candidate, Site, Step
from kernel_lsp.records.skills import Skill, SkillMatch


class Bottleneck(StrEnum):
    """What limits a target as it is; the bandit learns for each apart."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LAUNCH = "launch"
    UNKNOWN = "unknown"


class Move(StrEnum):
    """How an attempt came about."""

    SEED = "seed"
    """Of the initial population: the planner's plans, torch.compile, the target itself."""
    RESTART = "restart"
    """From the target, without looking at a parent."""
    REFINE = "refine"
    """A model saw the parent and what was said of it."""
    MUTATE = "mutate"
    """Other parameters for one step of the parent, without a model."""
    CHAIN = "chain"
    """A step more, less or instead, without a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveCell:
    """Where a candidate stands in the map: one elite per island and cell."""

    complexity: int
    """0..9: ``min(9, int(log2(1 + characters of the edit / 200)))``. Fixed bins, so that cells
    never move."""
    strategy: str
    """torch, compile, graph, triton, triton-dot or triton-many (several kernels)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTask:
    """What every proposer may know about the target."""

    qualname: str
    fingerprint: str
    program: Program
    workload: Workload
    device: str
    """cuda or cpu."""
    device_name: str | None = None
    triton: bool = True
    """Generated kernels can be of use on the device that judges."""
    words: tuple[str, ...] = ()
    sites: tuple[Site, ...] = ()
    """Of recalled skills, ranked."""
    matches: tuple[SkillMatch, ...] = ()
    """At most 20, best first."""
    skills: tuple[Skill, ...] = ()
    """The matches' skills, in their order."""
    read_bytes: int | None = None
    written_bytes: int | None = None
    bottleneck: Bottleneck = Bottleneck.UNKNOWN


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One try, judged or not: a row of the archive."""

    number: int
    """From 0, in the order in which they were begun."""
    move: Move
    proposer: str
    """`Candidate.proposer`, also when no candidate came of it."""
    proposal: Proposal | None = None
    """None: there was nothing to judge, and ``complaint`` says why."""
    complaint: str = ""
    complete: bool = False
    """Judged in full."""
    feedback: Json = field(default_factory=dict)
    """What a next turn reads (agents/feedback.py); small enough to keep."""
    fitness: float | None = None
    """Lower bound of the speedup over the best baseline that took part; None unless right and
    timed."""
    cell: ArchiveCell | None = None
    island: int = 0
    rollout: int | None = None
    turn: int = 0
    """From 1 inside a rollout; 0: no model took part."""
    parent: int | None = None
    """Number of the attempt that it started from."""
    cost: Cost = field(default_factory=Cost)
    created: str
    """ISO 8601, UTC."""

    @property
    def candidate(self) -> Candidate | None:
        """What was proposed; None: the attempt did not get to a candidate."""
        return self.proposal.candidate if self.proposal else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Where the next attempt starts, chosen by a strategy."""

    number: int
    """Of the attempt to come."""
    seed: int
    """All of its randomness; from the search's seed and the number, so a resumed search goes on
    alike."""
    move: Move
    parent: Attempt | None = None
    history: tuple[Attempt, ...] = ()
    """Of this rollout, oldest first."""
    best: tuple[Attempt, ...] = ()
    """Elites for the prompt, best first, one per candidate."""
    diverse: tuple[Attempt, ...] = ()
    """Elites of other cells."""
    contrast: tuple[Attempt, ...] = ()
    """Empty, or a slow and a fast one of the same cell column: what made the difference?"""
    island: int = 0
    rollout: int | None = None
    turn: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProposedDraft:
    """What a proposer made of a context."""

    candidate: Candidate | None = None
    complaint: str = ""
    """Why there is none."""
    exchanges: tuple[Exchange, ...] = ()
    cost: Cost = field(default_factory=Cost)
    drafts: tuple[SkillDraft, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchJudgement:
    proposal: Proposal
    evidence: Evidence | None = None
    """With every trial; None where nothing was run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmStats:
    """What is known of one skill for one bottleneck on one device, over all tasks of this user."""

    skill: str
    bottleneck: Bottleneck
    device: str
    """cuda:<compute capability> or cpu."""
    tries: int = 0
    """Judged candidates in which it took part."""
    wins: int = 0
    """Of them, those with a verified speedup."""
    gain_sum: float = 0.0
    """Of max(0, ln fitness), 0 where there is none; shared equally among the skills of a
    candidate."""
    gain_squares: float = 0.0

    @property
    def mean_gain(self) -> float | None:
        """The mean gain of its tries; None before the first."""
        return self.gain_sum / self.tries if self.tries else None


class Proposer(Protocol):
    """Makes drafts. One that fails for good raises BackboneError; the loop then goes on with the
    others."""

    @property
    def name(self) -> str:
        """The name that `Candidate.proposer` has of it."""

    @property
    def slow(self) -> bool:
        """Asks a language model: several run at once, ahead of the device."""

    async def propose(self, task: SearchTask, context: Context) -> ProposedDraft | None:
        """A draft from there; None: nothing (more) to propose."""


class Workshop(Protocol):
    """Turns what a proposer wants into candidates. Nothing of the user's runs."""

    async def sites(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        """What could follow these steps. Raises RewriteError."""

    async def apply(self, steps: Sequence[Step]) -> Candidate:
        """The candidate that the engine makes of these steps, with proofs. Raises RewriteError."""

    async def write(self, code: str, parent: Candidate | None) -> Candidate:
        """A whole replacement of the target (definitions beside it), or edit blocks against the
        parent's marked region. Raises RewriteError: cause and remedy are for the model."""

    def marked(self, parent: Candidate | None) -> str:
        """The program as a model sees it, its region between two marker comments."""


class SearchJudge(Protocol):
    async def __call__(self, candidate: Candidate, *, full: bool) -> SearchJudgement:
        """Quickly (against eager alone) or in full. Cancelling the task ends its processes."""


class Archive(Protocol):
    """Every attempt of one search, on disk before the next decision is made from it."""

    @property
    def id(self) -> str:
        """The search's id; `Candidate.search` is ``<id>#<number>``."""

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The finished attempts, in order of number; one per number, the complete judgement where
        there are two."""

    @property
    def unfinished(self) -> Sequence[tuple[Attempt, Candidate]]:
        """Attempts that have begun and have no verdict: they are being judged, or a process was
        killed."""

    @property
    def cost(self) -> Cost:
        """The cost of all attempts, what is being judged included (its making)."""

    @property
    def seconds(self) -> float:
        """Wall time that the search has been open, earlier runs included."""

    def reserve(self) -> int:
        """The next number; gaps stay where a process was killed."""

    def begin(
        self,
        attempt: Attempt,
        candidate: Candidate,
        exchanges: Sequence[Exchange] = (),
        drafts: Sequence[SkillDraft] = (),
    ) -> Attempt | None:
        """Note that it is about to be judged, and how it was made; ``attempt`` has no proposal
        yet.

        Returns the earlier attempt with this candidate, if any (finished or not): then nothing was
        noted."""

    def add(
        self,
        attempt: Attempt,
        exchanges: Sequence[Exchange] = (),
        drafts: Sequence[SkillDraft] = (),
    ) -> None:
        """One transaction, synced. A disk that refuses: kept in memory, said once through
        `problems`."""

    def elites(self, island: int) -> Mapping[ArchiveCell, Attempt]:
        """Cell -> the best attempt in it, of one island."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong while it was written, in words."""

    def close(self) -> None:
        """Let go of what is open; nothing is added after it."""


class Strategy(Protocol):
    """Where to go on. Pure: the same archive and number give the same answer."""

    def choose(self, archive: Archive, number: int, *, slow: bool) -> Context | None:
        """Where a slow or a quick proposer goes on; None: nowhere (the loop tries the others, then
        stops EXHAUSTED)."""


class SkillArms(Protocol):
    """The bandit over skills."""

    def stats(self) -> tuple[ArmStats, ...]:
        """What is known of every skill, bottleneck and device that was tried."""

    def order(self, skills: Sequence[str], bottleneck: Bottleneck, device: str) -> list[str]:
        """Most promising first, optimistically: untried before tried, then mean gain plus a UCB1
        bonus."""

    def learn(self, attempt: Attempt, bottleneck: Bottleneck, device: str) -> None:
        """Counts the attempt for each skill of its candidate."""
