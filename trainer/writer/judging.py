"""What a writer wrote, judged by the product's gate: values only, many at once, then some timed.

Equal programs are judged once. Replies to `TASKS_AT_ONCE` tasks come by turns: a gate opens a
task's reference once for all of them, and half of the cores waited for the next opening. A reply
that cannot be put into its program, or that leaves the program as it was, never reaches the gate.
Triton's interpreter judges a batch of `SMALL_BATCH`: it took more than 90 s for a call of 256
programs. What is not judged when the time is up has no verdict and counts nowhere.
`KnownVerdicts` outlives the process. Not covered: what is asked of the writer (evaluating.py),
what a verdict is worth (turns.py)."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.request import EvaluationBudget, EvaluationRequest
from kernel_lsp.files import replace_file
from kernel_lsp.parsing import parse
from kernel_lsp.records import EvalStatus, Evaluation, Json, Operation, OperationRole
from trainer.tasks.timed_tasks import share, until
from trainer.writer import short_form
from trainer.writer.helpers import Helpers
from trainer.writer.rows import WORKLOAD, WriterRow

GATES = 2
"""Gates beside each other, each of which judges a candidate per two cores."""
TASKS_AT_ONCE = 4 * GATES
"""Each gate keeps so many references open (evaluator/judges.py)."""
SMALL_BATCH = 2
COMPILED = "compiled"
UNREADABLE, UNCHANGED, REFUSED = "unreadable", "unchanged", "not_judged"
VALUES = EvaluationBudget(compile_s=0, load_s=40, call_s=20)
TIMES = EvaluationBudget(compile_s=30, load_s=40, call_s=20, timing_s=1.0)


@dataclass(frozen=True, slots=True)
class WrittenCase:
    row: WriterRow
    reply: str

    @property
    def key(self) -> str:
        """What tells it from other cases: the row's name and the reply."""
        return f"{self.row.name}\0{self.reply}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterVerdict:
    status: str
    """The gate's, or one of the three above."""
    detail: str = ""
    parsed: bool = True
    compiled: bool = False
    """Its first call went through: whatever came out."""
    speedups: Json | None = None
    lower: float | None = None
    """Lower bound of the speedup over the best baseline."""

    @property
    def unknown(self) -> bool:
        """Nobody could judge it, which is no fault of the reply."""
        return self.status in (REFUSED, EvalStatus.NOT_RUN.value)

    @property
    def right(self) -> bool:
        """Whether the reply passed all trials."""
        return self.status == EvalStatus.PASSED.value


class KnownVerdicts:
    """Verdicts of the gate in a file, one JSON line each, by a hash of what was judged.

    A line that a kill has cut is no verdict. What could not be judged is not kept."""

    def __init__(self, file: Path | None) -> None:
        """``file`` None: for this process alone."""
        self._file = file
        self._known: dict[str, WriterVerdict] = {}
        if file is not None and file.is_file():
            whole = file.read_text("utf-8").rpartition("\n")[0]
            for line in whole.split("\n") if whole else ():
                entry = json.loads(line)
                key = entry.pop("key")
                self._known[key] = WriterVerdict(**entry)
            replace_file(file, f"{whole}\n".encode() if whole else b"")

    def get(self, key: str) -> WriterVerdict | None:
        """The verdict of a case; None: not judged yet."""
        return self._known.get(key)

    def add(self, key: str, verdict: WriterVerdict) -> None:
        """Keeps a verdict, also on disk; one that is unknown is not kept."""
        if verdict.unknown or key in self._known:
            return
        self._known[key] = verdict
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **asdict(verdict)}) + "\n")


class WriterJudge:
    """Verdicts by text, so that baselines and samples that are equal share them."""

    def __init__(
        self,
        device: str,
        at_once: int,
        helpers: Helpers,
        store: KnownVerdicts | None = None,
        compiled: Path | None = None,
    ) -> None:
        """``device``: cuda, or interpreter where there is no GPU. ``compiled``: a folder for what
        every process would compile again, Triton's driver above all."""
        self._device, self._at_once, self._helpers = device, at_once, helpers
        self._compiled = compiled
        self._store = store or KnownVerdicts(None)
        self._gates: list[Gate] = []
        self._gate_of: dict[str, Gate] = {}
        self.known: dict[str, WriterVerdict] = {}

    async def judge(self, cases: Sequence[WrittenCase], end: float, *, timed: bool = False) -> None:
        """Into `known`, as far as the time goes (``end``, on the monotonic clock), a few tasks at a
        time in their order: what no program can be made of is no likelier to be known than what the
        gate must judge."""
        fresh = {case.key: case for case in cases if timed or case.key not in self.known}

        async def work(case: WrittenCase) -> None:
            found = self._settled(case)
            verdict = await self._asked(case, found, timed) if isinstance(found, str) else found
            if verdict is not None:
                self.known[case.key] = verdict

        await share(until(end, by_turns(list(fresh.values()))), work, self._at_once, end)

    async def _asked(self, case: WrittenCase, text: str, timed: bool) -> WriterVerdict | None:
        """The gate's verdict on a program, or the one that it gave before."""
        key = self._hash(case, text, timed)
        verdict = self._store.get(key) or await self._verdict(case, text, timed)
        if verdict is not None:
            self._store.add(key, verdict)
        return verdict

    async def close(self) -> None:
        """Ends the gates."""
        await asyncio.gather(*(gate.close() for gate in self._gates))
        self._gates.clear()
        self._gate_of.clear()

    def _gate(self, row: WriterRow) -> Gate:
        """Where this row's program is judged each time: a gate opens a reference once for all
        replies that come one after the other."""
        if not self._gates:
            count = 1 if self._at_once < 4 else GATES
            self._gates = [Gate(cache=self._compiled) for _ in range(count)]
        following = self._gates[len(self._gate_of) % len(self._gates)]
        return self._gate_of.setdefault(row.name, following)

    def _settled(self, case: WrittenCase) -> WriterVerdict | str:
        """What needs no gate, or the program that it judges."""
        try:
            text = self._program(case)
        except short_form.UnreadableReply as error:
            return WriterVerdict(status=UNREADABLE, detail=str(error), parsed=False)
        return WriterVerdict(status=UNCHANGED, compiled=True) if _is_unchanged(case) else text

    def _hash(self, case: WrittenCase, text: str, timed: bool) -> str:
        """Of program, candidate, device, and whether it is timed."""
        parts = "\0".join([self._row(case).source, text, self._device, str(timed)])
        return hashlib.sha256(parts.encode()).hexdigest()[:32]

    def _row(self, case: WrittenCase) -> WriterRow:
        return with_small_batch(case.row) if self._device == "interpreter" else case.row

    def _program(self, case: WrittenCase) -> str:
        return self._row(case).assemble(case.reply, self._helpers, self._device)

    async def _verdict(self, case: WrittenCase, text: str, timed: bool) -> WriterVerdict | None:
        request = EvaluationRequest(
            reference=self._row(case).program,
            candidate_source=text,
            candidate_entry="Model",
            workload=WORKLOAD,
            device=self._device,
            uses_triton="triton" in text,
            require_speed=timed,
            budget=TIMES if timed else VALUES,
            timeout_s=90.0,
        )
        begun = time.monotonic()
        try:
            found = await self._gate(case.row).evaluate(request)
        except EvaluationError as error:
            return WriterVerdict(status=REFUSED, detail=f"{error.cause}"[:300])
        verdict = _verdict_of(found)
        if timed and not verdict.right:
            return None  # what was right before stays so: only its times are missing
        if time.monotonic() - begun > 60:
            print(f"slow: {case.row.name} took {time.monotonic() - begun:.0f} s", flush=True)
        return verdict


def by_turns(cases: Sequence[WrittenCase]) -> Iterator[WrittenCase]:
    """The first replies to `TASKS_AT_ONCE` tasks, then their second ones, …, then other tasks."""
    tasks: dict[str, list[WrittenCase]] = {}
    for case in cases:
        tasks.setdefault(case.row.name, []).append(case)
    each = list(tasks.values())
    for at in range(0, len(each), TASKS_AT_ONCE):
        for turn in itertools.zip_longest(*each[at : at + TASKS_AT_ONCE]):
            yield from (case for case in turn if case is not None)


def with_small_batch(row: WriterRow) -> WriterRow:
    """The same task where the first dimension of its inputs is `SMALL_BATCH`.

    A reply whose text has the old number is wrong then, so the engine's own rewrite tells for
    which tasks this says something."""
    inputs = [one for one in row.graph.operations if one.role is OperationRole.INPUT and one.forms]
    batch = next((one.forms[0].shape[0] for one in inputs if len(one.forms[0].shape) > 1), 0)
    if batch <= SMALL_BATCH:
        return row
    operations = tuple(
        _with_batch(one, batch) if one in inputs else one for one in row.graph.operations
    )
    graph = replace(row.graph, operations=operations)
    return replace(row, source=_source_with_batch(row.source, batch), graph=graph)


def _source_with_batch(source: str, batch: int) -> str:
    tree = parse(source)
    made = next(n for n in tree.body if getattr(n, "name", None) == "get_inputs")
    for node in ast.walk(made):
        sizes = getattr(node, "args" if isinstance(node, ast.Call) else "elts", [])
        if sizes and isinstance(sizes[0], ast.Constant) and sizes[0].value == batch:
            sizes[0].value = SMALL_BATCH
    return ast.unparse(tree) + "\n"


def _with_batch(operation: Operation, batch: int) -> Operation:
    first, *rest = operation.forms
    if not first.shape or first.shape[0] != batch:
        return operation
    return replace(operation, forms=(replace(first, shape=(SMALL_BATCH, *first.shape[1:])), *rest))


def _verdict_of(found: Evaluation) -> WriterVerdict:
    ran = found.status in (EvalStatus.PASSED, EvalStatus.WRONG_RESULT)
    middles = {name: interval.mid for name, interval in found.speedups.items()}
    return WriterVerdict(
        status=found.status.value,
        detail=found.detail[:300],
        compiled=ran,
        speedups=middles or None,
        lower=min((interval.low for interval in found.speedups.values()), default=None),
    )


def _is_unchanged(case: WrittenCase) -> bool:
    """No function of its own, and the same statements as the original: or the original called."""
    body = parse(case.reply.partition(short_form.END)[0]).body
    if "_forward_eager" in case.reply:
        return True
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1:
        return False
    program = case.row.names.program(case.row.source)
    classes = [n for n in parse(program).body if isinstance(n, ast.ClassDef)]
    old = next(
        n for n in classes[-1].body if isinstance(n, ast.FunctionDef) and n.name == "forward"
    )
    return ast.dump(functions[0]) == ast.dump(old)
