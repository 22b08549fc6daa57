"""Plots of the report as inline SVG, by matplotlib where it is installed; None where it is not.

Text stays text and the ids do not depend on the day, so a page is small and the same data give the
same page. Not covered: which numbers are shown (report.py)."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

from kernel_lsp.plain import plain

P = ParamSpec("P")
INK, GRID, LINE, GOOD, BAD, CALM = (
    "#7d8590",
    "#7d859033",
    "#4184e4",
    "#2da44e",
    "#cf222e",
    "#8b949e",
)
"""Readable on light and on dark paper."""
WIDTH = 7.2
"""Inches; the page scales it down where there is less room."""
ROOF_ROWS = 7
"""A roofline is as high as so many bars."""
MAX_LABEL = 44
"""Characters of a kernel's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartSpan:
    """A ratio with its interval, or a point where low is high."""

    label: str
    low: float
    mid: float
    high: float
    color: str = LINE


@dataclass(frozen=True, kw_only=True, slots=True)
class RoofPoint:
    """One provider under the roofline."""

    provider: str
    intensity: float
    """Operations per byte."""
    operations_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RoofChart:
    """What a device can reach, and where calls are."""

    device: str
    bytes_per_s: float
    operations_per_s: float
    points: tuple[RoofPoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallChart:
    """One call of a target."""

    label: str
    times_ms: Mapping[str, float]
    """By provider."""
    least_ms: float | None
    """What moving its bytes takes; None: unknown."""
    parts_us: Mapping[str, Mapping[str, float]]
    """Provider -> kernel -> time in one call, as a profiler saw it."""
    roof: RoofChart | None = None
    """None: its operations or bytes are unknown."""


def _to_svg(draw: Callable[P, Any]) -> Callable[P, str | None]:
    """A function that draws a figure becomes one that gives its SVG."""

    @functools.wraps(draw)
    def drawn(*arguments: P.args, **named: P.kwargs) -> str | None:
        try:
            import matplotlib
        except ImportError:
            return None
        matplotlib.use("svg")
        style: dict[str, Any] = {
            "svg.fonttype": "none",
            "svg.hashsalt": "kernel-lsp",
            "text.parse_math": False,  # a name may hold dollars
            "font.size": 9,
            "font.family": ["sans-serif"],
            "font.sans-serif": ["DejaVu Sans"],
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": GRID,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
        }
        with matplotlib.rc_context(style):
            return _svg(draw(*arguments, **named))

    return drawn


def _figure(
    height: float, columns: int = 1, rows: int = 1, heights: Sequence[float] | None = None
) -> tuple[Any, Any]:
    """Without pyplot, which would keep every figure in memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, height_ratios=heights)


def _svg(figure: Any) -> str:
    """The figure without what a font cannot draw: names come from kernels that anybody wrote."""
    from matplotlib.text import Text

    for label in figure.findobj(Text):
        label.set_text(plain(label.get_text()))
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return plain(re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', text, count=1))


@_to_svg
def bars(values: Mapping[str, int], colors: Mapping[str, str]) -> Any:
    """One bar per word, in order from above."""
    figure, ((axes,),) = _figure(0.32 * len(values) + 0.5)
    names = list(values)
    drawn = axes.barh(
        names, list(values.values()), color=[colors.get(name, LINE) for name in names], height=0.7
    )
    axes.bar_label(drawn, padding=3, color=INK)
    axes.invert_yaxis()
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False, axis="y")
    return figure


@_to_svg
def days(per_day: Mapping[str, Mapping[str, int]], colors: Mapping[str, str]) -> Any:
    """Lines over days (ISO dates), one per word; a day without any is 0."""
    from matplotlib import dates

    figure, ((axes,),) = _figure(2.2)
    for name in dict.fromkeys(word for counts in per_day.values() for word in counts):
        found = [per_day[day].get(name, 0) for day in per_day]
        axes.plot(
            dates.datestr2num(list(per_day)), found, "o-", label=name, color=colors.get(name, LINE)
        )
    _count_over_dates(axes)
    axes.legend(ncols=5, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def _count_over_dates(axes: Any) -> None:
    """Dates along the lower axis, whole numbers along the other."""
    from matplotlib import dates

    axes.xaxis_date()
    axes.xaxis.set_major_locator(locator := dates.AutoDateLocator(maxticks=8))
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.yaxis.get_major_locator().set_params(integer=True)


@_to_svg
def spans(rows: Sequence[ChartSpan], label: str) -> Any:
    """Ratios with their intervals on a logarithmic axis, 1 marked."""
    figure, ((axes,),) = _figure(0.24 * len(rows) + 0.7)
    for place, row in enumerate(rows):
        axes.plot(
            [row.low, row.high],
            [place, place],
            color=row.color,
            linewidth=2.5,
            solid_capstyle="round",
        )
        axes.plot([row.mid], [place], "o", color=row.color, markersize=5)
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set_xscale("log")
    low, high = min([1.0, *(row.low for row in rows)]), max([1.0, *(row.high for row in rows)])
    _ratios(axes, high / low)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(label)
    axes.grid(visible=False, axis="y")
    return figure


@_to_svg
def calls(rows: Sequence[CallChart]) -> Any:
    """A chart with each call's times with the least one marked, a bar of its parts for every
    provider that was profiled, and its place under the device's roofline."""
    heights = [
        height
        for row in rows
        for height in (len(row.times_ms), len(row.parts_us), ROOF_ROWS if row.roof else 0)
        if height
    ]
    inches = [0.3 * height + 0.9 for height in heights]
    figure, axes = _figure(sum(inches), rows=len(heights), heights=inches)
    each = iter(axes[:, 0])
    for row in rows:
        _times(next(each), row)
        if row.parts_us:
            _parts(next(each), row.parts_us)
        if row.roof:
            _roof(next(each), row.roof)
    return figure


def _times(axes: Any, row: CallChart) -> None:
    names = list(row.times_ms)
    colors = [GOOD if name == "candidate" else CALM for name in names]
    drawn = axes.barh(names, list(row.times_ms.values()), color=colors, height=0.6)
    axes.bar_label(drawn, fmt="%.4g", padding=3, color=INK)
    if row.least_ms is not None:
        axes.axvline(row.least_ms, color=BAD, linewidth=1, linestyle="--")
        axes.set_xlabel(f"ms per call; its bytes take {row.least_ms:.4g} ms at least (dashed)")
    else:
        axes.set_xlabel("ms per call")
    axes.set_title(row.label, loc="left", fontsize=9)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _roof(axes: Any, roof: RoofChart) -> None:
    """Both axes logarithmic. Every point has the operations of the original: what stands higher is
    faster, and further right moves fewer bytes for the same."""
    ridge = roof.operations_per_s / roof.bytes_per_s
    inside = [point.intensity for point in roof.points]
    low, high = min([ridge, *inside]) / 4, max([ridge, *inside]) * 4
    reach = [min(roof.operations_per_s, x * roof.bytes_per_s) for x in (low, ridge, high)]
    axes.plot([low, ridge, high], reach, color=INK, linewidth=1)
    for point in roof.points:
        color = GOOD if point.provider == "candidate" else CALM
        axes.plot([point.intensity], [point.operations_per_s], "o", color=color, markersize=6)
        axes.annotate(
            point.provider,
            (point.intensity, point.operations_per_s),
            (7, -3),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"operations of the original per byte moved, estimated; line: {roof.device}")
    axes.set_ylabel("operations per s")


def _parts(axes: Any, parts: Mapping[str, Mapping[str, float]]) -> None:
    """A kernel has one color, also where several providers run it."""
    import matplotlib

    palette = matplotlib.colormaps["tab20"]
    names = list(dict.fromkeys(name for times in parts.values() for name in times))
    begins = [0.0] * len(parts)
    for number, name in enumerate(names):
        widths = [times.get(name, 0.0) for times in parts.values()]
        color = palette(number % palette.N)
        label = name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"
        # The blank: what begins with an underscore is left out of legends.
        axes.barh(list(parts), widths, left=begins, color=color, height=0.6, label=f" {label}")
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("µs in kernels, as a profiler saw one call")
    axes.grid(visible=False, axis="y")
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), fontsize=7)


@_to_svg
def steps(
    times: Sequence[str], lines: Mapping[str, Sequence[int]], colors: Mapping[str, str], end: str
) -> Any:
    """Counts that hold from their moment (ISO) until the next, the last until ``end``."""
    from matplotlib import dates

    figure, ((axes,),) = _figure(2.0)
    for name, values in lines.items():
        moments = dates.datestr2num([time[:19] for time in (*times, end)])
        held = [*values, values[-1]]
        axes.step(
            moments,
            held,
            "o-",
            where="post",
            label=name,
            color=colors.get(name, LINE),
            markevery=[*range(len(values))],
        )
    _count_over_dates(axes)
    axes.set_ylim(bottom=0)
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


@_to_svg
def curves(groups: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Any:
    """Small multiples: one field per group, one line per name."""
    columns = min(2, len(groups))
    rows = -(-len(groups) // columns)
    figure, fields = _figure(2.1 * rows, columns, rows)
    flat = [axes for line in fields for axes in line]
    for axes, (group, lines) in zip(flat, groups.items(), strict=False):
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), label=name, linewidth=1.5)
        axes.set_title(group, fontsize=9, color=INK)
        axes.legend(fontsize=7)
    for axes in flat[len(groups) :]:
        axes.set_visible(False)
    return figure


@_to_svg
def lineage(
    steps: Sequence[tuple[str, ChartSpan | None]], rejected: Mapping[int, Sequence[str]]
) -> Any:
    """A chart from the expert's kernel down to the naive one: its time so far, the interval of each
    step, and beside the kernel that it was tried on what was rejected. Without times the steps
    stand below each other.

    ``steps`` begins with the expert; ``rejected``: place in ``steps`` -> operators."""
    figure, ((axes,),) = _figure(0.34 * len(steps) + 0.7)
    times, place = [1.0], 1.0
    for number, (_, span) in enumerate(steps[1:], 1):
        if span is not None:
            ends = [place * span.low, place * span.high]
            axes.plot(
                ends, [number, number], color=span.color, linewidth=2.5, solid_capstyle="round"
            )
            place *= span.mid
        times.append(place)
    axes.plot(times, range(len(steps)), "o-", color=LINE, linewidth=1, markersize=6)
    for number, names in rejected.items():
        text = "rejected: " + ", ".join(names)
        axes.annotate(
            text,
            (times[number], number),
            (10, -3),
            textcoords="offset points",
            color=BAD,
            fontsize=7,
        )
    axes.set_yticks(range(len(steps)), [label for label, _ in steps])
    axes.set_ylim(len(steps) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    if all(span is None for _, span in steps):
        axes.set_xticks([])
        axes.set_xlim(0.9, 2.0)
        return figure
    axes.set_xscale("log")
    low, high = min(times), max(times)
    # Room for what was rejected last.
    axes.set_xlim(low / 1.1, 1.1 * high * max(1.2, high / low) ** 0.35)
    _ratios(axes, high / low)
    axes.set_xlabel("time over the expert's")
    return figure


def _ratios(axes: Any, width: float) -> None:
    """Ticks of a logarithmic axis of ratios, the largest ``width`` times the least."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    near = MaxNLocator(nbins=6, steps=[1, 2, 5, 10])  # a logarithmic locator finds one tick there
    far = LogLocator(base=10, subs=(1, 1.5, 2, 3, 5) if width < 30 else (1, 3))
    axes.xaxis.set_major_locator(near if width < 3 else far)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
