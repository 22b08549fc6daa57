"""Namespaces: a process tree, mounts, network, IPC and host name of its own, without bubblewrap.

As root directly, as a user inside a user namespace where the machine permits that. Covered: the first
process of the tree takes everything it started with it when it dies; a view of files of its own
(mounts.py) and its own /proc; no network; a bound on the number of processes.
Not covered: machines that permit none of it (containers): the caller learns it and says so.
"""

from __future__ import annotations

import contextlib
import os

from kernel_lsp.confinement import linux, mounts
from kernel_lsp.confinement.mounts import View

PROCESSES_PER_CORE, PROCESSES = 8, 320
"""Processes and threads of a tree. A bomb of 1000 copies of torch takes two cores 7 s to clear away."""
MACHINE_WIDE = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""Parts of /proc that root may write to even without any capability."""


def enter_process_tree() -> bool:
    """Make the next forked child the first of its own process tree; whether the machine permits it."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # root of a container may lack the privilege
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
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def separate(view: View) -> list[str]:
    """Give this process, the first of its tree, its own mounts, network, IPC and host name.

    Returns what took effect.
    """
    done = ["processes"]
    try:
        linux.unshare(linux.CLONE_NEWNET)
        done.append("network")
        linux.unshare(linux.CLONE_NEWIPC | linux.CLONE_NEWUTS)
        done.append("ipc")
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        done += mounts.make_own(view)
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        done.append("proc")
        with contextlib.suppress(OSError):
            _bound_processes()
            done.append("process count")
        for path in MACHINE_WIDE:
            if os.path.exists(path):
                mounts.make_read_only(path)
    except OSError as error:
        print(f"confinement: {error}", flush=True)  # the layers that are missing are in the evidence
    return done


def _bound_processes() -> None:
    """Process numbers are counted per tree since Linux 6.14, also for root, whom no rlimit binds."""
    bound = PROCESSES + PROCESSES_PER_CORE * (os.cpu_count() or 1)
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 14):
        raise OSError("this kernel counts process numbers for the whole machine")
    with open("/proc/sys/kernel/pid_max", "w") as file:
        file.write(str(bound))
