"""Offers for whole programs in the user's data folder: the command line writes them, editors show
them.

    <data>/offers/<workspace>/<program>.json    what is offered; absent: nothing is
                              <program>.md      the page that says what was found

Readable by the user alone. Both are replaced in one step. Standard library only."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp import wire
from kernel_lsp.files import keep_newest, replace_file
from kernel_lsp.records import ProgramOffer

FOLDER = "offers"
MAX_PROGRAMS = 16
"""Of one workspace: the newest ones."""
MAX_BYTES = 4 * 2**20


def write(
    data_dir: Path, root: Path, command: Sequence[str], offer: ProgramOffer | None, page: str
) -> Path:
    """Replace what is known of a program; the page's path. Raises OSError."""
    place = _place(data_dir, root, command)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    (data_dir / FOLDER).chmod(0o700)
    replace_file(place.with_suffix(".md"), page.encode())
    if offer is None:
        place.unlink(missing_ok=True)
    else:
        replace_file(place, json.dumps(wire.to_json(offer)).encode())
    for suffix in (".json", ".md"):
        keep_newest(place.parent, MAX_PROGRAMS, suffix)
    return place.with_suffix(".md")


def read(data_dir: Path, root: Path) -> tuple[ProgramOffer, ...]:
    """What is offered in a workspace, the newest first; what is damaged or of another version is
    left out."""
    found = []
    for path in _folder(data_dir, root).glob("*.json"):
        with contextlib.suppress(OSError):
            status = path.stat()
            if status.st_size <= MAX_BYTES:
                found.append(_parse(path, status.st_ino, status.st_mtime_ns, status.st_size))
    known = [one for one in found if one is not None]
    return tuple(sorted(known, key=lambda one: one.created, reverse=True))


@functools.lru_cache(maxsize=4 * MAX_PROGRAMS)
def _parse(path: Path, inode: int, mtime_ns: int, size: int) -> ProgramOffer | None:
    """An editor asks at every move of the cursor: a file is read once, while it stays the same one.
    None: damaged, or of another version. Raises OSError, which is not kept."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        return wire.from_json(ProgramOffer, json.loads(path.read_bytes()))
    return None


def page_of(data_dir: Path, root: Path, command: Sequence[str]) -> Path:
    """Where the page of a program lies, if it was measured."""
    return _place(data_dir, root, command).with_suffix(".md")


def forget(data_dir: Path, root: Path | None = None) -> None:
    """Delete offers and pages of a workspace, or all. Raises OSError."""
    folder = data_dir / FOLDER if root is None else _folder(data_dir, root)
    if folder.exists():
        shutil.rmtree(folder)


def digest(text: str) -> str:
    """The hash by which a file's text is known again; line endings count."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _folder(data_dir: Path, root: Path) -> Path:
    return data_dir / FOLDER / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]


def _place(data_dir: Path, root: Path, command: Sequence[str]) -> Path:
    name = hashlib.sha256("\0".join(command).encode()).hexdigest()[:16]
    return _folder(data_dir, root) / f"{name}.json"
