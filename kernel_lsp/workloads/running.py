"""Run a program unchanged with the recorder in it, and gather what its processes have seen.

The recorder reaches every Python process of the program by PYTHONPATH. What it writes goes into a
folder of this run's own in the user's data folder; a run whose ``kernel-lsp record`` was killed
leaves that folder behind, and the next run on that machine saves what is in it. Nothing of a
workspace is believed there: which file to replace is read only where this user alone writes.
Standard library only; never imports torch. Not covered: processes on other machines, which have to
be recorded there, each by --out."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernel_lsp.errors import WorkloadError
from kernel_lsp.workloads import recording_file
from kernel_lsp.workloads.merging import MergedRecording, WorkloadTable, merge
from kernel_lsp.workloads.recorder import spool
from kernel_lsp.workloads.tables import FOLDER

START = Path(__file__).parent / "recorder" / "start"
SPOOLS = "spools"
"""Below the user's data folder, beside `recordings` (snapshots/store.py)."""
ABOUT = "about.json"
STDERR = 2
LATE = 3.0
"""Times the time for a recording, after which a program is interrupted whose steps were too slow to
end it (recorder/limit.py)."""
GRACE_S = 10.0
"""To end after it was interrupted, and again after it was asked to."""
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that run a program, which is what a recording is of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """How a recorded run ended and what it left."""

    status: int
    """As a shell tells it: 128 + N for a signal."""
    path: Path | None
    """The file that was written; None: nothing was seen, and an earlier file is as it was."""
    merged: MergedRecording
    left_out: int = 0
    """Ways of calling that the file has no room for."""


def default_path(root: Path, command: Sequence[str]) -> Path:
    """``.kernel-lsp/<program>.recorded.toml``."""
    name = (
        re.sub(r"[^\w.-]+", "-", program_of(root, command).removesuffix(".py")).strip("-.")
        or "program"
    )
    return root / FOLDER / f"{name}{recording_file.SUFFIX}"


def program_of(root: Path, command: Sequence[str]) -> str:
    """The script or module of a command, as far as it says nothing about the machine."""
    for place, word in enumerate(command):
        if word == "-m" and place + 1 < len(command) and command[place + 1] not in LAUNCHERS:
            return command[place + 1]
        if word.endswith(".py"):
            path = Path(word).absolute()
            return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
    return Path(command[0]).name


def run(
    root: Path,
    command: Sequence[str],
    out: Path,
    data_dir: Path,
    *,
    calls: dict[str, str] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    marked: tuple[str, str] | None = None,
    to_stderr: bool = False,
) -> Recorded:
    """Run to the end, whatever that is, and write what was seen. Raises WorkloadError.

    ``calls``: where snapshots of calls go, and what writes them (recorder/calls.py); None: none
    are kept. ``steps``: the program is ended after so many; None: it ends by itself.
    ``seconds``: after which a few of them are enough (recorder/limit.py), and after `LATE` times as
    long it is interrupted. ``marked``: module and name of the function that is a step
    (recorder/marking.py).
    ``to_stderr``: what it prints goes there, because standard output is a document of ours."""
    program = program_of(root, command)
    folder = _spool(root, program, out, data_dir)
    try:
        about = {"calls": calls, "steps": steps, "seconds": seconds, "marked": marked}
        latest_s = None if seconds is None else LATE * seconds
        status = _run(root, command, folder, about, to_stderr=to_stderr, latest_s=latest_s)
    except WorkloadError:
        _remove(folder)
        raise
    # Where this fails, the next run can.
    recorded = _write_recording(root, folder, program, out, status)
    _remove(folder)
    return recorded


def recover(root: Path, data_dir: Path) -> list[Recorded]:
    """Write what interrupted runs of this workspace have seen, each into its own file, and clean
    up."""
    found = []
    for folder in sorted((data_dir / SPOOLS).glob("*/")):
        try:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            pid, program, out = int(about["pid"]), str(about["program"]), Path(about["out"])
            # In a folder that machines share, numbers of processes say nothing about another
            # machine's.
            is_ours = about["host"] == platform.node() and about["root"] == str(root.absolute())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # Not even that: nothing was seen.
            _remove(folder)
            continue
        if not is_ours or _alive(pid):
            continue
        with contextlib.suppress(WorkloadError):  # no room still: what was seen stays where it is
            found.append(_write_recording(root, folder, program, out, status=-1))
            _remove(folder)
    return found


def _spool(root: Path, program: str, out: Path, data_dir: Path) -> Path:
    parent = data_dir / SPOOLS
    about = {
        "host": platform.node(),
        "pid": os.getpid(),
        "root": str(root.absolute()),
        "program": program,
        "out": str(out.absolute()),
    }
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = Path(tempfile.mkdtemp(dir=parent))
        (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")
    except OSError as error:
        raise WorkloadError(
            f"nothing can be recorded below {parent}: {error.strerror or error}",
            "make your data folder writable, or free space on its disk",
        ) from error
    return folder


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # where another recording is going on, or something is kept
        folder.parent.rmdir()


def _run(
    root: Path,
    command: Sequence[str],
    folder: Path,
    about: dict[str, Any],
    *,
    to_stderr: bool,
    latest_s: float | None,
) -> int:
    """``about``: what the recorder is given besides its places. ``latest_s``: after which the
    program is interrupted, if it goes on; None: it never is."""
    settings = json.dumps({"root": str(root), "spool": str(folder), **about})
    path = os.pathsep.join(filter(None, (str(START), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "KERNEL_LSP_RECORDING": settings}
    try:
        output = STDERR if to_stderr else None
        process = subprocess.Popen(list(command), env=environment, stdout=output)
    except OSError as error:
        raise WorkloadError(
            f"{command[0]} cannot be run: {error.strerror or error}",
            "write the program as you would in a shell: kernel-lsp record -- python train.py",
        ) from error
    with _signals_to(process):
        status = _wait(process, latest_s)
    return status if status >= 0 else 128 - status


def _wait(process: subprocess.Popen[bytes], latest_s: float | None) -> int:
    """Its exit status. What it has seen is kept at the latest when it is interrupted; a program
    that goes on all the same is killed."""
    signals = ((latest_s, signal.SIGINT), (GRACE_S, signal.SIGTERM), (GRACE_S, signal.SIGKILL))
    for wait_s, number in signals:
        try:
            return process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    return process.wait()


@contextlib.contextmanager
def _signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ctrl-C reaches the program by the terminal; what reaches only us is passed on. We stay, to
    write."""

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    kept = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    kept[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _write_recording(root: Path, folder: Path, program: str, out: Path, status: int) -> Recorded:
    merged = merge(list(_parts(folder)), program)
    if not merged.seen:
        return Recorded(status=status, path=None, merged=merged)
    if out.is_relative_to(root) and not out.resolve().is_relative_to(root.resolve()):
        raise WorkloadError(
            f"{out} leads out of the workspace by a link, to {out.resolve()}",
            "remove the link, or name a file outside of the workspace by --out",
        )
    created = datetime.now(UTC).isoformat(timespec="seconds")
    left_out = recording_file.write(out, merged, program, created)
    return Recorded(status=status, path=out, merged=merged, left_out=left_out)


def _parts(folder: Path) -> Iterator[WorkloadTable]:
    """What each process has written last. A part is replaced in one step, so it is whole or not
    there."""
    for path in sorted(folder.glob("*.json")):
        if path.name == ABOUT:
            continue
        with contextlib.suppress(OSError, ValueError):
            part = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(part, dict) and part.get("format") == spool.FORMAT:
                yield part


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
