"""Skills and how they are recalled: select."""

from __future__ import annotations

from dataclasses import dataclass

SKILL_SECTIONS = ("Motivation", "Key Idea", "Example", "Pitfalls")
"""Headings of a skill's body, in order."""
SKILL_SCOPES = ("graph", "triton", "advice")


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
