"""A program that people have: recorded, profiled, checked and timed by its own steps, in real
processes."""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.programs import bench, measuring, optimizing, stepping
from kernel_lsp.programs.bench import ProgramPlan
from kernel_lsp.programs.measuring import AS_IS
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.programs.stepping import Clock
from kernel_lsp.workloads import running

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[1] / "cases" / "programs" / "script" / "train.py"
MODEL, BLOCK, MLP = ("__main__", "Model"), ("__main__", "Block"), ("__main__", "MLP")
CLOCK = Clock(roots=(MODEL,), kind="optimizer", region=BLOCK)


def steps_of(root: Path, texts: dict[Path, str] | None = None, **more: Any) -> stepping.StepRun:
    with Mirror.of(root, texts or {}) as mirror:
        command = [sys.executable, "train.py"]
        values = {"steps": 3, "timeout_s": 100.0, **more}
        return stepping.run(mirror, command, root, AS_IS, CLOCK, **values)


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
        found.device == "cpu" and found.roots() == [MODEL] and found.repeated(MODEL) in (BLOCK, MLP)
    )
    kinds = {(row.ranges, row.kind) for row in found.rows}
    assert {
        ((MODEL, BLOCK, MLP), "forward"),
        ((MODEL, BLOCK, MLP), "backward"),
        ((), "optimizer"),
    } <= kinds
    assert 0.5 < found.of_target(MODEL) + found.of_kind("optimizer") <= 1.0
    assert found.is_within(MLP, BLOCK)
    assert run.optimizers == ({"kind": "AdamW", "fused": None, "foreach": None},)
    assert str(root / "train.py") in run.files, "by its own place, not that of the copy"


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
    assert measuring.agreement(*runs, moved, edited=same).right
    assert not measuring.agreement(*runs, moved, edited=wrong).right


def test_the_program_is_recorded_and_a_fused_optimizer_checked_and_timed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch.compile, which takes a minute here, and without time for targets."""
    monkeypatch.setattr(bench, "COMPILED", ())
    monkeypatch.setattr(bench, "LATER", range(1, 2))
    monkeypatch.setattr(bench.ProgramBench, "_compiled", lambda *_: [])
    settings = Settings(data_dir=str(tmp_path / "data"), consent="always")
    command = (sys.executable, "train.py")
    plan = ProgramPlan(root=root, folder=root, command=command, device="cpu", steps=4, minutes=0.0)
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
    assert outcome.measured is not None and outcome.measured.step_ms(AS_IS)
    assert outcome.best is not None and outcome.best.name == "a fused optimizer"
    assert "fused=True" in outcome.variants["a fused optimizer"].texts[root / "train.py"]
    assert "fused" not in (root / "train.py").read_text(), "nothing is written unasked"


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
