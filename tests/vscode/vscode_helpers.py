"""Where the parts of tests/vscode are, and how a story is played: see conftest.py for what they
drive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from editor import source  # noqa: E402

HERE = Path(__file__).parent
EXTENSION = ROOT / "editor-clients" / "vscode"
TOOLS = ROOT / ".code-server"
SERVER = Path(sys.executable).with_name("kernel-lsp")
LIMIT_S = 900
Steps = dict[str, dict[str, Any]]


def example(folder: Path) -> str:
    """One of examples/ in the folder, smaller, so that measuring it takes half a minute; returns
    its text."""
    text = (ROOT / "examples" / "diagonal_matmul.py").read_text()
    text = text.replace("CHANNELS, SAMPLES = 2048, 1536", "CHANNELS, SAMPLES = 768, 768")
    (folder / "diagonal_matmul.py").write_text(text)
    return text


def large() -> str:
    """The module of 5,000 lines that the server's own benchmark opens."""
    return source(5000)


def packaged(node: Path, folder: Path, package: Path) -> Path:
    """An extension of one file, extension.ts, made installable."""
    script = package.with_suffix(".js")
    command = [
        node,
        EXTENSION / "node_modules" / "esbuild" / "bin" / "esbuild",
        folder / "extension.ts",
    ]
    options = ["--bundle", "--platform=node", "--external:vscode", f"--outfile={script}"]
    subprocess.run([*command, *options], check=True, capture_output=True)
    with zipfile.ZipFile(package, "w") as archive:
        archive.write(folder / "package.json", "extension/package.json")
        archive.write(script, "extension/dist/extension.js")
    return package


def play(
    node: Path,
    script: str,
    base: Path,
    *arguments: object,
    environment: dict[str, str] | None = None,
) -> Steps:
    """Run one story; its steps by name."""
    # Not our own PATH: the server beside this interpreter must not be found by chance.
    tools = [
        str(node.parent),
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ]
    env = {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")
        },
        "PATH": os.pathsep.join(tools),
        "KERNEL_LSP_DATA_DIR": str(base / "data"),
        "KERNEL_LSP_DEVICE": "cpu",
        "KERNEL_LSP_EVALUATE_TIMEOUT_S": "600",
        **(environment or {}),
    }
    command = [
        node,
        "--disable-warning=ExperimentalWarning",
        HERE / f"{script}.mjs",
        *map(str, arguments),
    ]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, (
        f"{done.stdout}\n{done.stderr}\n{base}/state/failure.png shows the screen"
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row.pop("step"): row for row in rows}
