"""Replies along a grammar's graph: words with one choice are taken, the others are chosen by the
model.

What is known of a dialog's beginning is kept, so a dialog that goes on costs its new words alone. A
word that nothing else was valid for has probability one, and waits to be read together with those
after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kernel_lsp.agents.backbones.small.network import KeyValueCache, Network
from kernel_lsp.agents.backbones.small.shape import UnfitCheckpoint

TransitionTable = Sequence[Sequence[Sequence[int]]]
"""Nodes as lists of [token, node after it]; an empty one ends the reply
(agents/prompt_encoding/grammar.py)."""
MAX_WORDS = 512
"""Of one reply: the longest is an application with 16 parameters of 16 parts."""


@dataclass
class DecodedReply:
    """A reply and how sure the model was."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of each token among those that were valid, natural logarithm, at temperature 1."""
    choices: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    """Place in the reply -> the valid tokens with their log-probabilities, where there were
    several."""


class Decoder:
    """One model and the dialog that it has read last."""

    def __init__(self, network: Network) -> None:
        self._network, self._cache = network, KeyValueCache(network.shape)
        self._read: list[int] = []

    def reply(
        self,
        tokens: Sequence[int],
        table: TransitionTable,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> DecodedReply:
        """The model's reply after these tokens, among what the table allows; greedy at temperature
        0 (of equals the first in the vocabulary). Raises Unfit where the model gives no number."""
        dice = None if seed is None else torch.Generator().manual_seed(seed)
        said, node = DecodedReply(), 0
        while branches := table[node]:
            if len(said.tokens) >= MAX_WORDS:
                raise UnfitCheckpoint("the grammar does not end")
            place = 0
            if len(branches) == 1:
                said.logprobs.append(0.0)
            else:
                known = self._logprobs([*tokens, *said.tokens], [token for token, _ in branches])
                place = _sample(known, [token for token, _ in branches], temperature, dice)
                said.choices[len(said.tokens)] = [
                    (token, logprob)
                    for (token, _), logprob in zip(branches, known.tolist(), strict=True)
                ]
                said.logprobs.append(float(known[place]))
            token, node = branches[place]
            said.tokens.append(token)
        return said

    def _logprobs(self, tokens: list[int], valid: list[int]) -> torch.Tensor:
        same = 0
        for mine, theirs in zip(self._read, tokens[:-1], strict=False):
            # The last one is always read anew.
            if mine != theirs:
                break
            same += 1
        self._cache.keep(same)
        self._read = tokens[: self._cache.length]
        fresh = torch.tensor(tokens[self._cache.length :])
        logits = self._network.last(fresh, self._cache, torch.tensor(valid))
        self._read = tokens
        if not bool(torch.isfinite(logits).all()):
            raise UnfitCheckpoint("the model's logits are not finite")
        return torch.log_softmax(logits, dim=-1)


def _sample(
    logprobs: torch.Tensor, tokens: list[int], temperature: float, dice: torch.Generator | None
) -> int:
    if temperature <= 0:
        best = float(logprobs.max())
        ties = [place for place, value in enumerate(logprobs.tolist()) if value == best]
        return min(ties, key=lambda place: tokens[place])
    weights = torch.softmax(logprobs / max(temperature, 1e-3), dim=-1)
    return int(torch.multinomial(weights, 1, generator=dice))
