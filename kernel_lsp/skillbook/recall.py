"""Which skills may fit a target: BM25 over their words, with the words that matched.

Explainable on purpose: no model, no embedding, and the same query gives the same answer. The
scores are rank_bm25's (Okapi BM25, k1 = 1.5, b = 0.75), but for the inverse document frequency:
the original one turns negative for a word in more than half of the documents, so a word that all
skills share would push them all down. Lucene's, log(1 + (N - n + 0.5) / (n + 0.5)), is always
positive.

A word's scores depend on the word alone: they are asked for once and kept, and a query adds up a
few columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from rank_bm25 import BM25Okapi

from kernel_lsp.records import Skill, SkillMatch
from kernel_lsp.skillbook.words import words

NAME_WEIGHT, DESCRIPTION_WEIGHT, TAG_WEIGHT = 3, 3, 4
"""How often a field counts against the body's once. The body explains and so mentions its
neighbors, too."""
K1, B = 1.5, 0.75

Numbers: TypeAlias = npt.NDArray[Any]


class Index:
    """Words of a fixed set of skills."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = tuple(skills)
        self._okapi: Any = _okapi([_document(skill) for skill in skills]) if skills else None
        self._columns: dict[str, Numbers] = {}
        by_name = sorted(range(len(skills)), key=lambda number: skills[number].name)
        self._place = np.empty(len(skills), dtype=np.int64)
        self._place[by_name] = np.arange(len(skills))

    def select(self, query: str | Iterable[str], limit: int) -> tuple[SkillMatch, ...]:
        """At most ``limit`` skills that share a word with the query, best first; ties by name."""
        # Each word once: a graph of 300 additions is not 300 times about them.
        known = {
            word: self._column(word) for word in dict.fromkeys(words(query)) if self._has(word)
        }
        scores = np.sum([*known.values(), np.zeros(len(self._skills))], axis=0)
        found = np.flatnonzero(scores)
        best = found[np.lexsort((self._place[found], -scores[found]))[:limit]]
        return tuple(self._match(number, float(scores[number]), known) for number in best)

    def _has(self, word: str) -> bool:
        return self._okapi is not None and word in self._okapi.idf

    def _column(self, word: str) -> Numbers:
        """What the word adds to the score of each skill; 0 where it does not stand."""
        if word not in self._columns:
            self._columns[word] = self._okapi.get_scores([word])
        return self._columns[word]

    def _match(self, number: int, score: float, known: dict[str, Numbers]) -> SkillMatch:
        share = {word: column[number] for word, column in known.items() if column[number] > 0}
        strongest = sorted(share, key=lambda word: (-share[word], word))
        return SkillMatch(skill=self._skills[number].name, score=score, words=tuple(strongest))


def _okapi(documents: list[list[str]]) -> Any:
    made = BM25Okapi(documents, k1=K1, b=B)
    num_with = Counter(word for document in documents for word in set(document))
    made.idf = {
        word: math.log1p((len(documents) - n + 0.5) / (n + 0.5)) for word, n in num_with.items()
    }
    return made


def _document(skill: Skill) -> list[str]:
    return [
        *words(skill.name) * NAME_WEIGHT,
        *words(skill.description) * DESCRIPTION_WEIGHT,
        *words(skill.tags) * TAG_WEIGHT,
        *words(skill.body),
    ]
