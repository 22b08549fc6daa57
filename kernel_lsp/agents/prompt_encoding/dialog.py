"""One dialog about one target: what is said, which replies are valid, what they mean. Append-only.

    dialog = Dialog(situation)
    dialog.say(reply)           a reply that `dialog.offer` accepts; select_skills first (or
                                skip=True), then
    dialog.saw(viewed)          … after each apply_skill: the engine has done it,
    dialog.refused()            … or it could not
    dialog.heard(status)        after `stop` or a wrapping skill: how the candidate of this turn did

A turn is one candidate: steps from the target as it was, then ``stop``. The next turn starts anew.
Words that the model has said are marked, with what was valid in their place: a trainer needs
nothing else. The same code makes training samples and serves, so both see the same words. Knows no
model, no engine, no torch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kernel_lsp.agents.plan import MAX_CHAIN
from kernel_lsp.agents.prompt_encoding import grammar, situations, words
from kernel_lsp.agents.prompt_encoding.grammar import GrammarNode
from kernel_lsp.agents.prompt_encoding.situations import Numbering, Situation
from kernel_lsp.agents.prompt_encoding.vocabulary import TOKENS
from kernel_lsp.agents.tools import APPLY, MAX_SELECTED, SELECT
from kernel_lsp.records import EvalStatus, Site, Step, ToolCall, Viewed

STOP, PERIOD = "stop", "."
_HEARD = {EvalStatus.PASSED: "right", EvalStatus.WRONG_RESULT: "wrong"}


class DialogPhase(StrEnum):
    SELECT = "select"
    STEP = "step"
    ENGINE = "engine"
    """A step was named; `saw` or `refused` is to follow."""
    RESULT = "result"
    """A candidate is complete; `heard` may follow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSample:
    """A dialog as tokens. The three are aligned."""

    tokens: tuple[int, ...]
    said: tuple[bool, ...]
    """True: the model's choice. Words that nothing else was valid for are not: they teach
    nothing."""
    offered: tuple[tuple[int, ...], ...]
    """Tokens that were valid in the place of one that was said; empty elsewhere."""


class Dialog:
    """See the top of the file."""

    def __init__(self, situation: Situation, *, skip: bool = False) -> None:
        """``skip``: no skills are selected (for the arm without that agent)."""
        self.situation, self._numbering = situation, Numbering()
        self.words: list[str] = situations.opening(situation, self._numbering)
        self.offers: list[tuple[str, ...]] = [()] * len(self.words)
        """What was valid in each place that the model has filled."""
        self.selected: tuple[str, ...] = ()
        self.steps: tuple[Step, ...] = ()
        """Of this turn."""
        self.turn = 0
        self._open: dict[str, Site] = {site.key: site for site in situation.sites}
        self.phase = DialogPhase.STEP if skip or not self._numbering.skills else DialogPhase.SELECT

    def copy(self) -> Dialog:
        """The same dialog, to go on in another way."""
        made = copy.copy(self)
        made.words, made.offers, made._open = list(self.words), list(self.offers), dict(self._open)
        made._numbering = self._numbering.copy()
        return made

    # --- what may be said ------------------------------------------------------------------

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites that a reply may name now."""
        return tuple(site for site in self._open.values() if site.key in self._numbering.sites)

    @property
    def offer(self) -> GrammarNode:
        """Valid replies; an END where it is not the model's turn."""
        if self.phase is DialogPhase.SELECT:
            return _selections(sorted(self._numbering.skills.values()))
        if self.phase is not DialogPhase.STEP:
            return grammar.END
        stop = grammar.chain([STOP, PERIOD])
        if len(self.steps) >= MAX_CHAIN:
            return stop
        replies = [self._applications(site) for site in self.sites]
        return (
            grammar.either(stop, *replies)
            if self.steps or not replies
            else grammar.either(*replies)
        )

    def _applications(self, site: Site) -> GrammarNode:
        node = grammar.chain([PERIOD])
        for name, choices in reversed(situations.encode_choices(site).items()):
            node = grammar.either(*(grammar.chain(choice, node) for choice in choices))
            node = grammar.chain(words.name(name), node)
        return grammar.chain([APPLY, f"@{self._numbering.sites[site.key]}"], node)

    # --- what was said ---------------------------------------------------------------------

    def say(self, reply: Sequence[str]) -> ToolCall | None:
        """The call that a reply makes; None: ``stop``. Raises ValueError for one that is not
        offered."""
        offer = self.offer
        if not reply or not offer.accepts(reply):
            raise ValueError(f"{' '.join(reply)!r} is no valid reply here")
        self.offers += offer.offered(reply)
        self.words += reply
        if reply[0] == SELECT:
            return self._selected(reply)
        if reply[0] == STOP:
            self.phase = DialogPhase.RESULT
            return None
        step = self._step(reply)
        self.steps, self.phase = (*self.steps, step), DialogPhase.ENGINE
        return ToolCall(
            name=APPLY,
            arguments={"skill": step.skill, "site": step.site, "parameters": step.parameters},
        )

    def _selected(self, reply: Sequence[str]) -> ToolCall:
        names = {f"K{number}": name for name, number in self._numbering.skills.items()}
        self.selected, self.phase = tuple(names[word] for word in reply[1:-1]), DialogPhase.STEP
        chosen = [{"name": name, "reason": ""} for name in self.selected]
        return ToolCall(name=SELECT, arguments={"think": "", "selected_skills": chosen})

    def _step(self, reply: Sequence[str]) -> Step:
        site = next(s for s in self.sites if reply[1] == f"@{self._numbering.sites[s.key]}")
        left, parameters = (
            list(reply[2:-1]),
            {name: values[0] for name, values in site.parameters.items()},
        )
        for name, choices in situations.encode_choices(site).items():
            del left[: len(words.name(name))]
            place = next(
                i for i, choice in enumerate(choices) if tuple(left[: len(choice)]) == choice
            )
            del left[: len(choices[place])]
            parameters[name] = site.parameters[name][place]
        return Step(skill=site.skill, site=site.site, parameters=parameters)

    def disown(self, start: int) -> None:
        """The words from this place on were said by somebody else (the rule): they are read, not
        learned."""
        self.offers[start:] = [()] * (len(self.words) - start)

    # --- what is said in between -----------------------------------------------------------

    def saw(self, viewed: Viewed) -> None:
        """The program after the step that was named last. A wrapper ends the turn."""
        self._expect(DialogPhase.ENGINE)
        now = {site.key: site for site in _allowed_sites(viewed.sites, self.situation)}
        closed = [
            self._numbering.sites[key]
            for key in self._open
            if key not in now and key in self._numbering.sites
        ]
        self._tell(
            situations.encode_changes(viewed.graph, tuple(now.values()), closed, self._numbering)
        )
        self._open, self.phase = now, DialogPhase.STEP

    def refused(self) -> None:
        """The engine gave the step up: the turn goes on without it, and the site is out."""
        self._expect(DialogPhase.ENGINE)
        step = self.steps[-1]
        self._tell(["then", "refused"])
        self.steps, self.phase = self.steps[:-1], DialogPhase.STEP
        self._open.pop(f"{step.skill}\0{step.site}", None)

    def heard(self, status: EvalStatus | None, speedup: float | None = None) -> None:
        """How the turn's candidate did (None: it was refused), and the next turn begins.

        ``speedup``: over the best baseline that took part, where it was right and timed.
        """
        self._expect(DialogPhase.RESULT)
        word = "refused" if status is None else _HEARD.get(status, "failed")
        self._tell(["got", word, *([words.gain(speedup)] if word == "right" else [])])
        self.turn, self.steps, self.phase = self.turn + 1, (), DialogPhase.STEP
        self._open = {site.key: site for site in self.situation.sites}

    def _tell(self, sent: Sequence[str]) -> None:
        self.words += sent
        self.offers += [()] * len(sent)

    def _expect(self, phase: DialogPhase) -> None:
        if self.phase is not phase:
            raise ValueError(f"the dialog is at {self.phase.value}, not at {phase.value}")

    # --- for decoding and training -----------------------------------------------------------

    @property
    def tokens(self) -> list[int]:
        """The numbers of all its words, in order: what a model reads."""
        return [TOKENS[word] for word in self.words]

    @property
    def text(self) -> str:
        """The dialog as a server's tokenizer reads it: every word with a blank behind it."""
        return "".join(f"{word} " for word in self.words)

    def sample(self) -> TokenSample:
        """All its words as numbers, with those that the model chose and what each was chosen
        from."""
        said = [len(offer) > 1 for offer in self.offers]
        offered = [
            tuple(TOKENS[word] for word in offer) if len(offer) > 1 else () for offer in self.offers
        ]
        return TokenSample(tokens=tuple(self.tokens), said=tuple(said), offered=tuple(offered))

    def reply_for(self, step: Step) -> list[str]:
        """How the model would name a step. Raises ValueError where it cannot."""
        site = self._open.get(f"{step.skill}\0{step.site}")
        if site is None or site.key not in self._numbering.sites:
            raise ValueError(f"{step.skill} at {step.site} is not offered here")
        said = [APPLY, f"@{self._numbering.sites[site.key]}"]
        for name, choices in situations.encode_choices(site).items():
            values = site.parameters[name][: len(choices)]
            value = step.parameters.get(name, values[0])
            if value not in values:
                raise ValueError(f"{name} = {value!r} is no choice of {step.skill}")
            said += [*words.name(name), *choices[values.index(value)]]
        return [*said, PERIOD]

    def reply_selecting(self, skills: Iterable[str]) -> list[str]:
        """How the model would select these, three at most; those that it does not read are left
        out."""
        numbers = sorted(
            self._numbering.skills[name] for name in set(skills) if name in self._numbering.skills
        )
        return [SELECT, *(f"K{number}" for number in numbers[:MAX_SELECTED]), PERIOD]


def _selections(numbers: Sequence[int]) -> GrammarNode:
    """Up to three of the skills, in the order of their numbers, so that a set is said in one
    way."""
    ends = [grammar.chain([PERIOD])] * (len(numbers) + 1)
    for _ in range(MAX_SELECTED):
        longer = list(ends)
        for first in range(len(numbers)):
            picks = {f"K{numbers[at]}": ends[at + 1] for at in range(first, len(numbers))}
            longer[first] = GrammarNode({PERIOD: grammar.END, **picks})
        ends = longer
    return grammar.chain([SELECT], ends[0])


def _allowed_sites(sites: Iterable[Site], situation: Situation) -> list[Site]:
    """What is proved and can be of use on the device; recalled skills need no second asking."""
    sound = (site for site in sites if all(proof.holds for proof in site.proofs))
    return [site for site in sound if site.plain or situation.triton]
