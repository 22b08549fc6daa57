"""The shipped policy seen from the parent: a child that replies, and a reason where it does not.

It is started by its first question, kept warm, and ended when nobody has asked for a while. A
checkpoint that cannot be used (damaged, of another version, no number) is given up; a child that
was lost or took too long is left alone for a while. Whoever asks then goes on by the rule. Not
covered: what is asked (agents/learned.py, agents/kernel_planner.py), which checkpoint (models).
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp import process, scratch
from kernel_lsp.agents.prompt_encoding import TOKENS, WORDS, Dialog, grammar, launching, value_model
from kernel_lsp.agents.prompt_encoding.tokenizer import CONTEXT
from kernel_lsp.errors import BackboneError, ModelError, WorkerLost
from kernel_lsp.process import StartChild

MODULE = "kernel_lsp.agents.backbones.small.child"
LOAD_S = 60.0
"""Importing torch takes 2 to 9 s, loading 26 MB 0.2 s."""
REPLY_S = 5.0
"""A reply takes 0.1 s; one that takes so long would make the rule the faster answer."""
LONGEST_REPLY = 512
"""Words: decoding.MAX_WORDS."""
IDLE_S = 600.0
LOST_S = 300.0
"""Until a child that was lost is started anew."""
REMEDY = "`kernel-lsp models rollback`, or `kernel-lsp models use rule`"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenWord:
    """One word that the model has chosen among several."""

    place: int
    """In the reply."""
    words: tuple[str, ...]
    """That were valid, in the grammar's order."""
    logprobs: tuple[float, ...]
    """Of these, natural logarithm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReply:
    """A reply of the model."""

    words: tuple[str, ...]
    logprob: float
    """Of the whole reply among the valid ones."""
    choices: tuple[ChosenWord, ...]
    seconds: float
    """That the model took, by the clock."""
    cpu_s: float = 0.0
    """Of processor time."""


class Runtime:
    """One checkpoint in one child. Questions are answered in order."""

    def __init__(
        self,
        folder: Path,
        python: str,
        *,
        check: Callable[[], None] = lambda: None,
        idle_s: float = IDLE_S,
        reply_s: float = REPLY_S,
    ) -> None:
        """``check`` raises ModelError for a checkpoint that may not be loaded; asked once, in a
        thread."""
        self._check: Callable[[], None] | None = check
        self._lost_at = -LOST_S
        self.folder, self.python = folder, python
        self._scratch = tempfile.TemporaryDirectory(prefix="policy-", dir=scratch.room())
        self._idle_s, self._reply_s = idle_s, reply_s
        self._turn = asyncio.Lock()
        self._child: process.Child | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self.trouble: str | None = None
        """Why it cannot be used, or was left alone."""

    async def warm(self, start: StartChild = process.start) -> None:
        """Start and load it where it is not. ``start``: like `process.start`; a fork of a process
        that has imported torch already saves 2 to 9 s. Raises BackboneError."""
        async with self._turn:
            await self._ready(start)

    async def reply(
        self,
        messages_read: Dialog | value_model.PlanQuestion | launching.LaunchQuestion,
        among: grammar.GrammarNode | None = None,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> ModelReply:
        """The model's reply to a dialog whose turn it is, or to a question; ``among``: None for all
        that it offers. Raises BackboneError, the same at once when it was given up."""
        if len(messages_read.tokens) > CONTEXT - LONGEST_REPLY:
            count = len(messages_read.tokens)
            cause = f"the dialog has grown to {count} words, the policy reads {CONTEXT}"
            raise BackboneError(cause, "nothing is to be done: the rule plans such a target")
        message = {
            "op": "reply",
            "tokens": messages_read.tokens,
            "table": grammar.table(among or messages_read.offer, TOKENS),
            "temperature": temperature,
            "seed": seed,
        }
        async with self._turn:
            child = await self._ready()
            answer = await self._asked(child, message, self._reply_s)
        return parse_reply(answer)

    async def close(self) -> None:
        """End the child. Safe to call twice."""
        if self._resting is not None:
            self._resting.cancel()
        child, self._child = self._child, None
        if child is not None:
            await child.kill()
        await asyncio.gather(*self._ending, return_exceptions=True)
        self._scratch.cleanup()

    async def retire(self) -> None:
        """Close it when it has answered what it was asked."""
        async with self._turn:
            await self.close()

    async def _ready(self, start: StartChild = process.start) -> process.Child:
        if self.trouble is not None and time.monotonic() < self._lost_at + LOST_S:
            raise BackboneError(self.trouble, REMEDY if self._lost_at == math.inf else None)
        self.trouble = None
        if self._check is not None:
            try:
                await asyncio.to_thread(self._check)
            except ModelError as error:
                raise self._given_up(str(error)) from None
            self._check = None
        if self._child is None or not self._child.alive:
            if self._child is not None:
                await self._child.kill()
            confinement = process.Confinement(
                scratch=Path(self._scratch.name), readable=(self.folder,)
            )
            try:
                self._child = await start(
                    MODULE, python=self.python, limits=process.Limits(), confinement=confinement
                )
            except (OSError, WorkerLost) as error:
                raise self._lost(error) from None
            await self._asked(self._child, {"op": "open", "folder": str(self.folder)}, LOAD_S)
        return self._child

    async def _asked(
        self, child: process.Child, message: dict[str, Any], limit_s: float
    ) -> dict[str, Any]:
        if self._resting is not None:
            self._resting.cancel()
        try:
            answer, _ = await child.ask(message, timeout_s=limit_s)
        except WorkerLost as lost:
            raise self._lost(lost) from None
        finally:
            self._resting = asyncio.get_running_loop().call_later(self._idle_s, self._rest)
        if "failed" in answer:
            raise self._given_up(str(answer["failed"]))
        return answer

    def _given_up(self, cause: str) -> BackboneError:
        self._lost_at = math.inf
        self.trouble = f"the policy in {self.folder.name} cannot be used: {cause}"
        return BackboneError(self.trouble, REMEDY)

    def _lost(self, error: Exception) -> BackboneError:
        self._lost_at = time.monotonic()
        self.trouble = f"the policy's process was lost: {error}"
        return BackboneError(self.trouble, f"it is started again after {LOST_S:.0f} s")

    def _rest(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            task = asyncio.create_task(child.kill())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def parse_reply(answer: dict[str, Any]) -> ModelReply:
    """The model's reply, read from the child's answer."""
    choices = tuple(
        ChosenWord(
            place=place,
            words=_words([token for token, _ in valid]),
            logprobs=tuple(float(logprob) for _, logprob in valid),
        )
        for place, valid in answer["choices"]
    )
    return ModelReply(
        words=_words(answer["tokens"]),
        logprob=float(sum(answer["logprobs"])),
        choices=choices,
        seconds=float(answer["seconds"]),
        cpu_s=float(answer["cpu_s"]),
    )


def _words(tokens: Sequence[int]) -> tuple[str, ...]:
    return tuple(WORDS[token] for token in tokens)
