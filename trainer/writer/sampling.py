"""Replies of a writer to many questions at once, on one GPU or a CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernel_lsp.agents.writing import END
from trainer.writer.tokens import encode
from trainer.writer.training import LENGTHS


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingPlan:
    batch: int = 1024
    """Sequences at once: their keys and values take 8 KB a token."""
    new_tokens: int = 1200
    temperature: float = 0.8
    top_p: float = 0.95


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
    order = sorted(
        (place for place in range(len(drawn_record)) for _ in range(count)),
        key=lambda p: len(drawn_record[p]),
    )
    found: list[list[str]] = [[] for _ in questions]
    model.eval()
    for at in range(0, len(order), plan.batch):
        if time.monotonic() > end:
            break
        places = order[at : at + plan.batch]
        texts = _batch(model, tokenizer, [drawn_record[place] for place in places], count > 1, plan)
        for place, text in zip(places, texts, strict=True):
            found[place].append(text)
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
