"""The frozen records that travel between stages. Standard library only.

Rules: keyword-only, units in the names, ``None`` means unknown (never 0 or 1.0).
Anything that can be derived is a property and is not stored. Every record turns into
JSON and back through :mod:`kernel_lsp.wire`, because most of them cross a process boundary.
Offsets are Python string indices into ``Snapshot.text``; only the presenter knows LSP positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
SCHEMA_VERSION = 1

# --- watch -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One immutable version of one document."""

    uri: str
    text: str
    version: int | None = None
    """The client's own version number; None when read from disk."""


# --- analyze -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    start: int
    end: int


class TargetKind(StrEnum):
    MODULE = "module"
    FUNCTION = "function"
    TRITON_KERNEL = "triton_kernel"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Something that can be made faster: a module class, a tensor function, a Triton kernel."""

    qualname: str
    kind: TargetKind
    name_span: Span
    """The name in its ``class`` or ``def`` line: where hints are drawn."""
    span: Span
    """Decorators through the last line of the body."""
    fingerprint: str
    """Hash of the target's AST and of every name of its own file that it uses, recursively."""
    launchers: tuple[str, ...] = ()
    """Functions of the same file that launch this Triton kernel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The smallest self-contained source for one target; running it never runs the user's file."""

    source: str
    entry: str
    """Qualified name of the target inside ``source``."""
    kind: TargetKind
    missing: tuple[str, ...] = ()
    """Names that the slice uses and that the file does not define (the program will not run)."""


class WorkloadOrigin(StrEnum):
    GET_INPUTS = "get_inputs"
    PRAGMA = "pragma"
    RECORDED = "recorded"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArgSpec:
    """One argument: a tensor described by dtype and shape, or a plain value."""

    name: str | None
    """Keyword name; None for a positional argument."""
    dtype: str | None = None
    """torch's name without the prefix (``float32``, ``int64``, ``bool``); None for a plain value."""
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    """None means contiguous."""
    value: Any = None
    """The literal, when this is no tensor."""
    distribution: str = "normal"
    """How base values are drawn: normal, uniform, zeros, ones, index:N (integers below N)."""
    requires_grad: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What a target is really called with."""

    name: str
    origin: WorkloadOrigin
    inputs: tuple[ArgSpec, ...] | None = None
    """None: the program's own get_inputs() makes them."""
    init: tuple[ArgSpec, ...] | None = None
    """Constructor arguments; None: the program's get_init_inputs(), or no arguments."""
    training: bool | None = None
    """Module mode; None: as constructed (train), which is what KernelBench-style files mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One static observation. Never a claim of speed."""

    rule: str
    """Rule id, e.g. ``KL101``."""
    name: str
    """Rule name in words, e.g. ``unfused-pointwise-chain``."""
    target: str
    """Qualified name of the target it belongs to."""
    span: Span
    message: str
    severity: str = "hint"
    """``hint`` (could be faster), ``warning`` (can be wrong), ``error`` (does not compile)."""
    data: Json = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParseProblem:
    line: int
    column: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """Everything that is known about a snapshot without running it."""

    targets: tuple[Target, ...] = ()
    findings: tuple[Finding, ...] = ()
    problem: ParseProblem | None = None


# --- select ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """A named optimization technique: ``skills/<name>/SKILL.md`` and, when executable, rewrite.py."""

    name: str
    description: str
    scope: str
    """``graph`` (PyTorch programs), ``triton`` (kernels) or ``advice`` (prose only)."""
    tags: tuple[str, ...]
    version: int
    body: str
    path: str
    """The skill's folder."""
    executable: bool
    source: str = "built-in"
    """built-in, learned or lineage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillMatch:
    skill: str
    score: float
    """BM25 score; comparable only within one query."""
    words: tuple[str, ...]
    """Query words that occur in the skill, strongest first: why it was recalled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillProblem:
    """One thing that is wrong with a skill folder."""

    path: str
    """The file (or folder) to change."""
    field: str
    """The part of it: ``metadata.version``, ``section Example``, ``match`` …"""
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.field}: {self.cause} ({self.remedy})"


# --- propose -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """One precondition of a rewrite, with the fact that settles it."""

    claim: str
    holds: bool
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A place in a target's graph where a skill applies."""

    skill: str
    site: str
    """Stable label inside the graph: names of the nodes it covers."""
    summary: str
    proofs: tuple[Proof, ...]
    parameters: dict[str, list[Any]] = field(default_factory=dict)
    """Finite search space: parameter name -> choices, default first."""
    benefit: float | None = None
    """Estimated share of the target's time that is saved (0..1), from bytes and operations."""
    plain: bool = True
    """True when the rewrite is plain PyTorch, False when it emits a Triton kernel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One application of a skill: what a plan is made of."""

    skill: str
    site: str
    parameters: Json = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceEdit:
    """A rewrite of one target, independent of where in the file the target stands.

    ``rewrite.edit.apply_edit`` turns it into text changes against any snapshot whose target still
    has the fingerprint it was made for.
    """

    qualname: str
    imports: tuple[str, ...] = ()
    """Import lines that must exist in the file, e.g. ``import triton.language as tl``."""
    definitions: str = ""
    """Kernels, launchers and helpers that go right before the target (column 0)."""
    target: str = ""
    """The target's complete new source, dedented; decorators included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A proposed rewrite, ready to be judged."""

    id: str
    """Content hash of ``program`` and ``entry``."""
    edit: SourceEdit | None
    program: str
    """The sliced program with the edit applied: what the worker runs."""
    entry: str
    steps: tuple[Step, ...] = ()
    proofs: tuple[Proof, ...] = ()
    summary: str = ""
    """One line for the title of a code action, e.g. ``fuse linear+sum into a matrix-vector product``."""
    caveats: tuple[str, ...] = ()
    """What can differ from the original, for the evidence."""
    proposer: str = "plan"
    """Backbone and version."""
    turn: int = 0
    parent: str | None = None
    uses_triton: bool = False


# --- evaluate ----------------------------------------------------------------------------


class EvalStatus(StrEnum):
    PASSED = "passed"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    WRONG_RESULT = "wrong_result"
    TIMED_OUT = "timed_out"
    CHEATED = "cheated"
    NOT_RUN = "not_run"
    """Could not be judged: ``detail`` says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    name: str
    passed: bool | None
    """None: did not run."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    provider: str
    """eager, eager_tf32, compile or candidate."""
    median_ms: float
    p20_ms: float
    p80_ms: float
    num_reps: int
    cold_cache: bool
    """Caches were flushed (or inputs rotated past them) before each rep."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Point estimate with a bootstrap confidence interval."""

    low: float
    mid: float
    high: float
    confidence: float = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """Worst trial. Errors are against a float64 oracle, relative to the oracle's RMS."""

    candidate_error: float
    reference_error: float
    tolerance: float
    """What candidate_error had to stay below in that trial."""
    num_trials: int
    distributions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledKernel:
    """One Triton kernel compiled ahead of time; needs no GPU."""

    name: str
    arch: str
    """sm_80, sm_90 …"""
    registers: int | None
    spill_bytes: int | None
    shared_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The gate's verdict on one candidate, workload and device."""

    status: EvalStatus
    device: str
    """cuda, cpu or interpreter."""
    detail: str = ""
    device_name: str | None = None
    checks: tuple[Check, ...] = ()
    timings: tuple[Timing, ...] = ()
    speedups: dict[str, Interval] = field(default_factory=dict)
    """baseline provider -> baseline time / candidate time."""
    numerics: Numerics | None = None
    kernels: tuple[CompiledKernel, ...] = ()
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """provider -> peak device memory, where it could be read."""
    environment: Json = field(default_factory=dict)
    """Versions, threads, clocks, driver, date, sandbox."""
    seconds: float | None = None

    @property
    def speedup(self) -> Interval | None:
        """Against the best baseline; None unless correct and timed."""
        if self.status is not EvalStatus.PASSED or not self.speedups:
            return None
        return min(self.speedups.values(), key=lambda interval: interval.mid)

    def faster(self, threshold: float = 1.05) -> bool:
        """A claim of speed: the interval's lower bound clears the threshold against every baseline."""
        speedup = self.speedup
        return speedup is not None and min(i.low for i in self.speedups.values()) >= threshold


# --- present -----------------------------------------------------------------------------


class Verdict(StrEnum):
    FASTER = "faster"
    """Right, measured, and faster: the only verdict that is offered."""
    CORRECT = "correct"
    """Right, but speed is unknown on this device or below the threshold."""
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    """Could not be judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A judged candidate for one target under one workload: what the cache and the journal keep."""

    id: str
    """Hash of fingerprint, candidate, workload and device."""
    fingerprint: str
    """Of the target before."""
    fingerprint_after: str
    """Of the target once the edit is applied."""
    qualname: str
    workload: Workload
    candidate: Candidate
    evaluation: Evaluation
    verdict: Verdict
    created: str
    """ISO 8601, UTC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What a person is shown."""

    title: str
    headline: str
    """One line: verdict, speedup, interval, device."""
    evidence: str
    """Markdown; a table of at most 15 lines for a hover."""
    report: str
    """Markdown; everything that was measured."""
    diff: str
    """Unified diff."""


# --- record ------------------------------------------------------------------------------


class EventKind(StrEnum):
    EVALUATED = "evaluated"
    OFFERED = "offered"
    CHOSEN = "chosen"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    KEPT = "kept"
    KEPT_COMMITTED = "kept_committed"
    MODIFIED = "modified"
    REVERTED = "reverted"
    DELETED = "deleted"
    DISMISSED = "dismissed"
    EXPIRED = "expired"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of the journal."""

    kind: EventKind
    proposal: str
    time: str
    """ISO 8601, UTC."""
    folder: str | None = None
    """Workspace root."""
    path: str | None = None
    """Relative to ``folder``."""
    qualname: str | None = None
    client: str | None = None
    """Editor name and version."""
    data: Json = field(default_factory=dict)
    """What the client said beside what was seen, the reason of a dismissal, hashes …"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSummary:
    """One editor (or command line) at work in one folder, as the journal remembers it."""

    id: str
    client: str | None
    folder: str | None
    """Name of the workspace root and a hash of its path; the path itself is not kept."""
    version: str
    """Of kernel-lsp."""
    started: str
    """ISO 8601, UTC."""
    ended: str | None
    """None: still running, or it never said goodbye."""
    counts: dict[str, int] = field(default_factory=dict)
    """Event kind -> number of events."""


# --- pipeline ----------------------------------------------------------------------------


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    phase: str
    """capture, select, propose, evaluate."""
    message: str
    done: int | None = None
    total: int | None = None
    proposal: Proposal | None = None
    """A verified rewrite, as soon as it is known; a better one may follow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a job found. ``proposals`` is best first and includes the losers, for the evidence."""

    qualname: str
    proposals: tuple[Proposal, ...] = ()
    matches: tuple[SkillMatch, ...] = ()
    note: str | None = None
    """Why nothing is offered, when nothing is: cause and remedy in one sentence."""
    cached: bool = False

    @property
    def best(self) -> Proposal | None:
        return next((p for p in self.proposals if p.verdict is Verdict.FASTER), None)
