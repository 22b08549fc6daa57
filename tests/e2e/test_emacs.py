"""The whole story in Emacs itself, with our package and the settings of docs/emacs.md."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pages import blocks
from stories import CLIENTS, ROOT, home_of, tell

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("emacs") is None, reason="Emacs is not installed (scripts/setup does)"),
]
PAGE = ROOT / "docs" / "emacs.md"
PACKAGE = CLIENTS / "emacs" / "kernel-lsp.el"
STORY = Path(__file__).with_name("emacs_story.el")
EMACS = ["emacs", "--batch", "-l", "package", "--eval", "(package-initialize)"]
"""Batch mode reads no init file, which is what starts the packages."""
CLIENTS_OF = ("eglot", "lsp-mode")
"""In the order of the page."""
ANSWERED = "(setq lsp-auto-guess-root t)"
"""lsp-mode's own question about a new project, which it asks in a way that batch mode has no keyboard for."""


def emacs(settings: Path, text: str) -> list[str]:
    settings.write_text(text)
    opened = [
        "example.py",
        "--eval",
        "(run-hooks 'post-command-hook)",
    ]  # eglot-ensure waits for the first key
    return [*EMACS, "-l", str(settings), *opened, "-l", str(STORY)]


def version(expression: str) -> str:
    done = subprocess.run(
        [*EMACS, "--eval", f"(princ {expression})"], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("client", ["eglot", "lsp-mode"])
def test_the_story(client: str, tmp_path: Path, judged: Path) -> None:
    if not version(f'(or (locate-library "{client}") "")'):
        pytest.skip(f"{client} is not installed (scripts/setup does)")
    project, environment = home_of(tmp_path, judged)
    settings = blocks(PAGE, "elisp")[CLIENTS_OF.index(client)].text + ANSWERED
    name = f"Emacs {version('emacs-version')}, {client} {package(client)}"
    command = emacs(tmp_path / "init.el", settings)
    steps = tell(f"emacs-{client}", name, command, project, {**environment, "STORY_CLIENT": client})
    assert "kernel-lsp-optimize measures" in steps["SILENT"]
    assert "is not installed: pip install kernel-lsp" in steps["MISSING"]


def package(name: str) -> str:
    return version(f"(package-version-join (package-desc-version (cadr (assq '{name} package-alist))))")


def test_the_package_compiles_without_a_warning_and_its_texts_are_in_order(tmp_path: Path) -> None:
    copy = tmp_path / PACKAGE.name
    shutil.copy(PACKAGE, copy)
    strict = "(setq byte-compile-error-on-warn t)"
    compiled = subprocess.run(
        [*EMACS, "--eval", strict, "-f", "batch-byte-compile", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    checked = subprocess.run(
        [*EMACS, "--eval", f'(progn (require \'checkdoc) (checkdoc-file "{copy}"))'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Warning" not in checked.stderr, checked.stderr


def test_every_command_is_on_the_page(tmp_path: Path) -> None:
    text = PACKAGE.read_text()
    commands = {
        name
        for name, body in re.findall(r"\(defun (kernel-lsp-[\w-]+) (.*?)\n\n", text, re.S)
        if "(interactive)" in body
    }
    shown = {
        line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `kernel-lsp-")
    }
    assert shown == commands
