"""Words and BM25: hand-worked scores, small libraries, and the formula as a second opinion."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lsp.records import Skill
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
    library = book(
        skill("a", body="rare common"), skill("b", body="common"), skill("c", body="common")
    )
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
        *(skill(f"s{i}", body="exp and filler filler") for i in (3, 1, 2)),
        skill("best", body="exp " * 6),
    )
    assert [m.skill for m in library.select("exp", limit=3)] == ["best", "s1", "s2"]


def by_formula(skills: tuple[Skill, ...], query: str) -> dict[str, dict[str, float]]:
    """Skill -> what each word of the query adds to its score, as the books write it."""
    documents = {one.name: _document(one) for one in skills}
    mean = sum(map(len, documents.values())) / len(documents)
    shares: dict[str, dict[str, float]] = {}
    for name, document in documents.items():
        for word in {*words(query)} & {*document}:
            n, often = sum(word in other for other in documents.values()), document.count(word)
            rare = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            long = 1.5 * (1 - 0.75 + 0.75 * len(document) / mean)
            shares.setdefault(name, {})[word] = rare * often * 2.5 / (often + long)
    return shares


VOCABULARY = [
    "softmax",
    "matmul",
    "sum",
    "exp",
    "norm",
    "relu",
    "fuse",
    "kernel",
    "layer_norm",
    "tile",
]
texts = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=12).map(" ".join)


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=12), texts, st.integers(1, 12))
def test_the_index_answers_as_the_formula_does(bodies: list[str], query: str, limit: int) -> None:
    skills = tuple(
        skill(f"s-{i}", description=body[:20], body=body) for i, body in enumerate(bodies)
    )
    found, expected = book(*skills).select(query, limit), by_formula(skills, query)
    totals = sorted((sum(shares.values()) for shares in expected.values()), reverse=True)
    assert [match.score for match in found] == pytest.approx(totals[:limit])
    for match in found:  # equal but for rounding: either may come first
        assert match.score == pytest.approx(sum(expected[match.skill].values()))
        assert set(match.words) == set(expected[match.skill])


def test_a_library_of_5000_skills_is_no_burden() -> None:
    """The bar, in CPU time, once the words are known."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    own = [f"word{one}{two}" for one in letters for two in letters]
    skills = [
        skill(f"s-{i}", body=" ".join([*VOCABULARY[i % 7 :], own[i % len(own)]]))
        for i in range(5000)
    ]
    library = book(*skills)
    library.select("warm up")
    start = time.process_time()
    for _ in range(20):
        assert len(library.select(VOCABULARY)) == 20
    assert (time.process_time() - start) / 20 < 0.02
