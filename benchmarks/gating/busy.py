"""Verdicts while every core is busy with other programs: no false cheat, no false gain, and true
gains are found or called not sure.

Half of the candidates are their references spelled again, half take less than half of the time.
The busy programs belong to nobody whom the gate knows, as a user's other work does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.gating.running import Bench, GatePart, GateRow, Judged
from benchmarks.gating.tasks import GateTask
from kernel_lsp.evaluator import EvaluationRequest
from kernel_lsp.records import EvalStatus, SpeedAnswer

VERDICTS = 20
"""By default; the bar asks for 200."""
SIZES = ((256, 256), (512, 512), (2048, 256), (1024, 1024), (64, 4096))
GAINS = (
    ("erf", "return (torch.erf(x) + torch.erf(x)) * 0.5", "return torch.erf(x)"),
    ("sigmoid", "return (torch.sigmoid(x) + torch.sigmoid(x)) * 0.5", "return torch.sigmoid(x)"),
)
LOOP = "while True: pass"
LAUNCH = (
    "import subprocess, sys; quiet = subprocess.DEVNULL;"
    "made = [subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=quiet)"
    " for _ in range(int(sys.argv[2]))];"
    "print(*[one.pid for one in made], flush=True)"
)


@contextlib.contextmanager
def all_cores_busy() -> Iterator[None]:
    """One endless program per processor that we may use, children of a process that has ended."""
    count = str(len(os.sched_getaffinity(0)))
    launched = subprocess.run(
        [sys.executable, "-c", LAUNCH, LOOP, count],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    try:
        yield
    finally:
        for pid in map(int, launched.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


async def beside_busy_programs(bench: Bench, seconds: float, count: int | None) -> GatePart:
    """``count`` verdicts, one after another; fewer where ``seconds`` are over before."""
    end = time.monotonic() + seconds
    found: list[Judged[str]] = []
    with all_cores_busy():
        for key, request in _jobs(bench, count or VERDICTS):
            if time.monotonic() > end:
                break
            found.append(await bench.judge(key, request))
    return _counted(found, count or VERDICTS)


def _jobs(bench: Bench, count: int) -> Iterator[tuple[str, EvaluationRequest]]:
    for number in range(count):
        name, body, better = GAINS[number // 2 % len(GAINS)]
        rows, columns = SIZES[number // 4 % len(SIZES)]
        task = GateTask(
            name=f"{name} {rows} x {columns}",
            inputs=(f"torch.randn({rows}, {columns})",),
            body=body,
            other=better,
        )
        gain = number % 2 == 1
        candidate = f"{task.candidate}\nTRIAL = {number}\n" if gain else task.itself(number)
        request = bench.request(task.reference, candidate, timing_s=1.0, call_s=60)
        yield "gain" if gain else "itself", replace(request, timeout_s=600.0)


def _answer(judged: Judged[str]) -> str:
    answer = judged.evaluation.speed_answer() if judged.evaluation else None
    return answer.value if answer else str(judged.status or "could not be judged")


def _counted(found: list[Judged[str]], count: int) -> GatePart:
    answers = Counter((judged.key, _answer(judged)) for judged in found)
    cheats = sum(judged.status is EvalStatus.CHEATED for judged in found)
    false = answers["itself", SpeedAnswer.FASTER.value]
    gains = [judged for judged in found if judged.key == "gain"]
    seen = sum(_answer(one) in (SpeedAnswer.FASTER, SpeedAnswer.NOT_SURE) for one in gains)
    done = len(found) >= count
    rows = [
        _bar("false 'cheated' on a busy machine", "0", cheats, len(found), _met(not cheats, done)),
        _bar(
            "programs called faster than themselves", "0", false, len(found), _met(not false, done)
        ),
        _bar(
            "true gains of 2x found or called not sure",
            "all",
            seen,
            len(gains),
            _met(seen == len(gains), done),
        ),
    ]
    notes = [f"{key}: {answer} {number}" for (key, answer), number in sorted(answers.items())]
    data = [
        {
            "key": one.key,
            "answer": _answer(one),
            "detail": one.detail,
            "seconds": round(one.seconds, 2),
            "unsure": one.evaluation.unsure if one.evaluation else "",
            "others_load": one.evaluation.environment.get("others_load")
            if one.evaluation
            else None,
        }
        for one in found
    ]
    return GatePart(rows=rows, notes=notes, data=data)


def _met(good: bool, done: bool) -> bool | None:
    """Missed at once, met only by all verdicts that were asked for."""
    return False if not good else True if done else None


def _bar(what: str, bar: str, number: int, of: int, met: bool | None) -> GateRow:
    return GateRow(what=what, bar=bar, measured=f"{number} of {of}", met=met)
