"""The audit of all end-to-end tests sees what it should: see `audit` in conftest.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from auditing import audited

from kernel_lsp.confinement import entry

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + 1

def get_inputs():
    return [torch.rand(32, 16)]
"""


@pytest.mark.torch
def test_all_that_a_judgement_starts_is_confined(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(PROGRAM)
    (tmp_path / "other.py").write_text(PROGRAM.replace("Model", "ModelNew").replace("+ 1", "+ 1.0"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "KERNEL_LSP_DATA_DIR": str(tmp_path / "data"),
        entry.RECORD: str(tmp_path / "started"),
    }
    words = [
        sys.executable,
        "-m",
        "kernel_lsp",
        "verify",
        "model.py",
        "other.py",
        "--device",
        "cpu",
    ]
    with audited() as seen:
        done = subprocess.run(
            [*words, "--require", "correct"], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert seen.bare == set() and any("zygote" in one for one in seen.confined)
    started = [json.loads(line) for line in (tmp_path / "started").read_text().splitlines()]
    modules = {one["what"].rpartition(".")[2] for one in started}
    assert {"zygote", "judge", "worker"} <= modules
    assert all({"seccomp", "no privileges"} <= set(one["layers"]) for one in started)
    forked = [set(one["layers"]) for one in started if one["program"] == "forked"]
    assert all({"Landlock", "mounts"} & layers for layers in forked)


def test_the_audit_finds_who_is_not_confined() -> None:
    with audited(("planted",)) as seen:
        code = "import time; time.sleep(1)  # planted"
        subprocess.run([sys.executable, "-S", "-c", code], check=True)
    assert any("planted" in one for one in seen.bare) and seen.confined == set()
