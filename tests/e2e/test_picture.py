"""README's picture of `kernel-lsp optimize` shows what the program prints today."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from stories import ROOT, home_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


def test_the_picture_is_what_is_printed(tmp_path: Path, judged: Path) -> None:
    project, _ = home_of(tmp_path, judged)
    picture = runpy.run_path(str(ROOT / "docs" / "picture.py"))
    drawn = picture["svg"](picture["printed"](project, tmp_path / "data"))
    shown, committed = picture["words"](drawn), picture["words"](picture["PICTURE"].read_text())
    assert {"verdict", "faster", "speedup"} <= shown
    assert shown == committed, "run: python docs/picture.py"
