"""The least time that a device's memory allows. Pure; no torch.

Only bytes that *must* move count: input and parameter elements on which the result depends (the
judge finds them by differentiation, see traffic.py), because the L2 is cold when a timed call
starts, and output bytes beyond what the L2 can hold back. Operations are not counted: the
reference's own number is no bound, since the best rewrites compute less (a sum after a matrix
product needs no matrix product).

Peak bandwidths (kernel_lsp/devices) are the makers' numbers, which no kernel reaches. A device
that is not listed is unknown: None, and nothing is checked. CPUs are not listed, because a flush
leaves parts of their caches warm."""

from __future__ import annotations

from kernel_lsp.devices import peak_gb_per_s

__all__ = ["least_ms", "peak_gb_per_s"]


def least_ms(read_bytes: int, written_bytes: int, l2_bytes: int, peak: int) -> float:
    """The least milliseconds of a call that must read and write this much, with a peak in 10^9
    bytes a second."""
    return (read_bytes + max(0, written_bytes - l2_bytes)) / peak / 1e6
