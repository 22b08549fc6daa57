"""Which layers hold on this machine: a confined child of ours tries to get out. Nothing is
inferred.

    held = await try_layers()
    held.layers, held.open       what took effect; what it could do although it should not, in words

It is started as a zygote is, and forks a child as a zygote does (trying.py). Standard library
only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp import scratch
from kernel_lsp.confinement import (
    BOOTSTRAP,
    NOT_LINUX,
    NOT_LINUX_REMEDY,
    Confinement,
    clean_environment,
    entry,
    visible,
)
from kernel_lsp.confinement.layers import PROMISED, describe, guarantees, left_open, names
from kernel_lsp.errors import Unconfined

MODULE = "kernel_lsp.confinement.trying"
TRYING_S = 30.0
MAX_SOCKET_BYTES = 107
"""Of a socket's name in the file system, as Linux has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a confined child of ours found when it tried."""

    layers: frozenset[str] = frozenset()
    words: str = "nothing confines"
    open: tuple[str, ...] = ()
    """What it could do although it should not, or what no layer keeps it from, in words."""
    problem: str | None = None
    """Why it could not be tried."""

    @property
    def closed(self) -> frozenset[str]:
        """Layers and guarantees that may be required here."""
        return self.layers | guarantees(self.layers)

    @property
    def promise(self) -> frozenset[str]:
        """What an answer to the question for consent rests on here: layers, and what they keep
        closed."""
        return (self.layers & PROMISED) | guarantees(self.layers)


async def try_layers() -> Held:
    """Never raises."""
    if sys.platform != "linux":
        return Held(problem=f"{NOT_LINUX}; {NOT_LINUX_REMEDY}")
    programs = tuple(map(Path, visible.program_folders()))
    with scratch.folder("trying") as folder, entry.requiring(frozenset()):
        for name in ("scratch", "neighbor"):
            (folder / name).mkdir()
        (folder / "neighbor" / "secret").write_text("secret")
        with _listening(folder) as outside:
            try:
                begun = await entry.start(
                    (sys.executable, "-I", "-B", str(BOOTSTRAP), "{}", "read-to-the-end", MODULE),
                    confinement=Confinement(scratch=folder, readable=programs, nesting=True),
                    environment=clean_environment(),
                    stdin=entry.PIPE,
                )
                asked = json.dumps({**outside, "folder": str(folder)}).encode()
                out, err = await asyncio.wait_for(begun.process.communicate(asked), TRYING_S)
                said = json.loads(out or b"{}")
            except (OSError, ValueError, TimeoutError, Unconfined) as error:
                return Held(problem=f"confinement could not be tried: {error}")
    if not said.get("layers"):
        return Held(
            problem=f"confinement could not be tried: {err.decode(errors='replace')[-300:]}"
        )
    layers = said["layers"]
    found = names(layers)
    every = dict.fromkeys((*said["left_open"], *left_open(found)))
    return Held(layers=found, words=describe(layers), open=tuple(every))


@contextlib.contextmanager
def _listening(folder: Path) -> Iterator[dict[str, Any]]:
    """Somebody to reach, in every way that is to be closed."""
    with contextlib.ExitStack() as stack:
        service = str(folder / "neighbor" / "socket")
        if len(os.fsencode(service)) > MAX_SOCKET_BYTES:  # a long TMPDIR
            service = f"{stack.enter_context(tempfile.TemporaryDirectory(dir='/tmp'))}/socket"
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()
        places = {
            "service": service,
            "abstract": f"\0kernel-lsp-{os.getpid()}",
        }
        for name in places.values():
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(name)
            server.listen()
        yield {"tcp": tcp, **places, "pid": os.getpid()}
