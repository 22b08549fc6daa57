"""Qwen3's architecture in plain torch, for one dialog at a time on the CPU, in float32.

Shapes: T new tokens after S that are in the cache, H hidden, N heads, G key heads, D per head.
Equal to transformers' implementation to float32 rounding (tests/unit/agents/test_small_network.py).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from kernel_lsp.agents.backbones.small.shape import NetworkShape, UnfitCheckpoint

GROW = 512
"""Tokens by which the cache grows: 5 MB for the shipped shape."""


class KeyValueCache:
    """Keys and values of a dialog's beginning; what is cut off is written over."""

    def __init__(self, shape: NetworkShape) -> None:
        self._shape, self.length = shape, 0
        self._room = torch.empty(shape.layers, 2, shape.key_heads, 0, shape.head)

    def keep(self, length: int) -> None:
        """Cuts the cache to at most ``length`` tokens; later ones are written over the rest."""
        self.length = min(self.length, length)

    def reserve(self, count: int) -> None:
        """Makes room for so many tokens more. Raises Unfit beyond the context."""
        needed = self.length + count
        if needed > self._shape.context:
            raise UnfitCheckpoint(
                f"the dialog needs {needed} tokens, the model has {self._shape.context}"
            )
        old = self._room.shape[3]
        if needed > old:
            grown = torch.empty(*self._room.shape[:3], -(-needed // GROW) * GROW, self._shape.head)
            grown[:, :, :, : self.length] = self._room[:, :, :, : self.length]
            self._room = grown

    def add(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of a layer, (G, S + T, D) each, after T new ones."""
        end = self.length + keys.shape[1]
        here = self._room[layer]
        here[0, :, self.length : end], here[1, :, self.length : end] = keys, values
        return here[0, :, :end], here[1, :, :end]


class Network:
    """See the top of the file."""

    def __init__(self, shape: NetworkShape, tensors: dict[str, torch.Tensor]) -> None:
        """Raises Unfit for tensors that are missing, of other shapes, or not finite."""
        self.shape = shape
        take = _Taking(tensors)
        h, d = shape.hidden, shape.head
        self._embedding = take("model.embed_tokens.weight", shape.vocabulary, h)
        self._layers = [
            _DecoderLayer(take, f"model.layers.{number}", shape) for number in range(shape.layers)
        ]
        self._norm = take("model.norm.weight", h)
        self._head = self._embedding if shape.tied else take("lm_head.weight", shape.vocabulary, h)
        frequencies = shape.theta ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), frequencies)
        self._cos, self._sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)  # (context, D)

    def __call__(self, tokens: torch.Tensor, cache: KeyValueCache) -> torch.Tensor:
        """Logits (T, vocabulary) after each of the new tokens, which enter the cache."""
        with torch.inference_mode():
            return F.linear(self._hidden(tokens, cache), self._head)

    def last(
        self, tokens: torch.Tensor, cache: KeyValueCache, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Logits of the wanted tokens after the last of the new ones: (wanted,)."""
        with torch.inference_mode():
            return F.linear(self._hidden(tokens, cache)[-1], self._head[wanted])

    def _hidden(self, tokens: torch.Tensor, cache: KeyValueCache) -> torch.Tensor:
        cache.reserve(len(tokens))
        begin = cache.length
        rotation = self._cos[begin : begin + len(tokens)], self._sin[begin : begin + len(tokens)]
        x = self._embedding[tokens]  # (T, H)
        for number, layer in enumerate(self._layers):
            x = layer(x, number, cache, rotation)
        cache.length += len(tokens)
        return _rms_norm(x, self._norm, self.shape.epsilon)


class _Taking:
    """The tensors of a file, each asked for by its name and shape."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        found = self._tensors.get(name)
        if found is None:
            raise UnfitCheckpoint(f"{name} is missing")
        if tuple(found.shape) != shape:
            raise UnfitCheckpoint(f"{name} is {tuple(found.shape)}, config.json says {shape}")
        if not bool(torch.isfinite(found).all()):
            raise UnfitCheckpoint(f"{name} holds NaN or infinity")
        return found


class _DecoderLayer:
    """Attention, then a gated step, each added to its input."""

    def __init__(self, take: _Taking, prefix: str, shape: NetworkShape) -> None:
        h, n, g, d, inner = shape.hidden, shape.heads, shape.key_heads, shape.head, shape.inner
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self._shape = shape
        self._before = take(f"{prefix}.input_layernorm.weight", h)
        self._between = take(f"{prefix}.post_attention_layernorm.weight", h)
        parts = [
            take(f"{attention}.{name}_proj.weight", size * d, h)
            for name, size in zip("qkv", (n, g, g), strict=True)
        ]
        # One product instead of three: small ones cost mostly their call.
        self._qkv = torch.cat(parts)
        self._q_norm, self._k_norm = (
            take(f"{attention}.q_norm.weight", d),
            take(f"{attention}.k_norm.weight", d),
        )
        self._out = take(f"{attention}.o_proj.weight", h, n * d)
        self._gated = torch.cat(
            [take(f"{mlp}.{name}_proj.weight", inner, h) for name in ("gate", "up")]
        )
        self._down = take(f"{mlp}.down_proj.weight", h, inner)

    def __call__(
        self,
        x: torch.Tensor,
        number: int,
        cache: KeyValueCache,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        epsilon = self._shape.epsilon
        x = x + self._attention(_rms_norm(x, self._before, epsilon), number, cache, rotation)
        gate, up = F.linear(_rms_norm(x, self._between, epsilon), self._gated).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self._down)

    def _attention(
        self,
        x: torch.Tensor,
        number: int,
        cache: KeyValueCache,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        shape, length = self._shape, len(x)
        n, g, d = shape.heads, shape.key_heads, shape.head
        q, k, v = F.linear(x, self._qkv).view(length, n + 2 * g, d).transpose(0, 1).split([n, g, g])
        q = _rotate(_rms_norm(q, self._q_norm, shape.epsilon), *rotation)
        k = _rotate(_rms_norm(k, self._k_norm, shape.epsilon), *rotation)
        begin = cache.length
        # (N, S + T, D).
        keys, values = (t.repeat_interleave(n // g, 0) for t in cache.add(number, k, v))
        mask = None
        if length > 1:
            mask = torch.ones(length, begin + length, dtype=torch.bool).tril(begin)
        made = F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask)[0]
        return F.linear(made.transpose(0, 1).reshape(length, n * d), self._out)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """(heads, T, D): pairs (i, i + D/2) turned by their position's angle."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin
