"""A program that people have: recorded, profiled, checked and timed by its own steps, in real
processes."""

import asyncio
import itertools
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_lsp.commands import programs
from kernel_lsp.config import Settings
from kernel_lsp.errors import WorkloadError
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.programs import (
    bench,
    comparing,
    measuring,
    offering,
    optimizing,
    recording,
    stepping,
    targets,
)
from kernel_lsp.programs.measuring import AS_IS
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.programs.runs import ProgramPlan, ProgramRuns
from kernel_lsp.programs.shares import IN_OPTIMIZER, Shares
from kernel_lsp.programs.stepping import Clock, StepRun
from kernel_lsp.programs.timetable import Timetable
from kernel_lsp.snapshots import store
from kernel_lsp.workloads import running
from kernel_lsp.workloads.recorder import limit, tokens

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[2] / "cases" / "programs" / "script" / "train.py"
MODEL, BLOCK, MLP = ("__main__", "Model"), ("__main__", "Block"), ("__main__", "MLP")
CLOCK = Clock(roots=(MODEL,), kind="optimizer", region=BLOCK)


def steps_of(
    root: Path, texts: dict[Path, str] | None = None, clock: Clock = CLOCK, **more: Any
) -> stepping.StepRun:
    with Mirror.of(root, texts or {}) as mirror:
        command = [sys.executable, "train.py"]
        values = {"steps": 3, "timeout_s": 100.0, **more}
        return stepping.run(mirror, command, root, AS_IS, clock, **values)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(SCRIPT, folder / "train.py")
    return folder


def test_a_profiled_step_is_shared_out_to_targets_and_the_optimizer(root: Path) -> None:
    run = steps_of(root, steps=4, profiled=[list(one) for one in (MODEL, BLOCK, MLP)])
    assert run.failed is None and run.profile is not None
    found = bench.Shares.of(run.profile, run.step_ms)
    assert (
        found.device == "cpu"
        and found.roots() == [MODEL]
        and found.repeated(MODEL, [BLOCK, MLP]) in (BLOCK, MLP)
    )
    kinds = {(row.ranges, row.kind) for row in found.rows}
    assert {
        ((MODEL, BLOCK, MLP), "forward"),
        ((MODEL, BLOCK, MLP), "backward"),
        ((), "optimizer"),
    } <= kinds
    assert 0.5 < found.of_target(MODEL) + found.of_kind("optimizer") <= 1.0
    assert found.is_within(MLP, BLOCK)
    (optimizer,) = run.optimizers
    (file, line), module = optimizer.pop("made"), optimizer.pop("module")
    assert optimizer == {"kind": "AdamW", "fused": None, "foreach": None}
    assert file == str(root / "train.py") and module == "torch.optim.adamw"
    assert "AdamW(" in (root / "train.py").read_text().splitlines()[line - 1]
    assert str(root / "train.py") in run.files, "by its own place, not that of the copy"


CLOSURE = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def closure():
    optimizer.zero_grad()
    big = torch.rand(600, 600)
    loss = net(torch.rand(4, 4)).sum() + (big @ big).sum()
    loss.backward()
    return loss


for step in range(20):
    HOW
"""


@pytest.mark.parametrize("how", ["optimizer.step(closure)", "optimizer.step(closure=closure)"])
def test_what_an_optimizer_s_closure_computes_is_not_the_optimizer_s(root: Path, how: str) -> None:
    """Lightning trains so."""
    net = ("__main__", "Net")
    run = steps_of(
        root,
        {root / "train.py": CLOSURE.replace("HOW", how)},
        Clock(roots=(net,), kind="optimizer"),
        steps=4,
        profiled=[list(net)],
    )
    assert run.failed is None and run.profile is not None
    found = bench.Shares.of(run.profile, run.step_ms)
    assert found.of_nobody > 0.5 > found.of_kind("optimizer") > 0.0
    assert found.of_target(net) > 0.0


SCALED = (
    CLOSURE[: CLOSURE.index("def closure")].replace("lr=0.1", "lr=0.1, fused=True")
    + """\
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(3):
    scaler.scale(net(torch.ones(4, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
"""
)


def test_a_fused_optimizer_takes_the_scale_out_of_gradients_itself(root: Path) -> None:
    clock = Clock(roots=(("__main__", "Net"),), kind="optimizer")
    texts = (SCALED, SCALED.replace(", fused=True", ""))
    fused, plain = (
        steps_of(root, {root / "train.py": text}, clock, check=True, steps=2) for text in texts
    )
    assert fused.digests and comparing.agreement(plain, plain, plain, edited=fused).right


@pytest.mark.parametrize(
    "leave",
    [
        "os.symlink('/dev/zero', out)",
        "os.mkfifo(out)",
        "open(out, 'w').write('[' * 100_000)",
        "open(out, 'w').write('{}')",
        "open(out, 'w').write('[1]')",
        "open(out, 'w').write('{\"steps_ms\": [\"soon\"]}')",
        "os.truncate(os.open(out, os.O_CREAT | os.O_RDWR), 2**40)",
        "os.unlink(log); os.symlink('/dev/zero', log)",
        "os.truncate(log, 2**40)",
    ],
)
def test_what_a_hostile_program_leaves_for_us_ends_as_a_run_that_failed(
    root: Path, leave: str
) -> None:
    (root / "train.py").write_text(
        "import json, os\n"
        "out = json.loads(os.environ['KERNEL_LSP_STEPS'])['out']\n"
        "log = os.path.join(os.path.dirname(out), 'log')\n"
        f"{leave}\nos._exit(3)\n"
    )
    run = steps_of(root)
    assert run.failed and not run.is_cut_off


def test_an_edit_that_raises_raises_and_a_program_without_steps_says_so(root: Path) -> None:
    text = SCRIPT.read_text()
    broken = text.replace("x = self.up(x)", "raise ValueError('edited')")
    assert broken != text
    run = steps_of(root, {root / "train.py": broken})
    assert run.failed is not None and "edited" in run.failed and run.step_ms is None
    ends = steps_of(root, {root / "train.py": "import torch\nprint('nothing to do')\n"})
    assert ends.failed is not None and "ended with 0 before its first step" in ends.failed


FAILS = """\
for step in range(50):
    if step == 3:
        raise RuntimeError("disk on fire")
"""


def test_a_program_that_fails_or_wants_what_timed_runs_have_not_says_so(root: Path) -> None:
    """One line each, with what to do about it; none of them is timed."""
    path, text = root / "train.py", SCRIPT.read_text()
    fails = text.replace("for step in range(4):\n", f"{FAILS}")
    assert fails != text
    run = steps_of(root, {path: fails}, steps=8)
    assert (
        run.failed == "it failed after 3 steps: RuntimeError: disk on fire" and not run.is_cut_off
    )
    asks = steps_of(root, {path: "name = input('name? ')\n"})
    assert asks.failed is not None and "pass the answers as arguments" in asks.failed
    loads = steps_of(root, {path: "raise OSError('Max retries exceeded with url: /data')\n"})
    assert loads.failed is not None and "run it once by itself" in loads.failed
    waits = steps_of(root, {path: "import time\ntime.sleep(60)\n"}, timeout_s=0.5)
    assert waits.is_cut_off and waits.failed == "no step ended within 0 s"


FAILED = """\
loading
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise first
KeyError: 3

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    step(x)
torch._dynamo.exc.InternalTorchDynamoError: RuntimeError: no such thing
from user code:
   File "train.py", line 5, in step
Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (FAILED, ": torch._dynamo.exc.InternalTorchDynamoError: RuntimeError: no such thing"),
        ("one\ntwo\n\n", ": two"),
        ("Traceback (most recent call last):\n  File 'cut off'\n", ": File 'cut off'"),
        ("", ""),
    ],
)
def test_what_a_program_failed_of_is_the_line_that_names_it(said: str, words: str) -> None:
    assert stepping._cause(said) == words


UNRULY = """\
import os, sys
from torch.utils.data import DataLoader
os.unlink(__file__)
sys.argv[:] = ["other", "--x"]
linear = F.linear
F.linear = lambda *given, **named: linear(*given, **named)

def forever():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for tokens in DataLoader(torch.randint(50, (8, 16)), batch_size=4, num_workers=1):
            model(tokens)[0].float().sum().backward()
            optimizer.step()
"""


def test_a_program_that_never_ends_forks_workers_and_deletes_itself_has_its_steps(
    root: Path,
) -> None:
    text = SCRIPT.read_text()
    begin = text.index("for step in range(4):")
    run = steps_of(root, {root / "train.py": text[:begin] + UNRULY + "\nforever()\n"}, steps=5)
    assert run.failed is None and len(run.steps_ms) == 4, run.failed
    assert (root / "train.py").read_text() == text, "what it deletes is a copy"


def test_what_an_edit_computes_is_told_from_the_program_and_its_roundings(root: Path) -> None:
    text = SCRIPT.read_text()
    runs = [steps_of(root, check=True) for _ in range(2)]
    moved = steps_of(root, check=True, nudge=2.0**-7)
    wrong = steps_of(root, {root / "train.py": text.replace("0.044715", "0.5")}, check=True)
    same = steps_of(
        root, {root / "train.py": text.replace("lr=1e-3", "lr=1e-3, fused=True")}, check=True
    )
    assert comparing.agreement(*runs, moved, edited=same).right
    assert not comparing.agreement(*runs, moved, edited=wrong).right


def test_the_program_is_recorded_and_a_fused_optimizer_checked_and_timed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch.compile, which takes a minute here, and without time for targets. As on a GPU,
    runs begin before their turn, and checks go side by side."""
    # What share of a small step on a busy processor is the optimizer's, nobody knows.
    monkeypatch.setattr(Shares, "would_notice_optimizers", lambda *_: True)
    monkeypatch.setattr(bench, "ROUNDS", replace(measuring.ROUNDS, compared=range(1, 2)))
    learn = ProgramRuns.learn

    def learned(self: ProgramRuns, profiled: StepRun, *, on_gpu: bool) -> None:
        learn(self, profiled, on_gpu=on_gpu)
        self.looks_ahead, self._beside = True, 4

    monkeypatch.setattr(ProgramRuns, "learn", learned)
    settings = Settings(data_dir=str(tmp_path / "data"), consent="always")
    command = (sys.executable, "train.py")
    plan = ProgramPlan(
        root=root,
        folder=root,
        command=command,
        device="cpu",
        steps=4,
        minutes=0.0,
        may_compile=False,
    )
    monkeypatch.chdir(root)

    async def optimized() -> optimizing.ProgramOutcome:
        pipeline = Pipeline(settings)
        try:
            return await optimizing.optimize(pipeline, plan, tmp_path / "data", lambda _: None)
        finally:
            await pipeline.close()

    outcome = asyncio.run(optimized())
    assert outcome.shares is not None and {one.qualname for one in outcome.targets} >= {
        "Model",
        "MLP",
    }
    assert outcome.agreements["a fused optimizer"].right
    assert outcome.measured is not None and bench.NOT_COMPILED in outcome.notes
    assert {way.name for way in outcome.measured.runs} == {"as it is", "a fused optimizer"}
    assert outcome.measured is not None and outcome.measured.step_ms(AS_IS)
    assert outcome.best is not None and outcome.best.name == "a fused optimizer"
    assert "fused=True" in outcome.variants["a fused optimizer"].texts[root / "train.py"]
    assert "fused" not in (root / "train.py").read_text(), "nothing is written unasked"
    offered = outcome.variants["a fused optimizer"]
    (edit,) = offering.edits_of(offered, root)
    assert edit.label == "a fused optimizer" and len(edit.changes) == 1
    page = programs.page_text(outcome, offered, [], root)
    assert "| as it is |" in page and "+optimizer = torch.optim.AdamW" in page
    assert "## Targets" in page and "a step ends when the optimizer has stepped" in page


@pytest.mark.parametrize("python", [".venv/bin/python", "{root}/.venv/bin/python", "sh"])
def test_a_program_runs_by_an_interpreter_that_lies_in_its_workspace(
    root: Path, python: str
) -> None:
    """By a path of its own, and by a script that names it."""
    made = root / ".venv" / "bin"
    made.mkdir(parents=True)
    (made.parent / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    (made / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (made / "python").chmod(0o755)
    (root / "run.sh").write_text("exec .venv/bin/python train.py\n")
    (root / "train.py").write_text("raise SystemExit('it runs')")
    command = ["sh", "run.sh"] if python == "sh" else [python.format(root=root), "train.py"]
    with Mirror.of(root, {}) as mirror:
        run = stepping.run(mirror, command, root, AS_IS, CLOCK, steps=3, timeout_s=100.0)
    assert run.failed == "it ended with 1 before its first step: it runs"
    found = stepping.python_of(command, root)
    assert found == (None if python == "sh" else str(made / "python")), "wherever we are"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('ready')", "ran to its end, and nothing of this workspace that uses torch"),
        ("raise SystemExit(3)", "the program ended with 3 before it called anything"),
        ("raise KeyboardInterrupt", "the program was interrupted before it called anything"),
    ],
)
def test_a_program_that_calls_nothing_is_told_from_one_that_fails(
    root: Path, tmp_path: Path, text: str, said: str
) -> None:
    (root / "train.py").write_text(text)
    plan = ProgramPlan(root=root, folder=root, command=(sys.executable, str(root / "train.py")))
    pipeline = Pipeline(Settings(data_dir=str(tmp_path / "data")))
    with pytest.raises(WorkloadError, match=said):
        asyncio.run(optimizing.optimize(pipeline, plan, tmp_path / "data", lambda _: None))


def test_a_file_that_the_recorded_run_took_away_is_asked_for(root: Path) -> None:
    run = steps_of(root, {root / "train.py": "open('data.txt')"})
    assert run.failed is not None and "'data.txt' (the program may have removed" in run.failed


def test_what_the_program_prints_leaves_standard_output_alone(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for to_stderr in (False, True):
        running.run(
            root,
            [sys.executable, str(root / "train.py")],
            root / "out.toml",
            tmp_path / "data",
            to_stderr=to_stderr,
        )
        printed = capfd.readouterr()
        assert ("loss" in printed.err) is to_stderr and ("loss" in printed.out) is not to_stderr


# --- what a step is -------------------------------------------------------------------------------

GAN = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


critic, generator = Net(), Net()
first = torch.optim.SGD(critic.parameters(), lr=0.1)
second = torch.optim.AdamW(generator.parameters(), lr=0.1)


def iteration():
    for _ in range(3):
        for _ in range(2):  # accumulated gradients
            critic(generator(torch.rand(4, 8)).detach()).sum().backward()
        first.step()
    critic(generator(torch.rand(4, 8))).sum().backward()
    second.step()
    return 0.5


for number in range(6):
    iteration()
"""
FUNCTIONAL = """\
import torch
from torch.utils.data import DataLoader


def score(x, weight):
    return (x @ weight).relu().sum()


weight = torch.rand(8, 8)
with torch.no_grad():
    for batch in DataLoader(torch.rand(40, 8), batch_size=4):
        score(batch, weight)
"""


def recorded_in(root: Path, tmp_path: Path, text: str, **more: Any) -> store.ProgramRecording:
    (root / "train.py").write_text(text)
    command = [sys.executable, str(root / "train.py")]
    recording.record(root, command, root / "out.toml", tmp_path / "data", **more)
    return store.recordings(tmp_path / "data", root)[0]


@pytest.mark.parametrize(("whole", "part", "block"), [(24, 23, 48), (12, 12, 24), (1, 1, 2)])
def test_a_recording_that_ends_within_a_call_steps_with_the_whole(
    tmp_path: Path, whole: int, part: int, block: int
) -> None:
    rows = {"Whole": (whole, 0.88), "Part": (part, 0.78), "Block": (block, 0.75)}
    ways = [
        {"target": f"m.py::{name}", "kind": "module", "class": name, "module": "m"} for name in rows
    ]
    seen = [
        {"target": f"m.py::{name}", "calls": calls, "share": share}
        for name, (calls, share) in rows.items()
    ]
    found = store.ProgramRecording(
        folder=tmp_path, program="p", root=str(tmp_path), command=("p",), created="now",
        elapsed_s=1.0, devices=(), seen=tuple(seen), ways=tuple(ways), files=(),
        steps={"optimizers": [], "batches": 0},
    )  # fmt: skip
    clock = optimizing.clock_of(found)
    assert clock is not None
    assert clock.roots == (("m", "Whole"),) and clock.region == ("m", "Block")


def test_of_two_optimizers_the_one_that_steps_less_often_ends_a_step(
    root: Path, tmp_path: Path
) -> None:
    found = recorded_in(root, tmp_path, GAN)
    assert found.steps["optimizers"] == [
        {"kind": "SGD", "steps": 18},
        {"kind": "AdamW", "steps": 6},
    ]
    clock = optimizing.clock_of(found)
    assert clock is not None and (clock.kind, clock.optimizer) == ("optimizer", 1)
    assert clock.words == "a step ends when optimizer number 2 has stepped"
    run = steps_of(root, clock=clock, steps=99)
    assert run.failed is None and len(run.steps_ms) == 5
    checked = steps_of(root, clock=clock, check=True, steps=2)
    assert len(checked.digests) == 2 * 4, "gradients of every optimizer's step"


ROLLOUT = """\
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


policy = Policy()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for update in range(20):
    with torch.no_grad():
        seen = [policy(torch.rand(1, 8)) for _ in range(64)]
    policy(torch.cat(seen)).sum().backward()
    optimizer.step()
"""


def test_a_program_that_plays_before_it_learns_is_recorded_until_it_has_learned(
    root: Path, tmp_path: Path
) -> None:
    found = recorded_in(root, tmp_path, ROLLOUT, steps=4)
    assert found.steps["optimizers"] == [{"kind": "SGD", "steps": 4}]
    clock = optimizing.clock_of(found)
    assert clock is not None and clock.words == "a step ends when the optimizer has stepped"


@pytest.mark.parametrize(
    ("seconds", "most"), [(None, 9), (1e9, 9), (9.0, limit.FEW), (0.0, limit.FEWEST)]
)
def test_slow_steps_are_recorded_for_some_time_and_a_few_at_least(
    monkeypatch: pytest.MonkeyPatch, seconds: float | None, most: int
) -> None:
    ended, now = list[int](), itertools.chain([0.0], itertools.repeat(10.0))
    monkeypatch.setattr(limit, "perf_counter", lambda: next(now))
    counts = limit.StepCounts(9, lambda: None, lambda: None, is_marked=True, seconds=seconds)
    monkeypatch.setattr(counts, "_end", lambda: ended.append(counts.to_record()["marked"]))
    for _ in range(9):
        counts.returned(None)
    assert ended[0] == most


def test_an_optimizer_that_never_steps_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = list[int]()
    counts = limit.StepCounts(2, lambda: None, lambda: None, is_marked=False)
    monkeypatch.setattr(counts, "_end", lambda: ended.append(1))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with torch.no_grad():
        counts.called(4, torch)
        assert not ended
        monkeypatch.setattr(limit, "PATIENCE_S", 0.0)
        counts.called(5, torch)
    assert ended and optimizer


OWN_OPTIMIZER = """\
import torch
from torch import nn


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return torch.tanh(self.layer(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Body()

    def forward(self, x):
        return self.body(x)


class Small(Model):
    pass


model = Small()
for step in range(400):
    model(torch.rand(256, 64)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
"""


def test_a_program_with_an_optimizer_of_its_own_steps_with_its_outermost_module(
    root: Path, tmp_path: Path
) -> None:
    found = recorded_in(root, tmp_path, OWN_OPTIMIZER, steps=4)
    calls = {one["target"]: one["calls"] for one in found.seen}
    # It did not run to its end, and the call that ended it is none.
    assert calls == {"train.py::Model": 8, "train.py::Body": 8}
    clock = optimizing.clock_of(found)
    assert clock is not None and (clock.kind, clock.roots) == ("calls", (MODEL,))
    # The program calls what inherits the forward that is watched.
    names = [["__main__", "Body"], list(MODEL)]
    run = steps_of(root, clock=clock, steps=5, profiled=names)
    assert run.failed is None and len(run.steps_ms) == 4
    assert run.profile is not None
    shares = Shares.of(run.profile, run.step_ms)
    backward = [row for row in shares.rows if row.kind == "backward" and MODEL in row.ranges]
    assert backward and shares.calls[MODEL,] == 1 and shares.roots() == [MODEL]


MAKER = """\
class Loop:
    def __init__(self, parameters, kind, **more):
        self.optimizer = self.make(
            kind, list(parameters), **more
        )

    def make(self, kind, parameters, **more):
        return kind(parameters, lr=1e-3, **more)
"""
PLAIN = """\
import torch
from maker import Loop
from torch import nn

other = Loop(nn.Linear(2, 2).parameters(), torch.optim.SGD).optimizer
inner = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1))
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), inner, nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    loss = nn.MSELoss()(model(torch.rand(64, 32)), torch.rand(64, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    other.step()
"""
SEQUENTIAL = ("torch.nn.modules.container", "Sequential")


def test_a_program_of_torchs_own_modules_alone_has_a_step(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "maker.py").write_text(MAKER)
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv("PYTHONPATH", str(package), prepend=os.pathsep)
    found = recorded_in(root, tmp_path, PLAIN, steps=4)
    clock = optimizing.clock_of(found)
    assert clock is not None and (clock.kind, clock.roots) == ("optimizer", ())
    plan = ProgramPlan(
        root=root, folder=root, command=(sys.executable, "train.py"), device="cpu", steps=4
    )
    timetable = Timetable(time.monotonic() + 600)
    # A busy machine takes its time from everything but the optimizer.
    monkeypatch.setattr(targets, "MIN_SHARE", 0.0)
    with bench.ProgramBench(plan, clock, found, lambda _: None, timetable) as made:
        made.profile()
        assert (
            made.runs.clock.roots == (SEQUENTIAL,)
            and made.compared.draws
            and made.has_fused_optimizer
        )
        assert made.shares is not None and made.shares.of_kind(IN_OPTIMIZER) > 0
        (said,) = [note for note in made.notes if "fused" in note]
        assert "SGD" in said and "maker.py:8" in said and "what the package takes as more" in said
        timetable.end = 0.0  # what cannot be compared in time is not said to compute something else
        agreed = made.compared.compare_draws(AS_IS, [])
        assert not (agreed.right or agreed.is_known) and "with it would take" in agreed.detail
    # What lies within the root is a part of it, and moved once.
    moved = [
        steps_of(root, clock=replace(clock, roots=(SEQUENTIAL,)), check=True, nudge=eps)
        for eps in (0.0, 2.0**-23)
    ]
    assert moved[0].failed is None and moved[0].digests != moved[1].digests


def test_a_function_that_the_user_names_is_the_step(root: Path, tmp_path: Path) -> None:
    found = recorded_in(root, tmp_path, GAN, marked=("__main__", "iteration"), steps=4)
    assert found.steps["marked"] == 4, "the recording ended there"
    clock = optimizing.clock_of(found)
    assert clock is not None and clock.words == "a step is a call of iteration"
    run = steps_of(root, clock=clock, steps=99)
    # Its first call began before anything of torch was called since it was defined.
    assert run.failed is None and len(run.steps_ms) == 4
    missing = stepping.Clock(roots=clock.roots, kind="function", marked=("__main__", "other"))
    run = steps_of(root, clock=missing, steps=99)
    assert run.failed is not None and "its first step" in run.failed


def test_a_program_of_functions_alone_steps_with_its_loader(root: Path, tmp_path: Path) -> None:
    clock = optimizing.clock_of(recorded_in(root, tmp_path, FUNCTIONAL))
    assert clock is not None and (clock.kind, clock.roots) == ("loader", ())
    run = steps_of(root, clock=clock, steps=99)
    assert run.failed is None and len(run.steps_ms) == 9


DROPOUT = """\
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)

    def forward(self, tokens):
        return self.head(F.dropout(self.embedding(tokens), 0.1, self.training))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.randint(50, (16, 33))
for _ in range(6):
    scores = model(tokens[:, :-1])
    F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_program_that_draws_is_compared_without_dropout_and_by_distribution(root: Path) -> None:
    clock = Clock(roots=(MODEL,), kind="optimizer")
    path = root / "train.py"
    path.write_text(DROPOUT)
    seen = steps_of(root, clock=clock, profiled=[list(MODEL)])
    assert seen.draws and seen.tokens == 16 * 32
    begin = "        return"
    otherwise = DROPOUT.replace(begin, f"        torch.rand(1)\n{begin}")

    def digests(text: str, **more: Any) -> stepping.StepRun:
        return steps_of(root, {path: text}, clock=clock, check=True, **more)

    without = [digests(text, undrawn=True) for text in (DROPOUT, otherwise)]
    assert comparing.agreement(without[0], without[0], without[0], edited=without[1]).right
    draws = [digests(DROPOUT, redraw=number, steps=1) for number in (1, 2)]
    assert not comparing.agreement(draws[0], draws[0], draws[0], edited=draws[1]).right
    assert all(len(run.digests) == 1 for run in draws)


DECODING = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, tokens):
        return {"logits": self.head(self.embedding(tokens))}


model, tokens = Model().eval(), torch.randint(50, (3, 7))
with torch.no_grad():
    for _ in range(8):
        new = model(tokens)["logits"][:, -1:].argmax(-1)
        tokens = torch.cat([tokens, new], 1)
"""


def test_a_decoding_loop_makes_one_token_of_each_sequence_in_a_step(root: Path) -> None:
    clock = Clock(roots=(MODEL,), kind="calls")
    run = steps_of(root, {root / "train.py": DECODING}, clock=clock, profiled=[list(MODEL)])
    assert run.failed is None and run.tokens == 3 and not run.draws


@pytest.mark.parametrize(
    ("given", "scores", "count"),
    [
        ((3, 7), (3, 7, 50), 21),
        ((3, 7), (3, 1, 50), 21),  # of the last token alone, after a prompt
        ((3, 1), (3, 1, 50), 3),  # with a cache
        ((3, 7), (3, 50), 0),  # a class of each sequence: these may be no words
    ],
)
def test_tokens_are_counted_where_scores_of_each_come_out(
    given: tuple[int, ...], scores: tuple[int, ...], count: int
) -> None:
    counter = tokens.TokenCounter(torch)
    for _ in range(2):
        result = (None, {"logits": torch.rand(scores)})
        counter.called(None, (), {"input_ids": torch.zeros(given, dtype=torch.int64)}, result)
        counter.end_step()
    assert counter.per_step == [count, count]


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """A shell without job control starts what runs in its background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name == "nt", reason="a signal of POSIX")
@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_ends_a_timed_run_at_once_and_its_process(root: Path) -> None:
    started = root.parent / "started"
    sleeps = f"import time\nopen({str(started)!r}, 'w')\ntime.sleep(600)\n"

    async def measured() -> None:
        steps_of(root, {root / "train.py": sleeps}, timeout_s=600.0)

    def press() -> None:
        while not started.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    begun = time.monotonic()
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt), asyncio.Runner() as runner:
        runner.run(measured())
    assert time.monotonic() - begun < 300


def test_an_unruly_program_that_fails_is_recorded_up_to_there(root: Path, tmp_path: Path) -> None:
    """Two classes of one name, a patched torch, another argv and folder, a deleted script,
    modules that call each other, 10 GB of buffers, an object whose pickle runs code, a failure."""
    text = UNRULY_SCRIPT.replace("RAN", str(tmp_path / "ran"))
    (root / "train.py").write_text(text)
    (root / "other.py").write_text(OTHER)
    command = [sys.executable, str(root / "train.py")]
    done = recording.record(root, command, root / "out.toml", tmp_path / "data", to_stderr=True)
    assert done.status == 1
    assert done.merged.notes == ("train.py defines Block twice: calls of the first are left out",)
    (found,) = store.recordings(tmp_path / "data", root)
    calls = {str(one["target"]): one["calls"] for one in found.seen}
    assert calls["train.py::Model"] == 3 and calls["other.py::Block"] == 3
    assert calls["train.py::Block"] == 3, "the one that its text defines"
    assert calls["train.py::Left"] + calls["train.py::Right"] == 9, "each call of either"
    files = [found.snapshot(way) for way in found.ways]
    assert all(file is not None and file.stat().st_size < 50_000 for file in files)
    assert found.steps["optimizers"] == [{"kind": "SGD", "steps": 3}]
    assert not (tmp_path / "ran").exists(), "a pickle that is written runs nothing"


OTHER = """\
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x).relu()
"""
UNRULY_SCRIPT = (
    OTHER
    + """\
First = Block


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) * 2


class Left(nn.Module):
    def forward(self, x, depth=2):
        return self.other[0](x, depth - 1) + 1 if depth else x


class Right(Left):
    def forward(self, x, depth=2):
        return self.other[0](x, depth - 1) * 2 if depth else x


class Evil:
    def __reduce__(self):
        return (open, ("RAN", "w"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.evil = First(), Block(), other.Block(), Evil()
        self.register_buffer("huge", torch.zeros(1).expand(2_500_000_000))
        self.left, self.right = Left(), Right()
        self.left.other, self.right.other = [self.right], [self.left]

    def forward(self, x):
        return self.left(self.c(self.b(self.a(x)))) + self.huge[:8]


import os
import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import other

call, linear = nn.Module.__call__, F.linear
nn.Module.__call__ = lambda self, *given, **named: call(self, *given, **named)
F.linear = lambda *given, **named: linear(*given, **named)
sys.argv[:] = ["other.py", "--lr"]
os.unlink(__file__)
os.chdir("/")
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, batch in enumerate(DataLoader(torch.rand(64, 8), batch_size=4)):
    if step == 3:
        raise RuntimeError("disk on fire")
    model(batch).sum().backward()
    optimizer.step()
"""
)


BY_HAND = """\
import torch
from torch import nn


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.beta * x)
        return grad * s * (1 + ctx.beta * x * (1 - s)), None


class Divided(torch.autograd.Function):
    @classmethod
    def forward(cls, ctx, x, by):
        ctx.by = by
        return x / by

    @classmethod
    def backward(cls, ctx, grad):
        return grad / ctx.by


class Halved(Divided):
    @classmethod
    def forward(cls, ctx, x):
        return super().forward(ctx, x, by=2)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


swish = Swish.apply


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 256)

    def forward(self, x):
        return Scaled.apply(swish(self.a(x), 1.5)).square().mean()


torch.manual_seed(0)
net, x = Net(), torch.randn(512, 64)
torch.compile(net, backend="eager", fullgraph=True)(x)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(12):
    loss = Halved.apply(net(x))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_backward_by_hand_is_seen_with_its_time_in_both_directions(
    root: Path, tmp_path: Path
) -> None:
    recording = recorded_in(root, tmp_path, BY_HAND)
    ways = {recording.qualname_of(way): way for way in recording.ways}
    assert {"Swish", "Scaled", "Halved", "Net"} <= ways.keys()
    assert [one["shape"] for one in ways["Halved"]["arguments"]] == [[]], "a method of the class"
    swish = ways["Swish"]
    assert swish["kind"] == "autograd" and swish["calls"] >= 3 and swish["module"] == "__main__"
    tensor, beta = swish["arguments"]
    assert tensor["shape"] == [512, 256] and tensor["requires_grad"] and beta["value"] == 1.5
    assert [one["shape"] for one in ways["Scaled"]["arguments"]] == [[512, 256]], "no context"
    names = [["__main__", name] for name in ("Net", "Swish", "Scaled", "Halved")]
    run = steps_of(
        root, steps=4, profiled=names, clock=replace(CLOCK, roots=(("__main__", "Net"),))
    )
    assert run.failed is None and run.profile is not None
    found = bench.Shares.of(run.profile, run.step_ms)
    around = (("__main__", "Net"), ("__main__", "Swish"))
    assert {(around, "forward"), (around, "backward")} <= {(r.ranges, r.kind) for r in found.rows}
    assert found.of_target(("__main__", "Halved")) > 0
    ranked = targets.rank_targets(recording, found)
    one = next(one for one in ranked if one.qualname == "Swish")
    assert one.share > 0 and one.why_not is not None
    assert "both directions" in one.why_not and "kernel-lsp verify" in one.why_not
