"""What a candidate asks of the system: audit events, attributed to who asked for them.

Covers: files, folders, programs, processes, signals to others, network, descriptors' control,
native libraries and memory, frames, the heap, code made from data, code put into functions,
environment variables; directly or through a library that acts for its caller. Each is noted once,
with its line. Does not cover: plain os.read, os.write, os.close and os.dup2 (CPython has no events
for them: frames between our processes are sealed instead, see wire.py); threads (see flags.py);
native code. An event asked for by torch, Triton or the import system itself is their own business.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType
from typing import Any

import torch

from kernel_lsp import wire

CANDIDATE = "<program_"
"""How the file names of loaded programs begin (see programs.py)."""
TORCH_FOLDER = str(Path(torch.__file__).parent)
OWN_BUSINESS = (
    TORCH_FOLDER,
    str(Path(TORCH_FOLDER).parent / "triton"),
    str(Path(wire.__file__).parent),
    "<frozen importlib",
    "<frozen zipimport",
)
FOR_THEIR_CALLER = tuple(
    f"{TORCH_FOLDER}/{name}"
    for name in ("serialization.py", "hub.py", "storage.py", "_ops.py", "_classes.py", "package/",
                 "utils/cpp_extension.py", "utils/data/", "multiprocessing/", "distributed/")
)  # fmt: skip
"""Files of torch that read, load or start what their caller names."""
FRAME_GIVERS = ("inspect.py", "traceback.py")
"""Libraries that hand their caller frames; others (logging, enum, dataclasses) keep them to
themselves."""

THROUGH_LIBRARIES = MappingProxyType(
    {
        "open": "reads or writes files",
        "os.listdir": "reads folders", "os.scandir": "reads folders", "glob.glob": "reads folders",
        "os.chdir": "moves the process to another folder",
        "os.remove": "changes files", "os.rename": "changes files", "os.mkdir": "changes files",
        "os.rmdir": "changes files", "os.link": "changes files", "os.symlink": "changes files",
        "os.truncate": "changes files", "os.chmod": "changes files", "os.chown": "changes files",
        "os.putenv": "changes environment variables",
        "os.unsetenv": "changes environment variables",
        "subprocess.Popen": "starts a program", "os.system": "starts a program",
        "os.exec": "starts a program", "os.posix_spawn": "starts a program",
        "pty.spawn": "starts a program",
        "os.fork": "starts a process", "os.forkpty": "starts a process",
        "os.kill": "sends signals", "os.killpg": "sends signals",
        "signal.pthread_kill": "sends signals",
        "gc.get_objects": "searches the heap", "gc.get_referrers": "searches the heap",
        "gc.get_referents": "searches the heap",
        "sys._current_frames": "walks the call stack", "sys.addaudithook": "listens to its process",
        "sys.settrace": "traces its caller", "sys.setprofile": "traces its caller",
        "mmap.__new__": "shares memory", "pickle.find_class": "runs code from data",
    }
)  # fmt: skip
FAMILIES = MappingProxyType(
    {
        "socket": "uses the network", "urllib": "uses the network", "http": "uses the network",
        "ctypes": "reaches memory and libraries directly", "fcntl": "controls descriptors",
        "resource": "changes the limits of its process", "shutil": "changes files",
        "tempfile": "changes files", "sqlite3": "reads or writes files",
        "marshal": "runs code from data",
    }
)  # fmt: skip
DIRECTLY = MappingProxyType(
    {
        "sys._getframe": "walks the call stack",
        "exec": "runs code from data", "code.__new__": "runs code from data",
        "object.__getattr__": "walks the call stack",
        "object.__setattr__": "changes what a function does",
    }
)  # fmt: skip
"""Libraries do these for reasons of their own, e.g. namedtuple, dataclass, logging."""
WATCHED_NAMES = {
    "object.__getattr__": frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"}),
    "object.__setattr__": frozenset({"__code__", "__defaults__", "__kwdefaults__"}),
}


class Listener:
    """Notes forbidden events while ``on``; one per process, since audit hooks cannot be removed."""

    def __init__(self) -> None:
        self.on = False
        self.seen: dict[str, str] = {}

    def start(self) -> None:
        """Adds the audit hook, which stays until the process ends, and turns it on."""
        sys.addaudithook(self._audit)
        self.on = True

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or event in self.seen:
            return
        what, direct = _meaning(event, arguments)
        if not what:
            return
        self.on = False  # looking at frames is an audited event itself
        asker = _asker(sys._getframe(1), direct)
        if asker is not None:
            self.seen[event] = f"the candidate {what} ({event}, line {asker.f_lineno})"
        self.on = True


def _meaning(event: str, arguments: tuple[Any, ...]) -> tuple[str, bool]:
    """(what the event does or "", whether only a direct call counts)."""
    if event in DIRECTLY:
        names = WATCHED_NAMES.get(event)
        return ("" if names and arguments[1] not in names else DIRECTLY[event]), True
    return THROUGH_LIBRARIES.get(event) or FAMILIES.get(event.partition(".")[0], ""), False


def _asker(innermost: FrameType | None, direct: bool) -> FrameType | None:
    """The candidate's frame that asked, or None when somebody else did."""
    for frame in _frames(innermost):
        if frame.f_code.co_filename.startswith(CANDIDATE):
            return frame
        if direct and not frame.f_code.co_filename.endswith(FRAME_GIVERS):
            return None
        if not _is_plumbing(frame.f_code):
            return None
    return None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_plumbing(code: CodeType) -> bool:
    """Whether to look further up for who asked: libraries act for their caller, except those that
    have files and frames of their own to read."""
    name = code.co_filename
    return name.startswith(FOR_THEIR_CALLER) or not name.startswith(OWN_BUSINESS)
