"""Every command of docs/ is run: here, as it stands, or by the test that the comment above it
names. README's picture shows what `kernel-lsp optimize` prints of the same example.

A person's machine: a clone at ~/kernel-lsp, a project with the example, and a fresh environment
into which the page's own `pip install` puts kernel-lsp. Its dependencies and pip are borrowed from
ours."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from pages import Block, blocks
from stories import CLIENTS, EXAMPLE, ROOT, home_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
INSTALL = "pip install ~/kernel-lsp"
ALSO_ONE = ("kernel-lsp doctor", "kernel-lsp check")
"""They exit with 1 when something is missing (here a GPU), or found."""
READS = ("kernel-lsp doctor", "kernel-lsp check", "kernel-lsp skills", "kernel-lsp models list")
"""They change nothing: once is enough for all pages on which the same was done before."""
WITH_EXAMPLE = ("vscode", "neovim", "emacs")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment in which the first command of every page has been run."""
    base = tmp_path_factory.mktemp("installed")
    venv.create(base / "env")
    (site,) = (base / "env").glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (base / "kernel-lsp").symlink_to(ROOT)
    programs = base / "env" / "bin"
    (programs / "pip").write_text(f'#!/bin/sh\nexec {programs}/python -m pip "$@"\n')
    (programs / "pip").chmod(0o755)
    env = {**os.environ, "HOME": str(base), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", INSTALL], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (programs / "kernel-lsp").exists()
    assert list(site.glob("kernel_lsp/skills/*/SKILL.md")), "the wheel lacks the skills"
    return programs


def test_an_installation_is_one_package_and_its_trainer_runs(
    installed: Path, tmp_path: Path
) -> None:
    (site,) = installed.parent.glob("lib/python*/site-packages")
    ours = {one.name.partition("-")[0] for one in site.iterdir()} - {
        "borrowed.pth",
        "pip",
        "setuptools",
    }
    assert ours - {"_distutils_hack", "distutils", "pkg_resources", "__pycache__"} == {"kernel_lsp"}
    assert (site / "kernel_lsp" / "py.typed").exists()
    (tmp_path / "trainer.py").write_text("raise SystemExit('another package of that name')")
    command = [installed / "kernel-lsp", "train", "tool", "generated", "--", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and "--count" in done.stdout, done.stdout + done.stderr


def here(page: Path) -> list[Block]:
    return [block for block in blocks(page, "sh") if not block.note]


@pytest.fixture(scope="session")
def already() -> set[tuple[str, ...]]:
    """Commands that a page has run here, each after those before it that change something."""
    return set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_run(
    page: Path, tmp_path: Path, judged: Path, installed: Path, already: set[tuple[str, ...]]
) -> None:
    project, environment = home_of(tmp_path, judged)
    environment["PATH"] = f"{installed}{os.pathsep}{environment['PATH']}"
    commands = [command for block in here(page) for command in block.commands]
    before: tuple[str, ...] = ()
    for command in commands:
        if command == INSTALL:
            continue  # once for all pages: `installed`
        reads = command.startswith(READS) or command.endswith("--show-prompt")
        if not (reads and (*before, command) in already):
            says_something(command, project, environment)
        already.add((*before, command))
        before = before if reads else (*before, command)


def says_something(command: str, project: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    allowed = {0, 1} if command.startswith(ALSO_ONE) else {0}
    assert done.returncode in allowed, f"{command}\n{done.stdout}{done.stderr}"
    assert done.stdout, command
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_not_run_here_has_a_reason(page: Path) -> None:
    for block in blocks(page, "sh"):
        if block.note.startswith("not run: "):
            continue
        if block.note:
            found = re.fullmatch(r"run by (\S+): (.+)", block.note)
            assert found, block.note
            assert found[2] in (ROOT / found[1]).read_text(), block.note
            assert found[2] in block.text, block.note


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_example_is_the_one_of_the_stories(name: str) -> None:
    assert [block.text for block in blocks(DOCS / "how-to" / f"{name}.md", "python")] == [EXAMPLE]


def test_the_recipes_are_the_files() -> None:
    page = DOCS / "how-to" / "other-editors.md"
    assert [b.text for b in blocks(page, "toml")] == [
        (CLIENTS / "helix" / "languages.toml").read_text()
    ]
    files = ("kate/settings.json", "zed/settings.json", "sublime/LSP.sublime-settings")
    assert [b.text for b in blocks(page, "json")] == [(CLIENTS / one).read_text() for one in files]


@pytest.mark.parametrize(
    "page", [*PAGES, *TOP, CLIENTS / "README.md"], ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"(?:\]\(|^\[[^\]]+\]: )([^)#\s]+)", page.read_text(), re.M):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_python_is_what_the_pages_say() -> None:
    assert sys.version_info >= (3, 11)
    assert all("3.11" in page.read_text() for page in PAGES if page.stem in ("neovim", "emacs"))


def test_the_picture_is_what_is_printed(tmp_path: Path, judged: Path) -> None:
    project, _ = home_of(tmp_path, judged)
    picture = runpy.run_path(str(DOCS / "picture.py"))
    drawn = picture["svg"](picture["printed"](project, tmp_path / "data"))
    shown, committed = picture["words"](drawn), picture["words"](picture["PICTURE"].read_text())
    assert {"verdict", "faster", "speedup"} <= shown
    assert shown == committed, "run: python docs/picture.py"
