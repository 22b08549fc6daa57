"""Candidates judged with confinement and without it, in turns, by one program: what it costs.

    python -m benchmarks.confined_judging [--rounds 12] [--json FILE]

Each way has a warm gate of its own, on the CPU. A round judges one candidate with each, in
alternating order: 1 s of timing, and the trials before it. Without confinement the same processes
are started and forked as nobody but this benchmark does it: by a start in the place of the one
entry, and orders that ask for no confinement. Candidates are the benchmark's own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.evaluator import BODIES, same
from benchmarks.reporting import circumstances, print_record
from kernel_lsp.confinement import Confinement, entry
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.processes import warm

WAYS = ("confined", "bare")


async def start_bare(
    argv: Sequence[str],
    *,
    confinement: Confinement,
    environment: Mapping[str, str],
    limits: object = None,
    **streams: Any,
) -> entry.Begun:
    """As `entry.start`, without a launcher. For this benchmark's own programs alone."""
    streams = {"stdin": entry.DEVNULL, "stdout": entry.PIPE, "stderr": entry.PIPE, **streams}
    process = await asyncio.create_subprocess_exec(
        *argv,
        **streams,
        cwd=confinement.scratch,
        env=dict(environment),
        start_new_session=True,
        limit=2**20,
    )
    return entry.Begun(process=process, layers={"namespaces": [], "privileges": True})


@contextlib.contextmanager
def without_confinement() -> Iterator[None]:
    """What is started in the block is confined by nothing."""
    send = warm.ZygoteClient._send

    def send_bare(zygote: Any, order: dict[str, Any], *rest: Any) -> Any:
        return send(zygote, {**order, "confinement": None}, *rest)

    with (
        mock.patch.object(entry, "start", start_bare),
        mock.patch.object(warm.ZygoteClient, "_send", send_bare),
        entry.requiring(frozenset()),
    ):
        yield


def setup_of(way: str) -> contextlib.AbstractContextManager[None]:
    return without_confinement() if way == "bare" else contextlib.nullcontext()


async def judge(gate: Gate, number: int) -> float:
    """Seconds for one candidate."""
    name = list(BODIES)[number % len(BODIES)]
    begun = time.perf_counter()
    found = await gate.evaluate(same(name, "cpu", 0, 1))
    if found.status.value != "passed":
        raise RuntimeError(f"{name}: {found.status.value}: {found.detail}")
    return time.perf_counter() - begun


async def measure(rounds: int) -> dict[str, Any]:
    rows: dict[str, list[float]] = {way: [] for way in WAYS}
    async with contextlib.AsyncExitStack() as stack:
        gates = {way: await stack.enter_async_context(Gate()) for way in WAYS}
        for way in WAYS:
            with setup_of(way):  # imports of torch, once for each
                await judge(gates[way], 0)
        for number in range(rounds):
            for way in WAYS if number % 2 else WAYS[::-1]:
                with setup_of(way):
                    rows[way].append(await judge(gates[way], number))
    return {way: summary(found) for way, found in rows.items()}


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    return {
        "median_s": round(statistics.median(seconds), 3),
        "per_minute": round(60 * len(seconds) / sum(seconds), 2),
        "seconds": [round(one, 3) for one in seconds],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = {
        **circumstances(),
        "kernel": platform.release(),
        "judged": asyncio.run(measure(options.rounds)),
    }
    print_record(options.json, report)


if __name__ == "__main__":
    main()
