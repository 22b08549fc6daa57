"""Whether a learned skill helps: what is suggested first with it and without it, on other tasks than its own.

On each task the arms are: with the skill, without it (the rest of the learned library), and none of the
learned library at all. An arm's first candidate is judged against eager several times, with and without one
after the other; every judgement lies in a search archive of its own per task and sample before the next is
begun, so a run that is killed goes on where it was, and another skill's run does not judge the same candidate
again. Several tasks may be under way at once: while one is read and compiled, the device times another.
For a skill that is text the first candidate is what a language model writes (prompted.py).
Not covered: what the pairs show (library/uplift.py), what is done with it (commands/skills.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from kernel_lsp import analysis
from kernel_lsp.agents import feedback
from kernel_lsp.agents import plan as planning
from kernel_lsp.agents.learned import LearnedPlanner
from kernel_lsp.cache import Cache
from kernel_lsp.errors import CaptureError, EvaluationError, RewriteError, WorkloadError
from kernel_lsp.files import read_source
from kernel_lsp.library import uplift
from kernel_lsp.library.store import Shelved, now
from kernel_lsp.pipeline import recipes
from kernel_lsp.pipeline.deep import kind_of
from kernel_lsp.pipeline.known import Known
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.pipeline.order import Pipeline
from kernel_lsp.pipeline.prompted import Pair, Writer
from kernel_lsp.records import (
    Attempt,
    Candidate,
    Context,
    Draft,
    EvalStatus,
    Job,
    Json,
    Judged,
    Move,
    Progress,
    Site,
    Skill,
    Snapshot,
    TargetKind,
    TaskUplift,
    Verification,
)
from kernel_lsp.search import attempts
from kernel_lsp.search.archive import SUFFIX, SqliteArchive
from kernel_lsp.skillbook import conditions

Report = Callable[[Progress], None]
FOLDER = "library/trials"
"""In the user's data folder."""
MOST_RIVALS = 3
"""Other learned skills that take part in one task."""
MOST_TRIES = 3
"""Of one judgement that could not be reached: the device was busy, a process was lost."""
MOST_LOST = 3
"""Tasks in a row that cannot be judged: then it is not the tasks."""
PASSED_OVER = (CaptureError, RewriteError, WorkloadError)
NO_TASKS = (
    "name a folder or files with Model and get_inputs, as `kernel-lsp bench` takes them, or with Triton"
    " kernels and their launchers, with --tasks"
)
MODEL = "Model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One verification."""

    tasks: tuple[Path, ...]
    samples: int = 3
    most: int = 6
    """Tasks that the skill changes; no further one is judged."""
    jobs: int = 1
    """Tasks under way at once; on a CPU they would disturb each other."""
    fresh: bool = False
    """Judge again what earlier runs have judged."""
    allowed_origin: str | None = None
    """The remote endpoint that programs of the tasks may be sent to, for skills that are text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One target that a skill is shown on."""

    path: Path
    qualname: str = MODEL

    @property
    def name(self) -> str:
        return self.path.name if self.qualname == MODEL else f"{self.path.name}::{self.qualname}"

    @property
    def title(self) -> str:
        return self.path.stem if self.qualname == MODEL else f"{self.path.stem}::{self.qualname}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Arms:
    """First candidates for one task."""

    mine: Candidate
    without: Candidate | None
    """Of the library without the skill; None: it leaves the program as it is."""
    null: Candidate | None
    rivals: Mapping[str, Candidate]
    """Other learned skill -> its candidate."""

    @property
    def differs(self) -> bool:
        return self.without is None or self.mine.id != self.without.id

    def every(self) -> dict[str, Candidate]:
        """By id, each once."""
        known = (self.without, self.mine, self.null, *self.rivals.values())
        return {one.id: one for one in known if one is not None}


class _Forgetful(Known):
    """Remembers nothing: what one user knows must not decide what helps."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def best(self, site: Site) -> Json | None:
        return None


@dataclass(kw_only=True)
class Proving:
    """One verification under way."""

    pipeline: Pipeline
    shelved: Shelved
    library: Sequence[Skill]
    """Verified skills, in no particular order."""
    asked: Asked
    report: Report
    _tasks: list[TaskUplift] = field(default_factory=list)
    _rows: list[dict[str, float]] = field(default_factory=list)
    """Per task that was judged: learned skill (or "" for none of them) -> mean gain."""
    _skipped: Counter[str] = field(default_factory=Counter)
    _twins: Counter[str] = field(default_factory=Counter)
    """Other skill -> tasks on which it leads to the same candidate."""
    _about: Json = field(default_factory=dict)
    _writer: Writer | None = None
    """Of a skill that is text."""
    _busy: int = 0
    """Tasks under way."""
    _lost: int = 0
    """Tasks that could not be judged, since one could."""
    _met: set[str] = field(default_factory=set)
    """What was opened: two files may hold one task."""

    async def run(self) -> Verification:
        """Until enough tasks were judged, none is left, or it is shown to be wrong or to do harm.

        Raises KernelLspError.
        """
        if not self.skill.recipe and self.pipeline.settings.policy == "plan":
            remedy = "name one that reads it, e.g. --policy openai --endpoint http://127.0.0.1:8000/v1"
            raise EvaluationError(f"{self.skill.name} is text, and no language model is set", remedy)
        waiting = iter(_mixed(targets(self.asked.tasks, self.skill.scope), self.skill.name))
        lanes = self.asked.jobs if self.skill.recipe else 1  # a language model is asked in turn
        tasks = [asyncio.create_task(self._lane(waiting)) for _ in range(lanes)]
        try:
            await asyncio.gather(*tasks)
        finally:  # a failure of one, or a cancellation, ends all
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._writer is not None:
                await self._writer.backbone.close()
        return self._verified()

    async def _lane(self, waiting: Iterator[Task]) -> None:
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
                if self._lost == MOST_LOST:
                    raise
                self._skip(task, "cannot be judged", str(error))
            finally:
                self._busy -= 1

    @property
    def _open(self) -> bool:
        wrong = self.skill.recipe and uplift.fallen(self._tasks)
        return (
            not (wrong or uplift.hopeless(self._tasks))
            and len(uplift.counted(self._tasks)) + self._busy < self.asked.most
        )

    @property
    def skill(self) -> Skill:
        return self.shelved.skill

    # --- one task ----------------------------------------------------------------------------

    async def _task(self, task: Task) -> None:
        self._say(f"reading {task.name}")
        job = _job(task, self.pipeline.settings.device)
        async with self.pipeline.opened(job) as one:
            if one.prepared.target.fingerprint == self.shelved.papers.origin.fingerprint:
                return self._skip(task, "the task that it was learned from")
            identity = Cache.key(**one.identity())
            if identity in self._met:
                return self._skip(task, "the same as another task")
            self._met.add(identity)
            around = recipes.surroundings(one.bench, one.capture.inputs)
            if problem := next(conditions.unmet(self.skill.requires, around), None):
                return self._skip(task, "outside of its requirements", problem)
            self._about |= {"hardware": kind_of(one.bench), "torch": around.torch, "triton": around.triton}
            if not self.skill.recipe:
                return await self._judge_text(task, one)
            arms = await self._arms(one)
            if arms is None:
                return self._skip(task, "its sites do not occur")
            self._twins.update(name for name, rival in arms.rivals.items() if rival.id == arms.mine.id)
            await self._judge(task, one, arms)
        return None

    async def _arms(self, one: Opened) -> Arms | None:
        mine = await recipes.course_of(self.skill, one)
        if mine is None:
            return None
        planner = self._planner(one)
        triton = one.bench.device == "cuda" and one.bench.probe.triton is not None
        first = await anext(planner.courses(one.sites, triton=triton), None)
        null = first.candidate if first else None
        rivals = {}
        for other in self._others(one)[:MOST_RIVALS]:
            if (course := await recipes.course_of(other, one)) is not None:
                rivals[other.name] = course.candidate
        return Arms(mine=mine.candidate, without=next(iter(rivals.values()), null), null=null, rivals=rivals)

    def _planner(self, one: Opened) -> planning.Planner | LearnedPlanner:
        """What would plan here, without the parameters that this user's own searches have found."""
        if one.bench.policy is None:
            return planning.Planner(one.engine.make, one.engine.look, weigh=one.engine.weigh)
        return self.pipeline.policies.planner(replace(one, known=_Forgetful()), self.report)

    def _others(self, one: Opened) -> list[Skill]:
        around = recipes.surroundings(one.bench, one.capture.inputs)
        others = (skill for skill in self.library if skill.recipe and skill.name != self.skill.name)
        return [skill for skill in others if not any(conditions.unmet(skill.requires, around))]

    async def _judge(self, task: Task, one: Opened, arms: Arms) -> None:
        """Without a difference there is nothing to judge."""
        samples: list[dict[str, Attempt]] = []
        for number in range(self.asked.samples if arms.differs else 0):
            self._say(f"{task.title}: sample {number + 1} of {self.asked.samples}")
            samples.append(await self._sample(one, arms, number))
        pairs = [found for found in samples if _judged(found, arms)]
        if len(pairs) < len(samples):
            self._skipped["samples that could not be judged"] += len(samples) - len(pairs)
        if arms.differs and pairs:
            mine = {self.skill.name: arms.mine, **arms.rivals}
            row = {name: fmean(_gain(found, made) for found in pairs) for name, made in mine.items()}
            self._rows.append({**row, "": fmean(_gain(found, arms.null) for found in pairs)})
        self._tasks.append(_task_uplift(task, one, arms, pairs))

    async def _sample(self, one: Opened, arms: Arms, number: int) -> dict[str, Attempt]:
        """Every arm's candidate judged once; which comes first changes with the number, against drift."""
        archive = self._archive(one, number)
        try:
            every = list(arms.every().values())
            if number % 2:
                every.reverse()
            found = {}
            for candidate in every:
                attempt = await self._attempt(one, archive, candidate)
                if attempt is not None:
                    found[candidate.id] = attempt
            return found
        finally:
            archive.close()

    def _archive(self, one: Opened, number: int, **more: str) -> SqliteArchive:
        """Of one sample of a task. ``more``: what else its candidates depend on."""
        identity = {**one.identity(), "sample": number, **more}
        folder = Path(self.pipeline.settings.data_dir) / FOLDER
        path = folder / f"{Cache.key(**identity)[:24]}-{number}{SUFFIX}"
        return SqliteArchive.open(path, identity, fresh=self.asked.fresh)

    async def _attempt(self, one: Opened, archive: SqliteArchive, candidate: Candidate) -> Attempt | None:
        """What is known of it in this sample, else its judgement; None: it could not be judged."""
        context = Context(number=archive.reserve(), seed=0, move=Move.SEED)
        attempt = attempts.begun(candidate.proposer, context, Draft(candidate=candidate))
        stamped = attempts.stamped(candidate, attempt, context, archive.id)
        if (earlier := archive.begin(attempt, stamped)) is not None:
            if earlier.proposal is not None:
                return self._told(earlier)
            attempt, stamped = next(pair for pair in archive.unfinished if pair[0].number == earlier.number)
        return await self._concluded(one, archive, attempt, stamped)

    async def _concluded(
        self, one: Opened, archive: SqliteArchive, attempt: Attempt, stamped: Candidate
    ) -> Attempt | None:
        """Judged and kept, unless a killed run had come to that."""
        found = one.tournament.recalled(stamped, full=False) or await self._judged(one, stamped)
        if found is None:
            return None
        seconds = found.proposal.evaluation.seconds or 0.0
        gpu = one.bench.device == "cuda"
        done = attempts.done(attempt, found, feedback.digest, full=False, seconds=seconds, gpu=gpu)
        archive.add(done)
        return self._told(done)

    def _told(self, attempt: Attempt) -> Attempt:
        if attempt.proposal is not None:
            self._about["device_name"] = attempt.proposal.evaluation.device_name
        return attempt

    async def _judged(self, one: Opened, candidate: Candidate) -> Judged | None:
        """What could not be judged is not kept: the next run tries again."""
        for again in range(MOST_TRIES):
            try:
                found = await one.tournament.judged(candidate, full=False)
            except EvaluationError:
                if again == MOST_TRIES - 1:
                    raise
                continue
            if found.proposal.evaluation.status is not EvalStatus.NOT_RUN:
                return found
        return None

    # --- text --------------------------------------------------------------------------------

    async def _judge_text(self, task: Task, one: Opened) -> None:
        """What a model writes first with the text of the skill, and without it."""
        if self._writer is None:
            python, allowed = one.bench.probe.python, self.asked.allowed_origin
            settings = self.pipeline.settings
            self._writer = await Writer.open(self.skill, settings, python, allowed, self.report)
            self._about["model"] = self._writer.info.name
        text = hashlib.sha256(self.skill.body.encode()).hexdigest()
        pairs = []
        for number in range(self.asked.samples):
            self._say(f"{task.title}: sample {number + 1} of {self.asked.samples}")
            archive = self._archive(one, number, text=text, model=self._writer.info.name)
            try:
                pairs.append(await self._writer.pair(one, archive, number, self._concluded))
            finally:
                archive.close()
        found = _text_uplift(task, one, pairs)
        self._tasks.append(found)
        self._rows.append({self.skill.name: found.gain_with, "": found.gain_without})

    # --- the end -----------------------------------------------------------------------------

    def _verified(self) -> Verification:
        drawn, every = not self.skill.recipe, len(self._tasks)
        accepted, found, reason = uplift.verdict(self._tasks, drawn=drawn)
        undecided = uplift.is_open(self._tasks, drawn=drawn)
        twin = next((name for name, count in self._twins.items() if count == every), None)
        if twin is not None and every >= uplift.LEAST_TASKS:
            accepted, undecided = False, False
            reason = f"leads to the same candidates as {twin} on all {every} tasks"
        names = sorted({name for row in self._rows for name in row if name})
        about = {
            name: str(self._about[name]) for name in ("torch", "triton", "model") if self._about.get(name)
        }
        return Verification(
            hardware=self._about.get("hardware", "unknown"),
            device_name=self._about.get("device_name"),
            created=now(),
            accepted=accepted,
            undecided=undecided,
            reason=reason if self._tasks else f"it applies to none of the tasks: {_counted(self._skipped)}",
            uplift=found,
            tasks=tuple(self._tasks),
            credit=uplift.credits(self._rows, names),
            skipped=dict(self._skipped),
            versions=about,
        )

    def _skip(self, task: Task, reason: str, detail: str = "") -> None:
        self._skipped[reason] += 1
        self._say(f"{task.name} is passed over: {detail or reason}")

    def _say(self, message: str) -> None:
        done = len(uplift.counted(self._tasks))
        self.report(Progress(phase="verify", message=message, done=done, total=self.asked.most))


def _job(task: Task, device: str) -> Job:
    # As in the background no baseline is compiled on suspicion: everything here is compared with eager.
    return Job(
        text=_text(task.path), path=str(task.path), qualname=task.qualname, device=device, background=True
    )


def _text(path: Path) -> str:
    try:
        return read_source(path).text
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise CaptureError(f"{path} cannot be read: {error}") from error


def tasks_of(places: Sequence[Path]) -> tuple[Path, ...]:
    """Files with class Model or with Triton kernels, of folders all below. Raises EvaluationError when there
    is none."""
    found: list[Path] = []
    for place in places:
        if not place.exists():
            raise EvaluationError(f"{place} does not exist", NO_TASKS)
        found += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    texts = {path: path.read_text(errors="replace") for path in found}
    tasks = tuple(path for path, text in texts.items() if "class Model" in text or "triton.jit" in text)
    if not tasks:
        where = f" in {', '.join(map(str, places))}" if places else ""
        raise EvaluationError(f"no task to verify on{where or ' was named'}", NO_TASKS)
    return tasks


def targets(files: Sequence[Path], scope: str) -> list[Task]:
    """What a skill of this scope is shown on: of each file its Model, or every kernel that it launches."""
    if scope != "triton":
        return [Task(path=path) for path in files if "class Model" in path.read_text(errors="replace")]
    return [
        Task(path=path, qualname=target.qualname)
        for path in files
        for target in analysis.analyze(Snapshot(uri=path.absolute().as_uri(), text=_text(path))).targets
        if target.kind is TargetKind.TRITON_KERNEL and target.launchers
    ]


# --- numbers ------------------------------------------------------------------------------


def _judged(found: Mapping[str, Attempt], arms: Arms) -> bool:
    """Both halves of the pair are there."""
    return arms.mine.id in found and (arms.without is None or arms.without.id in found)


def _right(found: Mapping[str, Attempt], candidate: Candidate | None) -> bool:
    """The program as it is is right."""
    return candidate is None or _passed(found[candidate.id])


def _gain(found: Mapping[str, Attempt], candidate: Candidate | None) -> float:
    """0 too for a candidate that could not be judged in this sample."""
    return _worth(found.get(candidate.id)) if candidate is not None else 0.0


def _passed(attempt: Attempt) -> bool:
    return attempt.proposal is not None and attempt.proposal.evaluation.status is EvalStatus.PASSED


def _worth(attempt: Attempt | None) -> float:
    if attempt is None or attempt.proposal is None:
        return 0.0
    eager = attempt.proposal.evaluation.speedups.get("eager")
    return uplift.gain(_passed(attempt), eager.mid if eager else None)


def _text_uplift(task: Task, one: Opened, pairs: Sequence[Pair]) -> TaskUplift:
    whole = [(pair.mine, pair.without) for pair in pairs if pair.mine and pair.without]
    return TaskUplift(
        task=task.title,
        fingerprint=one.prepared.target.fingerprint,
        samples=len(whole),
        right_with=sum(_passed(mine) for mine, _ in whole),
        right_without=sum(_passed(without) for _, without in whole),
        gain_with=fmean(_worth(mine) for mine, _ in whole) if whole else 0.0,
        gain_without=fmean(_worth(without) for _, without in whole) if whole else 0.0,
        gain_null=fmean(_worth(without) for _, without in whole) if whole else 0.0,
        differs=bool(whole),
        elements=_elements(one),
    )


def _task_uplift(task: Task, one: Opened, arms: Arms, pairs: Sequence[Mapping[str, Attempt]]) -> TaskUplift:
    def mean(candidate: Candidate | None) -> float:
        return fmean(_gain(found, candidate) for found in pairs) if pairs else 0.0

    return TaskUplift(
        task=task.title,
        fingerprint=one.prepared.target.fingerprint,
        samples=len(pairs),
        right_with=sum(_right(found, arms.mine) for found in pairs),
        right_without=sum(_right(found, arms.without) for found in pairs),
        gain_with=mean(arms.mine),
        gain_without=mean(arms.without),
        gain_null=mean(arms.null),
        differs=arms.differs,
        elements=_elements(one),
    )


def _elements(one: Opened) -> int:
    sizes = (conditions.elements(spec) for spec in one.capture.inputs if spec.shape is not None)
    return max(sizes, default=0)


def _mixed(tasks: Sequence[Task], seed: str) -> list[Task]:
    """Families mixed, always in the same order for one skill: a run that goes on meets the same tasks."""
    return sorted(tasks, key=lambda task: hashlib.sha256(f"{seed}\0{task.name}".encode()).hexdigest())


def _counted(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "there was none"
