"""The part about thousands of generated candidates: no wrong one passes, no honest one is refused.

Each wrong one is first shown to differ from its reference on inputs outside the gate's own
families (differing.py). Verdicts are kept by key, so a later run with the same seed goes on where
this one ended."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from benchmarks.gating import mutants
from benchmarks.gating.mutants import Sample
from benchmarks.gating.running import Bench, GatePart, GateRow, Judged
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus

WRONG, HONEST = 6000, 600
WRONG_IN_A_ROW = 8
"""Wrong candidates between two honest ones, so that a cut leaves some of both."""
SMALL_SHARE = 0.01
BLOCK = 32


async def judge(
    bench: Bench,
    seconds: float,
    *,
    seed: int,
    limit: int | None,
    known: list[dict[str, Any]],
    keep: Callable[[GatePart], None],
) -> GatePart:
    """``limit``: candidates of this run; ``known``: the rows of earlier ones with this seed;
    ``keep`` takes what is known after every block."""
    done = {row["key"] for row in known}
    asked = [one for one in _mixed(seed) if one.key not in done]
    asked = asked if limit is None else asked[:limit]
    found: list[Judged[Sample]] = []
    proofs: dict[str, dict[str, Any]] = {}

    async def some() -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        for start in range(0, len(asked), BLOCK):
            left = end - loop.time()
            if left <= 0:
                return
            block = asked[start : start + BLOCK]
            proofs.update(await _differences(block))
            right = [one for one in block if bool(proofs[one.key]["where"]) == bool(one.mutation)]
            right.sort(key=lambda one: one.reference)  # a judge that is open serves several
            found.extend(
                await bench.judge_all(((one, _request(bench, one)) for one in right), left)
            )
            keep(summed())

    def summed() -> GatePart:
        rows = known + [_row(judged, proofs[judged.key.key]) for judged in found]
        return _summed(rows, sum(not p["where"] for k, p in proofs.items() if "/honest/" not in k))

    await some()
    return summed()


def _mixed(seed: int) -> Iterator[Sample]:
    wrong, honest = mutants.wrong(seed), mutants.honest(seed)
    while block := list(itertools.islice(wrong, WRONG_IN_A_ROW)):
        yield from block
        yield from itertools.islice(honest, 1)
    yield from honest


def _request(bench: Bench, one: Sample) -> EvaluationRequest:
    """Correctness alone; nobody says inference, so gradients belong to the result."""
    cuda = bench.device == "cuda"
    made = request_from_files(one.reference, one.candidate, device=bench.device, has_cuda=cuda)
    return replace(made, require_speed=False, budget=EvaluationBudget(compile_s=0, call_s=60))


async def _differences(block: list[Sample]) -> dict[str, dict[str, Any]]:
    """What differing.py finds, by key; a child for every block, because it runs what may do
    anything."""
    lines = [
        json.dumps({"key": one.key, "reference": one.reference, "candidate": one.candidate})
        for one in block
    ]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.gating.differing",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await child.communicate("\n".join(lines).encode())
    rows = [json.loads(line) for line in output.decode().splitlines()]
    return {row["key"]: row for row in rows}


def _row(judged: Judged[Sample], proof: dict[str, Any]) -> dict[str, Any]:
    one = judged.key
    return {
        "key": one.key,
        "mutation": one.mutation,
        "dtype": one.dtype,
        "where": proof["where"],
        "share": proof["share"],
        "status": judged.status.value if judged.status else None,
        "detail": judged.detail[:200],
        "seconds": round(judged.seconds, 2),
    }


def _is_small(row: dict[str, Any]) -> bool:
    """Few elements, one edge, the second call or the backward alone."""
    return row["share"] < SMALL_SHARE or row["where"] not in ("whole numbers", "large", "a ramp")


def _summed(rows: list[dict[str, Any]], equal: int) -> GatePart:
    wrong = [row for row in rows if row["mutation"] and row["status"]]
    honest = [row for row in rows if not row["mutation"] and row["status"]]
    passed = [row for row in wrong if row["status"] == EvalStatus.PASSED.value]
    refused = [row for row in honest if row["status"] != EvalStatus.PASSED.value]
    unjudged = [row for row in rows if row["status"] is None]
    half = sum(row["dtype"] != "float32" for row in wrong)
    small = sum(map(_is_small, wrong))
    kinds = Counter(row["mutation"] for row in wrong)
    notes = [f"accepted: {row['key']} ({row['where']}, {row['share']:.2%})" for row in passed]
    notes += [f"refused: {row['key']}: {row['detail']}" for row in refused]
    notes += [f"not judged: {row['key']}: {row['detail']}" for row in unjudged[:20]]
    notes.append(f"{equal} mutations changed nothing and were left out")
    notes.append("by mutation: " + ", ".join(f"{name} {n}" for name, n in kinds.most_common()))
    return GatePart(
        rows=[
            _bar("wrong candidates accepted", len(passed), len(wrong), WRONG),
            _bar("honest candidates refused", len(refused), len(honest), HONEST),
            GateRow(what="of the wrong, in 16 bits", bar="half", measured=f"{half} of {len(wrong)}",
                met=2 * half >= len(wrong) if wrong else None),
            GateRow(what="few elements, one edge, a later call or the backward alone", bar="a third",
                measured=f"{small} of {len(wrong)}",
                met=3 * small >= len(wrong) if wrong else None),
        ],
        notes=notes,
        data=rows,
    )  # fmt: skip


def _bar(what: str, bad: int, judged: int, needed: int) -> GateRow:
    """Met only when enough were judged; missed as soon as one was judged wrongly."""
    met = False if bad else True if judged >= needed else None
    return GateRow(what=what, bar=f"0 of {needed}", measured=f"{bad} of {judged}", met=met)
