"""Reading and replacing files without losing anything of the user's.

Source is decoded as Python decodes it (PEP 263, byte order mark) and written back in the same
encoding with the same line endings; a write replaces the file in one step.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import tempfile
import tokenize
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp import foreign

MAX_SOURCE_BYTES = 16 * 1024**2
"""Far above any program that a person wrote; analysis reads less (documents.MAX_CHARS)."""
SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "site-packages", "node_modules", "venv", "env", "build", "dist"}
)
"""A folder that a caller names is looked through whatever its name."""
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Folders of files that belong to a package manager, wherever an environment lies."""
_SCRIPT_FOLDERS = frozenset({"bin", "Scripts"})
_OF_HOST_NAMES = frozenset({"punycode", "idna"})
"""Encodings that no program is written in: they take quadratic time, a minute for 800 kB."""
MAX_NAME_BYTES = 255
"""Of a file's name, on the file systems that we know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    text: str
    """Line endings as in the file."""
    encoding: str


def read_source(path: Path, *, within: Path | None = None) -> SourceFile:
    """A Python file's text. Raises OSError, SyntaxError (bad encoding comment) or
    UnicodeDecodeError.

    ``within``: the workspace, which no link may lead out of.
    """
    raw = foreign.read_bytes(path, most=MAX_SOURCE_BYTES, within=within)
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    if codecs.lookup(encoding).name in _OF_HOST_NAMES:
        raise SyntaxError(f"{encoding} is an encoding of host names")
    return SourceFile(text=raw.decode(encoding), encoding=encoding)


def write_source(path: Path, text: str, encoding: str) -> None:
    """Replace ``path``; UnicodeEncodeError when the text does not fit the file's encoding."""
    replace_file(path, text.encode(encoding))


def replace_file(path: Path, content: bytes) -> None:
    """Write in one step: a reader sees the old content or the new, never a part. Raises OSError.

    Follows links, so that the link stays one, and keeps the file's permissions.
    """
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileNotFoundError):
            Path(name).chmod(path.stat().st_mode & 0o7777)
        Path(name).replace(path)
    except BaseException:  # also KeyboardInterrupt: no temporary file may stay behind
        Path(name).unlink(missing_ok=True)
        raise


def is_plain_name(name: str) -> bool:
    """Whether a file of that name lies directly in the folder that it is put into: no path,
    nothing hidden, nothing that a terminal would not show. Names in what others have written are
    checked by it."""
    return (
        0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES
        and not name.startswith(".")
        and name.isprintable()
        and not set(name) & set("/\\:")
    )


def is_skipped(folder: Path) -> bool:
    """Whether a folder inside of a workspace holds other people's code or machine output, by its
    look."""
    if folder.name.startswith(".") or folder.name in SKIPPED_FOLDERS:
        return True
    try:
        return any((folder / mark).exists() for mark in _ENVIRONMENTS)
    except OSError:
        return True


def is_installed(path: Path) -> bool:
    """Whether a file belongs to an installed package, so that it is never written: by its own place
    or, where a link of a workspace leads there, by its real one."""
    return installed_file(path) is not None


def installed_file(path: Path) -> Path | None:
    """The file of an installed package that a path names, as that package's folder has it (uv may
    have a link there); None: it is no such file."""
    path = path.absolute()
    for place in (path, path.resolve()):
        if not PACKAGE_FOLDERS.isdisjoint(place.parts) or _is_script_of_environment(place):
            return place
    return None


def _is_script_of_environment(path: Path) -> bool:
    folder = path.parent
    if folder.name not in _SCRIPT_FOLDERS:
        return False
    try:
        return any((folder.parent / mark).exists() for mark in _ENVIRONMENTS)
    except OSError:
        return True


def keep_newest(folder: Path, most: int, suffix: str = ".json") -> None:
    """Remove the files of a kind written first. Raises OSError, also when another process does the
    same."""
    files = sorted(folder.glob(f"*{suffix}"), key=lambda file: file.stat().st_mtime)
    for file in files[:-most]:
        file.unlink(missing_ok=True)
