"""How a benchmark ends: its record is printed or kept, with when, where and with what it was made.

Not covered: what was measured. A record is a JSON object of the benchmark's own; those of one
benchmark are read again by it, so their keys stay (results/)."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernel_lsp.files import replace_file


def circumstances(device: str | None = None) -> dict[str, Any]:
    """Date, machine and load; ``device`` ("cuda", "cpu") adds its name and torch's versions.

    Imports torch only where a device is named and torch is loaded already, so that a benchmark of a
    process without torch stays one."""
    found: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
    if device is not None:
        found["device"] = device_name(device)
        found["versions"] = versions("torch", "triton")
    return found


def device_name(device: str) -> str:
    """The GPU's name as torch says it where ``device`` is "cuda", else ``device`` itself."""
    torch = sys.modules.get("torch")
    if device != "cuda" or torch is None:
        return device
    return str(torch.cuda.get_device_name())


def versions(*packages: str) -> dict[str, str]:
    """Package -> its version; packages that are not installed are left out."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_record(out: Path | None, record: Any) -> None:
    """Writes the record as JSON, in one step, so that a reader never sees half of it; nothing where
    no file is named."""
    if out is not None:
        replace_file(out, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def print_record(out: Path | None, record: Any) -> None:
    """Prints the record, and writes it where a file is named."""
    print(json.dumps(record, indent=1, ensure_ascii=False))
    write_record(out, record)
