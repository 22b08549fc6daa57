"""The trained policies of a user in a job: which one is used, its process, and a planner made of
both.

One plans graphs and one Triton kernels, or one both. What is used is read anew for each job, so a
switch counts from the next request. Where there is none, or it cannot be used, the rule plans, and
`trouble` says why. Not covered: what a planner does (agents/learned.py, agents/kernel_planner.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Coroutine
from pathlib import Path

from kernel_lsp.agents.backbones.small.runtime import Runtime
from kernel_lsp.agents.kernel_planner import KernelPlanner
from kernel_lsp.agents.learned import LearnedPlanner, Tell, usable
from kernel_lsp.agents.plan import Planner
from kernel_lsp.agents.prompt_encoding import Situation
from kernel_lsp.errors import KernelLspError, ModelError
from kernel_lsp.evaluator import Gate
from kernel_lsp.models import GRAPH, KERNEL, PolicyStore, StoredPolicy
from kernel_lsp.models.manifest import verify
from kernel_lsp.pipeline.opened import JobBench, Opened
from kernel_lsp.records import GraphView, Progress, Report


class Policies:
    """One user's choices and the children that serve them. For one event loop."""

    def __init__(self, data_dir: Path, store: PolicyStore | None = None) -> None:
        self._store = store or PolicyStore(data_dir)
        self._runtimes: dict[str, Runtime] = {}
        """By what each has loaded: `Model.proposer`, and its interpreter."""
        self._serves: dict[str, str] = {}
        """Kind of target -> which of these plans it."""
        self._retiring: set[Runtime] = set()
        """They plan nothing any more, but may still be asked something."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.trouble: str | None = None
        """Why the rule plans although a policy was chosen."""

    def used(
        self, device: str, target: str = GRAPH, capability: str | None = None
    ) -> StoredPolicy | None:
        """The policy for a job about this kind of target on this kind of device; None: the rule.
        ``capability``: of a GPU, as in `Manifest.knows`."""
        self.trouble = None
        try:
            model = self._store.used(target)
        except ModelError as error:
            self.trouble = str(error)
            return None
        if model is None or model.manifest is None:
            return None
        if not model.manifest.knows(device, capability):
            if self._store.chose(model):
                here = f"{device}:{capability}" if capability else device
                self.trouble = f"{model.id} was not trained for {here}"
            return None
        return model

    def warm(self, bench: JobBench, gate: Gate) -> None:
        """Load it while the target is opened, by a fork of what imports torch for that in any
        case."""
        if bench.policy is not None:
            self._begin(self._warm(bench.policy, bench, gate))

    def planner(self, one: Opened, report: Report) -> Planner | LearnedPlanner | KernelPlanner:
        """The planner of one target: the policy's where one is used, else the rule's."""

        def tell(words: str) -> None:
            self.trouble = words
            report(Progress(phase="plan", message=words))

        rule = Planner(one.engine.make, one.engine.look, one.known.best, one.engine.weigh)
        if self.trouble is not None:
            tell(f"planned by the rule: {self.trouble}")
        if one.bench.policy is None:
            return rule
        if one.bench.target == KERNEL:
            return self._of_kernel(one, one.bench.policy, rule, tell)
        if one.capture.graph is None:
            return rule
        return self._of_graph(one, one.bench.policy, one.capture.graph, rule, tell)

    def _of_graph(
        self, one: Opened, model: StoredPolicy, graph: GraphView, rule: Planner, tell: Tell
    ) -> LearnedPlanner:
        bench, capture, manifest = one.bench, one.capture, model.manifest
        triton = bench.probe.triton is not None
        return LearnedPlanner(
            Situation(
                graph=graph,
                sites=usable(one.sites, triton=triton),
                device=bench.device,
                capability=_capability(bench),
                triton=triton,
                read_bytes=capture.read_bytes,
                written_bytes=capture.written_bytes,
            ),
            name=model.proposer,
            answer=self._served(model, bench).reply,
            view=one.engine.view,
            make=one.engine.make,
            rule=rule,
            margin=manifest.margin if manifest else 0.0,
            weighs=manifest.weighs if manifest else False,
            prefer=one.known.best,
            tell=tell,
        )

    def _of_kernel(
        self, one: Opened, model: StoredPolicy, rule: Planner, tell: Tell
    ) -> KernelPlanner:
        return KernelPlanner(
            name=model.proposer,
            answer=self._served(model, one.bench).reply,
            launched=one.engine.launched,
            make=one.engine.make,
            rule=rule,
            capability=_capability(one.bench),
            margin=model.manifest.margin if model.manifest else 0.0,
            prefer=one.known.best,
            tell=tell,
        )

    async def close(self) -> None:
        """End the children. Safe to call twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        runtimes = (*self._runtimes.values(), *self._retiring)
        self._runtimes, self._retiring = {}, set()
        await asyncio.gather(*(runtime.close() for runtime in runtimes))

    async def _warm(self, model: StoredPolicy, bench: JobBench, gate: Gate) -> None:
        with contextlib.suppress(KernelLspError):  # the planner asks again, and hears why
            async with gate.forks() as start:
                await self._served(model, bench).warm(start)

    def _served(self, model: StoredPolicy, bench: JobBench) -> Runtime:
        """One for each kind of target, or one for both; what plans nothing any more is ended."""
        serves = self._serves[bench.target] = f"{model.proposer}\0{bench.probe.python}"
        for left in self._runtimes.keys() - self._serves.values():
            self._begin(self._retire(self._runtimes.pop(left)))
        if serves not in self._runtimes:
            assert model.manifest is not None
            check = functools.partial(verify, model.folder, model.manifest)
            self._runtimes[serves] = Runtime(model.folder, bench.probe.python, check=check)
        return self._runtimes[serves]

    def _retire(self, runtime: Runtime) -> Coroutine[None, None, None]:
        # At once: a task that is cancelled before it began does nothing.
        self._retiring.add(runtime)

        async def retired() -> None:
            await runtime.retire()
            self._retiring.discard(runtime)

        return retired()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _capability(bench: JobBench) -> str | None:
    return bench.probe.capability if bench.device == "cuda" else None
