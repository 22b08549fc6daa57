"""A program whose module breaks, recorded and optimized by the command line: its parts, its
functions.

Also: what the recorder puts before functions changes nothing that the program sees.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with the program."""
    folder = tmp_path_factory.mktemp("breaks") / "work"
    shutil.copytree(ROOT / "tests" / "cases" / "programs" / "breaks", folder)
    return folder


@pytest.fixture(scope="module")
def recorded(work: Path) -> subprocess.CompletedProcess[str]:
    return kernel_lsp(work, "record", "--", sys.executable, "train.py")


def kernel_lsp(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "KERNEL_LSP_DATA_DIR": str(folder.parent / "data"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "kernel_lsp", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def optimized(folder: Path, target: str) -> dict[str, Any]:
    done = kernel_lsp(folder, "optimize", target, "--device", "cpu", "--budget", "2", "--json")
    assert done.stdout.startswith("{"), done.stderr[-2000:]
    (outcome,) = json.loads(done.stdout)["outcomes"]
    return outcome


def test_functions_are_recorded_and_the_program_sees_none_of_it(
    work: Path, recorded: subprocess.CompletedProcess[str]
) -> None:
    assert recorded.returncode == 0 and "same True True True" in recorded.stdout, recorded.stderr
    seen = tomllib.loads((work / ".kernel-lsp" / "train.recorded.toml").read_text())["seen"]
    calls = {one["target"]: one["calls"] for one in seen}
    names = ("model.py::Gate", "model.py::prepare", "model.py::loss_of", "train.py::mixed")
    assert calls == dict.fromkeys(names, 4)  # `held` is a table's, and `steps` takes no tensors


@pytest.mark.usefixtures("recorded")
def test_a_recorded_function_is_opened_and_its_rewrite_judged(work: Path) -> None:
    best = optimized(work, "model.py::prepare")["proposals"][0]  # under a decorator of torch's
    assert best["candidate"]["summary"].startswith("fuse tanh, mul")
    assert best["evaluation"]["status"] == "passed", best["evaluation"]["detail"]
    assert best["workload"]["origin"] == "recorded"


@pytest.mark.usefixtures("recorded")
def test_a_module_that_breaks_is_rewritten_in_part_and_its_breaks_are_told(work: Path) -> None:
    outcome = optimized(work, "model.py::Gate")
    assert [(one["line"], one["cause"]) for one in outcome["breaks"]] == [
        (17, "decides by tensor values"),
        (19, "moves a value to the host"),
    ]
    assert outcome["part"] == {"first": 15, "last": 16}
    best = outcome["proposals"][0]
    assert best["candidate"]["summary"].startswith("fuse silu, sigmoid")
    assert best["evaluation"]["status"] == "passed", best["evaluation"]["detail"]
    assert "if h.abs().max() > 100:" in best["candidate"]["edit"]["target"]
    shown = kernel_lsp(
        work, "optimize", "model.py::Gate", "--device", "cpu", "--budget", "2"
    ).stdout
    assert (
        "model.py:19: `rate = h.mean().item()` moves a value to the host; keep it a tensor" in shown
    )
