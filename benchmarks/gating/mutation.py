"""The part about thousands of generated candidates: no wrong one passes, no honest one is refused.

Each wrong one is first shown to differ from its reference on inputs outside the gate's own
families (differing.py). All candidates of one reference follow each other, so that its judge
serves them all. Verdicts are kept by key: a later run with the same seed goes on where this one
ended. On CPUs several runs of this program share the references (`Shard`), each on cores of its
own: a gate judges one candidate at a time there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gating import mutants
from benchmarks.gating.kernel_mutants import KERNELS
from benchmarks.gating.mutants import PROGRAMS, MutantSample
from benchmarks.gating.running import Bench, GatePart, GateRow, Judged
from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus

WRONG, HONEST = 6000, 600
WRONG_TO_HONEST = 8
SMALL_SHARE = 0.01
BLOCK = 32
"""Candidates at least that are sent together."""
PROOF_S = 60.0
LINE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of the references is this run's."""

    number: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``3/16``, from 0."""
        number, _, of = text.partition("/")
        return cls(int(number), int(of))


async def judge(
    bench: Bench,
    seconds: float,
    *,
    seed: int,
    limit: int | None,
    known: list[dict[str, Any]],
    keep: Callable[[GatePart], None],
    shard: Shard,
) -> GatePart:
    """``limit``: candidates of this run; ``known``: the rows of earlier ones with this seed;
    ``keep`` takes what is known after every block."""
    done = {row["key"] for row in known}
    rows = list(known)
    loop = asyncio.get_running_loop()
    end, left = loop.time() + seconds, limit
    async with _differing(bench.device) as tried:
        for block in _blocks(_groups(bench.device, seed, shard)):
            asked = [one for one in block if one.key not in done][:left]
            left = None if left is None else left - len(asked)
            proofs = {one.key: await tried(one) for one in asked}
            # A mutation that changes nothing is no wrong candidate, and a rewrite that does
            # change something no honest one.
            right = [one for one in asked if bool(proofs[one.key]["where"]) == bool(one.mutation)]
            rows += [_row(one, proofs[one.key]) for one in asked if one not in right]
            jobs = ((one, _request(bench, one)) for one in right)
            found = await bench.judge_all(jobs, max(0.0, end - loop.time()))
            rows += [_row(judged.key, proofs[judged.key.key], judged) for judged in found]
            keep(summed(rows))
            if loop.time() >= end or left == 0:
                break
    return summed(rows)


async def judge_by_shards(
    command: Sequence[str],
    shards: int,
    known: list[dict[str, Any]],
    known_file: Callable[[Path, list[dict[str, Any]]], None],
    rows_of: Callable[[Path], list[dict[str, Any]]],
    folder: Path,
) -> GatePart:
    """The same by so many runs of ``command`` at once, each on its share of the cores."""
    cores = sorted(os.sched_getaffinity(0))

    async def one(number: int) -> list[dict[str, Any]]:
        out = folder / f"shard-{number}.json"
        known_file(out, known)
        mine = cores[number % len(cores) :: shards] or cores
        child = await asyncio.create_subprocess_exec(
            "taskset", "-c", ",".join(map(str, mine)), *command,
            "--shard", f"{number}/{shards}", "--out", str(out), stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await child.wait()
        return rows_of(out)

    found = await asyncio.gather(*(one(number) for number in range(shards)))
    rows = {row["key"]: row for part in found for row in part}
    return summed(list(rows.values()))


def _groups(device: str, seed: int, shard: Shard) -> Iterator[list[MutantSample]]:
    """The candidates of one reference after the other, in an order of the seed; a cut leaves whole
    references out, drawn at random."""
    programs = KERNELS if device != "cpu" else PROGRAMS
    by_reference: dict[str, list[MutantSample]] = defaultdict(list)
    honest: dict[str, list[MutantSample]] = defaultdict(list)
    for one in mutants.wrong(seed, programs):
        by_reference[one.reference].append(one)
    for one in mutants.honest(seed, programs):
        honest[one.reference].append(one)
    for wrong in list(by_reference.items())[shard.number :: shard.of]:
        reference, found = wrong
        yield honest[reference][: -(-len(found) // WRONG_TO_HONEST)] + found


def _blocks(groups: Iterable[list[MutantSample]]) -> Iterator[list[MutantSample]]:
    """At least so many together that the end of one reference keeps no worker waiting for long."""
    block: list[MutantSample] = []
    for group in groups:
        block += group
        if len(block) >= BLOCK:
            yield block
            block = []
    yield block


def _request(bench: Bench, one: MutantSample) -> EvaluationRequest:
    """Correctness alone; nobody says inference, so gradients belong to the result."""
    cuda = bench.device == "cuda"
    made = request_from_files(one.reference, one.candidate, device=bench.device, has_cuda=cuda)
    return replace(made, require_speed=False, budget=EvaluationBudget(compile_s=0, call_s=60))


@contextlib.asynccontextmanager
async def _differing(
    device: str,
) -> AsyncIterator[Callable[[MutantSample], Any]]:
    """A function that says what differing.py finds. It asks a child, because it runs what may do
    anything; one that dies is replaced, and to die is to differ."""
    child: asyncio.subprocess.Process | None = None
    interpreted = {"TRITON_INTERPRET": "1"} if device == "interpreter" else {}

    async def tried(one: MutantSample) -> dict[str, Any]:
        nonlocal child
        if child is None:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.gating.differing",
                "cuda" if device == "cuda" else "cpu", env={**os.environ, **interpreted},
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES,
            )  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        asked = {"key": one.key, "reference": one.reference, "candidate": one.candidate}
        answer = b""
        with contextlib.suppress(OSError, TimeoutError):
            child.stdin.write((json.dumps(asked) + "\n").encode())
            answer = await asyncio.wait_for(child.stdout.readline(), PROOF_S)
        if answer:
            found: dict[str, Any] = json.loads(answer)
            if "CUDA" not in found.get("error", ""):  # after such an error nothing runs any more
                return found
        await end()
        return {"where": "it ends the process", "share": 1.0}

    async def end() -> None:
        nonlocal child
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()
        child = None

    try:
        yield tried
    finally:
        await end()


def _row(
    one: MutantSample, proof: dict[str, Any], judged: Judged[MutantSample] | None = None
) -> dict[str, Any]:
    made = {
        "key": one.key,
        "mutation": one.mutation,
        "dtype": one.dtype,
        "where": proof["where"],
        "share": proof["share"],
    }
    if judged is None:
        return {**made, "left_out": str(proof.get("error", ""))[:200]}
    return {
        **made,
        "status": judged.status.value if judged.status else None,
        "detail": judged.detail[:200],
        "seconds": round(judged.seconds, 2),
    }


def _is_small(row: dict[str, Any]) -> bool:
    """Few elements, one edge, the second call or the backward alone."""
    return row["share"] < SMALL_SHARE or row["where"] not in ("whole numbers", "large", "a ramp")


def summed(rows: list[dict[str, Any]]) -> GatePart:
    """The bars of all that is known."""
    judged = [row for row in rows if row.get("status")]
    wrong = [row for row in judged if row["mutation"]]
    honest = [row for row in judged if not row["mutation"]]
    passed = [row for row in wrong if row["status"] == EvalStatus.PASSED.value]
    refused = [row for row in honest if row["status"] != EvalStatus.PASSED.value]
    half = sum(row["dtype"] != "float32" for row in wrong)
    notes = [f"accepted: {row['key']} ({row['where']}, {row['share']:.2%})" for row in passed]
    notes += [f"refused: {row['key']}: {row['detail']}" for row in refused]
    return GatePart(
        rows=[
            _bar("wrong candidates accepted", len(passed), len(wrong), WRONG),
            _bar("honest candidates refused", len(refused), len(honest), HONEST),
            _share("of the wrong, in 16 bits", "half", 2, half, len(wrong)),
            _share("few elements, one edge, a later call or the backward alone", "a third", 3,
                sum(map(_is_small, wrong)), len(wrong)),
        ],
        notes=[*notes, *_remarks(rows, wrong)],
        data=rows,
    )  # fmt: skip


def _remarks(rows: list[dict[str, Any]], wrong: list[dict[str, Any]]) -> list[str]:
    """What was not judged, and which mutations were."""
    left_out = [row for row in rows if "left_out" in row]
    unjudged = [row for row in rows if "left_out" not in row and row["status"] is None]
    notes = [f"not judged: {row['key']}: {row['detail']}" for row in unjudged[:20]]
    equal = sum(bool(row["mutation"]) for row in left_out)
    notes.append(f"{equal} mutations changed nothing and were left out")
    notes += [f"no honest one: {row['key']}" for row in left_out if not row["mutation"]]
    kinds = Counter(row["mutation"] for row in wrong)
    return [*notes, "by mutation: " + ", ".join(f"{name} {n}" for name, n in kinds.most_common())]


def _share(what: str, bar: str, part: int, some: int, of: int) -> GateRow:
    return GateRow(
        what=what, bar=bar, measured=f"{some} of {of}", met=part * some >= of if of else None
    )


def _bar(what: str, bad: int, judged: int, needed: int) -> GateRow:
    """Met only when enough were judged; missed as soon as one was judged wrongly."""
    met = False if bad else True if judged >= needed else None
    return GateRow(what=what, bar=f"0 of {needed}", measured=f"{bad} of {judged}", met=met)
