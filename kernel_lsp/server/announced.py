"""What the server announces in its answer to `initialize`, before what does it is imported.

An editor waits for this answer alone; what comes next it sends without waiting. So a server of
pygls that holds names and options answers it, and the one that serves (lifecycle.py) is made
then."""

from __future__ import annotations

from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from kernel_lsp import __version__
from kernel_lsp.server import abilities
from kernel_lsp.server.abilities import Abilities
from kernel_lsp.server.framing import FrameWriter
from kernel_lsp.server.protocol import Protocol, strict_converter

NAME = SOURCE = "kernel-lsp"
NOTEBOOKS = types.NotebookDocumentSyncOptions(
    notebook_selector=[
        types.NotebookDocumentFilterWithCells(cells=[types.NotebookCellLanguage(language="python")])
    ],
    save=True,
)
_PYTHON_FILES = types.FileOperationRegistrationOptions(
    filters=[
        types.FileOperationFilter(scheme="file", pattern=types.FileOperationPattern(glob=glob))
        for glob in ("**/*.py", "**/")
    ]
)
_ACTIONS = types.CodeActionOptions(
    code_action_kinds=["refactor.rewrite.kernel", "quickfix.kernel"], resolve_provider=True
)
_PULLS = types.DiagnosticOptions(
    identifier=SOURCE, inter_file_dependencies=False, workspace_diagnostics=True
)
ALWAYS: dict[str, Any] = {
    types.TEXT_DOCUMENT_DID_OPEN: None,
    types.TEXT_DOCUMENT_DID_CHANGE: None,
    types.TEXT_DOCUMENT_DID_SAVE: types.SaveOptions(include_text=False),
    types.TEXT_DOCUMENT_DID_CLOSE: None,
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: None,
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: None,
    types.WORKSPACE_DID_CHANGE_WATCHED_FILES: None,
    types.NOTEBOOK_DOCUMENT_DID_OPEN: None,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE: None,
    types.NOTEBOOK_DOCUMENT_DID_SAVE: None,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE: None,
    types.TEXT_DOCUMENT_CODE_ACTION: _ACTIONS,
    types.CODE_ACTION_RESOLVE: None,
    types.TEXT_DOCUMENT_HOVER: None,
    types.TEXT_DOCUMENT_CODE_LENS: None,
    types.TEXT_DOCUMENT_INLAY_HINT: None,
}
"""Method -> options. What the settings of a document's folder switch off answers nothing at once,
so that a switch counts without a restart and may differ between folders."""
WITH_PULLS: dict[str, Any] = {
    types.TEXT_DOCUMENT_DIAGNOSTIC: _PULLS,
    types.WORKSPACE_DIAGNOSTIC: None,
}
WITH_RENAMES: dict[str, Any] = {types.WORKSPACE_WILL_RENAME_FILES: _PYTHON_FILES}
COMMANDS = (
    "apply", "chosen", "optimize", "benchmark", "searchDeeper", "showPrompt", "allowRemote",
    "cancel", "status", "showEvidence", "showStatus", "showProgram", "dismiss", "listKernels",
    "entryPoints", "recordRun", "trust",
)  # fmt: skip


def features(client: Abilities) -> dict[str, Any]:
    """Method -> options, of all that this client is offered."""
    return ALWAYS | (WITH_PULLS if client.pull else {}) | (WITH_RENAMES if client.renames else {})


class _Announcement(LanguageServer):
    protocol: Protocol


def answer(initialize: Any, writer: FrameWriter) -> None:
    """Writes the answer to this message, also where that is a refusal."""
    ls = _Announcement(
        NAME,
        __version__,
        protocol_cls=Protocol,
        converter_factory=strict_converter,
        notebook_document_sync=NOTEBOOKS,
    )

    def on_initialize(params: types.InitializeParams) -> None:
        for method, options in features(abilities.of(params)).items():
            ls.feature(method, options)(_nothing)

    ls.feature(types.INITIALIZE)(on_initialize)
    for method in (types.INITIALIZED, types.SHUTDOWN):
        ls.feature(method)(_nothing)
    for name in COMMANDS:
        ls.command(f"kernel-lsp.{name}")(_nothing)
    ls.protocol.set_writer(writer)
    ls.protocol.receive(initialize)


def _nothing(*arguments: Any) -> None:
    """In the place of what serves."""
