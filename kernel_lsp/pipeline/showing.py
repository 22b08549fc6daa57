"""What a language model would be sent about a target: made by the agents themselves, and sent
nowhere.

The first questions of a search, without anything left out for want of room, after redaction. Later
ones add what was tried and how it went. Not covered: when anything is sent."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from kernel_lsp import origins, wire
from kernel_lsp.agents import tools
from kernel_lsp.agents.policy import PolicyAgent
from kernel_lsp.agents.secrets import redact_prompt
from kernel_lsp.config import Settings
from kernel_lsp.errors import BackboneError, ConfigError
from kernel_lsp.pipeline.deep import task_of
from kernel_lsp.pipeline.opened import Opened
from kernel_lsp.pipeline.workshop import EngineWorkshop
from kernel_lsp.records import Context, ModelInfo, Move, OnText, Prompt, Reply, Report
from kernel_lsp.search.bandit import BanditArms

ROOMY = ModelInfo(backbone="none", model="none", context_tokens=2**20)
NO_CHOICE = json.dumps({"name": tools.SELECT, "arguments": {"think": "", "selected_skills": []}})


class _Collector:
    """A backbone that keeps what it is asked: it chooses no skill, and ends at the next
    question."""

    def __init__(self) -> None:
        self.asked: list[Prompt] = []

    async def open(self, report: Report) -> ModelInfo:
        """A model with room for every prompt."""
        return ROOMY

    async def count(self, prompt: Prompt) -> int:
        """0: every prompt fits."""
        return 0

    async def reply(self, prompt: Prompt, on_text: OnText | None = None) -> Reply:
        """Keep the prompt; choose no skill where it asks for one, else raise BackboneError."""
        self.asked.append(prompt)
        if prompt.tools and prompt.tools[0].name == tools.SELECT:
            return Reply(text=NO_CHOICE, latency_s=0.0, model=ROOMY.model)
        raise BackboneError("nothing is sent")

    async def close(self) -> None:
        """There is nothing to end."""


async def prompts_of(one: Opened, settings: Settings) -> str:
    """Markdown: where it would go, and every message as it would be sent."""
    collector, task = _Collector(), task_of(one, (), BanditArms(Path(settings.data_dir)))
    agent = PolicyAgent(collector, EngineWorkshop(one.engine, one.prepared), info=ROOMY)
    with contextlib.suppress(BackboneError):
        await agent.propose(task, Context(number=0, seed=0, move=Move.RESTART, rollout=0, turn=1))
    return "\n\n".join(
        [
            f"# What a model is sent about {task.qualname}",
            _where(settings),
            *_prompt_texts(collector),
        ]
    )


def _where(settings: Settings) -> str:
    if settings.policy == "plan":
        return (
            "Nothing is sent: policy `plan` asks no language model. With another one it would "
            "be this."
        )
    if settings.policy != "openai" or settings.endpoint is None:
        return f"Nothing leaves this machine: policy `{settings.policy}` runs the model here."
    try:
        found = origins.endpoint(settings.endpoint)
    except ConfigError as error:
        return f"Nothing is sent: {error}"
    away = "another machine" if found.remote else "this machine"
    return (
        f"To {found.origin} ({away}), the first questions of a search, with what looks secret "
        f"left out:"
    )


def _prompt_texts(collector: _Collector) -> list[str]:
    parts = []
    for number, prompt in enumerate(collector.asked, 1):
        safe, _ = redact_prompt(prompt)
        parts.append(f"## Question {number}")
        parts += [f"### {message.role}\n\n{message.text}" for message in safe.messages]
        schemas = "\n".join(json.dumps(wire.to_json(tool)) for tool in safe.tools)
        parts.append(f"### tools\n\n````json\n{schemas}\n````")
    return parts
