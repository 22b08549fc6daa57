"""Requests that only read: hover, code actions and their edit, lenses, inlay hints.

All answer from memory: pygls runs cancelled requests too, so slow ones would pile up.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from lsprotocol import types

from kernel_lsp.config import Settings
from kernel_lsp.errors import KernelLspError
from kernel_lsp.notebooks import is_notebook
from kernel_lsp.presenter import lsp, near_misses, thumbnails
from kernel_lsp.presenter.items import Action, TextEdit
from kernel_lsp.records import Json, Snapshot, Span, Target
from kernel_lsp.server import announced, places, programs
from kernel_lsp.server.app import KernelServer, count_time
from kernel_lsp.server.protocol import RequestFailed
from kernel_lsp.session import fingerprint_of


def register(ls: KernelServer) -> None:
    """Adds the requests that only read, as far as the client can use their answers."""
    options = announced.features(ls.abilities)
    code_action = types.TEXT_DOCUMENT_CODE_ACTION
    ls.feature(code_action, options[code_action])(_on_code_action)
    ls.feature(types.CODE_ACTION_RESOLVE)(on_resolve)
    ls.feature(types.TEXT_DOCUMENT_HOVER)(_on_hover)
    ls.feature(types.TEXT_DOCUMENT_CODE_LENS)(_on_code_lens)
    ls.feature(types.TEXT_DOCUMENT_INLAY_HINT)(_on_inlay_hint)
    if ls.abilities.pull:
        _register_pulls(ls)
    if ls.abilities.renames:
        will_rename = types.WORKSPACE_WILL_RENAME_FILES
        ls.feature(will_rename, options[will_rename])(on_will_rename)


def _register_pulls(ls: KernelServer) -> None:
    """For clients that ask for diagnostics; others do not wait for what only those need."""
    from kernel_lsp.server.pulls import Pulls

    pulls = Pulls(ls)
    ls.wake_pulls = pulls.note_change

    async def on_diagnostic(
        ls: KernelServer, params: types.DocumentDiagnosticParams
    ) -> types.DocumentDiagnosticReport:
        return await pulls.of_document(params)

    async def on_workspace_diagnostic(
        ls: KernelServer, params: types.WorkspaceDiagnosticParams
    ) -> types.WorkspaceDiagnosticReport:
        return await pulls.of_workspace(params)

    options = announced.WITH_PULLS[types.TEXT_DOCUMENT_DIAGNOSTIC]
    ls.feature(types.TEXT_DOCUMENT_DIAGNOSTIC, options)(on_diagnostic)
    ls.feature(types.WORKSPACE_DIAGNOSTIC)(on_workspace_diagnostic)


async def on_will_rename(
    ls: KernelServer, params: types.RenameFilesParams
) -> types.WorkspaceEdit | None:
    """What was recorded of a file's targets goes along with it."""
    from kernel_lsp.server import renames

    return await asyncio.to_thread(
        renames.edits,
        [(one.old_uri, one.new_uri) for one in params.files],
        ls.roots(),
        ls.position_encoding,
    )


@count_time("hover")
def _on_hover(ls: KernelServer, params: types.HoverParams) -> types.Hover | None:
    place = places.find(ls, params.text_document.uri)
    if place is None or not _settings(ls, place).hover:
        return None
    offset = place.offset(params.position)
    found = ls.session.hover(place.uri, offset)
    if found is None or (span := place.within(found[0])) is None:
        return None
    pictured = ls.session.pictured(place.uri, offset) if ls.abilities.pictures else None
    picture = thumbnails.markdown(pictured) if pictured is not None else None
    plain, words = not ls.abilities.markdown, _words(ls, place.uri, found[1])
    return lsp.hover(words, span, place.positions, plain=plain, picture=picture)


@count_time("codeAction")
def _on_code_action(
    ls: KernelServer, params: types.CodeActionParams
) -> list[types.CodeAction | types.Command]:
    place = places.find(ls, params.text_document.uri)
    if place is None:
        return []
    items = _actions(ls, place.uri, place.span(params.range), params)
    wanted = [item for item in items if _asked_for(item.kind, params.context.only)]
    if ls.abilities.literals:
        return list(wanted)
    return [item.command for item in wanted if item.command is not None]


def _actions(
    ls: KernelServer, uri: str, where: Span, params: types.CodeActionParams
) -> list[types.CodeAction]:
    """Every action for a place of a document; an editor that asks by itself (for its light bulb)
    gets none that measures, and has been offered nothing yet."""
    invoked = params.context.trigger_kind is not types.CodeActionTriggerKind.Automatic
    offers = ls.session.actions(uri, where)
    items = [_rewrite(ls, uri, action, params, single=len(offers) == 1) for action in offers]
    items += _about(uri, offers)
    if invoked:
        ls.record(ls.session.offered(uri, offers))
        items += programs.actions(ls, uri)
        items += _optimize(ls, uri, where, offers)
    items += _fixes(ls, uri, where, params)
    return items + _silence(ls, uri, where, offers)


@count_time("codeAction/resolve")
def on_resolve(ls: KernelServer, action: types.CodeAction) -> types.CodeAction:
    """The edit, made on the text as it is now, or a refusal that says why."""
    data = action.data if isinstance(action.data, dict) else {}
    if "proposal" not in data:
        return action
    action.edit = edit_for(ls, str(data.get("uri")), str(data["proposal"]))
    return action


@count_time("codeLens")
def _on_code_lens(ls: KernelServer, params: types.CodeLensParams) -> list[types.CodeLens] | None:
    place = places.find(ls, params.text_document.uri)
    if place is None or not _settings(ls, place).code_lens:
        return None
    ls.answering(ls.session.documents[place.uri])
    return [
        lsp.lens(replace(item, span=span), place.uri, place.positions)
        for item in ls.session.lenses(place.uri)
        if (span := place.within(item.span)) is not None
    ]


@count_time("inlayHint")
def _on_inlay_hint(ls: KernelServer, params: types.InlayHintParams) -> list[types.InlayHint] | None:
    place = places.find(ls, params.text_document.uri)
    if place is None or not _settings(ls, place).inlay_hints:
        return None
    ls.answering(ls.session.documents[place.uri])
    return [
        lsp.inlay(within, text, place.positions)
        for span, text in ls.session.inlays(place.uri)
        if (within := place.within(span)) is not None
    ]


def edit_for(ls: KernelServer, uri: str, proposal: str) -> types.WorkspaceEdit:
    """The edit of a proposal on the text as it is now. Raises RequestFailed when the code is not
    what was measured."""
    ls.current(uri)
    try:
        snapshot, edits = ls.session.resolve(uri, proposal)
        return _edit(ls, snapshot, edits)
    except (KernelLspError, ValueError) as error:
        raise RequestFailed(str(error)) from error


def _edit(ls: KernelServer, snapshot: Snapshot, edits: list[TextEdit]) -> types.WorkspaceEdit:
    """Edits of a document's text; of a notebook's program as edits of its cells. Raises ValueError
    where these cannot hold them."""
    if ls.notebooks is not None and ls.notebooks.holds(snapshot.uri):
        return ls.notebooks.edit(snapshot.uri, edits)
    return lsp.workspace_edit(
        snapshot.uri,
        snapshot.version,
        edits,
        ls.positions(snapshot),
        versioned=ls.abilities.versioned,
    )


def _settings(ls: KernelServer, place: places.TextPlace) -> Settings:
    return ls.settings(ls.session.documents[place.uri].folder)


def _words(ls: KernelServer, uri: str, text: str) -> str:
    """Words about lines as the client counts them."""
    if ls.notebooks is not None and ls.notebooks.holds(uri):
        return ls.notebooks.words(uri, text)
    return text


def _rewrite(
    ls: KernelServer, uri: str, action: Action, params: types.CodeActionParams, *, single: bool
) -> types.CodeAction:
    """With an edit to be resolved where the client can, else with a command that applies it, else
    (ALE) with the edit at once: such a client takes one beside no command."""
    only = params.context.only or []
    as_fix = bool(only) and all(_within(lsp.QUICKFIX, kind) for kind in only)
    mine = [
        d for d in params.context.diagnostics if d.source == lsp.SOURCE and d.code == action.skill
    ]
    preferred = single and ls.abilities.preferred
    item = lsp.rewrite_action(
        action, kind=lsp.QUICKFIX if as_fix else lsp.REWRITE, preferred=preferred, diagnostics=mine
    )
    arguments = lsp.action_data(action, uri)
    if ls.abilities.resolve:
        item.data = arguments
        item.command = lsp.command_of("Note the choice", "kernel-lsp.chosen", arguments)
    elif ls.abilities.apply_edit or not ls.abilities.literals:
        item.command = lsp.command_of(action.title, "kernel-lsp.apply", arguments)
    else:
        with contextlib.suppress(RequestFailed):
            item.edit = edit_for(ls, uri, action.proposal)
    return item


def _fixes(
    ls: KernelServer, uri: str, where: Span, params: types.CodeActionParams
) -> list[types.CodeAction]:
    """What mends a finding, or a comment that leaves it out; with the edit at once: nothing has to
    be measured for it."""
    snapshot = ls.session.documents[uri].snapshot
    made = []
    for finding, title, edits in [
        *ls.session.fixes(uri, where),
        *ls.session.ignores(uri, where),
    ]:
        try:
            edit = _edit(ls, snapshot, edits)
        except ValueError:  # on a line that IPython alone understands
            continue
        mine = [
            d
            for d in params.context.diagnostics
            if d.source == lsp.SOURCE and d.code == finding.rule
        ]
        made.append(lsp.fix_action(f"{title} ({finding.rule})", edit, mine))
    return made


def _about(uri: str, offers: list[Action]) -> list[types.CodeAction]:
    return [
        lsp.command_action(
            f"Show evidence for {action.qualname}",
            "kernel-lsp.showEvidence",
            lsp.action_data(action, uri),
        )
        for action in offers[:1]
    ]


def _optimize(
    ls: KernelServer, uri: str, where: Span, offers: list[Action]
) -> list[types.CodeAction]:
    """For the innermost target: record a run where nobody has called it, measure it, or why
    nothing is offered; to search deeper in any case."""
    items = []
    for target in ls.session.targets(uri, where)[:1]:
        arguments = {"uri": uri, "qualname": target.qualname}
        unmeasurable = ls.session.documents[uri].unmeasurable
        if target.qualname in unmeasurable and not is_notebook(uri):  # which no command runs
            title = f"Record a run that calls {target.qualname}…"
            items.append(lsp.command_action(title, "kernel-lsp.recordRun", arguments))
        if not offers:
            items += _measure(ls, target, arguments)
        if ls.searching(uri, target.qualname):
            stop = f"Stop searching for {target.qualname}"
            items.append(
                lsp.command_action(stop, "kernel-lsp.cancel", {**arguments, "kind": "search"})
            )
        else:
            title = f"Search deeper for {target.qualname}…"
            items.append(lsp.command_action(title, "kernel-lsp.searchDeeper", arguments))
    return items


def _measure(ls: KernelServer, target: Target, arguments: Json) -> list[types.CodeAction]:
    outcome = ls.session.outcome(target.fingerprint)
    title = f"Optimize {target.qualname}" + (" again" if outcome is not None else "")
    items = []
    if outcome is not None and outcome.note and ls.abilities.disabled:
        refused = types.CodeAction(title=f"Rewrite {target.qualname}", kind=lsp.REWRITE)
        refused.disabled = types.CodeActionDisabled(reason=near_misses.briefly(outcome))
        items.append(refused)
    return [*items, lsp.command_action(title, "kernel-lsp.optimize", arguments)]


def _silence(
    ls: KernelServer, uri: str, where: Span, offers: list[Action]
) -> list[types.CodeAction]:
    """Two ways to hear no more of the first thing that is shown here."""
    document = ls.session.documents[uri]
    found: list[tuple[str | None, str, str | None]] = []
    found += [(action.qualname, action.skill, action.fingerprint) for action in offers]
    found += [
        (finding.target, finding.rule, fingerprint_of(document, finding))
        for finding in ls.session.findings(uri, where)
    ]
    if not found:
        return []
    qualname, code, fingerprint = found[0]
    name = {"fingerprint": fingerprint} if qualname is None else {"qualname": qualname}
    arguments: dict[str, Any] = {"uri": uri, **name, "code": code}
    here, never = (
        f"Dismiss {code} for {qualname or 'this line'}",
        f"Never suggest {code} in this folder",
    )
    dismiss = "kernel-lsp.dismiss"
    return [
        lsp.command_action(here, dismiss, {**arguments, "scope": "proposal"}, lsp.QUICKFIX),
        lsp.command_action(never, dismiss, {**arguments, "scope": "skill"}, lsp.QUICKFIX),
    ]


def _asked_for(kind: str | None, only: Any) -> bool:
    return not only or any(_within(kind or "", wanted) for wanted in only)


def _within(kind: str, wanted: str) -> bool:
    wanted = str(getattr(wanted, "value", wanted))
    return not wanted or kind == wanted or kind.startswith(f"{wanted}.")
