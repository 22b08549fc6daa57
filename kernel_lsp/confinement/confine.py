"""The child's side of confinement: layer after layer, each optional, each reported.

    process tree -> mounts, network, IPC -> limits -> no privileges -> Landlock -> system calls

Runs in a freshly forked child, single-threaded, before any code that is not ours. Standard library
only. Not covered: GPU memory, an attack on the kernel itself; see each layer's own file.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass, field
from typing import Any

from kernel_lsp import bootstrap
from kernel_lsp.confinement import landlock, linux, mounts, namespaces, syscalls
from kernel_lsp.confinement.layers import MOUNTS, OVERLAYS

LAST_CAP = 63
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION_3 = 0x20080522
PRIVATE_BYTES = 2 * 1024**3
OOM_FIRST = 1000


@dataclass(kw_only=True, slots=True)
class Order:
    """What a child may touch, as its parent sent it (see confinement.Confinement)."""

    scratch: str
    hidden: list[str] = field(default_factory=list)
    readable: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)
    overlaid: list[str] = field(default_factory=list)
    replaced: dict[str, str] = field(default_factory=dict)
    gpu: bool = False


def confine(order: Order, limits: dict[str, int], *, tree: bool) -> dict[str, Any]:
    """Confine this process for good; ``tree`` says that it is the first of its own process tree.

    Returns the layers that took effect: namespaces (names), landlock (ABI or 0), seccomp, privileges.
    """
    folders = [order.scratch, *order.writable]
    layers: dict[str, Any] = {"namespaces": [], "landlock": 0, "seccomp": False, "privileges": True}
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_FIRST))
    if tree:
        layers["namespaces"] = namespaces.separate(
            mounts.View(
                readable=order.readable,
                writable=folders,
                hidden=order.hidden,
                overlaid=order.overlaid,
                replaced=order.replaced,
                gpu=order.gpu,
                size=PRIVATE_BYTES,
            )
        )
    os.chdir(order.scratch)  # now: the same folder of before is read-only
    readable = [*order.readable, *order.overlaid, *order.replaced]
    if MOUNTS in layers["namespaces"]:
        folders = [*folders, *mounts.PRIVATE]
    if OVERLAYS in layers["namespaces"]:
        folders = [*folders, *order.overlaid]
    bootstrap.apply_limits(limits)
    with contextlib.suppress(OSError):
        linux.prctl("no_new_privs", linux.PR_SET_NO_NEW_PRIVS, 1)
        drop_privileges()
        layers["privileges"] = False
    with contextlib.suppress(OSError):
        layers["landlock"] = landlock.restrict(
            writable=folders,
            readable=readable,
            gpu=order.gpu,
            own_proc="proc" in layers["namespaces"],
        )
    with contextlib.suppress(OSError):
        syscalls.install()
        layers["seccomp"] = True
    return layers


def drop_privileges() -> None:
    """No capability now, and none after an exec (with no_new_privs). Raises OSError."""
    for capability in range(LAST_CAP + 1):
        with contextlib.suppress(OSError):  # EINVAL above the kernel's last; EPERM for one who has none
            linux.prctl("capbset", linux.PR_CAPBSET_DROP, capability)
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    linux.syscall("capset", CAPSET.get(linux.MACHINE, -1), header, bytes(24))
