"""A recording as a TOML file that people can read and commit: written by ``kernel-lsp record``.

Holds shapes, dtypes, ranges and shares of time, never values; paths below the workspace alone; and
of the command nothing but the program's name, because arguments may be anything. Kept below
`MAX_BYTES` by leaving out the ways with the smallest shares. How it is read: recorded.py."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernel_lsp.errors import WorkloadError
from kernel_lsp.files import replace_file
from kernel_lsp.workloads.merging import MergedRecording, Table
from kernel_lsp.workloads.tables import FORMAT

MAX_BYTES = 256 * 1024
MAX_WAYS = 8
"""Ways of calling one target that are kept, those with the largest shares."""
MAX_TARGETS = 1000
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SUFFIX = ".recorded.toml"
HEADER = """# Recorded by kernel-lsp: how this program calls its modules and kernels, and what takes its time.
# Shapes, ranges and times, no values. Commit or delete it; recording the program again replaces it.
"""


PRIVATE = ("snapshot", "not_kept", "setting", "module", "class")
"""What only the index of the snapshots says (snapshots/store.py)."""


def write(path: Path, merged: MergedRecording, program: str, created: str) -> int:
    """Replace the file in one step; how many ways of calling were left out. Raises WorkloadError.

    Targets of installed packages are left out: their paths say where on this machine they lie.
    """
    own = [way for way in merged.ways if is_own(way)]
    ways = _few(own)
    while (
        len(text := _text(merged, ways, program, created).encode("utf-8", "replace")) > MAX_BYTES
        and ways
    ):
        ways = ways[: len(ways) * 3 // 4]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        replace_file(path, text)
        if is_new:
            path.chmod(
                0o644
            )  # a temporary file is its owner's alone, this one belongs to a repository
    except OSError as error:
        raise WorkloadError(
            f"the recording could not be written to {path}: {error.strerror or error}",
            "name a file by --out in a folder that you may write to and that has room",
        ) from error
    return len(own) - len(ways)


def is_own(entry: Table) -> bool:
    """Whether the entry's target is a file of the workspace."""
    return not Path(entry["target"]).is_absolute()


def _few(ways: list[Table]) -> list[Table]:
    """Of each target the first few."""
    counts: Counter[str] = Counter()
    kept = []
    for way in ways:
        counts[way["target"]] += 1
        if counts[way["target"]] <= MAX_WAYS:
            kept.append(way)
    return kept


def _text(merged: MergedRecording, ways: list[Table], program: str, created: str) -> str:
    about: Table = {
        "format": FORMAT,
        "program": program,
        "created": created,
        "processes": merged.processes,
        "seconds": round(merged.elapsed_s, 3),
        "devices": list(merged.devices),
        "versions": merged.versions,
        "notes": list(merged.notes),
        "left_out": sum(map(is_own, merged.ways)) - len(ways),
    }
    lines = [HEADER, *_pairs(about)]
    for entry in list(filter(is_own, merged.seen))[:MAX_TARGETS]:
        lines += ["", "[[seen]]", *_pairs(entry)]
    for way in ways:
        lines += ["", "[[launch]]" if way["kind"] == "launch" else "[[workload]]", *_way(way)]
    return "\n".join(lines) + "\n"


def _way(way: Table) -> Iterator[str]:
    inputs = {"launch": "arguments"}.get(way["kind"], "inputs")
    lists = {"init": way.get("init"), inputs: way["arguments"]}
    yield from _pairs(
        {
            name: value
            for name, value in way.items()
            if name not in ("kind", "arguments", "init", *PRIVATE)
        }
    )
    for name, rows in lists.items():
        if rows is not None:
            yield (
                f"{name} = ["
                + "".join(f"\n  {_value(row)}," for row in rows)
                + ("\n]" if rows else "]")
            )


def _pairs(table: Table) -> Iterator[str]:
    for name, value in table.items():
        if value is not None and value != []:
            yield f"{_key(name)} = {_value(value)}"


def _value(value: Any) -> str:
    """One TOML value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        known = [
            f"{_key(name)} = {_value(item)}" for name, item in value.items() if item is not None
        ]
        return "{ " + ", ".join(known) + " }" if known else "{}"
    return "[" + ", ".join(map(_value, value)) + "]"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)
