"""The zygotes of one gate, by interpreter and by what they have imported. No torch.

A zygote that cannot be had here (no pidfd, a driver opened by an import, threads) is no failure:
children are then forked from one that has imported less, or started afresh (process.start), and
the evidence says what confines them and why it is not more."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp import process, scratch
from kernel_lsp.confinement import BOOTSTRAP
from kernel_lsp.errors import WorkerLost
from kernel_lsp.evaluator.processes.warm import QUIET, UnfitInterpreter, ZygoteClient, warm_up
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing
from kernel_lsp.evaluator.sharing.exclusive_timing import ExclusiveTiming
from kernel_lsp.process import Child, Confinement, Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Folders:
    """What a child is given besides the room of scratch folders and what is always shown."""

    readable: frozenset[Path] = frozenset()
    writable: frozenset[Path] = frozenset()


INTERPRETED = {"TRITON_INTERPRET": "1"}
"""Triton looks at it when its library is imported."""


class ZygotePool:
    """The zygotes of one gate, by interpreter and variant; replaced when they die."""

    def __init__(
        self, device_sharing: DeviceSharing | None = None, readable: Iterable[Path] = ()
    ) -> None:
        """``readable``: folders that children will be shown; one that is asked for later needs a
        zygote that sees it."""
        self.device_sharing, self.quiet = device_sharing, ExclusiveTiming()
        self._readable = frozenset({BOOTSTRAP.parent, *readable})
        self._zygotes: dict[tuple[Any, ...], asyncio.Task[ZygoteClient]] = {}
        self.unfit: dict[tuple[Any, ...], str] = {}
        """Sort of zygote -> why there is none."""

    async def start(
        self,
        module: str,
        *argv: str,
        python: str,
        limits: Limits,
        confinement: Confinement,
        environment: dict[str, str],
        imports: str = "",
    ) -> Child:
        """A confined child, forked where that is possible and else started. Raises OSError,
        WorkerLost.

        ``imports``: what the process it is forked from has imported besides torch
        (zygote.IMPORTED)."""
        interpreted = environment.get("TRITON_INTERPRET") == "1"
        for _ in range(2):  # a zygote that something has killed is replaced once
            folders = self._beyond(confinement)
            zygote = await self._zygote(
                python, interpreted=interpreted, imports=imports, folders=folders
            )
            if zygote is None:
                break
            with contextlib.suppress(WorkerLost):
                return await zygote.fork(
                    module, *argv, limits=limits, confinement=confinement, environment=environment
                )
        child = await self.start_afresh(
            module,
            *argv,
            python=python,
            limits=limits,
            confinement=confinement,
            environment=environment,
        )
        if why := self.unfit.get((python, interpreted, folders)):
            child.confined += f" (not forked: {why})"
        return child

    async def warm(self, python: str) -> None:
        """Starts the interpreter's zygote, with torch and what torch.compile needs imported, before
        anybody waits for it."""
        await self._zygote(python, interpreted=False, imports="compiler", folders=Folders())

    @staticmethod
    async def start_afresh(
        module: str,
        *argv: str,
        python: str,
        limits: Limits,
        confinement: Confinement,
        environment: dict[str, str],
        imports: str = "",
    ) -> Child:
        """A child like that of :meth:`start`, without a zygote: importing torch takes it 2 to 9
        s."""
        return await process.start(
            module,
            *argv,
            python=python,
            limits=limits,
            confinement=confinement,
            environment={**QUIET, **environment},
        )

    def _beyond(self, confinement: Confinement) -> Folders:
        """What this child is given that not every zygote of the pool sees."""
        room = scratch.room()
        writable = frozenset(
            path
            for path in (confinement.scratch, *confinement.writable)
            if not path.resolve().is_relative_to(room.resolve())
        )
        edited = (*confinement.replaced.keys(), *confinement.replaced.values())
        shown = (room, *self._readable, *writable)
        readable = frozenset(
            path
            for path in (*confinement.readable, *confinement.overlaid, *edited)
            if not any(path.is_relative_to(place) for place in shown)
        )
        return Folders(readable=readable, writable=writable)

    async def _zygote(
        self, python: str, *, interpreted: bool, imports: str, folders: Folders
    ) -> ZygoteClient | None:
        if not hasattr(signal, "pidfd_send_signal") or sys.platform != "linux":
            return None
        key, environment = (python, interpreted, folders), INTERPRETED if interpreted else {}
        readable = self._readable | folders.readable
        zygote = await self._fit(
            key, lambda: warm_up(python, environment, sorted(readable), sorted(folders.writable))
        )
        if zygote is None or not imports:
            return zygote
        branch = zygote.branch
        return await self._fit((*key, imports), lambda: branch(imports)) or zygote

    async def _fit(
        self, key: tuple[Any, ...], make: Callable[[], Coroutine[Any, Any, ZygoteClient]]
    ) -> ZygoteClient | None:
        """None when no such zygote can be had."""
        if key in self.unfit:
            return None
        try:
            return await self._warm(key, make)
        except WorkerLost:  # the one it comes from was killed; it is replaced
            return None
        except (UnfitInterpreter, TimeoutError) as error:
            self.unfit[key] = str(error) or "it was not ready in time"
            return None

    async def _warm(
        self, key: tuple[Any, ...], make: Callable[[], Coroutine[Any, Any, ZygoteClient]]
    ) -> ZygoteClient:
        """The zygote of this sort, made by the first who asks; made anew when it has died."""
        task = self._zygotes.get(key)
        if task is None or (task.done() and not _lives(task)):
            task = self._zygotes[key] = asyncio.create_task(make())
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Ends all zygotes, those that came of others first."""
        tasks = list(self._zygotes.values())
        self._zygotes.clear()
        for task in reversed(tasks):  # branches before what they come from
            task.cancel()
            done = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(done, ZygoteClient):
                await done.close()


def _lives(task: asyncio.Task[ZygoteClient]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().alive
