"""How quick and how small the language server is: python benchmarks/editor.py [--out FILE]
[--times N]

Measures one real server over stdio and prints a table with the bar of each row. Reads are timed
while a job runs in a host that never answers (tests/e2e/fault_host.py), so that the numbers do not
depend on the example; ends of jobs are timed on a real job, from the request to the last of its
processes. Byte code is cached, as in any installation. Not covered: how long a measurement of a
kernel takes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.reporting import circumstances, write_record

ROOT = Path(__file__).resolve().parents[1]
MODEL = '''

class Model{n}(nn.Module):
    """Number {n}."""

    def forward(self, x):
        y = torch.relu(x) + {n}
        y = torch.sigmoid(y) * 2.0
        return torch.sum(y, dim=1)
'''


@dataclass(frozen=True, kw_only=True)
class EditorRow:
    what: str
    value: float
    unit: str
    bar: float

    @property
    def ok(self) -> bool:
        return self.value <= self.bar


class Client:
    """A minimal LSP client: enough to measure, nothing hidden."""

    def __init__(self, folder: Path, fault: str | None) -> None:
        """``fault`` None: the real host."""
        environment = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
            "KERNEL_LSP_DATA_DIR": str(folder / "data"),
            "KERNEL_LSP_CONSENT": "always",
            "KERNEL_LSP_BACKGROUND": "no",
            "KERNEL_LSP_DEVICE": "cpu",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "e2e"), str(ROOT)]),
        }
        if fault is not None:
            environment |= {"KERNEL_LSP_HOST": "fault_host", "FAULT": fault}
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kernel_lsp.server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment,
        )  # fmt: skip
        self._number = 0

    def notify(self, method: str, params: Any) -> None:
        self._write({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: Any) -> Any:
        """The result; notifications and requests that arrive before it are passed over."""
        self._number += 1
        self._write({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while True:
            message = self.read()
            if message.get("id") == self._number and "method" not in message:
                if "error" in message:
                    raise RuntimeError(message["error"])
                return message["result"]

    def wait_for(self, method: str) -> Any:
        while (message := self.read()).get("method") != method:
            pass
        return message["params"]

    def read(self) -> dict[str, Any]:
        stream = self.process.stdout
        assert stream is not None
        size = 0
        while line := stream.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        if not size:
            raise RuntimeError("the server closed its output")
        return json.loads(stream.read(size))

    def start(self) -> None:
        self.ask(
            "initialize",
            {"processId": os.getpid(), "rootUri": self.folder.as_uri(), "capabilities": {}},
        )
        self.notify("initialized", {})

    def open(self, text: str) -> str:
        uri = (self.folder / "model.py").as_uri()
        item = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return uri

    def stop(self) -> None:
        self.ask("shutdown", None)
        self.notify("exit", None)
        self.process.wait(10)

    def _write(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()


def source(lines: int) -> str:
    """About that many lines of modules with something to say about each."""
    head = "import torch\nfrom torch import nn\n"
    tail = "\n\ndef get_inputs():\n    return [torch.randn(4, 8)]\n"
    return head + "".join(MODEL.format(n=n) for n in range(lines // MODEL.count("\n"))) + tail


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def seconds_until(condition: Any, limit_s: float = 10.0) -> float:
    started = time.perf_counter()
    while not condition() and time.perf_counter() - started < limit_s:
        time.sleep(0.001)
    return time.perf_counter() - started


def start_up(folder: Path, times: int) -> list[EditorRow]:
    warm_up = Client(folder, "slow")  # writes the byte code
    warm_up.start()
    warm_up.stop()
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        client = Client(folder, "slow")
        client.start()
        taken.append((time.perf_counter() - started) * 1000)
        client.stop()
    return [
        EditorRow(
            what="spawn to initialize reply, median",
            value=statistics.median(taken),
            unit="ms",
            bar=400,
        )
    ]


def first_hints(folder: Path, lines: int, bar: float, times: int) -> list[EditorRow]:
    taken = []
    for _ in range(times):
        client = Client(folder, "slow")
        client.start()
        client.ask("workspace/executeCommand", {"command": "kernel-lsp.status", "arguments": [{}]})
        started = time.perf_counter()
        client.open(source(lines))
        client.wait_for("textDocument/publishDiagnostics")
        taken.append((time.perf_counter() - started) * 1000)
        memory = rss_mb(client.process.pid)
        client.stop()
    what = f"didOpen to static hints, {lines} lines"
    rows = [EditorRow(what=f"{what}, median", value=statistics.median(taken), unit="ms", bar=bar)]
    return [
        *rows,
        EditorRow(what=f"memory with {lines} lines open", value=memory, unit="MB", bar=60),
    ]


def reads(client: Client, uri: str, times: int) -> list[EditorRow]:
    place = {"textDocument": {"uri": uri}, "position": {"line": 4, "character": 8}}
    zone = {"start": place["position"], "end": place["position"]}
    requests = {
        "hover": ("textDocument/hover", place),
        "codeAction": (
            "textDocument/codeAction",
            {**place, "range": zone, "context": {"diagnostics": []}},
        ),
        "codeLens": ("textDocument/codeLens", {"textDocument": {"uri": uri}}),
    }
    rows = []
    for name, (method, params) in requests.items():
        taken = []
        for _ in range(times):
            started = time.perf_counter()
            client.ask(method, params)
            taken.append((time.perf_counter() - started) * 1000)
        taken.sort()
        p99 = taken[min(len(taken) - 1, int(0.99 * len(taken)))]
        what = f"{name} while a job runs"
        rows.append(
            EditorRow(what=f"{what}, p50", value=statistics.median(taken), unit="ms", bar=5)
        )
        rows.append(EditorRow(what=f"{what}, p99", value=p99, unit="ms", bar=50))
    return rows


def start_job(client: Client, uri: str) -> tuple[int, int]:
    """A job that never ends; returns the host's process and the one it started."""
    file = client.folder / "data" / "events.jsonl.pids"
    file.unlink(missing_ok=True)
    arguments = [{"uri": uri, "qualname": "Model0"}]
    client.ask(
        "workspace/executeCommand", {"command": "kernel-lsp.benchmark", "arguments": arguments}
    )
    seconds_until(lambda: file.exists() and file.read_text().endswith("\n"))
    host, child = file.read_text().split()
    return int(host), int(child)


def job(folder: Path, times: int) -> list[EditorRow]:
    client = Client(folder, "slow")
    client.start()
    uri = client.open(source(2000))
    client.wait_for("textDocument/publishDiagnostics")
    host, _ = start_job(client, uri)
    rows = reads(client, uri, times)
    log = folder / "data" / "events.jsonl"
    log.unlink(missing_ok=True)
    started = time.perf_counter()
    client.ask("workspace/executeCommand", {"command": "kernel-lsp.cancel", "arguments": [{}]})
    seconds_until(lambda: log.exists() and "host_cancelled" in log.read_text())
    taken = (time.perf_counter() - started) * 1000
    rows.append(EditorRow(what="cancel to the host knowing", value=taken, unit="ms", bar=500))
    os.kill(client.process.pid, signal.SIGKILL)
    rows.append(
        EditorRow(
            what="kill -9 of the server to a dead host",
            value=seconds_until(lambda: not alive(host)),
            unit="s",
            bar=2,
        )
    )
    client.process.wait()
    return rows


REAL = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, gain, signal):
        return torch.diag(gain) @ signal


def get_inputs():
    return [torch.rand(768), torch.randn(768, 768)]
"""


def judged(folder: Path) -> tuple[Client, list[psutil.Process]]:
    """A server with a real job that has reached its worker, and every process below the server."""
    client = Client(folder, None)
    client.start()
    uri = client.open(REAL)
    client.wait_for("textDocument/publishDiagnostics")
    arguments = [{"uri": uri, "qualname": "Model"}]
    client.ask(
        "workspace/executeCommand", {"command": "kernel-lsp.benchmark", "arguments": arguments}
    )
    server = psutil.Process(client.process.pid)
    below: list[psutil.Process] = []

    def has_worker() -> bool:
        below[:] = server.children(recursive=True)
        return any("kernel_lsp.evaluator.running.worker" in _command(process) for process in below)

    seconds_until(has_worker, 120)
    return client, below


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def real_job(folder: Path) -> list[EditorRow]:
    client, below = judged(folder)
    host = next(p.pid for p in below if "kernel_lsp.host" in _command(p))
    started = time.perf_counter()
    client.ask("workspace/executeCommand", {"command": "kernel-lsp.cancel", "arguments": [{}]})
    seconds_until(lambda: not any(alive(p.pid) for p in below if p.pid != host))
    taken = (time.perf_counter() - started) * 1000
    client.stop()
    client, below = judged(folder)
    os.kill(client.process.pid, signal.SIGKILL)
    orphaned = seconds_until(lambda: not any(alive(p.pid) for p in below))
    client.process.wait()
    return [
        EditorRow(
            what="cancel of a real job to its last process dead", value=taken, unit="ms", bar=500
        ),
        EditorRow(
            what="kill -9 of the server to its last process dead", value=orphaned, unit="s", bar=2
        ),
    ]


def shut_down(folder: Path) -> list[EditorRow]:
    client = Client(folder, "slow")
    client.start()
    uri = client.open(source(50))
    client.wait_for("textDocument/publishDiagnostics")
    pids = start_job(client, uri)
    started = time.perf_counter()
    client.stop()
    taken = time.perf_counter() - started
    left = sum(alive(pid) for pid in pids)
    return [
        EditorRow(what="shutdown with a running job", value=taken, unit="s", bar=1),
        EditorRow(what="processes left after shutdown", value=left, unit="", bar=0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--times", type=int, default=300, help="requests per kind")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = start_up(folder, 7)
        rows += first_hints(folder, 2000, 100, 5)
        rows += first_hints(folder, 8000, 250, 3)[:1]
        rows += job(folder, arguments.times)
        rows += shut_down(folder)
        rows += real_job(folder)
    for row in rows:
        verdict = "ok" if row.ok else "MISSED"
        print(f"{row.what:<48} {row.value:>9.2f} {row.unit:<3} bar {row.bar:<5g} {verdict}")
    load = os.getloadavg()[0]
    print(f"load average at the end: {load:.2f} on {os.cpu_count()} cores")
    if arguments.out:
        body = {
            "schema_version": 1,
            "environment": circumstances(),
            "rows": [{**asdict(r), "ok": r.ok} for r in rows],
        }
        write_record(arguments.out, body)
    sys.exit(0 if all(row.ok for row in rows) else 1)


if __name__ == "__main__":
    main()
