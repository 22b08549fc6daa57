"""What the tests of whole stories share: the program, its verdicts, what the journal tells, what
was seen.

A story goes from the first hint to a dismissal, in a real editor. What it saw is compared with the
committed record in editor-clients/features; KERNEL_LSP_RECORD=1 writes the record instead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.journal.store import FILE_NAME, Journal

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "editor-clients"
EXAMPLE = '''"""A product with a diagonal matrix: 2 * 768**3 operations where 768**2 would do."""

import torch
from torch import nn


class Model(nn.Module):
    # the comment stays
    def forward(self, gain, signal):
        return torch.diag(gain) @ signal


def get_inputs():
    return [torch.rand(768), torch.randn(768, 768)]
'''
STEPS = {
    "ASKED": "consent",
    "HINT": "hint",
    "HOVER": "hover",
    "LENS": "lens",
    "MENU": "menu",
    "DIFF": "diff",
    "APPLIED": "apply",
    "UNDONE": "undo",
    "EVIDENCE": "evidence",
    "DISMISSED": "dismiss",
    "SEARCH": "search",
    "CANCELLED": "cancel",
    "RESTARTED": "restart",
    "CRASH": "crash",
    "DOCTOR": "doctor",
}
"""What an editor's story prints, and the feature that was seen by that."""
TRAINING = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sum(x * 2.0, dim=1)


if __name__ == "__main__":
    model = Model()
    for _ in range(20):
        print(model(torch.randn(64, 64)).shape)
"""
"""A program without a workload, to be recorded."""
ON_CPU = {
    "KERNEL_LSP_DEVICE": "cpu",
    "KERNEL_LSP_CAPTURE_TIMEOUT_S": "600",
    "KERNEL_LSP_EVALUATE_TIMEOUT_S": "600",
}
"""With time for a machine that others use too."""
PATIENCE_S = 240
"""For other people's load on the same cores; a quiet machine needs a fifth."""
LIMIT_S = 1200
"""Of a whole story, whose steps take 40 s on a quiet machine."""


def kinds(data_dir: Path) -> list[str]:
    """All events of the journal, oldest first."""
    if not (data_dir / FILE_NAME).exists():
        return []
    with Journal.open(data_dir / FILE_NAME) as journal:
        events = [event for row in journal.sessions() for event in journal.session(row.id)[1]]
    return [event.kind.value for event in sorted(events, key=lambda event: event.time)]


TAKEN_BACK = (
    ["offered", "chosen", "accepted", "reverted"],
    ["offered", "accepted", "chosen", "reverted"],
)
"""What is told of a rewrite that was undone. An editor changes the text first and says then what
was chosen: where a machine stands still between the two, the text is seen first."""


def told(data_dir: Path) -> list[str]:
    """What became of the offer; how many candidates were judged is not the point here."""
    return [kind for kind in kinds(data_dir) if kind != "evaluated"]


def measure(verdicts: Path, folder: Path) -> None:
    """Have the example judged once for all stories. Again when the machine was too busy to judge
    in time."""
    (folder / "data").mkdir()
    (folder / "data" / "cache").symlink_to(verdicts)
    (folder / "example.py").write_text(EXAMPLE)
    command = [sys.executable, "-m", "kernel_lsp", "optimize", "example.py", "--device", "cpu"]
    environment = {**os.environ, **ON_CPU, "KERNEL_LSP_DATA_DIR": str(folder / "data")}
    environment["PYTHONPATH"] = str(ROOT)
    for _ in range(3):
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        if done.returncode == 0:
            return
    pytest.fail(f"no verdict: {done.stdout}{done.stderr}")


def home_of(tmp_path: Path, verdicts: Path) -> tuple[Path, dict[str, str]]:
    """A project with the example; the environment of a person with a clone at home and kernel-lsp
    on PATH."""
    home, project, data_dir = tmp_path / "home", tmp_path / "project", tmp_path / "data"
    for folder in (home, project, data_dir):
        folder.mkdir()
    (home / "kernel-lsp").symlink_to(ROOT)
    (data_dir / "cache").symlink_to(verdicts)
    (project / "example.py").write_text(EXAMPLE)
    environment = {
        **os.environ,
        **ON_CPU,
        "HOME": str(home),
        "KERNEL_LSP_DATA_DIR": str(data_dir),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "VIRTUAL_ENV": str(Path(sys.executable).parent.parent),
        "XDG_STATE_HOME": str(home / "state"),
        "KL_PATIENCE_S": str(PATIENCE_S),
        "KL_PATIENCE_MS": str(PATIENCE_S * 1000),
    }
    return project, environment


def program_of(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The project and home of a person who has a training script, and nothing measured."""
    project, environment = home_of(tmp_path, tmp_path)
    (project / "example.py").unlink()
    (project / "train.py").write_text(TRAINING)
    (project / "other.py").write_text(TRAINING.replace("torch.sum", "torch.mean"))
    return project, {**environment, "KERNEL_LSP_CONSENT": "never"}


def recorded_in(project: Path) -> list[str]:
    """Which programs have been recorded."""
    return sorted(path.name for path in (project / ".kernel-lsp").glob("*.toml"))


def live(command: list[str], project: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run an editor to its end; returns its steps and what it said at each, in order."""
    done = subprocess.run(
        command,
        env=environment,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    steps = {line.split()[0]: line.partition(" ")[2] for line in lines}
    assert lines[-1:] == ["DONE"], done.stdout + done.stderr
    return steps


def tell(
    name: str, editor: str, command: list[str], project: Path, environment: dict[str, str]
) -> dict[str, str]:
    """The whole story in one editor: nothing is saved, the journal knows it, what was seen is on
    record."""
    before = (project / "example.py").read_text()
    steps = live(command, project, environment)
    assert (project / "example.py").read_text() == before
    once = ["chosen", "accepted", "reverted"]
    fate = [kind for kind in told(Path(environment["KERNEL_LSP_DATA_DIR"])) if kind != "offered"]
    assert fate == [*once, *once, "dismissed"]
    features: dict[str, Any] = {feature: step in steps for step, feature in STEPS.items()}
    features["status"] = "searching Model" in steps["SEARCH"]
    if not features["lens"]:
        features["lens"] = None  # nobody looked
    seen(name, {"editor": editor, "how": "the program", "features": features})
    return steps


def seen(name: str, found: dict[str, Any]) -> None:
    """What the tests saw of an editor is what editor-clients/features says of it."""
    path = CLIENTS / "features" / f"{name}.json"
    if os.environ.get("KERNEL_LSP_RECORD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=2) + "\n")
    if not path.exists():
        pytest.fail(f"{path} is missing: run this test with KERNEL_LSP_RECORD=1")
    remedy = "run this test with KERNEL_LSP_RECORD=1, then python editor-clients/table.py"
    assert json.loads(path.read_text()) == found, remedy
