"""Measurements: whether they may run, in which order, how the user sees and stops them.

A job outlives the request that started it. Background jobs run one after another, once the folder has
consent and the editor has been idle; a job that the user asked for runs at once and says why it failed.
The host sees to it that a device runs one job at a time.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from pathlib import Path

from lsprotocol import types

from kernel_lsp.consent import Answer
from kernel_lsp.errors import ConfigError, ConsentRequired, KernelLspError
from kernel_lsp.presenter import lsp
from kernel_lsp.records import Outcome, Progress, Target
from kernel_lsp.server.app import Server
from kernel_lsp.session import Document

log = logging.getLogger("kernel_lsp")
IDLE_S = 1.5
"""Measure in the background only after that long without a keystroke."""
ANSWER_TIMEOUT_S = 600.0
VISIBLE_AFTER_S = 0.3
CREATE_TIMEOUT_S = 2.0
ALLOW, ON_REQUEST, NEVER = "Allow for this folder", "Only when I ask", "Never"
_ANSWERS = {ALLOW: Answer.ALLOW, ON_REQUEST: Answer.ON_REQUEST, NEVER: Answer.NEVER}


class Jobs:
    """All measurements of one server."""

    def __init__(self, ls: Server) -> None:
        self._ls = ls
        self._running: dict[tuple[str, str], asyncio.Task[Outcome | None]] = {}
        self._background: dict[tuple[str, str], str] = {}
        """Background jobs and the fingerprint each was started for."""
        self._tried: set[str] = set()
        self._idle: asyncio.Task[None] | None = None
        self._asking: dict[str, asyncio.Task[Answer | None]] = {}
        ls.on_analyzed = self.consider

    @property
    def queue(self) -> list[str]:
        return [qualname for _, qualname in self._running]

    def start(self, uri: str, qualname: str) -> asyncio.Task[Outcome | None]:
        """Measure because the user asked; a second request joins the first."""
        return self._start(uri, qualname, asked=True)

    def cancel(self, uri: str | None = None, qualname: str | None = None) -> int:
        """Cancel the jobs that match; returns how many."""
        matching = [
            task
            for (its_uri, its_name), task in self._running.items()
            if uri in (None, its_uri) and qualname in (None, its_name)
        ]
        for task in matching:
            task.cancel()
        return len(matching)

    def stop(self) -> None:
        """The server ends."""
        if self._idle is not None:
            self._idle.cancel()
        self.cancel()

    def consider(self, uri: str) -> None:
        """A document was analyzed: measure it when the editor comes to rest."""
        self._drop_outdated(uri)
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._ls.spawn(self._when_idle())

    def _start(self, uri: str, qualname: str, *, asked: bool) -> asyncio.Task[Outcome | None]:
        key = (uri, qualname)
        if key not in self._running:
            task = self._running[key] = self._ls.spawn(self._run(uri, qualname, asked=asked))
            self._ls.session.running(uri, qualname, None)
            task.add_done_callback(lambda _: self._finished(key))
        return self._running[key]

    def _finished(self, key: tuple[str, str]) -> None:
        self._running.pop(key, None)
        self._background.pop(key, None)
        self._ls.session.finished(*key)
        if not self._running:
            self._ls.set_status("ok", None)
        self._ls.shown_changed(key[0])

    async def _run(self, uri: str, qualname: str, *, asked: bool) -> Outcome | None:
        ls, document = self._ls, self._ls.session.documents[uri]
        fingerprint = _fingerprint(document, qualname)
        task = asyncio.current_task()
        assert task is not None
        bar = Bar(ls, f"kernel-lsp: {qualname}", task)
        try:
            await self._require_consent(document.folder, asked=asked)
            self._ls.set_status("ok", f"measuring {qualname}, {len(self._running) - 1} waiting")
            bar.start()

            def report(progress: Progress) -> None:
                ls.session.running(uri, qualname, progress)
                bar.report(progress)
                if progress.proposal is not None and fingerprint is not None:
                    ls.session.verified(fingerprint, progress.proposal)
                    ls.shown_changed(uri)

            job = replace(ls.job(uri, qualname), background=not asked)
            outcome = await ls.host.optimize(job, ls.settings(document.folder), report)
            if fingerprint is not None:
                ls.session.learn(fingerprint, outcome)
            bar.end(outcome.note or "a verified rewrite is offered")
            return outcome
        except KernelLspError as error:
            self._failed(qualname, error, asked=asked)
            return None
        finally:
            bar.end("stopped")

    def _failed(self, qualname: str, error: KernelLspError, *, asked: bool) -> None:
        text = f"{qualname} was not measured: {error}"
        self._ls.set_status("warning", text)
        if asked:
            kind = types.MessageType.Error
            self._ls.window_show_message(types.ShowMessageParams(type=kind, message=text))
        else:
            self._ls.say(text, types.MessageType.Warning)

    # --- in the background -------------------------------------------------------------------

    async def _when_idle(self) -> None:
        await asyncio.sleep(IDLE_S)
        for uri in reversed(list(self._ls.session.documents)):
            await self._measure_document(uri)

    async def _measure_document(self, uri: str) -> None:
        document = self._ls.session.documents.get(uri)
        if document is None or not self._ls.settings(document.folder).background:
            return
        targets = [target for target in document.analysis.targets if self._unknown(document, target)]
        if not targets or await self._consent(document.folder) is not Answer.ALLOW:
            return
        for target in targets:
            if uri not in self._ls.session.documents or not document.current:
                return
            self._tried.add(target.fingerprint)
            self._background[uri, target.qualname] = target.fingerprint
            task = self._start(uri, target.qualname, asked=False)
            await asyncio.wait([task])  # when the user types again this wait ends, not the job

    def _unknown(self, document: Document, target: Target) -> bool:
        return (
            target.fingerprint not in self._tried
            and target.qualname in document.measurable
            and self._ls.session.outcome(target.fingerprint) is None
        )

    def _drop_outdated(self, uri: str) -> None:
        """A background job whose target was changed measures code that is gone."""
        document = self._ls.session.documents[uri]
        present = {target.fingerprint for target in document.analysis.targets}
        for key, fingerprint in list(self._background.items()):
            if key[0] == uri and fingerprint not in present and key in self._running:
                self._running[key].cancel()

    # --- consent -----------------------------------------------------------------------------

    async def _require_consent(self, folder: str, *, asked: bool) -> None:
        answer = await self._consent(folder)
        if answer is Answer.ALLOW or (asked and answer is Answer.ON_REQUEST):
            return
        cause = f"code of {folder} may not be run" if answer else f"nobody allowed to run code of {folder}"
        raise ConsentRequired(cause, f"allow it with: kernel-lsp trust {folder}")

    async def _consent(self, folder: str) -> Answer | None:
        """The stored answer, or the user's; None when there is none. Unanswered is no."""
        ls = self._ls
        if not ls.trusted:
            return Answer.NEVER
        answer = ls.consents.answer(folder, setting=ls.settings(folder).consent)
        if answer is not None:
            return answer
        if folder not in self._asking:
            if not ls.consents.may_ask(folder):
                return None
            self._asking[folder] = ls.spawn(self._ask(folder))
        return await asyncio.shield(self._asking[folder])

    async def _ask(self, folder: str) -> Answer | None:
        """Once per session and folder."""
        ls = self._ls
        ls.consents.count_attempt(folder)
        ls.set_status("warning", f"{Path(folder).name}: waiting for consent to measure")
        question = types.ShowMessageRequestParams(
            type=types.MessageType.Info,
            message=(
                f"kernel-lsp wants to run code from {folder} to measure how fast it is. "
                "It runs confined, and nothing leaves this machine."
            ),
            actions=[types.MessageActionItem(title=title) for title in _ANSWERS],
        )
        try:
            reply = await asyncio.wait_for(ls.window_show_message_request_async(question), ANSWER_TIMEOUT_S)
        except TimeoutError:
            return None
        except Exception as error:  # whatever a client answers with, it is no permission
            log.warning("the question for consent failed: %s", error)
            return None
        finally:
            ls.set_status("ok", None)
        answer = _ANSWERS.get(getattr(reply, "title", ""))
        if answer is not None:
            try:
                ls.consents.record(folder, answer)
            except ConfigError as error:
                ls.say(str(error), types.MessageType.Warning)
        return answer

    def grant(self, folder: str, answer: Answer) -> None:
        self._asking.pop(folder, None)
        self._ls.consents.record(folder, answer)


class Bar:
    """The progress of one job: appears late, ends once, and its button cancels the job."""

    def __init__(self, ls: Server, title: str, task: asyncio.Task[Outcome | None]) -> None:
        self._ls, self._title, self._task = ls, title, task
        self._token = uuid.uuid4().hex
        self._begun = False
        self._over = asyncio.Event()
        self._last: Progress | None = None

    def start(self) -> None:
        if self._ls.abilities.progress:
            self._ls.spawn(self._begin())

    def report(self, progress: Progress) -> None:
        self._last = progress
        if self._begun and not self._over.is_set():
            value = types.WorkDoneProgressReport(
                cancellable=True, message=_words(progress), percentage=lsp.percentage(progress)
            )
            self._ls.work_done_progress.report(self._token, value)

    def end(self, message: str) -> None:
        if self._over.is_set():
            return
        self._over.set()
        if self._begun:
            self._ls.work_done_progress.end(self._token, types.WorkDoneProgressEnd(message=message))
            self._ls.work_done_progress.tokens.pop(self._token, None)

    async def _begin(self) -> None:
        await asyncio.sleep(VISIBLE_AFTER_S)
        if self._over.is_set():
            return
        progress = self._ls.work_done_progress
        try:
            await asyncio.wait_for(progress.create_async(self._token), CREATE_TIMEOUT_S)
        except Exception as error:  # a client may refuse in any way; then there is no bar
            log.info("no progress: %s", error)
            return
        if self._over.is_set():
            progress.tokens.pop(self._token, None)
            return
        self._begun = True
        loop = asyncio.get_running_loop()
        progress.tokens[self._token].add_done_callback(
            lambda future: loop.call_soon_threadsafe(self._task.cancel) if future.cancelled() else None
        )
        message = _words(self._last) if self._last else None
        begin = types.WorkDoneProgressBegin(title=self._title, cancellable=True, message=message)
        progress.begin(self._token, begin)


def _words(progress: Progress) -> str:
    return f"{progress.phase}: {progress.message}" if progress.message else progress.phase


def _fingerprint(document: Document, qualname: str) -> str | None:
    return next((t.fingerprint for t in document.analysis.targets if t.qualname == qualname), None)
