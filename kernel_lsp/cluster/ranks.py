"""Processes of one node that compute together with those of other nodes, as torchrun would start
them: an actor that starts them, waits, and ends them with itself. Nothing of Ray is imported here.

Each is started behind a keeper (agents/backbones/keeper.py), which ends it when the actor ends,
however that happens. GPUs are those that Ray gave the actor: the first for the processes, one
each, the rest for what the first process starts beside itself (vLLM). Not covered: where actors are
placed, and what becomes of a lost one (trainer/cluster_run.py)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.cluster.node_worker import About, differences, forget_threads, stand

PACKAGE = Path(__file__).resolve().parents[1]
KEEPER = PACKAGE / "agents" / "backbones" / "keeper.py"
PACKAGES = ("kernel_lsp",)
LOOK_S = 0.2
TAIL_LINES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOrder:
    """What one node starts."""

    argv: tuple[str, ...]
    """After the interpreter."""
    folder: str
    """Working directory."""
    path: str
    """What the processes import from, seen from the package of kernel_lsp."""
    logs: str
    """Folder for `rank-N.log`, which all nodes share."""
    first: int
    """Rank of this node's first process."""
    ranks: int
    """Here."""
    world: int
    """On all nodes."""
    master: tuple[str, int]
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksEnded:
    code: int
    """0: all did; else the first other one."""
    rank: int = 0
    tail: tuple[str, ...] = ()
    """The last lines of its log."""


class RankNode:
    """The actor. Its methods are coroutines, so all of them run in one loop."""

    def __init__(self) -> None:
        self._keepers: list[subprocess.Popen[bytes]] = []

    async def problem(self, ours: About, path: str, digest: str) -> str | None:
        """Why this node cannot take part: other versions, or a file that is not shared."""
        if found := differences(ours, stand(PACKAGES)):
            return f"versions differ: there is {', '.join(found)}"
        if file_digest(Path(path)) != digest:
            return f"{path} is not there, or is another file: put it into a folder that all share"
        return None

    async def address(self) -> tuple[str, int]:
        """(host, port) where the processes of all nodes can meet this node's first."""
        from ray.util import get_node_ip_address

        with socket.socket() as free:
            free.bind(("", 0))
            return str(get_node_ip_address()), int(free.getsockname()[1])

    async def run(self, order: RankOrder) -> RanksEnded:
        """Runs this node's processes until all have ended, or one has failed, which ends the
        others."""
        gpus = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        forget_threads()
        self._keepers = [self._kept(order, number, gpus) for number in range(order.ranks)]
        try:
            return await self._ended(order)
        finally:
            for keeper in self._keepers:
                assert keeper.stdin is not None
                with contextlib.suppress(OSError):
                    keeper.stdin.close()

    async def _ended(self, order: RankOrder) -> RanksEnded:
        left = dict(enumerate(self._keepers))
        while left:
            for number, keeper in [one for one in left.items() if one[1].poll() is not None]:
                del left[number]
                code = _code(keeper)
                if code:
                    rank = order.first + number
                    return RanksEnded(code=code, rank=rank, tail=_tail(_log(order, rank)))
            await asyncio.sleep(LOOK_S)
        return RanksEnded(code=0)

    def _kept(self, order: RankOrder, number: int, gpus: Sequence[str]) -> subprocess.Popen[bytes]:
        keeper = subprocess.Popen(
            [sys.executable, "-I", str(KEEPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        log = _log(order, order.first + number)
        log.parent.mkdir(parents=True, exist_ok=True)
        start = {
            "argv": [sys.executable, *order.argv],
            "environment": environment(order, number, gpus, os.environ),
            "folder": order.folder,
            "log": str(log),
        }
        assert keeper.stdin is not None
        keeper.stdin.write(json.dumps(start).encode() + b"\n")
        keeper.stdin.flush()
        return keeper


def environment(
    order: RankOrder, number: int, gpus: Sequence[str], around: Mapping[str, str]
) -> dict[str, str]:
    """Returns what one process finds: torchrun's variables, its GPU, and the rest of them for what
    it starts. What Ray has set for its own workers goes."""
    own = {name: value for name, value in around.items() if not name.startswith("RAY_")}
    paths = [str((PACKAGE / order.path).resolve()), own.get("PYTHONPATH", "")]
    own |= order.environment
    own |= {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    together = {  # a process that is alone computes as it would outside of a cluster
        "RANK": str(order.first + number),
        "LOCAL_RANK": "0",  # of the one GPU that it sees
        "WORLD_SIZE": str(order.world),
        "LOCAL_WORLD_SIZE": str(order.ranks),
        "MASTER_ADDR": order.master[0],
        "MASTER_PORT": str(order.master[1]),
    }
    own |= together if order.world > 1 else {}
    if gpus:
        own["CUDA_VISIBLE_DEVICES"] = gpus[number]
        own["KERNEL_LSP_VLLM_GPUS"] = ",".join(gpus[order.ranks :])
    return own


def file_digest(path: Path) -> str:
    """A hash of a file's bytes; empty where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _log(order: RankOrder, rank: int) -> Path:
    return Path(order.logs, f"rank-{rank}.log")


def _tail(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(errors="replace").splitlines()[-TAIL_LINES:])
    except OSError:
        return ()


def _code(keeper: subprocess.Popen[bytes]) -> int:
    """Of the process that it kept; 1 where it says nothing of it."""
    assert keeper.stdout is not None
    with contextlib.suppress(ValueError, KeyError):
        return int(json.loads(keeper.stdout.read())["exit"])
    return 1
