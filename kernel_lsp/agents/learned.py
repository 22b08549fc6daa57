"""The trained policy as a planner: plans by what the model finds likeliest, then the rule's.

The model selects skills, reads the rule's first plan, names steps one by one (the engine
applies each before the next is asked for) and stops. Where it would leave the rule's plan it has
to be surer than that by a margin, which was chosen on tasks that it had not learned from. What it
would have said instead is known with its probability, so the next plan is the likeliest that
differs in one word, completed greedily (Lawler's k best solutions, 1972, with a greedy completion).
Replies are valid by construction (agents/prompt_encoding). A model that has learned to weigh is
asked about the rule's plans instead, with what each would cost (prompt_encoding/value_model.py),
and the most promising one comes first. A model that fails is followed by the rule, and the reason
is said. When its first plan was measured it reads what came of it, and is asked `again`. Not
covered: judging; which checkpoint it is."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from kernel_lsp import wire
from kernel_lsp.agents.backbones.small.runtime import ChosenWord, ModelReply
from kernel_lsp.agents.plan import MakeCandidate, Planner, Prefer, RankedPlan, rank_sites
from kernel_lsp.agents.prompt_encoding import Dialog, DialogPhase, Situation, grammar, value_model
from kernel_lsp.agents.prompt_encoding.value_model import PlanQuestion
from kernel_lsp.errors import BackboneError, RewriteError
from kernel_lsp.records import EvalStatus, Site, Step, Viewed

MAX_COURSES = 4
"""Of the model's; after them come the rule's, which know nothing of what it may have overlooked."""
MAX_TRIES = 16
"""Plans that are completed to find these: some lead to the same program, or to none."""
MAX_AGAIN = 4
"""The same, when a plan was measured: most of what it says then is on the list already."""
MAX_WEIGHED = 6
"""Of the rule's plans: the best of 387 measured programs' was among these but for 5 % of its
speed."""
MAX_REPLIES = 40
"""In one plan: each step may be refused."""

STOP = ("stop", ".")

ViewSteps = Callable[[Sequence[Step]], Awaitable[Viewed]]
"""The graph after these steps and the sites that are left."""
PlanAnswer = Callable[[Dialog | PlanQuestion, grammar.GrammarNode], Awaitable[ModelReply]]
"""The model's reply, among these."""
Tell = Callable[[str], None]


@dataclass(frozen=True, order=True)
class _Branch:
    """A plan that is not completed yet: replies, and the beginning of the next one."""

    cost: float
    """Minus the logarithm of the probability of what is fixed."""
    number: int
    """Of two that cost the same, the earlier."""
    replies: tuple[tuple[str, ...], ...]
    begun: tuple[str, ...]


class _NotEncodable(Exception):
    """The rule's plan has no words in the compact form."""


class LearnedPlanner:
    """The plans for one program; like `Planner`."""

    def __init__(
        self,
        situation: Situation,
        *,
        name: str,
        answer: PlanAnswer,
        view: ViewSteps,
        make: MakeCandidate,
        rule: Planner,
        margin: float = 0.0,
        weighs: bool = False,
        prefer: Prefer = lambda site: None,
        tell: Tell = lambda words: None,
    ) -> None:
        """``name``: `Candidate.proposer`. ``margin``: of log-probability, or of ln(gain) where it
        weighs, to leave the rule's first plan. ``weighs``: it has learned to weigh plans.
        ``prefer``: parameters that won before count more than the model's. ``tell`` hears why
        the model was left, when it was."""
        self._situation, self._name, self._answer, self._margin = situation, name, answer, margin
        self._weighs = weighs
        self._view, self._make, self._rule, self._prefer, self._tell = (
            view,
            make,
            rule,
            prefer,
            tell,
        )
        self._views: dict[str, Viewed | None] = {}
        self._numbers = itertools.count()
        self._heap: list[_Branch] = []
        self._advice: tuple[Step, ...] = ()
        """The rule's first plan."""
        self._seen: set[str] = set()
        """Candidates that were suggested."""
        self._measured: tuple[tuple[Step, ...], float | None] | None = None
        """A plan of the model's own, and its speedup over the program as it was; None: it
        failed."""

    async def ranked_plans(
        self, sites: Sequence[Site], *, triton: bool
    ) -> AsyncIterator[RankedPlan]:
        """Best guess first, without duplicates."""
        rules = self._rule.ranked_plans(sites, triton=triton)
        first = await anext(rules, None)
        if first is None:
            return
        made, self._advice = [first], first.steps
        try:
            if self._weighs:
                async for ranked_plan in rules:
                    made.append(ranked_plan)
                    if len(made) == MAX_WEIGHED:
                        break
                made = await self._weighed(made)
            else:
                async for ranked_plan in self._learned(MAX_TRIES):
                    yield ranked_plan
        except BackboneError as error:
            self._tell(f"planned by the rule: {error}")
        except _NotEncodable as error:
            self._tell(
                f"planned by the rule: its suggestion cannot be written for the model ({error})"
            )
        for ranked_plan in made:
            if self._new(ranked_plan):
                yield ranked_plan
        async for ranked_plan in rules:
            if self._new(ranked_plan):
                yield ranked_plan

    def _new(self, ranked_plan: RankedPlan) -> bool:
        """Not suggested before; from now on it is."""
        known = ranked_plan.candidate.id in self._seen
        self._seen.add(ranked_plan.candidate.id)
        return not known

    async def _weighed(self, ranked_plans: Sequence[RankedPlan]) -> list[RankedPlan]:
        """The one from which the model expects most first; of equals, and where the engine tells
        no cost, the rule's. Raises BackboneError, _NotEncodable."""
        before = await self._viewed(())
        if before is None or before.cost is None:
            return list(ranked_plans)
        plans = [await self._plan(ranked_plan) for ranked_plan in ranked_plans]
        gains = []
        for plan in plans:
            asked = PlanQuestion(
                situation=self._situation, before=before.cost, rule=plans[0], ranked_plan=plan
            )
            choice = (await self._answer(asked, asked.offer)).choices[0]
            gains.append(value_model.expected_gain(choice.words, choice.logprobs))
        gains[0] += self._margin
        order = sorted(range(len(ranked_plans)), key=lambda place: (-gains[place], place))
        found = [ranked_plans[place] for place in order]
        if order[0] != 0:
            found[0] = replace(found[0], candidate=replace(found[0].candidate, proposer=self._name))
        return found

    async def _plan(self, ranked_plan: RankedPlan) -> value_model.WeighedPlan:
        viewed = await self._viewed(ranked_plan.steps)
        if viewed is None or viewed.cost is None:
            raise _NotEncodable("the engine cannot say what it would cost")
        return value_model.plan(ranked_plan.sites, viewed.cost)

    async def again(self, ranked_plan: RankedPlan, speedup: float | None) -> RankedPlan | None:
        """What the model suggests when it knows how a plan of its own did; None: nothing new.

        ``speedup``: over the program as it was; None: it does not run there. As in a second turn
        of its training."""
        if ranked_plan.candidate.proposer != self._name:
            return None
        self._measured = ranked_plan.steps, speedup
        with contextlib.suppress(BackboneError, _NotEncodable):
            # The plans that are known are raced without it.
            async for found in self._learned(MAX_AGAIN):
                return found
        return None

    async def _learned(self, most: int) -> AsyncIterator[RankedPlan]:
        """New ones, by ``most`` attempts. Raises BackboneError, _NotEncodable."""
        self._heap = [_Branch(0.0, next(self._numbers), (), ())]
        found = 0
        for _ in range(most):
            if not self._heap or found >= MAX_COURSES:
                break
            ranked_plan = await self._completed(heapq.heappop(self._heap))
            if ranked_plan is not None and self._new(ranked_plan):
                found += 1
                yield ranked_plan

    async def _completed(self, branch: _Branch) -> RankedPlan | None:
        dialog, sites = Dialog(self._situation), list[Site]()
        cost, begun = branch.cost, branch.begun
        replies: tuple[tuple[str, ...], ...] = ()
        while dialog.phase in (DialogPhase.SELECT, DialogPhase.STEP) and len(replies) < MAX_REPLIES:
            if dialog.phase is DialogPhase.STEP and dialog.turn == 0:
                await self._advise(dialog)
            if len(replies) < len(branch.replies):
                words = branch.replies[len(replies)]
            else:
                offer = dialog.offer
                said = await self._answer(dialog, grammar.chain(begun, offer.after(begun)))
                said = await self._careful(dialog, said, len(begun))
                if dialog.phase is DialogPhase.STEP:
                    self._branch(cost, replies, said)
                words, cost, begun = said.words, cost - said.logprob, ()
            await self._follow(dialog, words, sites)
            replies = (*replies, words)
        return await self._finished(dialog.steps, sites)

    async def _advise(self, dialog: Dialog) -> None:
        """Tell it the rule's plan as a turn before its own, then what was measured. Raises
        _NotEncodable where that cannot be said."""
        await self._tell_turn(dialog, self._advice)
        dialog.heard(EvalStatus.PASSED)  # nobody has measured it yet
        if self._measured is not None:
            steps, speedup = self._measured
            await self._tell_turn(dialog, steps)
            dialog.heard(
                EvalStatus.RUNTIME_ERROR if speedup is None else EvalStatus.PASSED, speedup
            )

    async def _tell_turn(self, dialog: Dialog, steps: Sequence[Step]) -> None:
        """A whole plan. Raises _NotEncodable."""
        for step in steps:
            try:
                dialog.say(dialog.reply_for(step))
            except ValueError as error:
                raise _NotEncodable(error) from error
            viewed = await self._viewed(dialog.steps)
            if viewed is None:
                raise _NotEncodable(f"the engine refuses {step.skill}")
            dialog.saw(viewed)
        if dialog.phase is DialogPhase.STEP:
            dialog.say(STOP)

    def _is_sure(self, choice: ChosenWord, word: str, rules: str) -> bool:
        """Whether a word is likelier than the rule's by the margin, or the rule's cannot be
        said."""
        if rules not in choice.words:
            return True
        logprob, rules_logprob = (choice.logprobs[choice.words.index(one)] for one in (word, rules))
        return logprob - rules_logprob >= self._margin

    async def _careful(self, dialog: Dialog, said: ModelReply, fixed: int) -> ModelReply:
        """The reply, with the rule's word instead wherever it leaves the rule's plan by too
        little.

        ``fixed``: words at its beginning that are not to be changed.
        """
        wanted = self._rules_reply(dialog)
        if wanted is None or self._margin <= 0.0 or said.words[:fixed] != wanted[:fixed]:
            return said
        while said.words != wanted:
            place = next(at for at, word in enumerate(wanted) if said.words[at] != word)
            choice = next((one for one in said.choices if one.place == place), None)
            if choice is None or place < fixed:
                break
            if self._is_sure(choice, said.words[place], wanted[place]):
                break
            begun, offer = wanted[: place + 1], dialog.offer
            rest = await self._answer(dialog, grammar.chain(begun, offer.after(begun)))
            before = tuple(one for one in said.choices if one.place <= place)
            taken = (one.logprobs[one.words.index(wanted[one.place])] for one in before)
            said = replace(
                rest, logprob=math.fsum(taken) + rest.logprob, choices=(*before, *rest.choices)
            )
        return said

    def _rules_reply(self, dialog: Dialog) -> tuple[str, ...] | None:
        """How the rule would go on; None: it would not have come here, or it is time for something
        else."""
        done = len(dialog.steps)
        if (
            self._measured is not None
            or dialog.phase is not DialogPhase.STEP
            or dialog.steps != self._advice[:done]
        ):
            return None
        return STOP if done == len(self._advice) else tuple(dialog.reply_for(self._advice[done]))

    def _branch(self, cost: float, replies: tuple[tuple[str, ...], ...], said: ModelReply) -> None:
        """Every other word that was valid in the place of one that the model has chosen here."""
        for choice in said.choices:
            taken = said.words[choice.place]
            for word, logprob in zip(choice.words, choice.logprobs, strict=True):
                if word != taken:
                    begun = (*said.words[: choice.place], word)
                    branch = _Branch(cost - logprob, next(self._numbers), replies, begun)
                    heapq.heappush(self._heap, branch)
            cost -= choice.logprobs[choice.words.index(taken)]

    async def _follow(self, dialog: Dialog, words: Sequence[str], sites: list[Site]) -> None:
        """Say it, and let the engine do what it asks for."""
        offered = {site.key: site for site in dialog.sites}
        dialog.say(words)
        if dialog.phase is not DialogPhase.ENGINE:
            return
        step = dialog.steps[-1]
        viewed = await self._viewed(dialog.steps)
        if viewed is None:
            dialog.refused()
        else:
            dialog.saw(viewed)
            sites.append(offered[f"{step.skill}\0{step.site}"])

    async def _viewed(self, steps: Sequence[Step]) -> Viewed | None:
        """None: the engine gave the last step up."""
        key = wire.dumps(list(steps))
        if key not in self._views:
            self._views[key] = None
            with contextlib.suppress(RewriteError):
                self._views[key] = await self._view(steps)
        return self._views[key]

    async def _finished(self, steps: Sequence[Step], sites: Sequence[Site]) -> RankedPlan | None:
        """The program that the steps lead to; without the last ones where they cannot be written
        down."""
        known = [
            replace(step, parameters=self._prefer(site) or step.parameters)
            for step, site in zip(steps, sites, strict=True)
        ]
        for count in range(len(known), 0, -1):
            with contextlib.suppress(RewriteError):
                made = replace(await self._make(known[:count]), proposer=self._name)
                return RankedPlan(
                    candidate=made, sites=tuple(sites[:count]), steps=tuple(known[:count])
                )
        return None


def usable(sites: Sequence[Site], *, triton: bool) -> tuple[Site, ...]:
    """What the model is shown: proved, of use on the device, ranked."""
    return tuple(site for site in rank_sites(sites) if site.plain or triton)
