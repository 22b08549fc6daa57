"""A recording as a TOML file that people can read and commit: written by ``kernel-lsp record``.

Holds shapes, dtypes, ranges and shares of time, never values; paths below the workspace alone; and
of the command nothing but the program's name, because arguments may be anything. Kept below
`MAX_BYTES` by leaving out the ways with the smallest shares. How it is read: recorded.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from kernel_lsp.errors import WorkloadError
from kernel_lsp.files import replace_file
from kernel_lsp.workloads.merging import MergedRecording, WorkloadTable
from kernel_lsp.workloads.tables import FORMAT

MAX_BYTES = 256 * 1024
MAX_WAYS = 8
"""Ways of calling one target that are kept, those with the largest shares."""
MAX_TARGETS = 1000
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
    ways = list(_texts_of(_few(own)))
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
            # A temporary file is its owner's alone, this one belongs to a repository.
            path.chmod(0o644)
    except OSError as error:
        raise WorkloadError(
            f"the recording could not be written to {path}: {error.strerror or error}",
            "name a file by --out in a folder that you may write to and that has room",
        ) from error
    return len(own) - len(ways)


def is_own(entry: WorkloadTable) -> bool:
    """Whether the entry's target is a file of the workspace."""
    return not Path(entry["target"]).is_absolute()


def _few(ways: list[WorkloadTable]) -> list[WorkloadTable]:
    """Of each target the first few."""
    counts: Counter[str] = Counter()
    kept = []
    for way in ways:
        counts[way["target"]] += 1
        if counts[way["target"]] <= MAX_WAYS:
            kept.append(way)
    return kept


def _text(merged: MergedRecording, ways: list[str], program: str, created: str) -> str:
    about: WorkloadTable = {
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
    seen = list(filter(is_own, merged.seen))[:MAX_TARGETS]
    parts = [tomlkit.dumps(_table(about)), *(_entry("seen", _table(one)) for one in seen)]
    return HEADER + "\n".join([*parts, *ways])


def _texts_of(ways: list[WorkloadTable]) -> Iterator[str]:
    """As many as the file may have room for: each takes a millisecond."""
    size = 0
    for way in ways:
        text = _entry("launch" if way["kind"] == "launch" else "workload", _way(way))
        if (size := size + len(text)) > MAX_BYTES:
            return
        yield text


def _entry(kind: str, table: WorkloadTable) -> str:
    return tomlkit.dumps({kind: [table]})


def _way(way: WorkloadTable) -> WorkloadTable:
    """One line per argument."""
    inputs = "arguments" if way["kind"] == "launch" else "inputs"
    lists = {"init": way.get("init"), inputs: way["arguments"]}
    hidden = ("kind", "arguments", "init", *PRIVATE)
    table = _table({name: value for name, value in way.items() if name not in hidden})
    rows = {name: _list(values) for name, values in lists.items() if values is not None}
    return table | {name: row.multiline(bool(row)) for name, row in rows.items()}


def _table(values: WorkloadTable) -> WorkloadTable:
    kept = {name: value for name, value in values.items() if value is not None and value != []}
    return {name: _in_line(value) for name, value in kept.items()}


def _in_line(value: Any) -> Any:
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update({name: _in_line(item) for name, item in value.items() if item is not None})
        return table
    return _list(value) if isinstance(value, list | tuple) else value


def _list(values: Sequence[Any]) -> Any:
    array = tomlkit.array()
    array.extend(map(_in_line, values))
    return array
