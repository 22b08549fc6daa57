"""A run on the nodes of a Ray cluster, over the loss of any of them: `python -m trainer.cluster_run
KIND RECIPE`, which `kernel-lsp train` starts where a recipe has a ``[cluster]``.

GPUs of trainer and vLLM are reserved in one placement group, a bundle for each node; judges are
actors on what is left (kernel_lsp/cluster). When a process or node is lost, all of the attempt
ends, and the next begins on what there is then, from the newest checkpoint, with the same numbers.
Where too little is left it waits for nodes to join. Only the newest attempt may write: it has a
ticket in the run's folder, which processes of a node that was merely cut off do not hold
(training/tickets.py). Recipe and output lie in a folder that all nodes share. Not covered: the
loss of Ray's head or of this process; the same command goes on then."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernel_lsp.cluster import ranks
from kernel_lsp.cluster.connection import Connection, aside, library
from kernel_lsp.cluster.node_worker import stand
from kernel_lsp.cluster.ranks import RankNode, RankOrder, RanksEnded
from kernel_lsp.errors import ClusterError, ConfigError, KernelLspError
from kernel_lsp.files import replace_file
from trainer import config, placement
from trainer.config import ClusterConfig, Recipe
from trainer.training.tickets import TICKET, VARIABLE

CALL_S = 60.0
WAIT_S, SAY_S = 1800.0, 30.0
"""For nodes that the run needs, and between lines that say so."""
BLAME_S = 60.0
"""A process that failed may have lost another, of which Ray hears later."""
LOOK_S = 0.5
FOUND = Path(__file__).resolve().parents[1]
"""The folder in which the trainer package lies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeShare:
    """Of one node."""

    ranks: int
    gpus: int
    """For its ranks and for vLLM."""

    @property
    def bundle(self) -> dict[str, float]:
        """What the node must have free, in Ray's names."""
        return {"CPU": 1.0} | ({"GPU": float(self.gpus)} if self.gpus else {})


@dataclass(kw_only=True)
class ClusterRun:
    """One recipe, attempt after attempt."""

    kind: str
    path: Path
    recipe: Recipe
    cluster: ClusterConfig
    _lines: int = 0
    """Of the first process's log that were printed."""

    async def finish(self) -> int:
        """The exit code of the run. Raises ClusterError."""
        connection = Connection(self.cluster.address)
        await connection.open()
        losses = 0
        try:
            while isinstance(found := await self._attempt(connection), str):
                losses += 1
                if losses > self.cluster.losses:
                    cause = f"{losses} losses, the last: {found}"
                    raise ClusterError(cause, "look at `ray status`, or raise cluster.losses")
                say(f"lost: {found}; goes on from the newest checkpoint")
            return found
        finally:
            await connection.close()

    async def _attempt(self, connection: Connection) -> int | str:
        """An exit code, or what was lost."""
        shares = shares_of(self.recipe)
        group = await self._reserved(connection, shares)
        nodes: list[Any] = []
        try:
            nodes = [self._hired(group, number, one) for number, one in enumerate(shares)]
            return await self._ran(nodes, shares)
        except library().exceptions.RayError as error:
            return str(error).strip().splitlines()[0]
        finally:
            with contextlib.suppress(Exception):  # whatever Ray says of what is gone already
                for node in nodes:
                    library().kill(node)
                library().util.remove_placement_group(group)

    async def _reserved(self, connection: Connection, shares: Sequence[NodeShare]) -> Any:
        """The placement group, once there are nodes for it. Raises ClusterError after WAIT_S."""
        bundles = [one.bundle for one in shares]
        make = partial(library().util.placement_group, bundles, strategy="STRICT_SPREAD")
        group = await aside(make, CALL_S)
        begun = said = time.monotonic()
        while not await aside(partial(group.wait, LOOK_S), CALL_S):
            now = time.monotonic()
            if now - begun > WAIT_S:
                library().util.remove_placement_group(group)
                raise ClusterError(f"no place within {WAIT_S:.0f} s", "add nodes (`ray start`)")
            if now - said > SAY_S:
                said = now
                there = ", ".join(f"{n} with {n.gpus} GPUs" for n in await connection.nodes())
                say(f"waits for nodes that have {bundles}; there are {there or 'none'}")
        return group

    def _hired(self, group: Any, number: int, share: NodeShare) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Within

        options = {
            "num_cpus": 1,
            "num_gpus": share.gpus,
            "scheduling_strategy": Within(group, placement_group_bundle_index=number),
            "max_restarts": 0,
            "max_concurrency": 4,
        }
        return library().remote(RankNode).options(**options).remote()

    async def _ran(self, nodes: Sequence[Any], shares: Sequence[NodeShare]) -> int | str:
        ours, digest = stand(ranks.PACKAGES), ranks.file_digest(self.path)
        asked = [answer(one.problem.remote(ours, str(self.path), digest)) for one in nodes]
        if problems := list(filter(None, await asyncio.gather(*asked))):
            raise ClusterError(problems[0], "the recipe and kernel-lsp must be the same everywhere")
        master = await answer(nodes[0].address.remote())
        ticket = secrets.token_hex(8)
        replace_file(self._made_folder() / TICKET, ticket.encode())
        orders = self._orders(shares, master, ticket)
        log = self._emptied_log(Path(orders[0].logs))
        running = [
            asyncio.ensure_future(answer(node.run.remote(order)))
            for node, order in zip(nodes, orders, strict=True)
        ]
        try:
            return await self._watched(running, log)
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._print(log)

    async def _watched(self, running: Sequence[asyncio.Future[RanksEnded]], log: Path) -> int:
        """Raises Ray's error as soon as a node is lost, also where another's failure, which that
        has brought about, is known first."""
        until = math.inf
        while not all(one.done() for one in running) and time.monotonic() < until:
            await asyncio.wait(running, timeout=LOOK_S)
            self._print(log)
            if _failed(running) is not None:
                until = min(until, time.monotonic() + BLAME_S)
        failed = _failed(running)
        if failed is None:
            return 0
        say(f"rank {failed.rank} failed with {failed.code}:")
        say("\n".join(failed.tail))
        return failed.code

    def _orders(
        self, shares: Sequence[NodeShare], master: tuple[str, int], ticket: str
    ) -> list[RankOrder]:
        found, first = [], 0
        for share in shares:
            order = RankOrder(
                argv=("-m", f"trainer.{self.kind}", str(self.path)),
                folder=str(Path.cwd()),
                path=os.path.relpath(FOUND, ranks.PACKAGE),
                logs=str(self._made_folder() / "log"),
                first=first,
                ranks=share.ranks,
                world=sum(one.ranks for one in shares),
                master=master,
                environment={VARIABLE: ticket, "PYTHONUNBUFFERED": "1"},
            )
            first += share.ranks
            found.append(order)
        return found

    def _made_folder(self) -> Path:
        folder = Path(self.recipe.output, self.recipe.name, self.kind).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _emptied_log(self, folder: Path) -> Path:
        """Of the first process; what an earlier attempt has said was printed."""
        self._lines = 0
        log = folder / "rank-0.log"
        log.unlink(missing_ok=True)
        return log

    def _print(self, log: Path) -> None:
        """What the first process has said since."""
        with contextlib.suppress(OSError):
            whole = log.read_text(errors="replace").splitlines(keepends=True)
            lines = [line for line in whole if line.endswith("\n")]
            for line in lines[self._lines :]:
                say(line.rstrip("\n"))
            self._lines = len(lines)


def shares_of(recipe: Recipe) -> list[NodeShare]:
    """What is reserved on each node; nodes that only judge are not among them."""
    placed = placement.place(recipe)
    if placed is None:
        assert recipe.cluster is not None
        return [NodeShare(ranks=1, gpus=0)] * recipe.cluster.nodes
    pairs = zip(placed.taken[placement.TRAINER], placed.taken[placement.VLLM], strict=True)
    return [NodeShare(ranks=trains, gpus=trains + samples) for trains, samples in pairs if trains]


def _failed(running: Sequence[asyncio.Future[RanksEnded]]) -> RanksEnded | None:
    """The first node of which a process failed. Raises Ray's error where one was lost."""
    ended = [one.result() for one in running if one.done()]
    return next((one for one in ended if one.code), None)


async def answer(ref: Any) -> Any:
    """A result of Ray's as asyncio knows it."""
    return await asyncio.wrap_future(ref.future())


def say(text: str) -> None:
    """Print at once: the line is read while the run goes on."""
    print(text, flush=True)


def _refused(recipe: Recipe, path: Path) -> Iterator[str]:
    if recipe.cluster is None:
        yield f"{path} has no [cluster]"
    yield from placement.problems(recipe)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("sft", "rl"))
    parser.add_argument("recipe", type=Path)
    options = parser.parse_args()
    path = options.recipe.absolute()
    try:
        recipe = config.load(path)
        if problems := list(_refused(recipe, path)):
            raise ConfigError("\n  ".join(problems), "see --dry-run")
        assert recipe.cluster is not None
        run = ClusterRun(kind=options.kind, path=path, recipe=recipe, cluster=recipe.cluster)
        sys.exit(asyncio.run(run.finish()))
    except KernelLspError as error:
        sys.exit(f"trainer: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
