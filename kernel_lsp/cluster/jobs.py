"""Jobs by id: who waits for them, which come next, and that each result counts once. Knows nothing
of Ray.

A job has one attempt at a time. One whose attempt was lost goes back to the front; after three
losses it is given up. Not covered: who does them (pool.py)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from kernel_lsp.errors import ClusterError, JobFailed

MAX_ATTEMPTS = 3


@dataclass(kw_only=True, eq=False)
class ClusterJob:
    id: str
    work: Any
    group: str
    done: asyncio.Future[Any]
    callers: int = 0
    losses: int = 0
    began: float | None = None
    """On the monotonic clock; None: it waits."""
    where: str = ""
    stop: Callable[[], None] | None = None
    """Ends the attempt under way."""


@dataclass(kw_only=True)
class ClusterJobs:
    known: dict[str, ClusterJob] = field(default_factory=dict)
    broken: ClusterError | None = None
    """Why no job is done any more."""
    _queue: deque[ClusterJob] = field(default_factory=deque)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    async def result(self, id: str, work: Any, group: str) -> Any:
        """What the work comes to on a node, as `Cluster.do` says."""
        if self.broken is not None:
            raise self.broken
        job = self.known.get(id)
        if job is None:
            done = asyncio.get_running_loop().create_future()
            job = self.known[id] = ClusterJob(id=id, work=work, group=group, done=done)
            self._queue.append(job)
            self._more.set()
        job.callers += 1
        try:
            return await asyncio.shield(job.done)
        finally:
            job.callers -= 1
            if not job.callers and not job.done.done():
                self._drop(job)

    def forget(self, id: str) -> None:
        """The next one who asks has it done again."""
        if (job := self.known.get(id)) is not None and job.done.done():
            del self.known[id]

    async def next(
        self,
        group: str | None,
        others: Callable[[], Collection[str | None]],
        doubtful: Callable[[], bool] = lambda: False,
    ) -> ClusterJob:
        """One of this group, else of one that nobody else works on, else the first.

        ``doubtful``: whether whoever asks has a job under way that was lost before. No other such
        is given then, so that one that kills its process takes the same others with it no more
        than once."""
        while not (fitting := [job for job in self._queue if not (job.losses and doubtful())]):
            self._more.clear()
            await self._more.wait()
        taken = others()
        job = min(fitting, key=lambda job: (job.group != group, job.group in taken))
        self._queue.remove(job)
        return job

    def begin(self, job: ClusterJob, where: str, stop: Callable[[], None]) -> None:
        """Notes that the job runs on that node from now on; ``stop`` ends it."""
        job.began, job.where, job.stop = time.monotonic(), where, stop

    def settle(
        self, job: ClusterJob, value: Any = None, failed: tuple[str, str | None] | None = None
    ) -> None:
        """What comes after nobody waits for it any more is left."""
        job.began = job.stop = job.work = None
        self._more.set()  # what had to wait for its end
        if job.done.done():
            return
        if failed:
            job.done.set_exception(JobFailed(*failed))
        else:
            job.done.set_result(value)

    def again(self, job: ClusterJob, why: str) -> None:
        """Queues a job whose attempt was lost once more, or fails it after `MAX_ATTEMPTS`."""
        job.losses += 1
        if job.losses >= MAX_ATTEMPTS:
            cause = (
                f"job {job.id} was lost {job.losses} times, each with the process that did it; "
                f"last: {why}"
            )
            self.settle(
                job, failed=(cause, "look at the nodes' memory, and whether the task crashes alone")
            )
            return
        self.give_back(job)

    def give_back(self, job: ClusterJob) -> None:
        """Puts a job back among those that wait: nobody has begun it."""
        job.began = job.stop = None
        if not job.done.done():
            self._queue.appendleft(job)
            self._more.set()

    def fail(self, error: ClusterError) -> None:
        """No job is done any more; whoever waits gets this error."""
        self.broken = self.broken or error
        self._queue.clear()
        for job in self.known.values():
            if not job.done.done():
                job.done.set_exception(self.broken)

    def _drop(self, job: ClusterJob) -> None:
        """Nobody waits for it."""
        job.done.cancel()
        del self.known[job.id]
        if job in self._queue:
            self._queue.remove(job)
        elif job.stop is not None:
            job.stop()
