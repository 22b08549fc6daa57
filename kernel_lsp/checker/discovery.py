"""Which files are checked: what lies below the named folders, without what git or the settings
leave out.

A file that is named is checked whatever leaves it out, unless ``force_exclude`` says otherwise
(for tools that name every changed file). Settings are those of a file's project: the nearest
folder upward whose pyproject.toml has a ``[tool.kernel-lsp]``, else the nearest that looks like a
project, else what was named. Follows no links to folders. Not covered: a user's own list of
ignored files, which would make results differ between machines; what lies very deep."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp import config, files, foreign, rulesets
from kernel_lsp.config import Settings
from kernel_lsp.notebooks import SUFFIX
from kernel_lsp.patterns import Patterns

SUFFIXES = (".py", ".pyi")
MAX_IGNORE_BYTES = 256 * 1024
MAX_DEPTH = 128
"""Of folders below one that is named; 2,000 of them, each in the one before, took minutes."""
_MARKS = ("pyproject.toml", ".git", ".kernel-lsp")
_Ignores = tuple[tuple[int, Patterns], ...]
"""Of the .gitignore files around a folder, the outermost first: (length of where they stand,
patterns)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFile:
    """One file that is checked."""

    path: Path
    """As it was named or found."""
    root: Path
    """The folder of its project, absolute."""
    within: Path | None = None
    """The folder in which it was found, and which no link may lead out of."""

    @property
    def relative(self) -> Path:
        """The file's path, relative to the folder of its project."""
        path = self.path.absolute()
        return path.relative_to(self.root) if path.is_relative_to(self.root) else Path(path.name)


def find_files(path: Path) -> Iterator[Path]:
    """The path itself when it is a file, else the Python files below it, sorted; whatever git
    says of them."""
    if not path.is_dir():
        yield path
        return
    for folder, names, waiting, folders in _walk(path):
        yield from (folder / name for name in names if name.endswith(SUFFIXES))
        waiting += folders


class Projects:
    """The projects that files belong to, with their settings."""

    def __init__(self, load: Callable[[Path], Settings]) -> None:
        self._load = load
        self._roots: dict[Path, _Root] = {}
        self._settings: dict[Path, Settings] = {}

    def root(self, folder: Path, named: Path) -> Path:
        """The folder of the project that an absolute folder lies in; ``named`` where there is
        none."""
        unknown: list[Path] = []
        for one in (folder, *folder.parents):
            if one in self._roots:
                break
            unknown.append(one)
        for one in reversed(unknown):
            self._roots[one] = _root(one, self._roots.get(one.parent, _Root()))
        found = self._roots[folder]
        return found.configured or found.marked or named

    def settings(self, root: Path) -> Settings:
        """The settings of the project at that root, read once."""
        if root not in self._settings:
            self._settings[root] = self._load(root)
        return self._settings[root]

    def rules(self, root: Path) -> rulesets.Ruleset:
        """Which findings count in the project at that root."""
        return rulesets.of(self.settings(root))


def discover(
    paths: Iterable[Path], projects: Projects, *, force_exclude: bool = False
) -> list[FoundFile]:
    """The files and notebooks to check, each once, in order."""
    found: dict[Path, FoundFile] = {}
    for path in paths:
        listed = (
            _below(path, projects)
            if path.is_dir()
            else _name_patterns(path, projects, force_exclude)
        )
        for one in listed:
            found.setdefault(one.path, one)
    return list(found.values())


def _name_patterns(path: Path, projects: Projects, force_exclude: bool) -> Iterator[FoundFile]:
    folder = path.absolute().parent
    one = FoundFile(path=path, root=projects.root(folder, folder))
    if not force_exclude:
        yield one
        return
    git_says = projects.settings(one.root).respect_gitignore and _is_ignored(
        path.absolute(), _around(folder)
    )
    if not git_says and not projects.rules(one.root).excludes(one.relative):
        yield one


def _below(path: Path, projects: Projects) -> Iterator[FoundFile]:
    named = path.absolute()
    start = _around(named.parent)
    if _is_ignored(named, start):
        start = ()  # who names a folder wants what is in it
    ignores: dict[Path, _Ignores] = {path: start}
    for folder, names, waiting, folders in _walk(path):
        absolute = folder.absolute()
        root = projects.root(absolute, named)
        rules = projects.rules(root)
        here = (
            _with_own(ignores.pop(folder), absolute)
            if projects.settings(root).respect_gitignore
            else ()
        )
        for name in names:
            if not name.endswith((*SUFFIXES, SUFFIX)):
                continue
            one = FoundFile(path=folder / name, root=root, within=path)
            if not (_names(here, (absolute / name).as_posix()) or rules.excludes(one.relative)):
                yield one
        for inside in folders:
            within = inside.absolute()
            excluded = within.is_relative_to(root) and rules.excludes(
                within.relative_to(root), folder=True
            )
            if not excluded and not _names(here, f"{within.as_posix()}/"):
                ignores[inside] = here
                waiting.append(inside)


def _walk(path: Path) -> Iterator[tuple[Path, list[str], list[Path], list[Path]]]:
    """(folder, names of its files, folders that are still to come, folders in it): who walks puts
    those of the last into the last but one that shall be looked through. The other way round: the
    last comes first."""
    # os.walk calls itself before Python 3.12: thousands of nested folders ended it.
    waiting = [path]
    deepest = len(path.parts) + MAX_DEPTH
    while waiting:
        folder = waiting.pop()
        if len(folder.parts) > deepest:
            continue
        _, folders, names = next(os.walk(folder), ("", [], []))
        inside = [folder / name for name in sorted(folders, reverse=True)]
        kept = [one for one in inside if not (files.is_skipped(one) or one.is_symlink())]
        yield folder, sorted(names), waiting, kept


# --- projects -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Root:
    configured: Path | None = None
    """The nearest folder upward whose pyproject.toml speaks of us; none above a repository
    counts."""
    marked: Path | None = None
    """The nearest that looks like a project."""


def _root(folder: Path, around: _Root) -> _Root:
    marks = {mark for mark in _MARKS if (folder / mark).exists()}
    configured = around.configured if ".git" not in marks else None
    if "pyproject.toml" in marks and config.has_section(folder):
        configured = folder
    return _Root(configured, folder if marks else around.marked)


# --- git ------------------------------------------------------------------------------------


def _around(folder: Path) -> _Ignores:
    """The patterns that count in a folder: of its repository's folders down to it."""
    chain = [folder, *folder.parents]
    top = next((at for at, one in enumerate(chain) if (one / ".git").exists()), None)
    found: _Ignores = ()
    for one in reversed(chain[: top + 1] if top is not None else []):
        found = _with_own(found, one)
    return found


def _with_own(ignores: _Ignores, folder: Path) -> _Ignores:
    """The patterns around, and what stands in the folder itself."""
    for file in (folder / ".git" / "info" / "exclude", folder / ".gitignore"):
        if not file.exists():
            continue
        with contextlib.suppress(OSError, ValueError):
            lines = foreign.read_text(file, most=MAX_IGNORE_BYTES).splitlines()
            ignores = (*ignores, (len(folder.as_posix().rstrip("/")) + 1, Patterns(lines)))
    return ignores


def _is_ignored(path: Path, ignores: _Ignores) -> bool:
    """Whether git leaves out a path, or a folder around it."""
    folders = [f"{folder.as_posix()}/" for folder in path.parents]
    return _names(ignores, f"{path.as_posix()}{'/' if path.is_dir() else ''}") or any(
        _names(ignores, folder) for folder in folders
    )


def _names(ignores: _Ignores, path: str) -> bool:
    """What the innermost .gitignore says that says anything."""
    for base, patterns in reversed(ignores):
        if len(path) > base and (said := patterns.verdict(path[base:])) is not None:
            return said
    return False
