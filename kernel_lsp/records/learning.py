"""The life of a learned skill: its origin, what its verification has shown, where it stands.

Gains and uplifts are natural logarithms of speedups: 0 is no gain, ln 2 twice as fast; they add up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kernel_lsp.records.models import SkillDraft
from kernel_lsp.records.rewrites import Step
from kernel_lsp.records.verdicts import Interval


class Standing(StrEnum):
    STAGED = "staged"
    """Drafted; nobody has shown that it helps."""
    REFUSED = "refused"
    """Turned down, with a reason; kept, so that it is not drafted again."""
    VERIFIED = "verified"
    """In the library: it takes part in every job that it fits."""
    RETIRED = "retired"
    """It was in the library and stopped helping; kept, and may be promoted again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a draft was learned from."""

    event: str
    """kept (a person kept the rewrite), search (it clearly improved on its first attempt) or
    lineage (a step of an expert's kernel)."""
    fingerprint: str
    """Of the target; verification leaves it out."""
    qualname: str
    hardware: str
    """cuda:<compute capability> or cpu."""
    device_name: str | None = None
    writer: str = "rule/1"
    """Model, or the deterministic summary."""
    speedup: Interval | None = None
    """Over the best baseline."""
    proposal: str | None = None
    created: str = ""
    """ISO 8601, UTC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskUplift:
    """One task of a verification: the same samples with the skill and without it."""

    task: str
    fingerprint: str
    samples: int
    """Pairs of which both halves were judged."""
    right_with: int
    right_without: int
    gain_with: float
    """Mean over samples of max(0, ln speedup over eager); what is wrong gains nothing."""
    gain_without: float
    gain_null: float
    """Of the arm without any learned skill."""
    differs: bool
    """The skill led to another candidate; where it did not, nothing was measured for it."""
    elements: int = 0
    """Of the largest tensor that enters."""

    @property
    def uplift(self) -> float:
        """The gain with the skill minus the gain without it."""
        return self.gain_with - self.gain_without


@dataclass(frozen=True, kw_only=True, slots=True)
class Uplift:
    """Mean over tasks, with one-sided bounds of ``confidence`` each."""

    mean: float
    low: float
    high: float
    tasks: int
    confidence: float = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """One run of a skill through its tasks on one kind of device."""

    hardware: str
    device_name: str | None
    created: str
    accepted: bool
    reason: str
    """Why, in words that a person can act on."""
    undecided: bool = False
    """Not accepted, and more tasks may still show it."""
    uplift: Uplift | None = None
    """Over tasks where the skill changed something; None: there were fewer than two."""
    tasks: tuple[TaskUplift, ...] = ()
    credit: dict[str, float] = field(default_factory=dict)
    """Learned skill -> mean loss when it alone is left out of the library."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Why tasks did not take part -> how many."""
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedSkill:
    """A skill's papers; its text is the SKILL.md beside them."""

    name: str
    standing: Standing
    origin: Origin
    reason: str = ""
    """Of the standing."""
    verifications: tuple[Verification, ...] = ()
    """Oldest first."""
    since: str = ""
    """When it came to this standing; ISO 8601, UTC."""

    @property
    def verified_on(self) -> tuple[str, ...]:
        """The hardware on which a verification accepted it, each once."""
        return tuple(dict.fromkeys(one.hardware for one in self.verifications if one.accepted))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What a summary gives: a draft and its papers."""

    draft: SkillDraft
    origin: Origin
    instead_of: tuple[Step, ...] = ()
    """What had been suggested first where it was learned; empty: unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageStats:
    """A learned skill at work on one kind of device, beside what the planner did without it."""

    skill: str
    hardware: str
    uses: int = 0
    """Jobs in which its candidate was judged."""
    wins: int = 0
    """Of them, those whose offer it was."""
    pairs: int = 0
    """Of them, those in which something else was judged beside it."""
    uplift_sum: float = 0.0
    """Over the pairs: ln(its speedup / the best other one's); what is wrong counts as 1x."""
    uplift_squares: float = 0.0
