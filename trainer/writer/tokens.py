"""The writer's vocabulary: byte-level BPE, trained on its own data, reversible for any text.

Pieces that merges do not cross: words with their digits (``n12``, ``float32``), numbers, signs with
the spaces beside them, and a line break with its indentation. So a name, a size or a constant is
one token wherever it is frequent, and the same one in the question and in the reply: copying it is
one choice. Lines that many replies share letter for letter are one token each (`idioms`), as are
the borders of parts (short_form.py)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.writer.short_form import BORDERS, END

_WORDS = "if|else|in|and|or|not|is|for"
PIECES = "|".join(
    [
        r"\n *",
        rf" (?:{_WORDS}) |(?:return|def|class|{_WORDS}) ",
        r"(?:tl|torch|triton|nn|F)(?:\.[A-Za-z_][A-Za-z_0-9]*)+\(?",
        r"\.[A-Za-z_]{2,}(?![A-Za-z_0-9])\(?\)?",
        r"[A-Za-z_]+[0-9]*",
        r"[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?",
        r" ?[^\sA-Za-z0-9_]+ ?",
        r" +",
        r"\s",
    ]
)
IDIOMS, SHORTEST_IDIOM, IDIOM_SHARE = 256, 4, 0.01
"""Lines that are one token: so many at most, with so many tokens at least, in so many replies."""
_NAMED = re.compile(r"\b[anvxt][0-9]")
"""Where a task's own names are (names.py): these are copied, each by itself."""
PAD = "<|pad|>"


def train_tokenizer(
    texts: Iterable[str], size: int, context: int, lines: Sequence[str] = ()
) -> Any:
    """A tokenizer of ``size`` words, trained on texts, and these lines as words beside them."""
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
    tokenizer.add_tokens([AddedToken(line, single_word=True, normalized=False) for line in lines])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def idioms(replies: Sequence[str], tokenizer: Any) -> list[str]:
    """Line breaks with the line behind them that save most tokens as one word."""
    counts: Counter[str] = Counter()
    for reply in replies:
        counts.update({f"\n{one}" for one in reply.split("\n") if one and not _NAMED.search(one)})
    often = [line for line, count in counts.items() if count >= IDIOM_SHARE * len(replies)]
    saved = {
        line: counts[line] * (len(tokens) - 1)
        for line, tokens in zip(often, encode_all(tokenizer, often), strict=True)
        if len(tokens) >= SHORTEST_IDIOM
    }
    return sorted(saved, key=lambda line: (-saved[line], line))[:IDIOMS]


def encode(tokenizer: Any, text: str) -> list[int]:
    """The text's tokens, without those that begin or end a text."""
    return [int(one) for one in tokenizer.encode(text, add_special_tokens=False)]


def encode_all(tokenizer: Any, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """The tokens of each text, computed on every core: one after the other took a minute for
    35,000."""
    found = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [tuple(one.ids) for one in found]
