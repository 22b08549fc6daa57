"""Names of a row dealt anew each time it is read, so that copying them is all that pays.

    deal = NameDealer(tokenizer); deal(ids, draw)        n1, n2, n3 -> n4, n11, n12; a1 -> a7

A row that comes back as it was is learned by heart, down to its n7. Under fresh numbers, the same in
question and reply and in the same order, what n7 is stands in the question alone; and n31, which few
programs are long enough to have, is read as often as n3. Not covered: inputs, locals and tensors
(x1, v1, t1), of which a row has few."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy

LETTERS = "an"
_NAME = re.compile(rf"[{LETTERS}][0-9]+")
SHARE = 0.75
"""Of the times that a row is read; else it is as questions of the product are."""
Tokens = numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]


class NameDealer:
    """Of one vocabulary: names that are one token each."""

    def __init__(self, tokenizer: Any) -> None:
        words = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        named = sorted((int(w[1:]), token) for token, w in enumerate(words) if _NAME.fullmatch(w))
        self._pools = [[t for _, t in named if words[t][0] == letter] for letter in LETTERS]
        self._same = numpy.arange(len(words))
        self._names = numpy.zeros(len(words), bool)
        self._names[[token for _, token in named]] = True
        self._goes_on = numpy.array([word[:1].isdigit() for word in words])
        self._begun = numpy.array([word[-1:].isalpha() or word[-1:] == "_" for word in words])

    def __call__(self, ids: Tokens, draw: random.Random) -> Tokens:
        """The tokens of a row under other names."""
        whole = self._names[ids]
        whole[:-1] &= ~self._goes_on[ids[1:]]  # n10 of n105
        whole[1:] &= ~self._begun[ids[:-1]]  # n2 of mean2
        own = set(ids[whole].tolist())
        fresh = self._same.copy()
        for pool in self._pools:
            mine = [place for place, token in enumerate(pool) if token in own]
            dealt = sorted(draw.sample(range(len(pool)), len(mine)))
            for place, other in zip(mine, dealt, strict=True):
                fresh[pool[place]] = pool[other]
        return numpy.where(whole, fresh[ids], ids)
