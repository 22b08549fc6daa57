"""The whole story in Emacs itself, with our package and the settings of docs/how-to/emacs.md."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pages import blocks
from stories import CLIENTS, ROOT, home_of, live, program_of, recorded_in, tell

from kernel_lsp import __version__

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        shutil.which("emacs") is None, reason="Emacs is not installed (scripts/setup does)"
    ),
]
PAGE = ROOT / "docs" / "how-to" / "emacs.md"
PACKAGE = CLIENTS / "emacs" / "kernel-lsp.el"
STORY = Path(__file__).with_name("emacs_story.el")
EMACS = ["emacs", "--batch", "-l", "package", "--eval", "(package-initialize)"]
"""Batch mode reads no init file, which is what starts the packages."""
CLIENTS_OF = ("eglot", "lsp-mode")
"""In the order of the page."""
ANSWERED = "(setq lsp-auto-guess-root t)"
"""lsp-mode's own question about a new project, which it asks in a way that batch mode has no
keyboard for."""


def emacs(settings: Path, text: str) -> list[str]:
    settings.write_text(text)
    # eglot-ensure waits for the first key.
    opened = ["example.py", "--eval", "(run-hooks 'post-command-hook)"]
    return [*EMACS, "-l", str(settings), *opened, "-l", str(STORY)]


def version(expression: str) -> str:
    done = subprocess.run(
        [*EMACS, "--eval", f"(princ {expression})"], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_package_installs_as_from_a_registry(tmp_path: Path) -> None:
    """ELPA and MELPA ask for a version, an address and documentation, and for no warnings."""
    forms = [
        f'(setq package-user-dir "{tmp_path / "elpa"}" byte-compile-error-on-warn t)',
        f'(package-install-file "{PACKAGE}")',
        "(require 'kernel-lsp)",
        "(require 'checkdoc)",
        "(require 'lisp-mnt)",
        f'(with-current-buffer (find-file-noselect "{PACKAGE}")'
        ' (princ (format "version %s url %s" (lm-header "version") (lm-header "url")))'
        " (checkdoc-current-buffer t))",
        "(princ (package-installed-p 'kernel-lsp))",
    ]
    command = [*EMACS, *(word for form in forms for word in ("--eval", form))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"version {__version__} url https://" in done.stdout and done.stdout.endswith("t")
    warned = [line for line in done.stderr.splitlines() if re.search(r"[Ww]arning|Error", line)]
    assert not warned


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
    assert f"is not installed: pip install {environment['HOME']}/kernel-lsp" in steps["MISSING"]


RECORDS = """;; Batch mode has no keyboard, so what Emacs is told of files keeps it from seeing processes end.
(require 'kernel-lsp)
(defvar offered nil)
(setq jsonrpc-default-request-timeout 120 lsp-response-timeout 120 compilation-ask-about-save nil)
(advice-add 'yes-or-no-p :override (lambda (&rest _) t))
(advice-add 'y-or-n-p :override (lambda (&rest _) t))
(advice-add 'completing-read :override
            (lambda (_prompt table &rest more)
              (setq offered (all-completions "" table))
              (if (equal (getenv "TYPED") "1") "python other.py" (nth 4 more))))
(defun until (condition reason)
  (let ((end (+ (float-time) (string-to-number (getenv "KL_PATIENCE_S")))))
    (while (not (or (funcall condition) (> (float-time) end))) (accept-process-output nil 0.05))
    (unless (funcall condition) (princ (concat reason "\n")) (kill-emacs 1))))
(until (lambda () (ignore-errors (kernel-lsp--execute "kernel-lsp.status" (make-hash-table)))) "NO SERVER")
(goto-char (point-max))
(insert "# typed, and not saved yet\n")
(call-interactively #'kernel-lsp-record)
(with-current-buffer "*kernel-lsp record*"
  (until (lambda () (string-match-p "^recorded: 1 target" (buffer-string))) "NOTHING RECORDED"))
(princ (format "OFFERED %s\nDONE\n" (string-join offered ", ")))
(kill-emacs 0)
"""


@pytest.mark.parametrize(
    ("client", "typed", "program"),
    [("eglot", "0", "train"), ("eglot", "1", "other"), ("lsp-mode", "0", "train")],
)
def test_a_program_is_chosen_and_recorded(
    client: str, typed: str, program: str, tmp_path: Path
) -> None:
    if not version(f'(or (locate-library "{client}") "")'):
        pytest.skip(f"{client} is not installed (scripts/setup does)")
    project, environment = program_of(tmp_path)
    settings, story = tmp_path / "init.el", tmp_path / "records.el"
    settings.write_text(blocks(PAGE, "elisp")[CLIENTS_OF.index(client)].text + ANSWERED)
    story.write_text(RECORDS)
    command = [*EMACS, "-l", str(settings), "train.py", "--eval", "(run-hooks 'post-command-hook)"]
    steps = live([*command, "-l", str(story)], project, {**environment, "TYPED": typed})
    assert steps["OFFERED"] == "train.py (script), other.py (script)"
    assert recorded_in(project) == [f"{program}.recorded.toml"]
    assert (project / "train.py").read_text().endswith("# typed, and not saved yet\n")


def package(name: str) -> str:
    return version(
        f"(package-version-join (package-desc-version (cadr (assq '{name} package-alist))))"
    )


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
        line.split("`")[1]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `kernel-lsp-")
    }
    assert shown == commands
