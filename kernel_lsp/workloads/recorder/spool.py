"""One process's part of a recording as one JSON file, replaced in one step."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

FORMAT = 1


def write(
    path: Path,
    sites: list[dict[str, Any]],
    elapsed_s: float,
    notes: list[str],
    torch: Any,
    steps: dict[str, Any],
    files: list[str],
) -> None:
    """An interrupted write leaves the part before. ``steps``: see limit.py; ``files``: reading.py.
    Raises OSError."""
    part = {
        "format": FORMAT,
        "elapsed_s": elapsed_s,
        "notes": notes,
        "versions": {
            "python": sys.version.split()[0],
            "torch": getattr(torch, "__version__", None),
        },
        "device": _device(torch),
        "sites": sites,
        "steps": steps,
        "files": files,
    }
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps(part, default=str), encoding="utf-8")
    fresh.replace(path)


def _device(torch: Any) -> str | None:
    """Asked only where the program has begun to use it: asking would begin it."""
    if torch is None or not torch.cuda.is_initialized():
        return None
    return _device_name(torch)


@functools.cache
def _device_name(torch: Any) -> str:
    """Asked once: a device that is lost would not answer, and its process's part must still be
    written."""
    return str(torch.cuda.get_device_name())
