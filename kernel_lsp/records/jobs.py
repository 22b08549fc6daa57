"""A request for the main job and what it found: pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.records.code import ArgSpec, Break, Part
from kernel_lsp.records.misses import NearMiss, Roof
from kernel_lsp.records.plans import SearchPlan, SearchSummary
from kernel_lsp.records.proposals import Proposal, Verdict
from kernel_lsp.records.rewrites import Site
from kernel_lsp.records.skills import SkillMatch
from kernel_lsp.records.verdicts import EvalStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One request for the main job: make this target faster."""

    text: str
    """The document as it is now (it need not be saved)."""
    path: str
    """Where it lives; its folder is searched for recorded workloads."""
    qualname: str
    folder: str | None = None
    """Workspace root: interpreter, settings and consent are looked up per root."""
    device: str = "auto"
    """auto, cuda or cpu."""
    budget: int = 8
    """Candidates that may be evaluated."""
    background: bool = False
    """Nobody waits for it: it is rationed and runs at the lowest priority."""
    search: SearchPlan | None = None
    """None: the quick search alone."""
    allowed_origin: str | None = None
    """The remote endpoint that this folder's user has allowed prompts to go to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    phase: str
    """capture, select, propose, tune, evaluate; queue while it waits for a device."""
    message: str
    done: int | None = None
    total: int | None = None
    proposal: Proposal | None = None
    """A verified rewrite, as soon as it is known; a better one may follow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offered:
    """What could be chosen for one target: with its program enough to ask a model again."""

    fingerprint: str
    """Of the target."""
    device: str
    """cuda or cpu."""
    device_name: str | None = None
    triton: bool = False
    """Triton kernels run there."""
    sites: tuple[Site, ...] = ()
    """Proved ones, ranked, without their proofs."""
    skills: tuple[str, ...] = ()
    """Names of the recalled ones, best first."""
    words: tuple[str, ...] = ()
    """Of its operations: what limits it follows from them."""
    inputs: tuple[ArgSpec, ...] = ()
    """What entered, as captured."""
    read_bytes: int | None = None
    written_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a job found. ``proposals`` is best first, with rejected ones for the evidence."""

    qualname: str
    proposals: tuple[Proposal, ...] = ()
    matches: tuple[SkillMatch, ...] = ()
    note: str | None = None
    """Why nothing is offered, when nothing is: cause and remedy in one sentence."""
    misses: tuple[NearMiss, ...] = ()
    """Where a skill nearly applied, when nothing is offered."""
    roof: Roof | None = None
    """What the device leaves to gain, when nothing is offered."""
    cached: bool = False
    read_bytes: int | None = None
    """Inputs, parameters and buffers that a call reads, each once; None: nothing was captured."""
    written_bytes: int | None = None
    """Results of a call."""
    breaks: tuple[Break, ...] = ()
    """Where the target cannot be one graph, each once; empty: it is one."""
    part: Part | None = None
    """The statements that were rewritten, where the target as a whole cannot be."""
    joined: tuple[Part, ...] = ()
    """Further statements whose rewrites are in the best proposal."""
    search: SearchSummary | None = None
    """None: only the quick search ran."""
    offered: Offered | None = None
    """None: nothing was captured."""

    @property
    def best(self) -> Proposal | None:
        """The fastest proposal that is faster than every baseline; None: there is none."""
        return next((p for p in self.proposals if p.verdict is Verdict.FASTER), None)

    @property
    def cut_short(self) -> bool:
        """Nothing is offered, and what took too long may be judged where the machine is quieter."""
        late = any(p.evaluation.status is EvalStatus.TIMED_OUT for p in self.proposals)
        return late and self.best is None
