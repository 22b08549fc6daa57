"""Namespaces: a process tree, mounts, network, IPC and host name of its own, without bubblewrap.

As root directly, as a user inside a user namespace where the machine permits that. Covered: the
first process of the tree takes everything it started with it when it dies; a view of files of its
own (mounts.py) and its own /proc; no network; a bound on the number of processes. Not covered:
machines that permit none of it (containers): the caller learns it and says so."""

from __future__ import annotations

import os
import sys

from kernel_lsp.confinement import linux, mounts
from kernel_lsp.confinement.mounts import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PROCESSES_PER_CORE, PROCESSES = 8, 320
"""Processes and threads of a tree. A bomb of 1000 copies of torch takes two cores 7 s to clear
away."""
TREES_OF_A_ZYGOTE = 2
"""It is bounded for all of its children together, of which a few run at once."""
MACHINE_WIDE = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""Parts of /proc that root may write to even without any capability."""


def enter_process_tree() -> bool:
    """Make the next forked child the first of its own process tree; whether the machine permits it.

    Best called in a process that does nothing else: a half-entered one stays as it is.
    """
    if os.geteuid() == 0:
        with linux.Ignoring(OSError):  # root of a container may lack the privilege
            linux.unshare(linux.CLONE_NEWPID)
            return True
    try:
        _enter_as_user()
    except OSError:
        return False
    return True


def _enter_as_user() -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID)
    write_maps("self", user, group)


def separate(view: View, *, nesting: bool = False) -> list[str]:
    """Give this process, the first of its tree, its own mounts, network, IPC and host name.

    Returns what took effect. ``nesting``: children of it will do the same for themselves, so that
    its /proc stays uncovered (the kernel shows no second one beside a covered one). As root it is
    read-only instead, but where a GPU is used, whose driver writes there."""
    done = ["processes"]
    try:
        linux.unshare(linux.CLONE_NEWNET)
        done.append("network")
        linux.unshare(linux.CLONE_NEWIPC | linux.CLONE_NEWUTS)
        done.append("ipc")
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        done += mounts.make_own(view)
        _mount_proc()
        done.append("proc")
        with linux.Ignoring(OSError):
            _bound_processes(TREES_OF_A_ZYGOTE if nesting else 1)
            done.append("process count")
        if not nesting:
            _cover_machine_wide()
        elif os.geteuid() == 0 and not view.gpu:
            mounts.make_read_only("/proc")
    except OSError as error:
        # Not to standard output, which is the program's. What is missing is in the evidence.
        print(f"confinement: {error}", file=sys.stderr, flush=True)
    return done


def _mount_proc() -> None:
    """Read-only where the one outside is."""
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    try:
        linux.mount("proc", "/proc", "proc", flags)
    except OSError:
        linux.mount("proc", "/proc", "proc", flags | linux.MS_RDONLY)


def _cover_machine_wide() -> None:
    for path in MACHINE_WIDE:
        if os.path.exists(path):
            mounts.make_read_only(path)


def lock(ask_for_maps: Callable[[], None]) -> None:
    """Enter a user namespace of this process's own: what is read-only stays so, and privileges
    count inside it alone. ``ask_for_maps`` has a process outside write its maps. Raises
    OSError."""
    linux.unshare(linux.CLONE_NEWUSER)
    ask_for_maps()


def write_maps(process: str, user: int, group: int) -> None:
    """Maps the process' user and group to the same numbers inside as outside. Raises OSError."""
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/{process}/{name}", "w") as file:
            file.write(text)


def _bound_processes(trees: int) -> None:
    """Process numbers are counted per tree since Linux 6.14, also for root, whom no rlimit
    binds."""
    bound = trees * (PROCESSES + PROCESSES_PER_CORE * (os.cpu_count() or 1))
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 14):
        raise OSError("this kernel counts process numbers for the whole machine")
    with open("/proc/sys/kernel/pid_max", "w") as file:
        file.write(str(bound))
