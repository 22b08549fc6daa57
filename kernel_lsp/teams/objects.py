"""The team's folder of files: each release packed as one file that is called by its hash.

The folder is any that fsspec opens: a path, ``file://``, ``s3://``, ``gs://``, ``sftp://`` (each
needs its own package). What comes from it is believed only where its hash is the one that the
registry names; it is unpacked without links, devices, absolute or parent paths, and bounded. Not
covered: who signed it (signatures.py)."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from kernel_lsp import foreign
from kernel_lsp.errors import TeamAway, TeamError

MAX_BYTES = 80_000_000
"""Of one release packed: a policy has at most 60 MB (models/manifest.py)."""
MAX_FILES = 200
MAX_DEPTH = 16
IGNORED = frozenset(["__pycache__", ".DS_Store"])


def pack(folder: Path) -> bytes:
    """An archive that is the same for the same files. Raises TeamError."""
    buffer = io.BytesIO()
    files = sorted(path for path in folder.rglob("*") if not IGNORED & set(path.parts))
    if len(files) > MAX_FILES:
        raise TeamError(f"{folder} has more than {MAX_FILES} files", "name a smaller folder")
    total = 0
    try:
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path in files:
                if path.is_symlink() or not (path.is_dir() or path.is_file()):
                    raise TeamError(f"{path} is a link or a device", "put the file itself there")
                if path.is_dir():
                    continue
                content = foreign.read_bytes(path, most=MAX_BYTES - total)
                total += len(content)
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))
    except (OSError, ValueError) as error:
        raise TeamError(f"{folder} cannot be packed: {error}", "mend or remove the file") from error
    return buffer.getvalue()


def digest_of(content: bytes) -> str:
    """The content's hash, 64 digits: its name in the folder."""
    return hashlib.sha256(content).hexdigest()


def unpack(content: bytes, folder: Path) -> None:
    """Into a folder that is there and empty. Raises TeamError, and may leave a part of it then."""
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for count, entry in enumerate(archive):
                total += entry.size
                if count >= MAX_FILES or total > MAX_BYTES:
                    raise TeamError("the release has too many files, or too large ones", _PUSH)
                place = PurePosixPath(entry.name)
                outside = place.is_absolute() or ".." in place.parts or "\\" in entry.name
                outside = outside or len(place.parts) > MAX_DEPTH
                source = archive.extractfile(entry) if entry.isreg() else None
                if outside or source is None:
                    raise TeamError(f"the release has {entry.name[:100]!r} in it", _PUSH)
                target = folder.joinpath(*place.parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    file.write(source.read())
    except (tarfile.TarError, OSError, ValueError) as error:
        raise TeamError(f"the release cannot be unpacked: {error}", _PUSH) from error


class Objects:
    """A folder of packed releases."""

    def __init__(self, url: str) -> None:
        """Raises TeamError for a kind of folder that cannot be opened here, or TeamAway."""
        try:
            import fsspec
        except ImportError as error:
            raise TeamError(
                "fsspec is not installed", f"{sys.executable} -m pip install fsspec"
            ) from error
        self._url = url
        if urlsplit(url).password:
            raise TeamError(
                "the folder's address has a password in it, which everybody would read",
                "put it into fsspec's own configuration, ~/.config/fsspec",
            )
        try:
            # An instance of its own: fsspec keeps an earlier one's connection, also a dead one.
            self._files, self._root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
        except (ImportError, ValueError) as error:
            cause = f"{url} cannot be opened: {_line(error)}"
            raise TeamError(cause, "install the package that fsspec names for it") from error
        except Exception as error:  # some connect at once, and each kind raises its own
            raise TeamAway(f"{url} cannot be reached: {_line(error)}", _AWAY) from error

    def put(self, content: bytes) -> str:
        """Returns the hash it is called by. Raises TeamAway."""
        digest = digest_of(content)
        try:
            self._files.makedirs(self._root, exist_ok=True)
            place = self._place(digest)
            known = self._files.exists(place) and self._files.size(place) == len(content)
            if not known:  # a hash as its name: two who push the same write the same
                self._files.pipe_file(place, content)
        except Exception as error:
            raise TeamAway(f"{self._url} takes nothing: {_line(error)}", _AWAY) from error
        return digest

    def get(self, digest: str) -> bytes:
        """The release's packed file. Raises TeamAway, or TeamError where something else lies
        there."""
        try:
            content = self._read(self._place(digest))
        except TeamError:
            raise
        except Exception as error:
            raise TeamAway(f"{self._url} has no {digest[:12]}: {_line(error)}", _AWAY) from error
        if digest_of(content) != digest:
            raise TeamError(f"{self._place(digest)} has another content than was pushed", _PUSH)
        return content

    def _read(self, place: str) -> bytes:
        """A member may lay a pipe or a device there, or something that grows."""
        if self._files.size(place) > MAX_BYTES:
            raise TeamError(f"{place} is too large to be a release", _PUSH)
        if isinstance(self._files.protocol, tuple) and "file" in self._files.protocol:
            return foreign.read_bytes(Path(place), most=MAX_BYTES)
        content: Any = self._files.cat_file(place, start=0, end=MAX_BYTES + 1)
        return bytes(content)

    def remove(self, digest: str) -> None:
        """What is gone already is gone. Raises TeamAway."""
        try:
            if self._files.exists(self._place(digest)):
                self._files.rm_file(self._place(digest))
        except Exception as error:
            raise TeamAway(f"{self._url} removes nothing: {_line(error)}", _AWAY) from error

    def _place(self, digest: str) -> str:
        return f"{self._root.rstrip('/')}/{digest}.tar"


_AWAY = "see that the folder can be reached and written; what is here already stays in use"
_PUSH = "have it withdrawn (`kernel-lsp team rollback`) and pushed anew"


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
