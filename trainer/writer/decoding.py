"""Replies of a Llama on a CPU, several at once: a waiting question takes the place of a finished
one, keys and values are written in place, nothing is padded.

transformers' `generate` copies all keys and values for every token on a CPU, and a batch takes as
long as its longest reply. Not covered: GPUs (sampling.py)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Choose = Callable[[Tensor], int]
"""Logits of one place (vocabulary,) -> a token."""


@dataclass(slots=True)
class _WriterPlace:
    asked: int
    """Number of the question."""
    reply: list[int]
    length: int
    """Tokens whose keys and values are there."""


class CpuDecoder:
    def __init__(self, model: Any, places: int, context: int) -> None:
        """``model``: a LlamaForCausalLM in float32. ``context``: tokens of question and reply."""
        config = model.config
        self._model, self._context = model, context
        self._heads, self._key_heads = config.num_attention_heads, config.num_key_value_heads
        self._width = config.head_dim
        shape = (config.num_hidden_layers, places, self._key_heads, context, self._width)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        rates = config.rope_parameters["rope_theta"] ** (
            -torch.arange(0, self._width, 2).float() / self._width
        )
        angles = torch.arange(context).float()[:, None] * torch.cat([rates, rates])
        self._cos, self._sin = angles.cos(), angles.sin()

    @torch.inference_mode()
    def replies(
        self, questions: Sequence[Sequence[int]], choose: Choose, stop: int, limit: int, end: float
    ) -> list[list[int] | None]:
        """Tokens of a reply to each question, ``stop`` last where it ended by itself; None where the
        time was up before.

        ``limit``: tokens of one reply. ``end``: on the monotonic clock."""
        waiting = deque(range(len(questions)))
        found: list[list[int] | None] = [None] * len(questions)
        places: list[_WriterPlace | None] = [None] * self._keys.shape[1]
        while time.monotonic() < end:
            for number in range(len(places)):
                while places[number] is None and waiting:
                    asked = waiting.popleft()
                    if len(questions[asked]) >= self._context:
                        found[asked] = []
                        continue
                    token = choose(self._read(number, questions[asked]))
                    places[number] = _WriterPlace(asked, [token], len(questions[asked]))
                    self._finish(places, number, found, stop, limit)
            active = [number for number, place in enumerate(places) if place is not None]
            if not active:
                break
            logits = self._step(active, [place for place in places if place is not None])
            for number, scores in zip(active, logits, strict=True):
                place = places[number]
                assert place is not None
                place.length += 1
                place.reply.append(choose(scores))
                self._finish(places, number, found, stop, limit)
        return found

    def _finish(
        self,
        places: list[_WriterPlace | None],
        number: int,
        found: list[list[int] | None],
        stop: int,
        limit: int,
    ) -> None:
        place = places[number]
        assert place is not None
        stopped = place.reply[-1] == stop
        if stopped or len(place.reply) >= limit or place.length + 1 >= self._context:
            found[place.asked] = place.reply
            places[number] = None

    def _read(self, number: int, tokens: Sequence[int]) -> Tensor:
        """A question into one place; logits of the next token."""
        size = len(tokens)
        cos, sin = self._cos[:size], self._sin[:size]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, number, :, :size] = k[0]
            self._values[layer, number, :, :size] = v[0]
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return self._forward(torch.tensor([list(tokens)]), cos, sin, attend)[0]

    def _step(self, active: Sequence[int], places: Sequence[_WriterPlace]) -> Tensor:
        lengths = torch.tensor([place.length for place in places])
        rows, most = torch.tensor(active), int(lengths.max()) + 1
        seen = (torch.arange(most) <= lengths[:, None])[:, None, None]
        cos, sin = self._cos[lengths][:, None, None], self._sin[lengths][:, None, None]
        group = self._heads // self._key_heads

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys[rows, :, lengths] = k[:, :, 0]
            values[rows, :, lengths] = v[:, :, 0]
            whole = len(active) == keys.shape[0]
            near = keys[:, :, :most] if whole else keys[rows, :, :most]
            far = values[:, :, :most] if whole else values[rows, :, :most]
            asked = q.reshape(len(active), self._key_heads, group, self._width)
            found = functional.scaled_dot_product_attention(asked, near, far, attn_mask=seen)
            return found.reshape(len(active), self._heads, 1, self._width)

        tokens = torch.tensor([[place.reply[-1]] for place in places])
        return self._forward(tokens, cos, sin, attend)

    def _forward(self, tokens: Tensor, cos: Tensor, sin: Tensor, attend: Any) -> Tensor:
        """Logits of the last token of each row."""
        body = self._model.model
        x = body.embed_tokens(tokens)
        for number, layer in enumerate(body.layers):
            part = layer.self_attn
            h = layer.input_layernorm(x)
            q, k, v = (self._split(one(h)) for one in (part.q_proj, part.k_proj, part.v_proj))
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
            mixed = attend(number, q, k, v).transpose(1, 2).flatten(2)
            x = x + part.o_proj(mixed)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits: Tensor = self._model.lm_head(body.norm(x[:, -1]))
        return logits

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self._width)).transpose(1, 2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin
