"""Run a program once, unchanged, and keep what it called: a file for people, snapshots beside
it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernel_lsp import snapshots
from kernel_lsp.snapshots import store
from kernel_lsp.workloads import running
from kernel_lsp.workloads.merging import MergedRecording


def record(
    root: Path,
    command: Sequence[str],
    out: Path,
    data_dir: Path,
    *,
    keep_calls: bool = True,
    steps: int | None = None,
    seconds: float | None = None,
    marked: tuple[str, str] | None = None,
    to_stderr: bool = False,
) -> running.Recorded:
    """Run the command to its end and write what was seen. Raises WorkloadError.

    With ``keep_calls`` snapshots of its calls are written to the user's data folder. ``steps``: the
    program is ended after so many, after ``seconds`` with a few of them. ``marked``: module and
    name of the function that is a step.
    ``to_stderr``: what it prints goes there.
    """
    if not keep_calls:
        return running.run(
            root,
            command,
            out,
            data_dir,
            steps=steps,
            seconds=seconds,
            marked=marked,
            to_stderr=to_stderr,
        )
    program = running.program_of(root, command)
    folder = store.begin(data_dir, root, program)
    calls = {
        "folder": str(folder / "calls"),
        "code": str(Path(snapshots.__file__).parent),
        "cloudpickle": store.cloudpickle_file(),
    }
    kept = False
    try:
        recorded = running.run(
            root,
            command,
            out,
            data_dir,
            calls=calls,
            steps=steps,
            seconds=seconds,
            marked=marked,
            to_stderr=to_stderr,
        )
        if recorded.merged.seen or _has_steps(recorded.merged.steps):
            table = _index(recorded.merged, root, program, command)
            store.finish(folder, {**table, "steps": {**recorded.merged.steps, "function": marked}})
            kept = True
        return recorded
    finally:
        if not kept:  # nothing was seen, or it was cut off: the recording before stays
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)


def _has_steps(steps: Mapping[str, Any]) -> bool:
    """Of an optimizer: a program of torch's own modules alone has no other target than itself."""
    return any(int(one["steps"]) >= 1 for one in steps.get("optimizers", ()))


def _index(
    merged: MergedRecording, root: Path, program: str, command: Sequence[str]
) -> store.StoreTable:
    return {
        "program": program,
        "root": str(root),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": list(command),
        "elapsed_s": merged.elapsed_s,
        "devices": list(merged.devices),
        "seen": merged.seen,
        "ways": merged.ways,
        "files": merged.files,
    }
