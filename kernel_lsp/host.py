"""The host process: runs the pipeline and keeps the journal, so that the server stays small and
quick.

Started by hostclient.py through process.start; talks in frames. One job measures on a device at a
time (pipeline/turns.py), here and across editors. Not covered: consent, which the server has
checked before it asks; settings, which come with each request."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from kernel_lsp import wire
from kernel_lsp.config import Settings
from kernel_lsp.confinement import entry
from kernel_lsp.consent import ConsentAnswer, Consents, remote_origin
from kernel_lsp.errors import Busy, JournalError, KernelLspError, SkillError, WorkerLost
from kernel_lsp.journal import open_journal, outcomes
from kernel_lsp.journal.store import Journal
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.pipeline.prepare import reference
from kernel_lsp.pipeline.tournament import EVIDENCE_FOLDER
from kernel_lsp.pipeline.turns import DeviceTurns, SharedTurn
from kernel_lsp.records import Event, EventKind, Job, Outcome, Progress, Proposal, WeekSummary

T = TypeVar("T")
MIN_REPORT_GAP_S = 0.2
"""Five reports a second are enough for a person."""
SYNC_EVERY_S = 3600.0
"""Between looks at a team's registry; one that is away is left alone as long."""
KEPT = (EventKind.KEPT, EventKind.KEPT_COMMITTED)
"""What skills are learned from."""
TAKEN_BACK = (EventKind.REVERTED, EventKind.DELETED)


class Host:
    """All requests of one server."""

    def __init__(self, data_dir: Path, replies: wire.Pipe) -> None:
        self._data_dir, self._replies = data_dir, replies
        self._disk = concurrent.futures.ThreadPoolExecutor(1, "journal")
        self._journal: Journal | None = None
        self._pipelines: dict[Settings, Pipeline] = {}
        self._turns: dict[str, DeviceTurns] = {}
        self._synced = -SYNC_EVERY_S
        """When a sync with the user's team was begun, by the loop's clock."""
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Future[None]] = set()

    async def handle(self, message: dict[str, Any]) -> None:
        """Begins or cancels what one message asks for; returns at once."""
        op, number = message["op"], message.get("id", 0)
        if op == "cancel":
            task = self._jobs.get(number)
            if task is not None:
                task.cancel()
            return
        task = asyncio.create_task(self._answer(number, message))
        if op in ("optimize", "learn"):
            self._jobs[number] = task
            task.add_done_callback(lambda _: self._jobs.pop(number, None))
        else:
            self._other(task)

    def _other(self, task: asyncio.Future[None]) -> None:
        """Something to wait for at the end."""
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def close(self) -> None:
        """Let the journal finish, end the jobs."""
        for task in self._jobs.values():
            task.cancel()
        await asyncio.gather(*self._jobs.values(), *self._others, return_exceptions=True)
        await asyncio.gather(*(pipeline.close() for pipeline in self._pipelines.values()))
        if self._journal is not None:
            await asyncio.get_running_loop().run_in_executor(self._disk, self._journal.close)

    async def _answer(self, number: int, message: dict[str, Any]) -> None:
        try:
            value = await _OPERATIONS[message["op"]](self, number, message)
            self._send({"op": "reply", "id": number, "value": wire.to_json(value)})
        except asyncio.CancelledError:
            self._send({"op": "failed", "id": number, "cause": "cancelled"})
        except KernelLspError as error:
            lasting = not isinstance(error, Busy | WorkerLost)
            failure = {"cause": error.cause, "remedy": error.remedy, "lasting": lasting}
            self._send({"op": "failed", "id": number, **failure})
        except Exception as error:  # one request must not end the process that holds all the others
            traceback.print_exc()
            words = str(error).splitlines() or [""]  # a foreign error may quote a traceback
            cause = f"{message['op']} failed: {type(error).__name__}: {words[0]}"
            remedy = "this is a defect of kernel-lsp; its log has the traceback"
            self._send({"op": "failed", "id": number, "cause": cause, "remedy": remedy})

    async def _sync(self) -> None:
        """With the user's team, where there is one and it is time; jobs use what is here meanwhile,
        and later ones what came."""
        from kernel_lsp.teams import syncing  # few users are in a team

        self._synced = asyncio.get_running_loop().time()
        problem = await asyncio.to_thread(syncing.sync_if_due, self._data_dir)
        if problem is not None:
            self._send({"op": "notice", "text": f"team: {problem}"})

    async def _optimize(self, number: int, message: dict[str, Any]) -> Outcome:
        now = asyncio.get_running_loop().time()
        if now - self._synced > SYNC_EVERY_S:
            self._other(asyncio.ensure_future(self._sync()))
        job = wire.from_json(Job, message["job"])
        settings = wire.from_json(Settings, message["settings"])
        store = self._keeper(job, settings, message.get("client"))
        report, begun = self._reporter(number, store), outcomes.now()
        turn = SharedTurn(self._turns_on(job.device), report)
        required = Consents(settings.data_dir).required(job.folder)
        with entry.requiring(required):
            outcome = await self._pipeline(settings).optimize(job, report, turn)
        if not outcome.cached:
            await store(outcomes.fresh(outcome, begun))
        if settings.training:
            folder, client = job.folder or str(Path(job.path).parent), message.get("client")
            await self._in_journal(
                lambda journal: outcomes.save_question(
                    journal, outcome, folder=folder, path=job.path, client=client
                )
            )
        return replace(outcome, offered=None)  # the editor has no use for it

    def _keeper(
        self, job: Job, settings: Settings, client: str | None
    ) -> Callable[[Sequence[Proposal]], asyncio.Future[None]]:
        """Writes what a job judged into the journal, each verdict once."""
        folder = job.folder or str(Path(job.path).parent)
        known: list[Proposal] = []

        def store(proposals: Sequence[Proposal]) -> asyncio.Future[None]:
            fresh = [proposal for proposal in proposals if proposal not in known]
            known.extend(fresh)
            when = outcomes.now()  # the journal may be opening still, and offers must come later

            def save(journal: Journal) -> None:
                outcomes.save_proposals(
                    journal,
                    fresh,
                    folder=folder,
                    path=job.path,
                    keep_source=settings.keep_source,
                    client=client,
                    when=when,
                    training=settings.training,
                    reference=reference(job, settings.data_dir)
                    if settings.keep_source and fresh
                    else None,
                )

            return asyncio.ensure_future(self._in_journal(save))

        return store

    async def _prompts(self, number: int, message: dict[str, Any]) -> str:
        """What a language model would be sent; nothing is sent."""
        job, settings = (
            wire.from_json(Job, message["job"]),
            wire.from_json(Settings, message["settings"]),
        )
        with entry.requiring(Consents(settings.data_dir).required(job.folder)):
            return await self._pipeline(settings).prompts(job)

    async def _cached(self, number: int, message: dict[str, Any]) -> list[Outcome | None]:
        jobs = wire.from_json(list[Job], message["jobs"])
        pipeline = self._pipeline(wire.from_json(Settings, message["settings"]))
        found = [await pipeline.cached(job) for job in jobs]
        return [one and replace(one, offered=None) for one in found]  # as in `_optimize`

    async def _record(self, number: int, message: dict[str, Any]) -> int:
        events = wire.from_json(list[Event], message["events"])
        await self._in_journal(lambda journal: journal.record(events))
        await asyncio.get_running_loop().run_in_executor(self._disk, self._queue, events)
        if any(event.kind in KEPT for event in events):
            self._other(asyncio.ensure_future(self._learn(events)))
        for event in events:
            if event.kind is EventKind.ACCEPTED:
                self._other(
                    asyncio.get_running_loop().run_in_executor(self._disk, self._guard, event)
                )
        return len(events)

    def _queue(self, events: Sequence[Event]) -> None:
        """Kept rewrites wait for an idle moment in which they are learned from."""
        if not any(event.kind in (*KEPT, *TAKEN_BACK) for event in events):
            return
        from kernel_lsp.pipeline.lessons import LessonQueue  # few sessions come so far

        try:
            LessonQueue(self._data_dir).note(events)
        except OSError as error:
            self._send({"op": "notice", "text": f"a kept rewrite was not queued: {error}"})

    def _guard(self, event: Event) -> None:
        """Put an accepted rewrite's evidence beside it, for `kernel-lsp guard`."""
        from kernel_lsp import guarding  # few sessions come so far

        try:
            guarding.accept(event, self._data_dir / EVIDENCE_FOLDER / f"{event.proposal}.json")
        except OSError as error:
            folder = f"{event.folder}/{guarding.FOLDER}"
            self._send({"op": "notice", "text": f"{folder} cannot be written: {error.strerror}"})

    async def _learn(self, events: Sequence[Event]) -> None:
        """Drafts of skills from what a person kept; they reach no job before they were verified."""
        from kernel_lsp.pipeline import learning  # few sessions come so far

        try:
            await self._in_journal(
                lambda journal: learning.from_events(journal, events, self._data_dir)
            )
        except SkillError as error:
            self._send({"op": "notice", "text": f"nothing was learned of a kept rewrite: {error}"})

    async def _learn_once(self, number: int, message: dict[str, Any]) -> str | None:
        """One piece of idle work on what was kept; what it came to, in a line, or None."""
        settings, folder = wire.from_json(Settings, message["settings"]), str(message["folder"])
        from kernel_lsp.pipeline.lessons import (
            IdleWork,
            LessonQueue,
            has_drafts,
            learn_once,
            logged_for,
        )
        from kernel_lsp.pipeline.skill_validation.tasks import ValidationTask, workspace_targets

        consents, data_dir = Consents(settings.data_dir), Path(settings.data_dir)
        queue = LessonQueue(data_dir)
        waiting = queue.waiting() if settings.training else ()
        if not waiting and not has_drafts(data_dir):
            return None

        def allowed_targets() -> list[ValidationTask]:
            every = workspace_targets(Path(folder), data_dir)
            setting, allow = settings.consent, ConsentAnswer.ALLOW
            return [
                t for t in every if consents.answer(folder, setting=setting, path=t.path) is allow
            ]

        targets = await asyncio.to_thread(allowed_targets)
        known = await self._in_journal(lambda j: {name: logged_for(j, name) for name in waiting})
        origin = remote_origin(settings)
        may_ask = origin is None or consents.allows_remote(folder, origin)
        if not settings.training or not may_ask:  # then by rule alone
            settings = replace(settings, policy="plan")
        work = IdleWork(targets=targets, allowed_origin=origin)
        report = self._reporter(number, lambda proposals: asyncio.ensure_future(asyncio.sleep(0)))
        turn = SharedTurn(self._turns_on(settings.device), report)
        with entry.requiring(consents.required(folder)):
            async with turn():
                news = await learn_once(
                    self._pipeline(settings),
                    queue,
                    lambda name: known.get(name, ()),
                    work,
                    report,
                )
        return None if news is None else news.line

    async def _memory(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        """What the journal knows about a folder: dismissals in force, and the states of offers."""
        folder = message["folder"]

        def read(journal: Journal) -> dict[str, Any]:
            return {
                "dismissals": journal.dismissals(folder),
                "tracker": journal.tracker_state(folder),
            }

        return await self._in_journal(read)

    async def _week(self, number: int, message: dict[str, Any]) -> WeekSummary:
        """What was gained in a folder in the last days."""
        from kernel_lsp.journal import week  # who asks looks at a page

        now = datetime.now(UTC)
        return await self._in_journal(lambda j: week.summarize_week(j, message["folder"], now))

    async def _keep(self, number: int, message: dict[str, Any]) -> None:
        await self._in_journal(lambda journal: journal.save_tracker(message["tracker"]))

    def _pipeline(self, settings: Settings) -> Pipeline:
        if settings not in self._pipelines:
            self._pipelines[settings] = Pipeline(settings)
        return self._pipelines[settings]

    async def _in_journal(self, use: Callable[[Journal], T]) -> T:
        """Off the loop: a slow disk must not delay a cancellation."""

        def run() -> tuple[T, tuple[JournalError, ...]]:
            known = 0 if self._journal is None else len(self._journal.problems)
            if self._journal is None:
                self._journal = open_journal(self._data_dir)
            result = use(self._journal)
            return result, self._journal.problems[known:]

        result, problems = await asyncio.get_running_loop().run_in_executor(self._disk, run)
        for problem in problems:
            self._send({"op": "notice", "text": f"journal: {problem}"})
        return result

    def _turns_on(self, device: str) -> DeviceTurns:
        if device not in self._turns:
            self._turns[device] = DeviceTurns(self._data_dir / "locks" / f"{device}.lock")
        return self._turns[device]

    def _reporter(
        self, number: int, store: Callable[[Sequence[Proposal]], asyncio.Future[None]]
    ) -> Callable[[Progress], None]:
        """Few reports a second; a verified rewrite always goes through, and into the journal
        before it is offered: the job may be cancelled, and what was offered must not be unknown
        then."""
        loop = asyncio.get_running_loop()
        last: list[tuple[float, str]] = [(0.0, "")]

        def report(progress: Progress) -> None:
            now = loop.time()
            when, phase = last[0]
            if progress.proposal is not None:
                self._other(store([progress.proposal]))
            elif progress.phase == phase and now - when < MIN_REPORT_GAP_S:
                return
            last[0] = (now, progress.phase)
            self._send({"op": "progress", "id": number, "progress": wire.to_json(progress)})

        return report

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the server went; so shall we, at the next read
            wire.write_frame(self._replies, message)


_OPERATIONS: dict[str, Callable[[Host, int, dict[str, Any]], Awaitable[Any]]] = {
    "optimize": Host._optimize,
    "prompts": Host._prompts,
    "cached": Host._cached,
    "record": Host._record,
    "memory": Host._memory,
    "keep": Host._keep,
    "week": Host._week,
    "learn": Host._learn_once,
}


async def run(data_dir: Path) -> None:
    """Answer until the server closes the pipe or says goodbye."""
    requests, replies = wire.claim_stdio()
    host = Host(data_dir, replies)
    loop = asyncio.get_running_loop()
    reader = concurrent.futures.ThreadPoolExecutor(1, "requests")
    while (frame := await loop.run_in_executor(reader, wire.read_frame, requests)) is not None:
        if frame[0]["op"] == "shutdown":
            break
        await host.handle(frame[0])
    await host.close()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
