"""Accepted rewrites of installed packages: what a library is with its patch now; removing one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.files import is_skipped, read_source, write_source
from kernel_lsp.guarding.store import acceptances
from kernel_lsp.patching import making, store
from kernel_lsp.patching.store import PACKAGE, FoundPatch
from kernel_lsp.records import Acceptance
from kernel_lsp.snapshots.store import recordings


@dataclass(frozen=True, kw_only=True, slots=True)
class Patched:
    """An installed file, and what it is with its patch module."""

    path: Path
    original: str
    rewritten: str


def find_patched(found: FoundPatch, python: str, data_dir: Path) -> Patched | str:
    """Why not, in words, where the patch does not apply here: the program runs unpatched then.
    Raises PatchError where the patch module is damaged."""
    module = found.patch.library.module
    files = (*_recorded_call(data_dir, module), *_files(python, module))
    path = next((one for one in files if one.is_file()), None)
    if path is None:
        return f"{module} is not installed for {python}, and no recorded program has imported it"
    library = store.library_of(path, module)
    if library != found.patch.library:
        pinned = found.patch.library
        if (library.package, library.version) == (pinned.package, pinned.version):
            return f"the file of {module} is not the one that was rewritten: it runs unpatched"
        installed = f"{library.package} {library.version}"
        return f"{installed} is installed, the rewrite is of {pinned.version}: it runs unpatched"
    original = read_source(path).text
    rewritten = making.rewrite_class(original, read_source(found.path).text)
    return Patched(path=path, original=original, rewritten=rewritten)


def _recorded_call(data_dir: Path, module: str) -> Iterator[Path]:
    """Where recorded programs have imported a module from, the newest first."""
    for recording in recordings(data_dir):
        yield from (recording.path_of(way) for way in recording.ways if way.get("module") == module)


def _files(python: str, module: str) -> Iterator[Path]:
    """Where an environment may have a module's file."""
    for site in sorted(Path(python).parent.parent.glob("lib*/python*/site-packages")):
        place = site.joinpath(*module.split("."))
        yield from (place.with_suffix(".py"), place / "__init__.py")


def remove(root: Path, found: FoundPatch, names: Collection[str]) -> list[Path]:
    """Remove targets from a patch module; what was changed or removed. Raises OSError."""
    source = read_source(found.path)
    left = making.without(source.text, names)
    changed = [found.path]
    if left is None:
        found.path.unlink()
        changed += _without_package(root, found.path.parent)
    else:
        write_source(found.path, left, source.encoding)
    place = found.path.relative_to(root).as_posix()
    for file, acceptance in acceptances(root):
        if not isinstance(acceptance, Acceptance) or acceptance.path != place:
            continue
        if left is None or acceptance.qualname.partition(".")[0] in names:
            file.unlink()
            changed.append(file)
    return changed


def _without_package(root: Path, package: Path) -> list[Path]:
    """Where no patch module is left: the package itself, and the line of scripts that calls it."""
    start = package / "__init__.py"
    if list(package.glob("[!_]*.py")) or not start.is_file():
        return []
    start.unlink()
    shutil.rmtree(package / "__pycache__", ignore_errors=True)
    with contextlib.suppress(OSError):  # a file of somebody's is in it
        package.rmdir()
    return [start, *_without_lines(root)]


def _without_lines(root: Path) -> Iterator[Path]:
    for number, (folder, names, files) in enumerate(os.walk(root)):
        if number >= store.MAX_FOLDERS:
            return
        names[:] = [name for name in names if not is_skipped(Path(folder, name))]
        for path in (Path(folder, name) for name in files if name.endswith(".py")):
            with contextlib.suppress(OSError, SyntaxError, UnicodeDecodeError):
                source = read_source(path)
                if (
                    PACKAGE in source.text
                    and (text := store.without_line(source.text)) != source.text
                ):
                    write_source(path, text, source.encoding)
                    yield path
