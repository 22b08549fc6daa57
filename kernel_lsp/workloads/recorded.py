"""Workloads in TOML: ``.kernel-lsp/workloads.toml``, which people write, and its neighbors.

What ``kernel-lsp record`` writes (recording_file.py) has the same tables with more keys: how often
a target was called so, its share of the time, what its arguments held. What could not be described
of an argument (``unknown``) or is not judged (``autocast``) makes no workload, and is a problem that
says so.

[[workload]]
target = "models/block.py::Block"     # path from the root, two colons, qualified name
name = "train step, batch 8"          # optional
training = true                       # optional; absent: as constructed

[[workload.inputs]]                   # in call order; absent: get_inputs() makes them
name = "x"                            # absent: positional
dtype = "float32"                     # or short: f32
shape = [8, 4096]
stride = [4096, 1]                    # absent: contiguous
distribution = "normal"               # normal, uniform, zeros, ones, index:N
requires_grad = true                  # absent: false

[[workload.inputs]]
name = "scale"
value = 0.5                           # a plain value; neither dtype nor value: None
tuple = true                          # absent: a sequence is a list

[[workload.init]]                     # constructor arguments, same keys
value = 4096
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernel_lsp.errors import WorkloadError
from kernel_lsp.records import Snapshot, Target, TorchSetting, Workload, WorkloadOrigin
from kernel_lsp.workloads.arguments import FilePlace, arguments
from kernel_lsp.workloads.tables import files, tables

BY_HAND = "workloads.toml"
RECORD_A_RUN = (
    "record a run (`kernel-lsp record -- python your_program.py`; in an editor: Record a Run)"
)
"""The first remedy wherever nothing says what a target is called with."""
_SEEN_KEYS = {"calls", "share", "mean_us", "autocast", "gradients"}
_WORKLOAD_KEYS = {"target", "name", "training", "inference", "inputs", "init", *_SEEN_KEYS}


def recorded_workloads(
    snapshot: Snapshot, target: Target, folder: str | None
) -> tuple[tuple[Workload, ...], tuple[WorkloadError, ...]]:
    """The target's workloads in the root's TOML files: ``workloads.toml`` first, then by share of
    time."""
    return _workloads_in(snapshot, target, folder, files(folder) if folder else [])


def by_hand(snapshot: Snapshot, target: Target, folder: str | None) -> tuple[Workload, ...]:
    """Workloads of the target in ``workloads.toml`` alone, which people write."""
    own = [path for path in files(folder) if path.name == BY_HAND] if folder else []
    return _workloads_in(snapshot, target, folder, own)[0]


def _workloads_in(
    snapshot: Snapshot, target: Target, folder: str | None, paths: Sequence[Path]
) -> tuple[tuple[Workload, ...], tuple[WorkloadError, ...]]:
    if folder is None:
        return (), ()
    key = f"{relative(snapshot.uri, folder)}::{target.qualname}"
    found: list[tuple[float, Workload]] = []
    problems: list[WorkloadError] = []
    for path in paths:
        try:
            entries = list(enumerate(tables(path, "workload"), 1))
        except WorkloadError as error:
            problems.append(error)
            continue
        for index, entry in entries:
            place = FilePlace(path, "workload", index)
            try:
                if target_of(place, entry) == key:
                    found.append((_share(place, entry), _workload(place, entry)))
            except WorkloadError as error:  # one that holds what is unknown here costs no other
                problems.append(error)
    ordered = sorted(found, key=lambda pair: -pair[0])
    return tuple(workload for _, workload in ordered), tuple(problems)


def relative(uri: str, folder: str) -> str:
    """Path from the root with forward slashes; the whole path for a file outside it."""
    path = Path(uri)
    with contextlib.suppress(ValueError):  # it only looks like a URI
        parsed = urllib.parse.urlsplit(uri)
        if parsed.scheme == "file":
            path = Path(urllib.parse.unquote(parsed.path))
    absolute = path if path.is_absolute() else Path(folder, path)
    return (
        absolute.relative_to(folder).as_posix()
        if absolute.is_relative_to(folder)
        else absolute.as_posix()
    )


def target_of(place: FilePlace, entry: dict[str, Any]) -> str:
    """The entry's ``target``, `path::QualifiedName`. Raises WorkloadError where it is none."""
    target = entry.get("target")
    if not isinstance(target, str) or "::" not in target:
        raise place.wrong("target", f"is {target!r}", 'write "path/file.py::QualifiedName"')
    return target


def _share(place: FilePlace, entry: dict[str, Any]) -> float:
    """What people wrote is worth more than any share."""
    if place.path.name == BY_HAND:
        return 2.0
    share = entry.get("share", 0.0)
    if not isinstance(share, int | float):
        raise place.wrong("share", f"is {share!r}", "write a number from 0 to 1, or leave it out")
    return float(share)


def _refuse_unusable(place: FilePlace, entry: dict[str, Any]) -> None:
    """A way of calling that was recorded and cannot be judged. Raises WorkloadError."""
    if entry.get("autocast") is not None:
        what = f"was recorded under autocast ({entry['autocast']}), which a workload cannot say"
        other = "say a workload in that dtype in a comment above the target"
        raise place.wrong(
            "it", what, f"{RECORD_A_RUN} on this machine, which keeps such calls, or {other}"
        )
    inputs = entry.get("inputs")
    for item in inputs if isinstance(inputs, list) else ():
        if isinstance(item, dict) and "unknown" in item:
            name = item.get("name", "an argument")
            raise place.wrong(
                str(name), f"was {item['unknown']}, which a workload cannot hold yet", REMEDY
            )


REMEDY = (
    f"{RECORD_A_RUN} on this machine, which keeps such calls, or write get_inputs() beside "
    f"the target"
)


def _workload(place: FilePlace, entry: dict[str, Any]) -> Workload:
    _refuse_unusable(place, entry)
    place.refuse_unknown(entry, _WORKLOAD_KEYS)
    training = entry.get("training")
    if not isinstance(training, bool | None):
        raise place.wrong("training", f"is {training!r}", "write true or false")
    inference = _inference(place, entry)
    init = entry.get("init")
    unknown = isinstance(init, list) and any(
        isinstance(item, dict) and "unknown" in item for item in init
    )
    return Workload(
        name=str(entry.get("name", f"{place.path.name} #{place.index}")),
        origin=WorkloadOrigin.RECORDED,
        inputs=arguments(place, entry, "inputs"),
        init=None
        if unknown
        else arguments(place, entry, "init"),  # None: get_init_inputs() may know
        training=training,
        setting=TorchSetting(gradients=False) if inference else TorchSetting(),
    )


def _inference(place: FilePlace, entry: dict[str, Any]) -> bool:
    """Whether nobody differentiates these calls: people say so, or a run recorded no gradients."""
    said = entry.get("inference", entry.get("gradients") is False)
    if not isinstance(said, bool):
        raise place.wrong("inference", f"is {said!r}", "write true or false")
    return said
