"""The least time that a device's memory allows. Pure; no torch.

Only bytes that *must* move count: input and parameter elements on which the result depends (the judge
finds them by differentiation, see traffic.py), because the L2 is cold when a timed call starts, and
output bytes beyond what the L2 can hold back. Operations are not counted: the reference's own number is
no bound, since the best rewrites compute less (a sum after a matrix product needs no matrix product).

Peak bandwidths are the makers' numbers, which no kernel reaches. A device that is not listed is unknown:
None, and nothing is checked. CPUs are not listed, because a flush leaves parts of their caches warm.
"""

from __future__ import annotations

PEAK_GB_PER_S = {
    "GH200": 4900,
    "B200": 8000,
    "H200": 4800,
    "H100 NVL": 3938,
    "H100 PCIe": 2039,
    "H100": 3352,
    "A100-SXM4-40GB": 1555,
    "A100-PCIE-40GB": 1555,
    "A100": 2039,
    "L40S": 864,
    "L40": 864,
    "L4": 300,
    "A40": 696,
    "A30": 933,
    "A10": 600,
    "V100": 900,
    "T4": 320,
    "RTX 5090": 1792,
    "RTX 4090": 1008,
    "RTX 3090 Ti": 1008,
    "RTX 3090": 936,
    "RTX 6000 Ada": 960,
    "RTX A6000": 768,
}
"""Longer names come before the names that they contain. Variants of one name: the fastest."""


def peak_gb_per_s(device_name: str | None) -> int | None:
    """Of the memory, for a name as torch tells it; None: not known."""
    words = (device_name or "").replace("-", " ").lower()
    for name, peak in PEAK_GB_PER_S.items():
        if f" {name.replace('-', ' ').lower()} " in f" {words} ":
            return peak
    return None


def least_ms(read_bytes: int, written_bytes: int, l2_bytes: int, peak: int) -> float:
    """For a call that must read and write this much, with a peak in 10^9 bytes a second."""
    return (read_bytes + max(0, written_bytes - l2_bytes)) / peak / 1e6
