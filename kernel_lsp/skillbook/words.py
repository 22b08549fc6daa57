"""Text and code to words that can be compared: `aten::layer_norm`, `nn.LayerNorm` and "layer
norms" agree.

Identifiers are split at case changes, underscores, dots and digits; each also yields its parts
joined (`layernorm`), because prose writes some names as one word; the 2d of `conv2d` is dropped.
Plurals lose their s. Nothing else is stemmed: "fused" and "fusion" are different words, as are
"norm" and "normal"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_IDENTIFIER = re.compile(r"[A-Za-z0-9_]+")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+[dD](?![A-Za-z])|\d+")

# Words of every skill and every query: they would cost time and say nothing.
_STOP = frozenset(
    """
    a an and are as at be but by can do does for from has have if in into is it its may more no not of on one
    only or so such than that the their them then there they this to two use used using was what when where
    which while will with you your aten default nn torch self def return import
    """.split()  # noqa: SIM905 - as a list, the formatter makes a page of it
)


def words(text: str | Iterable[str]) -> list[str]:
    """Lower-case words in order, with repetitions."""
    texts = [text] if isinstance(text, str) else text
    return [
        word for piece in texts for name in _IDENTIFIER.findall(piece) for word in _of_name(name)
    ]


@lru_cache(
    maxsize=2**14
)  # identifiers repeat: an index of 5,000 skills is built in a third of the time
def _of_name(name: str) -> tuple[str, ...]:
    parts = [_singular(part.lower()) for part in _PART.findall(name)]
    letters = [part for part in parts if not part[0].isdigit()]
    joined = ["".join(letters)] if len(letters) > 1 else []
    return tuple(word for word in letters + joined if len(word) > 1 and word not in _STOP)


def _singular(word: str) -> str:
    plural = len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is", "as"))
    return word[:-1] if plural else word
