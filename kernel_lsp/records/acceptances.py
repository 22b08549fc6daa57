"""Accepted rewrites and whether they still hold: guard.

An `Acceptance` is one JSON file in a repository, ``.kernel-lsp/accepted/*.json``;
guarding/store.py reads and writes it. It holds source text that the repository holds anyway,
shapes and times, and no path or name of the machine that judged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kernel_lsp.records.evidence import Evidence
from kernel_lsp.records.verdicts import Evaluation

ACCEPTANCE_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """A rewrite that somebody took over, and what its verdict rested on."""

    schema_version: int = ACCEPTANCE_VERSION
    proposal: str
    path: str
    """Of the file, from the workspace root, with forward slashes."""
    qualname: str
    before: str
    """Fingerprint of the target that was rewritten."""
    after: str
    """Fingerprint of the target once the rewrite was in place."""
    accepted: str
    """ISO 8601, UTC."""
    evidence: Evidence
    """Without raw samples, and without the interpreter's path."""


class Holding(StrEnum):
    """How an accepted rewrite does now."""

    PAYS = "pays"
    """Right, and faster for sure: the whole interval is above 1.0 against every baseline."""
    RIGHT = "right"
    """Right; its speed cannot be judged here (it was measured on a GPU, and there is none)."""
    SLOW = "slow"
    """Right, and not faster for sure any more."""
    WRONG = "wrong"
    """Does not compute what the original does, or does not run."""
    UNKNOWN = "unknown"
    """Could not be judged."""
    REVERTED = "reverted"
    """The original is back; the acceptance can be deleted."""
    GONE = "gone"
    """Its file or target is not there any more; the acceptance can be deleted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarded:
    """One accepted rewrite, judged again."""

    acceptance: Acceptance
    file: str
    """The acceptance's own, from the workspace root."""
    holding: Holding
    detail: str
    line: int = 1
    """Of the target in its file, from 1; 1 where it is gone."""
    evaluation: Evaluation | None = None
    """None: nothing was run."""
    revert: str | None = None
    """Unified diff that takes the rewrite back; None where there is no need or it cannot be
    made."""

    @property
    def failed(self) -> bool:
        """Whether it is slow or wrong now; what could not be judged has not failed."""
        return self.holding in (Holding.SLOW, Holding.WRONG)
