"""Rollouts' replies: what is asked, what was sampled, and the sampler that shares the trainer's
weights.

A question may come with the list of its valid replies (`Ask.choices`): then each is spelled in the
tokenizer's own tokens, a tree of these says what may follow, and only where the tree branches is
anything sampled. Forced tokens are read in one go, so a call of forty tokens costs as many passes
as it has choices. Log-probabilities are those of what was sampled from: among the allowed ones, at
the sampling temperature. Not covered: vLLM (serving.py), which samples by the same interface from
weights of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kernel_lsp.records import Message
from trainer.algorithms.batches import Allowed
from trainer.policies import models
from trainer.policies.decoding import decode

MAX_CHOICES = 4096
"""Of one question: their tokens are spelled out, at 30 µs a reply."""
TREES = 512
"""That are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    messages: tuple[Message, ...]
    choices: tuple[str, ...] | None = None
    """All valid replies; None: free text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One reply as the trainer needs it."""

    text: str
    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
    """With the token that ends it, unless it was cut."""
    logprobs: tuple[float, ...] | None
    """0 on forced tokens; None: not given, or not of these tokens."""
    allowed: tuple[Allowed, ...] | None
    version: int
    """Of the weights."""
    ended: bool = True
    """False: it was cut at the limit of tokens."""


class Generator(Protocol):
    """Whatever answers asks."""

    def generate(self, asks: Sequence[Ask], seed: int, *, greedy: bool = False) -> list[Sampled]:
        """The answers, in order. The same weights, asks and seed give the same ones."""

    @property
    def apart(self) -> bool:
        """It has weights of its own, which `refresh` replaces."""

    def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """From now on these weights; empty where it shares the trainer's."""

    def close(self) -> None:
        """Ends what samples; nothing may be asked of it afterwards."""


Tree = dict[int, Any]
"""Token -> tree of what may follow."""


def tree(token_choices: Sequence[Sequence[int]]) -> Tree:
    """The choices as a tree of tokens, from the first on."""
    root: Tree = {}
    for tokens in token_choices:
        node = root
        for token in tokens:
            node = node.setdefault(token, {})
    return root


def nucleus(logits: Tensor, top_p: float) -> tuple[int, ...]:
    """The fewest likeliest tokens whose probabilities add up to ``top_p``; at least one.

    Nucleus sampling (arXiv 1904.09751). ``logits`` (V,), the temperature in them."""
    chances, order = torch.softmax(logits, dim=0).sort(descending=True, stable=True)
    before = chances.cumsum(dim=0) - chances
    return tuple(sorted(order[before < top_p].tolist()))


class Trees:
    """Trees of lists of replies, each ended by the tokenizer's end; most prompts of a task offer
    the same."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[str, ...], Tree] = {}

    def of(self, choices: tuple[str, ...]) -> Tree:
        """Raises ValueError when there is no choice, or more than MAX_CHOICES."""
        if not choices or len(choices) > MAX_CHOICES:
            raise ValueError(
                f"a question has {len(choices)} valid replies: 1 to {MAX_CHOICES} it can be"
            )
        if choices not in self._known:
            if len(self._known) >= TREES:
                self._known.pop(next(iter(self._known)))
            token_choices = self._tokenizer(list(choices), add_special_tokens=False)["input_ids"]
            self._known[choices] = tree(
                [[*tokens, self._tokenizer.eos_token_id] for tokens in token_choices]
            )
        return self._known[choices]


@dataclass(slots=True)
class _ReplyInProgress:
    """A reply that is being written."""

    node: Tree | None
    """None: free text."""
    feed: list[int]
    """Tokens that the model has not read yet."""
    reply: list[int]
    logprobs: list[float]
    allowed: list[Allowed]
    done: bool = False


class LocalSampler:
    """Samples from the very model that is trained."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int = 256,
        batch: int = 256,
    ) -> None:
        self._model, self._tokenizer, self._top_p = model, tokenizer, top_p
        self._temperature, self._max_tokens, self._batch = temperature, max_tokens, batch
        self._version = 0
        self._trees = Trees(tokenizer)

    apart = False

    def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Keeps the number alone: the weights are those of the model that is trained."""
        self._version = version

    def close(self) -> None:
        """Nothing to end: the model is the trainer's."""

    def generate(self, asks: Sequence[Ask], seed: int, *, greedy: bool = False) -> list[Sampled]:
        """Raises ValueError when a question has no choice, or more than MAX_CHOICES."""
        draw = torch.Generator().manual_seed(seed)
        prompts = [models.encode_prompt(self._tokenizer, ask.messages) for ask in asks]
        order = sorted(range(len(asks)), key=lambda i: (-len(prompts[i]), i))
        found: dict[int, Sampled] = {}
        training = self._model.training
        self._model.eval()
        with torch.inference_mode():
            for start in range(0, len(order), self._batch):
                chosen = order[start : start + self._batch]
                rows = [self._begun(asks[i], prompts[i]) for i in chosen]
                self._write(rows, draw, greedy)
                for i, row in zip(chosen, rows, strict=True):
                    found[i] = self._sampled(prompts[i], row)
        self._model.train(training)
        return [found[i] for i in range(len(asks))]

    def _begun(self, ask: Ask, prompt: list[int]) -> _ReplyInProgress:
        if ask.choices is None:
            return _ReplyInProgress(None, list(prompt), [], [], [])
        row = _ReplyInProgress(self._trees.of(ask.choices), list(prompt), [], [], [])
        self._follow(row)
        return row

    def _follow(self, row: _ReplyInProgress) -> None:
        """Write what is forced."""
        while row.node is not None and len(row.node) == 1:
            ((token, row.node),) = row.node.items()
            self._put(row, token, 0.0, (token,))
        row.done = row.done or row.node == {}

    def _put(self, row: _ReplyInProgress, token: int, logprob: float, allowed: Allowed) -> None:
        row.feed.append(token)
        row.reply.append(token)
        row.logprobs.append(logprob)
        row.allowed.append(allowed)

    def _write(self, rows: Sequence[_ReplyInProgress], draw: torch.Generator, greedy: bool) -> None:
        def choose(logits: Tensor) -> None:
            self._choose(rows, logits / self._temperature, draw, greedy)

        decode(self._model, self._tokenizer.pad_token_id, rows, choose)

    def _choose(
        self, rows: Sequence[_ReplyInProgress], logits: Tensor, draw: torch.Generator, greedy: bool
    ) -> None:
        for place, row in enumerate(rows):
            if row.done:
                continue
            among = tuple(row.node) if row.node is not None else self._likeliest(logits[place])
            scores = logits[place] if among is None else logits[place, list(among)]
            spread = torch.log_softmax(scores, dim=0)
            if greedy:
                taken = int(spread.argmax())
            else:
                taken = int(torch.multinomial(spread.exp(), 1, generator=draw))
            token = taken if among is None else among[taken]
            self._put(row, token, float(spread[taken]), among)
            if row.node is not None:
                row.node = row.node[token]
                self._follow(row)
            else:
                row.done = (
                    token == self._tokenizer.eos_token_id or len(row.reply) >= self._max_tokens
                )

    def _likeliest(self, logits: Tensor) -> Allowed:
        """Tokens that free text is sampled from; None: all. They go into the reply's ``allowed``,
        so that the trainer computes the very probabilities that were sampled from."""
        if self._top_p >= 1.0:
            return None
        return nucleus(logits, self._top_p)

    def _sampled(self, prompt: Sequence[int], row: _ReplyInProgress) -> Sampled:
        return Sampled(
            text=self._tokenizer.decode(row.reply, skip_special_tokens=True),
            prompt_ids=tuple(prompt),
            reply_ids=tuple(row.reply),
            logprobs=tuple(row.logprobs),
            allowed=tuple(row.allowed),
            version=self._version,
            ended=row.node is not None or row.reply[-1] == self._tokenizer.eos_token_id,
        )
