"""A copy of a workspace in which a program runs with edited files, and whose writes are thrown
away.

Everything that reads the files (imports, linecache, Triton, child processes) reads the edited
text, and what the program writes beside its code stays in the copy. Virtual environments are links
to the originals, and so are large files for which there is no room, those that were written last
first in the copy: a checkpoint is, a data set may not be. A run that writes to such a link is the
last one. A copy that a killed command leaves is removed at the next start (scratch.py). Not
covered: what a program writes by absolute paths outside of its workspace."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernel_lsp import leftovers, scratch
from kernel_lsp.errors import WorkloadError

LEFT_OUT = {
    ".git",
    ".hg",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".kernel-lsp",
}
LARGE_BYTES = 16 * 2**20
MAX_BYTES, SHARE_OF_DISK = 2 * 2**30, 1 / 16
"""Of large files in one copy, where the file system cannot share their blocks: there is a copy for
each variant of the edits, about six."""
FICLONE = 0x40049409
"""The request of ioctl_ficlone(2): a file that shares another's blocks until one is written."""


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """A copy of ``root``; removed at the end of a ``with`` block."""

    root: Path
    copy: Path
    linked: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    """Large files of the workspace itself to which the copy has links: when each was written last
    (ns), and its size in bytes."""

    @staticmethod
    def of(root: Path, texts: Mapping[Path, str]) -> Mirror:
        """A copy of the folder to run. ``texts``: files of the workspace and what they hold
        instead. Raises WorkloadError."""
        copy = scratch.make("program").resolve() / root.name
        mirror = Mirror(root=root, copy=copy)
        try:
            mirror = replace(mirror, linked=_copy_tree(root, copy))
            for path, text in texts.items():
                mirror._write(path, text)
        except OSError as error:
            mirror.remove()
            raise WorkloadError(
                f"the workspace cannot be copied to {copy.parent}: {error.strerror or error}",
                "free space there, or set TMPDIR to a folder with more",
            ) from error
        return mirror

    def _write(self, path: Path, text: str) -> None:
        """Nowhere but in the copy. Raises WorkloadError where a link leads out of it, OSError."""
        place = self.place(path)
        if not Path(os.path.realpath(place.parent)).is_relative_to(self.copy):
            self.remove()
            raise WorkloadError(
                f"{path} lies outside of the workspace, by a link, and is not edited",
                "open the folder that it lies in",
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_text(text, encoding="utf-8", newline="")

    def check_linked(self) -> None:
        """Raises WorkloadError when a large file of the workspace itself was written."""
        for path, before in self.linked.items():
            if _stamp(path) != before:
                raise WorkloadError(
                    f"a run of the program has written to {path}: it is too large for the copy in "
                    "which timed runs write, and no other run is begun",
                    "let the program write elsewhere, or set TMPDIR to a folder with more room",
                )

    def place(self, path: Path) -> Path:
        """Where a file or folder of the workspace lies in the copy; others stay where they are."""
        return self.copy / path.relative_to(self.root) if path.is_relative_to(self.root) else path

    def original(self, path: Path) -> Path:
        """What a file or folder of the copy is a copy of; others stay where they are."""
        return self.root / path.relative_to(self.copy) if path.is_relative_to(self.copy) else path

    def words(self, command: Sequence[str], folder: Path) -> list[str]:
        """The command as it is written in ``folder``, with paths of the workspace in the copy.

        What it starts is the original where the copy has none, as an interpreter of the
        workspace's own environment."""
        first, *others = command
        program = folder / first  # an absolute one stays as it is
        if "/" in first:
            copied = self.place(program)
            in_environment = any(_is_environment(one) for one in program.parents)
            first = str(program if in_environment or not copied.exists() else copied)
        return [
            first,
            *(str(self.place(Path(word))) if Path(word).is_absolute() else word for word in others),
        ]

    def remove(self) -> None:
        """Delete the copy of the program."""
        leftovers.remove(self.copy.parent)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *failure: object) -> None:
        self.remove()


def _is_environment(folder: Path) -> bool:
    """A virtual environment: too large for a copy, and scripts of the workspace may name it."""
    return (folder / "pyvenv.cfg").is_file()


def _copy_tree(root: Path, copy: Path) -> dict[Path, tuple[int, int]]:
    """The large files that are links to the originals. Links within the workspace lead to the copy,
    or a program would read and write the originals by them. In a loop, since a repository may be
    nested deeper than calls."""
    waiting, links, large = [root], list[Path](), list[Path]()
    while waiting:
        folder = waiting.pop()
        here = copy / folder.relative_to(root)
        here.mkdir(parents=folder == root)
        for entry in os.scandir(folder):
            path, target = Path(entry.path), here / entry.name
            if _is_environment(path):
                target.symlink_to(path)
            elif entry.name in LEFT_OUT:
                continue
            elif entry.is_symlink():
                links.append(path)
            elif entry.is_dir():
                waiting.append(path)
            elif entry.is_file():
                if entry.stat().st_size > LARGE_BYTES:
                    large.append(path)
                else:
                    shutil.copy2(path, target)
    linked = _copy_large(large, root, copy)
    real_root = os.path.realpath(root)
    for path in links:
        leads = Path(os.path.realpath(path))
        if leads.is_relative_to(real_root):
            copied = copy / leads.relative_to(real_root)
            leads = copied if os.path.lexists(copied) else leads
        (copy / path.relative_to(root)).symlink_to(leads)
    return linked


def _copy_large(files: Sequence[Path], root: Path, copy: Path) -> dict[Path, tuple[int, int]]:
    """Those for which there is no room, which are links; what was written last is copied first,
    since a program that writes its checkpoints has written them before."""
    room = min(MAX_BYTES, int(SHARE_OF_DISK * shutil.disk_usage(copy).free))
    linked = {}
    for path in sorted(files, key=lambda one: -one.stat().st_mtime_ns):
        target, size = copy / path.relative_to(root), path.stat().st_size
        if _clone(path, target):
            continue
        if size <= room:
            room -= size
            shutil.copy2(path, target)
        else:
            linked[path] = _stamp(path)
            target.symlink_to(path)
    return linked


def _clone(path: Path, target: Path) -> bool:
    """Make ``target`` a copy that takes no room until it is written (Btrfs, XFS); False where the
    file system cannot."""
    try:
        import fcntl  # Windows has none

        with path.open("rb") as original, target.open("wb") as made:
            fcntl.ioctl(made, FICLONE, original.fileno())
    except (ImportError, OSError):
        with contextlib.suppress(OSError):
            target.unlink()
        return False
    shutil.copystat(path, target)
    return True


def _stamp(path: Path) -> tuple[int, int]:
    try:
        known = path.stat()
    except OSError:  # it is gone
        return 0, 0
    return known.st_mtime_ns, known.st_size
