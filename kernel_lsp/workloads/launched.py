"""What a recording says beyond workloads: launches of Triton kernels, and shares of the time.

[[launch]]
target = "kernels/softmax.py::softmax_kernel"
calls = 1200
share = 0.31                          # of the run's time; absent: never timed
mean_us = 41.0
grid = [4096]
num_warps = 8                         # absent: unknown
constants = { BLOCK = 1024 }          # constexpr parameters
aliases = [["x_ptr", "out_ptr"]]      # parameters whose tensors shared memory
launcher = "kernels/softmax.py::softmax"
called_with = [{ name = "x", dtype = "float32", shape = [4096, 1000] }]
arguments = [{ name = "x_ptr", dtype = "float32", shape = [4096, 1000], alignment = 256 }, …]

[[seen]]                              # one per target, all ways of calling it together
target = "train.py::Block"
calls = 9000
share = 0.62
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernel_lsp.errors import WorkloadError
from kernel_lsp.records import (
    ArgSpec,
    BusyShare,
    RecordedLaunch,
    Snapshot,
    Target,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.workloads.arguments import FilePlace, arguments
from kernel_lsp.workloads.recorded import relative, target_of
from kernel_lsp.workloads.tables import files, tables


def launches(folder: str) -> tuple[tuple[RecordedLaunch, ...], tuple[WorkloadError, ...]]:
    """Every recorded launch in a workspace, the largest share first, and what could not be read."""
    found: list[RecordedLaunch] = []
    problems: list[WorkloadError] = []
    for path in files(folder):
        try:
            entries = list(enumerate(tables(path, "launch"), 1))
        except WorkloadError as error:
            problems.append(error)
            continue
        for index, entry in entries:
            try:
                found.append(_launch(FilePlace(path, "launch", index), entry))
            except WorkloadError as error:
                # One launch with a dtype that is unknown here costs no other.
                problems.append(error)
    return tuple(sorted(found, key=lambda one: -(one.busy.share or 0.0))), tuple(problems)


def launching(
    snapshot: Snapshot, target: Target, folder: str
) -> tuple[tuple[Workload, ...], tuple[WorkloadError, ...]]:
    """A kernel's workloads: how its launcher was called, what took most of the time first."""
    path = relative(snapshot.uri, folder)
    found, problems = launches(folder)
    wanted = [
        one
        for one in found
        if one.target == f"{path}::{target.qualname}" and one.called_with is not None
    ]
    made: list[Workload] = []
    for one in wanted:
        if target.launchers and one.launcher == f"{path}::{target.launchers[0]}":
            name = f"recorded launch of {' x '.join(map(str, one.grid))} programs"
            made.append(Workload(name=name, origin=WorkloadOrigin.RECORDED, inputs=one.called_with))
    return tuple(made), problems


def busy(folder: str) -> dict[str, BusyShare]:
    """``path::qualname`` -> its part of the recorded runs, the largest where several know it.
    Never raises: what cannot be read is said where workloads are asked for."""
    found: dict[str, BusyShare] = {}
    for path in files(folder):
        try:
            for index, entry in enumerate(tables(path, "seen"), 1):
                target, seen = target_of(FilePlace(path, "seen", index), entry), _busy(entry)
                if target not in found or (seen.share or 0.0) > (found[target].share or 0.0):
                    found[target] = seen
        except (WorkloadError, TypeError, ValueError, OverflowError):
            continue
    return found


def shares_in(path: Path, root: Path) -> dict[str, float]:
    """Qualified name -> share of the recorded time, of one file's targets; empty outside of the
    root."""
    file = path.absolute()
    if not file.is_relative_to(root):
        return {}
    prefix = f"{file.relative_to(root).as_posix()}::"
    return {
        target.removeprefix(prefix): seen.share
        for target, seen in busy(str(root)).items()
        if target.startswith(prefix) and seen.share is not None
    }


def _busy(entry: dict[str, Any]) -> BusyShare:
    return BusyShare(
        calls=int(entry.get("calls", 0)),
        share=None if "share" not in entry else float(entry["share"]),
        mean_us=None if "mean_us" not in entry else float(entry["mean_us"]),
    )


def _called_with(place: FilePlace, entry: dict[str, Any]) -> tuple[ArgSpec, ...] | None:
    given = [one for one in entry.get("called_with", ()) if not _is_context(one, entry)]
    if any("unknown" in one for one in given):
        return None
    return arguments(place, {**entry, "called_with": given} if given else entry, "called_with")


def _is_context(one: dict[str, Any], entry: dict[str, Any]) -> bool:
    """The first argument of an autograd Function's forward, which ``apply`` makes."""
    name = str(entry.get("launcher")).rpartition("::")[2].split(".")
    return len(name) > 1 and name[-1] == "forward" and one.get("unknown") == f"{name[-2]}Backward"


def _launch(place: FilePlace, entry: dict[str, Any]) -> RecordedLaunch:
    path, _, kernel = target_of(place, entry).rpartition("::")
    try:
        return RecordedLaunch(
            kernel=kernel,
            path=path,
            arguments=arguments(place, entry, "arguments") or (),
            constants=dict(entry.get("constants", {})),
            grid=tuple(int(extent) for extent in entry.get("grid", ())),
            num_warps=entry.get("num_warps"),
            num_stages=entry.get("num_stages"),
            num_ctas=entry.get("num_ctas"),
            autotuned=bool(entry.get("autotuned", False)),
            aliases=tuple(tuple(names) for names in entry.get("aliases", ())),
            launcher=entry.get("launcher"),
            called_with=_called_with(place, entry),
            busy=_busy(entry),
        )
    except (TypeError, ValueError, OverflowError) as error:  # the last for `inf` calls
        raise place.wrong("it", f"cannot be read: {error}", "record it again") from error
