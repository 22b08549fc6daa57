"""The child's side of confinement: layer after layer, each optional, each reported.

    process tree -> mounts, network, IPC -> limits -> no privileges -> Landlock -> system calls

Runs in a freshly forked child, single-threaded, before any code that is not ours. Standard library
only. Not covered: GPU memory, an attack on the kernel itself; see each layer's own file.
"""

from __future__ import annotations

import ctypes
import os
import struct

from kernel_lsp import bootstrap
from kernel_lsp.confinement import landlock, linux, mounts, namespaces, syscalls
from kernel_lsp.confinement.layers import MOUNTS, OVERLAYS, PROC, guarantees, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

LAST_CAP = 63
CAPGET = {"x86_64": 125, "aarch64": 90}
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION_3 = 0x20080522
PRIVATE_BYTES = 2 * 1024**3
OOM_FIRST = 1000


class Order:
    """What a child may touch, as its parent sent it (see confinement.Confinement)."""

    def __init__(
        self,
        *,
        scratch: str,
        hidden: Sequence[str] = (),
        readable: Sequence[str] = (),
        writable: Sequence[str] = (),
        overlaid: Sequence[str] = (),
        replaced: dict[str, str] | None = None,
        gpu: bool = False,
        nesting: bool = False,
        required: Sequence[str] = (),
        inherited: Sequence[str] = (),
        software: Sequence[str] = (),
    ) -> None:
        """``nesting``: whether its children confine themselves further (a zygote).
        ``required``: what must hold, or nothing is run: layers and guarantees by name (layers.py).
        ``inherited``: namespaces of the process that it was forked from, which hold for it as they
        are. ``software``: folders of another interpreter's programs."""
        self.scratch, self.replaced = scratch, replaced or {}
        self.hidden, self.readable, self.writable = [*hidden], [*readable], [*writable]
        self.overlaid, self.software = [*overlaid], [*software]
        self.gpu, self.nesting = gpu, nesting
        self.required, self.inherited = [*required], [*inherited]


class Missing(Exception):
    """Less holds than was required."""

    def __init__(self, what: list[str], layers: dict[str, Any]) -> None:
        super().__init__(", ".join(what))
        self.what, self.layers = what, layers


def confine(
    order: Order,
    limits: dict[str, int],
    *,
    tree: bool,
    ask_for_maps: Callable[[], None] | None = None,
    prepared: Sequence[str] = (),
) -> dict[str, Any]:
    """Confine this process for good; ``tree`` says that it is the first of its own process tree.

    Returns the layers that took effect: namespaces (names), landlock (ABI or 0), seccomp,
    privileges. ``ask_for_maps``: see `namespaces.lock`. ``prepared``: namespaces that bubblewrap
    has made before. Raises Missing when less holds than the order requires; nothing may be run
    then."""
    with linux.Ignoring(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_FIRST))
    separate = namespaces.separate(_view(order), nesting=order.nesting) if tree else [*prepared]
    nests_mounts = order.nesting and MOUNTS in separate
    is_locked = nests_mounts and os.geteuid() == 0 and _lock(ask_for_maps)
    os.chdir(order.scratch)  # now: the same folder of before is read-only
    bootstrap.apply_limits(limits)
    privileges = _keeps_privileges(is_locked)
    may_mount = nests_mounts and not prepared  # Landlock permits no mounts below it
    abi = 0 if may_mount else _restrict_files(order, separate)
    filtered = _filter_calls(order, separate, scoped=abi >= landlock.SCOPED)
    layers: dict[str, Any] = {
        "namespaces": [*separate, *(name for name in order.inherited if name not in separate)],
        "landlock": abi,
        "seccomp": filtered,
        "privileges": privileges,
    }
    found = names(layers)
    missing = sorted(set(order.required) - found - guarantees(found))
    if missing:
        raise Missing(missing, layers)
    return layers


def _view(order: Order) -> mounts.View:
    return mounts.View(
        readable=order.readable,
        writable=[order.scratch, *order.writable],
        hidden=order.hidden,
        overlaid=order.overlaid,
        replaced=order.replaced,
        gpu=order.gpu,
        size=PRIVATE_BYTES,
        software=order.software,
    )


def _lock(ask_for_maps: Callable[[], None] | None) -> bool:
    """Whether the privileges of root count inside a namespace of its own alone from now on."""
    if ask_for_maps is not None:
        with linux.Ignoring(OSError):
            namespaces.lock(ask_for_maps)
            return True
    return False


def _keeps_privileges(is_locked: bool) -> bool:
    """Whether some are left that count outside, after all were given up that could be."""
    with linux.Ignoring(OSError):
        linux.prctl("no_new_privs", linux.PR_SET_NO_NEW_PRIVS, 1)
        if is_locked:
            return False
        drop_privileges()
        return _has_privileges()
    return True


def _restrict_files(order: Order, separate: Sequence[str]) -> int:
    """The ABI of Landlock, which from now on permits what the order does; 0 without it."""
    writable = [order.scratch, *order.writable]
    if MOUNTS in separate:
        writable += mounts.PRIVATE
    if OVERLAYS in separate:
        writable += order.overlaid
    with linux.Ignoring(OSError):
        return landlock.restrict(
            writable=writable,
            readable=[*order.readable, *order.overlaid, *order.replaced, *order.software],
            gpu=order.gpu,
            own_proc=PROC in separate,
            nesting=order.nesting,
        )
    return 0


def _filter_calls(order: Order, separate: Sequence[str], *, scoped: bool) -> bool:
    """Whether system calls are filtered from now on. ``scoped``: Landlock keeps its signals."""
    own = PROC in separate or order.nesting
    with linux.Ignoring(OSError):
        syscalls.install(
            nesting=order.nesting, signals=own or scoped, others=own, metadata=MOUNTS in separate
        )
        return True
    return False


def _has_privileges() -> bool:
    """Whether any capability is left. Raises OSError."""
    header, found = struct.pack("=Ii", CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    linux.syscall("capget", CAPGET.get(linux.MACHINE, -1), header, found)
    return any(found.raw)


def drop_privileges() -> None:
    """No capability now, and none after an exec (with no_new_privs). Raises OSError."""
    for capability in range(LAST_CAP + 1):
        with linux.Ignoring(OSError):  # EINVAL above the kernel's last; EPERM for one who has none
            linux.prctl("capbset", linux.PR_CAPBSET_DROP, capability)
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    linux.syscall("capset", CAPSET.get(linux.MACHINE, -1), header, bytes(24))
