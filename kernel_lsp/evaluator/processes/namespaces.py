"""Namespaces: a process tree, mounts, network, IPC and host name of its own, without bubblewrap.

As root directly, as a user inside a user namespace where the machine permits that. Covered: the first
process of the tree takes everything it started with it when it dies; private /tmp, /dev/shm and /proc;
everything else read-only except the given folders; no network; a bound on the number of processes.
Not covered: machines that permit none of it (containers): the caller learns it and says so.
"""

from __future__ import annotations

import contextlib
import os
import struct

from kernel_lsp.evaluator.processes import linux

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 1 << 18
ATTR_RDONLY = 1
PRIVATE = ("/tmp", "/dev/shm")
PROCESSES_PER_CORE, PROCESSES = 8, 320
"""Processes and threads of a tree. A bomb of 1000 copies of torch takes two cores 7 s to clear away."""
MACHINE_WIDE = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""Parts of /proc that root may write to even without any capability."""


def enter_process_tree() -> bool:
    """Make the next forked child the first of its own process tree; whether the machine permits it."""
    try:
        if os.geteuid() == 0:
            linux.unshare(linux.CLONE_NEWPID)
        else:
            _enter_as_user()
    except OSError:
        return False
    return True


def _enter_as_user() -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID)
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def separate(*, writable: list[str], readable: list[str], hidden: list[str], size: int) -> list[str]:
    """Give this process, the first of its tree, its own mounts, network, IPC and host name.

    ``size`` bounds what it can write to its private folders, in bytes. Returns what took effect.
    """
    done = ["processes"]
    try:
        linux.unshare(linux.CLONE_NEWNET)
        done.append("network")
        linux.unshare(linux.CLONE_NEWIPC | linux.CLONE_NEWUTS)
        done.append("ipc")
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", None, MS_REC | MS_PRIVATE)
        _own_mounts(writable, readable, hidden, size)
        done.append("mounts")
        linux.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        done.append("proc")
        with contextlib.suppress(OSError):
            _bound_processes()
            done.append("process count")
        _protect_proc()
    except OSError as error:
        print(f"confinement: {error}", flush=True)  # the layers that are missing are in the evidence
    return done


def _own_mounts(writable: list[str], readable: list[str], hidden: list[str], size: int) -> None:
    """Everything read-only, private folders over the shared ones, and the given folders in their places."""
    trees = {path: _clone(path) for path in (*readable, *writable) if os.path.isdir(path)}
    _read_only(AT_FDCWD, b"/", AT_RECURSIVE)
    for path in (*PRIVATE, *hidden):
        if os.path.isdir(path):
            linux.mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},mode=1777")
    for path, tree in trees.items():
        with contextlib.suppress(OSError):  # it exists, read-only, or lies in a private folder
            os.makedirs(path)
        if path not in writable:
            _read_only(tree, b"", AT_EMPTY_PATH | AT_RECURSIVE)
        _place(tree, path)


def _place(tree: int, path: str) -> None:
    linux.syscall("move_mount", MOVE_MOUNT, tree, b"", AT_FDCWD, path.encode(), MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)


def _clone(path: str) -> int:
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_RECURSIVE
    return linux.syscall("open_tree", OPEN_TREE, AT_FDCWD, path.encode(), flags)


def _read_only(folder: int, path: bytes, flags: int) -> None:
    attributes = struct.pack("=QQQQ", ATTR_RDONLY, 0, 0, 0)
    linux.syscall("mount_setattr", MOUNT_SETATTR, folder, path, flags, attributes, len(attributes))


def _bound_processes() -> None:
    """Process numbers are counted per tree since Linux 6.14, also for root, whom no rlimit binds."""
    bound = PROCESSES + PROCESSES_PER_CORE * (os.cpu_count() or 1)
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 14):
        raise OSError("this kernel counts process numbers for the whole machine")
    with open("/proc/sys/kernel/pid_max", "w") as file:
        file.write(str(bound))


def _protect_proc() -> None:
    for path in MACHINE_WIDE:
        if os.path.exists(path):
            tree = _clone(path)
            _read_only(tree, b"", AT_EMPTY_PATH | AT_RECURSIVE)
            _place(tree, path)
