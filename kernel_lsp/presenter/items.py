"""What an editor shows, in offsets and words: no LSP types and no decisions. Standard library
only."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel_lsp.records import Json, Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Hint:
    """One passive marker."""

    span: Span
    code: str
    """Rule id of a finding, skill of a verified rewrite."""
    message: str
    qualname: str | None
    """The target that it is about; None: the program."""
    proposal: str | None = None
    """Set when this is a verified rewrite."""
    page: str | None = None
    """Path of the rule's documentation."""
    severity: str = "hint"
    """Of config.SEVERITIES; what could be faster is never more than a hint unless settings say
    so."""
    unnecessary: bool = False
    """What is marked does nothing."""
    data: Json = field(default_factory=dict)
    """What the rule found, for scripts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One verified rewrite that can be applied to the document as it is now."""

    proposal: str
    fingerprint: str
    qualname: str
    skill: str
    title: str
    name_span: Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Lens:
    """The one line above a target."""

    span: Span
    qualname: str
    title: str
    act: str
    """What a click does: benchmark, cancel, recordRun or showEvidence."""
    proposal: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TextEdit:
    """Replace ``text[start:end]`` by ``new``."""

    start: int
    end: int
    new: str
