"""Calls of the Linux kernel that Python does not offer, by ctypes. Standard library only.

What a launcher imports (this file, and all that launching.py names) imports little itself: modules
such as contextlib, collections, dataclasses, json and re would take longer than confining does.

Covered: x86-64 and aarch64. Elsewhere every call fails with OSError(ENOSYS), which callers report
as a layer that did not take effect."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 1 << 18
MNT_DETACH = 2
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MACHINE = os.uname().machine if sys.platform == "linux" else ""
SUPPORTED = MACHINE in ("x86_64", "aarch64")
SIGKILL = 9
_libc = ctypes.CDLL(None, use_errno=True)


class Ignoring:
    """contextlib.suppress, for what a launcher imports."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._kinds)


def check(result: int, what: str) -> int:
    """``result`` of a C call; raises OSError when it is -1."""
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(what: str, number: int, *arguments: int | bytes | object) -> int:
    """A system call by number, for those that the C library has no name for."""
    if not SUPPORTED:
        raise OSError(errno.ENOSYS, f"{what}: not known on {MACHINE or sys.platform}")
    wide = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    return check(_libc.syscall(ctypes.c_long(number), *wide), what)


def prctl(what: str, option: int, value: int | bytes = 0) -> int:
    """What prctl returns for the option. Raises OSError, which names `what`."""
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    zero = ctypes.c_ulong(0)
    return check(_libc.prctl(ctypes.c_int(option), argument, zero, zero, zero), what)


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Raises OSError."""
    check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    """mount(2). Raises OSError, which names the target."""
    texts = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    done = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    check(done, f"mount {target}")


def unmount(target: str) -> None:
    """Out of sight at once; gone when nobody uses it any more."""
    check(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")
