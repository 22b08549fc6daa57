"""Recorded programs in the user's data folder: an index of what each called, and the snapshots of
the calls.

    <data>/recordings/<program>/<time>/index.json    what was called, how often, what takes its time
                                       calls/*.call  snapshots
                                       complete      written last; without it it was cut off

Readable by the user alone. A new recording of a program replaces the last one when it is complete;
the oldest recordings go when all together take more than `MAX_BYTES`. Standard library only."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernel_lsp import foreign
from kernel_lsp.errors import WorkloadError
from kernel_lsp.files import replace_file
from kernel_lsp.records import Home

FOLDER, INDEX = "recordings", "index.json"
FORMAT = 1
_OF_PYTHON = re.compile(r"python[\d.]*$|cpython-|site-packages$|\.?venv$|envs$|editable")
"""Of a path below a hidden folder of a home: packages and interpreters (`.local/lib/python3.12`,
`.pyenv/versions/…/lib/python3.12`, `.venv`)."""
MAX_BYTES = 2 * 2**30
MAX_INDEX_BYTES = 32 * 2**20
StoreTable = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ProgramRecording:
    """One recorded run of a program."""

    folder: Path
    program: str
    root: str
    """The workspace."""
    created: str
    command: tuple[str, ...]
    elapsed_s: float
    seen: tuple[StoreTable, ...]
    """target, kind, calls, share, mean_us: one for each target, what takes most of the time first.
    A target is ``path::qualname``, its path absolute for installed packages, else from the
    root."""
    ways: tuple[StoreTable, ...]
    """The same with arguments, setting and snapshot: one for each way of calling a target."""
    devices: tuple[str, ...] = ()
    profile: StoreTable = field(default_factory=dict)
    """What the profiled step took; empty: none was profiled."""
    steps: StoreTable = field(default_factory=dict)
    """What its steps may be (workloads/recorder/limit.py); empty: it was recorded before that was
    looked at."""
    files: tuple[str, ...] = ()
    """That it read, outside of its workspace and of Python's own folders."""

    def snapshot(self, way: StoreTable) -> Path | None:
        """The file of a way's call; None where none was kept."""
        name = way.get("snapshot")
        plain = isinstance(name, str) and name == Path(name).name
        path = self.folder / "calls" / name if plain and isinstance(name, str) else None
        return path if path is not None and path.is_file() else None

    def path_of(self, entry: StoreTable) -> Path:
        """The file of an entry's target."""
        return Path(self.root) / str(entry["target"]).partition("::")[0]

    def qualname_of(self, entry: StoreTable) -> str:
        """The qualified name of an entry's target, without its file."""
        return str(entry["target"]).partition("::")[2]


def cloudpickle_file() -> str:
    """The file of our own cloudpickle, which the recorder and every opening process load by its
    path."""
    spec = importlib.util.find_spec("cloudpickle.cloudpickle")
    if spec is None or spec.origin is None:
        raise WorkloadError("cloudpickle is not installed", "install kernel-lsp again")
    return spec.origin


def folders_of(home: Home) -> tuple[Path, ...]:
    """What a confined process has to read to open a call. A home folder is never shown as a
    whole, and of its hidden folders only packages: a recording that somebody has signed says what
    its search path is."""
    named = (Path(entry).absolute() for entry in home.search_path)
    places = (place for place in named if place.is_dir() and _is_visible(place))
    files = (Path(home.snapshot).parent, Path(home.pickler).parent)
    read = tuple(map(Path, home.replay.files)) if home.replay is not None else ()
    return tuple(dict.fromkeys((*places, *files, *(path for path in read if path.exists()))))


def _is_visible(place: Path) -> bool:
    """Of its real path as well: a link may lead to keys."""
    user = Path.home()
    for path, base in ((place, user), (place.resolve(), user.resolve())):
        if base.is_relative_to(path):
            return False
        if path.is_relative_to(base):
            parts = path.relative_to(base).parts
            if parts[0].startswith(".") and not any(map(_OF_PYTHON.match, parts)):
                return False
    return True


def overlaid_by(home: Home | None) -> tuple[Path, ...]:
    """The workspace of a program that is run again: it may write there, and nothing of it stays."""
    if home is None or home.replay is None or Path.home().is_relative_to(home.replay.root):
        return ()
    return (Path(home.replay.root),)


def begin(data_dir: Path, root: Path, program: str) -> Path:
    """A new folder for a recording of this program. Raises WorkloadError."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    parent = data_dir / FOLDER / _key(root, program)
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (data_dir / FOLDER).chmod(0o700)
        folder = parent / stamp
        folder.mkdir(mode=0o700)
        (folder / "calls").mkdir(mode=0o700)
    except OSError as error:
        raise WorkloadError(
            f"calls cannot be kept below {parent}: {error.strerror or error}",
            "free space on that disk, or record with --no-snapshots",
        ) from error
    return folder


def finish(folder: Path, table: StoreTable) -> None:
    """Write the index; from now on this is the program's recording. Raises WorkloadError."""
    try:
        replace_file(folder / INDEX, json.dumps({**table, "format": FORMAT}).encode())
        (folder / "complete").touch(mode=0o600)
    except OSError as error:
        raise WorkloadError(
            f"the recording could not be written to {folder}: {error.strerror or error}",
            "free space on that disk, or record with --no-snapshots",
        ) from error
    for other in folder.parent.iterdir():
        if other.name < folder.name:
            shutil.rmtree(other, ignore_errors=True)
    _make_room(folder.parent.parent, keep=folder)


def recordings(data_dir: Path, root: Path | None = None) -> tuple[ProgramRecording, ...]:
    """Complete recordings of programs of this workspace (None: of all), the newest first."""
    found = [read(folder) for folder in _folders(data_dir.absolute() / FOLDER)]
    wanted = [one for one in found if one is not None and (root is None or Path(one.root) == root)]
    return tuple(sorted(wanted, key=lambda one: one.created, reverse=True))


def read(folder: Path) -> ProgramRecording | None:
    """The recording in that folder. None for what is incomplete, of another version, or damaged."""
    try:
        table = foreign.json_value(foreign.read_bytes(folder / INDEX, most=MAX_INDEX_BYTES))
        if not (folder / "complete").exists() or table["format"] != FORMAT:
            return None
        return ProgramRecording(
            folder=folder,
            program=str(table["program"]),
            root=_path(table["root"]),
            created=str(table["created"]),
            command=tuple(map(str, table["command"])),
            elapsed_s=float(table["elapsed_s"]),
            seen=tuple(filter(_is_entry, table["seen"])),
            ways=tuple(filter(_is_entry, table["ways"])),
            devices=tuple(map(str, table.get("devices", ()))),
            profile=dict(table.get("profile", {})),
            steps=dict(table.get("steps", {})),
            files=tuple(map(str, table.get("files", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _is_entry(found: Any) -> bool:
    """Whether it is what a recorder writes: the program that was recorded can write here as
    well."""
    if not isinstance(found, dict):
        return False
    numbers = (found.get(name) or 0 for name in ("share", "calls", "mean_us"))
    try:
        return bool(_path(found["target"])) and all(isinstance(n, (int, float)) for n in numbers)
    except (KeyError, TypeError, ValueError):
        return False


def _path(text: Any) -> str:
    """A text that the system takes as a path. Raises TypeError and ValueError."""
    if b"\0" in os.fsencode(text):
        raise ValueError("a path with a zero byte")
    return str(text)


def recorded_targets(data_dir: Path, path: Path) -> frozenset[str]:
    """Qualified names of a file's targets that a recorded call can be opened of."""
    names: set[str] = set()
    real = str(path.resolve())
    for folder in _folders(data_dir / FOLDER):
        with contextlib.suppress(OSError):
            names |= _recorded_names(folder, (folder / INDEX).stat().st_mtime_ns).get(
                real, frozenset()
            )
    return frozenset(names)


@functools.lru_cache(maxsize=64)
def _recorded_names(folder: Path, mtime_ns: int) -> dict[str, frozenset[str]]:
    """Real path -> names. Kept, because every file that is typed in is asked about again."""
    found: dict[str, set[str]] = {}
    recording = read(folder)
    for way in recording.ways if recording is not None else ():
        if recording is not None and recording.snapshot(way) is not None:
            found.setdefault(str(recording.path_of(way).resolve()), set()).add(
                recording.qualname_of(way)
            )
    return {path: frozenset(names) for path, names in found.items()}


def forget(data_dir: Path, root: Path | None = None) -> int:
    """Delete the recordings of a workspace, or all; how many went. Raises OSError."""
    if root is None:
        count = len(list(_folders(data_dir / FOLDER)))
        shutil.rmtree(data_dir / FOLDER, ignore_errors=False) if (
            data_dir / FOLDER
        ).exists() else None
        return count
    mine = recordings(data_dir, root)
    for one in mine:
        shutil.rmtree(one.folder)
    return len(mine)


def _key(root: Path, program: str) -> str:
    return hashlib.sha256(f"{root}\0{program}".encode()).hexdigest()[:16]


def _folders(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for program in sorted(parent.iterdir()):
            with contextlib.suppress(OSError):
                yield from sorted(program.iterdir())


def _make_room(parent: Path, keep: Path) -> None:
    """Remove the oldest recordings while all take too much."""
    folders = sorted(_folders(parent), key=lambda folder: folder.name)
    sizes = {
        folder: sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        for folder in folders
    }
    total = sum(sizes.values())
    for folder in folders:
        if total <= MAX_BYTES:
            break
        if folder != keep:
            shutil.rmtree(folder, ignore_errors=True)
            total -= sizes[folder]
