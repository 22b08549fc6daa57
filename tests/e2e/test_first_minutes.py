"""A newcomer's path, as benchmarks/first_minutes.py times it: the page's commands with an empty home,
and Neovim from the first hint to a rewrite that was applied and undone.

The project's interpreter has torch and what torch requires, and none of our packages: what we need
there by mistake was seen by nothing else for two days of work."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from stories import ROOT


@pytest.mark.alone  # an editor measures by itself where nothing else takes the cores
@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("nvim") is None, reason="Neovim is not installed (scripts/setup)")
def test_from_nothing_to_a_verified_rewrite() -> None:
    command = [sys.executable, "benchmarks/first_minutes.py", "--borrow"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=880, check=False
    )
    assert "Neovim: diff, applied" in done.stdout, done.stdout + done.stderr
    assert "Neovim: undone, closed" in done.stdout, done.stdout + done.stderr
    assert "the story ended" not in done.stderr, done.stderr
