"""Targets of recorded programs, opened where they live: in their own file, by a call that the
program made.

`find_call` looks a target up among the user's recordings, by file and qualified name. What people
have written down themselves (a comment, workloads.toml) comes before it, everything else behind.
Not covered: whether the file still fits the recorded call; opening it says so."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kernel_lsp import signatures, wire
from kernel_lsp.errors import EvaluationError, KernelLspError, SignatureError, Unsigned
from kernel_lsp.records import (
    ArgSpec,
    Home,
    Program,
    Replay,
    Target,
    TargetKind,
    TorchSetting,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.snapshots import format, store
from kernel_lsp.snapshots.store import ProgramRecording, StoreTable

log = logging.getLogger(__name__)
MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
SETTINGS = {field.name for field in fields(TorchSetting)}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """One way in which a program called a target."""

    program: Program
    workload: Workload


def find_call(path: Path, text: str, target: Target, data_dir: Path) -> RecordedCall | None:
    """The way that took the most time in the newest recording that called the target; None: none
    did."""
    if target.kind is TargetKind.TRITON_KERNEL:
        return None
    real = path.resolve()
    program = Program(source=text, entry=target.qualname, kind=target.kind)
    for recording in store.recordings(data_dir):
        ways = [way for way in recording.ways if _is_of(recording, way, real, target.qualname)]
        if not ways or not _is_believed(recording, data_dir):
            continue
        for way in sorted(ways, key=lambda way: -float(way.get("share") or 0.0)):
            if (call := _read_call(recording, way, path, program)) is not None:
                return call
    return None


def with_replay(program: Program) -> Program:
    """The program with word of how it is run again, where its snapshot lacks an object."""
    home = program.home
    if home is None or home.replay is not None:
        return program
    with contextlib.suppress(OSError, format.Unreadable):
        folder = Path(home.snapshot).parent.parent
        recording = store.read(folder) if _is_own(folder) else None
        if recording is not None and format.read(Path(home.snapshot)).header.get("absent"):
            replay = Replay(command=recording.command, root=recording.root, files=recording.files)
            return replace(program, home=replace(home, replay=replay))
    return program


def own_home(named: Home, data_dir: Path) -> Home:
    """The place and the call that a document names, as this user's recordings tell it: what a
    confined process sees follows from it, so no document decides that. Raises EvaluationError
    where no recording holds the call."""
    for recording in store.recordings(data_dir):
        for way in recording.ways:
            path, snapshot = recording.path_of(way), recording.snapshot(way)
            if snapshot != Path(named.snapshot) or path.resolve() != Path(named.path).resolve():
                continue
            program = Program(source="", entry="", kind=TargetKind.MODULE)
            call = _read_call(recording, way, path, program)
            if call is None or call.program.home is None or not _is_believed(recording, data_dir):
                continue
            home = replace(call.program.home, others=named.others)
            if named.replay is None:
                return home
            return with_replay(replace(program, home=home)).home or home
    raise EvaluationError(
        f"could not judge: the call that it was judged by is in no recording of yours "
        f"({Path(named.snapshot).name})",
        "record the program here: kernel-lsp record -- python …",
    )


def _is_own(folder: Path) -> bool:
    """A command that somebody else has recorded is never run."""
    try:
        signatures.Keyring(folder.parents[2]).verify(folder, kind="recording")
    except Unsigned:
        return True
    except SignatureError:
        return False
    return False


def _is_believed(recording: ProgramRecording, data_dir: Path) -> bool:
    """One's own is signed by nobody. What somebody signed must be what they signed: it is opened
    by unpickling, if only in a confined child."""
    try:
        signatures.Keyring(data_dir).verify(recording.folder, kind="recording")
    except Unsigned:
        return True
    except SignatureError as error:
        log.warning("a recording of %s is not opened: %s", recording.program, error)
        return False
    return True


def _is_of(recording: ProgramRecording, way: StoreTable, path: Path, qualname: str) -> bool:
    return recording.qualname_of(way) == qualname and recording.path_of(way).resolve() == path


def _read_call(
    recording: ProgramRecording, way: StoreTable, path: Path, program: Program
) -> RecordedCall | None:
    """None without a snapshot, or for one of another version or that was damaged: slices are
    left."""
    snapshot = recording.snapshot(way)
    if snapshot is None:
        return None
    try:
        header = format.read(snapshot).header
        home = Home(
            module=str(way["module"]),
            path=str(path),
            snapshot=str(snapshot),
            search_path=tuple(map(str, header["search_path"])),
            pickler=store.cloudpickle_file(),
            device="cuda" if any(_is_on_gpu(spec) for spec in header["tensors"]) else "cpu",
        )
        workload = Workload(
            name=str(way.get("name") or recording.program),
            origin=WorkloadOrigin.RECORDED,
            inputs=tuple(map(_argument_spec, way.get("arguments", ()))),
            training=way.get("training"),
            setting=wire.from_json(
                TorchSetting, {n: v for n, v in way["setting"].items() if n in SETTINGS}
            ),
        )
    except (OSError, format.Unreadable, KernelLspError, *MALFORMED):
        return None
    return RecordedCall(program=replace(program, home=home), workload=workload)


def _is_on_gpu(spec: dict[str, Any]) -> bool:
    return str(spec["device"]).startswith("cuda")


def _argument_spec(argument: StoreTable) -> ArgSpec:
    """For people to read: what is passed is in the snapshot."""
    shape, stride = argument.get("shape"), argument.get("stride")
    return ArgSpec(
        name=argument.get("name"),
        dtype=argument.get("dtype"),
        shape=None if shape is None else tuple(shape),
        stride=None if stride is None else tuple(stride),
        value=argument.get("unknown", argument.get("value")),
        requires_grad=bool(argument.get("requires_grad", False)),
        device=argument.get("device"),
    )
