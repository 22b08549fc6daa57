"""From replies to padded tensors: what is a prompt, what was chosen, and what among.

An `Example` is one reply with its prompt, an advantage or a weight, and what it was held to. Only
tokens of replies count, and of these only the ones where there was a choice: a token that was
forced by a grammar has probability one whatever the weights are. Batches are cut by padded tokens,
longest first, so that none is larger than the memory was measured for; the order depends on the
examples alone. Not covered: whose examples belong together (rows.py, sft.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.records import Agent, Tally

Allowed = tuple[int, ...] | None
"""Tokens among which one was chosen; None: all."""
TOO_LONG = "longer than the model's context"
EMPTY = "without a token that was chosen"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    """With the token that ends it."""
    allowed: tuple[Allowed, ...] | None = None
    """Per token of the reply; None: nothing was held to anything."""
    sampled: tuple[float, ...] | None = None
    """Log-probabilities of the reply's tokens under whoever sampled; None: unknown."""
    advantage: float = 0.0
    advantages: tuple[float, ...] | None = None
    """Per counted token, where a row holds several turns; None: ``advantage`` for all of them."""
    best: bool = False
    """Its trajectory's best step."""
    trajectory: str = ""
    agent: Agent = Agent.POLICY
    correct: bool = False
    coverage: float | None = None
    version: int | None = None
    """Step whose weights it was sampled with; None: unknown."""
    counted: Sequence[int] = field(init=False, repr=False, compare=False)
    """Places in the reply that a loss sees. Found once: a row is read in every epoch."""

    def __post_init__(self) -> None:
        found: Sequence[int] = range(len(self.reply))
        if self.allowed is not None:
            found = tuple(
                i for i, among in enumerate(self.allowed) if among is None or len(among) > 1
            )
        object.__setattr__(self, "counted", found)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.reply)


def dialog_example(
    tokens: Sequence[int],
    said: Sequence[bool],
    offered: Sequence[Sequence[int]],
    advantages: Sequence[float] | None = None,
    **more: Any,
) -> Example:
    """The example of a dialog in the compact form (agents/prompt_encoding), with one row of ``offered``
    words per token. Raises ValueError when its parts do not fit together."""
    if not len(tokens) == len(said) == len(offered) or not tokens or said[0]:
        raise ValueError("tokens, said and offered are not aligned, or the first word was said")
    for token, mine, among in zip(tokens, said, offered, strict=True):
        if mine and (token not in among or len(among) < 2):
            raise ValueError(f"token {token} was said and is not among several that were offered")
    if advantages is not None and len(advantages) != sum(said):
        raise ValueError(f"{len(advantages)} advantages for {sum(said)} words that were said")
    if advantages is not None and not all(map(math.isfinite, advantages)):
        raise ValueError("an advantage is not finite")
    held = [tuple(o) if s else (t,) for t, s, o in zip(tokens, said, offered, strict=True)]
    return Example(
        prompt=(tokens[0],),
        reply=tuple(tokens[1:]),
        allowed=tuple(held[1:]),
        advantages=None if advantages is None else tuple(advantages),
        **more,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """R rows of up to L tokens, N chosen tokens among them, at most T per row."""

    input_ids: Tensor
    """(R, L), padded on the right."""
    rows: Tensor
    """(N,)"""
    places: Tensor
    """(N,): of the token *before* the chosen one, whose state predicts it."""
    targets: Tensor
    """(N,)"""
    allowed: Tensor
    """(N, K), -1 padded; a row of -1 alone allows everything; K = 0: no row is held to anything."""
    slots: Tensor
    """(N,): place in the row's counted tokens."""
    mask: Tensor
    """(R, T), bool: true on chosen tokens."""
    sampled: Tensor
    """(R, T): log-probabilities of the sampler, NaN where unknown."""
    advantages: Tensor
    """(R, T)"""
    examples: tuple[Example, ...] = field(repr=False)

    def to(self, device: torch.device | str) -> Batch:
        """The batch with its tensors on a device."""
        tensors = {name: getattr(self, name) for name in self.__slots__ if name != "examples"}
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        return Batch(**moved, examples=self.examples)

    def folded(self, flat: Tensor) -> Tensor:
        """(N,) -> (R, T), 0 where nothing was chosen."""
        empty = torch.zeros(self.mask.shape, dtype=flat.dtype, device=flat.device)
        return empty.index_put((self.rows, self.slots), flat)

    def part(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Targets (n,) and allowed tokens (n, K) of n = ``end`` - ``start`` of the chosen tokens."""
        return self.targets[start:end], self.allowed[start:end]


def collate(examples: Sequence[Example], pad: int, kept: Sequence[bool] | None = None) -> Batch:
    """Examples as one padded batch. ``kept`` false: the row stays, all of its tokens are masked (a
    rejection)."""
    counted = [one.counted if kept is None or kept[i] else () for i, one in enumerate(examples)]
    counts = np.array([len(places) for places in counted])
    width = max(1, int(counts.max()))
    ids = np.full((len(examples), max(len(one) for one in examples)), pad)
    mask = np.arange(width)[None, :] < counts[:, None]
    sampled = np.full((len(examples), width), np.nan, dtype=np.float32)
    advantages = np.zeros((len(examples), width), dtype=np.float32)
    places = []
    for row, (one, chosen) in enumerate(zip(examples, counted, strict=True)):
        ids[row, : len(one)] = one.prompt + one.reply
        places.append(np.array(chosen, dtype=np.int64) + len(one.prompt))
        if chosen:
            advantages[row, : len(chosen)] = (
                one.advantage if one.advantages is None else one.advantages
            )
            if one.sampled is not None:
                sampled[row, : len(chosen)] = np.array(one.sampled, dtype=np.float32)[
                    np.array(chosen)
                ]
    rows, slots = np.nonzero(mask)
    sampled_places = np.concatenate(places)
    return Batch(
        input_ids=torch.from_numpy(ids),
        rows=torch.from_numpy(rows),
        places=torch.from_numpy(sampled_places - 1),
        targets=torch.from_numpy(ids[rows, sampled_places]),
        allowed=_among(examples, counted, counts),
        slots=torch.from_numpy(slots),
        mask=torch.from_numpy(mask),
        sampled=torch.from_numpy(sampled),
        advantages=torch.from_numpy(advantages),
        examples=tuple(examples),
    )


def _among(examples: Sequence[Example], counted: Sequence[Sequence[int]], counts: Any) -> Tensor:
    """(N, K): only rows that were held to something are looked at word by word."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    lists = {
        start + slot: among
        for one, chosen, start in zip(examples, counted, starts, strict=False)
        if one.allowed is not None
        for slot, place in enumerate(chosen)
        if (among := one.allowed[place]) is not None
    }
    width = max(map(len, lists.values()), default=0)
    found = np.full((int(starts[-1]), width), -1)
    for place, among in lists.items():
        found[place, : len(among)] = among
    return torch.from_numpy(found)


def usable(examples: Iterable[Example], context: int, tally: Tally) -> list[Example]:
    """Those that fit into the context and hold a choice; the others are counted with their
    reason."""
    found = []
    for one in examples:
        tally.read += 1
        if len(one) > context:
            tally.skip(TOO_LONG, one.trajectory)
        elif not one.counted:
            tally.skip(EMPTY, one.trajectory)
        else:
            found.append(one)
    tally.kept += len(found)
    return found


def parts(examples: Sequence[Example], tokens: int) -> Iterator[list[int]]:
    """Places of examples, cut so that rows x longest row stays within ``tokens``; a longer row is
    alone."""
    order = sorted(range(len(examples)), key=lambda i: (-len(examples[i]), i))
    taken: list[int] = []
    for place in order:
        longest = len(examples[taken[0]]) if taken else 0
        if taken and (len(taken) + 1) * longest > tokens:
            yield taken
            taken = []
        taken.append(place)
    if taken:
        yield taken


def shares(examples: Sequence[Example], processes: int) -> list[list[int]]:
    """Places of examples per process: as many tokens each as the lengths allow, never an empty
    share.

    Raises ValueError when there are fewer examples than processes.
    """
    if len(examples) < processes:
        raise ValueError(f"{len(examples)} rows for {processes} processes")
    order = sorted(range(len(examples)), key=lambda i: (-len(examples[i]), i))
    loads, found = [0] * processes, [[] for _ in range(processes)]  # type: ignore[var-annotated]
    for count, place in enumerate(order):
        lightest = count if count < processes else loads.index(min(loads))
        loads[lightest] += len(examples[place])
        found[lightest].append(place)
    return found
