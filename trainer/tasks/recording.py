"""A table of measured plans of many tasks: what the shipped policy learns from (`trainer.data.tables`
reads it).

    python -m trainer.tasks.generated --out tasks/ --count 900 --seed 61
    python -m trainer.tasks.recording --tasks tasks/ --tasks benchmarks/tasks --out plans.json --limit-s
    420

Of each task `trainer.tasks.candidates` proposes plans, the rule's first; the gate's tuner compiles,
tries and times them, interleaved with the program itself, then neighbors of the best ones, then
all of them together. The file is written after every task, and what is in it already is not
measured again. Several GPUs: one process and one file each, with CUDA_VISIBLE_DEVICES and a
--shard. Not covered: full judgements (values are only near the reference's), torch.compile (a
baseline of 10 s a task), other users of the GPU."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp import interpreter, process, skillbook, wire
from kernel_lsp.agents.plan import NAME, RankedPlan
from kernel_lsp.errors import ConfigError, KernelLspError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.evaluator.tuning import ORIGINAL, TunedVariant, TunerClient, TuneRequest
from kernel_lsp.interpreter import Probe
from kernel_lsp.records import Json, Skill
from kernel_lsp.rewrite.client import Capture, Engine
from trainer.tasks import task_suites, timed_tasks
from trainer.tasks.candidates import Plans
from trainer.tasks.task_suites import TrainingTask, digest
from trainer.tasks.timed_tasks import TableRecording

FIRST, NEAR, BEST = 14, 6, 3
"""Plans of the first wave and of the second, and how many of the best the second one starts
from."""
QUICK_ROUNDS, QUICK_S, ROUNDS, TIMED_S = 4, 1.5, 11, 3.0
"""Of the first wave; of all plans together, at most."""
EXPECTED_S, LONGEST_S = 25.0, 90.0
"""What a task is guessed to take when the end is near, and after which it is given up: one that
hangs must not hold a place for the whole of a short lease."""
WRONG = ("far from the original", "another shape", "results instead")


@dataclass(frozen=True, kw_only=True)
class MeasuringMachine:
    """Where tasks are measured."""

    gate: Gate
    probe: Probe
    device: str
    skills: Sequence[Skill]

    @property
    def triton(self) -> bool:
        """Whether Triton kernels run there."""
        return self.device == "cuda"


@contextlib.asynccontextmanager
async def open_machine(probe: Probe, device: str) -> AsyncIterator[MeasuringMachine]:
    """A gate that waits for no other user of the device, which is lent, with all executable
    skills."""
    executable = [
        skill for skill in skillbook.load(skillbook.folders(())).skills if skill.executable
    ]
    with tempfile.TemporaryDirectory(prefix="recording-") as folder:
        device_sharing = DeviceSharing(SharingRules(data_dir=folder, when_busy="ignore"))
        async with Gate(device_sharing=device_sharing, cache=Path(folder) / "compiled") as gate:
            yield MeasuringMachine(gate=gate, probe=probe, device=device, skills=executable)


@contextlib.asynccontextmanager
async def open_task(
    task: TrainingTask, place: MeasuringMachine
) -> AsyncIterator[tuple[Engine, Capture]]:
    """Opens an engine and captures the task in it. Raises CaptureError."""
    with tempfile.TemporaryDirectory(prefix="recording-engine-") as scratch:
        folders = {Path(skill.path).parent for skill in place.skills}
        async with place.gate.forks() as start:
            engine = Engine(
                python=place.probe.python,
                limits=process.Limits(),
                confinement=process.Confinement(
                    scratch=Path(scratch), readable=tuple(sorted(folders))
                ),
                start=start,
            )
            try:
                yield (
                    engine,
                    await engine.open(task.program, task.workload, place.device, place.skills),
                )
            finally:
                await engine.close()


def tune_request(
    task: TrainingTask, place: MeasuringMachine, plans: Sequence[RankedPlan]
) -> TuneRequest:
    """What the gate's tuner is asked for."""
    return TuneRequest(
        reference=task.program,
        workload=task.workload,
        device=place.device,
        python=place.probe.python,
        uses_triton=any(plan.candidate.uses_triton for plan in plans),
    )


async def record(task: TrainingTask, place: MeasuringMachine) -> Json:
    """One task of the table. Raises KernelLspError when nothing can be measured of it."""
    async with open_task(task, place) as (engine, capture):
        plans = Plans(engine, capture.sites, random.Random(task.name), triton=place.triton)
        return await _measure(task, place, plans)


async def _measure(task: TrainingTask, place: MeasuringMachine, plans: Plans) -> Json:
    every = await plans.first(FIRST)
    if len(every) < 2:
        raise KernelLspError("nothing to choose: fewer than two plans")
    begun = time.monotonic()
    async with place.gate.tuner(tune_request(task, place, every)) as tuner:
        names = await enter_plans(tuner, every)
        if not names:
            raise KernelLspError(
                f"no plan runs: {next(iter(tuner.known.dropped.values()), 'none was made')}"
            )
        quick = (await tuner.timed(names, QUICK_ROUNDS, QUICK_S)).median_ms
        right = sorted(
            (p for p in every if p.candidate.id in quick), key=lambda p: quick[p.candidate.id]
        )
        more = await plans.near(right[:BEST], NEAR)
        every += more
        names += await enter_plans(tuner, more)
        known = await tuner.timed(names, ROUNDS, TIMED_S)
    return {
        "reference": digest(task.source),
        "family": task.family,
        "baseline_ms": {"eager": round(known.median_ms[ORIGINAL], 6)},
        "seconds": round(time.monotonic() - begun, 2),
        "rows": [_row(plan, known.median_ms, known.dropped) for plan in every],
    }


async def enter_plans(tuner: TunerClient, plans: Sequence[RankedPlan]) -> list[str]:
    """Names of those that compile and are near the reference. Raises TunerLost."""
    made = [plan.candidate for plan in plans]
    return await tuner.enter(
        [TunedVariant(name=c.id, source=c.program, entry=c.entry) for c in made]
    )


def _row(plan: RankedPlan, times: dict[str, float], dropped: dict[str, str]) -> Json:
    made = plan.candidate
    fields = {
        "steps": wire.to_json(list(plan.steps)),
        "candidate": made.id[:12],
        "triton": made.uses_triton,
        **({"proposer": NAME} if made.proposer == NAME else {}),
    }
    if made.id in times:
        return {**fields, "status": "passed", "ms": {"candidate": round(times[made.id], 6)}}
    reason = dropped.get(made.id, "it was not tried")
    status = "wrong_result" if any(part in reason for part in WRONG) else "runtime_error"
    return {**fields, "status": status, "detail": reason[:160]}


# --- the run ------------------------------------------------------------------------------------


def resume(recording: TableRecording) -> None:
    """Take over what an earlier run has measured. Raises ConfigError for a file that is no such
    table."""
    if not recording.out.exists():
        return
    try:
        known = json.loads(recording.out.read_text())
        recording.tasks, recording.skipped = dict(known["tasks"]), dict(known["skipped"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{recording.out} is no table to go on with: {error!r}", "name a new file"
        ) from error


async def record_limited(task: TrainingTask, place: MeasuringMachine) -> Json:
    """As `record`. Raises TimeoutError for one that hangs."""
    async with asyncio.timeout(LONGEST_S):
        return await record(task, place)


async def run(options: argparse.Namespace) -> int:
    """Measures plans of all tasks until ``limit_s`` is over, and writes the table; the exit code."""
    started = time.monotonic()
    probe = await interpreter.probe(sys.executable)
    if probe.remedy or (options.device == "cuda" and not probe.cuda):
        print(probe.remedy or f"torch in {probe.python} sees no CUDA device", file=sys.stderr)
        return 2
    recording = TableRecording(
        out=options.out,
        about={
            "schema_version": 1,
            "kind": "evaluations",
            "device": options.device,
            "device_name": probe.device if options.device == "cuda" else options.device,
            "versions": {"torch": probe.torch, "triton": probe.triton, "python": probe.version},
            "rounds": ROUNDS,
        },
        limit=started + options.limit_s,
        expected_s=EXPECTED_S,
        breaks='}, {"steps"',
    )
    resume(recording)
    done = recording.tasks.keys() | recording.skipped.keys()
    waiting = [
        task for task in _share(options.tasks, options.shard, options.seed) if task.name not in done
    ]
    async with open_machine(probe, options.device) as place:

        def following() -> TrainingTask | None:
            return None if recording.late or not waiting else waiting.pop(0)

        async def work(task: TrainingTask) -> None:
            await recording.enter(task.name, record_limited(task, place), _describe_task)

        if not await timed_tasks.share(following, work, options.lanes, recording.limit):
            print("the time is over: what was running is given up", flush=True)
    recording.write()
    rows = [row for task in recording.tasks.values() for row in task["rows"]]
    right = sum(row["status"] == "passed" for row in rows)
    took = time.monotonic() - started
    print(
        f"{len(recording.tasks)} tasks, {right} of {len(rows)} plans run, {took:.0f} s: "
        f"{options.out}"
    )
    return 0 if recording.tasks else 1


def _share(folders: Sequence[Path], shard: str, seed: int) -> list[TrainingTask]:
    """This process's tasks in an order that is the same for all. Raises ConfigError."""
    number, _, count = shard.partition("/")
    found = [task for folder in folders for task in task_suites.load(folder).tasks]
    random.Random(seed).shuffle(found)
    return found[int(number) :: int(count)]


def _describe_task(task: Json) -> str:
    times = [row["ms"]["candidate"] for row in task["rows"] if row["status"] == "passed"]
    eager, first = task["baseline_ms"]["eager"], task["rows"][0].get("ms", {}).get("candidate")
    text = f"{eager / first:.2f}x" if first else "-"
    best = f"{eager / min(times):.2f}x" if times else "-"
    return f"{len(times)} of {len(task['rows'])}, eager {eager:.3f} ms, rule {text}, best {best}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--tasks", type=Path, action="append", required=True, help="a folder of tasks"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=420.0, help="of the whole run")
    parser.add_argument(
        "--lanes", type=int, default=6, help="tasks beside each other (timing is exclusive)"
    )
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth task, from I")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the tasks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    try:
        sys.exit(asyncio.run(run(parser.parse_args())))
    except KernelLspError as error:
        sys.exit(f"recording: {error}")


if __name__ == "__main__":
    main()
