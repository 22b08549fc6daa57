"""Measurements and searches: whether they may run, in which order, how the user sees and stops
them.

A job outlives the request that started it. Background jobs run one after another, once the folder
has consent and the editor has been idle, and again later when the machine was too busy
(retries.py); a job that the user asked for runs at once and says why it failed. A deeper search of
a target runs beside its other jobs. The host sees to it that a device runs one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from lsprotocol import types

from kernel_lsp.consent import ConsentAnswer, remote_origin
from kernel_lsp.errors import Busy, ConfigError, ConsentRequired, KernelLspError, WorkerLost
from kernel_lsp.presenter import searches
from kernel_lsp.records import Job, Outcome, Progress, SearchPlan, Target
from kernel_lsp.server import prompts
from kernel_lsp.server.app import KernelServer
from kernel_lsp.server.bars import ProgressBar
from kernel_lsp.server.questions import Questions
from kernel_lsp.server.retries import Retries
from kernel_lsp.session import Document, examine

log = logging.getLogger("kernel_lsp")
IDLE_S = 1.5
"""Measure in the background only after that long without a keystroke."""
LEARN_AFTER_S = 120.0
"""Learn from what was kept only after that long: it takes minutes, and nobody waits for it."""


class JobKind(StrEnum):
    QUICK = "quick"
    SEARCH = "search"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobKey:
    """One job of a target at a time, and beside it one search."""

    uri: str
    qualname: str
    kind: JobKind = JobKind.QUICK

    def matches(self, uri: str | None, qualname: str | None, kind: str | None) -> bool:
        """Whether it is a job of that document, target and kind; None stands for any."""
        return (
            uri in (None, self.uri)
            and qualname in (None, self.qualname)
            and kind in (None, self.kind)
        )


class ServerJobs:
    """All jobs of one server."""

    def __init__(self, ls: KernelServer) -> None:
        self._ls = ls
        self.questions = Questions(ls)
        self._running: dict[JobKey, asyncio.Task[Outcome | None]] = {}
        self._background: dict[JobKey, str] = {}
        """Background jobs and the fingerprint each was started for."""
        self._tried: set[str] = set()
        self._retries = Retries(ls.spawn, self._try_again)
        self._idle: asyncio.Task[None] | None = None
        self._learning: asyncio.Task[Any] | None = None
        """The same, while it learns."""
        self._rest: tuple[str, str | None] = ("ok", None)
        """Health and message while nothing runs: what went wrong last, until something else
        runs."""
        ls.on_analyzed, ls.searching = self.consider, self.searching

    @property
    def queue(self) -> list[str]:
        """The names of all targets with a job, for the status; searches say that they are one."""
        return [key.qualname + " (search)" * (key.kind is JobKind.SEARCH) for key in self._running]

    def start(self, uri: str, qualname: str) -> asyncio.Task[Outcome | None]:
        """Measure because the user asked; a second request joins the first, and takes the place of
        a job in the background, which waits for a quiet machine."""
        return self._start(JobKey(uri=uri, qualname=qualname), asked=True)

    def search(self, uri: str, qualname: str, plan: SearchPlan) -> asyncio.Task[Outcome | None]:
        """Go on where the quick search ends; a second request joins the first, whatever its
        plan."""
        return self._start(
            JobKey(uri=uri, qualname=qualname, kind=JobKind.SEARCH), asked=True, plan=plan
        )

    def searching(self, uri: str, qualname: str) -> bool:
        """Whether a search for that target runs or waits."""
        return JobKey(uri=uri, qualname=qualname, kind=JobKind.SEARCH) in self._running

    def cancel(
        self, uri: str | None = None, qualname: str | None = None, kind: str | None = None
    ) -> int:
        """Cancel the jobs that match; returns how many."""
        matching = [task for key, task in self._running.items() if key.matches(uri, qualname, kind)]
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
        self._wait_for_rest()

    def _start(
        self, key: JobKey, *, asked: bool, plan: SearchPlan | None = None
    ) -> asyncio.Task[Outcome | None]:
        if asked and self._learning is not None:
            self._learning.cancel()
        if asked and self._background.pop(key, None) is not None and key in self._running:
            self._running.pop(key).cancel()
        if key not in self._running:
            self._rest, beside = ("ok", None), self._running_for(key)
            task = self._running[key] = self._ls.spawn(self._run(key, plan, asked=asked))
            if not beside:
                self._ls.session.running(key.uri, key.qualname, None)
            task.add_done_callback(lambda task: self._finished(key, task))
        return self._running[key]

    def _running_for(self, key: JobKey) -> bool:
        """Some job of the same target."""
        return any(other.matches(key.uri, key.qualname, None) for other in self._running)

    def _finished(self, key: JobKey, task: asyncio.Task[Outcome | None]) -> None:
        if self._running.get(key) is not task:  # another has taken its place
            return
        del self._running[key]
        self._background.pop(key, None)
        if not self._running_for(key):
            self._ls.session.finished(key.uri, key.qualname)
        if not self._running:
            self._ls.set_status(*self._rest)
        self._ls.republish(key.uri)

    async def _run(self, key: JobKey, plan: SearchPlan | None, *, asked: bool) -> Outcome | None:
        ls, document = self._ls, self._ls.session.documents[key.uri]
        task = asyncio.current_task()
        assert task is not None
        bar = ProgressBar(ls, f"kernel-lsp: {'search ' if plan else ''}{key.qualname}", task)
        try:
            await self.require_consent(document.folder, asked=asked, path=document.path)
            origin = await self._allowed_origin(document.folder, key) if asked else None
            doing = "searching" if plan else "measuring"
            ls.set_status("ok", f"{doing} {key.qualname}, {len(self._running) - 1} waiting")
            bar.start()
            job = replace(
                ls.job(key.uri, key.qualname),
                background=not asked,
                search=plan,
                allowed_origin=origin,
            )
            outcome = await self._outcome(
                job, key, await self._fingerprint(document, key.qualname), bar
            )
            bar.end(_words(outcome))
            if outcome.cut_short and not asked:
                self._later(key)
            return outcome
        except KernelLspError as error:
            if isinstance(error, Busy | WorkerLost) and not asked:
                self._later(key)
            else:
                self._failed(key, error, asked=asked)
            return None
        finally:
            bar.end("stopped")

    async def _outcome(
        self, job: Job, key: JobKey, fingerprint: str | None, bar: ProgressBar
    ) -> Outcome:
        ls = self._ls

        def report(progress: Progress) -> None:
            ls.session.running(key.uri, key.qualname, progress)
            bar.report(progress)
            if progress.proposal is not None and fingerprint is not None:
                ls.session.verified(fingerprint, progress.proposal)
                ls.republish(key.uri)

        outcome = await ls.host.optimize(job, ls.settings(job.folder or ls.root), report)
        if fingerprint is not None:
            ls.session.learn(fingerprint, ls.session.merge(fingerprint, outcome))
        for note in outcome.search.notes if outcome.search else ():
            text = f"{key.qualname}: {note}"
            self._rest = ("warning", text)
            ls.say(text, types.MessageType.Warning)
        return outcome

    async def _fingerprint(self, document: Document, qualname: str) -> str | None:
        """Of the target as it is sent: a file that was just opened is not analyzed yet."""
        found = document.analysis
        if not document.current:
            found = await self._ls.off_loop(examine, document.snapshot)
        return next((t.fingerprint for t in found.targets if t.qualname == qualname), None)

    def _failed(self, key: JobKey, error: KernelLspError, *, asked: bool) -> None:
        doing = "searched to the end" if key.kind is JobKind.SEARCH else "measured"
        text = f"{key.qualname} was not {doing}: {error}"
        self._rest = ("warning", text)
        self._ls.set_status(*self._rest)
        if asked:
            kind = types.MessageType.Error
            self._ls.window_show_message(types.ShowMessageParams(type=kind, message=text))
        else:
            self._ls.say(text, types.MessageType.Warning)

    # --- in the background -------------------------------------------------------------------

    def _wait_for_rest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._ls.spawn(self._when_idle())

    def _later(self, key: JobKey) -> None:
        """The machine was too busy for a job that nobody waits for."""
        pause_s = self._retries.later(self._background[key])
        cut = f"{key.qualname} was not measured: the machine was too busy"
        if pause_s is None:
            self._rest = (
                "warning",
                f"{cut}, and it is not tried again; ask for it when it is quieter",
            )
        else:
            self._rest = (
                "ok",
                f"{cut}; it is tried again in {pause_s / 60:.0f} min, when it is quieter",
            )
        self._ls.say(str(self._rest[1]))

    def _try_again(self, fingerprint: str) -> None:
        self._tried.discard(fingerprint)
        self._wait_for_rest()

    async def _when_idle(self) -> None:
        await asyncio.sleep(IDLE_S)
        for uri in reversed(list(self._ls.session.documents)):
            await self._measure_document(uri)
        self._learning = asyncio.current_task()
        try:
            await self._learn()
        finally:
            self._learning = None

    async def _learn(self) -> None:
        """Kept rewrites become verified skills, one piece of work after the other; a keystroke or
        a job that somebody asked for ends it, and it goes on there the next time."""
        await asyncio.sleep(LEARN_AFTER_S)
        paths = {document.folder: document.path for document in self._ls.session.documents.values()}
        for folder, path in paths.items():
            settings = self._ls.settings(folder)
            if not settings.background or self._running:
                continue
            if await self.questions.consent(folder, path) is not ConsentAnswer.ALLOW:
                continue
            with contextlib.suppress(Busy, WorkerLost):
                while (line := await self._ls.host.learn(folder, settings)) is not None:
                    self._rest = ("ok", line)
                    self._ls.set_status(*self._rest)
                    self._ls.say(line)

    async def _measure_document(self, uri: str) -> None:
        document = self._ls.session.documents.get(uri)
        if document is None or not self._ls.settings(document.folder).background:
            return
        targets = [
            target for target in document.analysis.targets if self._unknown(document, target)
        ]
        if (
            not targets
            or await self.questions.consent(document.folder, document.path)
            is not ConsentAnswer.ALLOW
        ):
            return
        for target in sorted(targets, key=lambda one: -document.shares.get(one.qualname, 0.0)):
            if uri not in self._ls.session.documents or not document.current:
                return
            self._tried.add(target.fingerprint)
            key = JobKey(uri=uri, qualname=target.qualname)
            if key not in self._running:
                self._background[key] = target.fingerprint
            task = self._start(key, asked=False)
            await asyncio.wait([task])  # when the user types again this wait ends, not the job

    def _unknown(self, document: Document, target: Target) -> bool:
        return (
            target.fingerprint not in self._tried
            and target.qualname in document.measurable
            and ((known := self._ls.session.outcome(target.fingerprint)) is None or known.cut_short)
        )

    def _drop_outdated(self, uri: str) -> None:
        """A background job whose target was changed measures code that is gone."""
        document = self._ls.session.documents[uri]
        present = {target.fingerprint for target in document.analysis.targets}
        for key, fingerprint in list(self._background.items()):
            if key.uri == uri and fingerprint not in present and key in self._running:
                self._running[key].cancel()

    # --- consent -----------------------------------------------------------------------------

    async def require_consent(self, folder: str, *, asked: bool, path: str | None = None) -> None:
        """Checks that code of the folder may run for this: raises ConsentRequired when it may not,
        or not for this, or not this file's."""
        answer = await self.questions.consent(folder, path)
        if answer is ConsentAnswer.ALLOW or (asked and answer is ConsentAnswer.ON_REQUEST):
            return
        cause = (
            f"code of {folder} may not be run"
            if answer
            else f"nobody allowed to run code of {folder}"
        )
        raise ConsentRequired(cause, f"allow it with: kernel-lsp trust {folder}")

    async def _allowed_origin(self, folder: str, key: JobKey) -> str | None:
        """Where prompts of this job may go beyond this machine; asks, because somebody waits for
        the job."""
        try:
            origin = remote_origin(self._ls.settings(folder))
        except ConfigError:  # the host says so where it matters
            return None
        if origin is None:
            return None

        async def show() -> object:
            return await prompts.show(self._ls, key.uri, key.qualname)

        allowed = await self.questions.remote(folder, origin, show)
        return origin if allowed else None

    def grant(self, folder: str, answer: ConsentAnswer) -> None:
        """Keeps the user's answer for the folder and takes back the question."""
        self.questions.forget(folder)
        self._ls.consents.record(folder, answer)


def _words(outcome: Outcome) -> str:
    found = outcome.note or "a verified rewrite is offered"
    return f"{searches.end_message(outcome.search)}; {found}" if outcome.search else found
