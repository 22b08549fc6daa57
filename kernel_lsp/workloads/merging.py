"""What the processes of a recorded program saw, put together: one entry per target and way of
calling it.

In: the parts that recorder/spool.py wrote. Out: plain tables for recording_file.py. Ways that
differ in nothing but their numbers are one; a way's share is its calls times its mean time, over
the time of all processes together, so ranks that do the same count as one program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel_lsp.workloads.values import SHORT_DTYPES

WorkloadTable = dict[str, Any]
NUMBERS = ("calls", "timed", "seconds")
KEPT = ("snapshot", "not_kept")
"""What says where the call of a way was kept: one process's is as good as another's."""
SHORT_NAMES = {full: short for short, full in SHORT_DTYPES.items()}


@dataclass(slots=True, kw_only=True)
class MergedRecording:
    """A whole recording. Tables are ordered by share, the largest first."""

    processes: int
    elapsed_s: float
    devices: tuple[str, ...]
    versions: WorkloadTable
    notes: tuple[str, ...]
    seen: list[WorkloadTable]
    """target, kind, calls, share, mean_us: one per target."""
    ways: list[WorkloadTable]
    """The same with the arguments: one per way of calling a target."""
    steps: WorkloadTable = field(default_factory=dict)
    """What its steps may be (recorder/limit.py), of the process that has most of them."""
    files: tuple[str, ...] = ()
    """That its processes read (recorder/reading.py)."""


def merge(parts: Sequence[WorkloadTable], program: str) -> MergedRecording:
    """One recording of all that a program's processes saw: ways of calling the same target are
    counted together."""
    elapsed = sum(float(part["elapsed_s"]) for part in parts)
    targets: dict[tuple[str, str], _MergedTarget] = {}
    for part in parts:
        for site in part["sites"]:
            key = (site["kind"], site["target"])
            targets.setdefault(key, _MergedTarget()).add(site)
    ways = [
        _number_way(
            {"target": target, "kind": kind, **way, "name": _name(program, way)}, way, elapsed
        )
        for (kind, target), found in targets.items()
        for way in found.ways.values()
    ]
    return MergedRecording(
        processes=len(parts),
        elapsed_s=elapsed,
        devices=tuple(dict.fromkeys(part["device"] for part in parts if part.get("device"))),
        versions=parts[0]["versions"] if parts else {},
        notes=tuple(dict.fromkeys(note for part in parts for note in part["notes"])),
        seen=sorted(
            (_seen_table(key, found, elapsed) for key, found in targets.items()), key=_rank
        ),
        ways=sorted(ways, key=_rank),
        steps=max((part.get("steps") or {} for part in parts), key=_count_steps, default={}),
        files=_files(parts),
    )


def _files(parts: Sequence[WorkloadTable]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(file for part in parts for file in part.get("files", ())))


def _count_steps(steps: WorkloadTable) -> tuple[int, int, int]:
    trained = sum(int(one["steps"]) for one in steps.get("optimizers", ()))
    return int(steps.get("marked", 0)), trained, int(steps.get("batches", 0))


@dataclass(slots=True)
class _MergedTarget:
    calls: int = 0
    ways: dict[str, WorkloadTable] = field(default_factory=dict)

    def add(self, site: WorkloadTable) -> None:
        """Add the calls of one recording; ways of one kind become one."""
        self.calls += int(site["calls"])
        for way in site["ways"]:
            key = json.dumps(_kind_of(way), sort_keys=True)
            known = self.ways.get(key)
            self.ways[key] = dict(way) if known is None else _both(known, way)


def _kind_of(way: WorkloadTable) -> WorkloadTable:
    """A way without its numbers."""
    arguments = [
        {name: value for name, value in one.items() if name not in ("values", "alignment")}
        for one in way["arguments"]
    ]
    varying = (*NUMBERS, *KEPT, "grid", "arguments")
    rest = {name: value for name, value in way.items() if name not in varying}
    return {**rest, "arguments": arguments}


def _both(one: WorkloadTable, other: WorkloadTable) -> WorkloadTable:
    arguments = [
        _argument(*pair) for pair in zip(one["arguments"], other["arguments"], strict=True)
    ]
    kept = {name: way[name] for name in KEPT for way in (other, one) if name in way}
    if "snapshot" in kept:
        kept.pop("not_kept", None)
    rest = {name: value for name, value in one.items() if name not in KEPT}
    return {
        **rest,
        **kept,
        **{name: one[name] + other[name] for name in NUMBERS},
        "arguments": arguments,
    }


def _argument(one: WorkloadTable, other: WorkloadTable) -> WorkloadTable:
    found = dict(one)
    if "alignment" in one and "alignment" in other:
        found["alignment"] = min(one["alignment"], other["alignment"])
    seen = [argument["values"] for argument in (one, other) if "values" in argument]
    return found | ({"values": _values(seen)} if seen else {})


def _values(seen: list[WorkloadTable]) -> WorkloadTable:
    found: WorkloadTable = {
        "finite": all(values["finite"] for values in seen),
        "zeros": round(sum(values["zeros"] for values in seen) / len(seen), 1),
    }
    for name, choose in (("low", min), ("high", max)):
        bounds = [values[name] for values in seen if name in values]
        found |= {name: choose(bounds)} if bounds else {}
    return found


def _seconds(way: WorkloadTable) -> float | None:
    return way["calls"] * way["seconds"] / way["timed"] if way["timed"] else None


def _number_way(entry: WorkloadTable, way: WorkloadTable, elapsed_s: float) -> WorkloadTable:
    seconds = _seconds(way)
    record = {name: value for name, value in entry.items() if name not in NUMBERS}
    return record | _numbers(max(1, round(way["calls"])), way["calls"], seconds, elapsed_s)


def _seen_table(key: tuple[str, str], found: _MergedTarget, elapsed_s: float) -> WorkloadTable:
    times = [
        (way["calls"], seconds)
        for way in found.ways.values()
        if (seconds := _seconds(way)) is not None
    ]
    timed = sum(calls for calls, _ in times)
    seconds = (
        sum(seconds for _, seconds in times) * (found.calls / timed if timed else 0)
        if times
        else None
    )
    return {"target": key[1], "kind": key[0]} | _numbers(
        found.calls, found.calls, seconds, elapsed_s
    )


def _numbers(count: int, calls: float, seconds: float | None, elapsed_s: float) -> WorkloadTable:
    record: WorkloadTable = {"calls": count}
    if seconds is not None and calls:
        record["mean_us"] = _round_digits(1e6 * seconds / calls)
        if elapsed_s > 0:
            record["share"] = min(1.0, _round_digits(seconds / elapsed_s))
    return record


def _round_digits(number: float) -> float:
    """Three digits: more would be noise that changes the file at every run."""
    return float(f"{number:.3g}")


def _rank(entry: WorkloadTable) -> tuple[float, int, str]:
    return -entry.get("share", 0.0), -entry["calls"], entry["target"]


def _name(program: str, way: WorkloadTable) -> str:
    """What tells one way from the others at a glance; the same when it is recorded again."""
    words = [program]
    if "training" in way:
        words.append("train" if way["training"] else "eval")
    return " ".join([*words, *_shapes(way["arguments"])])


def _shapes(arguments: Iterable[WorkloadTable]) -> list[str]:
    found = [
        f"{SHORT_NAMES.get(one['dtype'], one['dtype'])}[{','.join(map(str, one['shape']))}]"
        for one in arguments
        if "shape" in one
    ]
    return found[:3]
