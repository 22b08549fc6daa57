"""Landlock: files, TCP, signals and abstract sockets, without any privilege.

Covered: reading only what every child may see (visible.py) and what was named, writing only to the
given folders and harmless devices; no TCP; no signal to and no abstract socket of a process
outside. A confined process cannot trace one that is not. Each by the kernel's ABI: 1 files, 3
truncation, 4 TCP, 5 device control, 6 signals. Not covered: other protocols than TCP
(syscalls.py), metadata (stat, chmod), hard limits (rlimits)."""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from kernel_lsp.confinement import linux, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CREATE, ADD, RESTRICT = 444, 445, 446
WRITE_FILE, READ_FILE, READ_DIR = 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
MAKE = 0b1_1111_1111 << 4
"""Removing and making every sort of file."""
READ = READ_FILE | READ_DIR
TCP = 0b11
SCOPES = 0b11
SCOPED = 6
"""From this ABI on no signal reaches a process outside."""
_PATH_BENEATH, _VERSION = 1, 1


def abi() -> int:
    """The kernel's version of Landlock; 0 without one."""
    try:
        return linux.syscall("landlock", CREATE, 0, 0, _VERSION)
    except OSError:
        return 0


def restrict(
    *,
    writable: Iterable[str],
    readable: Iterable[str],
    gpu: bool,
    own_proc: bool,
    nesting: bool = False,
) -> int:
    """Restrict this process and all it starts, for good; returns the ABI.

    ``nesting``: its children have a /proc/self of their own. Needs no_new_privs. Raises OSError.
    """
    version = abi()
    handled = WRITE_FILE | READ | MAKE
    handled |= (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    handled |= IOCTL_DEV if version >= 5 else 0
    network, scoped = (TCP if version >= 4 else 0), (SCOPES if version >= SCOPED else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("=QQQ", handled, network, scoped)[:size]
    ruleset = linux.syscall("landlock_create_ruleset", CREATE, attributes, size, 0)
    try:
        for path in (*visible.system(own_proc=own_proc), *visible.program_folders(), *readable):
            _allow(ruleset, path, READ & handled)
        for path in visible.devices(gpu=gpu):
            _allow(ruleset, path, (READ | WRITE_FILE | IOCTL_DEV) & handled)
        # A thread's name is written through /proc, by CUDA's driver among others.
        _allow(ruleset, "/proc/self", (READ | WRITE_FILE | TRUNCATE) & handled)
        if nesting:
            written = WRITE_FILE | TRUNCATE if gpu or not _changes_the_machine() else 0
            _allow(ruleset, "/proc", (READ | written) & handled)
        for path in writable:
            _allow(ruleset, path, handled & ~IOCTL_DEV)
        linux.syscall("landlock_restrict_self", RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _changes_the_machine() -> bool:
    """Whether this process could write kernel settings through /proc: only root, and not in a
    container."""
    with linux.Ignoring(OSError):
        return os.geteuid() == 0 and not os.statvfs("/proc/sys").f_flag & os.ST_RDONLY
    return False


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Grant ``rights`` below ``path``; what does not exist needs no grant."""
    with linux.Ignoring(FileNotFoundError, NotADirectoryError, PermissionError):
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(folder).st_mode):
                rights &= WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
            rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, folder))
            linux.syscall("landlock_add_rule", ADD, ruleset, _PATH_BENEATH, rule, 0)
        finally:
            os.close(folder)
