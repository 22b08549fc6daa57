"""The shipped policy seen from the parent: a child that replies, and a reason where it does not.

It is started by its first question, kept warm, and ended when nobody has asked for a while. One that fails
(cannot be loaded, gives no number, takes too long) is given up until another checkpoint is asked for; whoever
asks then goes on by the rule. Not covered: what is asked (agents/learned.py), which checkpoint (models).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp import process
from kernel_lsp.agents.compact import TOKENS, WORDS, Talk, grammar
from kernel_lsp.errors import BackboneError, WorkerLost

MODULE = "kernel_lsp.agents.backbones.small.child"
LOAD_S = 60.0
"""Importing torch takes 2 to 9 s, loading 26 MB 0.2 s."""
REPLY_S = 5.0
"""A reply takes 0.1 s; one that takes so long would make the rule the faster answer."""
IDLE_S = 600.0
REMEDY = "`kernel-lsp models rollback`, or `kernel-lsp models use rule`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One word that the model has chosen among several."""

    place: int
    """In the reply."""
    words: tuple[str, ...]
    """That were valid, in the grammar's order."""
    logprobs: tuple[float, ...]
    """Of these, natural logarithm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """A reply of the model."""

    words: tuple[str, ...]
    logprob: float
    """Of the whole reply among the valid ones."""
    choices: tuple[Choice, ...]
    seconds: float
    """That the model took."""


class Runtime:
    """One checkpoint in one child. Questions are answered in order."""

    def __init__(
        self, folder: Path, python: str, *, idle_s: float = IDLE_S, reply_s: float = REPLY_S
    ) -> None:
        self.folder, self.python = folder, python
        self._idle_s, self._reply_s = idle_s, reply_s
        self._turn = asyncio.Lock()
        self._child: process.Child | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self.trouble: str | None = None
        """Why it was given up."""

    async def warm(self) -> None:
        """Start and load it. Raises BackboneError."""
        async with self._turn:
            await self._ready()

    async def reply(self, talk: Talk, *, temperature: float = 0.0, seed: int | None = None) -> Said:
        """To a talk whose turn it is. Raises BackboneError, the same at once when it was given up."""
        start = talk.offer
        message = {
            "op": "reply",
            "tokens": talk.tokens,
            "table": grammar.table(start, TOKENS),
            "temperature": temperature,
            "seed": seed,
        }
        async with self._turn:
            child = await self._ready()
            answer = await self._asked(child, message, self._reply_s)
        return said(answer)

    async def close(self) -> None:
        """End the child. Safe to call twice."""
        if self._resting is not None:
            self._resting.cancel()
        child, self._child = self._child, None
        if child is not None:
            await child.kill()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _ready(self) -> process.Child:
        if self.trouble is not None:
            raise BackboneError(self.trouble, REMEDY)
        if self._child is None or not self._child.alive:
            if self._child is not None:
                await self._child.kill()
            self._child = await process.start(MODULE, python=self.python, limits=process.Limits())
            await self._asked(self._child, {"op": "open", "folder": str(self.folder)}, LOAD_S)
        return self._child

    async def _asked(self, child: process.Child, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        if self._resting is not None:
            self._resting.cancel()
        try:
            answer, _ = await child.ask(message, timeout_s=limit_s)
        except WorkerLost as lost:
            raise self._given_up(f"{lost.cause}" + (f" ({lost.remedy})" if lost.remedy else "")) from None
        finally:
            self._resting = asyncio.get_running_loop().call_later(self._idle_s, self._rest)
        if "failed" in answer:
            raise self._given_up(str(answer["failed"]))
        return answer

    def _given_up(self, cause: str) -> BackboneError:
        self.trouble = f"the policy in {self.folder.name} cannot be used: {cause}"
        return BackboneError(self.trouble, REMEDY)

    def _rest(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            task = asyncio.create_task(child.kill())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def said(answer: dict[str, Any]) -> Said:
    """From what the child answers."""
    choices = tuple(
        Choice(
            place=place,
            words=_words([token for token, _ in valid]),
            logprobs=tuple(float(logprob) for _, logprob in valid),
        )
        for place, valid in answer["choices"]
    )
    return Said(
        words=_words(answer["tokens"]),
        logprob=float(sum(answer["logprobs"])),
        choices=choices,
        seconds=float(answer["seconds"]),
    )


def _words(tokens: Sequence[int]) -> tuple[str, ...]:
    return tuple(WORDS[token] for token in tokens)
