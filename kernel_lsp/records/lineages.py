"""Lineages: an expert kernel, the simplifications that were accepted on the way to a naive one,
their skills.

Steps go from the expert to the naive kernel: ``parent`` is what a step began with, ``child`` the
simpler one. A skill goes the other way. Effects are ratios of times, child over parent: 2 says
that the expert's form takes half the time. None is unknown, never 1."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel_lsp.records.common import Json
from kernel_lsp.records.rewrites import Proof
from kernel_lsp.records.skills import RecipeStep, Requirements
from kernel_lsp.records.verdicts import CompiledKernel, EvalStatus, Interval

LINEAGE_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What the gate said of one simplification."""

    parent: str
    """Hash of the program before; so too ``child``, after."""
    child: str
    status: EvalStatus
    detail: str = ""
    effect: Interval | None = None
    """None: wrong, or nothing was timed."""
    device_name: str | None = None
    kernels: tuple[CompiledKernel, ...] = ()
    """Of the child, compiled ahead of time or on the device."""
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageStep:
    """One simplification that was tried."""

    operator: str
    site: str
    parameters: Json = field(default_factory=dict)
    summary: str
    """What it does, toward the naive kernel."""
    proofs: tuple[Proof, ...] = ()
    """Facts under which the change in the other direction was valid, found by code."""
    judgement: Judgement
    accepted: bool
    reason: str
    """Why it was rejected; of an accepted one what was seen."""
    text: str = ""
    """The child's program; empty where it was rejected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageSkill:
    """An accepted step turned around."""

    name: str
    operator: str
    intent: str
    anchor: str
    """The pattern of code that it applies to."""
    carrier: str
    """The construct that holds the change."""
    requires: Requirements
    """Types, layouts, architecture and sizes, for a machine to check."""
    proofs: tuple[Proof, ...]
    recipe: tuple[RecipeStep, ...]
    """Executable skills that make the change; empty: in words alone."""
    how: str
    """Why there is no recipe, or that the engine has applied it to the simple form."""
    effect: Interval | None
    hardware: str
    """cuda:sm_90 …, interpreter."""
    device_name: str | None
    avoided: tuple[LineageStep, ...]
    """Rejected steps of the same operator."""
    parent: str
    child: str
    change: str
    """Unified diff from the simple form to the expert's."""
    standing: str = ""
    """In the library: staged or refused with its reason; or why it is not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """One walk."""

    schema_version: int = LINEAGE_VERSION
    path: str
    qualname: str
    fingerprint: str
    workload: str
    hardware: str
    device_name: str | None
    measured: bool
    """False: this device tells no times, so steps were accepted for being right alone."""
    finished: bool
    """False: it was stopped; the same command goes on."""
    versions: dict[str, str]
    created: str
    """ISO 8601, UTC."""
    expert: str
    """Hash of the program that it began with."""
    text: str
    """That program: the kernel, its launcher and what they use."""
    steps: tuple[LineageStep, ...] = ()
    """Accepted ones, from the expert on."""
    avoided: tuple[LineageStep, ...] = ()
    """Rejected ones, in the order of trial."""
    skills: tuple[LineageSkill, ...] = ()
    whole: Judgement | None = None
    """The naive kernel against the expert's; None: no step was accepted, or it was stopped."""
