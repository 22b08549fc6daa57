"""One verification: tasks one after the other or side by side, until the verdict is known.

Several tasks may be under way at once: while one is read and compiled, the device times another.
Not covered: what the pairs show (library/uplift.py), what is done with it (commands/skills.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernel_lsp.cache import Cache
from kernel_lsp.errors import CaptureError, EvaluationError, RewriteError, WorkloadError
from kernel_lsp.library import uplift
from kernel_lsp.library.store import Shelved, now
from kernel_lsp.pipeline import recipes
from kernel_lsp.pipeline.deep import kind_of
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.pipeline.order import Pipeline
from kernel_lsp.pipeline.skill_validation import pairs, treatment
from kernel_lsp.pipeline.skill_validation.prompted import PromptedWriter
from kernel_lsp.pipeline.skill_validation.tasks import ValidationTask, mix_families, targets
from kernel_lsp.pipeline.skill_validation.treatment import ValidationArms
from kernel_lsp.pipeline.skill_validation.trials import ValidationTrials, conclude
from kernel_lsp.records import Attempt, Json, Progress, Report, Skill, TaskUplift, Verification
from kernel_lsp.skillbook import conditions

MAX_LOST = 3
"""Tasks in a row that cannot be judged: then it is not the tasks."""
PASSED_OVER = (CaptureError, RewriteError, WorkloadError)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerificationRequest:
    """One verification."""

    tasks: tuple[Path, ...]
    targets: tuple[ValidationTask, ...] = ()
    """Instead of ``tasks``: of a workspace."""
    samples: int = 3
    most: int = 6
    """Tasks that the skill changes; no further one is judged."""
    jobs: int = 1
    """Tasks under way at once; on a CPU they would disturb each other."""
    fresh: bool = False
    """Judge again what earlier runs have judged."""
    allowed_origin: str | None = None
    """The remote endpoint that programs of the tasks may be sent to, for skills that are text."""


@dataclass(kw_only=True)
class Validating:
    """One verification under way."""

    pipeline: Pipeline
    shelved: Shelved
    library: Sequence[Skill]
    """Verified skills, in no particular order."""
    asked: VerificationRequest
    report: Report
    _tasks: list[TaskUplift] = field(default_factory=list)
    _rows: list[dict[str, float]] = field(default_factory=list)
    """Per task that was judged: learned skill (or "" for none of them) -> mean gain."""
    _skipped: Counter[str] = field(default_factory=Counter)
    _twins: Counter[str] = field(default_factory=Counter)
    """Other skill -> tasks on which it leads to the same candidate."""
    _about: Json = field(default_factory=dict)
    _writer: PromptedWriter | None = None
    """Of a skill that is text."""
    _busy: int = 0
    """Tasks under way."""
    _lost: int = 0
    """Tasks that could not be judged, since one could."""
    _met: set[str] = field(default_factory=set)
    """What was opened: two files may hold one task."""

    @property
    def skill(self) -> Skill:
        """The skill that is being verified."""
        return self.shelved.skill

    async def run(self) -> Verification:
        """Judges task after task until enough were, none is left, or the skill is shown to be wrong
        or to do harm.

        Raises KernelLspError."""
        if not self.skill.recipe and self.pipeline.settings.policy == "plan":
            remedy = (
                "name one that reads it, e.g. --policy openai --endpoint http://127.0.0.1:8000/v1"
            )
            raise EvaluationError(
                f"{self.skill.name} is text, and no language model is set", remedy
            )
        every = self.asked.targets or targets(self.asked.tasks, self.skill.scope)
        waiting = iter(mix_families(every, self.skill.name))
        count = self.asked.jobs if self.skill.recipe else 1  # a language model is asked in turn
        workers = [asyncio.create_task(self._work(waiting)) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:  # a failure of one, or a cancellation, ends all
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            if self._writer is not None:
                await self._writer.backbone.close()
        return self._verified()

    async def _work(self, waiting: Iterator[ValidationTask]) -> None:
        """One task after the other, as long as those that count and those under way are too few."""
        while self._open and (task := next(waiting, None)) is not None:
            self._busy += 1
            try:
                await self._task(task)
                self._lost = 0
            except PASSED_OVER as error:
                self._skip(task, "cannot be captured", str(error))
            except EvaluationError as error:
                self._lost += 1
                if self._lost == MAX_LOST:
                    raise
                self._skip(task, "cannot be judged", str(error))
            finally:
                self._busy -= 1

    @property
    def _open(self) -> bool:
        wrong = self.skill.recipe and uplift.fallen(self._tasks)
        return (
            not (wrong or uplift.hopeless(self._tasks))
            and len(uplift.counted_tasks(self._tasks)) + self._busy < self.asked.most
        )

    # --- one task ----------------------------------------------------------------------------

    async def _task(self, task: ValidationTask) -> None:
        self._say(f"reading {task.name}")
        async with self.pipeline.opened(task.job(self.pipeline.settings.device)) as one:
            if one.prepared.target.fingerprint == self.shelved.papers.origin.fingerprint:
                return self._skip(task, "the task that it was learned from")
            identity = Cache.key(**one.identity())
            if identity in self._met:
                return self._skip(task, "the same as another task")
            self._met.add(identity)
            around = recipes.surroundings(one.bench, one.capture.inputs)
            if problem := next(conditions.unmet(self.skill.requires, around), None):
                return self._skip(task, "outside of its requirements", problem)
            self._about |= {
                "hardware": kind_of(one.bench),
                "torch": around.torch,
                "triton": around.triton,
            }
            if not self.skill.recipe:
                return await self._judge_text(task, one)
            made = await treatment.arms(self.skill, self.library, one, self.pipeline, self.report)
            if made is None:
                return self._skip(task, "its sites do not occur")
            self._twins.update(
                name for name, rival in made.rivals.items() if rival.id == made.mine.id
            )
            await self._judge(task, one, made)
        return None

    async def _judge(self, task: ValidationTask, one: Opened, made: ValidationArms) -> None:
        """Without a difference there is nothing to judge."""
        samples: list[dict[str, Attempt]] = []
        for number in range(self.asked.samples if made.differs else 0):
            self._say(f"{task.title}: sample {number + 1} of {self.asked.samples}")
            samples.append(await self._trials.sample(one, made.every(), number))
            self._note(samples[-1].values())
        whole = [found for found in samples if pairs.is_whole(found, made)]
        if len(whole) < len(samples):
            self._skipped["samples that could not be judged"] += len(samples) - len(whole)
        if whole:
            mine = {self.skill.name: made.mine, **made.rivals, "": made.null}
            self._rows.append(
                {name: pairs.gain(whole, candidate) for name, candidate in mine.items()}
            )
        self._tasks.append(pairs.of_arms(task, one, made, whole))

    async def _judge_text(self, task: ValidationTask, one: Opened) -> None:
        """What a model writes first with the text of the skill, and without it."""
        if self._writer is None:
            python, allowed = one.bench.probe.python, self.asked.allowed_origin
            settings = self.pipeline.settings
            self._writer = await PromptedWriter.open(
                self.skill, settings, python, allowed, self.report
            )
            self._about["model"] = self._writer.info.name
        text = hashlib.sha256(self.skill.body.encode()).hexdigest()
        samples = []
        for number in range(self.asked.samples):
            self._say(f"{task.title}: sample {number + 1} of {self.asked.samples}")
            archive = self._trials.archive(one, number, text=text, model=self._writer.info.name)
            try:
                samples.append(await self._writer.pair(one, archive, number, conclude))
            finally:
                archive.close()
            self._note(half for half in (samples[-1].mine, samples[-1].without) if half is not None)
        found = pairs.of_text(task, one, samples)
        self._tasks.append(found)
        self._rows.append({self.skill.name: found.gain_with, "": found.gain_without})

    @property
    def _trials(self) -> ValidationTrials:
        return ValidationTrials(
            data_dir=Path(self.pipeline.settings.data_dir), fresh=self.asked.fresh
        )

    def _note(self, judged: Iterable[Attempt]) -> None:
        """The device that judged."""
        for attempt in judged:
            if attempt.proposal is not None:
                self._about["device_name"] = attempt.proposal.evaluation.device_name

    # --- the end -----------------------------------------------------------------------------

    def _verified(self) -> Verification:
        drawn = not self.skill.recipe
        accepted, found, reason = uplift.verdict(self._tasks, drawn=drawn)
        undecided = uplift.is_open(self._tasks, drawn=drawn)
        if twin := self._twin():
            accepted, undecided = False, False
            reason = f"leads to the same candidates as {twin} on all {len(self._tasks)} tasks"
        names = sorted({name for row in self._rows for name in row if name})
        known = {name: self._about.get(name) for name in ("torch", "triton", "model")}
        return Verification(
            hardware=self._about.get("hardware", "unknown"),
            device_name=self._about.get("device_name"),
            created=now(),
            accepted=accepted,
            undecided=undecided,
            reason=reason
            if self._tasks
            else f"it applies to none of the tasks: {_count_skipped(self._skipped)}",
            uplift=found,
            tasks=tuple(self._tasks),
            credit=uplift.credits(self._rows, names),
            skipped=dict(self._skipped),
            versions={name: str(value) for name, value in known.items() if value},
        )

    def _twin(self) -> str | None:
        """Another learned skill that leads to the same candidate on every task."""
        every = len(self._tasks)
        found = next((name for name, count in self._twins.items() if count == every), None)
        return found if every >= uplift.MIN_TASKS else None

    def _skip(self, task: ValidationTask, reason: str, detail: str = "") -> None:
        self._skipped[reason] += 1
        self._say(f"{task.name} is passed over: {detail or reason}")

    def _say(self, message: str) -> None:
        done = len(uplift.counted_tasks(self._tasks))
        self.report(Progress(phase="verify", message=message, done=done, total=self.asked.most))


def _count_skipped(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "there was none"
