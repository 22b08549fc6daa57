"""A dialog in the compact form while it is written: what may come next, on its task's measured
plans.

A `Line` goes on by itself wherever nothing can be chosen: forced words, the rule's suggestion
before the policy's own, the engine's answers and the verdicts between turns (both looked up). Its
steps are held to those that lead to a measured plan, since nothing is known of others; what the
model is scored by later is the whole grammar, which it is served with. A plan that was tried is
not tried again. Not covered: the other agents' prompts in words (episodes.py)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernel_lsp.agents.prompt_encoding import Dialog, DialogPhase, grammar
from kernel_lsp.agents.prompt_encoding.vocabulary import TOKENS
from kernel_lsp.records import EvalStatus
from trainer.policies.decoding import decode
from trainer.policies.plan_data import MeasuredPlan, TaskPlans, advise, show
from trainer.policies.plan_dialogs import STOP
from trainer.records import TurnStatus

HEARD = {TurnStatus.PASSED: EvalStatus.PASSED, TurnStatus.WRONG_RESULT: EvalStatus.WRONG_RESULT}


class Line:
    """See the top of the file."""

    def __init__(self, task: TaskPlans, dialog: Dialog, turns: int) -> None:
        """``turns`` 0: it ends when the skills are selected."""
        self.task, self.dialog, self.turns = task, dialog, turns
        self.tried: list[MeasuredPlan] = []
        """One per turn."""
        self.cuts: list[int] = []
        """Words up to the policy's first turn, then to the end of each turn."""
        self.done = False
        if dialog.phase is not DialogPhase.SELECT:
            self._advised()
        self.feed = list(dialog.tokens)
        self._reply: list[str] = []
        self._keys: tuple[str, ...] = ()
        """Of the turn's steps."""
        self._following: dict[tuple[str, ...], str] = {}
        """Valid replies that name a step -> its key."""
        self._rules: tuple[str, ...] | None = None
        """What the rule would reply here; None: the turn has left its plan."""
        self.node = self._offer()
        self._go_on()

    def choose(self, word: str) -> None:
        """One of `node`'s words."""
        self._put(word)
        self._go_on()

    @property
    def favored(self) -> str | None:
        """The word with which it would go on saying the rule's plan."""
        said = len(self._reply)
        if (
            self._rules is None
            or self._rules[:said] != tuple(self._reply)
            or said >= len(self._rules)
        ):
            return None
        return self._rules[said]

    # --- by itself -----------------------------------------------------------------------------

    def _go_on(self) -> None:
        while not self.done and len(self.node.branches) < 2:
            if self.node.branches:
                self._put(self.node.words[0])
            else:
                self._said()

    def _put(self, word: str) -> None:
        self._reply.append(word)
        self.feed.append(TOKENS[word])
        self.node = self.node.branches[word]

    def _said(self) -> None:
        """A whole reply."""
        selected = self.dialog.phase is DialogPhase.SELECT
        self.dialog.say(self._reply)
        key = self._following.get(tuple(self._reply))
        self._reply, read = [], len(self.dialog.words)
        if selected:
            self.done = self.turns == 0
            if not self.done:
                self._advised()
        elif key is not None:
            self._keys += (key,)
            show(self.dialog, self.task, self._keys)
        if self.dialog.phase is DialogPhase.RESULT:
            self._judged()
        self.feed += self.dialog.tokens[read:]
        if not self.done:
            self.node = self._offer()

    def _advised(self) -> None:
        advise(self.dialog, self.task)
        self.cuts.append(len(self.dialog.words))

    def _judged(self) -> None:
        self.tried.append(next(plan for plan in self.task.plans if plan.keys == self._keys))
        self.cuts.append(len(self.dialog.words))
        self.done = len(self.tried) == self.turns or len(self.tried) == len(self.task.plans)
        if not self.done:
            last = self.tried[-1]
            status = HEARD.get(last.outcome.status, EvalStatus.RUNTIME_ERROR)
            self.dialog.heard(status, last.speedup)
            self._keys = ()

    def _rules_reply(self) -> tuple[str, ...] | None:
        """What says the next step of the rule's plan; None where its steps were left."""
        rules, taken = self.task.plans[0].keys, len(self._keys)
        if rules[:taken] != self._keys:
            return None
        if len(rules) == taken:
            return STOP
        return next((reply for reply, key in self._following.items() if key == rules[taken]), None)

    def _offer(self) -> grammar.GrammarNode:
        if self.dialog.phase is DialogPhase.SELECT:
            return self.dialog.offer
        taken = len(self._keys)
        left = [p for p in self.task.plans if p.keys[:taken] == self._keys and p not in self.tried]
        steps = {p.keys[taken]: p.steps[taken] for p in left if len(p.keys) > taken}
        self._following = {tuple(self.dialog.reply_for(step)): key for key, step in steps.items()}
        self._rules = self._rules_reply()
        replies = [grammar.chain(reply) for reply in self._following]
        if any(len(plan.keys) == taken for plan in left):
            replies.append(grammar.chain(STOP))
        return grammar.either(*replies)


class LineWriter:
    """Writes lines with the very model that is trained."""

    def __init__(
        self,
        model: Any,
        pad: int,
        *,
        temperature: float = 1.0,
        batch: int = 256,
        margin: float = 0.0,
    ) -> None:
        """``margin``: of log-probability, by which a word must beat the one of the rule's plan."""
        self._model, self._pad, self._temperature, self._batch = model, pad, temperature, batch
        self._margin = margin

    def write(self, lines: Sequence[Line], seed: int, *, greedy: bool = False) -> None:
        """To their ends. The same weights, lines and seed give the same words."""
        order = sorted((line for line in lines if not line.done), key=lambda line: -len(line.feed))
        draw = random.Random(seed)
        training = self._model.training
        self._model.eval()
        with torch.inference_mode():
            for start in range(0, len(order), self._batch):
                rows = order[start : start + self._batch]

                def choose(logits: Tensor, rows: Sequence[Line] = rows) -> None:
                    self._choose(rows, logits / self._temperature, draw, greedy)

                decode(self._model, self._pad, rows, choose)
        self._model.train(training)

    def _choose(
        self, rows: Sequence[Line], logits: Tensor, draw: random.Random, greedy: bool
    ) -> None:
        for place, line in enumerate(rows):
            if line.done:
                continue
            words = line.node.words
            scores = logits[place, [TOKENS[word] for word in words]]
            if self._margin and (favored := line.favored) in words:
                scores[words.index(favored)] += self._margin
            spread = torch.softmax(scores, dim=0).tolist()
            taken = (
                max(zip(spread, words, strict=True))[1]
                if greedy
                else draw.choices(words, spread)[0]
            )
            line.choose(taken)
