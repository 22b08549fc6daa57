"""Programs that hold what no snapshot can: they are run again, confined, up to the call that was
recorded."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "cases" / "programs" / "journaled.py"
pytestmark = pytest.mark.torch


def kernel_lsp(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "KERNEL_LSP_DATA_DIR": str(folder.parent / "data"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "kernel_lsp", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )  # fmt: skip


def record(tmp_path: Path, *arguments: str) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(PROGRAM, folder)
    table = tmp_path / "table.txt"
    table.write_text("256")
    done = kernel_lsp(
        folder, "record", "--", sys.executable, "journaled.py", str(table), *arguments
    )
    assert done.returncode == 0, done.stderr
    return folder


def optimize(folder: Path) -> subprocess.CompletedProcess[str]:
    return kernel_lsp(
        folder, "optimize", "journaled.py::Block", "--device", "cpu", "--budget", "2", "--json"
    )


def test_a_module_with_an_open_file_is_judged_and_writes_nothing(tmp_path: Path) -> None:
    folder = record(tmp_path)
    journal = folder / "run.jsonl"
    assert journal.read_text().count("\n") == 8
    done = optimize(folder)
    assert re.search(r"lines \d+ to \d+ of Block \(\d+ operations\)", done.stderr), done.stderr
    assert done.stdout, done.stderr[-1500:]
    (outcome,) = json.loads(done.stdout)["outcomes"]
    best = outcome["proposals"][0]
    assert best["candidate"]["summary"].startswith("fuse silu"), outcome["note"]
    assert best["evaluation"]["status"] == "passed", best["evaluation"]["detail"]
    assert journal.read_text().count("\n") == 8


def test_a_program_that_asks_the_network_is_refused_with_that_reason(tmp_path: Path) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        folder = record(tmp_path, f"http://127.0.0.1:{server.server_port}/")
        done = optimize(folder)
    finally:
        server.shutdown()
        server.server_close()
    said = " ".join(f"{done.stderr} {done.stdout}".split())
    assert "asks the network before that call" in said, said
    assert "keep what it loads in files of the workspace" in said


class _Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"data")

    def log_message(self, *_: object) -> None:
        pass
