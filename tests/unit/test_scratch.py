"""Scratch folders of killed processes are removed at the next start; those of living ones stay."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from kernel_lsp import scratch

MAKE = """
import sys, tempfile, time
from kernel_lsp import scratch
print(tempfile.mkdtemp(prefix=scratch.prefix("gate"), dir=sys.argv[1]), flush=True)
time.sleep(60)
"""
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="Linux tells whose a number is"
)


def start(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    root = Path(scratch.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(folder)}
    child = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_what_a_killed_process_has_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    child, made = start(tmp_path)
    (made / "judge").mkdir()
    (made / "judge" / "program.py").write_text("the user's source")
    mine = Path(tempfile.mkdtemp(prefix=scratch.prefix("engine"), dir=tmp_path))
    other = tmp_path / "kernel-lsp-gate-1.99999999.1-abc"  # of another namespace, so perhaps alive
    other.mkdir()
    (tmp_path / "kernel-lsp-notes").mkdir()
    assert scratch.sweep(tmp_path) == [], "its owner lives"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    second, _ = start(tmp_path)  # what is started next cleans up by itself
    try:
        for _ in range(500):
            if not made.exists():
                break
            threading.Event().wait(0.01)
        assert not made.exists() and mine.exists() and other.exists()
        assert (tmp_path / "kernel-lsp-notes").exists()
    finally:
        second.kill()
        second.communicate()


def test_a_number_that_has_come_again_is_another_process(tmp_path: Path) -> None:
    name = scratch.prefix("gate")
    # This very process's number, of the start of the machine.
    earlier = name.rsplit(".", 1)[0] + ".1-x"
    (tmp_path / earlier).mkdir()
    assert scratch.sweep(tmp_path) == [tmp_path / earlier]


def test_a_link_in_its_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("keep")
    name = scratch.prefix("gate").rsplit(".", 2)[0] + ".99999999.1-x"
    (tmp_path / name).symlink_to(tmp_path / "mine")
    assert scratch.sweep(tmp_path) == [] and (tmp_path / "mine" / "letter").exists()


def test_a_scratch_folder_is_gone_in_the_end() -> None:
    before = set(scratch.room().iterdir())
    with pytest.raises(KeyError), scratch.folder("engine") as folder:
        (folder / "inner").mkdir()
        assert folder.parent == scratch.room()
        raise KeyError
    assert set(scratch.room().iterdir()) == before


def test_the_room_goes_with_its_process_and_not_with_a_fork_of_it(tmp_path: Path) -> None:
    code = (
        "import os\nfrom kernel_lsp import scratch\nmade = scratch.make('gate')\n"
        "if os.fork() == 0:\n    raise SystemExit\nos.wait()\nprint(made.exists())"
    )
    root = Path(scratch.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True" and list(tmp_path.iterdir()) == []
