"""All skills of a user: found, loaded, and frozen into a `Skillbook` with a digest.

A bad skill is reported and left out; it never stops the others. Of two skills with one name the
first folder's wins, and the built-in folder comes first, so a workspace cannot replace a built-in
skill unseen.

The rewrite.py of a workspace's skill is workspace code: pass ``workspace`` to `folders` only when
the user allowed that folder's code to run. Such skills carry ``source="workspace"``."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_lsp import foreign
from kernel_lsp.config import default_data_dir
from kernel_lsp.errors import SignatureError, Unsigned
from kernel_lsp.membership import skills_folder
from kernel_lsp.records import Skill, SkillMatch, SkillProblem
from kernel_lsp.signatures import Keyring, refuses_unsigned
from kernel_lsp.skillbook import executable, format, learned

if TYPE_CHECKING:
    from kernel_lsp.skillbook.recall import Index


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillFolder:
    """A folder of skill folders."""

    path: Path
    source: str
    """built-in, user, learned, team, workspace or configured; becomes `Skill.source`."""
    required: bool = False
    """Whether its absence is a problem."""


@dataclass(frozen=True, kw_only=True)
class Skillbook:
    """An unchangeable snapshot of the library."""

    skills: tuple[Skill, ...] = ()
    problems: tuple[SkillProblem, ...] = ()
    digest: str = ""
    """Hash of every loaded skill's files: two books with one digest behave alike."""

    def get(self, name: str) -> Skill | None:
        """The skill of that name; None: there is none."""
        return next((skill for skill in self.skills if skill.name == name), None)

    def select(self, query: str | Iterable[str], limit: int = 20) -> tuple[SkillMatch, ...]:
        """Skills whose words occur in the query, best first (BM25, see recall.py)."""
        return self._index.select(query, limit)

    @cached_property
    def _index(self) -> Index:
        # numpy: 12 MB that listing skills does not need.
        from kernel_lsp.skillbook.recall import Index

        return Index(self.skills)


def built_in_folder() -> Path:
    """Inside the installed package, or beside it in a source checkout."""
    package = Path(__file__).parent.parent
    installed = package / "skills"
    return installed if installed.is_dir() else package.parent / "skills"


def folders(
    configured: Sequence[str] = (), *, workspace: Path | None = None, data_dir: Path | None = None
) -> tuple[SkillFolder, ...]:
    """The folders where skills live: built in, the user's own, learned ones that were verified, the
    team's, the workspace's (see above), and configured ones."""
    data = data_dir or Path(default_data_dir())
    found = [
        SkillFolder(path=built_in_folder(), source="built-in", required=True),
        SkillFolder(path=data / "skills", source="user"),
    ]
    if snapshot := learned.newest(data):
        found.append(SkillFolder(path=snapshot, source="learned"))
    if shared := skills_folder(data):
        found.append(SkillFolder(path=shared, source="team"))
    if workspace is not None:
        found.append(SkillFolder(path=workspace / "skills", source="workspace"))
    for entry in configured:
        path = (workspace or Path()) / Path(entry).expanduser()
        inside = workspace is not None and path.resolve().is_relative_to(workspace.resolve())
        source = "workspace" if inside else "configured"
        found.append(SkillFolder(path=path, source=source, required=True))
    return tuple(found)


def load(where: Iterable[SkillFolder | Path], *, data_dir: Path | None = None) -> Skillbook:
    """Read every skill folder. Never raises on what it finds there.

    ``data_dir``: where the user's trusted signers lie; a skill whose signature does not hold is
    left out, and in CI one of somebody else's that has none."""
    keyring = Keyring(data_dir or default_data_dir())
    skills: dict[str, Skill] = {}
    problems: list[SkillProblem] = []
    for place in where:
        folder = (
            place
            if isinstance(place, SkillFolder)
            else SkillFolder(path=place, source="configured")
        )
        for candidate in _candidates(folder, problems):
            if (doubt := _doubt(candidate, folder.source, keyring)) is not None:
                problems.append(doubt)
                continue
            skill, wrong = format.examine(candidate, folder.source)
            problems += wrong
            if skill is not None and skill.name in skills:
                if Path(skill.path).resolve() != Path(skills[skill.name].path).resolve():
                    problems.append(_duplicate(skill, skills[skill.name]))
            elif skill is not None:
                skills[skill.name] = skill
    ordered = tuple(skills[name] for name in sorted(skills))
    return Skillbook(skills=ordered, problems=tuple(problems), digest=_digest(ordered))


def _candidates(folder: SkillFolder, problems: list[SkillProblem]) -> list[Path]:
    """Every folder in it that is not hidden; a file (README.md) is no skill."""
    remedy = "correct `skill_folders` in the settings"
    if not folder.path.is_absolute():
        cause = "relative, and no workspace is known"
        problems.append(
            SkillProblem(path=str(folder.path), field="skill_folders", cause=cause, remedy=remedy)
        )
        return []
    try:
        found = sorted(
            p for p in folder.path.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))
        )
        # `skills` is a common name: a workspace's may hold Python packages, which are no broken
        # skills.
        return [p for p in found if folder.source != "workspace" or (p / "SKILL.md").exists()]
    except OSError as error:
        if folder.required or not isinstance(error, FileNotFoundError):
            if folder.source == "built-in":
                remedy = "reinstall kernel-lsp: its own skills are gone"
            cause = f"cannot be read: {error.strerror}"
            problems.append(
                SkillProblem(path=str(folder.path), field="folder", cause=cause, remedy=remedy)
            )
        return []


def _doubt(folder: Path, source: str, keyring: Keyring) -> SkillProblem | None:
    """Why nobody vouches for a skill of somebody else's; None: somebody does, or nobody need to."""
    if source not in ("configured", "workspace", "team"):
        return None
    try:  # which release counts, a team decides, and may go back
        keyring.verify(folder, kind="skill", allow_rollback=source == "team")
    except Unsigned as error:
        if source != "team" and not refuses_unsigned():
            return None
        cause, remedy = (
            f"{error.cause}: left out in CI",
            "have it signed, or set KERNEL_LSP_UNSIGNED=yes",
        )
    except SignatureError as error:
        cause, remedy = error.cause, error.remedy or ""
    else:
        return None
    return SkillProblem(path=str(folder), field="signature", cause=cause, remedy=remedy)


def _duplicate(skill: Skill, first: Skill) -> SkillProblem:
    return SkillProblem(
        path=skill.path,
        field="name",
        cause=f"{skill.name!r} is already the name of {first.path}, which is used",
        remedy="rename one of the two",
    )


def _content(path: Path) -> str:
    """What cannot be read is told apart from what is not there, and hides no file beside it."""
    try:
        return hashlib.sha256(foreign.read_bytes(path, most=executable.MAX_BYTES)).hexdigest()
    except OSError as error:
        return f"unreadable: {error.errno}"


def _digest(skills: Sequence[Skill]) -> str:
    total = hashlib.sha256()
    for skill in skills:
        with contextlib.suppress(OSError):  # gone since it was loaded: the watcher will load again
            for path in sorted(p for p in Path(skill.path).iterdir() if p.suffix in (".md", ".py")):
                total.update(f"{skill.name}/{path.name} {_content(path)}\n".encode())
    return total.hexdigest()[:20]
