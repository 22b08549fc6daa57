"""Conversion to LSP types."""

from editor_helpers import URI
from lsprotocol import types

from kernel_lsp.positions import LineIndex
from kernel_lsp.presenter import lsp
from kernel_lsp.presenter.items import Hint, Lens, TextEdit
from kernel_lsp.records import Progress, Span

TEXT = "a = '\U0001f600'\ndef f(): pass\n"


def at(line: int, start: int, end: int) -> types.Range:
    return types.Range(
        start=types.Position(line=line, character=start),
        end=types.Position(line=line, character=end),
    )


def test_a_hint_is_never_more_than_a_hint() -> None:
    hint = Hint(span=Span(start=12, end=13), code="KL101", message="m", qualname="f", proposal="p")
    found = lsp.diagnostic(hint, LineIndex(TEXT, "utf-16"), data=True, link=False)
    assert found.severity is types.DiagnosticSeverity.Hint
    assert (found.source, found.code, found.data) == (
        "kernel-lsp",
        "KL101",
        {"proposal": "p", "qualname": "f"},
    )
    assert found.range == at(1, 4, 5)
    assert lsp.diagnostic(hint, LineIndex(TEXT, "utf-16"), data=False, link=False).data is None


def test_a_rule_is_linked_to_its_page_where_the_client_shows_links() -> None:
    hint = Hint(
        span=Span(start=12, end=13), code="KL101", message="m", qualname="f", page="/docs/a b.md"
    )
    found = lsp.diagnostic(hint, LineIndex(TEXT, "utf-16"), data=False, link=True)
    assert found.code_description == types.CodeDescription(href="file:///docs/a%20b.md")
    assert (
        lsp.diagnostic(hint, LineIndex(TEXT, "utf-16"), data=False, link=False).code_description
        is None
    )


def test_ranges_are_in_the_units_of_the_client() -> None:
    quote = TEXT.index("'\n")
    expected = {"utf-8": 9, "utf-16": 7, "utf-32": 6}
    for encoding, character in expected.items():
        positions = LineIndex(TEXT, encoding)
        found = lsp.range_of(Span(start=quote, end=quote + 1), positions)
        assert found == at(0, character, character + 1)
        assert lsp.span_of(found, positions) == Span(start=quote, end=quote + 1)


def test_edits_carry_the_version_only_for_clients_that_take_one() -> None:
    positions, edits = LineIndex(TEXT, "utf-16"), [TextEdit(start=12, end=13, new="g")]
    versioned = lsp.workspace_edit(URI, 7, edits, positions, versioned=True)
    assert versioned.changes is None
    assert versioned.document_changes is not None
    assert versioned.document_changes[0].text_document.version == 7
    plain = lsp.workspace_edit(URI, 7, edits, positions, versioned=False)
    assert plain.document_changes is None
    assert plain.changes == {URI: [types.TextEdit(range=at(1, 4, 5), new_text="g")]}


def test_a_lens_stands_at_the_start_of_its_line() -> None:
    item = Lens(span=Span(start=11, end=20), qualname="f", title="▷ measure", act="benchmark")
    found = lsp.lens(item, URI, LineIndex(TEXT, "utf-16"))
    assert found.range == at(1, 0, 0)
    assert found.command is not None
    assert found.command.command == "kernel-lsp.benchmark"
    assert found.command.arguments == [{"uri": URI, "qualname": "f", "proposal": None}]


def test_hovers_for_clients_without_markdown_are_plain() -> None:
    text = "**f**: fast\n\n| | |\n|---|---|\n| a | b |"
    found = lsp.hover(text, Span(start=0, end=1), LineIndex(TEXT, "utf-16"), plain=True)
    assert isinstance(found.contents, types.MarkupContent)
    assert found.contents.value == "f: fast\n\n| a | b |"


def test_percentages_need_a_total() -> None:
    assert lsp.percentage(Progress(phase="p", message="m")) is None
    assert lsp.percentage(Progress(phase="p", message="m", done=1, total=3)) == 33
    assert lsp.percentage(Progress(phase="p", message="m", done=1, total=0)) is None
