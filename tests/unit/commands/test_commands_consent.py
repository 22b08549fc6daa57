"""Commands start no interpreter of a folder whose code nobody has allowed to run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernel_lsp
from kernel_lsp import consent
from kernel_lsp.confinement import entry

PROGRAM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + 1

def get_inputs():
    return [torch.rand(32, 16)]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """It holds an interpreter, and settings that name it."""
    folder = tmp_path / "project"
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    (folder / "pyproject.toml").write_text('[tool.kernel-lsp]\npython = ".venv/bin/python"\n')
    (folder / "model.py").write_text(PROGRAM)
    (folder / "other.py").write_text(PROGRAM)
    return folder


def command(
    project: Path, *arguments: str, stdin: int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[str]:
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in ("VIRTUAL_ENV", "KERNEL_LSP_PYTHON")
        },
        "KERNEL_LSP_DATA_DIR": str(project.parent / "data"),
        entry.RECORD: str(project.parent / "started"),
        "PYTHONPATH": str(Path(kernel_lsp.__file__).parent.parent),
    }
    argv = [sys.executable, "-P", "-m", "kernel_lsp", *arguments]
    return subprocess.run(
        argv, cwd=project, env=environment, stdin=stdin, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", "model.py", "--show-prompt"),
        ("optimize", "model.py"),
        ("verify", "model.py", "other.py"),
    ],
    ids=" ".join,
)
def test_no_command_starts_it(arguments: tuple[str, ...], project: Path) -> None:
    done = command(project, *arguments)
    assert (
        done.returncode == 2
        and "nobody has allowed" in done.stderr
        and "kernel-lsp trust" in done.stderr
    )
    assert not started(project)


def started(project: Path) -> bool:
    """Whether the interpreter of the folder was."""
    record = project.parent / "started"
    return record.exists() and str(project / ".venv/bin/python") in record.read_text()


def test_doctor_says_why_it_does_not_ask_and_asks_once_it_may(project: Path) -> None:
    def found() -> str:
        done = command(project, "doctor", "--json", str(project))
        findings = {item["part"]: item for item in json.loads(done.stdout)["findings"]}
        return str(findings["interpreter"]["found"])

    assert found().startswith("not asked:") and not started(project)
    consent.trust(project, project.parent / "data")
    assert found().startswith(str(project / ".venv/bin/python")) and started(project)


def test_doctor_mends_what_somebody_at_a_terminal_agrees_to(project: Path) -> None:
    """Each command is named. Nothing of the folder that it is started in is imported for it."""
    (project / "kernel_lsp.py").write_text("raise SystemExit('of the repository')")
    consents = consent.Consents(project.parent / "data")

    def doctor(answer: str | None) -> str:
        terminal, stdin = os.openpty() if answer else (-1, subprocess.DEVNULL)
        if answer:
            os.write(terminal, answer.encode() * 9)
        done = command(project, "doctor", "--fix", "--json", str(project), stdin=stdin)
        for descriptor in (terminal, stdin) if answer else ():
            os.close(descriptor)
        assert "kernel_lsp trust" in " ".join(done.stderr.split())  # lines are wrapped
        findings = {item["part"]: item for item in json.loads(done.stdout)["findings"]}
        return str(findings["interpreter"]["found"])

    for answer in (None, "n\n"):
        assert doctor(answer).startswith("not asked:") and not started(project)
    assert doctor("y\n").startswith(str(project / ".venv/bin/python"))
    assert consents.answer(str(project)) is consent.ConsentAnswer.ALLOW
