"""What is said to a language model and what comes back: agents and their backbones.

A `Backbone` is anything that answers a `Prompt` with a `Reply`. What a reply means is
agents/replies.py's, what a tool call does is the workshop's (records/searches.py). Not covered:
prompts' words, training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kernel_lsp.records.common import Json
from kernel_lsp.records.jobs import Progress
from kernel_lsp.records.rewrites import Site
from kernel_lsp.records.skills import RecipeStep, Requirements


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class CallForm(StrEnum):
    """How a reply carried its call."""

    NATIVE = "native"
    """The server had parsed it."""
    ENVELOPE = "envelope"
    """The whole reply is ``{"name": …, "arguments": {…}}``: what constrained decoding yields."""
    TAGGED = "tagged"
    """``<tool_call>`` blocks, JSON or Qwen's XML inside."""
    FENCED = "fenced"
    """JSON in a code fence."""
    CODE = "code"
    """A fenced Python block or edit blocks in prose: a write_rewrite."""


class Structured(StrEnum):
    """How far a server can be held to a schema."""

    SCHEMA = "schema"
    """Decoding is constrained by a JSON schema: every complete reply is a valid call."""
    TOOLS = "tools"
    """It takes tool schemas, and may ignore them."""
    NONE = "none"
    """The prompt describes the calls in words."""


class Finish(StrEnum):
    STOP = "stop"
    CALLS = "calls"
    LENGTH = "length"
    """Cut at the limit of tokens (or at ours, for a reply without end)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    name: str
    arguments: Json
    id: str = ""
    """The server's name for it, which a tool message repeats; empty: it gave none."""
    form: CallForm = CallForm.NATIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Of an assistant."""
    call_id: str | None = None
    """Of a tool message: the call that it answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSchema:
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: Json
    """JSON Schema of an object: closed, every string and array but source text bounded, so that
    the longest valid reply is known (`agents.tools.longest_chars`) and constrained decoding ends
    in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 0.95
    max_tokens: int = 2048
    seed: int | None = None
    logprobs: bool = False
    """Also token ids, where the server gives them: for the trainer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One question to a model."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    """Exactly one call of one of these is asked for; empty: text."""
    sampling: Sampling = Sampling()
    sites: tuple[Site, ...] = ()
    """What apply_skill may name, ranked: for a backbone that reads no prose (plan)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt's, what the server had already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a model answered, before anybody made sense of it."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    """What the server itself had parsed; arguments that were no JSON object stand in ``text``."""
    finish: Finish = Finish.STOP
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """Of the sampled tokens, natural logarithm; as many as token_ids where both are known. Under a
    schema they are those of the masked distribution, not the model's own."""
    usage: Usage = Usage()
    latency_s: float
    first_token_s: float | None = None
    model: str
    """As the server names it."""
    version: str | None = None
    """Of server and weights, as far as they are known; None: unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """What is known of a backbone once it is open."""

    backbone: str
    """plan, openai, vllm or transformers."""
    model: str
    version: str | None = None
    origin: str | None = None
    """scheme://host:port that prompts go to; None: nothing leaves the process tree."""
    remote: bool = False
    """The origin is no loopback address."""
    context_tokens: int | None = None
    structured: Structured = Structured.NONE
    on_measured_gpu: bool = False
    """It computes on the GPU that judges: generating and timing must not overlap."""
    max_in_flight: int = 1
    """Prompts that it answers side by side."""
    temperature: float = 1.0
    top_p: float = 0.95
    """How it is sampled: the user's settings, or a trainer's."""
    reply_tokens: int | None = None
    """Of one reply at most; None: as the context allows (agents/sizing.py)."""

    @property
    def name(self) -> str:
        """``openai:Qwen3-8B@0.32``, for `Candidate.proposer`."""
        return f"{self.backbone}:{self.model}" + (f"@{self.version}" if self.version else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyProblem:
    """One thing in a reply that cannot be used, in words that let the model mend it."""

    where: str
    """``apply_skill.parameters.BLOCK``, ``reply``, ``edit 2`` …"""
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.cause} ({self.remedy})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """The usable part of a reply."""

    calls: tuple[ToolCall, ...] = ()
    """Valid against their schemas."""
    problems: tuple[ReplyProblem, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One prompt, its reply, and what was wrong with it: what an archive keeps for the trainer."""

    agent: str
    """selection, policy or summary."""
    prompt: Prompt
    reply: Reply
    parsed: Parsed


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillDraft:
    """A skill that a summary agent wrote. Nobody has verified it."""

    name: str
    description: str
    scope: str
    tags: tuple[str, ...]
    content: str
    """Markdown with Motivation, Key Idea, Example and Pitfalls."""
    requires: Requirements | None = None
    """What held where it was learned; never a model's words."""
    recipe: tuple[RecipeStep, ...] = ()


Report = Callable[[Progress], None]
OnText = Callable[[str], None]
"""Receives text as it arrives; for progress only, the reply holds all of it."""


class Backbone(Protocol):
    """A language model, or what stands in for one. One per job; safe for ``max_in_flight``
    tasks."""

    async def open(self, report: Report) -> ModelInfo:
        """Start or find it, and wait until it is well. Asked again: what is known. Raises
        BackboneError."""

    async def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt; an upper estimate where the server does not tell."""

    async def reply(self, prompt: Prompt, on_text: OnText | None = None) -> Reply:
        """Retries what may pass (429, 5xx, a lost connection) within the time limit.

        Cancelling the task ends the request within 0.3 s. Raises BackboneError.
        """

    async def close(self) -> None:
        """End what it started. Safe to call twice."""
