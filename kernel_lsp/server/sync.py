"""What the client and the disk tell us: documents, folders, settings. Each handler is instant."""

from __future__ import annotations

import asyncio
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from kernel_lsp import documents, positions
from kernel_lsp.records import Snapshot
from kernel_lsp.server.announced import ALWAYS
from kernel_lsp.server.app import KernelServer, log
from kernel_lsp.server.protocol import edit_of
from kernel_lsp.session import How

if TYPE_CHECKING:
    from kernel_lsp.server.cells import Notebooks

SECTION = "kernel-lsp"
TICK_S = 1.0
WATCH_AFTER_S = 0.3


def register(ls: KernelServer) -> None:
    """Adds the notifications about documents, folders, settings and files."""
    ls.on_disk = lambda paths: on_disk(ls, paths)
    ls.feature(types.TEXT_DOCUMENT_DID_OPEN)(_on_open)
    ls.feature(types.TEXT_DOCUMENT_DID_CHANGE)(_on_change)
    ls.feature(types.TEXT_DOCUMENT_DID_SAVE, ALWAYS[types.TEXT_DOCUMENT_DID_SAVE])(_on_save)
    ls.feature(types.TEXT_DOCUMENT_DID_CLOSE)(on_close)
    ls.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)(_on_configuration)
    ls.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)(on_folders)
    ls.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)(_on_watched)
    register_notebooks(ls)


def register_notebooks(ls: KernelServer) -> None:
    """What only notebooks need is imported with the first one: nobody else's start waits for it."""

    @functools.cache
    def open_ones() -> Notebooks:
        from kernel_lsp.server.cells import Notebooks

        return Notebooks(ls)

    def on_notebook_open(ls: KernelServer, params: types.DidOpenNotebookDocumentParams) -> None:
        uri = params.notebook_document.uri
        open_ones().open(uri)
        if (document := ls.session.documents.get(uri)) is not None:
            folder = Path(document.folder)
            watch_soon(ls, [folder, (folder / document.path).parent])

    def on_notebook_change(ls: KernelServer, params: types.DidChangeNotebookDocumentParams) -> None:
        open_ones().change(params.notebook_document.uri)

    def on_notebook_save(ls: KernelServer, params: types.DidSaveNotebookDocumentParams) -> None:
        _saved(ls, params.notebook_document.uri)

    def on_notebook_close(ls: KernelServer, params: types.DidCloseNotebookDocumentParams) -> None:
        uri = params.notebook_document.uri
        open_ones().close(uri)
        _closed(ls, uri)

    ls.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)(on_notebook_open)
    ls.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)(on_notebook_change)
    ls.feature(types.NOTEBOOK_DOCUMENT_DID_SAVE)(on_notebook_save)
    ls.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)(on_notebook_close)


async def on_initialized(ls: KernelServer, params: types.InitializedParams) -> None:
    """Begins what takes time: watching files, asking for settings."""
    ls.spawn(_tick(ls))
    if ls.abilities.watched_files:
        ls.spawn(_register_watchers(ls))
    if ls.abilities.configuration:
        await _fetch_settings(ls)
    watch_soon(ls, [Path(root) for root in ls.roots()])
    ls.set_status("ok", None)


def _on_open(ls: KernelServer, params: types.DidOpenTextDocumentParams) -> None:
    item = params.text_document
    python = item.language_id == "python" or item.uri.endswith(".py")
    if not python or not documents.is_wanted(item.uri, item.text):
        _forget(ls, item.uri)  # it may have been Python before
        return
    folder, path = ls.place(item.uri)
    ls.settings(folder)
    ls.session.open(Snapshot(uri=item.uri, text=item.text, version=item.version), folder, path)
    ls.schedule(item.uri, delay_s=0.0, how="open")
    watch_soon(ls, [Path(folder), (Path(folder) / path).parent])


def _on_change(ls: KernelServer, params: types.DidChangeTextDocumentParams) -> None:
    uri = params.text_document.uri
    if uri not in ls.session.documents:
        return
    text = ls.session.documents[uri].snapshot.text
    changes = [edit_of(change) for change in params.content_changes]
    text = positions.apply_edits(text, ls.position_encoding, changes)
    if documents.is_too_long(text):
        _forget(ls, uri)
        return
    ls.session.change(Snapshot(uri=uri, text=text, version=params.text_document.version))
    ls.schedule(uri)


def _forget(ls: KernelServer, uri: str) -> None:
    if uri in ls.session.documents:
        ls.withdraw(uri)
        ls.session.close(uri)


def _on_save(ls: KernelServer, params: types.DidSaveTextDocumentParams) -> None:
    _saved(ls, params.text_document.uri)


def _saved(ls: KernelServer, uri: str) -> None:
    document = ls.session.documents.get(uri)
    if document is None:
        return
    if document.current:
        ls.record(ls.session.observe(uri, "save"))
    else:
        ls.schedule(uri, how="save")


def on_close(ls: KernelServer, params: types.DidCloseTextDocumentParams) -> None:
    """From here on the disk is the truth, so look there once."""
    _closed(ls, params.text_document.uri)


def _closed(ls: KernelServer, uri: str) -> None:
    document = ls.session.documents.get(uri)
    ls.withdraw(uri)
    if document is not None:
        ls.session.close(uri)
        ls.note_change()
        ls.spawn(_look_at_disk(ls, document.folder, document.path, "close"))


async def _on_configuration(ls: KernelServer, params: types.DidChangeConfigurationParams) -> None:
    if ls.abilities.configuration:
        await _fetch_settings(ls)
        return
    if isinstance(params.settings, dict):
        section = params.settings.get(SECTION, params.settings)
        ls.editor_settings = section if isinstance(section, dict) else {}
    ls.reconfigure_all()


async def on_folders(ls: KernelServer, params: types.DidChangeWorkspaceFoldersParams) -> None:
    """Documents may belong to another root now, and a new root may have settings of its own."""
    if ls.abilities.configuration:
        await _fetch_settings(ls)
    for uri, document in ls.session.documents.items():
        document.folder, document.path = ls.place(uri)
        ls.settings(document.folder)
        ls.schedule(uri)
    watch_soon(ls, [Path(root) for root in ls.roots()])


def _on_watched(ls: KernelServer, params: types.DidChangeWatchedFilesParams) -> None:
    paths = [documents.path_of(change.uri) for change in params.changes]
    on_disk(ls, frozenset(path for path in paths if path is not None))


def on_disk(ls: KernelServer, paths: frozenset[Path]) -> None:
    """git checkout, a formatter: reported by the client or seen by our own watch."""
    if any(path.name == "pyproject.toml" for path in paths):
        ls.reconfigure_all()
    if any(path.suffix == ".toml" and ".kernel-lsp" in path.parts for path in paths):
        for uri in ls.session.documents:
            ls.schedule(uri)  # another workload
    ls.note_change()
    for path in paths:
        folder, relative = ls.place(path.as_uri())
        if path.suffix == ".py":
            ls.spawn(_look_at_disk(ls, folder, relative, "disk"))


async def _look_at_disk(ls: KernelServer, folder: str, path: str, how: How) -> None:
    file = Path(folder) / path
    snapshot = await ls.off_loop(documents.read, file.as_uri(), folder)
    if snapshot is None and await ls.off_loop(os.path.exists, file):
        ls.session.unreadable(folder, path, how)
        return
    text = None if snapshot is None else snapshot.text
    ls.record(ls.session.observe_text(folder, path, text, how))


async def _fetch_settings(ls: KernelServer) -> None:
    """Of the client, and of each workspace folder, which may have others."""
    roots = ls.roots()
    scopes = [None, *(Path(root).as_uri() for root in roots)]
    items = [types.ConfigurationItem(section=SECTION, scope_uri=scope) for scope in scopes]
    try:
        reply = await asyncio.wait_for(
            ls.workspace_configuration_async(types.ConfigurationParams(items=items)), 5.0
        )
    except Exception as error:  # a client may refuse in any way; its other settings still hold
        log.warning("the editor gave no settings: %s", error)
        return
    tables = [one if isinstance(one, dict) else {} for one in reply or []]
    before = ls.editor_settings, ls.folder_settings
    if tables:
        ls.editor_settings = {**ls.editor_settings, **tables[0]}
        ls.folder_settings = {
            root: one for root, one in zip(roots, tables[1:], strict=False) if one
        }
    if before != (ls.editor_settings, ls.folder_settings):
        ls.reconfigure_all()


async def _register_watchers(ls: KernelServer) -> None:
    watchers = [
        types.FileSystemWatcher(glob_pattern=pattern)
        for pattern in ("**/*.py", "**/pyproject.toml", "**/SKILL.md", "**/.kernel-lsp/*.toml")
    ]
    registration = types.Registration(
        id="kernel-lsp.watch",
        method=types.WORKSPACE_DID_CHANGE_WATCHED_FILES,
        register_options=types.DidChangeWatchedFilesRegistrationOptions(watchers=watchers),
    )
    try:
        await ls.client_register_capability_async(
            types.RegistrationParams(registrations=[registration])
        )
    except Exception as error:  # our own watch sees the same files
        log.info("the client does not watch files for us: %s", error)


def watch_soon(ls: KernelServer, folders: list[Path]) -> None:
    """Once for all folders of documents that are opened together: an editor that restores a session
    opens hundreds, and each round reads settings and asks the disk."""
    if not ls.folders_to_watch:
        ls.spawn(_watch(ls))
    ls.folders_to_watch.update(dict.fromkeys(folders))


async def _watch(ls: KernelServer) -> None:
    """Off the loop: adding a watch reads folders, which may lie on a slow disk. Hints go first."""
    await asyncio.sleep(WATCH_AFTER_S)
    folders, ls.folders_to_watch = list(ls.folders_to_watch), {}
    roots = set(ls.roots())
    skills: list[Path] = []
    for folder in folders:
        chosen = ls.settings(str(folder)).skill_folders if str(folder) in roots else ()
        skills += [folder / name for name in chosen]
    problems: list[Any] = await asyncio.to_thread(ls.watch.add, folders)
    workload_folders = [folder / ".kernel-lsp" for folder in folders]
    problems += await asyncio.to_thread(
        lambda: ls.watch.add([*skills, *workload_folders], recursive=True)
    )
    for problem in problems:
        ls.say(problem, types.MessageType.Warning)
    if any(ls.are_stale(str(folder)) for folder in folders):
        ls.reconfigure_all()  # changed between the first look and the watch


async def _tick(ls: KernelServer) -> None:
    """Choices whose proof never came become refusals."""
    while True:
        await asyncio.sleep(TICK_S)
        if ls.session.tracker.waiting:
            ls.record(ls.session.tick())
