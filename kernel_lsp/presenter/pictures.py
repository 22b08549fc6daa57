"""A proposal as a picture: the time of a call by provider beside what moving its bytes takes at
least, and where that time goes. Pure; None where matplotlib is missing. The numbers are those of
its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.presenter import charts
from kernel_lsp.presenter.charts import CallChart
from kernel_lsp.records import Proposal

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
    return CallChart(
        label=f"{proposal.qualname} on {found.device_name or found.device}",
        times_ms=on_device if on_device.keys() >= calls.keys() else calls,
        least_ms=found.least_ms,
        parts_us=parts,
    )
