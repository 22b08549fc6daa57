"""All of a program ends within a time: what runs take, what is left out, and what may go on
beside what is timed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from search_helpers import candidate, proposal, verdict

from kernel_lsp.programs import composing, measuring, optimizing, runs
from kernel_lsp.programs.bench import ProgramBench
from kernel_lsp.programs.comparing import Agreement
from kernel_lsp.programs.composing import ProgramVariant
from kernel_lsp.programs.measuring import (
    AS_IS,
    COMPILED,
    SLOWEST,
    MeasuredWays,
    RunSchedule,
)
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.programs.optimizing import TargetsAtWork
from kernel_lsp.programs.pace import StepPace, pace_of
from kernel_lsp.programs.runs import ProgramPlan
from kernel_lsp.programs.shares import ShareRow, Shares
from kernel_lsp.programs.stepping import Clock, ProgramWay, StartedRun, StepRun
from kernel_lsp.programs.targets import ProgramTarget
from kernel_lsp.programs.timetable import UNKNOWN_S, Timetable, words_of_seconds
from kernel_lsp.records import Job, Outcome, Progress, Report
from kernel_lsp.snapshots.store import ProgramRecording
from kernel_lsp.workloads import running
from kernel_lsp.workloads.recorder.steps import StepObserver

FAST = COMPILED[0]
CLOCK = Clock(roots=(("__main__", "Net"),), kind="optimizer")


def test_the_next_run_takes_what_the_last_of_its_way_or_of_its_kind_took() -> None:
    table = Timetable(100.0, lambda: 40.0)
    assert table.left_s == 60.0 and table.estimate_s(AS_IS) == UNKNOWN_S
    table.saw(AS_IS, 8.0)
    assert table.estimate_s(FAST) == 32.0, "what compiles takes longer"
    table.saw(FAST, 30.0)
    assert table.estimate_s(FAST) == 18.0, "its next run finds a cache"
    table.saw(FAST, 14.0)
    assert table.estimate_s(FAST) == 14.0, "its cache is warm"
    assert table.estimate_s(replace(FAST, name="other")) == 30.0
    assert table.estimate_s(SLOWEST) == 240.0
    assert table.total_s([AS_IS, FAST]) == 22.0
    times = (7.4, 99.4, 240.0, 3600.0)
    assert [words_of_seconds(s) for s in times] == ["7 s", "99 s", "4 min", "60 min"]


def test_targets_have_what_the_later_runs_leave_and_half_at_least() -> None:
    table = Timetable(600.0, lambda: 0.0)
    table.saw(AS_IS, 10.0)
    assert table.seconds_for_targets(1000.0, [AS_IS] * 10) == 500.0
    assert table.seconds_for_targets(300.0, [AS_IS] * 10) == 300.0
    assert table.seconds_for_targets(1000.0, [AS_IS] * 60) == 300.0


class Noted(RunSchedule):
    """A schedule that lets ``count`` runs go."""

    def __init__(self, count: int) -> None:
        self.count, self.began = count, list[tuple[str, int]]()

    def may_run(self, way: ProgramWay, number: int) -> bool:
        self.count -= 1
        return self.count >= 0

    def words(self, planned: Any) -> str:
        return f" ({len(planned)} left)"

    def begin(self, way: ProgramWay, number: int) -> None:
        self.began.append((way.name, number))


def test_runs_begin_one_ahead_and_end_when_the_time_is_over() -> None:
    found, said, schedule = MeasuredWays(), list[str](), Noted(3)

    def start(way: ProgramWay, number: int) -> StepRun:
        return StepRun(way=way, steps_ms=(1.0,) * 8)

    done = measuring.measure(
        found, [AS_IS, FAST], start, said.append, range(1, 3), schedule=schedule
    )
    assert not done and {way: list(runs) for way, runs in found.runs.items()} == {
        FAST: [1],
        AS_IS: [1, 2],
    }
    assert said[0] == "timing the step, run 1: torch.compile (4 left)"
    assert schedule.began == [("as it is", 1), ("as it is", 2), ("torch.compile", 2)]


SCRIPT = """
import sys, time, torch
open(sys.argv[1], "a").write("imported ")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        open(sys.argv[1], "a").write("made ")
        self.lin = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.lin(x).sum()
if "gpu" in sys.argv:
    from torch.cuda.random import _lazy_init as here
    try:
        here()
    except (AssertionError, RuntimeError):
        open(sys.argv[1], "a").write("asked ")
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    net(torch.ones(2, 4)).backward()
    optimizer.step()
"""


def _wait_for(path: Path, word: str) -> None:
    end = time.monotonic() + 100
    while time.monotonic() < end and not (path.exists() and word in path.read_text()):
        time.sleep(0.05)


@pytest.mark.torch
@pytest.mark.parametrize("words", [(), ("gpu",)])
def test_a_run_that_is_held_imports_and_then_waits(tmp_path: Path, words: tuple[str, ...]) -> None:
    root, said = tmp_path / "work", tmp_path / "said"
    root.mkdir()
    (root / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py", str(said), *words]
    with Mirror.of(root, {}) as mirror:
        begun = StartedRun(mirror, command, root, AS_IS, CLOCK, steps=4, held=True)
        _wait_for(said, "imported")
        time.sleep(1.0)
        assert said.read_text() == "imported ", "neither a module nor a GPU before it may"
        run = begun.finish(100.0)
        assert run.failed is None and len(run.steps_ms) == 3
        assert said.read_text() == f"imported {'asked ' if words else ''}made "
        given_up = StartedRun(mirror, command, root, AS_IS, CLOCK, steps=4, held=True)
        process = given_up._process
        given_up.end()
        assert process.returncode is not None, "nothing is left of one that nobody waits for"


@pytest.mark.torch
def test_what_a_held_run_waited_is_not_its_first_step_s(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    said = tmp_path.parent / f"{tmp_path.name}-said"
    command = [sys.executable, "train.py", str(said)]
    with Mirror.of(tmp_path, {}) as mirror:
        begin = time.monotonic()
        begun = StartedRun(mirror, command, tmp_path, AS_IS, CLOCK, steps=4, held=True)
        _wait_for(said, "imported")
        time.sleep(5.0)
        run = begun.finish(100.0)
        took = time.monotonic() - begin
    assert run.first_s is not None and run.first_s < took - 4.0


@pytest.mark.torch
def test_nothing_is_imported_beside_steps_whose_times_count(tmp_path: Path) -> None:
    root, said = tmp_path / "work", tmp_path / "said"
    root.mkdir()
    (root / "train.py").write_text(SCRIPT)
    asked = list[str]()

    class Other:
        class _pause:
            touch = staticmethod(lambda: asked.append("waits"))
            unlink = staticmethod(lambda missing_ok: asked.append("goes on"))

    others: Any = [Other()]
    with Mirror.of(root, {}) as mirror:
        begun = StartedRun(mirror, [sys.executable, "train.py", str(said)], root, AS_IS, CLOCK,
                           steps=4, held=True)  # fmt: skip
        begun._pause.touch()
        time.sleep(8.0)
        assert not said.exists(), "it has not even imported torch"
        begun._pause.unlink()
        slow = SCRIPT.replace("while True:\n", "while True:\n    time.sleep(0.3)\n")
        (mirror.copy / "train.py").write_text(slow)
        run = begun.finish(100.0, others)
    assert run.failed is None and run.first_s is not None
    assert asked[0] == "waits" and asked[-1] == "goes on" and asked.count("goes on") == 1


def _bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_s: float) -> ProgramBench:
    recorded = ProgramRecording(
        folder=tmp_path, program="p", root=str(tmp_path), command=("p",), created="now",
        elapsed_s=1.0, devices=(), seen=(), ways=(), files=(), steps={},
    )  # fmt: skip
    plan = ProgramPlan(root=tmp_path, folder=tmp_path, command=("p",))
    table = Timetable(within_s, lambda: 0.0)
    made = ProgramBench(plan, CLOCK, recorded, lambda _: None, table)
    made.measured.runs[AS_IS] = {0: StepRun(way=AS_IS, steps_ms=(9.0,) * 8)}
    table.saw(AS_IS, 8.0)
    table.saw(FAST, 30.0)
    started = list[str]()

    def start(way: ProgramWay, number: int = 0, **more: Any) -> StepRun:
        started.append(way.name)
        return StepRun(way=way, steps_ms=(8.0,) * 8)

    monkeypatch.setattr(made.runs, "start", start)
    monkeypatch.setattr(made, "started", started, raising=False)
    return made


def test_of_slow_steps_a_run_has_fewer_and_targets_come_before_a_run_that_takes_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _bench(tmp_path, monkeypatch, 300.0)
    made.runs.plan = replace(made.runs.plan, within=5.0)
    for step_s, steps, ends_s in ((0.1, 30, 13.0), (1.0, 18, 28.0), (30.0, 6, 190.0)):
        made.runs.fit(10.0, step_s)
        assert (made.runs.steps, made.timetable.estimate_s(AS_IS)) == (steps, ends_s)
    made.runs.fit(30.0, 40.0)
    made.time_first()
    assert made.started == [], "230 s are more than half of 300"  # type: ignore[attr-defined]
    (note,) = made.notes
    assert "the next run, of up to 4 min" in note and "--within gives it more" in note


RECORDED = ProgramRecording(
    folder=Path("recording"), program="p", root="/work", command=("p",), created="now",
    elapsed_s=300.0, devices=(), files=(), steps={},
    seen=({"target": "p.py::Net", "calls": 100}, {"target": "p.py::Part", "calls": 400}),
    ways=({"target": "p.py::Net", "module": "__main__", "class": "Net"},),
)  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "clock", "pace"),
    [
        ({"optimizers": [{"steps": 5}], "first_s": 20.0, "last_s": 44.0}, {}, (20.0, 6.0)),
        ({"optimizers": [{"steps": 9}, {"steps": 5}], "first_s": 20.0, "last_s": 44.0},
         {"optimizer": 1}, (20.0, 6.0)),
        ({"optimizers": [{"steps": 1}], "first_s": 20.0, "last_s": 20.0}, {}, None),
        ({"optimizers": [{"steps": 60}]}, {}, (5.0, 5.0)),
        ({"before_s": 12.0}, {"kind": "calls"}, (15.0, 3.0)),
        ({"marked": 3, "first_s": 4.0, "last_s": 8.0}, {"kind": "function"}, (4.0, 2.0)),
        ({}, {"kind": "loader"}, None),
    ],
)  # fmt: skip
def test_a_recording_says_how_fast_steps_come(
    steps: dict[str, Any], clock: dict[str, Any], pace: tuple[float, float] | None
) -> None:
    found = pace_of(replace(RECORDED, steps=steps), replace(CLOCK, **clock))
    assert (found and (found.first_s, found.step_s)) == pace


@pytest.mark.parametrize(
    ("first_s", "step_s", "steps"), [(5.0, 0.1, 6), (12.0, 9.0, 5), (16.0, 6.0, 6), (60.0, 60.0, 3)]
)
def test_a_profile_has_as_many_steps_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_s: float, step_s: float, steps: int
) -> None:
    """Into a quarter of 5 minutes, two thirds of which are planned."""
    made = _bench(tmp_path, monkeypatch, 300.0)
    made.plan = replace(made.plan, within=5.0)
    assert made._profiled_steps == 6, "nobody knows how slow they are"
    made._pace = StepPace(first_s=first_s, step_s=step_s)
    assert made._profiled_steps == steps


def test_what_cannot_be_profiled_in_half_of_the_time_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _bench(tmp_path, monkeypatch, 300.0)
    made._pace = StepPace(first_s=60.0, step_s=60.0)
    made.profile()
    assert made.started == [] and made.shares is None  # type: ignore[attr-defined]
    (note,) = made.notes
    assert note.startswith("no step was profiled: the 3 steps that it needs take about 3 min")
    assert made.timetable.estimate_s(AS_IS) == 60.0 + 6 * 60.0, "as few as say anything"


@pytest.mark.parametrize(
    ("steps_ms", "more", "failed"),
    [
        ((6e3, 6e3, 6e3), {}, None),
        ((6e3, 6e3), {}, "3 of 9 steps ended within 40 s"),
        ((6e3, 6e3, 6e3), {"profiled": []}, "4 of 9 steps ended within 40 s"),
        ((6e3,), {"check": True}, "2 of 9 steps ended within 40 s"),
    ],
)
def test_a_run_that_is_cut_off_says_how_many_steps_have_ended(
    steps_ms: tuple[float, ...], more: dict[str, Any], failed: str | None
) -> None:
    """And is a time where they are enough for one."""
    begun: Any = SimpleNamespace(_is_timed=not more, _steps=9)
    run = StartedRun._cut_off(begun, StepRun(way=AS_IS, steps_ms=steps_ms), 40.0)
    assert (run.failed, run.is_cut_off) == (failed, failed is not None)
    assert (run.step_ms == 6e3) is (len(steps_ms) == 3)


def test_steps_are_written_down_while_the_run_goes_on(tmp_path: Path) -> None:
    given = {"out": str(tmp_path / "steps.json"), "roots": [], "clock": "optimizer", "count": 9,
             "begun": 0.0, "profiled": []}  # fmt: skip
    observer = StepObserver({**given, "roots": [["__main__", "Net"]]})
    observer.torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    observer._profile = SimpleNamespace(watch=lambda: None)
    for saved_s, count in ((-2.0, 0), (0.0, 0), (-2.0, 2)):  # of the steps so far, the first apart
        observer._saved = time.perf_counter() + saved_s
        observer._ended()
        found = json.loads((tmp_path / "steps.json").read_text())
        assert len(found["steps_ms"]) == count and __file__ in found["files"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_program_whose_steps_do_not_end_its_recording_is_interrupted(count: int) -> None:
    """``count``: of signals until it ends."""
    sent, waited = list[signal.Signals](), list[float | None]()

    class Process:
        send_signal = staticmethod(sent.append)

        @staticmethod
        def wait(timeout_s: float | None = None) -> int:
            waited.append(timeout_s)
            if len(sent) < count:
                raise subprocess.TimeoutExpired("train.py", timeout_s or 0.0)
            return -9

    process: Any = Process()
    assert running._wait(process, 90.0) == -9
    assert sent == [signal.SIGINT, signal.SIGTERM, signal.SIGKILL][:count] and waited[0] == 90.0


@pytest.mark.parametrize(("within_s", "is_timed"), [(200.0, False), (300.0, True)])
def test_the_slowest_mode_is_timed_when_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_s: float, is_timed: bool
) -> None:
    made = _bench(tmp_path, monkeypatch, within_s)
    made.time_later([])
    assert (SLOWEST.name in made.started) is is_timed  # type: ignore[attr-defined]
    said = [note for note in made.notes if SLOWEST.name in note]
    assert bool(said) is not is_timed
    assert is_timed or "4 min" in said[0]


def test_targets_come_before_compilers_and_are_timed_before_their_other_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _bench(tmp_path, monkeypatch, 1e6)
    made.time_first()
    started: list[str] = made.started  # type: ignore[attr-defined]
    assert started == [AS_IS.name]
    ours = ProgramWay(name="our kernels", variant=composing.KERNELS)
    made.runs.variants[composing.KERNELS] = ProgramVariant(
        name=composing.KERNELS, texts={}, before={}
    )
    monkeypatch.setattr(made, "_composed", lambda *_: [ours])
    monkeypatch.setattr(made.compared, "is_right", lambda way: True)
    made.time_later([])
    modes = [COMPILED[0].name, "our kernels", COMPILED[2].name, SLOWEST.name]
    places = [started.index(name) for name in modes]
    assert places == sorted(places), started
    rounds = {way.name: sorted(runs) for way, runs in made.measured.runs.items()}
    assert rounds["our kernels"][:3] == [1, 2, 3], "and in a round of its own before these"
    assert rounds["our kernels"][-1] == 8 and 8 in rounds[AS_IS.name]


def test_what_runs_after_the_targets_is_a_check_every_mode_once_and_three_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _bench(tmp_path, monkeypatch, 1e6)
    count = Counter(way.name for way in made.later_ways)
    assert count[AS_IS.name] == 4 + 3 and count[FAST.name] == 1 + 3
    assert count["our kernels"] == count["our kernels, torch.compile"] == 1 + 3
    assert count[COMPILED[2].name] == 1 + 3 and SLOWEST.name not in count


@pytest.mark.parametrize(("disturbed_ms", "interval"), [(0.0, "1.1"), (0.9, "1.0")])
def test_a_fused_optimizer_is_a_sure_gain_before_targets_are_looked_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disturbed_ms: float,
    interval: str,
) -> None:
    """``disturbed_ms``: what its run in one of the first four rounds takes longer; then it is one
    after them."""
    made, said = _bench(tmp_path, monkeypatch, 1e6), list[str]()
    times = {"a fused optimizer, torch.compile": 5.0, FAST.name: 6.0}
    started: list[str] = made.started  # type: ignore[attr-defined]

    def start(way: ProgramWay, number: int = 0, **more: Any) -> StepRun:
        started.append(way.name)
        more_ms = disturbed_ms if way.name in times and way != FAST and number == 10 else 0.0
        return StepRun(way=way, steps_ms=(times.get(way.name, 8.0) + more_ms + 0.01 * number,) * 8)

    variant = ProgramVariant(name=composing.OPTIMIZER, texts={}, before={})
    monkeypatch.setattr(made.runs, "start", start)
    monkeypatch.setattr(made, "_say", said.append)
    monkeypatch.setattr(composing, "fuse_optimizers", lambda *_: variant)
    monkeypatch.setattr(made.compared, "is_right", lambda way: True)
    made.time_first()
    assert [started.count(name) for name in times] == [4, 4]
    sure = "computes what the program does"
    assert any(sure in words for words in said) is not bool(disturbed_ms)
    count = len(started)
    made.time_later([])
    (last,) = [words for words in said if sure in words]
    assert last.startswith("a fused optimizer, torch.compile: 1.") and f"x [{interval}" in last, (
        last
    )
    assert "a fused optimizer, torch.compile" in started[count:], "and it stays in the rounds"


def test_where_time_is_short_targets_come_before_a_sure_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that compile, 30 s each, and six more: 168 to 200 s, more than a fifth of 800."""
    variant = ProgramVariant(name=composing.OPTIMIZER, texts={}, before={})
    monkeypatch.setattr(composing, "fuse_optimizers", lambda *_: variant)
    for within_s, is_early in ((800.0, False), (1000.0, True)):
        made = _bench(tmp_path, monkeypatch, within_s)
        monkeypatch.setattr(made.compared, "is_right", lambda way: True)
        made.time_first()
        assert (FAST.name in made.started) is is_early  # type: ignore[attr-defined]


@pytest.mark.parametrize(("within_s", "is_first"), [(500.0, True), (300.0, False)])
def test_where_compilers_take_too_long_a_gain_over_the_program_as_it_is_is_made_sure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_s: float, is_first: bool
) -> None:
    """Two runs that compile, 90 s each, and six more of 54 s are more than a fifth of 500 s; 6 and
    4 more of 8 s are not. They are of 300 s, and then come behind the targets."""
    made, said = _bench(tmp_path, monkeypatch, within_s), list[str]()
    made.timetable.saw(FAST, 90.0)
    started: list[str] = made.started  # type: ignore[attr-defined]
    variant = ProgramVariant(name=composing.OPTIMIZER, texts={}, before={})

    def start(way: ProgramWay, number: int = 0, **more: Any) -> StepRun:
        started.append(way.name)
        return StepRun(way=way, steps_ms=((7.0 if way.is_edited else 8.0) + 0.01 * number,) * 8)

    monkeypatch.setattr(made.runs, "start", start)
    monkeypatch.setattr(made, "_say", said.append)
    monkeypatch.setattr(composing, "fuse_optimizers", lambda *_: variant)
    monkeypatch.setattr(made.compared, "is_right", lambda way: True)
    made.time_first()
    assert Counter(started) == dict.fromkeys(
        (AS_IS.name, composing.OPTIMIZER), 4 if is_first else 1
    )
    made.time_later([])
    assert Counter(started[:8]) == {AS_IS.name: 4, composing.OPTIMIZER: 4}, "before any compiler"
    sure = next(words for words in said if "computes what the program does" in words)
    assert sure.startswith(f"{composing.OPTIMIZER}: 1.14x [1.1") and "against as it is" in sure


def test_a_gain_that_computes_something_else_is_none_and_is_not_timed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _bench(tmp_path, monkeypatch, 1e6)
    wrong = ProgramWay(name="a fused optimizer, torch.compile", variant="wrong")

    def start(way: ProgramWay, number: int = 0, **more: Any) -> StepRun:
        return StepRun(way=way, steps_ms=(2.0 if way == wrong else 8.0,) * 8)

    def is_right(way: ProgramWay) -> bool:
        made.compared.agreements[way.name] = Agreement(
            right=way != wrong, steps=(), detail="another loss"
        )
        return way != wrong

    variant = ProgramVariant(name=composing.OPTIMIZER, texts={}, before={})
    made.runs.variants["wrong"] = replace(variant, name="wrong")
    monkeypatch.setattr(made.runs, "start", start)
    monkeypatch.setattr(composing, "fuse_optimizers", lambda *_: variant)
    monkeypatch.setattr(made, "_compiled", lambda *_: [wrong])
    monkeypatch.setattr(made.compared, "is_right", is_right)
    made.time_first()
    assert wrong not in made.measured.runs
    made.time_later([])
    assert wrong not in made.measured.runs


def test_runs_whose_times_do_not_count_go_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, most, lock = [0], [0], threading.Lock()

    class Run:
        def __init__(self, *_: Any, **more: Any) -> None:
            with lock:
                going[0] += 1
                most[0] = max(most[0], going[0])

        def finish(self, timeout_s: float, beside: Any) -> StepRun:
            going[0] -= 1
            return StepRun(way=AS_IS, digests=([[1.0, 1.0]],) * 4)

        def end(self) -> None: ...

    monkeypatch.setattr(runs, "StartedRun", Run)
    table = Timetable(1e9)
    recorded = ProgramRecording(
        folder=tmp_path, program="p", root=str(tmp_path), command=("p",), created="now",
        elapsed_s=1.0, devices=(), seen=(), ways=(), files=(), steps={},
    )  # fmt: skip
    root = tmp_path / "work"
    root.mkdir()
    plan = ProgramPlan(root=root, folder=root, command=("p",))
    with ProgramBench(plan, CLOCK, recorded, lambda _: None, table) as made:
        asked = [(AS_IS, number, {"check": True}) for number in range(6)]
        assert len(made.runs.start_together(asked)) == 6 and most == [1], "no GPU, no room"
        made.runs._beside, most[0] = 3, 0
        asked = [(AS_IS, number, {"check": True}) for number in range(6, 12)]
        assert len(made.runs.start_together(asked)) == 6 and most == [3]
        room = StepRun(way=AS_IS, peak_bytes=2**30, room_bytes=2**33)
        monkeypatch.setattr(runs, "_cores", lambda: 16)
        for profiled, on_gpu, count in (
            (room, False, 1),
            (room, True, 3),  # 8 GB hold three of 1.5 + 1
            (replace(room, room_bytes=None), True, 1),
        ):
            made.runs.learn(profiled, on_gpu=on_gpu)
            assert made.runs._beside == count


@pytest.mark.parametrize(
    ("left_s", "said"), [(20.0, "would take"), (300.0, "took longer than what was left"), (1e6, "")]
)
def test_comparing_a_compiled_way_ends_with_the_time_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_s: float, said: str
) -> None:
    """Its second compilation takes 500 s, where its first one took 30."""
    now, most = [0.0], list[float]()

    class Run:
        def __init__(self, _mirror: Any, _command: Any, _folder: Any, way: ProgramWay, *_: Any,
                     **more: Any) -> None:  # fmt: skip
            self._way = way

        def finish(self, timeout_s: float, beside: Any) -> StepRun:
            most.append(timeout_s)
            now[0] += min(timeout_s, 500.0 if self._way == way else 8.0)
            if self._way == way and timeout_s < 500.0:
                return StepRun(way=self._way, failed="no step ended", is_cut_off=True)
            return StepRun(way=self._way, digests=([[1.0, 1.0]],) * 4)

        def end(self) -> None: ...

    made = _bench(tmp_path, monkeypatch, left_s)
    monkeypatch.undo()
    monkeypatch.setattr(runs, "StartedRun", Run)
    made.runs.plan = replace(made.plan, run_s=1e4)
    made.timetable._clock = lambda: now[0]
    way = ProgramWay(name="a fused optimizer, torch.compile", variant="v", mode="default")
    made.runs.variants["v"] = ProgramVariant(name="v", texts={}, before={})
    made.measured.runs[way] = {0: StepRun(way=way, first_s=29.0, steps_ms=(8.0,) * 8)}
    with Mirror.of(tmp_path, {}) as mirror:
        made.runs._mirrors |= {None: mirror, "v": mirror}
        made._leave_out_wrong()
        if 20.0 < left_s < 1e6:  # nor is one that is timed awaited
            now[0] = 0.0
            assert not made._measure([AS_IS, way], range(1)) and made.measured.step_ms(way) is None
            assert way not in made.measured.unfinished and any("timed" in n for n in made.notes)
    assert now[0] <= left_s and (way in made.measured.runs) is not bool(said)
    notes = [note for note in made.notes if said in note and "--within" in note]
    assert len(notes) == bool(said) and bool(most) is (left_s > 20.0)


class Slow:
    """A pipeline whose targets take so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.going, self.most = seconds, 0, 0

    async def optimize(self, job: Job, report: Report) -> Outcome:
        self.going += 1
        self.most = max(self.most, self.going)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.going -= 1
        return Outcome(qualname=job.qualname)


@pytest.fixture
def ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgramPlan]:
    file = tmp_path / "model.py"
    file.write_text("x = 1")
    names = [f"T{number}" for number in range(4)]
    found = [
        ProgramTarget(path=file, qualname=name, module="m", share=0.2, calls=1) for name in names
    ]
    monkeypatch.setattr(optimizing.targets, "rank_targets", lambda *_: found)
    yield ProgramPlan(root=tmp_path, folder=tmp_path, command=("p",))


@pytest.mark.parametrize(
    ("device", "cores", "most"), [("cuda", 16, 3), ("cuda", 2, 1), ("cpu", 16, 1)]
)
def test_targets_are_worked_on_side_by_side_on_a_gpu_with_cores(
    ranked: ProgramPlan, monkeypatch: pytest.MonkeyPatch, device: str, cores: int, most: int
) -> None:
    monkeypatch.setattr(optimizing.os, "sched_getaffinity", lambda _: range(cores))
    rows = [ShareRow(ranges=(("m", f"T{n}"),), kind="forward", us=1.0) for n in range(4)]
    shares = Shares(device=device, total_us=4.0, rows=tuple(rows), calls={})
    pipeline: Any = Slow(0.01)
    work = TargetsAtWork(pipeline, ranked, None, shares, lambda _: None, 60.0)  # type: ignore[arg-type]
    looked = asyncio.run(work.run())
    assert pipeline.most == most
    assert [one.qualname for one in looked] == ["T0", "T1", "T2", "T3"]
    assert all(one.outcome is not None for one in looked)


def test_what_was_verified_before_a_target_was_cut_off_is_kept(ranked: ProgramPlan) -> None:
    class Verifying(Slow):
        async def optimize(self, job: Job, report: Report) -> Outcome:
            for speedup in (1.2, 1.5):
                made = candidate(name=f"{job.qualname}-{speedup}")
                found = proposal(made, verdict(speedup))
                report(Progress(phase="evaluate", message="verified: x", proposal=found))
            return await super().optimize(job, report)

    pipeline: Any = Verifying(100.0)
    work = TargetsAtWork(pipeline, ranked, None, None, lambda _: None, 0.3)  # type: ignore[arg-type]
    first, *others = asyncio.run(work.run())
    assert first.outcome is not None and len(first.outcome.proposals) == 2
    assert first.proposal is not None and first.proposal.id == "T0-1.5"
    assert "cut off" in (first.outcome.note or "") and others[0].outcome is None


@pytest.mark.parametrize(("left_s", "count"), [(1000.0, 6), (400.0, 5), (1.0, 4)])
def test_few_ways_in_all_rounds_say_more_than_all_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_s: float, count: int
) -> None:
    made = _bench(tmp_path, monkeypatch, left_s)
    for way, step_ms in ((FAST, 5.0), (COMPILED[1], 7.0), (COMPILED[2], 4.0)):
        made.measured.runs[way] = {0: StepRun(way=way, steps_ms=(step_ms,) * 8)}
    ours = ProgramWay(name="ours", variant="ours", mode="default")
    made.measured.runs[ours] = {0: StepRun(way=ours, steps_ms=(6.0,) * 8)}
    made.runs.variants["ours"] = made.runs.variants["new"] = ProgramVariant(
        name="ours", texts={}, before={}
    )
    new = ProgramWay(name="new", variant="new", mode="default")
    ways = [AS_IS, FAST, COMPILED[1], COMPILED[2], ours, new]
    fitting = made._fitting(ways)
    assert len(fitting) == count and {AS_IS, COMPILED[2], ours, new} <= set(fitting)
    assert any("lack of time" in note for note in made.notes) is (count < 6)


def test_a_target_is_cut_off_when_the_time_of_all_is_over(ranked: ProgramPlan) -> None:
    pipeline: Any = Slow(100.0)
    said = list[Progress]()
    work = TargetsAtWork(pipeline, ranked, None, None, said.append, 0.2)  # type: ignore[arg-type]
    looked = asyncio.run(work.run())
    assert pipeline.going == 0 and looked[0].why_not is not None
    assert looked[0].why_not.startswith("cut off when 0 s were over")
    assert {one.why_not for one in looked[1:]} == {
        "0 s were over: the same command goes on from here"
    }
    assert "left for all" in said[0].message
