"""How far a search may go, what it has cost and why it ended: asked for in a `Job`, reported in an
`Outcome`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class SearchMode(StrEnum):
    BEST = "best"
    """Independent samples of one turn: best of n."""
    TURNS = "turns"
    """Rollouts of several turns; fresh starts compete with refinement."""
    EVOLVE = "evolve"
    """MAP-Elites with islands, over all proposers."""


class StopReason(StrEnum):
    ROOFLINE = "roofline"
    """The best one takes at most `search.budget.AT_THE_ROOF` times the least that the device
    allows."""
    STAGNATION = "stagnation"
    CANDIDATES = "candidates"
    SECONDS = "seconds"
    TOKENS = "tokens"
    GPU_SECONDS = "gpu_seconds"
    EXHAUSTED = "exhausted"
    """No proposer has anything more to try."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchBudget:
    """Each counts from the search's beginning, resumed parts included; None: no limit."""

    candidates: int = 64
    """Judged ones."""
    seconds: float | None = 1800.0
    tokens: int | None = None
    """Of prompts and replies together."""
    gpu_seconds: float | None = None
    stagnation: int = 24
    """Judged candidates in a row without a better best, since this run of the search began."""
    attempts: int | None = None
    """Judged or not: replies that are of no use count, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlan:
    """A search beyond the quick one."""

    mode: SearchMode = SearchMode.EVOLVE
    budget: SearchBudget = SearchBudget()
    archive: str | None = None
    """File; None: the place that belongs to this target, workload and device."""
    fresh: bool = False
    """Begin anew instead of going on where the archive ends."""
    turns: int = 4
    """Of one rollout of a language model at most; a budget of no more candidates is one rollout.
    daVinci-kernel trains with 3 turns and evaluates with 5 (arXiv 2606.16497)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What was spent."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Estimated (upper) where the server does not count."""
    model_s: float = 0.0
    """Waiting for replies, summed over prompts; they overlap."""
    evaluations: int = 0
    evaluation_s: float = 0.0
    gpu_s: float = 0.0
    """Wall time of evaluations on a GPU: an upper bound, because several share it while they
    compile."""

    @property
    def tokens(self) -> int:
        """Tokens of prompts and replies together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            model_s=self.model_s + other.model_s,
            evaluations=self.evaluations + other.evaluations,
            evaluation_s=self.evaluation_s + other.evaluation_s,
            gpu_s=self.gpu_s + other.gpu_s,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveTally:
    """One kind of move: whether fresh starts or refinement pay."""

    tries: int = 0
    right: int = 0
    improved: int = 0
    """It became the best so far."""
    gain: float = 0.0
    """Sum of ln(new best / old best)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSummary:
    """What a search says at its end."""

    mode: SearchMode
    stop: StopReason
    attempts: int
    resumed: int = 0
    """Attempts that an earlier run had made."""
    cost: Cost = Cost()
    gains: int = 0
    """Verified ones that beat everything before; `cost` per gain is `cost` / this."""
    moves: dict[str, MoveTally] = field(default_factory=dict)
    """`Move` -> how it did."""
    archive: str | None = None
    notes: tuple[str, ...] = ()
    """What went wrong on the way: a proposer that was lost, a disk that refused; cause and
    remedy."""
