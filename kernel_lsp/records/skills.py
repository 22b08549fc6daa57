"""Skills and how they are recalled: select."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel_lsp.records.common import Json

SKILL_SECTIONS = ("Motivation", "Key Idea", "Example", "Pitfalls")
"""Headings of a skill's body, in order."""
SKILL_SCOPES = ("graph", "triton", "advice")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Both ends belong to it."""

    least: int
    most: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """Where a learned skill may be used, for a machine to check; an empty part asks nothing."""

    device: str | None = None
    """cuda or cpu."""
    architectures: tuple[str, ...] = ()
    """sm_90 …; asked of CUDA devices."""
    dtypes: tuple[str, ...] = ()
    """Each tensor that enters has one of them."""
    layouts: tuple[str, ...] = ()
    """contiguous, channels_last or strided; each tensor that enters has one of them."""
    ranks: Bounds | None = None
    """Dimensions of the largest tensor that enters."""
    elements: Bounds | None = None
    """Of the largest tensor that enters."""
    multiple: int | None = None
    """Each tensor that enters has an innermost extent that is a multiple of it."""
    torch: str | None = None
    """At least this version; so too ``triton``."""
    triton: str | None = None
    planned: tuple[str, ...] = ()
    """Skills that are part of what would be suggested first without it: it was shown instead of
    them."""
    unplanned: tuple[str, ...] = ()
    """Skills that are not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeStep:
    """An executable skill at a kind of site."""

    skill: str
    covers: tuple[str, ...] = ()
    """Operations that the site covers, others beside them; empty: any site of the skill."""
    parameters: Json = field(default_factory=dict)
    """Taken where the site offers them; the site's default otherwise."""
    every: bool = False
    """At every such site, not only at the one that saves most."""
    planned: bool = False
    """No step of its own: these parameters wherever what plans without the skill takes such a
    step. All steps of a recipe are, or none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """A named optimization technique: ``skills/<name>/SKILL.md`` and, when executable,
    rewrite.py."""

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
    """built-in, user, workspace, configured or learned."""
    requires: Requirements | None = None
    recipe: tuple[RecipeStep, ...] = ()
    """Executable skills to apply in this order; empty: it rewrites by itself or advises in
    words."""


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
