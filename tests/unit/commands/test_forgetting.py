"""`sessions forget` removes what recordings keep, of one workspace or of all."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernel_lsp import offers
from kernel_lsp.commands import sessions
from kernel_lsp.snapshots import store


def recorded(data_dir: Path, root: Path) -> Path:
    folder = store.begin(data_dir, root, "train.py")
    table = {"program": "train.py", "root": str(root), "created": "2026-11-24T00:00:00+00:00"}
    store.finish(folder, {**table, "command": ["python"], "elapsed_s": 1.0, "seen": [], "ways": []})
    return folder


def test_recordings_are_forgotten_with_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, mine, other = (tmp_path / name for name in ("data", "mine", "other"))
    for folder in (data, mine, other):
        folder.mkdir()
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(data))
    monkeypatch.chdir(mine)
    gone, stays = recorded(data, mine), recorded(data, other)
    page = offers.write(data, mine, ("python", "train.py"), None, "# page\n")
    asked = CliRunner().invoke(sessions.app, ["forget", "--folder", str(mine)])
    assert asked.exit_code == 0 and "1 recording" in asked.output
    assert not gone.exists() and stays.exists() and not page.exists()
    asked = CliRunner().invoke(
        sessions.app, ["forget", "--folder", str(other), "--older-than-days", "3"]
    )
    assert asked.exit_code == 0 and stays.exists(), "an age is of sessions"
    assert CliRunner().invoke(sessions.app, ["forget", "--all", "--json"]).exit_code == 0
    assert not stays.exists()
