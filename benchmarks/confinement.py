"""What confinement costs and holds on this machine: a child's start, and the escape corpus.

    python -m benchmarks.confinement [--rounds 20] [--json FILE]

Times are of a child that starts, answers nothing and ends: forked as a zygote forks, with and
without confining itself, in turns, the median of each; and of a program by the entry, against the
same one without. The corpus is tests/adversarial/escapes: how many of its cases got out, by user
and by what confines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.reporting import circumstances, print_record
from kernel_lsp import scratch
from kernel_lsp.confinement import Confinement, clean_environment, confine, entry, held, namespaces

ESCAPES = Path(__file__).resolve().parent.parent / "tests" / "adversarial" / "escapes"
WITHOUT: tuple[tuple[str, ...], ...] = ((), ("namespaces",), ("landlock",))


def forked_ms(folder: Path, *, confined: bool) -> float:
    """From the fork to the end of the child, which becomes a tree of its own where it is
    confined."""
    begun = time.perf_counter()
    guardian = os.fork()
    if guardian == 0:
        tree = confined and namespaces.enter_process_tree()
        child = os.fork()
        if child == 0:
            if confined:
                confine.confine(confine.Order(scratch=str(folder)), {}, tree=tree)
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if os.waitpid(guardian, 0)[1]:
        raise RuntimeError("the child could not be confined")
    return (time.perf_counter() - begun) * 1e3


async def started_ms(folder: Path, *, confined: bool) -> float:
    begun = time.perf_counter()
    argv = (sys.executable, "-I", "-S", "-c", "pass")
    if confined:
        started = await entry.start(
            argv, confinement=Confinement(scratch=folder), environment=clean_environment()
        )
        process = started.process
    else:
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    await process.communicate()
    return (time.perf_counter() - begun) * 1e3


def medians(rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    with scratch.folder("bench") as folder:
        for _ in range(rounds):
            for confined in (False, True):
                name = "confined" if confined else "bare"
                found.setdefault(f"forked {name}", []).append(forked_ms(folder, confined=confined))
                took = asyncio.run(started_ms(folder, confined=confined))
                found.setdefault(f"started {name}", []).append(took)
    return {name: round(statistics.median(times), 2) for name, times in found.items()}


def escapes() -> list[dict[str, Any]]:
    """One row a user and set of layers: how many cases were tried, and which got out."""
    sys.path[:0] = [str(ESCAPES), str(ESCAPES.parents[1] / "unit")]
    import cases  # type: ignore[import-not-found]
    import world  # type: ignore[import-not-found]

    rows = []
    for who in ("root", "user") if os.geteuid() == 0 else ("user",):
        with world.world(who) as made:
            for without in WITHOUT:
                got_out, layers, results = world.escaped(made, cases.CASES, without=without)
                rows.append(row(who, "nothing of the corpus", without, results, got_out, layers))
            for off, shown in world.groups().items():
                chosen = [
                    one
                    for one in shown
                    if world.possible(one, made) and (who == "root" or not one.root)
                ]
                if chosen:
                    got_out, layers, results = world.escaped(made, chosen, without=off)
                    rows.append(row(who, "each of the corpus", off, results, got_out, layers))
    return rows


def row(
    who: str, expected: str, off: tuple[str, ...], tried: Any, got_out: set[str], layers: list[str]
) -> dict[str, Any]:
    names = sorted(got_out) if expected.startswith("nothing") else len(got_out)
    return {
        "user": who, "switched_off": list(off), "layers": layers, "expected_out": expected,
        "tried": len(tried), "got_out": names,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tried = asyncio.run(held.try_layers())
    report = {
        **circumstances(),
        "kernel": platform.release(),
        "held": {
            "layers": sorted(tried.layers),
            "words": tried.words,
            "open": tried.open,
            "problem": tried.problem,
        },
        "rounds": options.rounds,
        "median_ms": medians(options.rounds),
        "escapes": escapes(),
    }
    print_record(options.json, report)


if __name__ == "__main__":
    main()
