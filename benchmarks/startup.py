"""What kernel-lsp optimize costs in CPU seconds, by process: python benchmarks/startup.py
[--before DIR]
[--initialize]

Runs the command on a small copy of an example, with an empty home and data folder (*cold*) and
then with what that run has left there, after an edit that asks for other sizes (*edited*), and
watches all processes. ``--before`` names another checkout (`git archive REVISION | tar -x -C
DIR`), whose runs alternate with ours, so that a busy machine slows both. CPU seconds of the whole
are what the kernel has counted (this program adopts orphans, so that none is missed); those of a
process are read every 20 ms from /proc until it is gone. With ``--initialize`` it is the server
that is measured, from its start to the answer to `initialize`, beside a server of pygls that does
nothing. Not covered: memory, GPUs, and wall times
worth telling on a machine that others use too."""

from __future__ import annotations

import argparse
import compileall
import contextlib
import ctypes
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.reporting import write_record
from kernel_lsp.evaluator.devices import cpu

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = "diagonal_matmul.py"
LOOK_S = 0.02
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
SIZES = "CHANNELS, SAMPLES = 2048, 1536"
SMALL = {"cold": "CHANNELS, SAMPLES = 768, 512", "edited": "CHANNELS, SAMPLES = 512, 768"}
"""Shapes at which the verdict is still *faster*, and computing takes next to nothing."""
COMPILERS = ("cc1plus", "collect2", "ld", "as", "c++", "g++", "gcc", "cc", "x86_64-linux-gnu")


@dataclass(kw_only=True)
class CommandRun:
    """One command from its start to the end of the last of its processes."""

    exit_code: int
    wall_s: float
    cpu_s: float
    by_name: dict[str, float]
    """CPU seconds of the processes of one sort."""
    processes: dict[str, int]
    """How many there were of each sort."""


@dataclass
class ProcessWatch:
    """All processes below one, by what they have become."""

    root: int
    seconds: dict[tuple[int, str], float] = field(default_factory=dict)
    """(process, its start) -> CPU seconds without those of children it has buried."""
    names: dict[tuple[int, str], str] = field(default_factory=dict)

    def look(self) -> None:
        parents: dict[int, int] = {}
        found: dict[int, tuple[str, float]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields, pid = (
                    (entry / "stat").read_text().rpartition(")")[2].split(),
                    int(entry.name),
                )
                parents[pid] = int(fields[1])
                found[pid] = fields[19], (int(fields[11]) + int(fields[12])) * TICK_S
        for pid, (begun, seconds) in found.items():
            if self._is_ours(pid, parents):
                self.seconds[pid, begun] = seconds
                if name := _name(pid):
                    # The last one counts: a fork shows its parent's until it has its own.
                    self.names[pid, begun] = name

    def _is_ours(self, pid: int, parents: dict[int, int]) -> bool:
        """Below the command, or adopted by us after its parent's end."""
        while pid not in (0, self.root, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    def by_name(self) -> tuple[dict[str, float], dict[str, int]]:
        seconds: dict[str, float] = {}
        count: dict[str, int] = {}
        for key, spent in self.seconds.items():
            name = self.names.get(key, "?")
            if key[0] != os.getpid():
                seconds[name] = seconds.get(name, 0.0) + spent
                count[name] = count.get(name, 0) + 1
        return seconds, count


def _name(pid: int) -> str:
    """What a process is, in a word."""
    with contextlib.suppress(OSError):
        words = [
            os.fsdecode(w) for w in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if w
        ]
        modules = [w for w in words if w.startswith("kernel_lsp.")]
        if modules:
            more = words[words.index(modules[-1]) + 1 :]
            name = modules[-1].rpartition(".")[2]
            return f"{name} ({more[0]})" if name == "zygote" and more else name
        if words and Path(words[0]).name.startswith(COMPILERS):
            return "C++ compiler"
        if "-m" in words and "kernel_lsp" in words:
            return "kernel-lsp optimize"
        if words and "@kernel-lsp facts@" in words:
            return "probe"
        return Path(words[0]).name if words else ""
    return ""


def run(checkout: Path, example: Path, home: Path) -> CommandRun:
    """The command in an environment of its own. What it leaves in ``home`` stays."""
    environment = {
        **{
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("KERNEL_LSP", "XDG_"))
        },
        "HOME": str(home),
        "KERNEL_LSP_DATA_DIR": str(home / "data"),
        "KERNEL_LSP_PYTHON": sys.executable,
        "PYTHONPATH": str(checkout),
    }
    before, start = _spent(), time.monotonic()
    command = [
        sys.executable,
        "-m",
        "kernel_lsp",
        "optimize",
        str(example),
        "--device",
        "cpu",
        "--json",
    ]
    process = subprocess.Popen(
        command, env=environment, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    watch = ProcessWatch(process.pid)
    while process.poll() is None:
        watch.look()
        time.sleep(LOOK_S)
    wall_s = time.monotonic() - start
    _bury()
    seconds, count = watch.by_name()
    total = _spent() - before
    seconds["between two looks"] = max(0.0, total - sum(seconds.values()))
    return CommandRun(
        exit_code=process.returncode, wall_s=wall_s, cpu_s=total, by_name=seconds, processes=count
    )


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _bury() -> None:
    """Wait for orphans, whose time counts when they are waited for."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def measured(checkouts: dict[str, Path], times: int) -> Iterator[dict[str, list[CommandRun]]]:
    """Runs of all checkouts, in turn; what is there after each round."""
    found: dict[str, list[CommandRun]] = {}
    text = (ROOT / "examples" / EXAMPLE).read_text()
    for number in range(times):
        for label, checkout in checkouts.items():
            with tempfile.TemporaryDirectory(prefix="kernel-lsp-startup-") as home:
                for kind, sizes in SMALL.items():
                    example = Path(home) / EXAMPLE
                    example.write_text(text.replace(SIZES, sizes))
                    one = run(checkout, example, Path(home))
                    found.setdefault(f"{label}, {kind}", []).append(one)
                    line = f"{number} {label} {kind}: {one.cpu_s:.1f} CPU s, exit {one.exit_code}"
                    print(line, file=sys.stderr)
        yield found


def _cell(name: str, runs: list[CommandRun]) -> str:
    """Seconds of the processes of one name, and how many there are at most."""
    spent = statistics.median(one.by_name.get(name, 0.0) for one in runs)
    if not spent:
        return "-    "
    number = max(one.processes.get(name, 0) for one in runs)
    return f"{spent:.2f}" + (f" ({number})" if number > 1 else "    ")


def table(found: dict[str, list[CommandRun]]) -> str:
    """Medians: one row for each sort of process."""
    kinds = list(found)
    names = dict.fromkeys(name for runs in found.values() for one in runs for name in one.by_name)
    width = max(len(name) for name in names) + 5
    lines = ["CPU seconds, medians".ljust(width) + "".join(f"{kind:>18}" for kind in kinds)]
    for name in names:
        cells = (_cell(name, found[kind]) for kind in kinds)
        lines.append(name.ljust(width) + "".join(f"{cell:>18}" for cell in cells))
    for what in ("cpu_s", "wall_s"):
        values = (statistics.median(getattr(one, what) for one in found[kind]) for kind in kinds)
        lines.append(what.ljust(width) + "".join(f"{value:>14.2f}    " for value in values))
    return "\n".join(lines)


BARE = "from pygls.lsp.server import LanguageServer; LanguageServer('bare', '1').start_io()"


@dataclass(frozen=True, kw_only=True)
class ServerStart:
    """A server when its answer to `initialize` has come."""

    wall_ms: float
    cpu_ms: float
    """Of all threads."""
    memory_mb: float
    """Resident."""


def start_server(command: list[str], checkout: Path, params: dict[str, object]) -> ServerStart:
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    begun = time.monotonic()
    server = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        server.stdin.write(f"Content-Length: {len(asked)}\r\n\r\n{asked}".encode())
        server.stdin.flush()
        server.stdout.readline()
        wall_ms = 1000 * (time.monotonic() - begun)
        threads = Path(f"/proc/{server.pid}/task").glob("*/schedstat")
        cpu_ms = sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6
        pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
        memory_mb = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        return ServerStart(wall_ms=wall_ms, cpu_ms=cpu_ms, memory_mb=memory_mb)
    finally:
        server.kill()
        server.communicate()


def introduction() -> dict[str, object]:
    """What VS Code says of itself, as pytest-lsp has recorded it; nothing where that is missing,
    and then more is spent on the first request that asks for it."""
    with contextlib.suppress(ImportError):
        import pytest_lsp

        folder = Path(pytest_lsp.__file__).parent / "clients"
        recorded = json.loads(max(folder.glob("visual_studio_code_*.json")).read_text())
        return {**recorded, "processId": None, "rootUri": None}
    return {"processId": None, "rootUri": None, "capabilities": {}}


def print_initialize(checkouts: dict[str, Path], times: int) -> None:
    """Servers in turn, so that a busy machine slows all. What is beside a median is the median of
    the differences to the bare server's start right before."""
    ours = [sys.executable, "-m", "kernel_lsp", "serve"]
    servers = {"bare pygls": ([sys.executable, "-c", BARE], ROOT)}
    servers |= {label: (ours, checkout) for label, checkout in checkouts.items()}
    found: dict[str, list[ServerStart]] = {label: [] for label in servers}
    params = introduction()
    for _ in range(times):
        for label, (command, checkout) in servers.items():
            found[label].append(start_server(command, checkout, params))
    print(
        f"to the answer to `initialize`, {times} starts of each, capabilities: "
        f"{'none' if not params['capabilities'] else 'those of VS Code'}"
    )
    for label, starts in found.items():
        cells = []
        for what, unit in (("wall_ms", "ms"), ("cpu_ms", "CPU ms"), ("memory_mb", "MB")):
            values = [getattr(start, what) for start in starts]
            bare = [getattr(start, what) for start in found["bare pygls"]]
            above = statistics.median(v - b for v, b in zip(values, bare, strict=True))
            cells.append(
                f"{statistics.median(values):5.0f} {unit} ({above:+.0f}, least {min(values):.0f})"
            )
        print(f"{label:>12}: {'   '.join(cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path, help="all runs as JSON")
    parser.add_argument("--initialize", action="store_true", help="the server's start instead")
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    checkouts = {"before": asked.before.resolve()} if asked.before else {}
    checkouts["now"] = ROOT
    for checkout in checkouts.values():  # as installed: byte code is there
        compileall.compile_dir(checkout / "kernel_lsp", quiet=1)
    print(
        f"{EXAMPLE}, {cpu.cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    if asked.initialize:
        print_initialize(checkouts, asked.times)
        return
    for found in measured(checkouts, asked.times):
        print(table(found), flush=True)
        if asked.out:
            runs = {kind: [vars(one) for one in ones] for kind, ones in found.items()}
            write_record(asked.out, runs)


if __name__ == "__main__":
    main()
