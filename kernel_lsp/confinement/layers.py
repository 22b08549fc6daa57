"""Layers of confinement: their names, the words for them, and what they keep closed.

    layers -> guarantees         what a child must not be able to do, and what keeps it from that
    held = await try_layers()    a confined child tries to get out (held.py)

Standard library only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

PROCESSES, NETWORK, IPC, MOUNTS, PROC = "processes", "network", "ipc", "mounts", "proc"
OVERLAYS, REPLACED = "overlays", "replaced files"
LANDLOCK, SECCOMP, PRIVILEGES = "Landlock", "seccomp", "no privileges"
PROMISED = frozenset({PROCESSES, NETWORK, IPC, MOUNTS, PROC, LANDLOCK, SECCOMP, PRIVILEGES})
"""Layers that an answer to the question for consent rests on."""

INHERITED = frozenset({NETWORK, IPC, "process count"})
"""What of a zygote's namespaces holds for its children, whatever they can add."""

FILES, NET, SERVICES = "files are closed", "the network is closed", "local services are closed"
OTHERS, RIGHTS = "other processes are closed", "privileges are dropped"
GUARANTEES: dict[str, str] = {
    FILES: "files of yours and of others can be read and written",
    NET: "the network can be reached",
    SERVICES: "sockets of local services can be reached",
    OTHERS: "other processes of yours can be read, traced or signaled",
    RIGHTS: "privileges of this user stay (root's, or a program's that gives them)",
}
"""What must hold before anything of a workspace is run -> what is open where it does not."""
OF_A_ZYGOTE = frozenset({FILES, NET, SERVICES, RIGHTS})
"""What must hold for a process that only imports packages and forks children who confine
themselves."""


def guarantees(layers: Iterable[str]) -> frozenset[str]:
    """The names in GUARANTEES of what a process cannot reach where these layers took effect."""
    held = frozenset(layers)
    ways = {
        FILES: ({MOUNTS}, {LANDLOCK}),
        NET: ({NETWORK}, {SECCOMP}),
        SERVICES: ({SECCOMP},),
        OTHERS: ({PROCESSES, PROC}, {LANDLOCK, SECCOMP}),
        RIGHTS: ({PRIVILEGES},),
    }
    return frozenset(name for name, any_of in ways.items() if any(way <= held for way in any_of))


def left_open(layers: Iterable[str]) -> tuple[str, ...]:
    """What a process can still reach where these layers took effect, in words."""
    held = guarantees(layers)
    return tuple(words for name, words in GUARANTEES.items() if name not in held)


def names(layers: Mapping[str, Any]) -> frozenset[str]:
    """The layers that took effect, of what `confine.confine` has returned."""
    found = set(layers.get("namespaces", ()))
    found |= {LANDLOCK} if layers.get("landlock") else set()
    found |= {SECCOMP} if layers.get("seccomp") else set()
    return frozenset(found if layers.get("privileges", True) else {*found, PRIVILEGES})


def describe(layers: Mapping[str, Any]) -> str:
    """Which layers hold, in words, for the evidence."""
    namespaces = list(layers.get("namespaces", ()))
    parts = [f"namespaces ({', '.join(namespaces)})" if namespaces else "no namespaces"]
    parts.append(f"Landlock {layers['landlock']}" if layers.get("landlock") else "no Landlock")
    parts.append("seccomp" if layers.get("seccomp") else "no seccomp")
    parts.append("privileges kept" if layers.get("privileges", True) else "no privileges")
    return ", ".join(parts)
