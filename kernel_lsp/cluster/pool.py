"""Actors on the nodes of a cluster, which come and go, and the jobs that they do.

Where an actor is lost (or only may be lost: then it is killed, so that nothing of it can arrive
later), its jobs are done elsewhere. Nodes that join later are used; one that loses three actors
in an hour is left alone. On a GPU cluster an actor has one GPU, elsewhere a whole node, since
trials would disturb the times. The head of the cluster must live, and this machine's own Ray
process: Ray ends its clients with them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kernel_lsp.cluster import node_worker
from kernel_lsp.cluster.connection import START, ClusterNode, Connection, library
from kernel_lsp.cluster.jobs import ClusterJob, ClusterJobs
from kernel_lsp.cluster.node_worker import About, ActorAnswer, MakeWorker, NodeActor
from kernel_lsp.errors import ClusterError

READY_S = 120.0
"""For a process on a busy node that imports torch once."""
LOOK_S = 2.0
"""Between looks at which nodes there are."""
ALONE_S = 30.0
"""How long a cluster without any actor may stay so."""
CLOSE_S = 3.0
"""For an actor to end its own children; then it is killed, and they end with it."""
MAX_DEATHS, RECENT_S = 3, 3600.0
"""Of actors on one node; after more of them so recently it gets no other."""
SAME = "install the same kernel-lsp, torch and triton on every node, or leave that node out"
AGAIN_S = 5.0
"""After a loss: Ray takes as long to notice that a node is gone."""


@dataclass(kw_only=True, eq=False)
class _PlacedActor:
    """An actor on a node."""

    node: ClusterNode
    number: int
    actor: Any
    about: About | None = None
    """None: it is being made."""
    group: str | None = None
    """Of its last job: a worker is warm for more of that."""
    doubtful: int = 0
    """Jobs under way that were lost before."""
    lost: bool = False


@dataclass(kw_only=True)
class Cluster:
    """Open it with `async with`, or `open` and `close`."""

    address: str
    make: MakeWorker
    device: str = "auto"
    """auto: cuda where any node has a GPU."""
    width: int = 1
    """Jobs at the same time on one actor."""
    python: str | None = None
    """Interpreter on the nodes that has torch; None: found there."""
    say: Callable[[str], None] = lambda text: None
    _connection: Connection = field(init=False)
    _ours: About = field(init=False)
    _jobs: ClusterJobs = field(default_factory=ClusterJobs, init=False)
    _places: dict[tuple[str, int], _PlacedActor] = field(default_factory=dict, init=False)
    _deaths: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list), init=False)
    """Of actors, by node: when, on the monotonic clock."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._connection = Connection(self.address)

    async def __aenter__(self) -> Cluster:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Returns when every node that is here now has its actors.

        Raises ClusterError when there is no such cluster, a node cannot measure, or nodes differ
        in what results depend on."""
        await self._connection.open()
        nodes = await self._connection.nodes()
        self._ours = node_worker.stand(self._packages)
        if self.device == "auto":
            self.device = "cuda" if any(node.gpus for node in nodes) else "cpu"
        if not any(self._wanted(node) for node in nodes):
            names = ", ".join(map(str, nodes)) or "none"
            raise ClusterError(
                f"no node of the cluster has a GPU (nodes: {names})", "use --device cpu"
            )
        wanted = [(node, number) for node in nodes for number in range(self._wanted(node))]
        self.say(f"cluster: starting {len(wanted)} processes on {len(nodes)} nodes")
        found = await asyncio.gather(*(self._hire(*one) for one in wanted), return_exceptions=True)
        if problems := [str(one) for one in found if isinstance(one, BaseException)]:
            raise ClusterError("; ".join(dict.fromkeys(problems)), SAME)
        for problem in filter(None, found):
            self.say(f"not used: {problem}")
        if all(found):
            raise ClusterError(f"no process could be started: {found[0]}", "look at `ray status`")
        self.say(f"cluster: {self.places_text}")
        self._spawn(self._tend())

    async def close(self) -> None:
        """Ends every actor within seconds, whatever it does. Callers of unfinished jobs get an
        error."""
        self._jobs.fail(ClusterError("the cluster was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if places := list(self._places.values()):
            goodbyes = [
                asyncio.ensure_future(_wait_for(place.actor.close.remote())) for place in places
            ]
            await asyncio.wait(goodbyes, timeout=CLOSE_S)
            for goodbye in goodbyes:
                goodbye.cancel()
            await asyncio.gather(*goodbyes, return_exceptions=True)
            for place in places:
                self._bury(place)
        await self._connection.close()

    # --- for those who have work ------------------------------------------------------------------

    async def do(self, id: str, work: Any, group: str = "") -> Any:
        """The result of this job. Asked again with the same id, the same result.

        ``group``: jobs of one group go to one actor where that costs no waiting. Cancelling the
        only caller ends the job within seconds. Raises JobFailed, with the worker's own words
        where it raised something, and other ClusterErrors when the whole cluster is lost."""
        return await self._jobs.result(id, work, group)

    def forget(self, id: str) -> None:
        """The next one who asks has it done again."""
        self._jobs.forget(id)

    @property
    def places(self) -> int:
        """Actors, also those that are being made."""
        return len(self._places)

    @property
    def places_text(self) -> str:
        """How many actors there are, by device and host, in words."""
        counts = Counter(
            (place.node.host, place.about.device_name or self.device)
            for place in self._places.values()
            if place.about
        )
        return ", ".join(
            f"{count} x {device} on {host}" for (host, device), count in sorted(counts.items())
        )

    @property
    def doing(self) -> dict[str, tuple[float, str]]:
        """Id of each job under way -> when it began on the monotonic clock, and where."""
        return {job.id: (job.began, job.where) for job in self._jobs.known.values() if job.began}

    # --- actors -----------------------------------------------------------------------------------

    def _wanted(self, node: ClusterNode) -> int:
        return node.gpus if self.device == "cuda" else 1

    async def _hire(self, node: ClusterNode, number: int) -> str | None:
        """An actor that works, or why there is none now. Raises ClusterError where there must not be
        one."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {
            "num_cpus": 0,  # it must not wait for those who reserve cores and do not use them
            "num_gpus": 1 if self.device == "cuda" else 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
            "max_restarts": 0,
            "max_concurrency": 2 * self.width + 2,
        }
        made = library().remote(NodeActor).options(**options)
        actor = made.remote(self.make, self.device, self._packages, self.python)
        place = self._places[node.id, number] = _PlacedActor(node=node, number=number, actor=actor)
        try:
            async with asyncio.timeout(READY_S):
                place.about = await _wait_for(actor.about.remote(self._ours))
        except TimeoutError:
            return self._unready(place, f"{node} has no free GPU or process within {READY_S:.0f} s")
        except library().exceptions.RayError as error:
            return self._unready(place, f"{node}: {_first_line(error)}")
        if problem := self._problem(place):
            self._deaths[node.id] += [time.monotonic()] * MAX_DEATHS
            self._bury(place)
            raise ClusterError(problem)
        for _ in range(self.width):
            self._spawn(self._work(place))
        return None

    def _unready(self, place: _PlacedActor, problem: str) -> str:
        self._deaths[place.node.id].append(time.monotonic())
        self._bury(place)
        return problem

    @property
    def _packages(self) -> tuple[str, str]:
        """Those whose code decides the results."""
        function = self.make.func if isinstance(self.make, partial) else self.make
        return "kernel_lsp", str(function.__module__).partition(".")[0]

    def _problem(self, place: _PlacedActor) -> str | None:
        """Why this actor cannot work beside the others."""
        about, node = place.about, place.node
        assert about is not None
        if about.problem:
            seen = f", GPU {about.visible}" if about.visible else ""
            return f"{node}{seen}: {about.problem}"
        others = (one.about for one in self._places.values() if one.about and one is not place)
        for other in (self._ours, *others):
            if found := node_worker.differences(other, about):
                return f"versions differ: {node} has {', '.join(found)}"
        return None

    def _bury(self, place: _PlacedActor) -> None:
        place.lost = True
        if self._places.get(key := (place.node.id, place.number)) is place:
            del self._places[key]
        with contextlib.suppress(Exception):
            # Ray's own: it is dead already, or nobody is there to tell.
            library().kill(place.actor)

    async def _tend(self) -> None:
        """Actors on nodes that joined, and again where one was lost; an end where none is
        left."""
        alone_since: float | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            nodes = await self._connection.nodes()
            for place in [one for one in self._places.values() if one.node not in nodes]:
                self.say(f"{place.node} is gone")
                self._bury(place)
            for node in nodes:
                for number in range(self._wanted(node)):
                    if (node.id, number) not in self._places and self._may_hire(node):
                        self._spawn(self._join(node, number))
            now = time.monotonic()
            alone_since = None if self._places else alone_since or now
            if alone_since is not None and now - alone_since > ALONE_S:
                raise ClusterError("no node of the cluster is left", START)

    def _may_hire(self, node: ClusterNode) -> bool:
        now = time.monotonic()
        deaths = [when for when in self._deaths[node.id] if now - when < RECENT_S]
        return not deaths or (len(deaths) < MAX_DEATHS and now - deaths[-1] > AGAIN_S)

    async def _join(self, node: ClusterNode, number: int) -> None:
        try:
            problem = await self._hire(node, number)
        except ClusterError as error:
            problem = str(error)
        self.say(f"not used: {problem}" if problem else f"{node} joined: {self.places_text}")

    # --- jobs -------------------------------------------------------------------------------------

    async def _work(self, place: _PlacedActor) -> None:
        """One job after another, until the actor is lost."""
        while True:
            job = await self._jobs.next(
                place.group, lambda: self._groups(place), lambda: place.doubtful > 0
            )
            if place.lost:
                self._jobs.give_back(job)
                return
            place.group, doubtful = job.group, job.losses > 0
            place.doubtful += doubtful
            try:
                await self._attempt(place, job)
            finally:
                place.doubtful -= doubtful

    async def _attempt(self, place: _PlacedActor, job: ClusterJob) -> None:
        failures = library().exceptions
        ref = place.actor.do.remote(job.work)
        self._jobs.begin(job, place.node.host, partial(library().cancel, ref))
        try:
            answer: ActorAnswer = await _wait_for(ref)
            self._jobs.settle(job, answer.value, answer.failed)
        except failures.TaskCancelledError:  # mostly because nobody waits for it any more
            self._jobs.again(job, "it was cancelled there")
        except failures.RayTaskError as error:
            # No failure for a user to read: a bug of the worker's.
            self._jobs.settle(job, failed=(repr(error.cause), None))
        except failures.RayError as error:  # the process, its node, or what it had said
            self._lost(place, _first_line(error))
            self._jobs.again(job, _first_line(error))

    def _groups(self, place: _PlacedActor) -> set[str | None]:
        """That others work on."""
        return {one.group for one in self._places.values() if one is not place}

    def _lost(self, place: _PlacedActor, why: str) -> None:
        """Or may be: whatever it still does counts no more."""
        if not place.lost:
            self._deaths[place.node.id].append(time.monotonic())
            self.say(f"{place.node} lost a process, its jobs are done again: {why}")
            self._bury(place)

    # --- tasks ------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A loop of ours that fails fails all jobs: nobody may wait for ever."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ClusterError):
            self._jobs.fail(error)
        elif error is not None:
            self._jobs.fail(ClusterError(f"the pool itself failed: {error!r}"))


async def _wait_for(ref: Any) -> Any:
    """A result of Ray's as asyncio knows it: a cancelled wait leaves the job alone."""
    return await asyncio.wrap_future(ref.future())


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    return lines[0][:300]
