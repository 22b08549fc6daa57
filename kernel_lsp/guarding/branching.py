"""Accepted rewrites as a branch of the repository: one commit with the rewritten files, their
evidence and a test for each.

The commit is built with an index of its own, so what is checked out, what is staged and what is
stashed stay as they are. Git runs no hook, filter or monitor that the repository names. Nothing is
pushed. A file is taken only where the rewrites are all that tells it from the last commit: what
else somebody is working on belongs to another branch. Not covered: what the commit's
message and the request for review say (`presenter/guarding.py`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kernel_lsp import foreign
from kernel_lsp.errors import KernelLspError
from kernel_lsp.guarding.judging import latest
from kernel_lsp.guarding.reverting import without
from kernel_lsp.records import Acceptance

TEST_FOLDER = Path("tests")
SIGNED = ("", ".signed", ".signed.sig")
"""What lies beside evidence that was signed."""
MAX_FILE_BYTES = 16 * 1024**2
TIMEOUT_S = 60.0
_OFF = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.autocrlf=false", "gc.auto=0")

_PERSON = (
    *(f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")),
    *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"),
)
"""What of the environment says who commits; the rest of GIT_* could name another repository."""

FoundAcceptances = Sequence[tuple[Path, Acceptance]]


class BranchError(KernelLspError):
    """The branch could not be made; nothing was changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewriteBranch:
    name: str
    commit: str
    base: str
    """The commit that it begins with."""
    files: tuple[str, ...]
    """Of the commit, from the repository's root."""


class Repository:
    """The git repository around a workspace."""

    def __init__(self, workspace: Path) -> None:
        found = shutil.which("git")
        if found is None:
            raise BranchError("git is not installed", "install it")
        self._git, self.workspace = str(Path(found).absolute()), workspace.resolve()
        around = (self.workspace, *self.workspace.parents)
        self.root = next((one for one in around if (one / ".git").exists()), self.workspace)
        try:
            self.base = self.ask("rev-parse", "--verify", "HEAD^{commit}")
        except BranchError as error:
            remedy = "name a folder of a git repository that has a commit"
            raise BranchError(f"{workspace}: {error.cause}", remedy) from None

    def run(
        self, *arguments: str, given: bytes = b"", index: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """The finished process of one git command, with the user's hooks and settings off;
        ``index`` stands for the repository's own index."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        environment |= {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
        environment["GIT_WORK_TREE"] = str(self.root)  # whatever its core.worktree says
        # Git before 2.44 fetches what a partial clone lacks all the same, by a program that the
        # repository may name (ext::…): no protocol is allowed, whatever its configuration says.
        environment["GIT_ALLOW_PROTOCOL"] = "none"
        environment |= {name: os.environ[name] for name in _PERSON if name in os.environ}
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        command = [self._git, *(part for one in _OFF for part in ("-c", one)), *arguments]
        try:
            return subprocess.run(
                command,
                cwd=self.root,
                input=given,
                env=environment,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BranchError(f"git {arguments[0]}: {error}") from error

    def ask(self, *arguments: str, given: bytes = b"", index: Path | None = None) -> str:
        """What git says. Raises BranchError with its last line."""
        done = self.run(*arguments, given=given, index=index)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["no answer"]
            raise BranchError(f"git {arguments[0]}: {said[-1]}")
        return done.stdout.decode(errors="surrogateescape").strip()

    def refuse_links(self, reference: str) -> None:
        """Raises BranchError where a link may lead what git writes for the reference elsewhere: it
        appends to a log, with a name that the repository says, through whatever link is there."""
        top = self.root / self.ask("rev-parse", "--git-common-dir")
        for kind in (reference, f"logs/{reference}"):
            parts = PurePosixPath(kind).parts
            for number in range(len(parts)):
                if (top / Path(*parts[: number + 1])).is_symlink():
                    raise BranchError(f".git/{kind} is a link", "remove it, or clone again")

    def path(self, file: Path) -> str:
        """The path of a file of the workspace, from the repository's root."""
        return (self.workspace / file).relative_to(self.root).as_posix()

    def content(self, file: Path) -> bytes | None:
        """The file as the last commit has it; None where it has none."""
        done = self.run("cat-file", "blob", f"{self.base}:{self.path(file)}")
        return None if done.returncode else done.stdout

    def mode(self, path: str) -> str:
        """The file's mode in the commit that the branch begins at; that of a plain file where it is
        new."""
        return self.ask("ls-tree", self.base, "--", f":(top,literal){path}")[:6] or "100644"


def choose_uncommitted(
    repository: Repository, found: FoundAcceptances
) -> list[tuple[Path, Acceptance]]:
    """Rewrites whose evidence the last commit does not have."""
    return [
        (file, one)
        for file, one in found
        if repository.content(_relative(repository, file)) != _read(repository, file)
    ]


def make_branch(
    repository: Repository, chosen: FoundAcceptances, *, name: str, message: str
) -> RewriteBranch:
    """One commit upon the last one, and a new branch that names it. Raises BranchError."""
    repository.ask("check-ref-format", "--branch", name)
    if not repository.run("rev-parse", "--verify", "--quiet", f"refs/heads/{name}").returncode:
        raise BranchError(f"there is a branch {name} already", "name another: --branch NAME")
    files = _contents(repository, chosen)
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-") as folder:
        index = Path(folder) / "index"
        repository.ask("read-tree", repository.base, index=index)
        for path, content in files.items():
            blob = repository.ask("hash-object", "-w", "--no-filters", "--stdin", given=content)
            entry = f"{repository.mode(path)},{blob},{path}"
            repository.ask("update-index", "--add", "--cacheinfo", entry, index=index)
        tree = repository.ask("write-tree", index=index)
    try:
        commit = repository.ask(
            "commit-tree", tree, "-p", repository.base, "-F", "-", given=message.encode()
        )
    except BranchError as error:
        remedy = "tell git who you are: git config user.name NAME, git config user.email ADDRESS"
        raise BranchError(error.cause, remedy) from None
    repository.refuse_links(f"refs/heads/{name}")
    repository.ask("update-ref", f"refs/heads/{name}", commit, "0" * len(commit))
    return RewriteBranch(name=name, commit=commit, base=repository.base, files=tuple(files))


def _contents(repository: Repository, chosen: FoundAcceptances) -> dict[str, bytes]:
    by_file: dict[Path, list[Acceptance]] = {}
    for _, one in sorted(chosen, key=lambda pair: pair[1].accepted):
        by_file.setdefault(Path(one.path), []).append(one)
    files = {}
    for file, mine in by_file.items():
        files[repository.path(file)] = _rewritten(repository, file, mine)
    for evidence, _ in chosen:
        for suffix in SIGNED:
            beside = evidence.with_name(evidence.name + suffix)
            if not suffix or beside.exists():
                files[repository.path(_relative(repository, beside))] = _read(repository, beside)
    for evidence, one in latest(chosen):
        test = TEST_FOLDER / f"test_rewrite_of_{_words(evidence.stem)}.py"
        kept = _relative(repository, evidence)
        files[repository.path(test)] = make_test(one, kept.as_posix()).encode()
    return files


def _rewritten(repository: Repository, file: Path, mine: Sequence[Acceptance]) -> bytes:
    """A file as it is now; refused where more than these rewrites is new in it."""
    now, was = _read(repository, repository.workspace / file), repository.content(file)
    try:
        text: str | None = now.decode()
    except UnicodeDecodeError:
        raise BranchError(f"{file} is not UTF-8", "save it as UTF-8") from None
    for one in reversed(mine):
        text = without(text, one) if text is not None else None
    if (text or "").encode() != (was or b""):
        raise BranchError(
            f"{file} differs from the last commit by more than its accepted rewrites",
            "commit or stash the other changes first",
        )
    return now


def make_test(one: Acceptance, evidence: str) -> str:
    """The source of a test that judges one rewrite as `kernel-lsp guard` does."""
    return f'''"""A rewrite computes what its original computes: values, gradients and shapes.

Made by `kernel-lsp pr`. The original is in the history of the file, and in the evidence, which also
says what it is called with. Speed is not asked for here: `kernel-lsp guard` does that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = {one.path!r}
TARGET = {one.qualname!r}
EVIDENCE = {evidence!r}


def test_the_rewrite_computes_what_the_original_computes():
    pytest.importorskip("kernel_lsp", reason="kernel-lsp is not installed")
    guard = [sys.executable, "-m", "kernel_lsp.cli", "guard", "--format", "json"]
    environment = {{**os.environ, "KERNEL_LSP_CONSENT": "always"}}  # tests run this code anyway
    guard += ["--unsigned", "--", FILE]
    done = subprocess.run(guard, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout, done.stderr
    rewrites = json.loads(done.stdout)["rewrites"]
    holding = {{one["acceptance"]: (one["holding"], one["detail"]) for one in rewrites}}
    assert EVIDENCE in holding, f"the evidence of {{TARGET}} is gone: delete this test too"
    how, detail = holding[EVIDENCE]
    if how in ("unknown", "reverted", "gone"):
        pytest.skip(detail)
    assert how in ("pays", "right", "slow"), detail
'''


def _relative(repository: Repository, file: Path) -> Path:
    return file.resolve().relative_to(repository.workspace)


def _read(repository: Repository, file: Path) -> bytes:
    try:
        return foreign.read_bytes(file, most=MAX_FILE_BYTES, within=repository.workspace)
    except OSError as error:
        raise BranchError(f"{file} cannot be read: {error.strerror or error}") from error


def _words(name: str) -> str:
    return re.sub(r"\W+", "_", name)
