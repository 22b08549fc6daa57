"""What fits: how long prompt and reply may be, which tools such a reply can hold, what is left out
first.

Lengths are UTF-8 bytes, since without the model's tokenizer a token is only a share of them. Not
covered: counting exactly (`Backbone.count`), which costs a question per prompt."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.agents import tools
from kernel_lsp.errors import BackboneError
from kernel_lsp.records import Cost, ModelInfo, Prompt, Reply, Site, ToolSchema

BYTES_PER_TOKEN = 2.5
"""Fewer than tokenizers need, so that a prompt that fits here fits: prompts of ours have 2.6 to
3.1 bytes a token with a vocabulary of 4,096 words trained on this repository, and more with larger
ones."""
UNKNOWN_CONTEXT = 8192
"""Tokens, where the server does not tell: the least that a model for code has today."""
REPLY_SHARE, MAX_REPLY = 1 / 3, 8192
"""Of the context, and never more tokens than daVinci-kernel's policy writes (arXiv 2606.16497)."""
MIN_FOR_TEXT = 1500
"""Tokens of a reply that can hold a skill, or a rewrite of a small program."""
MAX_SITES = 24
SITES_SHARE = 1 / 3
"""Of the prompt, for the list of sites."""
MARGIN_TOKENS = 64
"""For what a chat template adds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeLimits:
    """What one exchange with a model may take."""

    prompt_bytes: int
    """Of messages and tools together."""
    reply_tokens: int
    model: str = "the model"
    temperature: float = 1.0
    top_p: float = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptPart:
    """A piece of a prompt that may be left out."""

    text: str
    short: str = ""
    """What stands instead where the text does not fit."""
    rank: int = 0
    """The lowest is kept longest."""


def room(info: ModelInfo, bytes_per_token: float = BYTES_PER_TOKEN) -> ExchangeLimits:
    """How long prompt and reply may be for that model. ``bytes_per_token``: as it was seen to
    count, where it was."""
    context = info.context_tokens or UNKNOWN_CONTEXT
    share = int(context * REPLY_SHARE)
    reply = min(MAX_REPLY, share) if info.reply_tokens is None else min(info.reply_tokens, share)
    prompt = max(0, context - reply - MARGIN_TOKENS)
    return ExchangeLimits(
        prompt_bytes=int(prompt * bytes_per_token),
        reply_tokens=reply,
        model=info.model,
        temperature=info.temperature,
        top_p=info.top_p,
    )


def size(text: str) -> int:
    """Bytes of the text in UTF-8."""
    return len(text.encode("utf-8", "replace"))


def size_of_tools(offered: Sequence[ToolSchema]) -> int:
    """Bytes of the tools as a server shows them to the model: as schemas or in words, whichever is
    longer."""
    if not offered:
        return 0
    shown = [
        {"name": tool.name, "description": tool.description, "parameters": tools.flat(tool)}
        for tool in offered
    ]
    wrapped = json.dumps([{"type": "function", "function": function} for function in shown])
    return max(size(wrapped), size(tools.in_words(offered)))


def is_bounded(tool: ToolSchema, room: ExchangeLimits) -> bool:
    """Whether the tool's longest call fits into the reply, even at a token a character."""
    longest = tools.longest_chars(tools.envelope([tool]))
    return longest is not None and longest <= room.reply_tokens


def sites_that_fit(sites: Sequence[Site], room: ExchangeLimits) -> tuple[Site, ...]:
    """The sites that can be shown and named in a reply, the first before later ones."""
    taken: list[Site] = []
    left = int(room.prompt_bytes * SITES_SHARE)
    for site in sites:
        tool = tools.apply_skill([site])
        needed = size_of_tools([tool]) + size(site.summary)
        if len(taken) < MAX_SITES and needed <= left and is_bounded(tool, room):
            taken.append(site)
            left -= needed
    return tuple(taken)


def may_write(program: str, room: ExchangeLimits) -> bool:
    """The reply can hold the program once and a half."""
    return room.reply_tokens >= max(MIN_FOR_TEXT, 1.5 * size(program) / BYTES_PER_TOKEN)


def fit_parts(parts: Sequence[PromptPart], left: int) -> list[str]:
    """What is said of each part, nothing for some, within ``left`` bytes.

    By rank, first every short text, then whole ones: all that was tried is known before one is
    shown in full."""
    chosen = [""] * len(parts)
    by_rank = sorted(range(len(parts)), key=lambda i: parts[i].rank)
    for texts in ([part.short for part in parts], [part.text for part in parts]):
        for i in by_rank:
            more = _taken_bytes(texts[i]) - _taken_bytes(chosen[i])
            if texts[i] and more <= left:
                chosen[i], left = texts[i], left - more
    return chosen


def left_for(mandatory: Sequence[str], offered: Sequence[ToolSchema], room: ExchangeLimits) -> int:
    """Bytes for the optional parts. Raises BackboneError when not even the others fit."""
    left = spare(mandatory, offered, room)
    if left >= 0:
        return left
    needed, most = (
        math.ceil(n / BYTES_PER_TOKEN) for n in (room.prompt_bytes - left, room.prompt_bytes)
    )
    raise BackboneError(
        f"the prompt takes about {needed} tokens and {room.model} has room for {most}",
        "serve it with a larger context (vLLM: --max-model-len), or take a model that has one",
    )


def spare(mandatory: Sequence[str], offered: Sequence[ToolSchema], room: ExchangeLimits) -> int:
    """Bytes that are left; negative: so many too few."""
    return room.prompt_bytes - size_of_tools(offered) - sum(map(_taken_bytes, mandatory))


def _taken_bytes(text: str) -> int:
    """With the blank line after it."""
    return size(text) + 2 if text else 0


def cost(prompt: Prompt, reply: Reply) -> Cost:
    """What an exchange took; estimated from above where the server does not count."""
    asked = sum(size(message.text) for message in prompt.messages) + size_of_tools(prompt.tools)
    said = size(reply.text) + sum(size(json.dumps(call.arguments)) for call in reply.calls)
    tokens = (
        len(reply.token_ids) if reply.token_ids is not None else math.ceil(said / BYTES_PER_TOKEN)
    )
    return Cost(
        prompt_tokens=_or(reply.usage.prompt_tokens, math.ceil(asked / BYTES_PER_TOKEN)),
        completion_tokens=_or(reply.usage.completion_tokens, tokens),
        model_s=reply.latency_s,
    )


def _or(counted: int | None, estimated: int) -> int:
    return estimated if counted is None else counted
