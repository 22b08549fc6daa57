"""Our own code as one line of text, for a machine on which nothing of ours is installed.

Only what a gate and its processes import goes there, and the pure Python packages that a gate needs
(psutil is compiled: where ours does not run, that machine needs its own). Standard library only."""

from __future__ import annotations

import base64
import functools
import importlib.util
import io
import tarfile
from pathlib import Path

import kernel_lsp

FOLDERS = ("records", "devices", "interpreter", "confinement", "evaluator", "snapshots")
"""Of our package, besides the modules at its top."""
PACKAGES = ("platformdirs", "filelock", "psutil", "pynvml")
PACKAGES_FOLDER = "packages"


@functools.cache
def shipment() -> bytes:
    """A tar archive, compressed, in base64, with a newline at its end."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        ours = Path(kernel_lsp.__file__).parent
        for path in (*ours.glob("*.py"), *(p for name in FOLDERS for p in _code(ours / name))):
            archive.add(path, f"kernel_lsp/{path.relative_to(ours)}", filter=_plain)
        for name in PACKAGES:
            for path in _package(name):
                inside = path.relative_to(_root(name))
                archive.add(path, f"{PACKAGES_FOLDER}/{inside}", filter=_plain)
    return base64.b64encode(content.getvalue()) + b"\n"


def _code(folder: Path) -> list[Path]:
    """Sources and compiled extensions."""
    return [path for suffix in ("py", "so") for path in sorted(folder.rglob(f"*.{suffix}"))]


def _package(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # without it less is known of the GPU's other users
        return []
    path = Path(spec.origin)
    return _code(path.parent) if path.name == "__init__.py" else [path]


def _root(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin)
    return path.parent.parent if path.name == "__init__.py" else path.parent


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without who owns it here."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o600
    return entry
