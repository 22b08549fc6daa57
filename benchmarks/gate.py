"""The bars of the gate, on a CUDA device or a CPU: attacks, false claims, repeats, rate, cost,
faults.

    PYTHONPATH=. python3 benchmarks/gate.py --device cuda --out gate.json
    PYTHONPATH=. python3 benchmarks/gate.py --device cpu --parts attacks,faults --seconds 120
    PYTHONPATH=. python3 benchmarks/gate.py --parts mutants --seconds 36000 --out mutants.json
    PYTHONPATH=. python3 benchmarks/gate.py --parts blind --seconds 3600 --seed 1 --out blind.json
    PYTHONPATH=. python3 benchmarks/gate.py --parts mutants --shards 16 --out mutants.json
    PYTHONPATH=. python3 benchmarks/gate.py --device cuda --parts big --lanes 8 --out big.json
    PYTHONPATH=. python3 benchmarks/gate.py --parts busy --seconds 3600 --limit 200 --out busy.json

`--seconds` is the time of the whole run, of which every part has its share; what does not fit is
said to be missing and never counted as good. The JSON file is written after every part, and parts
of an earlier run that are not run again stay in it with their own date and versions. Standard
library on this side; torch is imported by the children only."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.gating import big, busy, leftovers, mutation, throughput, verdicts
from benchmarks.gating.blind import judging
from benchmarks.gating.faults import TASK
from benchmarks.gating.mutation import Shard
from benchmarks.gating.running import Bench, GatePart, GateRow
from benchmarks.reporting import write_record
from kernel_lsp import wire
from kernel_lsp.evaluator import Gate

Measure = Callable[[Bench, float], Awaitable[GatePart]]
MUTANTS, BUSY, BIG, BLIND = "mutants", "busy", "big", "blind"
"""Parts of hours (the last one of half an hour), run when they are asked for."""
SHARES = {"attacks": 0.28, "aa": 0.28, "repeat": 0.2, "rate": 0.1, "cost": 0.08, "faults": 0.06}
DEFAULT_S = {"cuda": 480.0, "cpu": 600.0, "interpreter": 600.0}
CORES = len(os.sched_getaffinity(0))
SETTLE_S = 5.0
"""The driver gives a dead process's memory back a moment later."""


async def run(
    device: str,
    parts: list[str],
    seconds: float,
    out: Path | None,
    *,
    seed: int,
    limit: int | None,
    shard: Shard,
    at_once: int | None,
    scale: int,
) -> bool:
    """Measure the parts, print each as it ends; whether every bar that applies was met."""
    result = _earlier(out, device)
    memory = leftovers.device_mib()
    with tempfile.TemporaryDirectory() as cache, leftovers.own_folder() as folder:
        async with Gate(cache=Path(cache)) as gate:
            # as in the product; no text is judged twice here
            bench = Bench(device=device, evaluate=gate.evaluate, at_once=max(2, min(16, CORES)))
            about = await _about(bench)
            _print_head(about)
            for name in parts:
                start = time.monotonic()
                share = seconds * _share(name, parts)
                if name == MUTANTS:
                    known = _known(result, seed)
                    keep = functools.partial(_keep, result, {**about, "seed": seed}, out, start)
                    part = await mutation.judge(
                        bench,
                        share,
                        seed=seed,
                        limit=limit,
                        known=known,
                        keep=keep,
                        shard=shard,
                    )
                elif name == BLIND:
                    part = await judging.judge(bench, share, seed=seed, limit=limit)
                elif name == BIG:
                    part = await big.judge(bench, share, at_once=at_once or 1, scale=scale)
                elif name == BUSY:
                    part = await busy.beside_busy_programs(bench, share, limit)
                else:
                    part = await _measure(name, bench, share, folder)
                stored = _stored(part, time.monotonic() - start)
                result["parts"][name] = {**about, "seed": seed, **stored}
                _print_part(name, part, time.monotonic() - start)
                write_record(out, result)
        left = await _left(folder, memory)
    result["parts"]["leaks"] = {**about, **_stored(left, 0.0)}
    _print_part("leaks", left, 0.0)
    write_record(out, result)
    return all(
        row["met"] is not False
        for name in (*parts, "leaks")
        for row in result["parts"][name]["rows"]
    )


async def run_shards(options: argparse.Namespace, seconds: float) -> bool:
    """The part of generated candidates by several runs of this program at once."""
    result, start = _earlier(options.out, options.device), time.monotonic()
    command = [sys.executable, __file__, "--device", options.device, "--parts", MUTANTS,
        "--seconds", str(seconds), "--seed", str(options.seed)]  # fmt: skip
    command += ["--limit", str(options.limit)] if options.limit is not None else []

    def hand(out: Path, known: list[dict[str, Any]]) -> None:
        part = {"seed": options.seed, "data": known}
        write_record(out, {"schema": 1, "device": options.device, "parts": {MUTANTS: part}})

    def collect(out: Path) -> list[dict[str, Any]]:
        made = json.loads(out.read_text())["parts"][MUTANTS]
        about.update({key: made[key] for key in made if key not in ("rows", "notes", "data")})
        rows: list[dict[str, Any]] = made["data"]
        return rows

    about: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        known = _known(result, options.seed)
        part = await mutation.judge_by_shards(
            command, options.shards, known, hand, collect, Path(folder)
        )
    took = time.monotonic() - start
    result["parts"][MUTANTS] = {
        **about,
        "cores": CORES,
        "seed": options.seed,
        **_stored(part, took),
    }
    _print_part(MUTANTS, part, took)
    write_record(options.out, result)
    return all(row.met is not False for row in part.rows)


def _keep(
    result: dict[str, Any], about: dict[str, Any], out: Path | None, start: float, part: GatePart
) -> None:
    """A long part is written as it goes."""
    result["parts"][MUTANTS] = {**about, **_stored(part, time.monotonic() - start)}
    write_record(out, result)


def _share(name: str, parts: list[str]) -> float:
    return SHARES.get(name, 1.0) / sum(SHARES.get(part, 1.0) for part in parts)


def _known(result: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """Verdicts of an earlier run with the same candidates."""
    part = result["parts"].get(MUTANTS, {})
    known: list[dict[str, Any]] = part.get("data", []) if part.get("seed") == seed else []
    return known


async def _measure(name: str, bench: Bench, seconds: float, folder: Path) -> GatePart:
    if name == "faults":
        return await throughput.after_faults(bench, seconds, folder)
    measures: dict[str, Measure] = {
        "attacks": verdicts.attacks,
        "aa": verdicts.against_itself,
        "repeat": verdicts.repeats,
        "rate": throughput.rate,
        "cost": throughput.cost,
    }
    return await measures[name](bench, seconds)


async def _about(bench: Bench) -> dict[str, Any]:
    """Device, versions and load, from one evaluation; it also shows that the gate works here at
    all."""
    judged = await bench.judge("first", bench.request(TASK.reference, TASK.candidate))
    if judged.evaluation is None or judged.status != "passed":
        raise SystemExit(
            f"the gate does not judge a right candidate here: {judged.status}: {judged.detail}"
        )
    return {
        "device": bench.device,
        "device_name": judged.evaluation.device_name,
        "environment": judged.evaluation.environment,
        "cores": CORES,
        "load": os.getloadavg()[0],
        "lanes": bench.at_once,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "first_seconds": round(judged.seconds, 3),
    }


async def _left(folder: Path, memory_before: int | None) -> GatePart:
    """What is still there once the gate is closed."""
    await asyncio.sleep(SETTLE_S)
    running, kept, memory = (
        leftovers.processes(folder),
        leftovers.folders(folder),
        leftovers.device_mib(),
    )
    rows = [
        GateRow(
            what="processes after the gate is closed",
            bar="0",
            measured=str(len(running)),
            met=not running,
        ),
        GateRow(
            what="scratch folders after the gate is closed",
            bar="0",
            measured=str(len(kept)),
            met=not kept,
        ),
    ]
    if memory is not None and memory_before is not None:
        more = memory - memory_before
        rows.append(
            GateRow(
                what="device memory still taken", bar="0 MiB", measured=f"{more} MiB", met=more <= 0
            )
        )
    return GatePart(rows=rows, notes=[*running, *kept])


def _earlier(out: Path | None, device: str) -> dict[str, Any]:
    """The file of an earlier run on the same kind of device, or an empty one."""
    if out is not None and out.exists():
        found: dict[str, Any] = json.loads(out.read_text())
        if found.get("device") == device:
            return found
    return {"schema": 1, "device": device, "parts": {}}


def _stored(part: GatePart, seconds: float) -> dict[str, Any]:
    rows: list[Any] = wire.to_json(part.rows)
    return {"seconds": round(seconds, 1), "rows": rows, "notes": part.notes, "data": part.data}


def _print_head(about: dict[str, Any]) -> None:
    environment, name = about["environment"], about["device_name"] or about["device"]
    versions = ", ".join(
        f"{k} {environment[k]}" for k in ("torch", "triton", "python") if k in environment
    )
    print(f"device    {name}, {about['cores']} cores, load {about['load']:.1f}")
    print(f"versions  {versions}, driver {environment.get('driver_version', 'none')}")
    print(f"sandbox   {environment.get('sandbox')}; {about['lanes']} candidates at a time")
    print(f"date      {about['date']}")
    print(f"first     {about['first_seconds']:.1f} s for the first candidate of a new gate")


def _print_part(name: str, part: GatePart, seconds: float) -> None:
    print(f"\n{name} ({seconds:.0f} s)")
    print(f"  {'':4} {'what':66} {'bar':24} measured")
    for row in part.rows:
        sign = {True: "ok", False: "MISS", None: "-"}[row.met]
        print(f"  {sign:4} {row.what:66} {row.bar:24} {row.measured}")
    for note in part.notes:
        print(f"       {note}")
    print(end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=sorted(DEFAULT_S), default="cpu")
    parser.add_argument("--parts", default=",".join(SHARES), help="names with commas between them")
    parser.add_argument("--seconds", type=float, help="of the whole run")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the generated candidates (part mutants)"
    )
    parser.add_argument(
        "--limit",
        type=int,
        help="generated candidates of this run, then it goes on later; verdicts of busy",
    )
    parser.add_argument("--shards", type=int, default=1, help="runs at once (part mutants, CPUs)")
    parser.add_argument("--shard", type=Shard.parse, default=Shard(), help="of these, as 3/16")
    parser.add_argument("--lanes", type=int, help="verdicts beside each other (part big; 1)")
    parser.add_argument("--scale", type=int, default=1, help="sizes are divided by it (part big)")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - {*SHARES, MUTANTS, BUSY, BIG, BLIND}:
        parser.error(
            f"no such part: {', '.join(sorted(unknown))} (choose from {', '.join(SHARES)}, "
            f"{MUTANTS}, {BUSY}, {BIG}, {BLIND})"
        )
    seconds = options.seconds or DEFAULT_S[options.device]
    if options.shards > 1:
        raise SystemExit(0 if asyncio.run(run_shards(options, seconds)) else 1)
    work = run(
        options.device,
        parts,
        seconds,
        options.out,
        seed=options.seed,
        limit=options.limit,
        shard=options.shard,
        at_once=options.lanes,
        scale=options.scale,
    )
    raise SystemExit(0 if asyncio.run(work) else 1)


if __name__ == "__main__":
    main()
