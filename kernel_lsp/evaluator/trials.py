"""The correctness half of an evaluation, seen from the parent: one trial after another, then the
verdict.

The parent passes raw bytes between judge and worker and decides nothing about values itself. No
torch. While the worker answers a trial, the judge compares the one before and draws the next,
which take as long where inputs are large. The verdicts come in the order of the plan all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from kernel_lsp.errors import EvaluationError, OutOfMemory
from kernel_lsp.evaluator.blame import JudgeQuestion, Original
from kernel_lsp.evaluator.findings import (
    PartialEvaluation,
    Rejected,
    candidate,
    failure_kind,
    guard_notes,
)
from kernel_lsp.evaluator.processes.sandbox import Party, ask_judge
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.records import EvalStatus, Json, Progress, Report

T = TypeVar("T")
Exchanged = tuple[Json, list[bytes]]
"""A message and the bytes of its tensors."""
MAX_AHEAD = 2**28
"""Elements of all arguments of a workload above which the judge holds the inputs of one trial at a
time."""
MIN_INFORMATIVE = 2
REMEDY = "choose a smaller workload, or end what else uses the memory"
UNSUPPORTED = "unsupported"
"""The worker's word for what only Triton's interpreter cannot run; elsewhere it is a failure like
others."""
REPLY_FIELDS = ("outputs", "state", "error", "generators", "relations", "marks", "names")
"""What of a worker's answer goes on to the judge."""


CIRCUMSTANCES = {
    "other_mode": "in the other mode",
    "autocast": "under autocast",
    "inference": "under inference_mode",
}
"""In words; see circumstances.py."""


class Trials:
    """The trials of one candidate in one session."""

    def __init__(
        self,
        request: EvaluationRequest,
        judge: Party,
        worker: Party,
        opened: Json,
        found: PartialEvaluation,
        begun: asyncio.Event,
    ) -> None:
        self.request, self.judge, self.worker = request, judge, worker
        self.opened, self.found, self.begun = opened, found, begun
        self.limit_s = request.budget.call_s
        self.informative: set[str] = set()
        """Families of values of the workload's own sizes for which something finite came out."""
        self.gradients = 0
        self.strides = ""
        self.asked: list[JudgeQuestion] = []
        """What the worker was asked since its last call of the candidate, that call first."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._loaded: set[str] = set()
        """Questions that the judge has been asked."""

    async def run(self, plan: list[Json], report: Report) -> None:
        """Runs all trials of the plan. Raises Rejected at the first difference."""
        try:
            await self._run_all(plan, report)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run_all(self, plan: list[Json], report: Report) -> None:
        ahead = self.opened["elements"] <= MAX_AHEAD
        drawing = self._beside(self._drawn(plan[0]))
        comparing: asyncio.Task[None] | None = None
        for trial, following in zip(plan, [*plan[1:], None], strict=True):
            text = f"checking values: {trial['family']}"
            report(Progress(phase="evaluate", message=text, done=trial["number"], total=len(plan)))
            question = await drawing
            running = self._beside(self._run(trial, *question))
            if comparing is not None:
                await comparing
            if following and ahead:
                drawing = self._beside(self._drawn(following))
            if trial is plan[0] and self.request.device == "cuda":
                self._beside(self._rehearsed())
            comparing = self._beside(self._judged(trial, question, await running))
            asks_more = trial["gradients"] or trial["repeat"]  # of the worker
            if asks_more or not ahead:
                await comparing
            if following and not ahead:
                drawing = self._beside(self._drawn(following))
        if comparing is not None:
            await comparing

    def _beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks = [known for known in self._tasks if not known.done()] + [task]
        return task

    async def _run(self, trial: Json, message: Json, blobs: list[bytes]) -> Exchanged:
        """The worker's answer; who does not survive a trial is told which one it was."""
        self.asked = [("run", message, blobs)]
        try:
            return await candidate(self.worker, "run", self.limit_s, blobs, **message)
        except Rejected as lost:
            inputs = ", ".join(filter(None, (trial["family"], variation(trial))))
            detail = f"{inputs}: {lost.detail}"
            raise Rejected(lost.status, detail, memory=lost.memory) from lost

    async def _drawn(self, trial: Json) -> Exchanged:
        """What the worker is asked."""
        drawn, blobs = await self._ask_judge("trial", number=trial["number"])
        shared = {name: self.opened[name] for name in ("changed", "aliases")}
        return {
            **shared,
            **drawn,
            "grad": trial["grad"],
            "single": trial["single"],
            "circumstance": trial["circumstance"],
            "held": trial["held"],
            "fresh": False,
        }, blobs

    async def _ask_judge(
        self, do: str, blobs: list[bytes] | None = None, **fields: Any
    ) -> Exchanged:
        """A GPU loads every kernel when it is first called, those of the oracle too: the first
        question of a kind may take as long as loading besides. Raises EvaluationError."""
        loading_s = 0.0 if do in self._loaded else self.request.budget.load_s
        self._loaded.add(do)
        return await ask_judge(self.judge, do, self.limit_s + loading_s, blobs, **fields)

    async def _rehearsed(self) -> None:
        """The judge is ready to compare; of one that is lost the comparison itself tells."""
        with contextlib.suppress(EvaluationError):
            await self._ask_judge("rehearse")

    async def _judged(self, trial: Json, question: Exchanged, answer: Exchanged) -> None:
        """The worker's answer to one trial with everything that belongs to it. Raises Rejected."""
        message, blobs = question
        verdict = await self._compare(trial, *answer)
        if "skip" in verdict:
            self._note(trial, "outputs", None, verdict["skip"])
        else:
            self.found.families.append(trial["family"])
            # Values and sizes at the edges are ours, not the workload's: finite results there say
            # nothing about the inputs that it has.
            at_an_edge = bool(trial.get("lenient")) or trial.get("group") is not None
            if verdict["informative"] and not at_an_edge:
                self.informative.add(trial["family"])
            self.strides = self.strides or verdict["note"]
            self.found.shapes[shapes_of(message["arguments"])] = None
            if trial["gradients"]:
                await self._gradients(trial)
            if trial["repeat"]:
                again = {**message, "fresh": True}
                await self._compare(trial, *await self._run(trial, again, blobs), again=True)
        self.begun.set()

    async def _compare(
        self, trial: Json, reply: Json, outputs: list[bytes], again: bool = False
    ) -> Json:
        if "error" not in reply:
            guard_notes(reply["notes"], self.found)
        record = {key: reply.get(key) for key in REPLY_FIELDS}
        number = trial["number"]
        verdict, _ = await self._ask_judge("compare", outputs, number=number, again=again, **record)
        if "skip" not in verdict:
            self._settle(trial, "repetition" if again else "outputs", verdict, reply)
        return verdict

    async def _gradients(self, trial: Json) -> None:
        number = trial["number"]
        weights, blobs = await self._ask_judge("cotangents", number=number)
        asked = {"twice": trial["twice"], "keep": trial["second"]}
        self.asked.append(("backward", {**asked, **weights}, blobs))
        reply, found = await candidate(
            self.worker, "backward", self.limit_s, blobs, **asked, **weights
        )
        if "error" not in reply:
            guard_notes(reply["notes"], self.found)
        record = {key: reply.get(key) for key in ("gradients", "again", "error")}
        verdict, _ = await self._ask_judge("gradients", found, number=number, **record)
        self._settle(trial, "gradients", verdict, reply)
        self.gradients += verdict["compared"]
        if trial["second"] and verdict["compared"]:
            await self._second_order(trial)

    async def _second_order(self, trial: Json) -> None:
        """Gradients of gradients, where the reference has any."""
        number = trial["number"]
        asked, blobs = await self._ask_judge("second", number=number)
        if not asked.pop("asked"):
            return
        reply, found = await candidate(self.worker, "second", self.limit_s, blobs, **asked)
        record = {key: reply.get(key) for key in ("gradients", "error")}
        verdict, _ = await self._ask_judge("compare_second", found, number=number, **record)
        self._settle(trial, "gradients of gradients", verdict, reply)
        self.gradients += verdict["compared"]

    def _settle(self, trial: Json, what: str, verdict: Json, reply: Json) -> None:
        """Take one comparison into account; raises Rejected when it failed."""
        if "candidate_error" in verdict:
            self.found.errors.append(verdict)
        for one in verdict.get("comparisons", ()):
            self._note(trial, one["what"], one["passed"], one["detail"], one)
        if not verdict.get("comparisons"):
            self._note(trial, what, verdict["ok"], verdict["detail"])
        if verdict["ok"]:
            return
        if self.opened["random"] and verdict["check"] == "random-stream":
            raise Rejected(EvalStatus.NOT_RUN, verdict["detail"].partition(": ")[2])
        if self.request.device == "interpreter" and reply.get("kind") == UNSUPPORTED:
            raise Rejected(EvalStatus.NOT_RUN, str(reply["error"]))
        self.found.check(verdict["check"], False, verdict["detail"])
        kind = failure_kind(reply) if "error" in reply else EvalStatus.WRONG_RESULT
        raise Rejected(kind, verdict["detail"], memory=reply.get("memory") is True)

    def _note(
        self, trial: Json, what: str, passed: bool | None, detail: str, numbers: Json | None = None
    ) -> None:
        text = f"{what}: {detail}" if detail else what
        entry = {**trial, "variation": variation(trial), "passed": passed, "detail": text}
        self.found.trials.append({**(numbers or {}), **entry})


def shapes_of(encoded: Any) -> tuple[str, ...]:
    """``float32[8, 64]`` of every tensor among a call's arguments, as the judge describes them."""
    if isinstance(encoded, list):
        return tuple(text for item in encoded for text in shapes_of(item))
    if not isinstance(encoded, dict):
        return ()
    if encoded.get("kind") == "tensor":
        return (f"{encoded['dtype']}[{', '.join(map(str, encoded['shape']))}]",)
    return tuple(text for item in encoded.values() for text in shapes_of(item))


def variation(trial: Json) -> str:
    """What is special about a trial besides its values; empty: as the workload says."""
    layout, batch, way = trial["layout"], trial["batch"], trial["update"]
    parts = [f"{layout} inputs"] * (layout != "as_given") + [f"batch of {batch}"] * (
        batch is not None
    )
    parts += [f"a dimension of {trial.get('size')}"] * (trial.get("group") is not None)
    parts += ["in float32"] * bool(trial.get("single"))
    parts += ["with gradients"] * bool(trial.get("grad"))
    parts += filter(None, [CIRCUMSTANCES.get(trial.get("circumstance", ""))])
    if edit := trial.get("edit"):
        parts.append("another batch" if edit == "batch" else f"one row of the {edit} changed")
    parts += [f"parameters by {way}"] * (way not in ("none", "load_state_dict"))
    return ", ".join([*parts, *["train() and eval() called before"] * bool(trial["switch"])])


async def run_trials(
    request: EvaluationRequest,
    judge: Party,
    worker: Party,
    opened: Json,
    found: PartialEvaluation,
    report: Report,
    begun: asyncio.Event,
    original: Original,
) -> None:
    """All trials of the plan; ``begun`` is set when the first has passed. ``original``: asked
    whether it has room in the candidate's place.

    Raises Rejected, or EvaluationError when the reference is at fault.
    """
    plan = opened["trials"]
    trials = Trials(request, judge, worker, opened, found, begun)
    try:
        await trials.run(plan, report)
    except Rejected as lost:
        if lost.memory and trials.asked and await original.runs_out_of_memory(trials.asked):
            raise OutOfMemory(f"could not judge: {opened['size']}", REMEDY) from lost
        raise
    if len(trials.informative) < min(MIN_INFORMATIVE, len(plan)):
        raise EvaluationError(
            "could not judge: the reference fails or is never finite on nearly all inputs",
            "give a workload whose inputs lie where the reference is defined",
        )
    if trials.strides:
        found.check("strides", None, trials.strides)
    if trials.gradients:
        found.check("gradients", True, f"{trials.gradients} gradients compared")
    found.check("values", True, f"{len(found.errors)} trials against a float64 oracle")


def note_closing(closed: Json, found: PartialEvaluation) -> None:
    """What the judge's summary says about reference and workload."""
    found.check("run-time-guards", True)
    found.environment["seed"] = closed["seed"]
    if closed["oracle_note"]:
        found.check("float64-oracle", None, closed["oracle_note"])
    if closed["tells_precision"] is not None:
        noticed = closed["tells_precision"]
        blind = (
            "this workload cannot tell precisions apart: the reference on coarser operands "
            "passes too"
        )
        found.check("lower-precision-control", noticed or None, "" if noticed else blind)
    dull = closed["degenerate"]
    if closed["dull"] and not dull:
        found.check(
            "degenerate", True, f"{'; '.join(closed['dull'])}: nothing is known about these values"
        )
    else:
        found.check(
            "degenerate", not dull, f"{dull}: no claim of speed can be made" if dull else ""
        )
