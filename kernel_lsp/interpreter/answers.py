"""What interpreters have said about themselves, kept on disk until something has changed that they
spoke of.

    keep(folder, python, answer, places, files)     after an interpreter was asked
    recalled(folder, python) -> the answer, or None

Asking takes an import of torch and one of triton (2.3 s of CPU time). An answer counts while all
of these are as they were: the interpreter's own file and its pyvenv.cfg, every folder of its path
with its .pth files, the files of torch and triton, the variables that either of them reads, the
GPUs, their driver and partitions, and the start of the machine. What no file tells (a GPU that is
lost) is found out after a day, or by `doctor`. Nothing is kept that a repair may change, or where
a GPU is not of a kind whose changes can be seen here. Standard library only. Runs nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.files import keep_newest, replace_file

FOLDER = "probes"
MAX_AGE_S = 24 * 3600.0
MAX_FILES = 50
VERSION = 2
VARIABLES = (
    "PYTHON", "LD_", "CUDA", "NVIDIA_", "TORCH", "PYTORCH", "TRITON", "HIP", "ROC", "HSA_", "GPU_",
    "ZE_",
    "VIRTUAL_ENV", "CONDA", "HOME",
)  # fmt: skip
ACCELERATORS = ("nvidia", "kfd", "dxg")
"""How the names of device files begin that torch.cuda needs: NVIDIA's, AMD's, Windows' below
Linux."""
DEVICES, DRIVER = Path("/dev"), Path("/proc/driver/nvidia")
BOOT = Path("/proc/sys/kernel/random/boot_id")


def recall_probe(folder: Path, python: str) -> dict[str, Any] | None:
    """What this interpreter would say again."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        path = _place(folder, python)
        if not 0.0 <= time.time() - path.stat().st_mtime < MAX_AGE_S:
            return None
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["state"] == _state(python, kept["places"], kept["files"]):
            return dict(kept["answer"])
    return None


def keep(
    folder: Path, python: str, answer: dict[str, Any], places: Sequence[str], files: Sequence[str]
) -> None:
    """Keeps what an interpreter has answered, with the state of the files that it depends on.
    ``places``: the interpreter's path; ``files``: where torch and triton lie. Never raises."""
    if not _seen_to_change(answer):
        return
    with contextlib.suppress(OSError, TypeError):  # a full disk: it is asked again
        state = _state(python, places, files)
        kept = {"state": state, "places": list(places), "files": list(files), "answer": answer}
        path = _place(folder, python)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(kept).encode())
        keep_newest(path.parent, MAX_FILES)


def _place(folder: Path, python: str) -> Path:
    """An editor's variables and a terminal's are seldom the same: each has its own file."""
    asked = json.dumps([str(Path(python).absolute()), _variables()])
    return folder / FOLDER / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"


def _variables() -> dict[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}


def _seen_to_change(answer: dict[str, Any]) -> bool:
    """Whether `_state` shows whatever could make this answer another one."""
    if not answer.get("torch") or not BOOT.exists():
        return False
    return (DRIVER / "version").exists() if answer.get("cuda") else not _accelerators()


def _state(python: str, places: Iterable[str], files: Iterable[str]) -> str:
    """Equal as long as everything is as it was."""
    binary = Path(python)
    # A virtual environment's pyvenv.cfg is in one of them.
    homes = (binary.parent, binary.parent.parent)
    state = {
        "version": VERSION,
        "python": [python, str(binary.resolve()), _mark(binary.resolve())],
        "homes": [_mark(home / "pyvenv.cfg") for home in homes],
        "places": [[place, _mark(Path(place)), _pth(Path(place))] for place in places if place],
        "files": [[file, _mark(Path(file))] for file in files],
        "variables": _variables(),
        "devices": [_accelerators(), _text(DRIVER / "version"), _tree(DRIVER)],
        "boot": _text(BOOT),
    }
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()  # a variable may hold a secret


def _mark(path: Path) -> list[int] | None:
    with contextlib.suppress(OSError):
        found = path.stat()
        return [found.st_ino, found.st_size, found.st_mtime_ns]
    return None


def _pth(place: Path) -> dict[str, Any]:
    """Files that lengthen the path: editing one leaves its folder as it was."""
    return (
        {file.name: _mark(file) for file in sorted(place.glob("*.pth"))} if place.is_dir() else {}
    )


def _accelerators() -> list[str]:
    return sorted(path.name for path in DEVICES.glob("*") if path.name.startswith(ACCELERATORS))


def _tree(folder: Path) -> list[str]:
    """GPUs, and the partitions (MIG) of each, as the driver lists them."""
    parts = (folder / "gpus", folder / "capabilities")
    return sorted(str(path.relative_to(folder)) for part in parts for path in part.rglob("*"))


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return None
