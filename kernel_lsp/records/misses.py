"""Why nothing is offered, as data: where a skill nearly applied, and what is left to gain."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RoofKind(StrEnum):
    """What a call spends its time on, by the estimate."""

    MEMORY = "memory"
    """Moving the bytes that have to be moved."""
    ARITHMETIC = "arithmetic"
    """Multiplying and adding at the rate of the device's library."""
    LAUNCH = "launch"
    """Starting kernels that have next to nothing to do."""
    NONE = "none"
    """None of them: there is something to gain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roof:
    """Some operations of one call, or all of them, beside what the device allows. Estimates."""

    kind: RoofKind
    taken_s: float
    """As they stand."""
    least_s: float
    """By the roof of this kind; for NONE: to move the bytes."""
    bytes: int
    """What enters them and what leaves them, each tensor once."""
    flops: float
    bytes_per_s: float
    """Of the memory, as the estimate has it."""
    device: str
    """Whose rates these are, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NearMiss:
    """An operation that a skill knows, and the one thing that keeps it from a rewrite."""

    op: str
    """As torch calls it, e.g. ``softmax``."""
    missing: str
    """What does not hold, as the end of a sentence."""
    skill: str = ""
    """Empty: no skill has a kernel for the operation, or none of them gains anything."""
    remedy: str = ""
    """What would make it hold, where something would."""
    share: float = 0.0
    """Estimated part of the target's time that these operations take (0..1); 0: nothing is
    estimated."""
    places: int = 1
    """How often the same is missing; the place is the first one's."""
    line: int | None = None
    """In the file, from 1; in what the engine says, in the program that was sliced out of it."""
    code: str = ""
    """That line, without its indentation: finds it again after edits above it."""
    roof: Roof | None = None
    """Where there is little to gain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """What the engine knows about a target for which nothing is offered."""

    misses: tuple[NearMiss, ...] = ()
    """At most a few, those that take most of the time first."""
    roof: Roof | None = None
    """Of the whole target; None where nothing can be estimated."""
