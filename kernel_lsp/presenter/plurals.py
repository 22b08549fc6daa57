"""Numbers with their nouns, as a person would write them."""

from __future__ import annotations


def count(number: int, word: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
