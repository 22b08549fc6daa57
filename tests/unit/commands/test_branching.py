"""``kernel-lsp pr``: a branch with accepted rewrites, beside whatever is checked out."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernel_lsp.commands.app import app
from kernel_lsp.guarding import acceptances
from kernel_lsp.guarding.branching import make_test
from kernel_lsp.records import Acceptance
from tests.unit.guarding.test_guarding import BEFORE, rewritten, write

BRANCH = "kernel-lsp/rewrites"


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.com", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose hooks, monitors and filters must not be run, with one rewrite accepted."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "ada")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "ada@example.com")
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "model.py").write_text(BEFORE)
    (root / "other.py").write_text("x = 1\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "begin")
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\ncat\n")
    spy.chmod(0o755)
    hooks = root / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("reference-transaction", "post-commit", "pre-commit", "post-index-change"):
        (hooks / hook).symlink_to(spy)
    (root / ".gitattributes").write_text("* filter=spy diff=spy\n")
    for name in ("filter.spy.clean", "filter.spy.smudge", "diff.spy.textconv", "core.fsmonitor"):
        git(root, "config", name, str(spy))
    write(root, "model.py", BEFORE, rewritten(BEFORE), rewritten(BEFORE))
    (tmp_path / "ran").unlink(missing_ok=True)
    return root


def make(root: Path, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["pr", str(root), *more])
    return done.exit_code, done.output


def test_a_branch_holds_the_rewrite_its_evidence_a_test_and_a_description(root: Path) -> None:
    (root / "other.py").write_text("x = 2\n")
    before = {path: path.read_bytes() for path in root.glob("*.py")}
    code, said = make(root, "--json", "--description", str(root.parent / "text.md"))
    assert code == 0, said
    made = json.loads(said)
    files = made["branch"]["files"]
    test = next(file for file in files if file.startswith("tests/"))
    assert sorted(files) == sorted(git(root, "diff", "--name-only", "main", BRANCH).split())
    assert len(files) == 3
    assert git(root, "show", f"{BRANCH}:model.py") == rewritten(BEFORE)
    compile(git(root, "show", f"{BRANCH}:{test}"), test, "exec")
    assert "| Model | model.py | A GPU | eager | 2.00 (1.80 to 2.20, 95%) |" in made["description"]
    assert (root.parent / "text.md").read_text() == made["description"]
    assert git(root, "log", "-1", "--format=%B", BRANCH).startswith("Rewrite Model\n")
    assert git(root, "branch", "--show-current") == "main\n"
    assert git(root, "diff", "--cached", "--name-only") == ""
    assert {path: path.read_bytes() for path in root.glob("*.py")} == before


def test_nothing_that_the_repository_names_is_run(root: Path) -> None:
    assert make(root)[0] == 0
    assert not (root.parent / "ran").exists()


@pytest.mark.torch
def test_an_older_git_fetches_nothing_by_a_program_that_the_repository_names(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial clone, whose missing files are fetched when they are asked for; git before 2.44
    knows no GIT_NO_LAZY_FETCH."""
    older = tmp_path / "bin" / "git"
    older.parent.mkdir()
    older.write_text(f'#!/bin/sh\nunset GIT_NO_LAZY_FETCH\nexec {shutil.which("git")} "$@"\n')
    older.chmod(0o755)
    blob = git(root, "rev-parse", "HEAD:model.py").strip()
    (root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for name, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::touch {tmp_path}/ran",
        "protocol.ext.allow": "always",
    }.items():
        git(root, "config", name, value)
    monkeypatch.setenv("PATH", f"{older.parent}:{os.environ['PATH']}")
    make(root)
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_called_like_an_option_is_none_in_its_test(root: Path) -> None:
    ((_, one),) = acceptances(root)
    assert isinstance(one, Acceptance)
    text = make_test(replace(one, path="--unsigned"), "x.json")
    assert text.index('"--", FILE') > text.index('"--unsigned"')


def test_its_test_fails_where_the_rewrite_became_wrong(root: Path) -> None:
    assert make(root)[0] == 0
    place = root.parent / "review"
    git(root, "worktree", "add", "-q", str(place), BRANCH)
    model = place / "model.py"
    model.write_text(model.read_text().replace("SCALE = math.exp(0)", "SCALE = math.exp(1)"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {**os.environ, "KERNEL_LSP_DATA_DIR": str(place.parent / "data")}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert "1 failed" in done.stdout


def test_other_changes_in_the_same_file_are_refused(root: Path) -> None:
    (root / "model.py").write_text(rewritten(BEFORE) + "more = 1\n")
    code, said = make(root)
    assert code == 2
    assert "differs from the last commit by more" in said
    assert git(root, "branch", "--list", BRANCH) == ""


@pytest.mark.parametrize(
    "name", ["main", "--force", "a..b", "../../HEAD", "HEAD:x", "", "a b", "-d"]
)
def test_a_name_that_is_none_or_taken_is_refused(root: Path, name: str) -> None:
    before = git(root, "for-each-ref")
    assert make(root, f"--branch={name}")[0] == 2
    assert git(root, "for-each-ref") == before


def test_without_news_or_repository_it_says_so(root: Path, tmp_path: Path) -> None:
    assert make(root)[0] == 0
    assert make(root)[0] == 2  # the branch is there
    git(root, "reset", "-q", "--hard", BRANCH)
    code, said = make(root, "--branch", "again")
    assert (code, said) == (1, "no accepted rewrite that is not committed yet\n")
    bare = tmp_path / "elsewhere"
    bare.mkdir()
    assert make(bare)[0] == 2


@pytest.mark.parametrize("place", ["logs/refs/heads/kernel-lsp", "refs/heads/kernel-lsp"])
@pytest.mark.parametrize("whole", [False, True])
def test_links_of_the_repositorys_lead_nothing_out_of_it(
    root: Path, place: str, whole: bool
) -> None:
    """Git appends to a log through a link, and the name of who commits is the repository's: in a
    `.bashrc` that is a command."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "rewrites").write_text("mine\n")
    link = root / ".git" / place
    if whole:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside)
    else:
        link.mkdir(parents=True)
        (link / "rewrites").symlink_to(outside / "rewrites")
    code, said = make(root)
    assert (outside / "rewrites").read_text() == "mine\n"
    assert [path.name for path in outside.iterdir()] == ["rewrites"]
    assert code == 2 and "link" in said


@pytest.mark.parametrize("tree", ["..", "../.."])
def test_a_repository_is_the_folder_that_has_its_git(root: Path, tree: str) -> None:
    git(root, "config", "core.worktree", tree)
    code, said = make(root, "--json")
    assert code == 0, said
    assert "model.py" in json.loads(said)["branch"]["files"]
