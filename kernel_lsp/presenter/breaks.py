"""Where a module cannot be one graph, in words: each place once, with what would remove the break.

lines(outcome, path)       for a terminal
markdown(outcome, text)    for a hover, with places in the text as it is now
line_of(found, text)       where a break stands now; None: it is gone, or stands in another file
"""

from __future__ import annotations

from kernel_lsp.positions import split_lines
from kernel_lsp.records import Break, Outcome


def lines(outcome: Outcome, path: str) -> list[str]:
    """One headline and a line per break of the graph, for a terminal; [] where nothing breaks."""
    if not outcome.breaks:
        return []
    found = [headline(outcome)]
    for one in outcome.breaks:
        place = one.place or (f"{path}:{one.line}" if one.line is not None else path)
        found += [f"  {place}: {message(one)}"]
    return found


def markdown(outcome: Outcome, text: str) -> list[str]:
    """A headline and a list of the breaks, each with its remedy, lines as they are in ``text``; []
    where nothing breaks."""
    if not outcome.breaks:
        return []
    found = [headline(outcome), ""]
    for one in outcome.breaks:
        line = line_of(one, text)
        place = one.place or (f"line {line}" if line is not None else "")
        found.append(f"- {f'{place}, ' if place else ''}`{one.code}` {one.cause}. *{one.remedy}*")
    return found


def headline(outcome: Outcome) -> str:
    """``Net cannot be one graph; its lines 4 to 9 were rewritten by themselves.``"""
    count = len(outcome.breaks)
    places = "one place breaks it" if count == 1 else f"{count} places break it"
    part = outcome.part
    where = ""
    if part is not None and outcome.joined:
        parts = sorted((part, *outcome.joined), key=lambda one: one.first)
        where = f"; {', '.join(one.words for one in parts)} are rewritten by themselves"
    elif part is not None:
        verb = (
            "is looked at by itself" if part.first == part.last else "are looked at by themselves"
        )
        where = f"; {part.words} {verb}"
    return f"{outcome.qualname} cannot be one graph: {places}{where}"


def message(one: Break) -> str:
    """``.item()`` in words, for one line."""
    code = f"`{one.code}` " if one.code else ""
    return f"{code}{one.cause}; {one.remedy}" if one.remedy else f"{code}{one.cause}"


def line_of(one: Break, text: str) -> int | None:
    """The nearest line that reads the same."""
    if one.line is None or one.place:
        return None
    same = [at for at, line in enumerate(split_lines(text), 1) if line.strip() == one.code]
    return min(same, key=lambda at: abs(at - (one.line or 0)), default=None)
