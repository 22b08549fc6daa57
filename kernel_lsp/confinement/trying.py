"""Run as a program: confine a child as candidates are confined, and have it try to get out.

Prints one JSON object: the layers that took effect, and what could be done all the same. Runs only our own
code; the parent's face is layers.py. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_lsp.confinement import confine, linux, namespaces
from kernel_lsp.confinement.layers import OVERLAYS, REPLACED


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="kernel-lsp-"))
    for name in ("scratch", "overlaid", "neighbor"):
        (folder / name).mkdir()
    secret, file, edited = folder / "neighbor" / "secret", folder / "file", folder / "edited"
    for path, text in ((secret, "secret"), (file, "file"), (edited, "edited")):
        path.write_text(text)
    order = confine.Order(
        scratch=str(folder / "scratch"),
        overlaid=[str(folder / "overlaid")],
        replaced={str(file): str(edited)},
    )
    with _listening(folder) as attempts:
        attempts["files of others can be read"] = lambda: bool(secret.read_text())
        attempts["files of others can be written"] = lambda: bool(secret.write_text("changed"))
        parent = os.getpid()
        attempts["other processes can be signaled"] = lambda: _signals(parent)
        attempts["other processes can be seen"] = lambda: bool(os.listdir(f"/proc/{parent}/task"))
        attempts[OVERLAYS] = lambda: bool((folder / "overlaid" / "written").write_text("x"))
        attempts[REPLACED] = lambda: file.read_text() == "edited"
        told = _told_by_a_child(order, attempts)
    if told:
        worked = set(told["left_open"]) & {OVERLAYS, REPLACED}
        if (folder / "overlaid" / "written").exists():
            worked.discard(OVERLAYS)
        named = told["layers"]["namespaces"]
        told["layers"]["namespaces"] = [n for n in named if n not in (OVERLAYS, REPLACED) or n in worked]
        told["left_open"] = [words for words in told["left_open"] if words not in (OVERLAYS, REPLACED)]
    print(json.dumps(told))


def _told_by_a_child(order: confine.Order, attempts: dict[str, Callable[[], bool]]) -> dict[str, Any]:
    tree = namespaces.enter_process_tree()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(reading)
            linux.prctl("pdeathsig", linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.dup2(2, 1)
            layers = confine.confine(order, {}, tree=tree)
            left_open = [words for words, attempt in attempts.items() if _succeeds(attempt)]
            os.write(writing, json.dumps({"layers": layers, "left_open": left_open}).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(told)) if told else {}


def _succeeds(attempt: Callable[[], bool]) -> bool:
    with contextlib.suppress(OSError):
        return attempt()
    return False


@contextlib.contextmanager
def _listening(folder: Path) -> Any:
    """Somebody to reach, in every way that is to be closed."""
    abstract = f"\0kernel-lsp-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        attempts: dict[str, Callable[[], bool]] = {}
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()
        attempts["the network can be reached"] = lambda: _connects(socket.AF_INET, tcp)
        for words, name in (
            ("sockets of local services can be reached", str(folder / "neighbor" / "socket")),
            ("abstract sockets of other programs can be reached", abstract),
        ):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(name)
            server.listen()
            attempts[words] = lambda name=name: _connects(socket.AF_UNIX, name)  # type: ignore[misc]
        yield attempts


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
