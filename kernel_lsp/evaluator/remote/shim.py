"""The first thing that runs on another machine: unpacks what is sent, runs the gate server, removes
it.

Sent as text and executed by any Python 3; imports nothing of ours. Everything else that runs there
is a child of it. It says who it is before it takes anything, so that a wrong interpreter is known
from a wrong line, and outlives the gate server by the removal of one folder, whose name says its
process: the next one removes what a killed one has left (scratch.py), should the watch have been
killed too (a cluster that ends a job ends all of it)."""

import base64
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def run(token: str, server: str) -> None:
    """Takes the package from stdin, runs the gate server with it, and removes all of it at the
    end."""
    for name in ("SIGHUP", "SIGINT", "SIGTERM"):  # the gate server ends by them, and this with it
        signal.signal(getattr(signal, name), lambda *_: None)
    about = {"python": list(sys.version_info[:3]), "system": sys.platform, "host": platform.node()}
    sys.stdout.write("%s %s\n" % (token, json.dumps({"op": "hello", "about": about})))  # noqa: UP031
    sys.stdout.flush()
    content = sys.stdin.buffer.readline()
    if not content:
        return
    began = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    named = "kernel-lsp-remote-%d.%d.%s-" % (  # noqa: UP031
        Path("/proc/self/ns/pid").stat().st_ino,
        os.getpid(),
        began,
    )
    root = tempfile.mkdtemp(prefix=named)
    held = watch(root)
    try:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(content))) as archive:
            archive.extractall(root)
        boot = str(Path(root, "kernel_lsp", "bootstrap.py"))
        command = [sys.executable, "-B", boot, "{}", "read-to-the-end", server, token]
        subprocess.call(command, pass_fds=(held,))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def watch(root: str) -> int:
    """Starts a process that removes the folder when this process and the gate server are gone,
    however they ended: it waits for that in a session of its own. Returns what they hold until
    then."""
    waiting, held = os.pipe()
    if os.fork():
        os.close(waiting)
        return held
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # or ssh would wait for it
            os.dup2(null, number)
        os.close(held)
        os.read(waiting, 1)
        shutil.rmtree(root, ignore_errors=True)
    finally:
        os._exit(0)
