"""Run one of our modules inside another interpreter, with nothing installed there.

    PYTHON -B bootstrap.py '{"memory_bytes": …}' leave-with-pipe kernel_lsp.rewrite.engine [ARGS]

The package is registered under its name without putting its parent folder on sys.path,
because that folder is the server's site-packages and would shadow the project's own.
Limits are set here, in the child and before any other code, rather than in a preexec_fn,
which is not safe in a process with threads. Imports nothing of ours: it must run first. What
limits alone do not need is imported where it is used: a launcher sets them too.
"""

import os
import sys

PR_SET_PDEATHSIG, SIGKILL = 1, 9
if sys.platform == "win32":  # imported there too, by a server that judges nothing
    RLIMITS: dict[str, int] = {}
else:
    import resource

    RLIMITS = {
        "memory_bytes": resource.RLIMIT_AS,
        "cpu_seconds": resource.RLIMIT_CPU,
        "file_bytes": resource.RLIMIT_FSIZE,
        "processes": resource.RLIMIT_NPROC,
    }


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent goes, so that kill -9 leaves no orphan."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL)
    if parent != os.getppid():  # it went between the two lines
        os._exit(1)


def leave_with_pipe() -> None:
    """End this process when the other end of its standard input is gone, whatever it is doing.

    The parent's death signal does not reach through bubblewrap before that has armed its own, and
    a child that is still importing torch then (10 s on a busy machine) would not look at the pipe
    for as long."""
    import select
    import threading

    poll = select.poll()
    poll.register(os.dup(0), 0)  # no events asked for: only the hang-up is reported

    def watch() -> None:
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="leave-with-pipe", daemon=True).start()


def apply_limits(limits: dict[str, int]) -> None:
    """Limits this process and its children to so much of each resource, by the names of RLIMITS; no
    core dumps."""
    for name, value in limits.items():
        resource.setrlimit(RLIMITS[name], (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def register_package() -> None:
    """Make ``import kernel_lsp`` work from this file's own folder."""
    import importlib.util

    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    spec = importlib.util.spec_from_file_location(
        "kernel_lsp", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["kernel_lsp"] = package
    spec.loader.exec_module(package)


def main() -> None:
    """Runs the module that the arguments name, under the limits that they name, until the parent
    dies."""
    import json
    import runpy

    die_with_parent()
    apply_limits(json.loads(sys.argv[1]))
    if sys.argv[2] == "leave-with-pipe":
        leave_with_pipe()
    register_package()
    sys.argv = sys.argv[3:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
