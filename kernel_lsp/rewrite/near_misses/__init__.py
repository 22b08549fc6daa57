"""Why skills decline: collected where they match, shown where nothing can be offered."""

from __future__ import annotations

from kernel_lsp.records import Proof

MAX_REASONS = 3
"""More reasons are read by nobody."""


def describe_unproved(proof: Proof) -> str:
    """What is missing where this does not hold."""
    return f"not proved: {proof.claim} ({proof.because})"
