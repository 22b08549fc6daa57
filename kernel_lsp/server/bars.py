"""The progress of one job in the editor."""

from __future__ import annotations

import asyncio
import logging
import uuid

from lsprotocol import types

from kernel_lsp.presenter import lsp
from kernel_lsp.records import Outcome, Progress
from kernel_lsp.server.app import KernelServer

log = logging.getLogger("kernel_lsp")
VISIBLE_AFTER_S = 0.3
CREATE_TIMEOUT_S = 2.0


class ProgressBar:
    """The progress of one job: appears late, ends once, and its button cancels the job."""

    def __init__(self, ls: KernelServer, title: str, task: asyncio.Task[Outcome | None]) -> None:
        self._ls, self._title, self._task = ls, title, task
        self._token = uuid.uuid4().hex
        self._begun = False
        self._over = asyncio.Event()
        self._last: Progress | None = None

    def start(self) -> None:
        """Makes the client show a bar, if it can, once the job has taken a while."""
        if self._ls.abilities.progress:
            self._ls.spawn(self._begin())

    def report(self, progress: Progress) -> None:
        """Shows how far the job is."""
        self._last = progress
        if self._begun and not self._over.is_set():
            value = types.WorkDoneProgressReport(
                cancellable=True, message=_words(progress), percentage=lsp.percentage(progress)
            )
            self._ls.work_done_progress.report(self._token, value)

    def end(self, message: str) -> None:
        """Takes the bar away, with a last message; a second call does nothing."""
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
            lambda future: (
                loop.call_soon_threadsafe(self._task.cancel) if future.cancelled() else None
            )
        )
        message = _words(self._last) if self._last else None
        begin = types.WorkDoneProgressBegin(title=self._title, cancellable=True, message=message)
        progress.begin(self._token, begin)


def _words(progress: Progress) -> str:
    return f"{progress.phase}: {progress.message}" if progress.message else progress.phase
