"""kernel-lsp where a system lacks what only POSIX and Linux have: python without_posix.py ARGUMENTS

Takes away the modules and the functions of `os` that Windows has not, once the libraries that would
take another way there are imported. No Windows: paths, processes and locks stay Linux's."""

import os
import sys
import sysconfig
from importlib import import_module

for name in (
    "asyncio", "subprocess", "multiprocessing.connection", "multiprocessing.popen_spawn_posix",
    "multiprocessing.resource_tracker", "concurrent.futures.process", "getpass",
    "filelock", "platformdirs", "psutil", "rich.console", "typer", "watchdog.observers",
):  # fmt: skip
    import_module(name)
sysconfig.get_config_vars()
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"):
    sys.modules[name] = None  # type: ignore[assignment]
for name in (
    "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "O_PATH", "killpg", "getpgid", "fork",
    "fchmod", "sched_getaffinity", "setsid", "uname", "sysconf", "statvfs", "waitid",
    "pidfd_open", "register_at_fork",
):  # fmt: skip
    delattr(os, name)
sys.platform = "win32"

if __name__ == "__main__":
    sys.argv[0] = "kernel-lsp"
    from kernel_lsp.cli import main

    main()
