"""An editor without a window: one client with one real server over stdio, and what its user can
see."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from lsprotocol import types
from pytest_lsp import LanguageClient, make_test_lsp_client

ROOT = Path(__file__).resolve().parents[2]
EDITORS = ("visual-studio-code@v1.65.2", "neovim@v0.7.0", "neovim@v0.11.0", "emacs@v29.1")
EXAMPLE = """import torch
from torch import nn


class Model(nn.Module):
    # the comment stays
    def forward(self, x):
        return torch.sum(x, dim=1)


def helper(x):
    return x


def get_inputs():
    return [torch.randn(4, 8)]
"""


PATIENCE_S = 120.0
"""How long a test waits for what must happen: a bound for hangs, not a claim of speed (CI may be
slow)."""


async def until(condition: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another process
            await asyncio.sleep(0.05)


@dataclass
class Editor:
    """One client with one server, and what a user can see."""

    client: LanguageClient
    folder: Path
    data_dir: Path
    result: types.InitializeResult
    texts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    questions: list[types.ShowMessageRequestParams] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """Methods that the server called on the client."""
    edits: list[types.ApplyWorkspaceEditParams] = field(default_factory=list)
    apply: Callable[[types.ApplyWorkspaceEditParams], bool] | None = None
    pulling: set[asyncio.Task[None]] = field(default_factory=set)
    unanswered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the end: until then a question without an answer stays open."""

    def open(self, name: str, text: str, version: int = 1) -> str:
        path = self.folder / name
        path.write_bytes(text.encode())
        uri = path.as_uri()
        self.texts[uri], self.versions[uri] = text, version
        item = types.TextDocumentItem(uri=uri, language_id="python", version=version, text=text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(text_document=item))
        self.pull(uri)
        return uri

    def pull(self, uri: str) -> None:
        """Ask for diagnostics, as editors do that announce it and are offered it."""
        if self.result.capabilities.diagnostic_provider is not None:
            task = asyncio.ensure_future(self._pull(uri))
            self.pulling.add(task)
            task.add_done_callback(self.pulling.discard)

    async def _pull(self, uri: str) -> None:
        document = types.TextDocumentIdentifier(uri=uri)
        with contextlib.suppress(Exception):  # the server has ended meanwhile
            found = await self.client.text_document_diagnostic_async(
                types.DocumentDiagnosticParams(text_document=document)
            )
            assert isinstance(found, types.RelatedFullDocumentDiagnosticReport)
            self.client.diagnostics[uri] = found.items

    def change(self, uri: str, text: str) -> None:
        """The whole text, as a client may always send it."""
        self.texts[uri], self.versions[uri] = text, self.versions[uri] + 1
        whole = types.TextDocumentContentChangeWholeDocument(text=text)
        document = types.VersionedTextDocumentIdentifier(uri=uri, version=self.versions[uri])
        params = types.DidChangeTextDocumentParams(text_document=document, content_changes=[whole])
        self.client.text_document_did_change(params)
        self.pull(uri)

    def save(self, uri: str) -> None:
        Path(uri.removeprefix("file://")).write_bytes(self.texts[uri].encode())
        document = types.TextDocumentIdentifier(uri=uri)
        self.client.text_document_did_save(types.DidSaveTextDocumentParams(text_document=document))

    async def actions(
        self, uri: str, needle: str = "class Model", **context: Any
    ) -> list[types.CodeAction]:
        line = self.texts[uri][: self.texts[uri].index(needle)].count("\n")
        at = types.Position(line=line, character=2)
        context.setdefault("trigger_kind", types.CodeActionTriggerKind.Invoked)
        found = await self.client.text_document_code_action_async(
            types.CodeActionParams(
                text_document=types.TextDocumentIdentifier(uri=uri),
                range=types.Range(start=at, end=at),
                context=types.CodeActionContext(diagnostics=[], **context),
            )
        )
        return [action for action in found or [] if isinstance(action, types.CodeAction)]

    async def rewrite(self, uri: str, seconds: float = PATIENCE_S) -> types.CodeAction:
        """The rewrite that is offered, once it is."""
        async with asyncio.timeout(seconds):
            while True:
                for action in await self.actions(uri):
                    if action.title.startswith("Rewrite ") and not action.disabled:
                        return action
                await asyncio.sleep(0.1)

    async def take(self, uri: str, action: types.CodeAction) -> str:
        """Apply a rewrite the way this editor would; returns the text afterwards."""
        encoding = str(self.result.capabilities.position_encoding or "utf-16")
        assert action.command is not None
        if action.data is None:  # Emacs: the server asks for the edit
            await self.command("apply", **action.command.arguments[0])
            self.change(uri, apply_edit(self.texts[uri], self.edits[-1].edit, uri, encoding))
        else:
            resolved = await self.client.code_action_resolve_async(action)
            assert resolved.edit is not None
            self.change(uri, apply_edit(self.texts[uri], resolved.edit, uri, encoding))
            await self.command("chosen", **action.command.arguments[0])
        return self.texts[uri]

    async def command(self, name: str, **arguments: Any) -> Any:
        params = types.ExecuteCommandParams(command=f"kernel-lsp.{name}", arguments=[arguments])
        return await self.client.workspace_execute_command_async(params)

    async def hint(
        self, uri: str, words: str = "verified", seconds: float = PATIENCE_S
    ) -> types.Diagnostic:
        async with asyncio.timeout(seconds):
            while True:
                for diagnostic in self.client.diagnostics.get(uri, ()):
                    if words in diagnostic.message:
                        return diagnostic
                await asyncio.sleep(0.05)

    async def jobs(self, *expected: str) -> None:
        """Until the server has these jobs and no others: what ended them is told before they are
        gone."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.command("status"))["jobs"] != [*expected]:  # noqa: ASYNC110 - in the server
                await asyncio.sleep(0.05)

    def events(self) -> list[dict[str, Any]]:
        """What the fault host wrote down."""
        with contextlib.suppress(FileNotFoundError):
            return [
                json.loads(line)
                for line in (self.data_dir / "events.jsonl").read_text().splitlines()
            ]
        return []

    async def event(self, kind: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            while True:
                for event in self.events():
                    if event["kind"] == kind:
                        return event
                await asyncio.sleep(0.05)

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events()]

    @property
    def server_pid(self) -> int:
        assert self.client._server is not None
        return self.client._server.pid


Launch = Callable[..., Any]
Answering = str | list[str] | None
"""To every question, or to one after the other (the last one again); None: never."""


def make_client() -> LanguageClient:
    """lsprotocol takes every code action with a command for a bare command; an editor looks at its
    type."""
    client = make_test_lsp_client()
    converter = client.protocol._converter

    def structure(value: dict[str, Any], _: Any) -> types.Command | types.CodeAction:
        kind = types.Command if isinstance(value.get("command"), str) else types.CodeAction
        return converter.structure(value, kind)

    converter.register_structure_hook(types.Command | types.CodeAction, structure)
    converter.register_structure_hook(Union[types.Command, types.CodeAction], structure)  # noqa: UP007
    return client


def listen(session: Editor, answer: Answering) -> None:
    client = session.client
    answers = answer if isinstance(answer, list) else None

    @client.feature(types.WINDOW_SHOW_MESSAGE_REQUEST)
    async def on_question(params: types.ShowMessageRequestParams) -> types.MessageActionItem | None:
        session.questions.append(params)
        if answer is None:
            await session.unanswered.wait()
        title = answers[min(len(session.questions), len(answers)) - 1] if answers else answer
        return None if title is None else types.MessageActionItem(title=str(title))

    @client.feature(types.WORKSPACE_APPLY_EDIT)
    def on_apply(params: types.ApplyWorkspaceEditParams) -> types.ApplyWorkspaceEditResult:
        session.edits.append(params)
        applied = session.apply(params) if session.apply else True
        return types.ApplyWorkspaceEditResult(applied=applied)

    @client.feature(types.WORKSPACE_CODE_LENS_REFRESH)
    def on_lens_refresh(*_: Any) -> None:
        session.requests.append(types.WORKSPACE_CODE_LENS_REFRESH)

    # pytest-lsp's own does nothing
    client.protocol.fm._features.pop(types.WORKSPACE_DIAGNOSTIC_REFRESH, None)

    @client.feature(types.WORKSPACE_DIAGNOSTIC_REFRESH)
    def on_diagnostic_refresh(*_: Any) -> None:
        for uri in session.texts:
            session.pull(uri)

    @client.feature(types.CLIENT_REGISTER_CAPABILITY)
    def on_register(params: types.RegistrationParams) -> None:
        session.requests.append(types.CLIENT_REGISTER_CAPABILITY)


def apply_edit(text: str, edit: types.WorkspaceEdit, uri: str, encoding: str) -> str:
    """What an editor does with our edit; independent of the server's own position code."""
    if edit.document_changes:
        changes = edit.document_changes[0].edits
    else:
        assert edit.changes is not None
        changes = edit.changes[uri]

    def offset(position: types.Position) -> int:
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        at = 0
        for line in lines[: position.line]:
            at += len(line)
            at += 2 if text.startswith("\r\n", at) else 1
        codec, unit = {
            "utf-8": ("utf-8", 1),
            "utf-16": ("utf-16-le", 2),
            "utf-32": ("utf-32-le", 4),
        }[encoding]
        rest = lines[position.line].encode(codec)[: position.character * unit]
        return at + len(rest.decode(codec))

    for change in sorted(
        changes, key=lambda c: (c.range.start.line, c.range.start.character), reverse=True
    ):
        text = (
            text[: offset(change.range.start)] + change.new_text + text[offset(change.range.end) :]
        )
    return text
