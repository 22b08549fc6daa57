"""Patch packages of a workspace: which there are, writing one, removing from one.

    kernel_lsp_patches/__init__.py       runtime.py, as it is
                       tinylib_blocks.py the rewrites of tinylib.blocks (making.py)

They lie where the program's imports are found, and belong into version control. Standard library
only."""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from kernel_lsp import parsing
from kernel_lsp.files import PACKAGE_FOLDERS, is_installed, is_skipped, read_source
from kernel_lsp.patching import runtime
from kernel_lsp.patching.making import Patch, PatchedLibrary, PatchError, make, read, rewrite_class

PACKAGE = "kernel_lsp_patches"
LINE = f"import {PACKAGE}; {PACKAGE}.apply()"
MAX_FOLDERS = 10_000
"""Folders of a workspace that are looked through."""


def is_own(path: Path, root: Path) -> bool:
    """Whether a file is the workspace's own, which may be edited."""
    return path.is_relative_to(root) and not is_installed(path)


def library_of(path: Path, module: str) -> PatchedLibrary:
    """How the module of an installed file is pinned. Raises OSError."""
    package, version = _distribution(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return PatchedLibrary(module=module, sha256=digest, package=package, version=version)


def module_of(path: Path) -> str | None:
    """The name that an installed file is imported under; None: it lies in no folder of packages."""
    for folder in path.parents:
        if folder.name in PACKAGE_FOLDERS:
            parts = path.relative_to(folder).with_suffix("").parts
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


def _distribution(path: Path) -> tuple[str | None, str | None]:
    """Name and version of the package that a package manager has installed the file with."""
    site = next((folder for folder in path.parents if folder.name in PACKAGE_FOLDERS), None)
    if site is None:
        return None, None
    line = path.relative_to(site).as_posix() + ","
    for info in sorted(site.glob("*.dist-info")):
        try:
            if any(
                one.startswith(line) for one in (info / "RECORD").read_text("utf-8").splitlines()
            ):
                headers = HeaderParser().parsestr((info / "METADATA").read_text("utf-8"))
                return headers["Name"], headers["Version"]
        except (OSError, UnicodeDecodeError):
            continue
    return None, None


# --- what there is --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundPatch:
    """A patch module of a workspace."""

    path: Path
    patch: Patch


def find_patches(root: Path) -> list[FoundPatch]:
    """Every patch module below a folder, by path."""
    files = (file for folder in _packages(root) for file in sorted(folder.glob("[!_]*.py")))
    return [one for file in files if (one := at(file)) is not None]


def at(path: Path) -> FoundPatch | None:
    """What a file says, if it is a patch module."""
    if path.parent.name != PACKAGE:
        return None
    try:
        patch = read(read_source(path).text)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    return FoundPatch(path=path, patch=patch) if patch is not None else None


def _packages(root: Path) -> Iterator[Path]:
    for number, (folder, names, _) in enumerate(os.walk(root)):
        if number >= MAX_FOLDERS:
            return
        names[:] = sorted(name for name in names if not is_skipped(Path(folder, name)))
        if Path(folder).name == PACKAGE:
            yield Path(folder)


# --- where one belongs ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a program finds patches, and which of its files calls them."""

    folder: Path
    """Of the package's parent."""
    script: Path | None = None
    """The program's own file that runs first; None: it is not known."""

    def file(self, library: PatchedLibrary) -> Path:
        """The file that holds the patch of that library."""
        return self.folder / PACKAGE / (re.sub(r"\W", "_", library.module) + ".py")

    @property
    def start(self) -> Path:
        """The patch package's `__init__.py`, which a program imports."""
        return self.folder / PACKAGE / "__init__.py"


def place_of(root: Path, folder: Path, command: Sequence[str]) -> Place:
    """Returns where patch modules belong for a program: beside its script, or in ``folder`` for
    ``python -m``, because its imports are found there; the folder alone where no script of the
    workspace ``root`` is named. ``command``: as it is run in ``folder``."""
    for number, word in enumerate(command):
        path = folder / word
        if path.suffix == ".py" and path.is_file() and is_own(path, root):
            return Place(folder=path.parent, script=path)
        if word == "-m" and number + 1 < len(command):
            name = folder.joinpath(*command[number + 1].split("."))
            for script in (name.with_suffix(".py"), name / "__main__.py"):
                if script.is_file() and is_own(script, root):
                    return Place(folder=folder, script=script)
    return Place(folder=folder if folder.is_relative_to(root) else root)


def begin_patch(place: Place, library: PatchedLibrary, original: str) -> str:
    """What a library's file is with the patch module that the workspace has of it."""
    known = at(place.file(library))
    if known is None or known.patch.library != library:
        return original
    try:
        return rewrite_class(original, read_source(known.path).text)
    except PatchError:  # it is written anew
        return original


def files(place: Place, library: PatchedLibrary, original: str, edited: str) -> dict[Path, str]:
    """The patch package's files, and the script with its line where one is known. Raises
    PatchError."""
    for path in (place.start.parent, place.start, place.file(library)):
        if path.is_symlink():  # a repository may have committed it, to have another file replaced
            raise PatchError(f"{path} is a link", "put a folder of files in its place")
    made = {place.file(library): make(library, original, edited), place.start: start_text()}
    if place.script is not None:
        text = read_source(place.script).text
        line = with_line(text)
        if line is not None and line != text:
            made[place.script] = line
    return made


def start_text() -> str:
    """What the package's own file holds."""
    return Path(runtime.__file__).read_text(encoding="utf-8")


def with_line(text: str) -> str | None:
    """A script that calls the patches, behind its first imports; None: it cannot be read. A script
    that names the package has the line already."""
    if PACKAGE in text:
        return text
    try:
        body = parsing.parse_text(text).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    end = _end_of_imports(body)
    lines = re.split(r"(?<=\n)", text)
    eol = "\r\n" if "\r\n" in text else "\n"
    if end and not lines[end - 1].endswith("\n"):
        lines[end - 1] += eol
    if end == 0 and lines[0].startswith("#"):  # an interpreter's line, an encoding
        end = 1
    return "".join([*lines[:end], LINE + eol, *lines[end:]])


def _end_of_imports(body: Sequence[ast.stmt]) -> int:
    """Lines up to the end of a module's docstring and imports, and of what begins before it."""
    anchors: list[ast.stmt] = [one for one in body if isinstance(one, ast.Import | ast.ImportFrom)]
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        anchors.append(body[0])
    end = max((one.end_lineno or one.lineno for one in anchors), default=0)
    return max([end, *(one.end_lineno or 0 for one in body if one.lineno <= end)])


def without_line(text: str) -> str:
    """A script without the line, as `with_line` has written it."""
    return re.sub(rf"^{re.escape(LINE)}\r?\n", "", text, flags=re.MULTILINE)
