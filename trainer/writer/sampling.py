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
    """``count`` sampled replies to each (1: the likeliest), fewer where the time (monotonic) ends.

    Questions of like length go together, so little is padded."""
    drawn_record = [encode(tokenizer, question) for question in questions]
    places = [place for place in range(len(drawn_record)) for _ in range(count)]
    order = sorted(places, key=lambda place: len(drawn_record[place]))
    model.eval()
    write = _on_cpu if model.device.type == "cpu" else _in_batches
    texts = write(model, tokenizer, [drawn_record[p] for p in order], count > 1, plan, end)
    return _by_question(len(questions), order, texts)


def _by_question(count: int, order: Sequence[int], texts: Sequence[str | None]) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in range(count)]
    for place, text in zip(order, texts, strict=False):
        if text is not None:
            found[place].append(text)
    return found


def _in_batches(
    model: Any,
    tokenizer: Any,
    questions: Sequence[list[int]],
    sampled: bool,
    plan: SamplingPlan,
    end: float,
) -> list[str | None]:
    """Fewer than questions where the time ends."""
    found: list[str | None] = []
    for at in range(0, len(questions), plan.batch):
        if time.monotonic() > end:
            break
        found += _batch(model, tokenizer, questions[at : at + plan.batch], sampled, plan)
    return found


def _batch(
    model: Any, tokenizer: Any, drawn_record: Sequence[list[int]], sampled: bool, plan: SamplingPlan
) -> list[str]:
    longest = max(map(len, drawn_record))
    pad = tokenizer.pad_token_id
    tokens = torch.tensor([[pad] * (longest - len(one)) + one for one in drawn_record])
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
            eos_token_id=tokenizer.eos_token_id,
            **ways,
        )
    texts = tokenizer.batch_decode(made[:, longest:], skip_special_tokens=False)
    return [str(text).partition(END)[0] for text in texts]


def _on_cpu(
    model: Any,
    tokenizer: Any,
    questions: Sequence[list[int]],
    sampled: bool,
    plan: SamplingPlan,
    end: float,
) -> list[str | None]:
    decoder = CpuDecoder(model, plan.places, 2 * LENGTHS[-1])
    stop = tokenizer.eos_token_id

    def choose(scores: Tensor) -> int:
        return _drawn(scores, plan) if sampled else int(scores.argmax())

    found = decoder.replies(questions, choose, stop, plan.new_tokens, end)
    return [None if one is None else str(tokenizer.decode(one)).partition(END)[0] for one in found]


def _drawn(scores: Tensor, plan: SamplingPlan) -> int:
    """A token out of the likeliest ones that together have ``top_p``."""
    chances, tokens = (scores / plan.temperature).softmax(-1).sort(descending=True)
    kept = chances * (chances.cumsum(0) - chances < plan.top_p)
    return int(tokens[torch.multinomial(kept, 1)])
