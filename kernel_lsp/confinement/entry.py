"""The one way in which a process is started that runs anything which is not ours.

    begun = await entry.start([python, …], confinement=…, environment=…)
    begun.process, begun.layers            it runs; what took effect
    Unconfined                             less held than was required: nothing of it has run

A launcher of ours (launching.py), in our own interpreter and seeing no package, confines itself
and only then becomes the program: not even what an interpreter executes while it starts is
unconfined. Children that a zygote forks are confined by the same code from the same record
(confine.py). Standard library only."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from kernel_lsp.confinement import UNEDITED, Confinement, Limits, launching
from kernel_lsp.confinement.layers import (
    GUARANTEES,
    OF_A_ZYGOTE,
    PROMISED,
    REPLACED,
    describe,
    names,
)
from kernel_lsp.errors import Unconfined

LAUNCHER = Path(__file__).with_name("launcher.py")
RECORD = "KERNEL_LSP_CONFINEMENT_LOG"
"""A file to which each confined start adds a line of JSON: what was started, and what took
effect."""
LAST_WORDS_S = 5.0
FOLDERS = ("hidden", "readable", "writable", "overlaid")
PIPE, DEVNULL = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL

_required: ContextVar[frozenset[str]] = ContextVar("required", default=frozenset(GUARANTEES))


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    process: asyncio.subprocess.Process
    layers: Mapping[str, Any]
    """As `confine.confine` has returned it."""


@contextlib.contextmanager
def requiring(required: frozenset[str]) -> Iterator[None]:
    """What must hold (layers and guarantees by name) for everything that is started in the block;
    all guarantees where nobody says it."""
    token = _required.set(required)
    try:
        yield
    finally:
        _required.reset(token)


def require(required: frozenset[str]) -> None:
    """Sets the layers that children must have from now on, as `requiring` does for a while: for a
    program that does one thing."""
    _required.set(required)


def required_layers(*, nesting: bool = False) -> frozenset[str]:
    """The layers that this process must have around it before it runs code; `nesting`: those of a
    zygote, which confines its children itself."""
    found = _required.get()
    return found & OF_A_ZYGOTE if nesting else found


def order(confinement: Confinement) -> dict[str, Any]:
    """The confinement as confine.Order takes it. A file is replaced where it really lies."""
    replaced = {
        os.path.realpath(path): os.fspath(file) for path, file in confinement.replaced.items()
    }
    folders = {name: [os.fspath(path) for path in getattr(confinement, name)] for name in FOLDERS}
    needed = required_layers(nesting=confinement.nesting) | ({REPLACED} if replaced else set())
    return {
        "scratch": str(confinement.scratch),
        "gpu": confinement.gpu,
        "nesting": confinement.nesting,
        "required": sorted(needed),
        "replaced": replaced,
        **folders,
    }


async def start(
    argv: Sequence[str],
    *,
    confinement: Confinement,
    environment: Mapping[str, str],
    limits: Limits | None = None,
    stdin: int | IO[Any] = DEVNULL,
    stdout: int | IO[Any] = PIPE,
    stderr: int | IO[Any] | None = PIPE,
) -> Begun:
    """Start a program, confined, in a session of its own. Raises OSError when it cannot be
    started, and Unconfined."""
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise FileNotFoundError(2, "No such file", argv[0])
    rlimits = {key: value for key, value in asdict(limits or Limits()).items() if value is not None}
    report_end, tell = os.pipe()
    asked = {
        "order": order(confinement),
        "limits": rlimits,
        "argv": [
            program if os.path.isabs(program) else os.path.join(os.getcwd(), program),
            *argv[1:],
        ],
        "tell": tell,
        "bubblewrap": not os.environ.get("KERNEL_LSP_NO_BWRAP"),
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(LAUNCHER), launching.encode(asked)),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=confinement.scratch,
            env=dict(environment),
            pass_fds=(tell,),
            start_new_session=True,
            limit=2**20,
        )
    except BaseException:
        os.close(report_end)
        raise
    finally:
        os.close(tell)
    try:
        said = await _hear(report_end)
    except BaseException:  # cancelled: nobody will ever hold this process
        await asyncio.shield(abandon(process))
        raise
    layers = said.get("layers") or {}
    if "missing" in said or not layers:
        words = await _end(process)
        raise refusal(said.get("missing"), layers, said.get("problem") or words)
    keep(process.pid, argv[0], argv[-1], layers)
    return Begun(process=process, layers=layers)


def refusal(
    missing: Sequence[str] | None, layers: Mapping[str, Any], problem: str | None
) -> Unconfined:
    """Why nothing was run, and what its user can do."""
    if missing and REPLACED in missing:
        return Unconfined(
            UNEDITED, "allow user namespaces, or run kernel-lsp where they are allowed"
        )
    if not missing:
        return Unconfined(
            f"nothing was run: it could not be confined: {problem or 'no word came back'}"
        )
    opened = [GUARANTEES[name] for name in missing if name in GUARANTEES]
    lost = [name for name in missing if name in PROMISED]
    parts = [f"it would be open that {'; '.join(opened)}"] if opened else []
    parts += [f"these layers were promised and are not there: {', '.join(lost)}"] if lost else []
    here = describe(layers) if layers else "nothing confines here"
    return Unconfined(
        f"nothing was run: {', and '.join(parts)} ({here})",
        "allow user namespaces or use a kernel with Landlock; `kernel-lsp doctor` says what "
        "holds here, "
        "`kernel-lsp trust FOLDER --accept-weaker` accepts it for one folder",
    )


def keep(pid: int, program: str, what: str, layers: Mapping[str, Any]) -> None:
    """Write down what took effect, where somebody audits it."""
    file = os.environ.get(RECORD)
    if file:
        started = {"pid": pid, "program": program, "what": what, "at": time.time()}
        line = {**started, "layers": sorted(names(layers))}
        with Path(file).open("a", encoding="utf-8") as record:
            record.write(json.dumps(line) + "\n")


async def _end(process: asyncio.subprocess.Process) -> str:
    """Its last words, if it has said any."""
    with contextlib.suppress(TimeoutError):
        _, err = await asyncio.wait_for(process.communicate(), LAST_WORDS_S)
        lines = (err or b"").decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    return ""


async def abandon(process: asyncio.subprocess.Process) -> None:
    """End it, and close its pipes: asyncio closes those of a process when its output is at the
    end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.communicate(), LAST_WORDS_S)


async def _hear(report_end: int) -> dict[str, Any]:
    """What the launcher says before it becomes the program. No thread waits for it: that takes a
    millisecond, and could not be cancelled."""
    reader, pipe = asyncio.StreamReader(limit=2**16), os.fdopen(report_end, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        with contextlib.suppress(ValueError, SyntaxError):
            return dict(ast.literal_eval((await reader.readline()).decode() or "{}"))
    finally:
        transport.close()
    return {}
