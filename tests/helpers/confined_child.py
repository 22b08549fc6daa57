"""Run as a program: confine a forked child as the zygote does, and run code in it.

Standard input: one JSON object (see `confined_helpers.Confined`). Standard output: one JSON object
with the layers that took effect and what the code raised. ``without`` switches layers off, to show
what each holds."""

import contextlib
import errno
import inspect  # imported here: an ordinary user may not read where root's interpreter lies
import json
import linecache
import os
import socket
import subprocess
import sys
import tempfile

from kernel_lsp.confinement import confine, landlock, linux, mounts, namespaces, syscalls

assert inspect and linecache and socket and subprocess and tempfile


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "switched off")


SWITCHES = {
    "namespaces": lambda: setattr(namespaces, "enter_process_tree", lambda: False),
    "mounts": lambda: setattr(mounts, "make_own", refuse),
    "overlays": lambda: setattr(mounts, "_lay_over", refuse),
    "landlock": lambda: setattr(landlock, "restrict", refuse),
    "seccomp": lambda: setattr(syscalls, "install", refuse),
    "privileges": lambda: setattr(confine, "drop_privileges", lambda: None),
}


def main() -> None:
    asked = json.load(sys.stdin)
    if asked["uid"] is not None:
        os.setgroups([])
        os.setresgid(asked["uid"], asked["uid"], asked["uid"])
        os.setresuid(asked["uid"], asked["uid"], asked["uid"])
        linux.prctl("dumpable", linux.PR_SET_DUMPABLE, 1)  # as a process that the user has started
    for layer in asked["without"]:
        SWITCHES[layer]()
    tree = namespaces.enter_process_tree()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        os.dup2(2, 1)
        said = {"error": ""}
        try:
            said["layers"] = confine.confine(confine.Order(**asked["order"]), {}, tree=tree)
            exec(asked["code"], {"__name__": "candidate", "os": os})
        except BaseException as error:
            said["error"] = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        sys.stdout.write(pipe.read().decode())
    os.wait()


if __name__ == "__main__":
    main()
