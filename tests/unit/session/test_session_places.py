"""Which target a place in the text belongs to, also while the analysis is older than the text."""

import pytest
from editor_helpers import TEXT, URI, snapshot
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp import analysis
from kernel_lsp.records import Snapshot, Span
from kernel_lsp.session import EditorSession
from kernel_lsp.session.document import earlier


def opened(text: str) -> EditorSession:
    session = EditorSession(client="test 1")
    session.open(snapshot(text), "/project", "model.py")
    document = session.documents[URI]
    session.analyzed(document.snapshot, analysis.analyze(document.snapshot))
    return session


def names(session: EditorSession, text: str, word: str) -> list[str]:
    at = text.index(word)
    return [target.qualname for target in session.targets(URI, Span(start=at, end=at))]


def test_a_comment_behind_the_last_statement_belongs_to_its_target() -> None:
    text = TEXT.replace("dim=1)\n", "dim=1)  # the rows\n", 1)
    assert names(opened(text), text, "rows") == ["Model"]
    below = TEXT.replace("dim=1)\n", "dim=1)\n# the rows\n", 1)
    assert names(opened(below), below, "rows") == []


@pytest.mark.parametrize(
    "typed",
    [
        "import math\n\n" * 20,  # Other stands where nothing was
        "def broken(:\n",  # the last good analysis stays
    ],
)
def test_a_place_is_looked_up_in_the_text_that_was_analyzed(typed: str) -> None:
    session = opened(TEXT)
    text = typed + TEXT
    session.change(Snapshot(uri=URI, text=text, version=2))
    assert not session.documents[URI].current
    for name in ("Model", "Other"):
        assert names(session, text, f"class {name}") == [name]
    assert names(session, text, typed.split()[0]) == []


def test_what_is_being_typed_belongs_to_the_target_that_it_is_typed_in() -> None:
    session = opened(TEXT)
    text = TEXT.replace("dim=1)\n", "dim=1)  # the rows are long" + ", so long" * 40 + "\n", 1)
    session.change(Snapshot(uri=URI, text=text, version=2))
    assert names(session, text, "rows") == ["Model"]


@pytest.mark.parametrize(
    ("old", "text", "there", "was"),
    [
        ("abcd", "abXYcd", (4, 6), (2, 4)),  # inserted
        ("abcd", "abXYcd", (1, 3), (1, 2)),
        ("abXYcd", "abcd", (3, 4), (5, 6)),  # deleted
        ("abXYcd", "abcd", (2, 2), (2, 2)),  # where it was cut: before what was there
        ("abXcd", "abYYYcd", (3, 4), (2, 2)),  # replaced
        ("aaaa", "aa", (1, 2), (1, 2)),
        ("", "new", (1, 3), (0, 0)),
        ("gone", "", (0, 0), (0, 0)),
    ],
)
def test_a_place_in_the_text_that_it_was(
    old: str, text: str, there: tuple[int, int], was: tuple[int, int]
) -> None:
    start, end = there
    assert earlier(Span(start=start, end=end), text, old) == Span(start=was[0], end=was[1])


@given(st.text("ab\n"), st.text("ab\n"), st.text("ab\n"), st.text("ab\n"), st.data())
def test_every_place_has_one_before(
    head: str, gone: str, new: str, tail: str, data: st.DataObject
) -> None:
    old, text = head + gone + tail, head + new + tail
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    was = earlier(Span(start=start, end=end), text, old)
    assert 0 <= was.start <= was.end <= len(old)
    if end < len(head):
        assert was == Span(start=start, end=end)
