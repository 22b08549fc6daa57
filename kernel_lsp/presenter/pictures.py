"""A proposal as a picture: the time of a call by provider beside what moving its bytes takes at
least, where that time goes, and original and candidate under the device's roofline. Pure; None
where matplotlib is missing. The numbers are those of its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_lsp import devices
from kernel_lsp.presenter import charts
from kernel_lsp.presenter.charts import CallChart, RoofChart, RoofPoint
from kernel_lsp.records import EAGER, Evaluation, Proposal

MAX_KERNELS = 6
"""That have a color of their own; what is left of the time is one part."""


def svg(proposals: Sequence[Proposal]) -> str | None:
    """One below the other; those that nothing was timed of are left out."""
    drawn = [chart for proposal in proposals if (chart := chart_of(proposal)).times_ms]
    return charts.calls(drawn) if drawn else None


def chart_of(proposal: Proposal) -> CallChart:
    """Times without launch costs where all were taken so: the least time has none either."""
    found = proposal.evaluation
    calls = {timing.provider: timing.median_ms for timing in found.timings}
    on_device = {timing.provider: timing.median_ms for timing in found.device_timings}
    parts = {}
    for profile in found.profiles:
        shown = {row.name: row.us for row in profile.kernels[:MAX_KERNELS]}
        rest = profile.us - sum(shown.values())
        parts[profile.provider] = shown | ({"others": rest} if rest > 0 else {})
    times = on_device if on_device.keys() >= calls.keys() else calls
    return CallChart(
        label=f"{proposal.qualname} on {found.device_name or found.device}",
        times_ms=times,
        least_ms=found.least_ms,
        parts_us=parts,
        roof=_roof(found, times),
    )


def _roof(found: Evaluation, times_ms: Mapping[str, float]) -> RoofChart | None:
    """Original and candidate, both with the original's operations: a candidate that computes less
    for the same result is no worse for it."""
    profiles = {profile.provider: profile for profile in found.profiles}
    work = profiles[EAGER].operations if EAGER in profiles else None
    if not work:
        return None
    points = tuple(
        RoofPoint(
            provider="original" if name == EAGER else name,
            intensity=work / profile.moved_bytes,
            operations_per_s=work / (times_ms[name] / 1e3),
        )
        for name, profile in profiles.items()
        if profile.moved_bytes and times_ms.get(name)
    )
    capability = found.environment.get("capability")
    known = f"sm_{str(capability).replace('.', '')}" if capability else None
    here = devices.describe(found.device, known, found.device_name)
    assumed = " (assumed)" if found.device != "cuda" else ", float32 without tensor cores"
    return RoofChart(
        device=here.title + assumed,
        bytes_per_s=here.bytes_per_s,
        operations_per_s=here.flops_per_s,
        points=points,
    )
