"""Keeps one server that we have started: it ends when we end, however that happens.

    PYTHON -I keeper.py      one line of JSON on standard input: argv, environment, folder, log

A server of several processes outlives the kill of its first one (vLLM: 2.5 GB of engine and worker
for good), and nobody ends it after a kill -9 of ours. So this process stands between: at the end
of its standard input, or when it is asked by a signal, it ends the server politely, then its whole
process group, then itself. Not run through bootstrap.py, whose death signal would end it before it
can act. Standard library only. Not covered: a kill -9 of this process itself; serving.py looks for
such leftovers at the next start."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

GRACE_S = 5.0
"""vLLM needs 2.2 s from SIGTERM to its end when idle; killed before, it leaves 400 MB in
/dev/shm."""
GROUP_S = 1.0
"""For what the first process leaves behind: one of them removes that memory."""


def main() -> None:
    """Starts the server that the first line of stdin orders, and ends it and all that it started
    when stdin ends."""
    line = sys.stdin.buffer.readline()
    if not line:
        return  # the parent went before it had said what to start
    order = json.loads(line)
    try:
        server = _start_server(order)
    except OSError as error:
        _say({"failed": f"{order['argv'][0]}: {error.strerror}"})
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: threading.Thread(target=_end, args=(server,)).start())
    threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
    code = server.wait()
    _signal_group(server, signal.SIGTERM)
    _wait_for_group(server)
    _signal_group(server, signal.SIGKILL)
    _say({"exit": code})


def _start_server(order: dict[str, Any]) -> "subprocess.Popen[bytes]":
    with open(order["log"], "ab") as log:
        return subprocess.Popen(
            order["argv"],
            env=order["environment"],
            cwd=order["folder"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end_with_input(server: "subprocess.Popen[bytes]") -> None:
    while sys.stdin.buffer.read(4096):
        pass
    _end(server)


def _end(server: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGTERM)
    time.sleep(GRACE_S)
    _signal_group(server, signal.SIGKILL)


def _wait_for_group(server: "subprocess.Popen[bytes]") -> None:
    """Until nobody is left in it, or GROUP_S."""
    end = time.monotonic() + GROUP_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < end:
            os.killpg(server.pid, 0)
            time.sleep(0.02)


def _signal_group(server: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, number)


def _say(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # the thread that reads standard input waits for the parent
