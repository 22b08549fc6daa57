"""Replies of a writer to many questions at once, on one GPU or a CPU (decoding.py)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.writer.decoding import CpuDecoder
from trainer.writer.short_form import END
from trainer.writer.tokens import encode
from trainer.writer.training import LENGTHS


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingPlan:
    batch: int = 1536
    """Sequences at once: their keys and values take 8 KB a token."""
    new_tokens: int = 1400
    temperature: float = 0.8
    top_p: float = 0.95
    places: int = 12
    """Sequences at once on a CPU."""


def replies(
    model: Any,
    tokenizer: Any,
    questions: Sequence[str],
    count: int,
    plan: SamplingPlan,
    end: float,
) -> list[list[str]]:
    """``count`` sampled replies to each (1: the likeliest), fewer where the time (monotonic) ends."""
    prompts = [encode(tokenizer, question) for question in questions for _ in range(count)]
    written = write(model, tokenizer, prompts, plan, end, sampled=count > 1)
    groups = [written[at : at + count] for at in range(0, len(written), count)]
    return [[text_of(tokenizer, one) for one in group if one is not None] for group in groups]


def text_of(tokenizer: Any, reply: Sequence[int]) -> str:
    """The text of a reply, up to its end mark."""
    return str(tokenizer.decode(list(reply), skip_special_tokens=False)).partition(END)[0]


def write(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    plan: SamplingPlan,
    end: float,
    *,
    sampled: bool,
) -> list[list[int] | None]:
    """Tokens of a reply to each prompt, `END` last where it ended by itself; None: the time was up.

    Prompts of like length go together, so little is padded."""
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    ways = _on_cpu if model.device.type == "cpu" else _in_batches
    model.eval()
    written = ways(model, tokenizer, [prompts[place] for place in order], sampled, plan, end)
    found: list[list[int] | None] = [None] * len(prompts)
    for place, reply in zip(order, written, strict=False):
        found[place] = reply
    return found


def _in_batches(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    sampled: bool,
    plan: SamplingPlan,
    end: float,
) -> list[list[int] | None]:
    """Fewer than prompts where the time ends."""
    found: list[list[int] | None] = []
    for at in range(0, len(prompts), plan.batch):
        if time.monotonic() > end:
            break
        found += _batch(model, tokenizer, prompts[at : at + plan.batch], sampled, plan)
    return found


def _batch(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], sampled: bool, plan: SamplingPlan
) -> list[list[int]]:
    longest = max(map(len, prompts))
    pad, stop = tokenizer.pad_token_id, tokenizer.eos_token_id
    tokens = torch.tensor([[pad] * (longest - len(one)) + list(one) for one in prompts])
    tokens = tokens.to(model.device)
    ways: dict[str, Any] = {"do_sample": False}
    if sampled:
        ways = {"do_sample": True, "temperature": plan.temperature, "top_p": plan.top_p, "top_k": 0}
    with torch.no_grad():
        made = model.generate(
            input_ids=tokens,
            attention_mask=(tokens != pad).long(),
            max_new_tokens=min(plan.new_tokens, 2 * LENGTHS[-1] - longest),
            pad_token_id=pad,
            eos_token_id=stop,
            **ways,
        )
    return [_up_to(reply, stop) for reply in made[:, longest:].tolist()]


def _up_to(reply: list[int], stop: int) -> list[int]:
    return reply[: reply.index(stop) + 1] if stop in reply else reply


def _on_cpu(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    sampled: bool,
    plan: SamplingPlan,
    end: float,
) -> list[list[int] | None]:
    decoder = CpuDecoder(model, plan.places, 2 * LENGTHS[-1])

    def choose(scores: Tensor) -> int:
        return _drawn(scores, plan) if sampled else int(scores.argmax())

    return decoder.replies(prompts, choose, tokenizer.eos_token_id, plan.new_tokens, end)


def _drawn(scores: Tensor, plan: SamplingPlan) -> int:
    """A token out of the likeliest ones that together have ``top_p``."""
    chances = (scores / plan.temperature).softmax(-1)
    if plan.top_p >= 1:
        return int(torch.multinomial(chances, 1))
    chances, tokens = chances.sort(descending=True)
    kept = chances * (chances.cumsum(0) - chances < plan.top_p)
    return int(tokens[torch.multinomial(kept, 1)])
