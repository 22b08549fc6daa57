"""Write a Qwen3 of five million random parameters, with its tokenizer and chat template, in a
second.

    python tests/models/tiny_qwen3.py FOLDER [--seed 0] [--context 32768]

For tests of the path to a language model and back, where what it says need not make sense: servers
and `transformers` load the folder like a published checkpoint. The same seed and sources give the
same bytes. The tokenizer is a byte-level BPE trained on this repository. Nothing is downloaded. It
never learns anything: a free text from it ends at the token limit (one token in 4096 is the end),
so whoever wants an answer bounds its strings and arrays by a schema. Needs numpy, tokenizers and
safetensors; no torch."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "kernel_lsp"

HIDDEN, LAYERS, HEADS, KEY_HEADS, HEAD, INNER, VOCABULARY = 256, 4, 8, 4, 32, 768, 4096
CONTEXT = 32_768

END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL = (END_OF_TEXT, TURN, END_OF_TURN)
# Whole tokens too, yet part of the visible text: parsers of tool calls and thoughts look for them
# there.
VISIBLE = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# How Qwen splits text before merging: words with their space, single digits, punctuation, line
# ends.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context", type=int, default=CONTEXT)
    arguments = parser.parse_args()
    write_model(arguments.folder, arguments.seed, arguments.context)


def write_model(folder: Path, seed: int = 0, context: int = CONTEXT) -> None:
    """Fill `folder` (made if missing) with everything that `from_pretrained` and `vllm serve`
    read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copyfile(HERE / "qwen_chat.jinja", folder / "chat_template.jinja")
    vocabulary = tokenizer.get_vocab()
    ids = {name: vocabulary[name] for name in CONTROL}
    _write_json(folder / "config.json", model_config(ids, len(vocabulary), context))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(context))
    _write_json(folder / "generation_config.json", generation_config(ids))
    weights = random_weights(seed, len(vocabulary))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE over this repository's sources: every byte has a token, so no text is
    unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(name, special=True, normalized=False) for name in CONTROL]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(VISIBLE),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.py")))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in VISIBLE])
    return tokenizer


def random_weights(seed: int, vocabulary: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Names and shapes of Qwen3ForCausalLM: matrices normal with deviation 0.02, norms at one."""
    draw = np.random.default_rng(seed)
    weights = {
        name: draw.normal(0.0, 0.02, shape).astype(np.float32)
        for name, shape in _matrices(vocabulary).items()
    }
    return weights | {name: np.ones(size, np.float32) for name, size in _norms().items()}


def _matrices(vocabulary: int) -> dict[str, tuple[int, int]]:
    shapes = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "lm_head.weight": (vocabulary, HIDDEN),
    }
    for layer in range(LAYERS):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        shapes |= {
            f"{attention}.q_proj.weight": (HEADS * HEAD, HIDDEN),
            f"{attention}.k_proj.weight": (KEY_HEADS * HEAD, HIDDEN),
            f"{attention}.v_proj.weight": (KEY_HEADS * HEAD, HIDDEN),
            f"{attention}.o_proj.weight": (HIDDEN, HEADS * HEAD),
            f"{mlp}.gate_proj.weight": (INNER, HIDDEN),
            f"{mlp}.up_proj.weight": (INNER, HIDDEN),
            f"{mlp}.down_proj.weight": (HIDDEN, INNER),
        }
    return shapes


def _norms() -> dict[str, int]:
    sizes = {"model.norm.weight": HIDDEN}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        sizes |= {
            f"{block}.{name}.weight": HIDDEN
            for name in ("input_layernorm", "post_attention_layernorm")
        }
        sizes |= {f"{block}.self_attn.{name}.weight": HEAD for name in ("q_norm", "k_norm")}
    return sizes


def model_config(ids: dict[str, int], vocabulary: int, context: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD,
        "intermediate_size": INNER,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": context,
        # Tied, a random model mostly repeats its last token: its own embedding is the likeliest
        # next one.
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "torch_dtype": "float32",
        "bos_token_id": ids[END_OF_TEXT],
        "eos_token_id": ids[END_OF_TURN],
    }


def tokenizer_config(context: int) -> dict[str, object]:
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }


def generation_config(ids: dict[str, int]) -> dict[str, object]:
    return {
        "do_sample": True,
        "temperature": 1.0,
        "eos_token_id": [ids[END_OF_TURN], ids[END_OF_TEXT]],
        "pad_token_id": ids[END_OF_TEXT],
    }


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
