"""How long a device stands idle while a slow language model proposes: a whole search, judged by
the gate.

    PYTHONPATH=. python3 benchmarks/idle.py --device cuda --seconds 90 --out idle-h200-DATE.json

The model is the tests' scripted server (tests/helpers/scripted_model.py): 8 replies in flight, 2 s
each, every one a call drawn from its schema. Printed: the share of the time between the first and
the last judgement in which none was under way although a candidate waited for one (the bar: under
10 %), the same whether or not one waited, and how busy the driver says that the device was (NVML,
sampled; compiling a candidate is no work of the device). Not covered: a model on the GPU that
judges, with which judging takes turns on purpose."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from scripted_model import Say, ScriptedModel

from benchmarks.reporting import circumstances, write_record
from kernel_lsp import config
from kernel_lsp.evaluator.sharing import nvml
from kernel_lsp.files import read_source
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.pipeline.tournament import Tournament
from kernel_lsp.records import (
    Candidate,
    Job,
    Outcome,
    SearchBudget,
    SearchJudgement,
    SearchMode,
    SearchPlan,
)
from kernel_lsp.search.loop import SearchLoop

TASKS = Path(__file__).resolve().parent / "tasks"
SAMPLES, REPLY_S = 8, 2.0
SAMPLED_EVERY_S = 0.05


class IdleWatch:
    """When judgements ran and candidates waited."""

    def __init__(self) -> None:
        self.running = 0
        self.loop: SearchLoop | None = None
        self.seen: list[tuple[float, int, bool]] = []
        """Seconds until the next look, judgements under way, whether a candidate waited."""
        self.busy: list[int] = []

    @property
    def waits(self) -> bool:
        return self.loop is not None and len(self.loop.archive.unfinished) > self.running

    async def sample(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(SAMPLED_EVERY_S)
            now = time.monotonic()
            if self.running or self.seen:
                self.seen.append((now - before, self.running, self.waits))
                self.busy += [percent for percent in (busy_percent(),) if percent is not None]
            before = now

    def idle(self, *, waiting: bool) -> float | None:
        """Share of the time until the last judgement ended."""
        last = max((place for place, one in enumerate(self.seen) if one[1]), default=-1)
        looked = [one for one in self.seen[: last + 1] if one[2] or not waiting]
        spent = sum(seconds for seconds, _, _ in looked)
        return (
            sum(seconds for seconds, running, _ in looked if not running) / spent if spent else None
        )


def busy_percent() -> int | None:
    with contextlib.suppress(Exception):
        # No NVML, no number: this one only stands beside the others.
        import pynvml

        pynvml.nvmlInit()
        first = int(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
        return int(
            pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(first)).gpu
        )
    return None


def device_name(device: str) -> str:
    if device == "cpu":
        return device
    gpu = nvml.find(os.environ)
    return gpu if isinstance(gpu, str) else str(gpu.name)


@contextlib.contextmanager
def watched(watch: IdleWatch) -> Iterator[None]:
    """The product's own search and judge, looked at; the quick search before them is not
    counted."""
    judge, run = Tournament.judged, SearchLoop.run

    async def judged(self: Tournament, candidate: Candidate, *, full: bool) -> SearchJudgement:
        watch.running += 1
        try:
            return await judge(self, candidate, full=full)
        finally:
            watch.running -= 1

    async def running(self: SearchLoop) -> Any:
        watch.loop = self
        return await run(self)

    Tournament.judged, SearchLoop.run = judged, running  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tournament.judged, SearchLoop.run = judge, run  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def sampling(watch: IdleWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.sample())
    try:
        yield
    finally:
        task.cancel()


async def search(path: Path, device: str, seconds: float, watch: IdleWatch) -> Outcome:
    plan = SearchPlan(
        mode=SearchMode.BEST,
        budget=SearchBudget(candidates=100_000, seconds=seconds, stagnation=100_000),
    )
    os.environ.setdefault("KERNEL_LSP_API_KEY", "none")  # no keyring is asked
    async with ScriptedModel([Say(tool="apply_skill", delay_s=REPLY_S)]) as server:
        with tempfile.TemporaryDirectory() as data:
            settings = replace(
                config.load(None)[0],
                data_dir=data,
                policy="openai",
                endpoint=server.endpoint,
                model_samples=SAMPLES,
            )
            pipeline = Pipeline(settings)
            job = Job(
                text=read_source(path).text,
                path=str(path),
                qualname="Model",
                device=device,
                search=plan,
            )
            try:
                with watched(watch):
                    async with sampling(watch):
                        return await pipeline.optimize(job)
            finally:
                await pipeline.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=90, help="of the search (90)")
    parser.add_argument("--task", default="chains/linear_group_norm_clamp")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    watch = IdleWatch()
    outcome = asyncio.run(
        search(TASKS / f"{options.task}.py", options.device, options.seconds, watch)
    )
    found = outcome.search
    assert found is not None
    record = {
        "task": options.task,
        "idle_while_waiting": watch.idle(waiting=True),
        "idle": watch.idle(waiting=False),
        "nvml_busy_percent": statistics.fmean(watch.busy) if watch.busy else None,
        "attempts": found.attempts,
        "stop": str(found.stop),
        "samples_in_flight": SAMPLES,
        "reply_s": REPLY_S,
        "notes": list(found.notes),
    }
    print(json.dumps(record, indent=1))
    if options.out:
        about = {
            "schema_version": 1,
            **circumstances(),
            "device": device_name(options.device),
        }
        write_record(options.out, {**about, **record})


if __name__ == "__main__":
    main()
