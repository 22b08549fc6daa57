"""The shape of a small model: what config.json must say to be run by network.py. Standard library
only.

One architecture, Qwen3's, because transformers and vLLM have it too: dense, grouped and normalized
queries and keys, rotary positions, gated SiLU. Not covered: attention biases, sliding windows,
scaled positions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.agents.prompt_encoding import END, PAD, TOKENS, WORDS
from kernel_lsp.agents.prompt_encoding.tokenizer import CONTEXT

MULTIPLE = 64
"""The vocabulary is padded to it: tensor cores want round sizes."""
LARGEST = 60_000_000
"""Parameters that are loaded at all, so that a wrong file cannot take the machine's memory."""


class UnfitCheckpoint(ValueError):
    """A checkpoint that cannot be run here; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkShape:
    """Defaults: what is trained."""

    layers: int = 8
    hidden: int = 384
    heads: int = 6
    key_heads: int = 2
    head: int = 64
    inner: int = 1024
    vocabulary: int = -(-len(WORDS) // MULTIPLE) * MULTIPLE
    context: int = CONTEXT
    epsilon: float = 1e-6
    theta: float = 10_000.0
    tied: bool = True

    @property
    def parameters(self) -> int:
        """The number of weights of such a network."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.key_heads) + 2 * self.head
        block = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * block + embeddings + self.hidden


def config(shape: NetworkShape, dtype: str = "bfloat16") -> dict[str, Any]:
    """config.json, for transformers 4.51 and later and for vLLM."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head,
        "intermediate_size": shape.inner,
        "hidden_act": "silu",
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.theta,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "torch_dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": TOKENS[END],
        "pad_token_id": TOKENS[PAD],
    }


def read(folder: Path) -> NetworkShape:
    """The shape of the checkpoint in that folder. Raises Unfit, OSError."""
    try:
        data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shape = _shape(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UnfitCheckpoint):
            raise
        raise UnfitCheckpoint(
            f"config.json cannot be read: {type(error).__name__}: {error}"
        ) from error
    if shape.parameters > LARGEST:
        raise UnfitCheckpoint(
            f"{shape.parameters / 1e6:.0f} million parameters; at most {LARGEST / 1e6:.0f} "
            f"are loaded"
        )
    return shape


def _shape(data: dict[str, Any]) -> NetworkShape:
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    wanted = {
        "model_type": (data.get("model_type"), "qwen3"),
        "hidden_act": (data.get("hidden_act"), "silu"),
        "attention_bias": (bool(data.get("attention_bias")), False),
        "use_sliding_window": (bool(data.get("use_sliding_window")), False),
        "rope_type": (rope.get("rope_type", "default"), "default"),
    }
    for name, (found, needed) in wanted.items():
        if found != needed:
            raise UnfitCheckpoint(f"config.json: {name} is {found!r}, only {needed!r} can be run")
    shape = NetworkShape(
        layers=int(data["num_hidden_layers"]),
        hidden=int(data["hidden_size"]),
        heads=int(data["num_attention_heads"]),
        key_heads=int(data["num_key_value_heads"]),
        head=int(data["head_dim"]),
        inner=int(data["intermediate_size"]),
        vocabulary=int(data["vocab_size"]),
        context=int(data["max_position_embeddings"]),
        epsilon=float(data["rms_norm_eps"]),
        theta=float(rope.get("rope_theta") or data["rope_theta"]),
        tied=bool(data["tie_word_embeddings"]),
    )
    if shape.vocabulary < len(WORDS):
        raise UnfitCheckpoint(
            f"it has {shape.vocabulary} tokens, this version's vocabulary has {len(WORDS)} words"
        )
    sizes = (
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.key_heads,
        shape.head,
        shape.inner,
        shape.context,
    )
    if min(sizes) < 1 or shape.heads % shape.key_heads or shape.head % 2:
        raise UnfitCheckpoint("config.json: its sizes do not fit each other")
    return shape
