"""Numbers, sizes and names as words of the compact form. Pure; every result is words of the
vocabulary.

A size tells its power of two, the quarter of the octave that it lies in and by which power of two
it can be divided: what blocks, masks and alignment depend on. Sizes up to 9, and even ones up to
16, are exact. A name is one word where the vocabulary has it, else it is spelled letter by letter,
so nothing is unknown and nothing that somebody else has named can be taken for a word of ours."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kernel_lsp.agents.prompt_encoding.vocabulary import (
    DIVISIBLE,
    EXACT,
    EXPONENTS,
    GAIN_STEPS,
    LARGEST,
    LETTERS,
    NAMES,
    SHARES,
)

_PARTS = re.compile(r"[A-Za-wyz_-][A-Za-z_-]*|x[A-Za-z_-]+|[0-9]{1,12}")
MAX_PARTS = 16

MAX_LETTERS = 16
"""Of a name that is spelled."""


def size(value: int) -> list[str]:
    """The words of a dimension or a count of bytes, 0 and more: ``p6`` is 64, ``d6.2 x5`` is 96."""
    if value < 1:
        return ["p-"]
    power = min(value.bit_length() - 1, LARGEST)
    if value == 1 << power:
        return [f"p{power}"]
    quarter = (value - (1 << power)) * 4 >> power
    divisible = (value & -value).bit_length() - 1
    return [f"d{power}.{min(quarter, 3)}", f"x{min(divisible, DIVISIBLE)}"]


def number(value: bool | int | float) -> list[str]:
    """An argument: exact from -16 to 16 when whole, then sizes; a fraction by its power of two."""
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if value != value:
        return ["nan"]
    if value in (math.inf, -math.inf):
        return ["inf"] if value > 0 else ["minus", "inf"]
    if value == int(value) and abs(value) <= EXACT:
        return [f"i{int(value)}"]
    sign = ["minus"] if value < 0 else []
    if isinstance(value, int):
        return [*sign, *size(abs(value))]
    power = max(-EXPONENTS, min(EXPONENTS, math.frexp(abs(value))[1] - 1))
    return [*sign, f"e{power}"]


def numbers(values: Sequence[bool | int | float], most: int = 12) -> list[str]:
    """The words of several numbers; ``each`` where all are the same."""
    if len(values) > 1 and all(value == values[0] for value in values):
        return [*number(values[0]), "each"]
    return [word for value in values[:most] for word in number(value)]


def name(text: str) -> list[str]:
    """The words of a name: of an operation, a dtype, a part of a skill's name."""
    if text in NAMES:
        return [text]
    letters = [letter if letter in LETTERS else "_" for letter in text.lower()[:MAX_LETTERS]]
    return ["~", *(f"~{letter}" for letter in letters), "~"]


def share(value: float | None) -> str:
    """An estimated saving, in sixteenths."""
    return (
        "b-" if value is None or value != value else f"b{round(min(1.0, max(0.0, value)) * SHARES)}"
    )


def gain(speedup: float | None) -> str:
    """A measured speedup, in eighths of its binary logarithm: ``g8`` is 2x."""
    if speedup is None or not 0.0 < speedup < math.inf:
        return "g-"
    return f"g{max(-GAIN_STEPS, min(GAIN_STEPS, round(8 * math.log2(speedup))))}"


def choices(values: Sequence[Any]) -> list[tuple[str, ...]]:
    """One for each choice of a parameter, none the beginning of another: by value, else by
    place."""
    entries = [tuple(choice(value)) for value in values]
    ordered = sorted(entries)
    apart = all(later[: len(one)] != one for one, later in pairwise(ordered))
    return entries if apart else [(f"o{place}",) for place in range(len(values))]


def choice(value: Any) -> list[str]:
    """A value of a parameter; a text by its parts: ``tiles 64x64x32 warps 4``."""
    if isinstance(value, (bool, int, float)):
        return number(value)
    if not isinstance(value, str) or value in NAMES:
        return name(str(value))
    parts = _PARTS.findall(value)[:MAX_PARTS]
    return [
        word for part in parts for word in (number(int(part)) if part.isdigit() else name(part))
    ] or ["other"]
