"""Layers of confinement: their names, the words for them, and which of them hold on this machine.

    held = await tried()      a confined child of ours has tried to get out; nothing is inferred
    OVERLAYS in held.layers, held.left_open

Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lsp.confinement import BOOTSTRAP, clean_environment

MOUNTS, OVERLAYS, REPLACED = "mounts", "overlays", "replaced files"
LANDLOCK, SECCOMP, PRIVILEGES = "Landlock", "seccomp", "no privileges"
MODULE = "kernel_lsp.confinement.trying"
TRYING_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a confined child of ours found when it tried."""

    layers: frozenset[str] = frozenset()
    words: str = "nothing confines"
    left_open: tuple[str, ...] = ()
    """What it could do although it should not, in words."""
    problem: str | None = None
    """Why it could not be tried."""


async def tried() -> Held:
    """Which layers hold here, by trying them in a child of this process's own interpreter. Never raises."""
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-") as scratch:
        try:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-B", str(BOOTSTRAP), "{}", "read-to-the-end", MODULE),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=scratch,
                env={**clean_environment(), "TMPDIR": scratch},
            )
            out, err = await asyncio.wait_for(child.communicate(), TRYING_S)
            said = json.loads(out)
        except (OSError, ValueError, TimeoutError) as error:
            return Held(problem=f"confinement could not be tried: {error}")
    if not said.get("layers"):
        return Held(problem=f"confinement could not be tried: {err.decode(errors='replace')[-300:]}")
    layers = said["layers"]
    return Held(layers=names(layers), words=describe(layers), left_open=tuple(said["left_open"]))


def names(layers: Mapping[str, Any]) -> frozenset[str]:
    """The layers that took effect, of what `confine.confine` has returned."""
    found = set(layers.get("namespaces", ()))
    found |= {LANDLOCK} if layers.get("landlock") else set()
    found |= {SECCOMP} if layers.get("seccomp") else set()
    return frozenset(found if layers.get("privileges", True) else {*found, PRIVILEGES})


def describe(layers: Mapping[str, Any]) -> str:
    """The same in words, for the evidence."""
    namespaces = list(layers.get("namespaces", ()))
    parts = [f"namespaces ({', '.join(namespaces)})" if namespaces else "no namespaces"]
    parts.append(f"Landlock {layers['landlock']}" if layers.get("landlock") else "no Landlock")
    parts.append("seccomp" if layers.get("seccomp") else "no seccomp")
    parts.append("privileges kept" if layers.get("privileges", True) else "no privileges")
    return ", ".join(parts)
