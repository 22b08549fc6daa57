"""The writer's vocabulary: byte-level BPE, trained on its own data, reversible for any text.

Words with their underscores, numbers, and a line break with its indentation are pieces that merges
do not cross: what is frequent is one token, so that a name or a size is copied in one choice.
Borders of parts (short_form.py) are one token each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.writer.short_form import BORDERS, END

PIECES = r"\n *| ?[A-Za-z_]+|[0-9]+| ?[^\sA-Za-z0-9_]+| +|\s"
PAD = "<|pad|>"


def train_tokenizer(texts: Iterable[str], size: int, context: int) -> Any:
    """A tokenizer of ``size`` words, trained on texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(w, special=True, normalized=False) for w in (PAD, *BORDERS)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: Any, text: str) -> list[int]:
    """The text's tokens, without those that begin or end a text."""
    return [int(one) for one in tokenizer.encode(text, add_special_tokens=False)]


def encode_all(tokenizer: Any, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """On every core: one text after the other took a minute for 35,000."""
    found = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [tuple(one.ids) for one in found]
