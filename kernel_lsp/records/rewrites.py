"""Rewrites before they are judged: propose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernel_lsp.records.common import Json

SEMANTIC_PARAMETERS = ("nonfinite",)
"""Parameters that change what is computed: neither searched nor offered to a model, a person
chooses them."""


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
    kind: str = ""
    """Under what the parameters that won here are remembered: skill, its choices, operations,
    dtypes and shapes up to powers of two; empty: nothing is."""
    benefit: float | None = None
    """Estimated share of the target's time that is saved (0..1), from bytes and operations."""
    plain: bool = True
    """True when the rewrite is plain PyTorch, False when it emits a Triton kernel."""
    wraps: bool = False
    """It goes around the whole rewritten target (a recorded graph, a compiler): last, and alone."""

    @property
    def key(self) -> str:
        """What tells it from the other sites of one program."""
        return f"{self.skill}\0{self.site}"


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
    others: tuple[tuple[str, str], ...] = ()
    """Other functions of the file that change with it: qualified name and complete new source, as
    ``target``. A kernel's launcher is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Who proposed a candidate; evidence keeps it, cards show it as ``proposed by``."""

    proposer: str
    """``plan/2``, ``openai:Qwen3-8B@0.32``, ``mutate/1`` …"""
    move: str = "seed"
    """`Move`."""
    turn: int = 0
    parent: str | None = None
    """Id of the candidate that it was made from."""
    skills: tuple[str, ...] = ()
    """Applied by the engine, in order."""
    advice: tuple[str, ...] = ()
    """Skills whose text the model had in its prompt."""
    search: str | None = None
    """Id of the search (the archive's), and the attempt's number: ``1f0c9a2b7d33#12``."""


COMPILER_SKILL = "compile-target"


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
    """One line for the title of a code action, e.g. ``fuse linear+sum into a matrix-vector
    product``."""
    caveats: tuple[str, ...] = ()
    """What can differ from the original, for the evidence."""
    proposer: str = "plan"
    """Backbone and version."""
    turn: int = 0
    parent: str | None = None
    move: str = "seed"
    """`Move`: how the attempt came about."""
    advice: tuple[str, ...] = ()
    """Skills whose text the model had in its prompt."""
    search: str | None = None
    """Search and attempt that it belongs to; None: the quick search."""
    uses_triton: bool = False

    @property
    def compiles(self) -> bool:
        """Whether it is torch.compile of the target, and no kernel of ours."""
        return any(step.skill == COMPILER_SKILL for step in self.steps)

    @property
    def provenance(self) -> Provenance:
        """Who proposed it, when, from what and with which skills: what outlives the candidate's
        text."""
        return Provenance(
            proposer=self.proposer,
            move=self.move,
            turn=self.turn,
            parent=self.parent,
            skills=tuple(step.skill for step in self.steps),
            advice=self.advice,
            search=self.search,
        )
