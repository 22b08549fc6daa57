"""The data of a writer: thousands of rows, made by all cores, the same for one seed.

`make` writes ``rows.jsonl`` and then ``data.json``, which says how many rows each part has, why
tasks were left out, how many near-duplicates there are between the parts and what a row cost; with
the latter there, nothing is made again. Where the time ends first, the rows of the first numbers
are there. `filtered` is what supervised training takes. Not covered: one row (rows.py)."""

from __future__ import annotations

import json
import lzma
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from kernel_lsp import wire
from kernel_lsp.files import replace_file
from kernel_lsp.records import Json
from trainer.tasks.likeness import Mark
from trainer.writer.rows import WriterRow, WrittenReply, make_row
from trainer.writer.split import WriterPart, near_duplicates

CHUNK = 8
"""Tasks that a process makes at a time: 3 s."""
MAX_ALIKE = 12
"""Rows of one part with the same operators in the same order."""
MAX_SKILL_SHARE = 0.35
"""Of supervised replies, that one set of skills may have."""
MIN_GAIN = 1.02
_ROW = TypeAdapter(WriterRow)
"""Reads a row in 0.15 ms, wire.py in 0.5: a training begins and an evaluation ends 9 s sooner."""
ROWS, ROWS_XZ, SUMMARY = "rows.jsonl", "rows.jsonl.xz", "data.json"
REPLIES = "replies.json"
"""What was written to held-out tasks (evaluating.py)."""
GROWING, MORE = "rows.part.jsonl", "more"
"""What a run that makes data has so far, and the folder of one that makes it while a model
learns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPlan:
    seed: int
    tasks: int
    """Numbers that are tried; about two of three become a row."""
    seconds: float
    processes: int
    large: bool
    """Sizes for a GPU."""
    kinds: frozenset[str] = frozenset()
    """Of operators (kinds.py): tasks with others are left out; empty: none is."""


def make(folder: Path, plan: DataPlan) -> Json:
    """See above. Raises OSError."""
    if (folder / SUMMARY).is_file():
        return dict(json.loads((folder / SUMMARY).read_text("utf-8")))
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    left_out: Counter[str] = Counter()
    rows: list[WriterRow] = []
    spent = 0.0
    with (folder / GROWING).open("w", encoding="utf-8") as growing:
        for found, seconds in _made(plan, begun + plan.seconds):
            spent += seconds
            for row in found:
                if isinstance(row, str):
                    left_out[row] += 1
                else:
                    rows.append(row)
                    growing.write(wire.dumps(row) + "\n")
            growing.flush()
    rows.sort(key=lambda row: row.name)
    kept = _diverse(rows, left_out)
    text = "".join(wire.dumps(row) + "\n" for row in kept)
    replace_file(folder / ROWS, text.encode())
    with lzma.open(folder / ROWS_XZ, "wt", preset=1) as out:
        out.write(text)
    summary = {
        "seed": plan.seed,
        "numbers_tried": sum(left_out.values()) + len(kept),
        "rows": dict(Counter(row.part.value for row in kept)),
        "families": dict(Counter(row.part.value for row in {r.family: r for r in kept}.values())),
        "replies": sum(len(row.replies) for row in kept),
        "left_out": dict(left_out.most_common()),
        "seconds": time.monotonic() - begun,
        "rows_per_core_minute": 60 * len(kept) / spent if spent else None,
        "near_duplicates": _duplicates(kept),
    }
    replace_file(folder / SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())
    return summary


def _made(plan: DataPlan, end: float) -> Iterator[tuple[list[WriterRow | str], float]]:
    """Chunks in the order in which they are done, until all are or the time is up."""
    numbers = iter(range(0, plan.tasks, CHUNK))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(plan.processes, mp_context=context, initializer=_start) as pool:
        under_way: set[Future[tuple[list[WriterRow | str], float]]] = set()
        while True:
            while len(under_way) < 2 * plan.processes and time.monotonic() < end:
                first = next(numbers, None)
                if first is None:
                    break
                last = min(first + CHUNK, plan.tasks)
                under_way.add(pool.submit(_chunk, plan, first, last))
            if not under_way:
                return
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _start() -> None:
    os.nice(1)
    import torch

    torch.set_num_threads(1)


def _chunk(plan: DataPlan, first: int, last: int) -> tuple[list[WriterRow | str], float]:
    begun = time.process_time()
    found = [_row(plan, number) for number in range(first, last)]
    return found, time.process_time() - begun


def _row(plan: DataPlan, number: int) -> WriterRow | str:
    try:
        return make_row(plan.seed, number, large=plan.large, kinds=plan.kinds)
    except Exception as error:  # one task of ten thousand must not end a machine's only run
        return f"failed: {type(error).__name__}"


def _diverse(rows: Sequence[WriterRow], left_out: Counter[str]) -> list[WriterRow]:
    questions: set[str] = set()
    alike: Counter[tuple[str, tuple[str, ...]]] = Counter()
    kept = []
    for row in rows:
        key = (row.part.value, row.ops)
        if row.plain in questions:
            left_out["the same question was asked before"] += 1
        elif alike[key] >= MAX_ALIKE:
            left_out["enough rows have these operators"] += 1
        else:
            questions.add(row.plain)
            alike[key] += 1
            kept.append(row)
    return kept


def _duplicates(rows: Sequence[WriterRow]) -> Json:
    training = [row for row in rows if row.part is WriterPart.TRAIN]
    return {
        part.value: duplicates([row for row in rows if row.part is part], training)
        for part in WriterPart
        if part is not WriterPart.TRAIN
    }


def duplicates(held_out: Sequence[WriterRow], training: Sequence[WriterRow]) -> Json:
    """How much of the held-out rows is nearly the same as a training row."""
    return near_duplicates([_mark(row) for row in held_out], [_mark(row) for row in training])


def _mark(row: WriterRow) -> Mark:
    return Mark(digest=row.digest, ops=row.ops, grams=frozenset(row.grams))


def read(folder: Path) -> list[WriterRow]:
    """The rows, each question once. Raises OSError where no data was made."""
    rows = [*_rows(_text(folder)), *Arriving(folder).take()]
    return list({row.plain: row for row in reversed(rows)}.values())[::-1]


class Arriving:
    """Rows that another process makes in `MORE`, as they come."""

    def __init__(self, folder: Path) -> None:
        self._file, self._at = folder / MORE / GROWING, 0

    def take(self) -> list[WriterRow]:
        """The rows that came since the last call; half a line waits for its end."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._at)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        return _rows(whole.decode())


def _text(folder: Path) -> str:
    """Of the rows of a run, or of one that was brought here packed."""
    if (folder / ROWS).is_file():
        return (folder / ROWS).read_text("utf-8")
    with lzma.open(folder / ROWS_XZ, "rt", encoding="utf-8") as packed:
        return packed.read()


def _rows(text: str) -> list[WriterRow]:
    return [_ROW.validate_json(line) for line in text.split("\n") if line]


def shortest(rows: Sequence[WriterRow], part: WriterPart, count: int) -> list[WriterRow]:
    """Tasks of a part with the shortest rewrites that are expected to be faster: what a small
    writer gets right first."""
    some = [row for row in rows if row.part is part]
    chosen = sorted(filtered(some), key=lambda one: (len(one[1].text), one[0].name))
    return [row for row, _ in chosen[:count]]


def filtered(rows: Sequence[WriterRow]) -> list[tuple[WriterRow, WrittenReply]]:
    """What supervised training takes: of each task the shortest rewrite that is expected to be
    faster, and of one set of skills at most a third of the whole.

    Faster is the dual filter's half that applies to first turns (datasets.py): right holds by
    construction, faster by the engine's estimate. Every token can go wrong, so the shortest is the
    likeliest to be right."""
    chosen = []
    for row in rows:
        faster = [r for r in row.replies if r.gain is None or r.gain > MIN_GAIN]
        if faster:
            chosen.append((row, min(faster, key=lambda reply: len(reply.text))))
    most = max(1, int(MAX_SKILL_SHARE * len(chosen)))
    counts: Counter[tuple[str, ...]] = Counter()
    kept = []
    for row, reply in chosen:
        counts[reply.skills] += 1
        if counts[reply.skills] <= most:
            kept.append((row, reply))
    return kept
