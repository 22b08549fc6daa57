"""What runs on a node: an actor around one worker. Nothing of Ray is imported here.

A worker is made by a picklable function of the device (cuda or cpu); it does pieces of work,
several at a time. Failures that a user may read travel as data: classes of exceptions are not
unpickled from elsewhere. Not covered: which work (judging.py of the trainer, commands/rows.py).
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from kernel_lsp import __version__, config, interpreter, skillbook
from kernel_lsp.errors import KernelLspError


class JobWorker(Protocol):
    async def do(self, work: Any) -> Any:
        """One piece of work; what it takes and gives back can be pickled. Raises KernelLspError."""

    async def close(self) -> None:
        """Ends what it holds: processes and device."""


MakeWorker = Callable[[str], JobWorker]
"""Of a device, cuda or cpu. Called on the node, in the loop in which the worker lives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a process stands on. Results of two are comparable when `differences` finds none."""

    host: str
    version: str
    sources: str
    """Hash of the packages that do the work."""
    skills: str
    """Hash of the built-in skills."""
    python: str
    torch: str | None = None
    triton: str | None = None
    device_name: str | None = None
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES."""
    problem: str | None = None
    """Why nothing can be measured there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorAnswer:
    value: Any = None
    failed: tuple[str, str | None] | None = None
    """Cause and remedy."""


class NodeActor:
    """The actor. Its methods are coroutines, so all of them run in one loop."""

    def __init__(
        self, make: MakeWorker, device: str, packages: Sequence[str], python: str | None
    ) -> None:
        forget_threads()
        self._make, self._device, self._packages, self._python = make, device, packages, python
        self._worker: JobWorker | None = None

    async def about(self, ours: About) -> About:
        """What this node works with, to be compared with ``ours``. ``ours``: of who asks. Where it
        differs nothing more is asked; else the interpreter that will measure is, which takes as
        long as importing torch: the one that was named, else the node's own."""
        if differences(ours, here := stand(self._packages)):
            return here
        named = self._python or config.load(None)[0].python
        probe = await interpreter.probe(interpreter.find(None, named).path)
        blind = self._device == "cuda" and not probe.cuda
        return replace(
            here,
            torch=probe.torch,
            triton=probe.triton,
            device_name=probe.device if self._device == "cuda" else platform.processor() or "cpu",
            problem=probe.remedy
            or (f"torch in {probe.python} sees no CUDA device" if blind else None),
        )

    async def do(self, work: Any) -> ActorAnswer:
        """The result of one piece of work, or the cause and remedy of its failure; the worker is
        made with the first."""
        if self._worker is None:
            self._worker = self._make(self._device)
        try:
            return ActorAnswer(value=await self._worker.do(work))
        except KernelLspError as error:
            return ActorAnswer(failed=(error.cause, error.remedy))

    async def close(self) -> None:
        """Ends the worker, if there is one."""
        if self._worker is not None:
            await self._worker.close()


def stand(packages: Sequence[str]) -> About:
    """Versions, sources and skills that this process works with, to compare nodes by."""
    return About(
        host=platform.node(),
        version=__version__,
        sources=digest(packages),
        skills=skillbook.load(skillbook.folders(())).digest,
        python=".".join(platform.python_version_tuple()[:2]),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def differences(one: About, other: About) -> list[str]:
    """What makes their results incomparable, in words. Of what is unknown nothing is said."""
    record = {
        "kernel-lsp": (one.version, other.version),
        "kernel-lsp's files": (one.sources, other.sources),
        "built-in skills": (one.skills, other.skills),
        "Python": (one.python, other.python),
        "torch": (one.torch, other.torch),
        "triton": (one.triton, other.triton),
    }
    return [f"{what} {b} instead of {a}" for what, (a, b) in record.items() if a and b and a != b]


def digest(packages: Sequence[str]) -> str:
    """One hash of all Python files of these packages (5 MB: 20 ms)."""
    found = hashlib.sha256()
    for name in sorted(set(packages)):
        root = Path(str(importlib.import_module(name).__file__)).parent
        for path in sorted(root.rglob("*.py")):
            found.update(f"{name}/{path.relative_to(root)}".encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def forget_threads() -> None:
    """Takes away Ray's limit of one thread where nobody said how many: timings are of torch's own
    number."""
    begun_with = Path("/proc/self/environ").read_bytes().split(b"\0")
    if not any(one.startswith(b"OMP_NUM_THREADS=") for one in begun_with):
        os.environ.pop("OMP_NUM_THREADS", None)
