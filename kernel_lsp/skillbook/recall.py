"""Which skills may fit a target: BM25 over their words, with the words that matched.

Explainable on purpose: no model, no embedding, and the same query gives the same answer. The weights are
those of Okapi BM25 (Robertson and Zaragoza 2009, k1 = 1.5, b = 0.75) with Lucene's inverse document
frequency, log(1 + (N - n + 0.5) / (n + 0.5)): the original turns negative for a word in more than half of the
documents, so a word that all skills share would push them all down.

A word's weight in a skill depends on the two alone, so all weights are computed once and kept by word; a
query adds up a few columns. Measured: benchmarks/results/retrieval-cpu-2026-11-21.txt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kernel_lsp.records import Skill, SkillMatch
from kernel_lsp.skillbook.words import words

NAME_WEIGHT, DESCRIPTION_WEIGHT, TAG_WEIGHT = 3, 3, 4
"""How often a field counts against the body's once. The body explains and so mentions its neighbors, too."""
K1, B = 1.5, 0.75

Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Posting:
    """Where one word occurs."""

    skills: Numbers
    """Their numbers, ascending."""
    weights: Numbers
    """What the word adds to the score of each; all positive."""


class Index:
    """Words of a fixed set of skills."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = tuple(skills)
        self._postings = _postings([_document(skill) for skill in skills])
        by_name = sorted(range(len(skills)), key=lambda number: skills[number].name)
        self._place = np.empty(len(skills), dtype=np.int64)
        self._place[by_name] = np.arange(len(skills))

    def select(self, query: str | Iterable[str], limit: int) -> tuple[SkillMatch, ...]:
        """At most ``limit`` skills that share a word with the query, best first; ties by name."""
        asked = dict.fromkeys(
            words(query)
        )  # each word once: a graph of 300 additions is not 300 times about them
        known = {word: self._postings[word] for word in asked if word in self._postings}
        scores = np.zeros(len(self._skills))
        for posting in known.values():
            scores[posting.skills] += posting.weights
        found = np.flatnonzero(scores)
        best = found[np.lexsort((self._place[found], -scores[found]))[:limit]]
        shares: list[dict[str, float]] = [{} for _ in best]
        for word, posting in known.items():
            for i, weight in _among(posting, best):
                shares[i][word] = weight
        return tuple(
            SkillMatch(
                skill=self._skills[number].name,
                score=float(scores[number]),
                words=tuple(sorted(share, key=lambda word: (-share[word], word))),
            )
            for number, share in zip(best, shares, strict=True)
        )


def _among(posting: _Posting, chosen: Numbers) -> Iterable[tuple[int, float]]:
    """(place in ``chosen``, weight) of the chosen skills that have the word."""
    at = np.minimum(np.searchsorted(posting.skills, chosen), len(posting.skills) - 1)
    here = np.flatnonzero(posting.skills[at] == chosen)
    return zip(here.tolist(), posting.weights[at[here]].tolist(), strict=True)


def _postings(documents: Sequence[list[str]]) -> dict[str, _Posting]:
    lengths = np.array([len(document) for document in documents], dtype=np.float64)
    long = K1 * (1 - B + B * lengths / (lengths.mean() or 1.0)) if documents else lengths
    where: dict[str, tuple[list[int], list[int]]] = {}
    for number, document in enumerate(documents):
        for word, count in Counter(document).items():
            numbers, counts = where.setdefault(word, ([], []))
            numbers.append(number)
            counts.append(count)
    return {word: _posting(*found, long) for word, found in where.items()}


def _posting(numbers: list[int], counts: list[int], long: Numbers) -> _Posting:
    skills, often = np.array(numbers), np.array(counts, dtype=np.float64)
    rare = np.log1p((len(long) - len(numbers) + 0.5) / (len(numbers) + 0.5))
    return _Posting(skills=skills, weights=rare * (often * (K1 + 1) / (often + long[skills])))


def _document(skill: Skill) -> list[str]:
    return [
        *words(skill.name) * NAME_WEIGHT,
        *words(skill.description) * DESCRIPTION_WEIGHT,
        *words(skill.tags) * TAG_WEIGHT,
        *words(skill.body),
    ]
