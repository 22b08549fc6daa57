"""The trained policy of a user in a job: which one is used, its process, and a planner made of both.

What is used is read anew for each job, so a switch counts from the next request. Where there is none, or it
cannot be used, the rule plans, and `trouble` says why. Not covered: what a planner does (agents/learned.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Coroutine
from pathlib import Path

from kernel_lsp.agents.backbones.small.runtime import Runtime
from kernel_lsp.agents.compact import Situation
from kernel_lsp.agents.learned import LearnedPlanner, usable
from kernel_lsp.agents.plan import Planner
from kernel_lsp.errors import KernelLspError, ModelError
from kernel_lsp.evaluator import Gate
from kernel_lsp.models import Model, Store
from kernel_lsp.models.manifest import verify
from kernel_lsp.pipeline.opened import Bench, Opened
from kernel_lsp.pipeline.tournament import Report
from kernel_lsp.records import Progress


class Policies:
    """One user's choice and the child that serves it. For one event loop."""

    def __init__(self, data_dir: Path, store: Store | None = None) -> None:
        self._store = store or Store(data_dir)
        self._runtime: Runtime | None = None
        self._serves = ""
        """`Model.proposer` of what the runtime has loaded, and its interpreter."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.trouble: str | None = None
        """Why the rule plans although a policy was chosen."""

    def used(self, device: str) -> Model | None:
        """The policy for a job on this kind of device; None: the rule."""
        self.trouble = None
        try:
            model = self._store.used()
        except ModelError as error:
            self.trouble = str(error)
            return None
        if model is None or model.manifest is None:
            return None
        if device not in model.manifest.devices:
            self.trouble = f"{model.id} was not trained for {device}"
            return None
        return model

    def warm(self, bench: Bench, gate: Gate) -> None:
        """Load it while the target is opened, by a fork of what imports torch for that in any case."""
        if bench.policy is not None:
            self._begin(self._warm(bench.policy, bench, gate))

    def planner(self, one: Opened, report: Report) -> Planner | LearnedPlanner:
        """For one target: the policy's where one is used, else the rule's."""

        def tell(words: str) -> None:
            self.trouble = words
            report(Progress(phase="plan", message=words))

        rule = Planner(one.engine.make, one.engine.look, one.known.best, one.engine.weigh)
        bench, capture = one.bench, one.capture
        if self.trouble is not None:
            tell(f"planned by the rule: {self.trouble}")
        if bench.policy is None or capture.graph is None:
            return rule
        triton = bench.probe.triton is not None
        return LearnedPlanner(
            Situation(
                graph=capture.graph,
                sites=usable(one.sites, triton=triton),
                device=bench.device,
                capability=bench.probe.capability if bench.device == "cuda" else None,
                triton=triton,
                read_bytes=capture.read_bytes,
                written_bytes=capture.written_bytes,
            ),
            name=bench.policy.proposer,
            answer=self._served(bench.policy, bench).reply,
            view=one.engine.view,
            make=one.engine.make,
            rule=rule,
            margin=bench.policy.manifest.margin if bench.policy.manifest else 0.0,
            weighs=bench.policy.manifest.weighs if bench.policy.manifest else False,
            prefer=one.known.best,
            tell=tell,
        )

    async def close(self) -> None:
        """End the child. Safe to call twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._runtime is not None:
            await self._runtime.close()
            self._runtime = None

    async def _warm(self, model: Model, bench: Bench, gate: Gate) -> None:
        with contextlib.suppress(KernelLspError):  # the planner asks again, and is told why
            async with gate.forks() as start:
                await self._served(model, bench).warm(start)

    def _served(self, model: Model, bench: Bench) -> Runtime:
        serves = f"{model.proposer}\0{bench.probe.python}"
        if self._runtime is None or self._serves != serves:
            if self._runtime is not None:
                self._begin(self._runtime.retire())
            assert model.manifest is not None
            check = functools.partial(verify, model.folder, model.manifest)
            self._runtime = Runtime(model.folder, bench.probe.python, check=check)
            self._serves = serves
        return self._runtime

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
