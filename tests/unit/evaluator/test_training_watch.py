"""Processes that ran before a candidate was loaded (a compiler out of time) are not held against
it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from kernel_lsp.evaluator.running.watch import Watch  # noqa: E402


def sleeper() -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_only_processes_that_came_with_the_candidate_count() -> None:
    watch, running = Watch(), [sleeper()]
    try:
        watch.start()
        assert "no-processes-left" not in [note["name"] for note in watch.problems()]
        running.append(sleeper())
        assert "no-processes-left" in [note["name"] for note in watch.problems()]
    finally:
        for process in running:
            process.kill()
            process.wait()
