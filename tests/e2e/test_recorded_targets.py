"""A package as people have it: recorded by the command line, its modules opened where they live
and judged.

Relative imports, a constructor that takes a config object, an enum and a registry, a call with a
tuple of states, a module called by its `forward`, a cache that a call changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases" / "programs"
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with the package, recorded."""
    folder = tmp_path_factory.mktemp("recorded") / "work"
    folder.mkdir()
    shutil.copytree(CASES / "package", folder / "package")
    shutil.copy(CASES / "run.py", folder)
    done = kernel_lsp(folder, "record", "--", sys.executable, "run.py")
    assert done.returncode == 0 and "5 targets" in done.stderr + done.stdout, done.stderr
    return folder


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
        timeout=300,
        check=False,
    )


def optimized(folder: Path, target: str) -> dict[str, Any]:
    place = f"package/blocks.py::{target}"
    done = kernel_lsp(folder, "optimize", place, "--device", "cpu", "--budget", "2", "--json")
    assert done.stdout.startswith("{"), done.stderr[-2000:]
    (outcome,) = json.loads(done.stdout)["outcomes"]
    return outcome


@pytest.mark.parametrize(
    ("target", "summary"),
    [
        ("GatedLayer", "fuse silu, mul and clamp"),  # called by its forward, decides by an enum
        ("Recurrent", "fuse add, sigmoid"),  # takes and returns a tuple of states
        ("Norm", "fuse pow, mean"),
    ],
)
def test_a_module_of_a_package_is_opened_and_its_rewrite_judged(
    home: Path, target: str, summary: str
) -> None:
    outcome = optimized(home, target)
    best = outcome["proposals"][0]
    assert best["candidate"]["summary"].startswith(summary)
    assert best["evaluation"]["status"] == "passed", best["evaluation"]["detail"]
    assert best["workload"]["origin"] == "recorded"


def test_a_module_that_changes_a_cache_is_one_graph(home: Path) -> None:
    """Nothing is gained there on a CPU, which is said operation by operation."""
    outcome = optimized(home, "Cached")
    assert outcome["part"] is None and outcome["breaks"] == []
    assert "scaled_dot_product_attention" in {miss["op"] for miss in outcome["misses"]}


def test_what_is_judged_is_the_file_as_it_is_now(home: Path, tmp_path: Path) -> None:
    """A `raise` in the edited target raises, although the recorded program never saw it."""
    folder = tmp_path / home.name
    shutil.copytree(home.parent, tmp_path, dirs_exist_ok=True)
    done = kernel_lsp(folder, "record", "--", sys.executable, "run.py")
    assert done.returncode == 0, done.stderr
    path = folder / "package" / "blocks.py"
    text = path.read_text()
    path.write_text(
        text.replace("scale = torch.rsqrt(", "raise ValueError('edited'); scale = torch.rsqrt(")
    )
    done = kernel_lsp(folder, "optimize", "package/blocks.py::Norm", "--device", "cpu", "--json")
    assert "edited" in done.stderr + done.stdout
