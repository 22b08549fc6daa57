"""The product's rollouts as a taskset and a harness of the `verifiers` library (its v1 interface,
0.4), for prime-rl and whatever else drives that library.

    taskset id `trainer`, with folder = "tasks"; the harness is the taskset's own

An episode runs in the harness's own process. Every question goes to the endpoint that verifiers
gives, so its traces have each prompt and reply; each question stands for itself, as in the product,
so a trace has a branch for each. A trace's reward is the best of its turns'; where nobody could
judge any it is an error, not 0. Candidates run confined, as always, and not in a runtime of
verifiers. Not covered: skills that are learned while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import verifiers.v1 as vf
from pydantic import Field

from trainer.data.asked import INFO
from trainer.rollouts.environment import Environment, Observation, of_model
from trainer.tasks import task_suites

__all__ = ["KernelHarness", "KernelTaskset"]
REPLY_S = 3600.0


class KernelData(vf.TaskData):
    folder: str
    """Of the suite that has the task called `name`."""
    device: str
    turns: int
    scheme: str
    """Of rewards, see algorithms/rewards.py."""


class KernelState(vf.State):
    rewards: list[float | None] = Field(default_factory=list)
    """One for each reply."""


class KernelTask(vf.Task[KernelData, KernelState]):
    @vf.reward
    async def best_turn(self, trace: vf.Trace) -> float:
        """The best of the turns; raises where none was judged."""
        known = [one for one in trace.state.rewards if one is not None]
        if not known:
            raise ValueError(f"no turn of {self.data.name} could be judged")
        return max(known)

    @vf.metric
    async def judged_turns(self, trace: vf.Trace) -> float:
        """How many replies were judged."""
        return float(sum(one is not None for one in trace.state.rewards))


class KernelTasksetConfig(vf.TasksetConfig):
    folder: Path = Path("tasks")
    """Files with `Model` and `get_inputs`."""
    device: str = "auto"
    turns: int = 3
    scheme: str = "bound"


class KernelTaskset(vf.Taskset[KernelTask, KernelTasksetConfig]):
    def load(self) -> Iterator[KernelTask]:
        """One for each program of the folder, in the order of their names."""
        own = self.config
        for name in sorted(task_suites.load(own.folder).by_name):
            data = KernelData(
                name=name,
                prompt=f"Make {name} faster.",  # a label: what is asked is the product's
                folder=str(own.folder.absolute()),
                device=own.device,
                turns=own.turns,
                scheme=own.scheme,
            )
            yield KernelTask(data, own.task)


class KernelHarnessConfig(vf.HarnessConfig):
    context_tokens: int = 32_768
    """Of the model: prompts are cut to it."""
    seed: int = 0


class KernelHarness(vf.Harness[KernelHarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """One rollout, from the first question to the last verdict."""
        assert isinstance(data, KernelData) and data.name is not None
        suite = task_suites.load(Path(data.folder))
        info = of_model(ctx.model, self.config.context_tokens) if ctx.model else INFO
        headers = {"Authorization": f"Bearer {secret}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=REPLY_S, trust_env=False) as client,
            Environment(suite, device=data.device) as environment,
            environment.open(data.name) as task,
        ):
            episode = task.begin(
                seed=self.config.seed, turns=data.turns, reward=data.scheme, info=info
            )
            try:
                seen = await episode.reset()
                while not seen.done:
                    message = await _asked(client, endpoint, ctx.model, seen)
                    seen = await episode.step(message)
                    trace.state.rewards.append(seen.reward)
            finally:
                await episode.close()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _asked(
    client: httpx2.AsyncClient, endpoint: str, model: str, seen: Observation
) -> dict[str, Any]:
    """The assistant's message, with why it ended."""
    body: dict[str, Any] = {"model": model, "messages": list(seen.messages)}
    if seen.tools:
        body["tools"] = list(seen.tools)
    answer = await client.post(f"{endpoint.rstrip('/')}/chat/completions", json=body)
    answer.raise_for_status()
    choice = answer.json()["choices"][0]
    return {**choice["message"], "finish_reason": choice.get("finish_reason")}
