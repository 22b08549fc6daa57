"""Why nothing is offered, in words: where skills nearly applied, and what the device leaves to
gain.

    lines(outcome, path)       for a terminal, below the outcome's note
    markdown(outcome, text)    for a hover, with places in the text as it is now
    briefly(outcome)           for the reason of a code action that cannot be chosen

All are empty where something is offered. Numbers are estimates, and say so.
"""

from __future__ import annotations

from kernel_lsp.positions import split_lines
from kernel_lsp.presenter.cards import duration
from kernel_lsp.records import NearMiss, Outcome, Roof, RoofKind

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def lines(outcome: Outcome, path: str) -> list[str]:
    """A line per near miss and one of the whole call, for a terminal; [] where something is
    offered."""
    if outcome.note is None:
        return []
    found = []
    for miss in outcome.misses:
        place = f"{path}:{miss.line}" if miss.line is not None else path
        found.append(f"{place}: {_what(miss)}")
        found += [f"  -> {miss.remedy}"] if miss.remedy else []
    whole = _whole(outcome)
    return [*found, *([f"a whole call: {whole}"] if whole else [])]


def markdown(outcome: Outcome, text: str) -> list[str]:
    """The near misses as a list, lines as they are in ``text``; [] where something is offered."""
    if outcome.note is None:
        return []
    found = []
    for miss in outcome.misses:
        line = line_of(miss, text)
        code = f"`{miss.code}`: " if miss.code else ""
        place = f"line {line}, {code}" if line is not None else code
        found.append(f"- {place}{_what(miss)}{f'. *{miss.remedy}*' if miss.remedy else ''}")
    whole = _whole(outcome)
    return [*found, *([f"- a whole call: {whole}"] if whole else [])]


def briefly(outcome: Outcome) -> str:
    """Why nothing is offered, in one line: the note, and the nearest miss behind it."""
    miss = next((miss for miss in outcome.misses if miss.skill), None)
    if miss is None:
        return outcome.note or ""
    place = f" (line {miss.line})" if miss.line is not None else ""
    return f"{outcome.note}; {miss.skill} nearly does{place}: {miss.missing}"


def line_of(miss: NearMiss, text: str) -> int | None:
    """The line where the miss stands now: the nearest one that reads the same. None when it is
    gone."""
    if miss.line is None:
        return None
    same = [at for at, line in enumerate(split_lines(text), 1) if line.strip() == miss.code]
    return min(same, key=lambda at: abs(at - (miss.line or 0)), default=None)


def roof_words(roof: Roof) -> str:
    """What takes the time, with numbers."""
    taken, least = (duration(seconds * 1e3) for seconds in (roof.taken_s, roof.least_s))
    moved, device = f"{_amount(roof.bytes)}B", roof.device
    if roof.kind is RoofKind.MEMORY:
        rate = f"{_amount(roof.bytes_per_s)}B/s of {device}"
        return f"at the memory's roof: {moved} at {rate} take {least} of about {taken}"
    if roof.kind is RoofKind.ARITHMETIC:
        done = f"{_amount(roof.flops)}FLOP"
        return (
            f"bound by arithmetic: {done} at the library's rate on {device} take {least} of about "
            f"{taken}"
        )
    if roof.kind is RoofKind.LAUNCH:
        return (
            f"too small: about {taken} on {device}, most of it to start kernels that move {moved}"
        )
    return f"about {taken} on {device}, of which the {moved} that it must move take {least}"


def _what(miss: NearMiss) -> str:
    """``softmax in 12 places (about 61% of the time): flash-attention: …``"""
    like = f" in {miss.places} places" if miss.places > 1 else ""
    skill = f"{miss.skill}: " if miss.skill else ""
    first = "the first is " if miss.places > 1 else ""
    roof = f"; {first}{roof_words(miss.roof)}" if miss.roof is not None else ""
    share = f" (about {miss.share:.0%} of the time)" if miss.share else ""
    return f"{miss.op}{like}{share}: {skill}{miss.missing}{roof}"


def _whole(outcome: Outcome) -> str:
    """Of the whole target, unless a miss that is all of it says the same."""
    said = any(miss.roof is not None and miss.share > 0.95 for miss in outcome.misses)
    return "" if outcome.roof is None or said else roof_words(outcome.roof)


def _amount(number: float) -> str:
    """``134 M``"""
    for size, prefix in UNITS:
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "
