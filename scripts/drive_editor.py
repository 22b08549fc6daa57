"""Drive ``kernel-lsp serve`` once, as a person would: python scripts/drive_editor.py [FILE]

Opens a copy of the file in Neovim with our plugin (tests/e2e/neovim_story.lua) or, where Neovim is
not installed, in a client of pygls; allows the measurement, waits for the verified hint, applies
the rewrite, undoes it, and prints what a person would have seen and what the journal kept. Exit
code 1: no such hint."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lsprotocol import types  # noqa: E402 - the checkout first, whatever is installed
from pygls.lsp.client import LanguageClient  # noqa: E402

from kernel_lsp.journal import open_journal  # noqa: E402
from kernel_lsp.positions import LineIndex  # noqa: E402

PATIENCE_S = 150
SERVE = [sys.executable, "-m", "kernel_lsp", "serve"]
WORDS = {
    "ASKED": "asked   ",
    "HINT": "hint    ",
    "CHOSE": "chosen  ",
    "DIFF": "diff    ",
    "UNDONE": "undone  ",
}


_SETTINGS = """vim.opt.runtimepath:append([[{plugin}]])
require('kernel_lsp').setup({{ cmd = {{ [[{python}]], '-m', 'kernel_lsp', 'serve' }} }})
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", type=Path, nargs="?", default=ROOT / "examples" / "diagonal_matmul.py"
    )
    parser.add_argument("--no-nvim", action="store_true", help="use the client of pygls")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-demo-") as name:
        folder = Path(name)
        data = Path(os.environ.get("KERNEL_LSP_DATA_DIR") or folder / "data")
        copy = folder / "project" / arguments.file.name
        copy.parent.mkdir()
        shutil.copy(arguments.file, copy)
        nvim = None if arguments.no_nvim else shutil.which("nvim")
        started = time.monotonic()
        print(
            f"opened   a copy of {arguments.file} in "
            f"{_version(nvim) if nvim else 'a client of pygls'}"
        )
        steps = _neovim(nvim, copy, data) if nvim else asyncio.run(_client(copy, data))
        done = _print_steps(steps, arguments.file.read_text(), folder / "after.py")
        _print_events(data, copy.parent)
        print(f"took     {time.monotonic() - started:.0f} s, measurement included")
    sys.exit(0 if done else 1)


def _version(nvim: str) -> str:
    said = subprocess.run([nvim, "--version"], capture_output=True, text=True, check=False).stdout
    return f"{said.splitlines()[0] if said else 'Neovim'}, without a screen"


def _neovim(nvim: str, file: Path, data: Path) -> list[str]:
    environment = {
        **os.environ,
        "KERNEL_LSP_DATA_DIR": str(data),
        "KL_SHORT": "yes",
        "KL_AFTER": str(file.parent.parent / "after.py"),
        "KL_PATIENCE_MS": str(PATIENCE_S * 1000),
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(file.parent.parent / "state"),
    }
    settings = file.parent.parent / "init.lua"
    settings.write_text(
        _SETTINGS.format(plugin=ROOT / "editor-clients" / "neovim", python=sys.executable)
    )
    story = f"luafile {ROOT}/tests/e2e/neovim_story.lua"
    command = [nvim, "--headless", "-u", str(settings), "-i", "NONE", "-n", str(file), "-c", story]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + 60,
        check=False,
    )
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _print_steps(steps: list[str], before: str, after: Path) -> bool:
    """The steps in words, the changed lines where the rewrite went in; True when all were done."""
    for step in steps:
        word, _, rest = step.partition(" ")
        if word == "APPLIED" and after.exists():
            _print_changes(before, after.read_text())
        elif word in WORDS:
            print(f"{WORDS[word]} {rest or 'the text is what it was'}")
        elif word != "DONE":
            print(f"stopped  {step}")
    return steps[-1:] == ["DONE"]


def _print_changes(before: str, after: str) -> None:
    changes = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[
        2:
    ]
    lines = [line for line in changes if not line.startswith("@@")]
    print(f"applied  {len(lines)} changed lines")
    print("\n".join(f"         {line}" for line in lines))


def _print_events(data: Path, folder: Path) -> None:
    with open_journal(data) as journal:
        sessions = journal.sessions(folder=str(folder))
        events = [event for session in sessions for event in journal.session(session.id)[1]]
    kinds = [event.kind.value for event in sorted(events, key=lambda event: event.time)]
    print(f"journal  {', '.join(kinds) or 'empty'}")


class _Editor:
    """The least that an editor does."""

    def __init__(self, file: Path) -> None:
        self.uri, self.text, self.version = file.as_uri(), file.read_text(), 1
        self.hints: list[types.Diagnostic] = []
        self.steps: list[str] = []
        self.client = LanguageClient("kernel-lsp-demo", "1")
        self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(self._on_hints)
        self.client.feature(types.WINDOW_SHOW_MESSAGE_REQUEST)(self._on_question)

    def _on_hints(self, params: types.PublishDiagnosticsParams) -> None:
        self.hints = list(params.diagnostics)

    def _on_question(
        self, params: types.ShowMessageRequestParams
    ) -> types.MessageActionItem | None:
        self.steps.append(f"ASKED {params.message}")
        return params.actions[0] if params.actions else None

    def verified(self) -> types.Diagnostic | None:
        return next((hint for hint in self.hints if "verified" in hint.message), None)

    async def until(self, condition: Any, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - what is awaited happens in another process
                await asyncio.sleep(0.1)

    def open(self) -> None:
        item = types.TextDocumentItem(
            uri=self.uri, language_id="python", version=self.version, text=self.text
        )
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(text_document=item))

    def change(self, text: str) -> None:
        self.text, self.version = text, self.version + 1
        document = types.VersionedTextDocumentIdentifier(uri=self.uri, version=self.version)
        whole = types.TextDocumentContentChangeWholeDocument(text=text)
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(text_document=document, content_changes=[whole])
        )

    async def choose(self, hint: types.Diagnostic) -> types.CodeAction:
        """The first rewrite offered there, with its edit."""
        found = await self.client.text_document_code_action_async(
            types.CodeActionParams(
                text_document=types.TextDocumentIdentifier(uri=self.uri),
                range=hint.range,
                context=types.CodeActionContext(
                    diagnostics=[], trigger_kind=types.CodeActionTriggerKind.Invoked
                ),
            )
        )
        rewrites = [
            a
            for a in found or []
            if a.title.startswith("Rewrite ") and not getattr(a, "disabled", None)
        ]
        chosen = rewrites[0]
        # lsprotocol takes a code action with a command for a bare command; its arguments say the
        # rest.
        command = chosen.command if isinstance(chosen.command, types.Command) else chosen
        data = (command.arguments or [None])[0]
        action = types.CodeAction(title=chosen.title, data=data)
        return await self.client.code_action_resolve_async(action)


async def _client(file: Path, data: Path) -> list[str]:
    editor = _Editor(file)
    try:
        await _session(editor, file, data)
    except TimeoutError:
        editor.steps.append(
            f"NO HINT within {PATIENCE_S} s: {[hint.message for hint in editor.hints]}"
        )
    await asyncio.wait_for(editor.client.shutdown_async(None), 10)
    editor.client.exit(None)
    await editor.client.stop()
    return editor.steps


async def _session(editor: _Editor, file: Path, data: Path) -> None:
    client, before = editor.client, editor.text
    environment = {**os.environ, "KERNEL_LSP_DATA_DIR": str(data), "PYTHONPATH": str(ROOT)}
    await client.start_io(*SERVE, env=environment)
    await client.initialize_async(
        types.InitializeParams(capabilities=_CAPABILITIES, root_uri=file.parent.as_uri())
    )
    client.initialized(types.InitializedParams())
    editor.open()
    await editor.until(editor.verified, PATIENCE_S)
    hint = editor.verified()
    assert hint is not None
    action = await editor.choose(hint)
    editor.steps += [f"HINT {hint.message}", f"CHOSE {action.title}", "APPLIED"]
    editor.change(_applied(editor.text, action.edit))
    (file.parent.parent / "after.py").write_text(editor.text)
    await client.workspace_execute_command_async(
        types.ExecuteCommandParams(command="kernel-lsp.chosen", arguments=[action.data])
    )
    await editor.until(lambda: not editor.verified(), 10)
    editor.change(before)
    await editor.until(editor.verified, 10)
    editor.steps += ["UNDONE", "DONE"]
    await asyncio.sleep(1.0)


_CAPABILITIES = types.ClientCapabilities(
    text_document=types.TextDocumentClientCapabilities(
        code_action=types.CodeActionClientCapabilities(
            data_support=True,
            resolve_support=types.ClientCodeActionResolveOptions(properties=["edit"]),
            code_action_literal_support=types.ClientCodeActionLiteralOptions(
                code_action_kind=types.ClientCodeActionKindOptions(value_set=["refactor.rewrite"])
            ),
        )
    )
)


def _applied(text: str, edit: types.WorkspaceEdit | None) -> str:
    assert edit is not None
    assert edit.changes is not None  # without documentChanges among the capabilities
    positions = LineIndex(text, "utf-16")
    changes = [change for edits in edit.changes.values() for change in edits]
    for change in sorted(
        changes, key=lambda c: (c.range.start.line, c.range.start.character), reverse=True
    ):
        start = positions.offset(change.range.start.line, change.range.start.character)
        end = positions.offset(change.range.end.line, change.range.end.character)
        text = text[:start] + change.new_text + text[end:]
    return text


if __name__ == "__main__":
    main()
