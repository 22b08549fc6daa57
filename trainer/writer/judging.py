"""What a writer wrote, judged by the product's gate: values only, many at once, then some timed.

Equal programs are judged once. A reply that cannot be put into its program, or that leaves the
program as it was, never reaches the gate. Triton's interpreter judges a batch of `SMALL_BATCH`: it
took more than 90 s for a call of 256 programs. What is not judged when the time is up has no
verdict and counts nowhere. Not covered: what is asked of the writer (evaluating.py)."""

from __future__ import annotations

import ast
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.request import EvaluationBudget, EvaluationRequest
from kernel_lsp.parsing import parse
from kernel_lsp.records import EvalStatus, Evaluation, Json, Operation, OperationRole
from trainer.tasks.timed_tasks import share, until
from trainer.writer import short_form
from trainer.writer.helpers import Helpers
from trainer.writer.rows import WORKLOAD, WriterRow

GATES = 2
"""Gates beside each other, each of which judges a candidate per two cores."""
SMALL_BATCH = 2
UNREADABLE, UNCHANGED, REFUSED = "unreadable", "unchanged", "not_judged"
VALUES = EvaluationBudget(compile_s=0, load_s=40, call_s=20)
TIMES = EvaluationBudget(compile_s=30, load_s=40, call_s=20, timing_s=1.0)


@dataclass(frozen=True, slots=True)
class WrittenCase:
    row: WriterRow
    reply: str

    @property
    def key(self) -> str:
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

    @property
    def right(self) -> bool:
        return self.status == EvalStatus.PASSED.value


class WriterJudge:
    """Verdicts by text, so that baselines and samples that are equal share them."""

    def __init__(self, device: str, at_once: int, helpers: Helpers) -> None:
        """``device``: cuda, or interpreter where there is no GPU."""
        self._device, self._at_once, self._helpers = device, at_once, helpers
        self.known: dict[str, WriterVerdict] = {}

    async def judge(self, cases: Sequence[WrittenCase], end: float, *, timed: bool = False) -> None:
        """Into `known`, as far as the time goes (``end``, on the monotonic clock)."""
        fresh = {case.key: case for case in cases if timed or case.key not in self.known}
        waiting = []
        for key, case in fresh.items():
            try:
                text = self._program(case)
            except short_form.UnreadableReply as error:
                self.known[key] = WriterVerdict(status=UNREADABLE, detail=str(error), parsed=False)
                continue
            if _is_unchanged(case):
                self.known[key] = WriterVerdict(status=UNCHANGED, compiled=True)
                continue
            waiting.append((case, text))
        gates = [Gate() for _ in range(1 if self._at_once < 4 else GATES)]
        turn = iter(range(10**9))

        async def work(item: tuple[WrittenCase, str]) -> None:
            gate = gates[next(turn) % len(gates)]
            verdict = await self._verdict(gate, *item, timed)
            if verdict is not None:
                self.known[item[0].key] = verdict

        try:
            await share(until(end, waiting), work, self._at_once, end)
        finally:
            for gate in gates:
                await gate.close()

    def _row(self, case: WrittenCase) -> WriterRow:
        return with_small_batch(case.row) if self._device == "interpreter" else case.row

    def _program(self, case: WrittenCase) -> str:
        return self._row(case).assemble(case.reply, self._helpers, self._device)

    async def _verdict(
        self, gate: Gate, case: WrittenCase, text: str, timed: bool
    ) -> WriterVerdict | None:
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
            found = await gate.evaluate(request)
        except EvaluationError as error:
            return WriterVerdict(status=REFUSED, detail=f"{error.cause}"[:300])
        verdict = _verdict_of(found)
        if timed and not verdict.right:
            return None  # what was right before stays so: only its times are missing
        if time.monotonic() - begun > 60:
            print(f"slow: {case.row.name} took {time.monotonic() - begun:.0f} s", flush=True)
        return verdict


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
