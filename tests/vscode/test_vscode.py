"""The extension in the real VS Code: the story of a rewrite, a folder without trust, one that
cannot be written, a large file, a notebook, no GPU, servers that fail, size.

One window per story, on the CPU, with nothing replaced but the servers that have to fail. The
pictures in the extension's README are what the story sees; with KERNEL_LSP_PICTURES=1 they are
taken anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from vscode_helpers import EXTENSION, ROOT, SERVER, Steps, example, large, packaged, play

import kernel_lsp
from kernel_lsp.journal.store import FILE_NAME, Journal

pytestmark = [pytest.mark.vscode, pytest.mark.timeout(1900)]
MANIFEST = json.loads((EXTENSION / "package.json").read_text())
MAX_BYTES = 2_000_000
MAX_ACTIVATION_MS = 5000
CELL = {
    "cell_type": "code",
    "metadata": {},
    "outputs": [],
    "execution_count": None,
    "source": ["import torch"],
}
PYTHON = {"language_info": {"name": "python"}}
NOTEBOOK = {"cells": [CELL], "metadata": PYTHON, "nbformat": 4, "nbformat_minor": 5}
TOO_OLD = '''#!{python}
"""Answers `initialize` as an older server would; the real one has no older version to install."""
import json, sys
while True:
    length = 0
    while (line := sys.stdin.buffer.readline().strip()):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    if not length:
        break
    request = json.loads(sys.stdin.buffer.read(length))
    if "id" in request:
        result = {{"capabilities": {{}}, "serverInfo": {{"name": "kernel-lsp", "version": "0.0.1"}}}}
        body = json.dumps({{"jsonrpc": "2.0", "id": request["id"], "result": result}}).encode()
        sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
        sys.stdout.buffer.flush()
'''
CRASHES = '''#!{python}
"""The real server, killed a second after it first said something."""
import os, subprocess, sys, threading, time
child = subprocess.Popen(["{server}", *sys.argv[1:]], stdout=subprocess.PIPE)
def copy():
    while data := os.read(child.stdout.fileno(), 65536):
        os.write(1, data)
os.write(1, os.read(child.stdout.fileno(), 65536))
threading.Thread(target=copy, daemon=True).start()
time.sleep(1)
child.kill()
os._exit(1)
'''


PROGRAM = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sum(x * 2.0, dim=1)


if __name__ == "__main__":
    model = Model()
    for _ in range(50):
        model(torch.randn(64, 64))
"""
LAUNCH = """{
  // as VS Code writes it, with comments
  "configurations": [
    {"name": "Small", "type": "debugpy", "request": "launch", "program": "${workspaceFolder}/train.py"},
  ]
}
"""


@pytest.fixture(scope="module")
def story(vscode: Path, place: Path) -> Steps:
    steps = play(
        vscode, "story", place, place / "project", place / "state", place / "pictures", SERVER
    )
    if os.environ.get("KERNEL_LSP_PICTURES"):
        for picture in (place / "pictures").glob("*.png"):
            keep_small(picture, EXTENSION / "images" / picture.name)
    return steps


def keep_small(picture: Path, place: Path) -> None:
    """A screenshot has few colors: with a palette it takes a third, of an extension that shall be
    small."""
    from PIL import Image  # matplotlib brings it

    colors = Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    colors.save(place, optimize=True)


def test_the_hint_names_speedup_and_device(story: Steps) -> None:
    assert "x (" in story["hint"]["lens"]
    assert story["hint"]["status"].startswith("kernel-lsp")


def test_the_menu_offers_what_the_server_offers_and_the_comparison(story: Steps) -> None:
    rows = " | ".join(story["actions"]["rows"])
    for words in ("Rewrite Gain", "Compare Gain", "Show evidence", "Search deeper", "Dismiss"):
        assert words in rows


def test_compare_apply_undo_dismiss_restart_cancel_pass(story: Steps) -> None:
    steps = [
        "asked",
        "hint",
        "actions",
        "compared and applied",
        "undone",
        "applied at once and undone",
    ]
    steps += [
        "evidence",
        "searching",
        "cancelled",
        "dismissed",
        "restarted",
        "doctor",
        "activation",
        "done",
    ]
    assert list(story) == steps


def test_the_evidence_is_a_rendered_page(story: Steps) -> None:
    text = story["evidence"]["text"]
    assert "Verified" in text
    assert "|---" not in text, "this is the source, not the page"


def test_a_dismissal_outlives_the_restart(story: Steps) -> None:
    assert not any("Rewrite Gain" in row for row in story["restarted"]["rows"])


def test_routine_work_opens_no_message(story: Steps) -> None:
    assert story["searching"]["messages"] == []
    assert story["done"]["messages"] == []


def test_the_journal_tells_the_story(story: Steps, place: Path) -> None:
    with Journal.open(place / "data" / FILE_NAME) as journal:
        events = [event for row in journal.sessions() for event in journal.session(row.id)[1]]
    told = [event.kind.value for event in sorted(events, key=lambda event: event.time)]
    fates = [kind for kind in told if kind in ("accepted", "reverted", "dismissed")]
    assert fates == ["accepted", "reverted", "accepted", "reverted", "dismissed"]
    assert told.count("chosen") == 2


def test_the_file_on_disk_was_never_touched(story: Steps, place: Path) -> None:
    told = (place / "project" / "diagonal_matmul.py").read_text()
    assert told == example(place / "project")


def test_the_doctor_says_where_the_server_comes_from(story: Steps) -> None:
    assert "setting kernel-lsp.server" in story["doctor"]["text"]
    assert "torch" in story["doctor"]["text"]


def test_activation_waits_for_nothing(story: Steps) -> None:
    """The bar is 200 ms on a quiet machine, all of it loading the code; this bound is for a busy
    one."""
    assert sum(story["activation"].values()) < MAX_ACTIVATION_MS


def test_a_folder_without_trust_runs_nothing(vscode: Path, place: Path) -> None:
    base = place / "untrusted"
    for name in ("project/.vscode", "project/.venv/bin", "state", "data"):
        (base / name).mkdir(parents=True)
    example(base / "project")
    bait = base / "project" / ".venv" / "bin" / "kernel-lsp"
    bait.write_text(f"#!/bin/sh\ntouch {base}/taken\n")
    bait.chmod(0o755)
    wanted = {"kernel-lsp.server": str(bait), "kernel-lsp.consent": "always"}
    (base / "project" / ".vscode" / "settings.json").write_text(json.dumps(wanted))
    steps = play(vscode, "trust", base, base / "project", base / "state", SERVER)
    assert steps["refused"]["started"] is False
    assert steps["restricted"]["messages"] == []
    assert "until you trust it" in steps["restricted"]["tooltip"]
    assert len(steps["refused"]["messages"]) == 1
    assert {"Record a Run", "Optimize This Program", "asked"} <= set(steps)


@pytest.fixture(scope="module")
def places(vscode: Path, place: Path) -> Steps:
    """Told twice at most: one of seven windows on 2026-11-21 never drew the lenses of its large
    file, for a reason that is not known."""
    base = place / "places"
    for name in ("project", "state", "again", "data"):
        (base / name).mkdir(parents=True)
    example(base / "project")
    (base / "project" / "large.py").write_text(large())
    (base / "project" / "notes.ipynb").write_text(json.dumps(NOTEBOOK))
    patience = {"PATIENCE_MS": "240000"}
    try:
        return play(
            vscode, "places", base, base / "project", base / "state", SERVER, environment=patience
        )
    except AssertionError as failed:
        sys.stderr.write(f"a window is opened once more: {failed}\n")
        return play(
            vscode, "places", base, base / "project", base / "again", SERVER, environment=patience
        )


def test_keys_do_not_wait_for_a_server_that_stands_still(places: Steps) -> None:
    """It was stopped by a signal while somebody typed; benchmarks/typing_vscode.py has the
    times."""
    # The story goes on only when the text is on the screen.
    assert len(places["typed"]["frozen"]) > 20
    assert "Optimize Model277" in places["typed"]["rows"], "it does not know where the text is now"


def test_an_idle_server_takes_no_time(places: Steps) -> None:
    assert places["idle"]["ticks"] <= 2, "hundredths of a second, of eight"


@pytest.mark.parametrize(
    ("step", "remedy"),
    [
        ("no GPU", "set the device to auto or cpu"),
        ("read-only", "a comment above the target does as well"),
        ("notebook", "a comment above the target says it"),
    ],
)
def test_what_a_place_lacks_is_one_message_with_a_remedy(
    places: Steps, step: str, remedy: str
) -> None:
    assert len(places[step]["messages"]) == 1
    assert remedy in places[step]["text"]


def test_a_read_only_folder_has_examples(places: Steps) -> None:
    assert places["example"]["messages"] == []


def test_a_rewrite_is_offered_applied_and_undone_in_a_cell(
    story: Steps, vscode: Path, place: Path
) -> None:
    """Measured in the story of the same code as a file. Saved by VS Code: outputs, other cells and
    magics stay."""
    base = place / "notebook"
    for name in ("project", "state"):
        (base / name).mkdir(parents=True)
    (base / "data").symlink_to(place / "data")
    text = example(base)
    at = text.index("class Gain")
    output = {"output_type": "stream", "name": "stdout", "text": ["0.37\n"]}
    sources = ["%matplotlib inline\n" + text[:at], text[at:]]
    cells = [
        {**CELL, "source": source.splitlines(keepends=True), "outputs": [output]}
        for source in sources
    ]
    notebook = {**NOTEBOOK, "cells": [*cells, {**CELL, "source": ["!ls"]}]}
    path = base / "project" / "work.ipynb"
    path.write_text(json.dumps(notebook, indent=1) + "\n")
    steps = play(vscode, "notebook", base, base / "project", base / "state", SERVER)
    assert "x (" in steps["offered"]["lens"]
    assert any("Rewrite Gain" in row for row in steps["actions"]["rows"])
    applied, undone = (json.loads(steps[step]["text"])["cells"] for step in ("applied", "undone"))
    assert "Verified on" in "".join(applied[1]["source"])
    for cell in (0, 2):
        assert applied[cell]["source"] == notebook["cells"][cell]["source"]
    assert [cell["outputs"] for cell in applied] == [[output], [output], []]
    assert "".join(undone[1]["source"]).rstrip("\n") == sources[1].rstrip("\n")
    assert steps["undone"]["messages"] == []


@pytest.fixture(scope="module")
def faults(vscode: Path, place: Path) -> Steps:
    base = place / "faults"
    for name in ("project", "state", "data", "programs"):
        (base / name).mkdir(parents=True)
    example(base / "project")
    for name, text in (("too_old", TOO_OLD), ("crashes", CRASHES)):
        program = base / "programs" / name
        program.write_text(text.format(python=sys.executable, server=SERVER))
        program.chmod(0o755)
    stand_in = packaged(vscode, EXTENSION / "test" / "python-stand-in", base / "python.vsix")
    return play(
        vscode,
        "faults",
        base,
        base / "project",
        base / "state",
        base / "programs",
        SERVER,
        stand_in,
    )


def test_each_fault_of_the_server_is_one_message_with_a_remedy(faults: Steps) -> None:
    for name in ("missing", "wrong path", "wrong type", "too old", "not a server", "crash loop"):
        assert len(faults[name]["messages"]) == 1, faults[name]
    assert "Install" in faults["missing"]["text"]
    assert "Show Log" in faults["crash loop"]["text"]
    assert "pip install -U kernel-lsp" in faults["too old"]["text"]


def test_a_setting_of_a_wrong_type_is_said_in_the_status_bar(faults: Steps) -> None:
    assert faults["setting of a wrong type"]["messages"] == []
    assert "threshold = 'fast'" in faults["setting of a wrong type"]["tooltip"]


def test_the_environment_selected_in_the_python_extension_has_the_server(faults: Steps) -> None:
    assert f"{SERVER} (the selected Python environment)" in faults["selected"]["log"]
    assert str(SERVER.with_name("python")) in faults["selected"]["tooltip"]
    assert faults["selected again"]["log"] == faults["selected"]["log"], (
        "it started once more for nothing"
    )


def test_the_server_that_the_extension_carries_is_installed_by_one_click(faults: Steps) -> None:
    assert "installed by this extension" in faults["installed"]["log"]


def test_the_table_of_features_says_what_was_seen(story: Steps, faults: Steps, place: Path) -> None:
    """In the order of editor-clients/table.py; what no step looks at is left out."""
    rows = " | ".join(story["actions"]["rows"])
    found = {
        "consent": "asked" in story,
        "hint": "available" in story["hint"]["lens"],
        "hover": "hint" in story,  # its picture is taken when the hover is there
        "lens": "x (" in story["hint"]["lens"],
        "menu": "Rewrite Gain" in rows,
        "diff": "compared and applied" in story,
        "apply": "applied at once and undone" in story,
        "undo": "undone" in story,
        "evidence": "Times" in story["evidence"]["text"],
        "dismiss": "dismissed" in story,
        "search": "searching" in story,
        "cancel": "cancelled" in story,
        "status": story["hint"]["status"].startswith("kernel-lsp"),
        "restart": "restarted" in story,
        "crash": "crash loop" in faults,
        "doctor": "torch" in story["doctor"]["text"],
    }
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from stories import seen

    seen(
        "vscode", {"editor": "VS Code 1.139 (code-server)", "how": "the program", "features": found}
    )


def test_the_package_is_small_and_holds_what_it_needs(vscode: Path) -> None:
    subprocess.run(["bash", ROOT / "scripts" / "setup-vscode", "--extension"], check=True)
    package = EXTENSION / "kernel-lsp.vsix"
    assert package.stat().st_size < MAX_BYTES
    with zipfile.ZipFile(package) as archive:
        names = archive.namelist()
    assert "extension/dist/extension.js" in names
    bundled = [name for name in names if name.startswith("extension/bundled/kernel_lsp-")]
    assert len(bundled) == 1 and bundled[0].endswith(".whl.br")
    assert not any("node_modules" in name or name.endswith(".ts") for name in names)


def test_what_is_published_has_no_warning_and_shows_the_public_pictures(vscode: Path) -> None:
    """`npm run package`, as docs/how-to/publishing.md says."""
    package = EXTENSION / f"kernel-lsp-{kernel_lsp.__version__}.vsix"
    try:
        said = npm(vscode, "run", "package")
        with zipfile.ZipFile(package) as archive:
            readme = archive.read("extension/readme.md").decode()
    finally:
        package.unlink(missing_ok=True)
    assert "DONE" in said
    assert "WARN" not in said.upper().replace("NPM WARN", "")
    assert (
        f"({MANIFEST['homepage'].partition('#')[0]}/raw/HEAD/editor-clients/vscode/images/hint.png)"
        in readme
    )


def test_names_and_version_are_the_same_everywhere() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert MANIFEST["version"] == kernel_lsp.__version__
    assert MANIFEST["repository"]["url"] == f"{urls['Repository']}.git"
    assert MANIFEST["bugs"] == urls["Issues"]
    assert (EXTENSION.parents[1] / MANIFEST["repository"]["directory"]) == EXTENSION
    assert (
        f'"{MANIFEST["publisher"]}.{MANIFEST["name"]}'
        in (ROOT / "tests/vscode/editor.mjs").read_text()
    )


def test_it_is_formatted_linted_typed_and_its_units_pass(vscode: Path) -> None:
    npm(vscode, "run", "check")
    npm(vscode, "test", "--silent")


def npm(node: Path, *arguments: str) -> str:
    env = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [node.parent / "npm", *arguments]
    done = subprocess.run(
        command, cwd=EXTENSION, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_its_settings_are_the_servers() -> None:
    script = EXTENSION / "scripts" / "settings.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_program_is_chosen_and_recorded_in_a_terminal(vscode: Path, tmp_path: Path) -> None:
    """From the lens; with the debug configurations of a launch.json that only VS Code can read."""
    project, data = tmp_path / "project", tmp_path / "data"
    for folder in (project / ".vscode", data, tmp_path / "state"):
        folder.mkdir(parents=True)
    (project / "train.py").write_text(PROGRAM)
    (project / ".vscode" / "launch.json").write_text(LAUNCH)
    steps = play(vscode, "programs", tmp_path, project, tmp_path / "state", SERVER)
    assert steps["offered"]["asked"] == "▷ record a run to measure"
    for shown in (steps["offered"]["rows"], steps["optimize"]["rows"]):
        assert [row.strip() for row in shown[:2]] == ["Smalldebug configuration", "train.pyscript"]
        assert len(shown) == 3 and "Another program" in shown[2]
    assert (project / ".kernel-lsp" / "train.recorded.toml").exists()
    assert "% of the recorded time" in steps["recorded"]["lens"]
    assert steps["done"]["messages"] == []
