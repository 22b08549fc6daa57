"""A rewrite of an installed package, as its user gets it: written as a patch, run, judged again,
removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.torch

LIBRARY = """\
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x @ torch.diag(self.weight)
"""
PROGRAM = """\
import torch
from library import Scale

model = Scale(1024).eval()
with torch.no_grad():
    for _ in range(20):
        y = model(torch.ones(64, 1024))
print("took", "_forward_eager" in vars(Scale), float(y.sum()))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    site = tmp_path / "env" / "site-packages"
    site.mkdir(parents=True)
    (site / "library.py").write_text(LIBRARY)
    (tmp_path / "work" / ".kernel-lsp").mkdir(parents=True)
    (tmp_path / "work" / "run.py").write_text(PROGRAM)
    return tmp_path / "work"


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "KERNEL_LSP_DATA_DIR": str(root.parent / "data"),
        "KERNEL_LSP_CONSENT": "always",
        "KERNEL_LSP_TORCH_COMPILE": "0",
        # threads of a busy machine wait for each other longer than they compute
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join((str(root.parent / "env" / "site-packages"), str(ROOT))),
    }
    line = [sys.executable, *command]
    return subprocess.run(
        line, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_patch_is_written_run_judged_again_and_removed(root: Path) -> None:
    tool = ("-m", "kernel_lsp")
    library = root.parent / "env" / "site-packages" / "library.py"
    assert run(root, "run.py").stdout == "took False 65536.0\n"
    assert run(root, *tool, "record", "--", sys.executable, "run.py").returncode == 0
    link = root / "vendored.py"
    link.symlink_to(library)  # the way of a path that does not say where it leads
    target = f"{link}::Scale"
    done = run(root, *tool, "optimize", target, "--device", "cpu", "--budget", "1", "--apply")
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    assert library.read_text() == LIBRARY, "a package's own file is never written"
    assert run(root, "run.py").stdout == "took True 65536.0\n"

    (kept,) = (root / ".kernel-lsp" / "accepted").glob("*.json")
    assert str(root.parent) not in kept.read_text(), "nothing of this machine is committed"
    guarded = run(root, *tool, "guard", "--device", "cpu", "--format", "json")
    (verdict,) = json.loads(guarded.stdout)["rewrites"]
    assert verdict["holding"] in ("pays", "slow"), verdict

    removed = run(root, *tool, "patches", "remove")
    assert removed.returncode == 0, removed.stderr
    assert (root / "run.py").read_text() == PROGRAM and not kept.exists()
    assert run(root, "run.py").stdout == "took False 65536.0\n"
