"""A document as a client names it: a file, or one cell of a notebook, whose text is a part of the
notebook's program."""

from __future__ import annotations

from dataclasses import dataclass

from lsprotocol import types

from kernel_lsp.positions import LineIndex
from kernel_lsp.presenter import lsp
from kernel_lsp.records import Span
from kernel_lsp.server.app import KernelServer


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPlace:
    uri: str
    """By which the session knows the document."""
    positions: LineIndex
    """In the text that the client has."""
    part: Span
    """Where that lies in the session's text."""

    def span(self, chosen: types.Range) -> Span:
        """A range of the client as offsets of the session's text."""
        found = lsp.span_of(chosen, self.positions)
        return Span(start=found.start + self.part.start, end=found.end + self.part.start)

    def offset(self, position: types.Position) -> int:
        """A position of the client as an offset of the session's text."""
        return self.positions.offset(position.line, position.character) + self.part.start

    def within(self, span: Span) -> Span | None:
        """A span of the session's text as offsets of the client's; None where it begins in
        another cell."""
        if not self.part.start <= span.start <= self.part.end:
            return None
        end = min(span.end, self.part.end)
        return Span(start=span.start - self.part.start, end=end - self.part.start)


def find(ls: KernelServer, uri: str) -> TextPlace | None:
    """The place of that name; None: it is not open, or nothing that is analyzed."""
    if ls.notebooks is not None and (cell := ls.notebooks.cell(uri)) is not None:
        notebook, part, source = cell
        return TextPlace(uri=notebook, positions=LineIndex(source, ls.position_encoding), part=part)
    document = ls.session.documents.get(uri)
    if document is None or (ls.notebooks is not None and ls.notebooks.holds(uri)):
        return None
    whole = Span(start=0, end=len(document.snapshot.text))
    return TextPlace(uri=uri, positions=ls.positions(document.snapshot), part=whole)
