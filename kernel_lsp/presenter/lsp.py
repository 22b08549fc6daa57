"""What we show, as LSP types: the only module beside the server that knows lsprotocol.

Pure conversion. What a client cannot take is decided by the server, from the client's capabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types

from kernel_lsp.plain import inert
from kernel_lsp.plain import plain as plain_text
from kernel_lsp.positions import LineIndex
from kernel_lsp.presenter.items import Action, Hint, Lens, TextEdit
from kernel_lsp.records import FileChange, Json, Progress, Span

SOURCE = "kernel-lsp"
REWRITE = "refactor.rewrite.kernel"
QUICKFIX = "quickfix.kernel"
_SEVERITIES = {
    "hint": types.DiagnosticSeverity.Hint,
    "information": types.DiagnosticSeverity.Information,
    "warning": types.DiagnosticSeverity.Warning,
    "error": types.DiagnosticSeverity.Error,
}


def range_of(span: Span, positions: LineIndex) -> types.Range:
    """The span as lines and characters in the client's encoding."""
    (line, character), (end_line, end_character) = (
        positions.position(span.start),
        positions.position(span.end),
    )
    return types.Range(
        start=types.Position(line=line, character=character),
        end=types.Position(line=end_line, character=end_character),
    )


def span_of(chosen: types.Range, positions: LineIndex) -> Span:
    """The range as offsets of the text."""
    return Span(
        start=positions.offset(chosen.start.line, chosen.start.character),
        end=positions.offset(chosen.end.line, chosen.end.character),
    )


def diagnostic(
    hint: Hint, positions: LineIndex, *, data: bool, link: bool, tags: bool = False
) -> types.Diagnostic:
    """``data`` only for clients that give it back, ``link`` (to the rule's page) for those that
    show one, ``tags`` for those that fade what is unnecessary."""
    linked = types.CodeDescription(href=Path(hint.page).as_uri()) if link and hint.page else None
    return types.Diagnostic(
        range=range_of(hint.span, positions),
        severity=_SEVERITIES[hint.severity],
        source=SOURCE,
        code=hint.code,
        code_description=linked,
        message=hint.message,
        tags=[types.DiagnosticTag.Unnecessary] if tags and hint.unnecessary else None,
        data={**hint.data, "proposal": hint.proposal, "qualname": hint.qualname} if data else None,
    )


def rewrite_action(
    action: Action, *, kind: str, preferred: bool, diagnostics: Sequence[types.Diagnostic] = ()
) -> types.CodeAction:
    """A code action without its edit: `codeAction/resolve` makes it on the text as it is then."""
    return types.CodeAction(
        title=action.title,
        kind=kind,
        is_preferred=preferred or None,
        diagnostics=list(diagnostics) or None,
    )


def fix_action(
    title: str, edit: types.WorkspaceEdit, diagnostics: Sequence[types.Diagnostic]
) -> types.CodeAction:
    """A quick fix that carries its edit and names the diagnostics that it mends."""
    return types.CodeAction(
        title=title, kind=QUICKFIX, edit=edit, diagnostics=list(diagnostics) or None
    )


def action_data(action: Action, uri: str) -> Json:
    """What a code action remembers until it is resolved: which proposal it is, for which text."""
    return {
        "uri": uri,
        "proposal": action.proposal,
        "fingerprint": action.fingerprint,
        "qualname": action.qualname,
    }


def command_action(
    title: str, command: str, arguments: Json, kind: str = REWRITE
) -> types.CodeAction:
    """A code action that runs one of our commands."""
    return types.CodeAction(title=title, kind=kind, command=command_of(title, command, arguments))


def command_of(title: str, command: str, arguments: Json) -> types.Command:
    """The command with its arguments as one object."""
    return types.Command(title=title, command=command, arguments=[arguments])


def workspace_edit(
    uri: str,
    version: int | None,
    edits: Iterable[TextEdit],
    positions: LineIndex,
    *,
    versioned: bool,
) -> types.WorkspaceEdit:
    """One document's edits; with the version where the client can refuse a stale one."""
    changes = [
        types.TextEdit(range=range_of(Span(start=e.start, end=e.end), positions), new_text=e.new)
        for e in edits
    ]
    if not versioned:
        return types.WorkspaceEdit(changes={uri: changes})
    document = types.OptionalVersionedTextDocumentIdentifier(uri=uri, version=version)
    return types.WorkspaceEdit(
        document_changes=[types.TextDocumentEdit(text_document=document, edits=list(changes))]
    )


def join_edits(one: types.WorkspaceEdit, other: types.WorkspaceEdit) -> types.WorkspaceEdit:
    """Both edits in one; they are of different documents."""
    listed = [*(one.document_changes or ()), *(other.document_changes or ())]
    named = {**(one.changes or {}), **(other.changes or {})}
    return types.WorkspaceEdit(changes=named or None, document_changes=listed or None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedFile:
    """A file that an edit of several changes."""

    uri: str
    version: int | None
    """Of an open document."""
    text: str | None
    """None: it is not there."""
    positions: LineIndex | None
    """In that text."""


def program_edit(
    files: Mapping[str, ChangedFile],
    changes: Iterable[tuple[str, FileChange]],
    *,
    versioned: bool,
    creates: bool,
    ask: bool,
) -> types.WorkspaceEdit:
    """The edit of several files at once. ``files``: by path. ``changes``: with what each belongs
    to. ``creates``: the client makes new files when it is asked to, else it does when it changes
    one. ``ask``: the user chooses among what changes belong to; needs a client that announced
    annotations."""
    by_file: dict[str, list[types.TextEdit | types.AnnotatedTextEdit]] = {}
    labels: dict[str, str] = {}
    for label, change in changes:
        positions = files[change.path].positions
        span = Span(start=change.start, end=change.end)
        nowhere = types.Position(line=0, character=0)
        where = range_of(span, positions) if positions else types.Range(nowhere, nowhere)
        mark = labels.setdefault(label, f"edit-{len(labels)}")
        made = (
            types.AnnotatedTextEdit(range=where, new_text=change.new, annotation_id=mark)
            if ask
            else types.TextEdit(range=where, new_text=change.new)
        )
        by_file.setdefault(change.path, []).append(made)
    if not versioned:
        plain = {
            files[path].uri: [one for one in edits if isinstance(one, types.TextEdit)]
            for path, edits in by_file.items()
        }
        return types.WorkspaceEdit(changes=plain)
    parts: list[types.TextDocumentEdit | types.CreateFile] = []
    for path, edits in by_file.items():
        file = files[path]
        if file.text is None and creates:
            parts.append(types.CreateFile(uri=file.uri))
        document = types.OptionalVersionedTextDocumentIdentifier(uri=file.uri, version=file.version)
        parts.append(types.TextDocumentEdit(text_document=document, edits=list(edits)))
    asked = {
        mark: types.ChangeAnnotation(label=label, needs_confirmation=True)
        for label, mark in labels.items()
    }
    return types.WorkspaceEdit(document_changes=parts, change_annotations=asked if ask else None)


def lens(item: Lens, uri: str, positions: LineIndex) -> types.CodeLens:
    """A lens on the line where the item begins; a click runs its command."""
    line, _ = positions.position(item.span.start)
    start = types.Position(line=line, character=0)
    return types.CodeLens(
        range=types.Range(start=start, end=start),
        command=command_of(
            item.title,
            f"kernel-lsp.{item.act}",
            {"uri": uri, "qualname": item.qualname, "proposal": item.proposal},
        ),
    )


def inlay(span: Span, text: str, positions: LineIndex) -> types.InlayHint:
    """A hint behind the span."""
    line, character = positions.position(span.end)
    return types.InlayHint(
        position=types.Position(line=line, character=character), label=f" {text}", padding_left=True
    )


def hover(
    markdown: str, span: Span, positions: LineIndex, *, plain: bool, picture: str | None = None
) -> types.Hover:
    """A hover over the span. ``picture``: an image of ours, as Markdown."""
    kind = types.MarkupKind.PlainText if plain else types.MarkupKind.Markdown
    value = markdown.replace("**", "").replace("| | |\n|---|---|\n", "") if plain else markdown
    value = plain_text(value) if plain else inert(value)
    value = value if picture is None else f"{value}\n\n{picture}"
    return types.Hover(
        contents=types.MarkupContent(kind=kind, value=value), range=range_of(span, positions)
    )


def percentage(progress: Progress) -> int | None:
    """Whole percent from 0 to 100; None: how much there is to do is unknown."""
    if progress.done is None or not progress.total:
        return None
    return max(0, min(100, round(100 * progress.done / progress.total)))
