"""What a snapshot cannot hold (open files, locks that are held, sockets, threads, objects of
extensions), had by running the recorded program again, up to the call that was kept.

    objects_of_call(home, source, header) -> {key of keeping.py: the program's own object}

The program runs as it was recorded, with the texts of ``home`` and ``source`` in the place of its
files, in a thread of this process that stays where it is when it has come to the call: what its
``with`` blocks hold stays open. Runs the whole program: in confined processes only, whose writes
are thrown away (`Confinement.overlaid`) and which have no network. A call counts as the one that
was kept when it has the same tensors and lacks the same objects. One run per process and snapshot.

Not covered: programs that something else than Python starts (torchrun); modules that are called by
``module.forward(x)``; what the program does in other processes."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import random
import runpy
import socket
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernel_lsp.errors import SnapshotError
from kernel_lsp.files import read_source
from kernel_lsp.records import Home
from kernel_lsp.snapshots import sources
from kernel_lsp.snapshots.keeping import Keeper, NotKept

LIMIT_S = 120.0
"""From the start of the program to the call."""
MAX_CALLS = 256
"""Of the target, among which the call is looked for."""
WITH_VALUE = ("-W", "-X")
LOOK = ("shape", "stride", "dtype")
_known: dict[str, dict[str, Any]] = {}


def objects_of_call(home: Home, source: str, header: Mapping[str, Any]) -> dict[str, Any]:
    """The objects that the call was made with, by the keys of ``header["absent"]``. Raises
    SnapshotError with what was in the way."""
    if home.replay is None or not header.get("absent"):
        return {}
    if home.snapshot not in _known:
        _known[home.snapshot] = _ReplayedProgram(home, source, header).run()
    return _known[home.snapshot]


class _ReplayedProgram:
    """One run of the program, up to the call."""

    def __init__(self, home: Home, source: str, header: Mapping[str, Any]) -> None:
        assert home.replay is not None
        self._header, self._command = header, home.replay.command
        self._texts = {**dict(home.others), home.path: source}
        self._pickler = home.pickler
        self._found: dict[str, Any] | None = None
        self._error: BaseException | None = None
        self._over, self._for_ever = threading.Event(), threading.Event()
        self._seen = 0

    def run(self) -> dict[str, Any]:
        """Raises SnapshotError."""
        with _as_it_was(str(self._header["folder"])), self._stopped_at_the_call():
            threading.Thread(target=self._until_the_call, daemon=True).start()
            in_time = self._over.wait(LIMIT_S)
        if self._found is not None:
            return self._found
        if not in_time:
            raise SnapshotError(
                f"the program was run again and did not come to that call in {LIMIT_S:.0f} s",
                "record a run that comes to it sooner",
            )
        raise _refusal(self._error)

    def _until_the_call(self) -> None:
        try:
            self._run_program()
        except BaseException as error:  # of the program, whatever it raises
            self._error = error
        finally:
            self._over.set()

    def _run_program(self) -> None:
        kind, name, arguments = program_in(self._command)
        script = self._header.get("script")
        sys.argv = [script or name, *arguments]
        if kind == "module":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
            return
        path = str(script or Path(name).absolute())
        text = self._texts.get(path)
        text = read_source(Path(path)).text if text is None else text
        main = types.ModuleType("__main__")
        main.__file__ = path
        sys.modules["__main__"] = main
        sources.remember_lines(path, text)
        exec(compile(text, path, "exec", dont_inherit=True), main.__dict__)

    @contextlib.contextmanager
    def _stopped_at_the_call(self) -> Iterator[None]:
        module = torch.nn.Module
        call, wanted = module.__call__, (self._header["module"], self._header["class"])

        def stopping(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            names = [(kind.__module__, kind.__qualname__) for kind in type(self_).__mro__]
            if self._found is None and wanted in names and self._is_the_call(self_, args, kwargs):
                self._over.set()
                self._for_ever.wait()
            return call(self_, *args, **kwargs)

        module.__call__ = stopping
        try:
            yield
        finally:
            module.__call__ = call

    def _is_the_call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        self._seen += 1
        if self._seen > MAX_CALLS:
            raise _NotReached
        keeper = Keeper("", sys.modules["_kernel_lsp_cloudpickle"], torch)
        try:
            header, absent = keeper.look(target, args, kwargs)
        except NotKept:
            return False
        if _look(header) == _look(self._header):
            self._found = absent
        return self._found is not None


class _NotReached(BaseException):
    """The program has made many calls, none of which is the one that was kept."""


def program_in(command: Sequence[str]) -> tuple[str, str, list[str]]:
    """``module`` or ``script``, its name, and the arguments behind it. Raises SnapshotError for
    what Python does not run by itself."""
    words = list(command)
    started = Path(words[0]).name if words else "nothing"
    if not started.startswith("python"):
        raise SnapshotError(
            f"the program was started by {started}, which is not run again",
            "record it as `python FILE`",
        )
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in WITH_VALUE else 1
    if at < len(words) and words[at] == "-m" and at + 1 < len(words):
        return "module", words[at + 1], words[at + 2 :]
    if at < len(words) and words[at].endswith(".py"):
        return "script", words[at], words[at + 1 :]
    raise SnapshotError("the program has no file", "record it as `python FILE`")


def _look(header: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a call that was made again has in common with the one that was kept."""
    tensors = [tuple(spec[name] for name in LOOK) for spec in header["tensors"]]
    return tensors, dict(header["absent"])


def _refusal(error: BaseException | None) -> SnapshotError:
    """Why the program did not come to the call."""
    if isinstance(error, SnapshotError):
        return error
    if error is None or isinstance(error, (_NotReached, SystemExit)):
        return SnapshotError(
            "the program was run again and did not make that call",
            "record it again; what differs from run to run cannot be opened",
        )
    first = (str(error).strip().splitlines() or [""])[0][:200]
    said = f"{type(error).__name__}: {first}"
    if any(map(_is_of_network, _chain(error))):
        return SnapshotError(
            f"the program asks the network before that call ({said}), and is run again without one",
            "keep what it loads in files of the workspace",
        )
    return SnapshotError(
        f"the program was run again and failed before that call ({said})",
        "it sees the workspace and the files that it read while it was recorded, and no network",
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_of_network(error: BaseException) -> bool:
    """Also where it is the confinement that refuses a socket."""
    if isinstance(error, (ConnectionError, socket.gaierror)):
        return True
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    is_between_processes = any(multiprocessing.__path__[0] in file for file in files)
    return isinstance(error, OSError) and socket.__file__ in files and not is_between_processes


@contextlib.contextmanager
def _as_it_was(folder: str) -> Iterator[None]:
    """The program's folder and arguments while it runs, and everything else afterwards as
    before."""
    kept = sys.argv, sys.stdin, sys.stdout, sys.stderr, sys.modules.get("__main__")
    numbers = torch.get_rng_state(), random.getstate()
    before = Path.cwd()
    try:
        os.chdir(folder)
    except OSError as error:
        raise SnapshotError(
            f"the program's folder {folder} cannot be entered: {error.strerror}",
            "record the program again",
        ) from error
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), io.StringIO(), io.StringIO()
    try:
        yield
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr, main = kept
        if main is not None:
            sys.modules["__main__"] = main
        os.chdir(before)
        torch.set_rng_state(numbers[0])
        random.setstate(numbers[1])
