"""Replies of a Llama, many at once, on a CPU or a GPU: a waiting question takes the place of a
finished one, keys and values are written in place, and on a GPU a step is one CUDA graph.

transformers' `generate` copies all keys and values for every token, launches some 300 kernels for
it, and a batch takes as long as its longest reply: 64 ms a token for 766 replies of 17 M parameters
on an H200. Not covered: which token comes next (sampling.py), several GPUs."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Choose = Callable[[Tensor], Tensor]
"""Logits (places, vocabulary) -> tokens (places,)."""
READ_TOKENS = 32_768
"""Of questions that are read together, with what pads them."""
SPAN = 256
"""Keys that a step looks at are a multiple of so many: a graph for each."""
UNSEEN_STEPS = 16
"""On a GPU, between two looks at which replies have ended: each look waits for the device."""


@dataclass(slots=True)
class _WriterPlace:
    asked: int
    """Number of the question."""
    read: int
    """Tokens of the question."""
    written: int
    """Tokens of the reply; those behind its end too, until somebody looks."""


class WriterDecoder:
    """Places for questions, with the keys and values of each."""

    def __init__(
        self, model: Any, places: int, context: int, *, gpu_dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """``model``: a LlamaForCausalLM. ``context``: tokens of question and reply. ``gpu_dtype``:
        of the copy of its weights that writes on a GPU."""
        config, self._device = model.config, model.device
        self._on_gpu = self._device.type == "cuda"
        self._model = copy.deepcopy(model).to(gpu_dtype) if self._on_gpu else model
        self._context = context
        self._heads, self._key_heads = config.num_attention_heads, config.num_key_value_heads
        self._width = config.head_dim
        shape = (config.num_hidden_layers, places, self._key_heads, context, self._width)
        options = {"device": self._device, "dtype": self._model.dtype}
        self._keys, self._values = torch.zeros(shape, **options), torch.zeros(shape, **options)
        rates = config.rope_parameters["rope_theta"] ** (
            -torch.arange(0, self._width, 2).float() / self._width
        )
        angles = torch.arange(context).float()[:, None] * torch.cat([rates, rates])
        self._cos, self._sin = angles.cos().to(**options), angles.sin().to(**options)
        self._places: list[_WriterPlace | None] = [None] * places
        self._reply = torch.zeros(places, context, dtype=torch.long, device=self._device)
        self._last, self._length, self._count = torch.zeros(
            3, places, dtype=torch.long, device=self._device
        )
        """Of each place: its last token, tokens whose keys and values are there, of its reply."""
        self._stopped = torch.zeros(places, dtype=torch.bool, device=self._device)
        self._graphs: dict[int, tuple[Any, Tensor]] = {}
        self._side = torch.cuda.Stream() if self._on_gpu else None

    @torch.inference_mode()
    def replies(
        self, questions: Sequence[Sequence[int]], choose: Choose, stop: int, limit: int, end: float
    ) -> list[list[int] | None]:
        """Tokens of a reply to each question, ``stop`` last where it ended by itself; None where the
        time was up before.

        ``limit``: tokens of one reply. ``end``: on the monotonic clock."""
        waiting = deque(range(len(questions)))
        found: list[list[int] | None] = [None] * len(questions)
        while time.monotonic() < end and (waiting or any(self._places)):
            while numbers := self._take(waiting, questions, found):
                self._begin(numbers, questions, choose, stop)
            self._collect(found, stop, limit)
            if not waiting:
                self._shrink()
            if any(self._places):
                self._advance(choose, stop)
        return found

    # --- questions come, replies go -------------------------------------------------------------

    def _take(
        self,
        waiting: deque[int],
        questions: Sequence[Sequence[int]],
        found: list[list[int] | None],
    ) -> list[int]:
        """Free places that got waiting questions, as many as are read together; one that is too
        long has an empty reply."""
        free = deque(number for number, place in enumerate(self._places) if place is None)
        taken: list[int] = []
        longest = 0
        while free and waiting:
            size = len(questions[waiting[0]])
            if size >= self._context:
                found[waiting.popleft()] = []
                continue
            longest = max(longest, size)
            if taken and longest * (len(taken) + 1) > READ_TOKENS:
                break
            taken.append(free.popleft())
            self._places[taken[-1]] = _WriterPlace(waiting.popleft(), size, 1)
        return taken

    def _begin(
        self, numbers: Sequence[int], questions: Sequence[Sequence[int]], choose: Choose, stop: int
    ) -> None:
        """Reads the questions of these places and writes their replies' first tokens."""
        places = [self._places[number] for number in numbers]
        asked = [questions[place.asked] for place in places if place is not None]
        rows = torch.tensor(numbers, device=self._device)
        self._length[rows] = torch.tensor(list(map(len, asked)), device=self._device)
        self._count[rows] = 0
        self._stopped[rows] = False
        self._enter(rows, choose(self._read(rows, asked)), stop)

    def _advance(self, choose: Choose, stop: int) -> None:
        """Writes tokens in all places, until somebody looks; where nothing is asked too."""
        everywhere = torch.arange(len(self._places), device=self._device)
        for _ in range(UNSEEN_STEPS if self._on_gpu else 1):
            tokens = choose(self._next())
            self._length.add_(1).clamp_(max=self._context - 1)
            self._enter(everywhere, tokens, stop)
            for place in self._places:
                if place is not None:
                    place.written += 1

    def _enter(self, rows: Tensor, tokens: Tensor, stop: int) -> None:
        counts = self._count[rows]
        self._reply[rows, counts] = tokens
        self._last[rows] = tokens
        self._count[rows] = (counts + 1).clamp(max=self._context - 1)
        self._stopped[rows] |= tokens == stop

    def _collect(self, found: list[list[int] | None], stop: int, limit: int) -> None:
        """Takes the replies that have ended; their places are free then."""
        stopped = self._stopped.tolist()
        for number, place in enumerate(self._places):
            if place is None:
                continue
            most = min(limit, self._context - place.read)
            if stopped[number] or place.written >= most:
                reply = self._reply[number, : min(place.written, most)].tolist()
                found[place.asked] = reply[: reply.index(stop) + 1] if stop in reply else reply
                self._places[number] = None

    def _shrink(self) -> None:
        """Leaves half of the places where no more are needed: a step takes time for each."""
        used = [number for number, place in enumerate(self._places) if place is not None]
        half = (len(self._places) + 1) // 2
        if half == len(self._places) or len(used) > half:
            return
        unused = [number for number, place in enumerate(self._places) if place is None]
        kept = [*used, *unused][:half]
        rows = torch.tensor(kept, device=self._device)
        self._graphs.clear()  # they read the tensors that are replaced here
        self._keys, self._values = self._keys[:, rows], self._values[:, rows]
        self._reply, self._stopped = self._reply[rows], self._stopped[rows]
        self._last, self._length = self._last[rows], self._length[rows]
        self._count = self._count[rows]
        self._places = [self._places[number] for number in kept]

    # --- the model ------------------------------------------------------------------------------

    def _next(self) -> Tensor:
        """Logits of every place's next token."""
        most = max(place.read + place.written for place in self._places if place is not None)
        span = min(self._context, -(-most // SPAN) * SPAN)
        if not self._on_gpu:
            return self._step(most)
        if span not in self._graphs:
            self._graphs[span] = self._captured(span)
        graph, logits = self._graphs[span]
        graph.replay()
        return logits

    def _captured(self, span: int) -> tuple[Any, Tensor]:
        """A step as a CUDA graph, and where its logits will be. What is run before the capture
        writes what the first replay writes again."""
        graph = torch.cuda.CUDAGraph()
        assert self._side is not None
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            self._step(span)
            # Not torch.cuda.graph(): it may collect garbage first, seconds with 10,000 rows about.
            graph.capture_begin(capture_error_mode="thread_local")
            logits = self._step(span)
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._side)
        return graph, logits

    def _read(self, rows: Tensor, questions: Sequence[Sequence[int]]) -> Tensor:
        """Questions into their places; logits of the next tokens. What pads a question is behind
        it, where nothing looks before it is overwritten."""
        lengths = torch.tensor(list(map(len, questions)), device=self._device)
        size = max(map(len, questions))
        tokens = torch.tensor([[*one, *[0] * (size - len(one))] for one in questions])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, rows, :, :size] = k
            self._values[layer, rows, :, :size] = v
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        cos, sin = self._cos[:size], self._sin[:size]
        return self._forward(tokens.to(self._device), cos, sin, attend, lengths - 1)

    def _step(self, most: int) -> Tensor:
        """``most``: keys that are looked at."""
        lengths, count = self._length, len(self._places)
        rows = torch.arange(count, device=self._device)
        seen = (torch.arange(most, device=self._device) <= lengths[:, None])[:, None, None]
        cos, sin = self._cos[lengths][:, None, None], self._sin[lengths][:, None, None]
        group = self._heads // self._key_heads

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys[rows, :, lengths] = k[:, :, 0]
            values[rows, :, lengths] = v[:, :, 0]
            asked = q.reshape(count, self._key_heads, group, self._width)
            found = functional.scaled_dot_product_attention(
                asked, keys[:, :, :most], values[:, :, :most], attn_mask=seen
            )
            return found.reshape(count, self._heads, 1, self._width)

        return self._forward(self._last[:, None], cos, sin, attend, torch.zeros_like(rows))

    def _forward(self, tokens: Tensor, cos: Tensor, sin: Tensor, attend: Any, at: Tensor) -> Tensor:
        """Logits of the token ``at`` of each row."""
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
        last = x[torch.arange(len(x), device=self._device), at]
        logits: Tensor = self._model.lm_head(body.norm(last))
        return logits

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self._width)).transpose(1, 2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin
