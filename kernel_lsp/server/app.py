"""What one server holds, and the way from a changed text to published hints.

Analysis runs on a thread of its own, never in pygls's pool: the reader of stdin lives there, and
with that pool full the server is deaf."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from kernel_lsp import __version__, config, documents, session, wire
from kernel_lsp.config import Settings
from kernel_lsp.consent import ConsentAnswer, Consents
from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.hostclient import HostClient
from kernel_lsp.positions import LineIndex
from kernel_lsp.presenter import lsp
from kernel_lsp.presenter.items import Hint
from kernel_lsp.records import Event, Job, Snapshot, Target
from kernel_lsp.server.abilities import Abilities
from kernel_lsp.server.announced import NAME, NOTEBOOKS
from kernel_lsp.server.opened import OpenNotebooks
from kernel_lsp.server.protocol import Protocol, strict_converter
from kernel_lsp.session import Dismissal, Document, EditorSession, How

log = logging.getLogger("kernel_lsp")
F = TypeVar("F", bound=Callable[..., Any])
DEBOUNCE_S, MAX_DEBOUNCE_S = 0.05, 0.5
MAX_AT_ONCE, WAITING_S = 20, 0.002
"""Of documents that wait for their analysis; each one more delays the next by so much. An editor
that opens thousands at once is answered between them: 10,000 held a hover up for 16 s."""
KEEP_S = 1.0
SETTLE_S = 1.0
MAX_WORKLOAD_TARGETS = 40
"""Per file; a file with more is a library, whose targets are measured on request."""
BUCKETS_MS = (10, 50, 100, 200, 500)
"""Of the latency counts in kernel-lsp.status; gopls counts in the same ones."""


class KernelServer(LanguageServer):
    """One client's server."""

    protocol: Protocol

    def __init__(self) -> None:
        super().__init__(
            NAME,
            __version__,
            protocol_cls=Protocol,
            converter_factory=strict_converter,
            max_workers=2,
            notebook_document_sync=NOTEBOOKS,
        )
        self.abilities = Abilities()
        self.session = EditorSession()
        self.editor_settings: dict[str, Any] = {}
        self.folder_settings: dict[str, dict[str, Any]] = {}
        """What the editor says of single workspace folders, over `editor_settings`."""
        self.trusted = True
        """False when the editor says that the user does not trust the workspace."""
        self.consents = Consents(config.default_data_dir())
        self.host = HostClient(config.default_data_dir())
        self.watch = documents.DiskWatch(self._disk_changed)
        self.folders_to_watch: dict[Path, None] = {}
        """Of documents that were opened a moment ago."""
        self.on_disk: Callable[[frozenset[Path]], None] = lambda paths: None
        self.notebooks: OpenNotebooks | None = None
        """None until a client has opened one."""
        self.on_analyzed: Callable[[str], None] = lambda uri: None
        self.searching: Callable[[str, str], bool] = lambda uri, qualname: False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.latencies: Counter[str] = Counter()
        self._cpu = ThreadPoolExecutor(1, "analysis")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pending: dict[str, asyncio.Task[Any]] = {}
        self._how: dict[str, How] = {}
        self._took_s: dict[str, float] = {}
        """By document: its last analysis, from the request to the result."""
        self._published: dict[str, list[types.Diagnostic]] = {}
        self.wake_pulls: Callable[[], None] | None = None
        """Answers whoever waits for news of the workspace; None: the client does not ask."""
        self._pulled: dict[str, Snapshot] = {}
        """By document: the text that the client has asked about last."""
        self._refreshing: asyncio.Task[Any] | None = None
        self._positions: tuple[Snapshot, LineIndex] | None = None
        self._answered_early: set[str] = set()
        """Documents whose lenses were asked for before their text was analyzed."""
        self._asked: set[str] = set()
        self._noticed_before: set[str] = set()
        self._keeping: asyncio.Task[Any] | None = None
        self._known_folders: set[str] = set()
        self._status: tuple[str, str | None] | None = None

    def report_server_error(self, error: Exception, source: Any) -> None:
        """pygls's own version opens a pop-up for each."""
        log.error("%s: %s", getattr(source, "__name__", source), error)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something that outlives the request that started it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error)

    async def off_loop(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """The result of ``work``, done on the thread for analysis while the loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self._cpu, work, *arguments)

    # --- folders and settings ----------------------------------------------------------------

    def start(
        self, abilities: Abilities, editor_settings: dict[str, Any], *, trusted: bool
    ) -> None:
        """Begins to serve, once the client has introduced itself."""
        self.abilities, self.editor_settings, self.trusted = abilities, editor_settings, trusted
        self.session = EditorSession(client=abilities.name, name=uuid.uuid4().hex)
        data_dir = self.settings(self.root).data_dir
        self.consents = Consents(data_dir)
        module = os.environ.get("KERNEL_LSP_HOST", "kernel_lsp.host")  # tests inject faults here
        self.host = HostClient(data_dir, client=abilities.name, notice=self._noticed, module=module)

    @property
    def root(self) -> str:
        """The folder that counts where no document says otherwise."""
        roots = self.roots()
        return roots[0] if roots else str(Path.cwd())

    def roots(self) -> list[str]:
        """The paths of the workspace's folders, each once; those that are no files are left out.

        So is a bare root that holds the home directory: Kate names it where it knows no project,
        and who allows code of one folder to run has not allowed it for all that they have.
        """
        paths = [documents.path_of(uri) for uri in self.workspace.folders]
        root = documents.path_of(self.workspace.root_uri) if self.workspace.root_uri else None
        if root is not None and not Path.home().is_relative_to(root):
            paths.append(root)
        return list(dict.fromkeys(str(path) for path in paths if path is not None))

    def place(self, uri: str) -> tuple[str, str]:
        """(folder, path relative to it) of a document: the innermost workspace folder, or its
        own."""
        path = documents.path_of(uri)
        if path is None:
            return self.root, f"{uri.rpartition('/')[2].rpartition(':')[2]}.py"
        for root in sorted(self.roots(), key=len, reverse=True):
            if path.is_relative_to(root):
                return root, str(path.relative_to(root))
        return str(path.parent), path.name

    def settings(self, folder: str) -> Settings:
        """The settings of a folder; read when it is first asked for."""
        if folder not in self._known_folders:
            self._reconfigure(folder)
        return self.session.settings(folder)

    def are_stale(self, folder: str) -> bool:
        """Whether the folder's settings are others by now than what counts."""
        return folder in self._known_folders and self._load(folder)[0] != self.session.settings(
            folder
        )

    def _load(self, folder: str) -> tuple[Settings, list[ConfigError]]:
        return config.load(
            folder, editor={**self.editor_settings, **self.folder_settings.get(folder, {})}
        )

    def _reconfigure(self, folder: str) -> None:
        self._known_folders.add(folder)
        settings, problems = self._load(folder)
        self.session.configure(folder, settings)
        for problem in problems:
            self.say(f"{folder}: {problem}", types.MessageType.Warning)

    def reconfigure_all(self) -> None:
        """Reads the settings of all known folders anew and shows every document by them."""
        for folder in self._known_folders:
            self._reconfigure(folder)
        for uri in self.session.documents:
            self.publish(uri)
        self.note_change()
        self._ask_again()

    def note_change(self) -> None:
        """What the workspace's files hold, or what is reported of them, may be another now."""
        if self.wake_pulls is not None:
            self.wake_pulls()

    # --- from text to hints ------------------------------------------------------------------

    def schedule(self, uri: str, *, delay_s: float = DEBOUNCE_S, how: How = "change") -> None:
        """Analyze soon; a burst of changes is analyzed once, also where an analysis takes longer
        than the pause between two keys: there each key would cost one, on cores that the editor
        needs."""
        if delay_s:
            delay_s = max(delay_s, min(self._took_s.get(uri, 0.0), MAX_DEBOUNCE_S))
        delay_s = max(delay_s, WAITING_S * (len(self._pending) - MAX_AT_ONCE))
        if self._how.get(uri) != "save":  # a save says more than the changes around it
            self._how[uri] = how
        if (earlier := self._pending.pop(uri, None)) is not None:
            earlier.cancel()
        self._pending[uri] = self.spawn(self._analyze_later(uri, delay_s))

    async def _analyze_later(self, uri: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        document = self.current(uri)
        if document is None:
            return
        snapshot, begin = document.snapshot, time.monotonic()
        found = await self.off_loop(session.examine, snapshot)
        self._took_s[uri] = time.monotonic() - begin
        self._pending.pop(uri, None)
        for failure in found.failures:
            self._noticed(f"{document.path}: {failure}")
        if self.session.analyzed(snapshot, found):
            how = self._how.pop(uri, "change")
            self.record(self.session.observe(uri, how, settled=how != "change"))
            self.publish(uri)
            if uri in self._answered_early:
                self._answered_early.remove(uri)
                self._ask_again()
            self.spawn(self._after_analysis(uri, snapshot))
            self.spawn(self._settle(uri, snapshot))

    def current(self, uri: str) -> Document | None:
        """The open document of that name, with the text that the client has now; None: there is
        none."""
        if self.notebooks is not None:
            self.notebooks.refresh(uri)
        return self.session.documents.get(uri)

    async def _settle(self, uri: str, snapshot: Snapshot) -> None:
        """A text that stays is what the user meant."""
        await asyncio.sleep(SETTLE_S)
        document = self.session.documents.get(uri)
        if document is not None and document.snapshot is snapshot:
            self.record(self.session.observe(uri, "change"))

    async def _after_analysis(self, uri: str, snapshot: Snapshot) -> None:
        """What hints need not wait for: workloads, which read files, and earlier verdicts."""
        document = self.session.documents.get(uri)
        if document is None or not await self._find_workloads(document, snapshot):
            return
        self.publish(uri)
        await self._recall(uri)
        if document.snapshot is snapshot and self._is_open(document):
            self.on_analyzed(uri)

    def _is_open(self, document: Document) -> bool:
        """Whether it is still this document that the editor shows; what waits must ask again."""
        return self.session.documents.get(document.snapshot.uri) is document

    async def _find_workloads(self, document: Document, snapshot: Snapshot) -> bool:
        """Target by target, so that a newer text is never kept waiting. False: there is one."""
        having: set[str] = set()
        missing: set[str] = set()
        before = document.unmeasurable
        data_dir = str(self.settings(document.folder).data_dir)
        for target in document.analysis.targets[:MAX_WORKLOAD_TARGETS]:
            known = await self.off_loop(
                session.has_workload, snapshot, target, document.folder, data_dir
            )
            (having if known else missing).add(target.qualname)
            if document.snapshot is not snapshot:
                return False
        shares = await self.off_loop(session.shares_of, document.path, document.folder)
        if document.snapshot is not snapshot:
            return False
        document.measurable, document.unmeasurable = frozenset(having), frozenset(missing)
        for target in document.analysis.targets:
            if target.qualname in having & before:
                # Recorded meanwhile: that it could not be measured is over.
                self.session.unlearn(target.fingerprint)
        if shares != document.shares or document.unmeasurable != before:
            document.shares = shares
            self._ask_again()
        return True

    def publish(self, uri: str) -> None:
        """Send the hints of a document, unless they are what the client has already."""
        document = self.session.documents.get(uri)
        if document is None or not document.current:
            return
        if self.notebooks is not None and self.notebooks.holds(uri):
            self.notebooks.publish(uri, self.session.hints(uri))
            return
        positions = self.positions(document.snapshot)
        hints = [self.diagnostic(hint, positions) for hint in self.session.hints(uri)]
        if hints == self._published.get(uri, []):
            return
        self._published[uri] = hints
        if self.abilities.pull:
            self._tell_pulled(uri, document.snapshot)
            return
        version = document.snapshot.version if self.abilities.diagnostic_version else None
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=uri, version=version, diagnostics=hints)
        )

    async def wait_for_analysis(self, uri: str) -> None:
        """Waits until what the client has sent of a document is analyzed, or it is closed."""
        while (pending := self._pending.get(uri)) is not None:
            await asyncio.wait({pending})

    def pulled(self, uri: str) -> list[types.Diagnostic]:
        """What the client is given that asks for a document's diagnostics."""
        document = self.session.documents.get(uri)
        if document is not None:
            self._pulled[uri] = document.snapshot
        return self._published.get(uri, [])

    def _tell_pulled(self, uri: str, snapshot: Snapshot) -> None:
        """The client has asked about this very text already: it is told to ask again. About a
        newer text it asks by itself."""
        if self._pulled.get(uri) is snapshot and (
            self._refreshing is None or self._refreshing.done()
        ):
            self._refreshing = self.spawn(self._refresh_soon())

    async def _refresh_soon(self) -> None:
        """Once for all documents that settings or a job have changed."""
        await asyncio.sleep(DEBOUNCE_S)
        self.workspace_diagnostic_refresh(None)

    def diagnostic(self, hint: Hint, positions: LineIndex) -> types.Diagnostic:
        """The hint as a diagnostic, with as much as the client can show."""
        able = self.abilities
        return lsp.diagnostic(
            hint,
            positions,
            data=able.diagnostic_data,
            link=able.diagnostic_link,
            tags=able.diagnostic_tags,
        )

    def withdraw(self, uri: str) -> None:
        """The document was closed."""
        self._pulled.pop(uri, None)
        if self._published.pop(uri, None) and not self.abilities.pull:
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(uri=uri, diagnostics=[])
            )
        self._took_s.pop(uri, None)
        if (pending := self._pending.pop(uri, None)) is not None:
            pending.cancel()

    def positions(self, snapshot: Snapshot) -> LineIndex:
        """Offsets and positions of the snapshot's text, kept for the last one that was asked
        for."""
        if self._positions is None or self._positions[0] is not snapshot:
            self._positions = (snapshot, LineIndex(snapshot.text, self.position_encoding))
        return self._positions[1]

    @property
    def position_encoding(self) -> str:
        """What a character is for this client: `utf-8`, `utf-16` or `utf-32`."""
        chosen = self.workspace.position_encoding
        return str(getattr(chosen, "value", chosen))

    async def _recall(self, uri: str) -> None:
        """Ask the host what it knows already about targets that we know nothing about."""
        document = self.session.documents.get(uri)
        if document is None:
            return
        await self._remember(document.folder)
        unknown = self._unknown_targets(document)
        if not self._is_open(document) or not unknown or not self.trusted:
            return
        settings = self.settings(document.folder)
        answer = self.consents.answer(document.folder, setting=settings.consent)
        if answer is not ConsentAnswer.ALLOW:
            return  # even asking the project's interpreter for its versions runs code of the folder
        self._asked.update(target.fingerprint for target in unknown)
        jobs = [self.job(uri, target.qualname) for target in unknown]
        try:
            outcomes = await self.host.cached(jobs, settings)
        except KernelLspError as error:
            log.warning("what was measured before is not shown: %s", error)
            return
        for target, outcome in zip(unknown, outcomes, strict=True):
            if outcome is not None:
                self.session.learn(target.fingerprint, outcome)
        if self._is_open(document) and any(outcome is not None for outcome in outcomes):
            self.record(self.session.observe(uri, "open"))
            self.republish(uri)

    def _unknown_targets(self, document: Document) -> list[Target]:
        """Those that could be measured and of which nothing is known."""
        measurable = (t for t in document.analysis.targets if t.qualname in document.measurable)
        return [target for target in measurable if self._is_unknown(target.fingerprint)]

    def _is_unknown(self, fingerprint: str) -> bool:
        """Whether neither this session nor what the host was asked knows the target."""
        return fingerprint not in self._asked and self.session.outcome(fingerprint) is None

    async def _remember(self, folder: str) -> None:
        """What the journal knows about a folder, once per session."""
        if folder in self._asked:
            return
        self._asked.add(folder)
        try:
            memory = await self.host.ask("memory", folder=folder)
        except KernelLspError as error:
            self._noticed(f"what was offered and dismissed before is not known: {error}")
            return
        self.session.restore(
            folder, wire.from_json(list[Dismissal], memory["dismissals"]), memory["tracker"]
        )
        for uri in self.session.documents:
            self.record(self.session.observe(uri, "open"))
            self.publish(uri)
        for path in self.session.tracked_paths(folder):
            self.on_disk(frozenset({Path(folder) / path}))

    async def _keep_tracker(self) -> None:
        """Soon: many events come together."""
        await asyncio.sleep(KEEP_S)
        await self.keep_tracker()

    async def keep_tracker(self) -> None:
        """Store the states of offers, so that their fate is followed in the next session too."""
        with contextlib.suppress(KernelLspError):
            # The events themselves are sent again by the host client.
            await self.host.ask("keep", tracker=self.session.tracker.export())

    def job(self, uri: str, qualname: str) -> Job:
        """What the host is asked to do for one target, with the text as it is open now."""
        document = self.current(uri) or self.session.documents[uri]
        settings = self.settings(document.folder)
        return Job(
            text=document.snapshot.text,
            path=str(Path(document.folder) / document.path),
            qualname=qualname,
            folder=document.folder,
            device=settings.device,
            budget=settings.budget,
        )

    # --- to the client -----------------------------------------------------------------------

    def republish(self, uri: str) -> None:
        """A verdict arrived or went: hints again, and lenses where the client can be asked to."""
        self.publish(uri)
        self._ask_again()

    def answering(self, document: Document) -> None:
        """Lenses or inlay hints are answered from memory; what is outdated there is asked for
        again."""
        if not document.current:
            self._answered_early.add(document.snapshot.uri)

    def _ask_again(self) -> None:
        if self.abilities.lens_refresh:
            self.workspace_code_lens_refresh(None)
        if self.abilities.inlay_refresh and any(
            self.settings(folder).inlay_hints for folder in self._known_folders
        ):
            self.workspace_inlay_hint_refresh(None)

    def say(self, text: str, kind: types.MessageType = types.MessageType.Info) -> None:
        """Writes the text to the client's log; never a pop-up."""
        self.window_log_message(types.LogMessageParams(type=kind, message=text))

    def _noticed(self, text: str) -> None:
        """For example a damaged journal that was set aside; each once, however often it happens."""
        if text not in self._noticed_before:
            self._noticed_before.add(text)
            self.say(text, types.MessageType.Warning)

    def set_status(self, health: str, message: str | None) -> None:
        """Tells a client that shows a status how the server is; nothing where that has not
        changed."""
        if self.abilities.status and self._status != (health, message):
            self._status = (health, message)
            body = {"health": health, "quiescent": message is None, "message": message}
            self.protocol.notify("experimental/serverStatus", body)

    def record(self, events: list[Event]) -> None:
        """Sends events to the journal and keeps what is still watched of offers."""
        if not events:
            return
        self.host.record(events)
        if self._keeping is None or self._keeping.done():
            self._keeping = self.spawn(self._keep_tracker())

    def _disk_changed(self, paths: frozenset[Path]) -> None:
        """Called by the watch's thread."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.on_disk, paths)


def count_time(name: str) -> Callable[[F], F]:
    """Count how long a handler took, for kernel-lsp.status."""

    def wrap(handler: F) -> F:
        @functools.wraps(handler)
        def run(ls: KernelServer, *arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return handler(ls, *arguments)
            finally:
                taken_ms = (time.perf_counter() - started) * 1000
                bucket = next(
                    (f"<= {b} ms" for b in BUCKETS_MS if taken_ms <= b), f"> {BUCKETS_MS[-1]} ms"
                )
                ls.latencies[f"{name} {bucket}"] += 1

        return run  # type: ignore[return-value]

    return wrap
