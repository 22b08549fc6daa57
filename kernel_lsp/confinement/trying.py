"""Run as a program, confined as a zygote is: fork a child as a zygote does, and have it try to get
out.

Standard input: what there is to reach (held.py). Standard output: one JSON object, the layers that
took effect and what could be done all the same. Runs only our own code; standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_lsp.confinement import confine, linux, namespaces
from kernel_lsp.confinement.layers import OVERLAYS, PROCESSES, REPLACED


def main() -> None:
    """Try the parts of a confinement in the folder that stdin names, and print what holds."""
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
    (folder / "overlaid").mkdir()
    file, edited = folder / "file", folder / "edited"
    for path in (file, edited):
        path.write_text(path.name)
    order = confine.Order(
        scratch=str(folder / "scratch"),
        overlaid=[str(folder / "overlaid")],
        replaced={str(file): str(edited)},
    )
    attempts = _attempts(asked, folder / "neighbor" / "secret")
    attempts[OVERLAYS] = lambda: bool((folder / "overlaid" / "written").write_text("x"))
    attempts[REPLACED] = lambda: file.read_text() == "edited"
    reply = _ask_child(order, attempts, asked["pid"])
    if reply:
        worked = set(reply["left_open"]) & {OVERLAYS, REPLACED}
        if (folder / "overlaid" / "written").exists():
            worked.discard(OVERLAYS)
        named = reply["layers"]["namespaces"]
        reply["layers"]["namespaces"] = [
            n for n in named if n not in (OVERLAYS, REPLACED) or n in worked
        ]
        reply["left_open"] = [
            words for words in reply["left_open"] if words not in (OVERLAYS, REPLACED)
        ]
    print(json.dumps(reply))


def _attempts(asked: dict[str, Any], secret: Path) -> dict[str, Callable[[], bool]]:
    return {
        "files of others can be read": lambda: bool(secret.read_text()),
        "files of others can be written": lambda: bool(secret.write_text("changed")),
        "the network can be reached": lambda: _connects(socket.AF_INET, tuple(asked["tcp"])),
        "sockets of local services can be reached": lambda: _connects(
            socket.AF_UNIX, asked["service"]
        ),
        "abstract sockets of other programs can be reached": lambda: _connects(
            socket.AF_UNIX, asked["abstract"]
        ),
    }


def _ask_child(
    order: confine.Order, attempts: dict[str, Callable[[], bool]], outside: int
) -> dict[str, Any]:
    tree = namespaces.enter_process_tree()
    reading, writing = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(reading)
            linux.prctl("pdeathsig", linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.dup2(2, 1)
            layers = confine.confine(order, {}, tree=tree)
            if PROCESSES not in layers["namespaces"]:  # in a tree of its own, numbers are others'
                for number in (outside, parent):
                    attempts[f"process {number} can be signaled"] = lambda number=number: _signals(
                        number
                    )  # type: ignore[misc]
            left_open = [words for words, attempt in attempts.items() if _succeeds(attempt)]
            os.write(writing, json.dumps({"layers": layers, "left_open": left_open}).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        reply = pipe.read()
    os.waitpid(pid, 0)
    found = dict(json.loads(reply)) if reply else {}
    signaled = "other processes can be signaled"
    words = [signaled if "can be signaled" in said else said for said in found.get("left_open", ())]
    return {**found, "left_open": list(dict.fromkeys(words))} if found else {}


def _succeeds(attempt: Callable[[], bool]) -> bool:
    with contextlib.suppress(OSError):
        return attempt()
    return False


def _signals(pid: int) -> bool:
    os.kill(pid, 0)
    return True


def _connects(family: int, address: Any) -> bool:
    with socket.socket(family) as client:
        client.settimeout(1)
        client.connect(address)
    return True


if __name__ == "__main__":
    main()
