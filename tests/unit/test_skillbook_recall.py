"""Words and BM25: hand-worked scores, small libraries, and rank_bm25 as a second opinion."""

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from kernel_lsp.records import Skill, SkillMatch
from kernel_lsp.skillbook.library import Skillbook
from kernel_lsp.skillbook.recall import _document
from kernel_lsp.skillbook.words import words


def skill(name: str, description: str = "", tags: tuple[str, ...] = (), body: str = "") -> Skill:
    return Skill(
        name=name,
        description=description,
        scope="graph",
        tags=tags,
        version=1,
        body=body,
        path="/x",
        executable=False,
    )


def book(*skills: Skill) -> Skillbook:
    return Skillbook(skills=skills)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aten::layer_norm", ["layer", "norm", "layernorm"]),
        ("torch.nn.LayerNorm", ["layer", "norm", "layernorm"]),
        ("layer norms", ["layer", "norm"]),
        ("torch.ops.aten.sum.dim_IntList", ["ops", "sum", "dim", "int", "list", "dimintlist"]),
        ("BatchNorm2d", ["batch", "norm", "batchnorm"]),
        ("batchnorm2d conv2d avg_pool1d", ["batchnorm", "conv", "avg", "pool", "avgpool"]),
        ("log-softmax", ["log", "softmax"]),
        ("HTTPServer", ["http", "server", "httpserver"]),
        ("the of and", []),
        ("x 1 + 22", []),
        ("mass axis bus bias", ["mass", "axis", "bus", "bias"]),
    ],
)
def test_code_and_prose_meet_in_the_same_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text())
def test_any_text_yields_lower_case_words(text: str) -> None:
    assert all(word == word.lower() and len(word) > 1 for word in words(text))


def test_the_score_is_okapi_bm25_with_lucenes_idf() -> None:
    # Words per document: {exp} and {log}. N = 2, n = 1: idf = log(1 + 1.5/1.5) = log 2.
    # "exp" stands once in the body; |D| = mean |D|, so tf weight = 1 * 2.5 / (1 + 1.5) = 1.
    library = book(skill("", body="exp"), skill("", body="log"))
    (match,) = library.select("exp")
    assert match.score == pytest.approx(math.log(2)) and match.words == ("exp",)


def test_a_word_of_every_skill_still_counts_for_something() -> None:
    library = book(*(skill(f"s{i}", body="fuse") for i in range(3)))
    assert all(match.score > 0 for match in library.select("fuse"))
    assert len(library.select("fuse")) == 3
    (only,) = book(skill("alone", body="fuse")).select("fuse")
    assert only.score > 0


def test_name_description_and_tags_outweigh_a_mention_in_the_body() -> None:
    rest = "other words about something else entirely here"
    by_body = skill("aa", "x y", ("tag",), f"softmax {rest}")
    for better in (
        skill("softmax", "x y", ("tag",), rest),
        skill("bb", "softmax", ("tag",), rest),
        skill("cc", "x y", ("softmax",), rest),
    ):
        assert book(by_body, better).select("softmax")[0].skill == better.name


def test_matched_words_come_strongest_first() -> None:
    library = book(skill("a", body="rare common"), skill("b", body="common"), skill("c", body="common"))
    match = library.select("common rare")[0]
    assert match.skill == "a" and match.words == ("rare", "common")


def test_repeating_a_word_in_the_query_changes_nothing() -> None:
    library = book(skill("adder", body="add"), skill("exponential", body="exp"))
    assert library.select(["add"] * 300 + ["exp"]) == library.select(["add", "exp"])


@pytest.mark.parametrize("query", ["", [], "the of", "absent", ["", " "]])
def test_nothing_in_common_is_no_match(query: str | list[str]) -> None:
    assert book(skill("a", body="softmax")).select(query) == ()
    assert book().select(query) == ()


def test_the_limit_keeps_the_best_and_ties_go_by_name() -> None:
    library = book(
        *(skill(f"s{i}", body="exp and filler filler") for i in (3, 1, 2)), skill("best", body="exp " * 6)
    )
    assert [m.skill for m in library.select("exp", limit=3)] == ["best", "s1", "s2"]


class Okapi(BM25Okapi):
    """rank_bm25's formula with our inverse document frequency: its own can be negative."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        self.idf = {w: math.log1p((self.corpus_size - n + 0.5) / (n + 0.5)) for w, n in nd.items()}
        self.average_idf = 1.0


def by_okapi(skills: tuple[Skill, ...], query: str, limit: int) -> tuple[SkillMatch, ...]:
    """The same, word by word and skill by skill."""
    okapi: Any = Okapi([_document(skill) for skill in skills])
    asked = [word for word in dict.fromkeys(words(query)) if word in okapi.idf]
    scores = {word: okapi.get_scores([word]) for word in asked}
    matches = []
    for number, one in enumerate(skills):
        shares = {word: float(scores[word][number]) for word in asked if scores[word][number] > 0}
        strongest = sorted(shares, key=lambda word: (-shares[word], word))
        matches.append(SkillMatch(skill=one.name, score=sum(shares.values()), words=tuple(strongest)))
    return tuple(sorted((m for m in matches if m.words), key=lambda m: (-m.score, m.skill))[:limit])


VOCABULARY = ["softmax", "matmul", "sum", "exp", "norm", "relu", "fuse", "kernel", "layer_norm", "tile"]
texts = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=12).map(" ".join)


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=12), texts, st.integers(1, 12))
def test_the_index_answers_as_rank_bm25_does(bodies: list[str], query: str, limit: int) -> None:
    skills = tuple(skill(f"s-{i}", description=body[:20], body=body) for i, body in enumerate(bodies))
    ours, theirs = book(*skills).select(query, limit), by_okapi(skills, query, len(skills))
    assert [match.score for match in ours] == pytest.approx([match.score for match in theirs[:limit]])
    by_name = {match.skill: match for match in theirs}  # equal but for rounding: either may come first
    for match in ours:
        assert match.score == pytest.approx(by_name[match.skill].score)
        assert set(match.words) == set(by_name[match.skill].words)


def test_a_library_of_5000_skills_is_no_burden() -> None:
    """The bar, in CPU time: benchmarks/retrieval.py measures 1 ms, and 49 ms for rank_bm25."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    own = [f"word{one}{two}" for one in letters for two in letters]
    skills = [skill(f"s-{i}", body=" ".join([*VOCABULARY[i % 7 :], own[i % len(own)]])) for i in range(5000)]
    library = book(*skills)
    library.select("warm up")
    start = time.process_time()
    for _ in range(20):
        assert len(library.select(VOCABULARY)) == 20
    assert (time.process_time() - start) / 20 < 0.02
