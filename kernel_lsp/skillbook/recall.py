"""Which skills may fit a target: BM25 over their words, with the words that matched.

Explainable on purpose: no model, no embedding, and the same query gives the same answer. BM25Okapi comes from
rank_bm25; its inverse document frequency turns negative for a word in more than half of the documents
(and its repair by the average fails when that is negative too, as in a library of three), so a word that all
skills share would push them all down. We use Lucene's form, log(1 + (N - n + 0.5) / (n + 0.5)), which is
positive for every n.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rank_bm25 import BM25Okapi

from kernel_lsp.records import Skill, SkillMatch
from kernel_lsp.skillbook.words import words

NAME_WEIGHT, DESCRIPTION_WEIGHT, TAG_WEIGHT = 3, 3, 4
"""How often a field counts against the body's once. The body explains and so mentions its neighbors, too."""


class _Okapi(BM25Okapi):  # type: ignore[misc]
    def _calc_idf(self, nd: dict[str, int]) -> None:
        self.idf = {w: math.log1p((self.corpus_size - n + 0.5) / (n + 0.5)) for w, n in nd.items()}
        self.average_idf = sum(self.idf.values()) / max(len(self.idf), 1)


class Index:
    """Words of a fixed set of skills."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = tuple(skills)
        # rank_bm25 divides by the number of documents
        self._okapi: Any = _Okapi([_document(skill) for skill in skills]) if skills else None

    def select(self, query: str | Iterable[str], limit: int) -> tuple[SkillMatch, ...]:
        """At most ``limit`` skills that share a word with the query, best first; ties by name."""
        asked = dict.fromkeys(
            words(query)
        )  # each word once: a graph of 300 additions is not 300 times about them
        if self._okapi is None or not asked:
            return ()
        scores = {word: self._okapi.get_scores([word]) for word in asked if word in self._okapi.idf}
        matches = [self._match(number, scores) for number in range(len(self._skills))]
        found = sorted((m for m in matches if m.words), key=lambda m: (-m.score, m.skill))
        return tuple(found[:limit])

    def _match(self, number: int, scores: dict[str, Any]) -> SkillMatch:
        shares = {word: float(score[number]) for word, score in scores.items() if score[number] > 0}
        strongest = sorted(shares, key=lambda word: (-shares[word], word))
        return SkillMatch(skill=self._skills[number].name, score=sum(shares.values()), words=tuple(strongest))


def _document(skill: Skill) -> list[str]:
    return [
        *words(skill.name) * NAME_WEIGHT,
        *words(skill.description) * DESCRIPTION_WEIGHT,
        *words(skill.tags) * TAG_WEIGHT,
        *words(skill.body),
    ]
