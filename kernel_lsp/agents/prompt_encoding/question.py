"""What the questions of the short form have in common: words that are encoded once, and tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from kernel_lsp.agents.prompt_encoding.grammar import END, GrammarNode
from kernel_lsp.agents.prompt_encoding.vocabulary import TOKENS

MAX_GAIN = 16
"""Eighths of the binary logarithm: beyond four times everything is alike."""
GAINS = tuple(f"g{step}" for step in range(-MAX_GAIN, MAX_GAIN + 1))
OFFER = GrammarNode(dict.fromkeys(GAINS, END))


class EncodedQuestion(ABC):
    """A frozen dataclass with a field ``words``, which is filled when it is made."""

    __slots__ = ()
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self._encode()))

    @property
    def tokens(self) -> list[int]:
        """The place of each word in the vocabulary."""
        return [TOKENS[word] for word in self.words]

    @property
    def offer(self) -> GrammarNode:
        """The valid replies."""
        return OFFER

    @abstractmethod
    def _encode(self) -> Iterable[str]:
        """The words of the question."""
