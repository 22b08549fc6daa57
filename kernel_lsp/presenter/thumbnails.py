"""A proposal as a picture in a hover: a bar per provider for the time of a call, and a bar below it
for where that time goes. Pure text, without a drawing library: the server draws it.

What does not fit is not drawn; the report has everything (pictures.py, charts.py)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from kernel_lsp.presenter.cards import duration
from kernel_lsp.records import COMPILE, EAGER, Profile, Proposal

WIDTH, BARS, ROW = 460, 250, 18
"""In pixels: the picture, its longest bar, and one line."""
LEFT = 110
"""Where bars begin; the name of the provider stands before."""
MAX_PARTS = 4
MAX_NAME = 60
TEXT = "#8b949e"
"""Readable on light and on dark: a picture does not know the editor's theme."""
COLORS = ("#4184e4", "#2da44e", "#bf8700", "#a475f9", "#7d8590")
NAMES = {EAGER: "now", COMPILE: "torch.compile", "candidate": "rewrite"}


def markdown(proposal: Proposal) -> str | None:
    """An image of Markdown that holds its picture; None where nothing was timed."""
    drawn = svg(proposal)
    if drawn is None:
        return None
    data = base64.b64encode(drawn.encode()).decode()
    return f"![times of a call, and where they go](data:image/svg+xml;base64,{data})"


def svg(proposal: Proposal) -> str | None:
    """The picture as SVG; None where fewer than two providers were timed."""
    found = proposal.evaluation
    times = {timing.provider: timing.median_ms for timing in found.timings if timing.median_ms > 0}
    if len(times) < 2:
        return None
    longest, profiles = max(times.values()), {one.provider: one for one in found.profiles}
    lines, legend = list[str](), dict[str, str]()
    for provider, ms in times.items():
        width = BARS * ms / longest
        top = ROW * len(lines)
        name = NAMES.get(provider, provider)
        lines.append(
            _text(0, top, name)
            + _bar(LEFT, top, width, COLORS[0], duration(ms))
            + _text(LEFT + width + 6, top, duration(ms))
        )
        if provider in profiles:
            lines.append(_parts(profiles[provider], ROW * len(lines), width, legend))
    lines += [
        _bar(LEFT, ROW * place, 10, color) + _text(LEFT + 16, ROW * place, name)
        for place, (name, color) in enumerate(legend.items(), start=len(lines))
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{ROW * len(lines)}" '
        f'font-family="sans-serif" font-size="11" fill="{TEXT}">{"".join(lines)}</svg>'
    )


def _parts(profile: Profile, top: float, width: float, legend: dict[str, str]) -> str:
    """The longest kernels of one provider; a kernel has one color in the whole picture."""
    drawn, at = list[str](), float(LEFT)
    for row in _longest(profile):
        name = row[0][:MAX_NAME]
        color = legend.setdefault(name, COLORS[1:][len(legend) % (len(COLORS) - 1)])
        part = width * row[1] / profile.us
        drawn.append(_bar(at, top, part, color, f"{name} {row[1] / profile.us:.0%}"))
        at += part
    return "".join(drawn)


def _longest(profile: Profile) -> Sequence[tuple[str, float]]:
    return [(row.name, row.us) for row in profile.kernels[:MAX_PARTS]] if profile.us > 0 else []


def _bar(x: float, top: float, width: float, color: str, title: str = "") -> str:
    words = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{top + 4:.0f}" width="{max(width, 0.5):.1f}" height="10" '
        f'fill="{color}">{words}</rect>'
    )


def _text(x: float, top: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{top + 13:.0f}">{escape(words)}</text>'
