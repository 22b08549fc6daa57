"""The status page: five lines that say what is going on and what was gained this week. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernel_lsp.plain import inert
from kernel_lsp.records import WeekSummary

CONSENT = {
    "allow": "may run",
    "on_request": "runs when you ask for a measurement",
    "never": "never runs",
}


def status_lines(
    *,
    jobs: Sequence[str],
    device: str | None,
    interpreter: str | None,
    consent: str | None,
    week: WeekSummary | None,
    problems: Sequence[str],
) -> tuple[str, ...]:
    """The lines of the server's status. ``week``: None where the journal cannot be read. Each line
    stands for itself."""
    return (
        _now(jobs),
        f"Measures on {device or 'a device that was not used yet'} with "
        f"{interpreter or 'no interpreter: none with torch was found'}; code of this folder "
        f"{CONSENT.get(consent or '', 'runs after you have allowed it')}.",
        "This week: unknown, the journal cannot be read." if week is None else _counts(week),
        "Gained: unknown." if week is None else _gains(week),
        f"Wrong: {'; '.join(problems)}" if problems else "Nothing is wrong.",
    )


def status_page(folder: str, version: str, lines: Sequence[str]) -> str:
    """The server's status as Markdown; names in it can be no lines, links or commands."""
    listed = "\n".join(f"{number}. {_in_line(line)}" for number, line in enumerate(lines, 1))
    return inert(f"# kernel-lsp {version}\n\n{_in_line(folder)}\n\n{listed}\n")


def _in_line(text: str) -> str:
    return " ".join(text.split())


def _now(jobs: Sequence[str]) -> str:
    if not jobs:
        return "Now: nothing is running."
    more = f"; {len(jobs) - 1} more wait" if len(jobs) > 1 else ""
    return f"Now: {jobs[0]}{more}."


def _counts(week: WeekSummary) -> str:
    return (
        f"This week: {week.offered} rewrites offered, {week.accepted} accepted, "
        f"{week.taken_back} taken back, {week.dismissed} dismissed."
    )


def _gains(week: WeekSummary) -> str:
    # Rows of a team are anybody's: a speedup there may be no number, or none that can be.
    measured = [(gain.speedup, gain) for gain in week.gains if _is_speedup(gain.speedup)]
    if not measured:
        return "Gained: no accepted rewrite of this week is still there."
    mean = math.exp(sum(math.log(speedup or 1.0) for speedup, _ in measured) / len(measured))
    speedup, best = measured[0]
    return (
        f"Gained: accepted rewrites run {mean:.2f}x as fast as what they replaced (geometric mean "
        f"of {len(measured)}); most: {best.qualname} in {best.path}, {speedup:.2f}x."
    )


def _is_speedup(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
