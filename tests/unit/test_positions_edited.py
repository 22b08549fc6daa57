"""Changes of a document against a model of its own, in code units as the specification counts
them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lsp.positions import LineIndex, apply_edits

CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
TEXTS = st.text(alphabet="ab\n\r é😀\u2028\x0c", max_size=30)
PLACES = st.tuples(st.integers(0, 8), st.integers(0, 40))


def units_of(line: str, encoding: str) -> list[str]:
    """One entry a code unit: the character at its first one, nothing at the others."""
    codec, size = CODECS[encoding]
    return [unit for char in line for unit in [char, *[""] * (len(char.encode(codec)) // size - 1)]]


def offset(text: str, place: tuple[int, int], encoding: str) -> int:
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
    if place[0] >= len(lines):
        return len(text)
    before = sum(map(len, lines[: place[0]]))
    units = units_of(lines[place[0]].rstrip("\r\n"), encoding)
    return before + len("".join(units[: place[1]]))


@settings(max_examples=300)
@given(text=TEXTS, start=PLACES, end=PLACES, new=TEXTS, encoding=st.sampled_from(sorted(CODECS)))
def test_a_change_is_made_where_the_client_means(
    text: str, start: tuple[int, int], end: tuple[int, int], new: str, encoding: str
) -> None:
    first, second = sorted([offset(text, start, encoding), offset(text, end, encoding)])
    assert apply_edits(text, encoding, [(start, end, new)]) == text[:first] + new + text[second:]
    assert (
        apply_edits("x", encoding, [text, (start, end, new)]) == text[:first] + new + text[second:]
    )


@pytest.mark.parametrize("encoding", sorted(CODECS))
def test_a_position_and_its_offset_are_each_others_inverse(encoding: str) -> None:
    text = "a😀é\r\nb\r\n\n😀😀 end"
    positions = LineIndex(text, encoding)
    for at in range(len(text)):
        if text[at] != "\n" or text[at - 1] != "\r":
            assert positions.offset(*positions.position(at)) == at
