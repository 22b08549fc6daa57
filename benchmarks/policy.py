"""How fast the shipped policy suggests, and what it costs: on this machine's CPU, with its real
child.

    python benchmarks/policy.py                      a random model of the shipped size
    python benchmarks/policy.py --model FOLDER       a checkpoint
    … --kernels DIR      a policy for Triton kernels, on those of trainer.tasks.generated_kernels
    python benchmarks/policy.py --out FILE           also as text to keep

A suggestion: a whole first plan for a program of benchmarks/tasks (skills selected, steps named
with their parameters, stop), from the request to the last word, with the engine's answers between
the steps left out (they are timed apart) and the child warm; of a kernel all questions that its
first plan takes. Memory: the child's private memory over a process that has torch alone. Bars:
p50 of 150 ms on two cores, 300 MB, 60 MB on disk."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "models"))

import tiny_policy

from kernel_lsp import process, skillbook
from kernel_lsp.agents.backbones.small import shape
from kernel_lsp.agents.backbones.small.runtime import ModelReply, Runtime
from kernel_lsp.agents.kernel_planner import KernelPlanner
from kernel_lsp.agents.learned import usable
from kernel_lsp.agents.plan import Planner
from kernel_lsp.agents.prompt_encoding import Dialog, DialogPhase, Situation
from kernel_lsp.agents.prompt_encoding.launching import LaunchQuestion
from kernel_lsp.errors import KernelLspError, RewriteError
from kernel_lsp.records import (
    EvalStatus,
    Program,
    Skill,
    Step,
    TargetKind,
    Viewed,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite.client import Engine
from trainer.tasks import task_suites

TASKS = Path(__file__).resolve().parent / "tasks"
BAR_MS, BAR_MEMORY_MB, BAR_DISK_MB = 150.0, 300.0, 60.0
MAX_STEPS = 12


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    task: str
    words: int
    """Of the opening."""
    steps: int
    policy_ms: float
    """Wall time: everybody on the machine counts."""
    cpu_ms: float
    """The child's processor time: what it would take on a core of its own."""
    engine_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--kernels", type=Path, help="a folder of trainer.tasks.generated_kernels")
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (arguments.model or Path(made)).absolute()  # confined children see whole paths
        if arguments.model is None:
            tiny_policy.write(folder)
        text = asyncio.run(measured(folder, arguments))
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


async def measured(folder: Path, arguments: argparse.Namespace) -> str:
    files = shuffled(arguments.kernels or TASKS)
    book = skillbook.load(skillbook.folders()).skills
    skills = [skill for skill in book if skill.executable]
    runtime = Runtime(folder, sys.executable)
    with tempfile.TemporaryDirectory() as scratch:
        engine = Engine(
            python=sys.executable,
            limits=process.Limits(),
            confinement=process.Confinement(scratch=Path(scratch)),
        )
        try:
            begun = time.perf_counter()
            await runtime.warm()
            start_s = time.perf_counter() - begun
            found: list[Suggestion] = []
            for file in files[: arguments.tasks]:
                if arguments.kernels:
                    found += await of_kernel(file, engine, runtime, skills, arguments.rounds)
                else:
                    found += await suggested(
                        file.stem, file.read_text(), engine, runtime, skills, arguments.rounds
                    )
            memory = await beyond_torch(runtime)
        finally:
            await engine.close()
            await runtime.close()
    return report(folder, found, memory, start_s)


def shuffled(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.py"))
    random.Random(2026).shuffle(files)
    return files


async def suggested(
    task: str, source: str, engine: Engine, runtime: Runtime, skills: list[Skill], rounds: int
) -> list[Suggestion]:
    """The first plan for a task, some times; the first round is cold for this task and counts
    too."""
    program = Program(source=source, entry="Model", kind=TargetKind.MODULE)
    workload = Workload(name="bench", origin=WorkloadOrigin.GET_INPUTS)
    try:
        capture = await engine.open(program, workload, "cuda", skills)
    except KernelLspError:
        return []
    if capture.graph is None or not capture.sites:
        return []
    situation = Situation(
        graph=capture.graph,
        sites=usable(capture.sites, triton=True),
        device="cuda",
        capability="sm_90",
        read_bytes=capture.read_bytes,
        written_bytes=capture.written_bytes,
    )
    planner = Planner(engine.make, engine.look, weigh=engine.weigh)
    advice = await anext(planner.ranked_plans(capture.sites, triton=True), None)
    if advice is None:
        return []
    return [await one(task, situation, advice.steps, engine, runtime) for _ in range(rounds)]


async def one(
    task: str, situation: Situation, advice: Sequence[Step], engine: Engine, runtime: Runtime
) -> Suggestion:
    begun, engine_s, cpu_s = time.perf_counter(), 0.0, 0.0
    dialog = Dialog(situation)
    words = len(dialog.words)
    while dialog.phase in (DialogPhase.SELECT, DialogPhase.STEP) and len(dialog.steps) <= MAX_STEPS:
        if dialog.turn == 0 and dialog.phase.value == "step":
            asked = time.perf_counter()
            await advised(dialog, advice, engine)
            engine_s += time.perf_counter() - asked
        said = await runtime.reply(dialog)
        cpu_s += said.cpu_s
        dialog.say(said.words)
        if dialog.phase.value == "engine":  # by its value: what is said changes the phase
            asked = time.perf_counter()
            viewed = await viewed_by(engine, dialog)
            engine_s += time.perf_counter() - asked
            dialog.saw(viewed) if viewed else dialog.refused()
    total_s = time.perf_counter() - begun
    return Suggestion(
        task=task,
        words=words,
        steps=len(dialog.steps),
        policy_ms=(total_s - engine_s) * 1e3,
        cpu_ms=cpu_s * 1e3,
        engine_ms=engine_s * 1e3,
    )


async def of_kernel(
    file: Path, engine: Engine, runtime: Runtime, skills: list[Skill], rounds: int
) -> list[Suggestion]:
    """The same for a file with one Triton kernel; what the policy is not asked for is the engine's
    time."""
    (task,) = (one for one in task_suites.load(file.parent).tasks if one.path == file)
    capture = await engine.open(task.program, task.workload, "cuda", skills)
    found = []
    for _ in range(rounds):
        said: list[ModelReply] = []
        words: list[int] = []

        async def answer(
            asked: LaunchQuestion, said: list[ModelReply] = said, words: list[int] = words
        ) -> ModelReply:
            said.append(await runtime.reply(asked))
            words.append(len(asked.words))
            return said[-1]

        rule = Planner(engine.make, engine.look)
        planner = KernelPlanner(
            name="policy",
            answer=answer,
            launched=engine.launched,
            make=engine.make,
            rule=rule,
            capability="sm_90",
        )
        begun = time.perf_counter()
        first = await anext(planner.ranked_plans(capture.sites, triton=True), None)
        total_s, policy_s = time.perf_counter() - begun, sum(one.seconds for one in said)
        if first is not None and said:
            found.append(
                Suggestion(
                    task=task.name,
                    words=max(words),
                    steps=len(first.steps),
                    policy_ms=policy_s * 1e3,
                    cpu_ms=sum(one.cpu_s for one in said) * 1e3,
                    engine_ms=(total_s - policy_s) * 1e3,
                )
            )
    return found


async def advised(dialog: Dialog, advice: Sequence[Step], engine: Engine) -> None:
    """The rule's plan, as the policy reads it before it answers."""
    for step in advice:
        dialog.say(dialog.reply_for(step))
        dialog.saw(await engine.view(dialog.steps))
    dialog.say(("stop", "."))
    dialog.heard(EvalStatus.PASSED)


async def viewed_by(engine: Engine, dialog: Dialog) -> Viewed | None:
    try:
        return await engine.view(dialog.steps)
    except RewriteError:
        return None


async def beyond_torch(runtime: Runtime) -> float:
    """MB of private memory of the child more than of a process that has imported torch."""
    code = "import torch, sys; torch.ones(2) @ torch.ones(2); print(flush=True); sys.stdin.read()"
    plain = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert plain.stdout is not None and runtime._child is not None
        await plain.stdout.readline()
        mine = max(private_mb(pid) for pid in tree(runtime._child.process.pid))
        return mine - private_mb(plain.pid)
    finally:
        plain.kill()
        await plain.wait()


def tree(pid: int) -> list[int]:
    """A process and what it started: bubblewrap stands before the child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in tree(int(child)))]


def private_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def report(folder: Path, found: list[Suggestion], memory_mb: float, start_s: float) -> str:
    times = sorted(one.policy_ms for one in found)
    p50, p90 = (times[min(len(times) - 1, int(share * len(times)))] for share in (0.5, 0.9))
    busy = statistics.median(one.cpu_ms for one in found)
    disk = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    load = os.getloadavg()[0]
    size = shape.read(folder).parameters / 1e6
    opening = sorted(one.words for one in found)
    rows = [
        ("a suggestion, p50", f"{p50:.0f} ms", f"{BAR_MS:.0f} ms", p50 <= BAR_MS),
        ("a suggestion, p90", f"{p90:.0f} ms", "", True),
        ("its processor time, p50", f"{busy:.0f} ms", "", True),
        (
            "memory on top of torch",
            f"{memory_mb:.0f} MB",
            f"{BAR_MEMORY_MB:.0f} MB",
            memory_mb <= BAR_MEMORY_MB,
        ),
        ("on disk", f"{disk:.0f} MB", f"{BAR_DISK_MB:.0f} MB", disk <= BAR_DISK_MB),
        ("start of the child (torch included)", f"{start_s:.1f} s", "", True),
        (
            "engine's answers in between, median",
            f"{statistics.median(o.engine_ms for o in found):.0f} ms",
            "",
            True,
        ),
        (
            "steps of a suggestion, mean",
            f"{statistics.fmean(o.steps for o in found):.1f}",
            "",
            True,
        ),
        (
            "words of an opening, median / most",
            f"{opening[len(opening) // 2]} / {opening[-1]}",
            "",
            True,
        ),
    ]
    head = [
        f"policy of {size:.1f} million parameters, {len(found)} suggestions for"
        f" {len({one.task for one in found})} programs",
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, one thread",
        "",
    ]
    lines = [
        f"{name:<38}{value:>12}{bar:>10}  {'' if not bar else 'ok' if fine else 'MISSED'}".rstrip()
        for name, value, bar, fine in rows
    ]
    return "\n".join([*head, f"{'':<38}{'measured':>12}{'bar':>10}", *lines])


if __name__ == "__main__":
    main()
