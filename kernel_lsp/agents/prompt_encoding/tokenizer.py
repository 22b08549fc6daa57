"""The vocabulary as files of a checkpoint: what transformers and vLLM make a tokenizer of.

Every token is a word and the blank behind it, so none is the beginning of another: a grammar over
characters then permits exactly the tokens that the words permit. Written as JSON; needs no library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernel_lsp.agents.prompt_encoding.vocabulary import END, PAD, TOKENS, VERSION, WORDS

CONTEXT = 4096
"""Tokens of a whole dialog: an opening of 1,400 words and many turns."""
SPECIAL = (PAD, END)


def files() -> dict[str, Any]:
    """Name -> JSON. The same for every checkpoint of this version."""
    return {
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "bos_token": None,
            "eos_token": END,
            "pad_token": PAD,
            "unk_token": PAD,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
        },
        "generation_config.json": {
            "do_sample": False,
            "eos_token_id": TOKENS[END],
            "pad_token_id": TOKENS[PAD],
        },
    }


def write(folder: Path) -> None:
    """Writes the tokenizer's files into the folder, beside config.json and model.safetensors."""
    for name, content in files().items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def belongs(content: Any) -> bool:
    """Whether a checkpoint's tokenizer.json is this version's."""
    return isinstance(content, dict) and content.get("model", {}).get("vocab") == _vocabulary()


def _vocabulary() -> dict[str, int]:
    return {word if word in SPECIAL else f"{word} ": token for token, word in enumerate(WORDS)}


def _tokenizer() -> dict[str, Any]:
    special = [
        {
            "id": TOKENS[word],
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for word in SPECIAL
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": _vocabulary(), "unk_token": PAD},
    }


__all__ = ["CONTEXT", "VERSION", "belongs", "files", "write"]
