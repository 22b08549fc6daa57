"""What is known of each kind of device: one description per architecture, as data. Standard
library only.

`describe(device, capability, name)` returns the description by which costs are estimated. A
capability without an entry gets the nearest older one. Bandwidth follows the name where that is
listed, since cards of one architecture differ most in it. Estimates only order and explain; what
is offered was measured.

Peaks are the makers' numbers. `reached` is the share of them that kernels reach, measured on an
H200 (2026-11-21: 4.3 of 4.8 TB/s, 50 of 67 TFLOP/s) and assumed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceDescription:
    """One kind of device. Rates are what kernels reach, bytes and operations per second."""

    capability: str
    """sm_80, sm_90 … or cpu."""
    title: str
    """With its article, as a sentence names it: ``an H200``."""
    processors: int
    """Multiprocessors of a GPU, cores of a CPU."""
    bytes_per_s: float
    flops_per_s: float
    """In float32, without tensor cores."""
    overhead_s: float
    """Of one call of a library operation."""
    shared_bytes: int | None = None
    """Shared memory that one block may have; None on a CPU."""
    l2_bytes: int | None = None
    features: frozenset[str] = frozenset()
    """Of ``bf16``, ``fp8``, ``tma``: types of tensor cores, and copies of whole tiles."""


MEMORY_REACHED = 4.3 / 4.8
ARITHMETIC_REACHED = 50 / 67
LAUNCH_S = 6e-6
"""The host's part of one operation of torch: it does not depend on the GPU."""


def _gpu(
    capability: str,
    title: str,
    *,
    processors: int,
    gb_per_s: float,
    tflops: float,
    shared_kib: int,
    l2_mib: int,
    features: str,
) -> DeviceDescription:
    return DeviceDescription(
        capability=capability,
        title=title,
        processors=processors,
        bytes_per_s=gb_per_s * 1e9 * MEMORY_REACHED,
        flops_per_s=tflops * 1e12 * ARITHMETIC_REACHED,
        overhead_s=LAUNCH_S,
        shared_bytes=shared_kib * 1024,
        l2_bytes=l2_mib * 2**20,
        features=frozenset(features.split()),
    )


H200 = DeviceDescription(
    capability="sm_90",
    title="an H200",
    processors=132,
    bytes_per_s=4.3e12,
    flops_per_s=50e12,
    overhead_s=LAUNCH_S,
    shared_bytes=227 * 1024,
    l2_bytes=50 * 2**20,
    features=frozenset({"bf16", "fp8", "tma"}),
)
CPU = DeviceDescription(
    capability="cpu",
    title="two cores of a CPU",
    processors=2,
    bytes_per_s=20e9,
    flops_per_s=100e9,
    overhead_s=4e-6,
)
GPUS = {
    "sm_80": _gpu(
        "sm_80", "an A100", processors=108, gb_per_s=2039, tflops=19.5, shared_kib=163, l2_mib=40,
        features="bf16",
    ),
    "sm_89": _gpu(
        "sm_89", "an L40S", processors=142, gb_per_s=864, tflops=91.6, shared_kib=99, l2_mib=96,
        features="bf16 fp8",
    ),
    "sm_90": H200,
    "sm_100": _gpu(
        "sm_100", "a B200", processors=148, gb_per_s=8000, tflops=80, shared_kib=227, l2_mib=126,
        features="bf16 fp8 tma",
    ),
    "sm_120": _gpu(
        "sm_120", "an RTX 5090", processors=170, gb_per_s=1792, tflops=104.8, shared_kib=99,
        l2_mib=96,
        features="bf16 fp8 tma",
    ),
}  # fmt: skip
REFERENCE = H200
"""What costs were fitted on. A description without a capability is this one's, so that plans made
where no GPU is are those of the device that they were measured on."""

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


def describe(
    device: str, capability: str | None = None, name: str | None = None
) -> DeviceDescription:
    """Returns the description of ``cuda`` or ``cpu``; ``name`` as torch tells it."""
    if device != "cuda":
        return CPU
    found = GPUS[_nearest(capability)] if capability else REFERENCE
    listed = listed_name(name)
    own = found.title.split(maxsplit=1)[1]
    if listed is None or listed == own or found is REFERENCE:  # fitted as it is, whatever its card
        return found
    peak = PEAK_GB_PER_S[listed]
    article = "an" if listed[0] in "AHLR" else "a"
    return replace(found, title=f"{article} {listed}", bytes_per_s=peak * 1e9 * MEMORY_REACHED)


def _nearest(capability: str) -> str:
    """The newest listed one that is not newer; the oldest for what is older than all."""
    ordered = sorted(GPUS, key=_number)
    older = [one for one in ordered if _number(one) <= _number(capability)]
    return older[-1] if older else ordered[0]


def _number(capability: str) -> int:
    digits = "".join(sign for sign in capability.partition("_")[2] if sign.isdigit())
    return int(digits or 0)


def listed_name(device_name: str | None) -> str | None:
    """The entry of PEAK_GB_PER_S that a name as torch tells it belongs to."""
    words = (device_name or "").replace("-", " ").lower()
    fits = (name for name in PEAK_GB_PER_S if f" {name.replace('-', ' ').lower()} " in f" {words} ")
    return next(fits, None)


def peak_gb_per_s(device_name: str | None) -> int | None:
    """Returns the makers' peak of the memory in 10^9 bytes per second; None: the name is not
    listed."""
    listed = listed_name(device_name)
    return PEAK_GB_PER_S[listed] if listed else None
