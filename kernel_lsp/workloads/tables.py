"""The TOML files of a workspace's ``.kernel-lsp`` folder, parsed once per change.

A recording says its format: an older or newer one is refused with what to do. What people write
has none."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

from kernel_lsp import foreign
from kernel_lsp.errors import WorkloadError

FOLDER = ".kernel-lsp"
FORMAT = 1
"""Of recordings; recording_file.py writes it, this module reads no other."""


def files(folder: str) -> list[Path]:
    """A workspace's files of workloads, what people wrote first."""
    found: list[Path] = []
    with contextlib.suppress(OSError):  # a path that is too long for this machine
        found += Path(folder, FOLDER).glob("*.toml")
    return sorted(found, key=lambda p: (p.name != "workloads.toml", p.name))


def tables(path: Path, name: str) -> list[dict[str, Any]]:
    """An array of tables of a file, empty when it has none. Raises WorkloadError with the way
    out."""
    entries = _parse(path).get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise WorkloadError(
            f"{path}: {name} is no array of tables", f"write [[{name}]] with two brackets"
        )
    return entries


def _parse(path: Path) -> dict[str, Any]:
    try:
        stat = path.stat()
        data = _read(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(
            f"{path} cannot be read: {error}", "make it a readable UTF-8 file"
        ) from error
    except ValueError as error:
        raise WorkloadError(f"{path} is no TOML: {error}", "correct that line") from error
    version = data.get("format", FORMAT)
    if version != FORMAT:
        program = str(data.get("program", "SCRIPT.py"))
        older = isinstance(version, int) and version < FORMAT
        words = f"python {program}" if program.endswith(".py") else f"python -m {program}"
        remedy = f"record it again: kernel-lsp record -- {words}" if older else "update kernel-lsp"
        raise WorkloadError(
            f"{path} has format {version!r}, this kernel-lsp reads {FORMAT}", remedy
        )
    return data


@functools.lru_cache(maxsize=16)
def _read(path: Path, mtime_ns: int, size: int) -> dict[str, Any]:
    """Kept, because a file is asked about once per target."""
    workspace = path.parent.parent
    return foreign.toml(foreign.read_text(path, most=foreign.MAX_TOML_BYTES, within=workspace))
