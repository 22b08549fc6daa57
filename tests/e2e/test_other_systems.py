"""Where Linux's parts are missing: findings work, on the command line and in an editor, and what
cannot be judged says what helps. A real Windows or macOS was not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from raw_client import RawClient

HELPER = Path(__file__).parents[1] / "helpers" / "without_posix.py"
TEXT = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, gain, signal):
        return torch.diag(gain) @ signal


def get_inputs():
    return [torch.rand(64), torch.randn(64, 64)]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "model.py").write_text(TEXT)
    return {**os.environ, "KERNEL_LSP_DATA_DIR": str(tmp_path / "data"), "COLUMNS": "200"}


def run(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(HELPER), *arguments],
        env=environment, capture_output=True, text=True, timeout=120,
        cwd=Path(environment["KERNEL_LSP_DATA_DIR"]).parent,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--version",), 0, "kernel-lsp 0"),
        (("--help",), 0, "optimize"),
        (("check", "model.py"), 1, "model.py:7:16: KL105"),
        (("check", "model.py", "--no-cache", "--jobs", "1"), 1, "model.py:7:16: KL105"),
        (("doctor", "--json"), 1, "run kernel-lsp in WSL"),
        (("optimize", "model.py"), 2, "nothing is judged here"),
        (("verify", "model.py", "model.py"), 2, "run kernel-lsp in WSL"),
        (("skills", "list"), 0, "diagonal-matmul"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_commands(
    environment: dict[str, str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    found, said = run(environment, *arguments)
    assert words in said
    assert (found, "Traceback" in said) == (code, False), said


def test_an_editor_has_findings_and_reads_why_nothing_is_measured(tmp_path: Path) -> None:
    client = RawClient(tmp_path / "project", python=[str(HELPER), "serve"])
    try:
        assert "capabilities" in client.initialize()["result"]
        uri = client.open(TEXT)
        assert [hint["code"] for hint in client.hints(uri)] == ["KL105"]
        assert "result" in client.hover(uri, 4, 6)
        allowed = "Allow for this folder"
        client.answers["window/showMessageRequest"] = lambda asked: {"result": {"title": allowed}}
        client.command("optimize", {"uri": uri, "qualname": "Model"})
        shown = client.until(lambda m: m.get("method") == "window/showMessageRequest")
        assert "run kernel-lsp in WSL" in shown["params"]["message"]
        assert b"Traceback" not in client.log
    finally:
        client.quit()


def test_a_server_that_cannot_be_made_ends_and_says_why(tmp_path: Path) -> None:
    """It had answered `initialize` by then, and stayed as one that serves nothing."""
    broken = "import sys; sys.modules['kernel_lsp.server.sync'] = None\n"
    broken += "from kernel_lsp.server import main; main()"
    client = RawClient(tmp_path / "project", python=["-c", broken])
    try:
        client.ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        assert client.exit_code() == 1
        assert b"kernel_lsp.server.sync" in client.log
    finally:
        client.quit()
