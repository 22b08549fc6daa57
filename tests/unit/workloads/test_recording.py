"""What `kernel-lsp record` sees of real programs, and what stays of it however they end."""

import dataclasses
import importlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tomllib
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kernel_lsp.analysis import analyze
from kernel_lsp.commands import optimize
from kernel_lsp.commands.app import app
from kernel_lsp.evaluator import programs
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import (
    ArgSpec,
    Job,
    RecordedLaunch,
    Snapshot,
    TargetKind,
    ValueSummary,
    WorkloadOrigin,
)
from kernel_lsp.snapshots import sources
from kernel_lsp.workloads import busy, launches, merging, recording_file, running, workloads_for
from kernel_lsp.workloads.recorder import imports, reading
from kernel_lsp.workloads.recorder import launches as launching
from kernel_lsp.workloads.recorder.reading import FilesRead
from kernel_lsp.workloads.recorder.recording import ProcessRecording
from kernel_lsp.workloads.recorder.sites import CallWay
from kernel_lsp.workloads.recorder.values import ArgumentValues, above, below

pytestmark = pytest.mark.torch

TRAIN = """
import os, sys
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width: int, scale: float = 1.0):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = scale

    def forward(self, x, mask=None):
        y = torch.relu(self.linear(x)) * self.scale
        return y if mask is None else y * mask

class Net(nn.Module):
    def __init__(self, width: int, depth: int):
        super().__init__()
        self.table = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(Block(width, 0.5) for _ in range(depth))

    def forward(self, ids, mask):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x, mask=mask)
        return x.mean()

def main():
    torch.manual_seed(0)
    net = Net(16, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(100):
        net(torch.randint(0, 100, (4, 8)), torch.ones(4, 8, 1)).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        net(torch.randint(0, 100, (1, 8)), torch.ones(1, 8, 1))
    graphs = []
    backend = lambda graph, _: graphs.append(graph) or graph
    compiled = torch.compile(Net(16, 2), backend=backend, fullgraph=True)
    for _ in range(5):
        compiled(torch.randint(0, 100, (3, 8)), torch.ones(3, 8, 1))
    Block(16, scale=2.5)(torch.ones(2, 16).t().contiguous().t())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Block(16)(torch.ones(5, 16))
    print(float(net.table.weight.detach().sum()), len(graphs))
    raise RuntimeError("the end")

if __name__ == "__main__":
    main()
"""

LAUNCH = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton
import triton.language as tl

@triton.jit
def scale(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)

def launch(x, out):
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    scale[grid](x, out, x.numel(), 2.0, BLOCK=64, num_warps=2)

for _ in range(5):
    launch(torch.ones(200), torch.zeros(200))
x = torch.ones(3, 50)
launch(x, x)
launch(torch.ones(64, 4).t(), torch.zeros(4, 64))
os._exit(7)
"""

TUNED = """
import torch, triton
import triton.language as tl

def timed(call, quantiles):
    call()
    return [1.0] * len(quantiles)

configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]

@triton.autotune(configs=configs, key=["n"], do_bench=timed)
@triton.jit
def fill(out_ptr, n, value, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)

for _ in range(5):
    out = torch.zeros(200)
    fill[lambda meta: (triton.cdiv(200, meta["BLOCK"]),)](out, 200, 8.0)
"""

RANKS = """
import time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)

def rank(number, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    net = nn.parallel.DistributedDataParallel(Net())
    for _ in range(3):
        net(torch.full((2, 4), 3.0 - 6 * number)).sum().backward()
    # torch 2.13 destroys a group with the GIL held, and waits for a thread that wants it for its last work.
    time.sleep(1.0)
    dist.destroy_process_group()

if __name__ == "__main__":
    import sys
    import torch._dynamo  # DDP asks for it: once for both
    other = mp.get_context("fork").Process(target=rank, args=(1, sys.argv[1]))
    other.start()
    rank(0, sys.argv[1])
    other.join()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


ALONE = """
import typer
from kernel_lsp.commands import record
app = typer.Typer()
app.command(context_settings=record.SETTINGS)(record.record)
app()
"""
"""The command without its neighbors, whose imports take a second."""


def record(root: Path, text: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    """The command on a program, and what it has written."""
    (root / "program.py").write_text(text)
    command = [sys.executable, "-c", ALONE, "--", sys.executable, "program.py", *arguments]
    repository = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(repository), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=280
    )
    path = root / ".kernel-lsp" / "program.recorded.toml"
    return done, tomllib.loads(path.read_text()) if path.exists() else {}


def ways(recorded: dict, target: str) -> list[dict]:
    return [way for way in recorded["workload"] if way["target"] == f"program.py::{target}"]


@pytest.fixture(scope="module")
def launched(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str], dict]:
    root = tmp_path_factory.mktemp("launched")
    (root / "pyproject.toml").touch()
    return root, *record(root, LAUNCH)


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str], dict]:
    root = tmp_path_factory.mktemp("trained")
    (root / "pyproject.toml").touch()
    return root, *record(root, TRAIN)


def test_a_program_that_trains_evaluates_compiles_and_crashes(trained: tuple) -> None:
    root, done, recorded = trained
    alone = subprocess.run([sys.executable, "program.py"], cwd=root, capture_output=True, text=True)
    assert done.returncode == alone.returncode == 1
    assert done.stdout == alone.stdout, "recording changed what the program computes or compiles"
    assert "RuntimeError: the end" in done.stderr
    assert "notes" not in recorded, "a failure of the recorder's own"

    seen = {entry["target"]: entry for entry in recorded["seen"]}
    assert seen["program.py::Net"]["calls"] == 106
    assert seen["program.py::Block"]["calls"] == 204, (
        "calls inside of a compiled graph are not Python's"
    )
    assert all(0 < entry["share"] <= 1 for entry in seen.values())

    train, compiled, evaluated = sorted(ways(recorded, "Net"), key=lambda way: -way["calls"])
    assert (train["calls"], compiled["calls"], evaluated["calls"]) == (100, 5, 1)
    assert (train["training"], train["gradients"]) == (True, True)
    assert (evaluated["training"], evaluated["gradients"]) == (False, False)
    assert train["init"] == [{"name": "width", "value": 16}, {"name": "depth", "value": 2}]
    ids, mask = train["inputs"]
    assert (ids["dtype"], ids["shape"]) == ("int64", [4, 8])
    assert 0 <= ids["values"]["low"] <= ids["values"]["high"] <= 99
    assert mask["values"] == {"zeros": 0.0, "finite": True, "low": 1.0, "high": 1.0}

    by_shape = {tuple(way["inputs"][0]["shape"]): way for way in ways(recorded, "Block")}
    assert by_shape[4, 8, 16]["inputs"][0]["requires_grad"] is True
    assert by_shape[2, 16]["inputs"][0]["stride"] == [1, 2]
    assert by_shape[2, 16]["init"][1] == {"name": "scale", "value": 2.5}
    assert by_shape[5, 16]["autocast"] == "bfloat16"
    assert by_shape[5, 16]["init"] == [{"name": "width", "value": 16}], "defaults are left out"


def test_what_was_recorded_is_what_the_gate_is_given(trained: tuple) -> None:
    root, _, _ = trained
    text = (root / "program.py").read_text()
    snapshot = Snapshot(uri=(root / "program.py").as_uri(), text=text)
    targets = {target.qualname: target for target in analyze(snapshot).targets}
    found, problems = workloads_for(snapshot, targets["Net"], str(root))
    assert not problems
    best = found[0]
    assert best.training is True and [one.value for one in best.init] == [16, 2]
    assert best.inputs[0].distribution.startswith("index:")
    assert best.inputs[0].values.high <= 99
    _, problems = workloads_for(snapshot, targets["Block"], str(root))
    assert [p for p in problems if "autocast" in str(p)], (
        "not judged under autocast, so not offered for it"
    )
    assert busy(str(root))["program.py::Net"].calls == 106
    made = programs.make(best.inputs[1])
    assert bool((made == 1).all()), "as recorded: a mask of ones"


def test_findings_and_optimize_know_what_takes_the_time(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".kernel-lsp").mkdir()
    text = "format = 1\n"
    for name, share in (("A", 0.125), ("B", 0.5)):
        text += f'[[seen]]\ntarget = "model.py::{name}"\ncalls = 3\nshare = {share}\n'
    (tmp_path / ".kernel-lsp" / "x.recorded.toml").write_text(text)
    module = (
        "class {}(torch.nn.Module):\n    def forward(self, x):\n        return "
        "x.sum(1).item()\n\n\n"
    )
    (tmp_path / "model.py").write_text(
        "import torch\n\n\n" + module.format("A") + module.format("B")
    )
    lines = CliRunner().invoke(app, ["check", str(tmp_path)]).stdout.splitlines()
    assert [line.rpartition("[")[2] for line in lines if "KL104" in line and "item" in line] == [
        "12% of the recorded time]",
        "50% of the recorded time]",
    ]
    requests = optimize._requests(str(tmp_path / "model.py"))
    assert [request.qualname for request in requests] == ["B", "A"]


def test_what_autotune_has_written_while_it_tried_is_not_taken_for_values_that_were_given(
    tmp_path: Path,
) -> None:
    (tmp_path / "pyproject.toml").touch()
    done, _ = record(tmp_path, TUNED)
    assert done.returncode == 0, done.stderr
    (one,), _ = launches(str(tmp_path))
    assert one.autotuned and one.busy.calls == 5
    out = one.arguments[0]
    assert out.values == ValueSummary(low=0.0, high=0.0, zeros=1.0, finite=True)


@given(
    low=st.floats(-1e4, 1e4, width=32),
    width=st.floats(0, 1e4, width=32),
    zeros=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_values_are_drawn_in_the_recorded_range(low: float, width: float, zeros: float) -> None:
    seen = ValueSummary(low=low, high=low + width, zeros=zeros, finite=True)
    how = "uniform" if low >= 0 else "normal"
    made = programs.make(
        ArgSpec(name="x", dtype="float64", shape=(50,), distribution=how, values=seen)
    )
    kept = made[made != 0]
    slack = 1e-3 + 1e-6 * (abs(low) + width)
    assert bool(((kept >= low - slack) & (kept <= low + width + slack)).all())
    assert zeros != 1.0 or not len(kept)


def test_launches_before_the_program_leaves_without_goodbye(launched: tuple) -> None:
    root, done, recorded = launched
    assert done.returncode == 7, done.stderr
    found, problems = launches(str(root))
    assert not problems and len(found) == 3
    plain = next(one for one in found if one.arguments[0].shape == (200,))
    assert isinstance(plain, RecordedLaunch) and plain.target == "program.py::scale"
    assert (plain.constants, plain.grid, plain.num_warps) == ({"BLOCK": 64}, (4,), 2)
    assert (plain.launcher, plain.autotuned, plain.busy.calls) == ("program.py::launch", False, 5)
    assert plain.called_with is not None and plain.called_with[0].shape == plain.arguments[0].shape
    x, out, n, factor = plain.arguments
    assert (n.value, factor.value) == (200, 2.0)
    assert x.values == ValueSummary(low=1.0, high=1.0, zeros=0.0, finite=True)
    assert out.values.zeros == 1.0 and x.alignment >= 16
    in_place = next(one for one in found if one.arguments[0].shape == (3, 50))
    assert in_place.aliases == (("x_ptr", "out_ptr"),)
    assert next(one for one in found if one.grid == (4,) and one is not plain).arguments[
        0
    ].stride == (1, 4)
    assert done.stderr.count("scale") == 1, "one line per target in the summary"
    assert recorded["seen"][0]["kind"] == "launch"


def test_ranks_are_one_program(root: Path) -> None:
    """One is forked from the other, after torch was imported and before anything was called."""
    done, recorded = record(root, RANKS, str(root / "store"))
    assert done.returncode == 0, done.stderr
    assert recorded["processes"] == 2
    (way,) = ways(recorded, "Net")
    assert way["calls"] == 6
    assert way["inputs"][0]["values"]["low"] == -4.0 and way["inputs"][0]["values"]["high"] == 4.0


KILLED = """
import os, subprocess, sys
if len(sys.argv) == 1:
    sys.exit(128 - subprocess.run([sys.executable, __file__, "child"]).returncode)
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1

net = Net()
net(torch.ones(2))
os.kill(os.getpid(), 9)
"""


def test_a_process_of_the_program_that_is_killed(root: Path) -> None:
    done, recorded = record(root, KILLED)
    assert done.returncode == 128 + signal.SIGKILL
    assert [entry["target"] for entry in recorded["seen"]] == ["program.py::Net"]


def part(**changes: object) -> dict:
    way = {
        "arguments": [{"name": "x", "dtype": "float32", "shape": [2], "device": "cpu"}],
        "init": [],
    }
    way |= {
        "training": True,
        "autocast": None,
        "gradients": True,
        "calls": 10.0,
        "timed": 2,
        "seconds": 0.5,
    }
    site = {"kind": "module", "target": "a.py::A", "calls": 10, "ways": [way]}
    about = {
        "format": 1,
        "elapsed_s": 10.0,
        "notes": [],
        "versions": {"torch": "2.9"},
        "device": None,
    }
    return {**about, "sites": [site], **changes}


def interrupted(workspace: Path, data_dir: Path, name: str = "x", **about: object) -> Path:
    """What a killed `kernel-lsp record` leaves in its user's data folder."""
    folder = data_dir / "spools" / name
    folder.mkdir(parents=True)
    out = str(workspace / ".kernel-lsp" / "a.recorded.toml")
    told = {
        "host": platform.node(),
        "pid": 2**22 + 1,
        "root": str(workspace),
        "program": "a.py",
        "out": out,
    }
    (folder / "about.json").write_text(json.dumps(told | about))
    (folder / "1-a.json").write_text(json.dumps(part()))
    return folder


def test_an_interrupted_recording_is_saved_by_the_next(root: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True
    )
    spool = interrupted(root, tmp_path / "data", pid=int(ended.stdout))
    (spool / "2-b.json").write_text(json.dumps(part()))
    (spool / "3-c.json").write_text('{"format": 1, "sites": [')
    (saved,) = running.recover(root, tmp_path / "data")
    assert saved.path == root / ".kernel-lsp" / "a.recorded.toml" and not spool.exists()
    seen = busy(str(root))["a.py::A"]
    assert (seen.calls, seen.share, seen.mean_us) == (20, 0.25, 250000.0)  # 20 x 0.25 s of 2 x 10 s


@pytest.mark.parametrize(
    "where", [{"pid": os.getpid()}, {"host": "another-machine"}, {"root": "/another"}]
)
def test_one_that_is_going_on_or_elsewhere_is_left_alone(
    root: Path, tmp_path: Path, where: dict
) -> None:
    """Here, on a machine that has the same folder and other numbers of processes, or of another
    workspace."""
    spool = interrupted(root, tmp_path / "data", **where)
    assert running.recover(root, tmp_path / "data") == [] and spool.exists()


def test_what_is_damaged_is_left_out_and_what_is_whole_is_kept(root: Path, tmp_path: Path) -> None:
    whole, damaged = (interrupted(root, tmp_path / "data", name) for name in ("a", "b"))
    (whole / "2-b.json").write_text("[1]")
    (damaged / "about.json").write_text("[1]")
    (saved,) = running.recover(root, tmp_path / "data")
    out = root / ".kernel-lsp" / "a.recorded.toml"
    assert saved.path == out and not whole.exists() and not damaged.exists()
    assert out.stat().st_mode & 0o044 == 0o044, "a repository's file is everybody's to read"


def test_bookkeeping_that_a_repository_brings_names_nothing_to_overwrite_or_remove(
    root: Path, tmp_path: Path
) -> None:
    """A clone with a recording's folder in it had any file replaced, and one whose folder was a
    link had all folders behind it removed."""
    mine = tmp_path / "home"
    (mine / "letters").mkdir(parents=True)
    (mine / ".bashrc").write_text("mine")
    brought = root / ".kernel-lsp" / ".recording" / "x"
    brought.mkdir(parents=True)
    about = {
        "pid": 2**22 + 1,
        "program": "a.py",
        "out": str(mine / ".bashrc"),
        "host": platform.node(),
    }
    (brought / "about.json").write_text(json.dumps(about))
    (brought / "1-a.json").write_text(json.dumps(part()))
    other = tmp_path / "other"
    (other / ".kernel-lsp").mkdir(parents=True)
    (other / ".kernel-lsp" / ".recording").symlink_to(mine)
    command = [sys.executable, "-c", ALONE, "--", sys.executable, "-I", "-c", "pass"]
    for folder in (root, other):
        (folder / "pyproject.toml").touch()
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=60, check=True
        )
    assert (mine / ".bashrc").read_text() == "mine" and (mine / "letters").exists()


@pytest.mark.parametrize("link", [".kernel-lsp", ".kernel-lsp/a.recorded.toml"])
def test_a_link_of_the_repositorys_leads_no_recording_out_of_it(tmp_path: Path, link: str) -> None:
    root, mine = tmp_path / "root", tmp_path / "mine"
    mine.mkdir()
    place = root / link
    place.parent.mkdir(parents=True)
    target = mine if link == ".kernel-lsp" else mine / ".bashrc"
    place.symlink_to(target)
    (mine / ".bashrc").write_text("mine")
    interrupted(root, tmp_path / "data")
    assert running.recover(root, tmp_path / "data") == []
    assert [path.name for path in mine.iterdir()] == [".bashrc"] and (
        mine / ".bashrc"
    ).read_text() == "mine"


class Lost:
    """What torch makes of a question to a device that a bad address has ended."""

    def query(self) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    ready = seconds = query


def test_what_was_counted_outlives_the_device(tmp_path: Path) -> None:
    recording = ProcessRecording(str(tmp_path), str(tmp_path))
    site = recording.site("module", "a.py", "A", None)
    glance = site.glance(None)
    glance.calls = 5
    way = site.ways["one"] = CallWay({"arguments": [{"name": "x"}]}, glance)
    way.samples = 2
    way.values["x"] = ArgumentValues()
    way.values["x"]._add([1.0, 2.0, 0.0, 4.0], 4)
    way.values["x"]._pending.append((None, Lost(), 4))
    recording._waiting.append((Lost(), way, False))  # type: ignore[arg-type]
    recording.write(wait=True)
    (written,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    (told,) = written["sites"]
    assert (told["calls"], told["ways"][0]["calls"], written["notes"]) == (5, 5.0, [])
    assert told["ways"][0]["arguments"][0]["values"] == {
        "zeros": 0.0,
        "finite": True,
        "low": 1.0,
        "high": 2.0,
    }


class Kernel:
    """What the recorder asks of Triton's, and no more."""

    def __init__(self, fn: object) -> None:
        self.fn = fn

    def run(self, *, grid: object, warmup: bool) -> str:
        return "ran"


def test_a_kernel_with_the_identity_of_one_that_is_gone_is_another(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("def scale():\n    pass\n")
    made: dict[str, Any] = {}
    exec(compile((tmp_path / "kernels.py").read_text(), str(tmp_path / "kernels.py"), "exec"), made)
    recording = ProcessRecording(str(tmp_path), str(tmp_path))
    seen = launching._LaunchObserver(type("Kind", (Kernel,), {}), recording)
    seen.install()
    kernel, broken, gone = seen.kind(made["scale"]), seen.kind(None), seen.kind(None)
    seen.sites[id(kernel)] = weakref.ref(gone), None
    del gone
    for one in (kernel, broken, broken):
        assert one.run(grid=(1,), warmup=False) == "ran"
    assert seen.sites[id(kernel)][1].target == "kernels.py::scale"
    assert seen.sites[id(broken)][1] is None and len(recording.notes) == 1


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m torch.distributed.run --nproc-per-node 2 train.py -m x", "train"),
        ("torchrun train.py", "train"),
        ("python -m package.main train.py", "package.main"),
        ("./serve", "serve"),
    ],
)
def test_a_recording_is_called_after_the_program_and_not_after_what_runs_it(
    command: str, name: str
) -> None:
    assert running.default_path(Path("/x"), command.split()).name == f"{name}.recorded.toml"


def test_an_entry_that_cannot_be_read_costs_no_other(root: Path) -> None:
    folder = root / ".kernel-lsp"
    folder.mkdir()
    inputs = 'inputs = [{{ name = "x", dtype = "{}", shape = [2] }}]\n'
    text = "format = 1\n"
    for share, dtype in (('"most"', "float32"), ("0.5", "float8_e5m2"), ("0.25", "float32")):
        text += f'[[workload]]\ntarget = "a.py::A"\nshare = {share}\n' + inputs.format(dtype)
    text += '[[workload]]\ntarget = 3\n[[seen]]\ntarget = "a.py::A"\ncalls = "many"\n'
    (folder / "train.recorded.toml").write_text(text)
    source = (
        "import torch\nclass A(torch.nn.Module):\n    def forward(self, x):\n        return "
        "x.exp()\n"
    )
    snapshot = Snapshot(uri=(root / "a.py").as_uri(), text=source)
    (target,) = (t for t in analyze(snapshot).targets if t.kind is TargetKind.MODULE)
    found, problems = workloads_for(snapshot, target, str(root))
    assert [one.name for one in found] == ["train.recorded.toml #3"] and len(problems) == 3
    assert busy(str(root)) == {}


def test_a_recording_of_another_format_is_refused_with_the_way_out(root: Path) -> None:
    folder = root / ".kernel-lsp"
    folder.mkdir()
    (folder / "train.recorded.toml").write_text('format = 0\nprogram = "train.py"\n')
    (folder / "main.recorded.toml").write_text('format = 0\nprogram = "package.main"\n')
    (folder / "serve.recorded.toml").write_text("format = 2\n")
    (folder / "own.toml").write_text(
        '[[workload]]\ntarget = "a.py::A"\n[[workload.inputs]]\nvalue = 1\n'
    )
    text = (
        "import torch\nclass A(torch.nn.Module):\n    def forward(self, x):\n        return "
        "x.exp()\n"
    )
    snapshot = Snapshot(uri=(root / "a.py").as_uri(), text=text)
    (target,) = (t for t in analyze(snapshot).targets if t.kind is TargetKind.MODULE)
    found, problems = workloads_for(snapshot, target, str(root))
    assert len(found) == 1, "one file that cannot be read costs no other"
    module, newer, older = sorted(map(str, problems))
    assert "format 0" in module and "kernel-lsp record -- python -m package.main" in module
    assert "format 2" in newer and "update kernel-lsp" in newer
    assert "format 0" in older and "kernel-lsp record -- python train.py" in older


def test_nothing_to_record_says_why_and_keeps_the_exit_code(root: Path) -> None:
    command = [sys.executable, "-c", ALONE, "--"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], cwd=root, env=environment, capture_output=True, text=True
        )

    (root / "sitecustomize.py").write_text("print('of the environment')")
    environment["PYTHONPATH"] += os.pathsep + str(root)
    program = "import sys, os; print(sys.path.count(''), [p for p in sys.path if 'recorder' in p])"
    usual = run(sys.executable, "-c", program)
    assert usual.stdout.splitlines()[-2:] == ["of the environment", "1 []"], "as it is without us"
    isolated = run(sys.executable, "-I", "-c", "raise SystemExit(5)")
    assert isolated.returncode == 5 and "nothing was recorded" in isolated.stderr
    assert "run what calls them" in isolated.stderr
    command = [sys.executable, "-m", "kernel_lsp", "record", "--"]
    absent = run("no-such-program", "train.py")
    assert absent.returncode == 2 and "no-such-program cannot be run" in absent.stderr
    assert not (root / ".kernel-lsp").exists(), "nothing stays of a run that saw nothing"


def test_many_ways_are_kept_within_the_size(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways_seen = [
        {
            **part()["sites"][0]["ways"][0],
            "arguments": [{"name": "x", "dtype": "f32", "shape": [size]}],
            "calls": size,
        }
        for size in range(1, 60)
    ]
    site = {"kind": "module", "target": "a.py::A", "calls": 1770, "ways": ways_seen}
    merged = merging.merge([part(sites=[site])], "a.py")
    path = root / ".kernel-lsp" / "a.recorded.toml"
    assert recording_file.write(path, merged, "a.py", "now") == 51
    assert [way["calls"] for way in tomllib.loads(path.read_text())["workload"]] == [
        *range(59, 51, -1)
    ]
    monkeypatch.setattr(recording_file, "MAX_BYTES", 1000)
    assert recording_file.write(path, merged, "a.py", "now") > 51 and path.stat().st_size <= 1000
    monkeypatch.setattr(recording_file, "MAX_BYTES", 10)
    assert recording_file.write(path, merged, "a.py", "now") == 59, (
        "no way has room, what is above still stands"
    )
    assert busy(str(root))["a.py::A"].calls == 1770


@given(
    text=st.text(st.characters(codec="utf-8")),
    number=st.floats() | st.integers(-(2**63), 2**63 - 1) | st.booleans(),
    name=st.from_regex(r"[A-Za-z_]\w{0,5}", fullmatch=True) | st.text(st.characters(codec="utf-8")),
)
def test_every_value_is_read_back_as_it_was(text: str, number: float, name: str) -> None:
    way = {"kind": "call", "target": "a.py::A", "arguments": [{name: [text, number]}]}
    merged = dataclasses.replace(merging.merge([], "a.py"), versions={name: text})
    ways = list(recording_file._texts_of([way]))
    read = tomllib.loads(recording_file._text(merged, ways, text, "now"))
    assert (read["program"], read["versions"]) == (text, {name: text})
    assert repr(read["workload"]) == repr([{"target": "a.py::A", "inputs": way["arguments"]}])


@given(st.floats(-1e30, 1e30, allow_subnormal=False))
def test_ranges_are_rounded_outward_to_powers_of_two(bound: float) -> None:
    low, high = below(bound), above(bound)
    assert low <= bound <= high
    assert {abs(math.frexp(edge)[0]) for edge in (low, high)} <= {0.0, 0.5}
    assert bound == 0 or max(abs(low), abs(high)) <= 2 * abs(bound)


@pytest.mark.parametrize(
    ("bound", "edges"), [(1.25, (1, 2)), (-3.0, (-4, -2)), (4.0, (4, 4)), (-0.5, (-0.5, -0.5))]
)
def test_powers_of_two_stay(bound: float, edges: tuple[float, float]) -> None:
    assert (below(bound), above(bound)) == edges


def test_the_import_hook_leaves_modules_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hooked_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = []
    imports.after("hooked_module", lambda module: seen.append(module.value))
    imports.after("hooked_module_that_is_not_there", seen.append)
    import hooked_module  # type: ignore[import-not-found]

    assert seen == [1]
    assert "exec_module" not in vars(hooked_module.__loader__)
    imports.after("hooked_module", lambda module: module.of_another_version)
    assert (
        "hooked_module of this version is not recorded (AttributeError" in capsys.readouterr().err
    )
    with pytest.raises(ModuleNotFoundError):
        import hooked_module_that_is_not_there  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize("is_served_first", [True, False])
def test_a_module_that_is_waited_for_may_have_its_text_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_served_first: bool
) -> None:
    """Either hook may stand before the other: they asked each other without end. A text that is
    served later has a loader of its own, which tells nobody."""
    name = f"hooked_and_served_{is_served_first}"
    file = tmp_path / f"{name}.py"
    file.write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks = [one for one in sys.meta_path if not type(one).__module__.startswith("kernel_lsp")]
    monkeypatch.setattr(sys, "meta_path", hooks)  # without those of other tests
    seen = []
    steps = [
        lambda: sources.serve({str(file): "value = 2\n"}),
        lambda: imports.after(name, lambda module: seen.append(module.value)),
    ]
    for step in steps if is_served_first else reversed(steps):
        step()
    assert importlib.import_module(name).value == 2
    assert seen == ([2] if is_served_first else [])


def test_a_kernel_is_judged_as_its_launcher_was_called(launched: tuple) -> None:
    root, _, _ = launched
    program = root / "program.py"
    made = prepare(
        Job(text=program.read_text(), path=str(program), qualname="scale", folder=str(root))
    )
    assert isinstance(made, PreparedJob) and made.program.kernel == "scale"
    assert made.workload.origin is WorkloadOrigin.RECORDED and made.workload.inputs is not None
    assert [one.name for one in made.workload.inputs] == ["x", "out"]


@pytest.mark.parametrize(
    "name",
    [
        ".env", "keys/id_rsa", "keys/id_ed25519", "lab.pem", "server.key", "secrets/db", "token.json",
        "secrets.yaml", "service-credentials.json", "passwords.txt", "git_token", "wallet.p12",
        "kaggle.json", ".netrc",
    ],
)  # fmt: skip
def test_a_file_that_is_called_like_keys_is_not_shown_to_what_runs_again(
    name: str, tmp_path: Path
) -> None:
    """A candidate sees what the recorded program has read, wherever it lay."""
    read = FilesRead(str(tmp_path / "workspace"))
    names = (
        name,
        "data/tokens.bin",
        "tokenizer.json",
        "special_tokens_map.json",
        "monkey.keys.npy",
    )
    for one in names:
        file = tmp_path / "elsewhere" / one
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
        file.read_text()
    shown = [Path(path).name for path in read.to_record() if "elsewhere" in path]
    assert shown == [Path(one).name for one in names[1:]]


def test_secrets_that_a_container_was_given_are_not_shown(tmp_path: Path) -> None:
    read = FilesRead(str(tmp_path))
    assert not read._counts("/run/secrets/db")
    assert {"/run", "/var/run"} <= set(reading.OF_SYSTEM)
