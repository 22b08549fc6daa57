"""Replies of a writer to many questions at once, on one GPU or a CPU (decoding.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.writer.decoding import WriterDecoder
from trainer.writer.short_form import END
from trainer.writer.tokens import encode
from trainer.writer.training import LENGTHS


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingPlan:
    batch: int = 768
    """Sequences at once on a GPU: their keys and values take 8 KB a token."""
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
    ordered = [prompts[place] for place in order]
    model.eval()
    places = plan.places if model.device.type == "cpu" else plan.batch
    longest = len(ordered[-1]) if ordered else 0
    context = min(longest + plan.new_tokens + 1, 2 * LENGTHS[-1])
    decoder = WriterDecoder(model, min(places, len(prompts)), context)

    def choose(scores: Tensor) -> Tensor:
        return _drawn(scores, plan) if sampled else scores.argmax(-1)

    written = decoder.replies(ordered, choose, tokenizer.eos_token_id, plan.new_tokens, end)
    found: list[list[int] | None] = [None] * len(prompts)
    for place, reply in zip(order, written, strict=False):
        found[place] = reply
    return found


def _drawn(scores: Tensor, plan: SamplingPlan) -> Tensor:
    """A token for each row, out of the likeliest ones that together have ``top_p``.

    The token with the largest p / e is drawn as often as p says, where e are exponential draws:
    `torch.multinomial` does the same and waits for the device to say that the chances are valid."""
    chances = (scores.float() / plan.temperature).softmax(-1)
    if plan.top_p < 1:
        ordered, tokens = chances.sort(descending=True)
        ordered = ordered * (ordered.cumsum(-1) - ordered < plan.top_p)
        chances = torch.zeros_like(chances).scatter(-1, tokens, ordered)
    return (chances / torch.empty_like(chances).exponential_()).argmax(-1)
