"""A client that speaks bytes: what an honest library would never send, and every byte that comes
back."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

WAIT_S = 120.0
"""A bound for hangs, not a claim of speed: a machine may pause for seconds, again and again."""
CAPABILITIES: dict[str, Any] = {
    "general": {"positionEncodings": ["utf-16"]},
    "textDocument": {
        "codeAction": {
            "codeActionLiteralSupport": {
                "codeActionKind": {"valueSet": ["refactor.rewrite", "quickfix"]}
            },
            "resolveSupport": {"properties": ["edit"]},
            "dataSupport": True,
        },
        "hover": {"contentFormat": ["markdown"]},
        "publishDiagnostics": {"versionSupport": True, "dataSupport": True},
    },
}


def framed(body: bytes | str | Any) -> bytes:
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


class RawClient:
    """One real server over stdio. ``reading=False``: nothing of its output is read until `read`."""

    def __init__(
        self,
        folder: Path,
        *,
        reading: bool = True,
        python: Sequence[str] = ("-m", "kernel_lsp.server"),
        **environment: str,
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        env = {
            **os.environ,
            "KERNEL_LSP_DATA_DIR": str(folder.parent / "data"),
            "KERNEL_LSP_BACKGROUND": "no",
            "KERNEL_LSP_DEVICE": "cpu",
            **environment,
        }
        command = [sys.executable, *python, "--stdio"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
        assert self.process.stdin is not None
        self.stdin = self.process.stdin
        self.messages: list[dict[str, Any]] = []
        self.answers: dict[str, Callable[[dict[str, Any]], Any]] = {}
        """How requests of the server are answered, by method; others with null."""
        self.raw = bytearray()
        self.log = bytearray()
        self._came: queue.Queue[dict[str, Any]] = queue.Queue()
        self._number = 1000
        self._threads: list[threading.Thread] = []
        self._start(self._drain_log)
        if reading:
            self.read()

    def read(self) -> None:
        self._start(self._read)

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def _drain_log(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(ValueError):
            while chunk := self.process.stderr.read1(65536):  # type: ignore[attr-defined]
                self.log += chunk

    def _read(self) -> None:
        out = self.process.stdout
        assert out is not None
        with contextlib.suppress(ValueError, OSError):
            while True:
                length = 0
                while (line := out.readline()).strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                if not line:
                    return
                body = out.read(length)
                self.raw += body
                message = json.loads(body)
                self.messages.append(message)
                if "method" in message and "id" in message:
                    self._answer(message)
                self._came.put(message)

    def _answer(self, message: dict[str, Any]) -> None:
        make = self.answers.get(message["method"], lambda _: {"result": None})
        if (answer := make(message)) is not None:
            self.send({"jsonrpc": "2.0", "id": message["id"], **answer})

    def write(self, data: bytes) -> None:
        self.stdin.write(data)
        self.stdin.flush()

    def send(self, message: Any) -> None:
        self.write(framed(message))

    def notify(self, method: str, params: Any = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: Any = None) -> int:
        self._number += 1
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        return self._number

    def request(self, method: str, params: Any = None, wait_s: float = WAIT_S) -> dict[str, Any]:
        return self.answer_to(self.ask(method, params), wait_s)

    def answer_to(self, msg_id: Any, wait_s: float = WAIT_S) -> dict[str, Any]:
        """The next answer with this id; what comes before it is passed over."""
        return self.until(lambda m: "method" not in m and m.get("id", "absent") == msg_id, wait_s)

    def until(
        self, wanted: Callable[[dict[str, Any]], bool], wait_s: float = WAIT_S
    ) -> dict[str, Any]:
        end = time.monotonic() + wait_s
        while True:
            try:
                message = self._came.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                tail = bytes(self.log[-2000:]).decode(errors="replace")
                raise AssertionError(f"nothing came; {self.process.poll()}; {tail}") from None
            if wanted(message):
                return message

    def initialize(self, **params: Any) -> dict[str, Any]:
        given = {
            "processId": os.getpid(),
            "rootUri": self.folder.as_uri(),
            "capabilities": CAPABILITIES,
        }
        answer = self.request("initialize", {**given, **params})
        self.notify("initialized", {})
        return answer

    def open(
        self, text: str, name: str = "model.py", uri: str | None = None, version: int = 1
    ) -> str:
        uri = uri or (self.folder / name).as_uri()
        item = {"uri": uri, "languageId": "python", "version": version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return uri

    def change(self, uri: str, *changes: dict[str, Any], version: int = 2) -> None:
        document = {"uri": uri, "version": version}
        self.notify(
            "textDocument/didChange", {"textDocument": document, "contentChanges": list(changes)}
        )

    def close_document(self, uri: str) -> None:
        self.notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    def hints(self, uri: str, version: int | None = None) -> list[dict[str, Any]]:
        """The next published diagnostics of a document (of a version)."""

        def wanted(message: dict[str, Any]) -> bool:
            params = message.get("params") or {}
            known = (
                message.get("method") == "textDocument/publishDiagnostics" and params["uri"] == uri
            )
            return known and version in (None, params.get("version"))

        return list(self.until(wanted)["params"]["diagnostics"])

    def hover(self, uri: str, line: int = 0, character: int = 0) -> dict[str, Any]:
        position = {"line": line, "character": character}
        return self.request(
            "textDocument/hover", {"textDocument": {"uri": uri}, "position": position}
        )

    def command(self, name: str, *arguments: Any) -> dict[str, Any]:
        params = {"command": f"kernel-lsp.{name}", "arguments": list(arguments)}
        return self.request("workspace/executeCommand", params)

    def latency_s(self) -> float:
        """Of one hover; the best of three: what else runs on this machine is not the server's."""
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            assert "result" in self.hover("file:///nowhere.py")
            took.append(time.perf_counter() - begin)
        return min(took)

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def exit_code(self, wait_s: float = WAIT_S) -> int:
        return self.process.wait(wait_s)

    def quit(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.stdin.close()
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def running(folder: Path, *, ready: bool = True, **options: Any) -> Iterator[RawClient]:
    client = RawClient(folder, **options)
    try:
        if ready:
            client.initialize()
        yield client
    finally:
        client.quit()
