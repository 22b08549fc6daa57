"""The one loop of every search: where to go on, a draft, a verdict, into the archive, until the
budget ends.

Language models are asked ahead of the device, several at a time, into a short queue; a judge
that finds the queue empty asks the quick proposers. Nothing is decided from what is not in the
archive yet. Cancelling the task ends every prompt and judgement; what was begun is found again
when the search goes on. Not covered: how anything is decided (strategies, proposers), what a
verdict is (the judge)."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kernel_lsp.errors import BackboneError, EvaluationError, RewriteError
from kernel_lsp.records import (
    Attempt,
    Candidate,
    Context,
    Move,
    Progress,
    Proposal,
    ProposedDraft,
    Proposer,
    Report,
    SearchJudge,
    SearchJudgement,
    SearchTask,
    StopReason,
    Strategy,
    Verdict,
)
from kernel_lsp.search import attempts
from kernel_lsp.search.budget import SpentBudget, count_judged
from kernel_lsp.search.fitness import best, looks_better
from kernel_lsp.search.ledger import MemoryArchive
from kernel_lsp.search.workers import SearchWorkers, Signal

RETRY_S = (2.0, 10.0, 30.0)
"""After these waits a proposer that failed is asked again; then it is out for this search."""
MAX_DRAWS = 16
"""Starting points that quick proposers are asked about before they count as having nothing more."""
MAX_LOST = 3
"""Judgements in a row that may fail (lost processes, a device that stays busy) once others have
not."""
AT_ONCE = (StopReason.SECONDS, StopReason.GPU_SECONDS)
"""Reasons that do not wait for the judgements in progress."""
DraftedAttempt = tuple[Attempt, Candidate]


class Recall(Protocol):
    async def __call__(
        self, attempt: Attempt, candidate: Candidate, *, full: bool
    ) -> SearchJudgement | None:
        """The verdict that a killed process had reached; None: it had not."""


async def _nothing(attempt: Attempt, candidate: Candidate, *, full: bool) -> SearchJudgement | None:
    return None


@dataclass
class _Health:
    """Of one slow proposer, whose prompts in flight fail together."""

    failures: int = 0
    again: float = 0.0
    """When it is asked again, on the event loop's clock."""
    out: bool = False


@dataclass(kw_only=True)
class SearchLoop:
    """One search of one target; run it once."""

    task: SearchTask
    strategy: Strategy
    proposers: Sequence[Proposer]
    """Slow ones."""
    moves: Mapping[Move, Proposer]
    """Quick ones, by what they do."""
    judge: SearchJudge
    archive: MemoryArchive
    budget: SpentBudget
    workers: SearchWorkers
    report: Report = lambda progress: None
    digest: attempts.Digest = lambda judged: {}
    recall: Recall = _nothing
    learn: Callable[[Attempt], None] = lambda attempt: None
    retry_s: Sequence[float] = RETRY_S
    notes: list[str] = field(default_factory=list)
    """What was lost on the way: cause and remedy."""

    def __post_init__(self) -> None:
        self._queue: deque[DraftedAttempt] = deque()
        self._changed = Signal()
        self._drafting = asyncio.Lock()
        """The engine behind the quick proposers is one."""
        self._health = {proposer.name: _Health() for proposer in self.proposers}
        self._generating, self._judging, self._resting, self._workers = 0, 0, 0, 0
        self._lost = 0
        """Judgements that failed in a row."""
        self._reason: StopReason | None = None
        self._failure: Exception | None = None
        self._before = self.archive.reserve()
        """Attempts with smaller numbers are of an earlier run."""

    async def run(self) -> StopReason:
        """Searches until something of the budget is used up, and says what. Raises what the judge
        raises: EvaluationError."""
        self._queue.extend(await self._left())
        self._check()
        asking = [
            functools.partial(self._generate, one) for one in self.proposers
        ] * self.workers.samples
        slow = [asyncio.create_task(self._worker(work)) for work in asking]
        judging = [
            asyncio.create_task(self._worker(self._judge_next)) for _ in range(self.workers.judges)
        ]
        self._workers = len(slow) + len(judging)
        try:
            await self._until_stopped()
            await _end(slow)
            if self._failure is None and self._reason not in AT_ONCE:
                await asyncio.gather(*judging)
        finally:
            await _end([*slow, *judging])
        if self._failure is not None:
            raise self._failure
        assert self._reason is not None
        return self._reason

    async def _left(self) -> list[DraftedAttempt]:
        """What an earlier run had begun, and quick verdicts that it did not come to judge in full.

        A full verdict may lie there that did not come into the archive: it was killed, or the disk
        was full."""
        for attempt, candidate in [*self._quick_ones(), *self.archive.unfinished]:
            if found := await self.recall(attempt, candidate, full=True):
                self.archive.add(self._done(attempt, found, full=True))
        leader = best(self.archive.attempts)
        waiting = [job for job in self._quick_ones() if looks_better(job[0], leader)]
        return [*self.archive.unfinished, *waiting]

    def _quick_ones(self) -> list[DraftedAttempt]:
        return [
            (attempt, attempt.candidate)
            for attempt in self.archive.attempts
            if attempt.candidate
            and not attempt.complete
            and attempt.fitness
            and attempt.move is not Move.SEED
        ]

    async def _until_stopped(self) -> None:
        while self._going():
            try:
                async with asyncio.timeout(self.budget.seconds_left(self.archive)):
                    await self._changed.wait()
            except TimeoutError:
                self._stop(StopReason.SECONDS)

    async def _worker(self, work: Callable[[], Awaitable[None]]) -> None:
        """One that fails ends the search with its failure."""
        try:
            await work()
        except Exception as error:  # whatever it is, the caller of run() gets it
            self._failure = self._failure or error
            self._notify()
        finally:
            self._workers -= 1
            self._look_for_the_end()

    # --- ends -------------------------------------------------------------------------------

    def _going(self) -> bool:
        return self._reason is None and self._failure is None

    def _stop(self, reason: StopReason) -> None:
        self._reason = self._reason or reason
        self._notify()

    def _notify(self) -> None:
        """Everybody looks again, so nobody counts as resting."""
        self._resting = 0
        self._changed.give()

    def _check(self) -> None:
        if self._going() and (reason := self.budget.stop(self.archive)):
            self._stop(reason)

    async def _rest(self, seen: int) -> None:
        """Nothing to do until something changes; when that holds for everybody, nothing will.

        ``seen``: the state of things when there was nothing to do.
        """
        if self._changed.count == seen and self._going():
            self._resting += 1
            self._look_for_the_end()
            await self._changed.wait(seen)

    def _look_for_the_end(self) -> None:
        if self._going() and self._resting >= self._workers and not self._queue:
            self._stop(StopReason.EXHAUSTED)

    # --- generation -------------------------------------------------------------------------

    async def _generate(self, proposer: Proposer) -> None:
        """One sample of a slow proposer after the other."""
        health = self._health[proposer.name]
        while self._going() and not health.out:
            seen = self._changed.count
            if len(self._queue) + self._generating >= self.workers.most:
                await self._changed.wait(seen)
            elif (wait := health.again - _now()) > 0:
                await asyncio.sleep(wait)
            elif (context := self._chosen(slow=True)) is None:
                await self._rest(seen)
            else:
                failures = health.failures
                draft = await self._asked(proposer, context, health)
                if draft is None and health.failures == failures:
                    await self._rest(seen)
                    continue
                if draft is not None and (job := self._noted(proposer, context, draft)):
                    self._queue.append(job)
                self._notify()

    def _chosen(self, *, slow: bool) -> Context | None:
        """Only what is chosen takes a number: models read these, and how often nothing was to
        be chosen depends on the clock."""
        context = self.strategy.choose(self.archive, self.archive.upcoming, slow=slow)
        if context is not None:
            self.archive.reserve()
        return context

    async def _asked(
        self, proposer: Proposer, context: Context, health: _Health
    ) -> ProposedDraft | None:
        """None: it has nothing to propose, or failed."""
        before = health.failures
        async with self.workers.generating():
            self._generating += 1
            try:
                draft = await proposer.propose(self.task, context)
            except BackboneError as error:
                if health.failures == before:  # not counted for another prompt in flight
                    self._failed(proposer, health, error)
                return None
            except RewriteError as error:
                return ProposedDraft(complaint=str(error))
            finally:
                self._generating -= 1
        health.failures = 0
        return draft

    def _failed(self, proposer: Proposer, health: _Health, error: BackboneError) -> None:
        if health.failures < len(self.retry_s):
            wait = self.retry_s[health.failures]
            health.again = _now() + wait
            self._say(f"{proposer.name}: {error}; asked again in {wait:.0f} s")
        else:
            health.out = True
            self.notes.append(
                f"{proposer.name} failed {health.failures + 1} times and was left out: {error}"
            )
            self._say(self.notes[-1])
        health.failures += 1

    async def _quick(self) -> DraftedAttempt | None:
        """A candidate without a language model; None: nobody has one now."""
        async with self._drafting:
            for _ in range(MAX_DRAWS if self.moves else 0):
                if not self._going() or (context := self._chosen(slow=False)) is None:
                    return None
                if (made := await self._moved(context)) and (job := self._noted(*made)):
                    return job
        return None

    async def _moved(self, context: Context) -> tuple[Proposer, Context, ProposedDraft] | None:
        """What the chosen move makes of it, or else the others."""
        for move in sorted(self.moves, key=lambda move: move is not context.move):
            tried = replace(context, move=move)
            if draft := await self.moves[move].propose(self.task, tried):
                return self.moves[move], tried, draft
        return None

    def _noted(
        self, proposer: Proposer, context: Context, draft: ProposedDraft
    ) -> DraftedAttempt | None:
        """What is to be judged of a draft; one that is of no use is an attempt all the same."""
        attempt = attempts.begin_attempt(proposer.name, context, draft)
        said = draft.exchanges, draft.drafts
        if draft.candidate is not None:
            candidate = attempts.stamp_candidate(draft.candidate, attempt, context, self.archive.id)
            if (earlier := self.archive.begin(attempt, candidate, *said)) is None:
                return attempt, candidate
            attempt = replace(attempt, complaint=f"same as attempt {earlier.number}")
        self.archive.add(attempt, *said)
        self._check()
        return None

    # --- judging ----------------------------------------------------------------------------

    async def _judge_next(self) -> None:
        while self._going():
            seen = self._changed.count
            if count_judged(self.archive.attempts) + self._judging >= self.budget.limits.candidates:
                await self._rest(seen)
                continue
            self._judging += 1  # before the quick proposers are waited for: the limit is exact
            try:
                job = self._queue.popleft() if self._queue else await self._quick()
                if job is not None and self._going():
                    self._notify()
                    await self._judgement(*job)
            finally:
                self._judging -= 1
            if job is None:
                await self._rest(seen)
            else:
                self._check()
                self._notify()

    async def _judgement(self, attempt: Attempt, candidate: Candidate) -> None:
        """Again later when it failed and others did not: a busy device must not end a long
        search."""
        try:
            await self._verdict(attempt, candidate)
        except EvaluationError as error:
            self._lost += 1
            known = {one.number: one for one in self.archive.attempts}
            if self._lost > MAX_LOST or not any(one.proposal for one in known.values()):
                raise
            self._queue.append((known.get(attempt.number, attempt), candidate))
            self._say(f"a judgement failed and is repeated: {error}")
        else:
            self._lost = 0

    async def _verdict(self, attempt: Attempt, candidate: Candidate) -> None:
        """Judged quickly, and in full when it looks better than the best."""
        if attempt.proposal is None:
            attempt = await self._judged(attempt, candidate, full=False)
            self.archive.add(attempt)
        if looks_better(attempt, best(self.archive.attempts)):
            attempt = await self._judged(attempt, candidate, full=True)
            self.archive.add(attempt)
        self._tell(attempt)

    async def _judged(self, attempt: Attempt, candidate: Candidate, *, full: bool) -> Attempt:
        if attempt.number < self._before and (
            found := await self.recall(attempt, candidate, full=full)
        ):
            return self._done(attempt, found, full=full)
        async with self.workers.judging():
            start = time.monotonic()
            found = await self.judge(candidate, full=full)
            return self._done(attempt, found, full=full, seconds=time.monotonic() - start)

    def _done(
        self, attempt: Attempt, found: SearchJudgement, *, full: bool, seconds: float | None = None
    ) -> Attempt:
        """``seconds``: of wall time; None: as the verdict says."""
        taken = found.proposal.evaluation.seconds or 0.0 if seconds is None else seconds
        gpu = self.task.device == "cuda"
        return attempts.finish_attempt(
            attempt, found, self.digest, full=full, seconds=taken, gpu=gpu
        )

    # --- words ------------------------------------------------------------------------------

    def _tell(self, attempt: Attempt) -> None:
        self.learn(attempt)
        leads = attempt.complete and best(self.archive.attempts) == attempt
        faster = (
            leads and attempt.proposal is not None and attempt.proposal.verdict is Verdict.FASTER
        )
        self._say(self._state(), attempt.proposal if faster else None)

    def _say(self, message: str, proposal: Proposal | None = None) -> None:
        done, total = count_judged(self.archive.attempts), self.budget.limits.candidates
        self.report(
            Progress(phase="search", message=message, done=done, total=total, proposal=proposal)
        )

    def _state(self) -> str:
        """``round 12 · 4 generating, 1 judging · best 1.83x (1.79–1.87) · 41k tokens``"""
        known, tokens = self.archive.attempts, self.archive.cost.tokens
        leader = best(known)
        shown = leader.proposal.evaluation.speedup if leader and leader.proposal else None
        parts = (
            f"round {count_judged(known)}",
            f"{self._generating} generating, {self._judging} judging" if self.proposers else "",
            f"best {shown.mid:.2f}x ({shown.low:.2f}–{shown.high:.2f})"
            if shown
            else "nothing faster yet",
            f"{tokens / 1000:.0f}k tokens" if tokens else "",
        )
        return " · ".join(part for part in parts if part)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
