"""Ray itself: whether it is here, whether anybody answers, which nodes there are.

Ray's calls block, some for a minute, so they run in a thread that nobody has to wait for.
`local` is a cluster of this machine alone, started here and ended with us. Its usage reports are
turned off. Not covered: what is done on the nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kernel_lsp.errors import ClusterError

T = TypeVar("T")
LOCAL, AUTO = "local", "auto"
ANSWER_S = 5.0
"""For a connection to the port alone."""
INIT_S = 60.0
CALL_S = 30.0
STORE_BYTES = 100 * 2**20
"""Ray would take 30 % of the memory for objects; jobs and results are a few kilobytes."""
START = (
    "start one with `ray start --head --port=6379`, the others with `ray start --address=HOST:6379`"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterNode:
    id: str
    host: str
    gpus: int
    """That no placement group has reserved: those belong to somebody who will use them."""

    def __str__(self) -> str:
        return f"{self.host} ({self.id[:6]})"


class _Aside:
    """One thread for all calls, which ends with the process: Ray 2.60 hangs, in its own locks,
    when the thread that connected has ended."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def __call__(self, call: Callable[[], T], seconds: float) -> T:
        """Raises TimeoutError; the call is then left alone, and others come after it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(method: Callable[[Any], None], value: Any) -> None:
            if not done.done():
                method(value)

        def work() -> None:
            parts: tuple[Callable[[Any], None], Any]
            try:
                parts = done.set_result, call()
            except BaseException as error:  # whatever it was, the one who waits hears of it
                parts = done.set_exception, error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, *parts)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="kernel-lsp-ray")
            self._thread.start()
        self._calls.put(work)
        async with asyncio.timeout(seconds):
            return await done

    def _run(self) -> None:
        while True:
            self._calls.get()()


aside = _Aside()


@dataclass
class Connection:
    """This process as a client of a cluster."""

    address: str
    """host:port of its head, `auto` for the one that runs here, or `local`."""
    _folder: str | None = field(default=None, init=False)
    _ours: bool = field(default=False, init=False)

    async def open(self) -> None:
        """Connects this process to the cluster. Raises ClusterError."""
        ray = library()
        if self.address.startswith("ray://"):
            raise ClusterError(
                f"{self.address} is the address of a Ray client, which cannot follow what becomes "
                f"of a job",
                "start Ray on this machine (`ray start --address=HOST:6379 --num-cpus=0`) and "
                "give HOST:6379",
            )
        if self.address not in (LOCAL, AUTO):
            await _answers(self.address)
        if ray.is_initialized():
            return
        try:
            await aside(self._init, INIT_S)
        except TimeoutError:
            cause = f"the cluster at {self.address} did not let us in within {INIT_S:.0f} s"
            raise ClusterError(
                cause, f"look whether it is a Ray of version {ray.__version__}"
            ) from None
        except Exception as error:
            # Ray raises whatever it likes, from ValueError to ConnectionError.
            raise _refusal(self.address, error) from error
        self._ours = True

    def _init(self) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address == LOCAL:
            self._folder = tempfile.mkdtemp(prefix="kernel-lsp-ray-")
            options |= {
                "include_dashboard": False,
                "_temp_dir": self._folder,
                "object_store_memory": STORE_BYTES,
            }
        library().init(address=self.address, **options)

    async def nodes(self) -> list[ClusterNode]:
        """The nodes that are alive. Raises ClusterError when the head does not answer."""
        try:
            listed = await aside(library().nodes, CALL_S)
            groups = await aside(library().util.placement_group_table, CALL_S)
        except Exception as error:  # as above; TimeoutError is one too
            raise ClusterError(
                f"the cluster's head does not answer any more: {error or 'no answer'}", START
            ) from error
        reserved = reserved_gpus(groups.values())
        alive = [one for one in listed if one["Alive"]]
        return [
            ClusterNode(
                id=one["NodeID"],
                host=one["NodeManagerHostname"],
                gpus=int(one["Resources"].get("GPU", 0)) - reserved[one["NodeID"]],
            )
            for one in sorted(alive, key=lambda one: one["NodeID"])
        ]

    async def close(self) -> None:
        """Leaves the cluster, if this process has joined it, and deletes the session's folder."""
        if self._ours:
            with contextlib.suppress(TimeoutError):
                await aside(library().shutdown, CALL_S)
            self._ours = False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def library() -> Any:
    """Ray's module. Raises ClusterError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Read at import: Ray tells of dead processes on standard output, where results stand. The pool
    # tells too.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError as error:
        raise ClusterError(
            f"{sys.executable} has no ray: {error}",
            "pip install ray, the same version on every node",
        ) from error
    return ray


async def _answers(address: str) -> None:
    """Ray itself would try for minutes, and then end the process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(f"{address} is no address of a cluster", "give HOST:PORT, auto or local")
    try:
        await aside(
            lambda: socket.create_connection((host, int(port)), ANSWER_S).close(), 2 * ANSWER_S
        )
    except (OSError, OverflowError) as error:  # TimeoutError is an OSError
        raise ClusterError(
            f"no node answers at {address}: {error or 'no answer'}", START
        ) from error


def reserved_gpus(groups: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Node -> how many GPUs its placement groups have, as Ray lists them."""
    found: Counter[str] = Counter()
    for group in groups:
        for number, node in group["bundles_to_node_id"].items():
            if group["state"] == "CREATED":
                found[node] += int(group["bundles"][number].get("GPU", 0))
    return found


def _refusal(address: str, error: Exception) -> ClusterError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    if "ersion mismatch" in lines[0]:
        cause = f"the cluster at {address} has other versions: {' '.join(lines)}"
        return ClusterError(cause, "install the same Python and ray there and here")
    return ClusterError(f"the cluster at {address} cannot be used: {lines[0][:300]}", START)
