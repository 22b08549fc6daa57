"""The policy agent: one turn of a language model, from a context to a draft.

A turn is a prompt, a reply, and what the workshop makes of its call. A skill may be read first
(twice at most), and a reply without any call is asked for once more; whatever else is wrong with
it becomes the draft's complaint, which the next turn reads. Skills are selected once per rollout,
and one rollout in four is given none. Not covered: prompts' words (prompts.py), how a reply is
read (replies.py), where to go on (search/)."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernel_lsp.agents import feedback, prompts, replies, selection, sizing, summary, tools
from kernel_lsp.agents.offers import Offers
from kernel_lsp.agents.plan import MAX_CHAIN, rank_sites
from kernel_lsp.agents.sizing import ExchangeLimits
from kernel_lsp.agents.wording import harmless, line
from kernel_lsp.errors import BackboneError, RewriteError
from kernel_lsp.records import (
    Attempt,
    Backbone,
    Candidate,
    Context,
    Cost,
    Exchange,
    Message,
    ModelInfo,
    Parsed,
    Prompt,
    ProposedDraft,
    Reply,
    Role,
    SearchTask,
    Site,
    Skill,
    Step,
    ToolCall,
    ToolSchema,
    Workshop,
)

MAX_READS = 2
"""Skills that are read in one turn."""
MAX_REPAIRS = 1
"""Replies without a call that are asked for again in one turn."""
ROOMY = 2**20
"""Tokens of context for a backbone that reads no prose."""
SHOWN_REPLY = 1500
"""Characters of such a reply that it is shown again, from its beginning."""
LOST_AFTER = 5
"""Failures of a skill in a row after which it is not offered any more: its file may have been
edited into something else. Combinations that a sound skill refuses come one or two in a row."""

Select = Callable[[SearchTask, int], Awaitable[tuple[tuple[str, ...], Exchange, Cost]]]
"""(task, seed) -> names of skills, how they were chosen, what that took (`selection.select`)."""


@dataclass
class _Turn:
    """What one turn has said and spent so far."""

    exchanges: list[Exchange] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)

    def add(self, agent: str, prompt: Prompt, reply: Reply, parsed: Parsed) -> None:
        """Keep one exchange, and add its cost to the turn's."""
        self.exchanges.append(Exchange(agent=agent, prompt=prompt, reply=reply, parsed=parsed))
        self.cost += sizing.cost(prompt, reply)


class PolicyAgent:
    """A slow `Proposer`: safe for as many tasks at once as its backbone is."""

    slow = True

    def __init__(
        self,
        backbone: Backbone,
        workshop: Workshop,
        select: Select | None = None,
        *,
        info: ModelInfo,
        order: Callable[[Sequence[str]], list[str]] = list,
        without: Callable[[int], bool] = selection.without_skills,
    ) -> None:
        """``info``: what opening the backbone gave. ``select``: None asks the same backbone.
        ``without``: which rollouts are given no skills.
        ``order``: of skills by what has paid (`SkillArms.order`), for when there are too many
        sites."""
        self._backbone, self._workshop, self._info, self._order = backbone, workshop, info, order
        self._without = without
        # It needs no room, and knows when it has said everything
        self._reads = info.backbone != "plan"
        self._room = sizing.room(info if self._reads else replace(info, context_tokens=ROOMY))
        self._select: Select = select or (lambda task, seed: selection.select(backbone, task, seed))
        self._chosen: dict[int, tuple[str, ...]] = {}
        """Rollout -> skills that it is given."""
        self._choosing: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._unsaid = _Turn()
        """Of turns whose model failed: what they had spent is accounted with the next draft."""
        self._failures: Counter[str] = Counter()
        self._offers = Offers(workshop)
        self.notes: list[str] = []
        """Skills that were left out: cause and remedy."""

    @property
    def name(self) -> str:
        """The model's name, for the evidence."""
        return self._info.name

    async def propose(self, task: SearchTask, context: Context) -> ProposedDraft | None:
        """One attempt. None: a deterministic backbone has nothing more to say. Raises
        BackboneError."""
        turn, self._unsaid = self._unsaid, _Turn()
        try:
            return await self._turn(task, context, turn)
        except BackboneError:
            self._unsaid.exchanges += turn.exchanges
            self._unsaid.cost += turn.cost
            raise

    async def _turn(self, task: SearchTask, context: Context, turn: _Turn) -> ProposedDraft | None:
        given = await self._skills(task, context, turn)
        sites = await self._offered(task, context)
        prompt = self._prompt(task, context, sites, given)
        parsed, read = await self._asked(task, prompt, turn)
        advice = (*given, *read)
        if not parsed.calls:
            if not self._reads:
                return None
            complaint = "; ".join(map(str, parsed.problems)) or "the reply calls no tool"
            return _draft(turn, complaint=complaint)
        try:
            made = await self._made(parsed.calls, task, context)
        except RewriteError as error:
            return _draft(turn, complaint=str(error))
        return _draft(turn, candidate=replace(made, proposer=self.name, advice=advice))

    async def lessons(
        self, task: SearchTask, attempts: Sequence[Attempt]
    ) -> list[tuple[Attempt, ProposedDraft]]:
        """(best attempt of a rollout, drafts of skills), for every rollout that has taught
        something.

        Asked when a search is over, and only of attempts that nobody has asked about. A model that
        fails ends it with what was learned before."""
        rollouts: defaultdict[int, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if attempt.rollout is not None and attempt.turn:
                rollouts[attempt.rollout].append(attempt)
        learned = []
        for rollout in sorted(rollouts):
            if found := summary.trigger(rollouts[rollout]):
                first, best = found
                had = best.candidate.advice if best.candidate else ()
                try:
                    drafts, exchange, cost = await summary.distill(
                        self._backbone, task, first, best, had, best.number
                    )
                except BackboneError as error:
                    self.notes.append(f"no skills were written down: {error}")
                    break
                learned.append(
                    (best, ProposedDraft(exchanges=(exchange,), cost=cost, drafts=drafts))
                )
        return learned

    # --- skills ---------------------------------------------------------------------------

    async def _skills(self, task: SearchTask, context: Context, turn: _Turn) -> tuple[str, ...]:
        """The same in every turn of a rollout, also after the process was killed between two of
        them."""
        rollout = context.number if context.rollout is None else context.rollout
        if not (self._reads and task.skills) or self._without(rollout):
            return ()
        async with self._choosing[rollout]:
            if rollout not in self._chosen:
                earlier = [one.candidate.advice for one in context.history if one.candidate]
                self._chosen[rollout] = (
                    earlier[0] if earlier else await self._selected(task, context, turn)
                )
        return self._chosen[rollout]

    async def _selected(self, task: SearchTask, context: Context, turn: _Turn) -> tuple[str, ...]:
        names, exchange, cost = await self._select(task, context.seed)
        turn.exchanges.append(exchange)
        turn.cost += cost
        return names

    # --- sites ----------------------------------------------------------------------------

    async def _offered(self, task: SearchTask, context: Context) -> list[Site]:
        """The parent's own steps, to change their parameters, and what could follow them;
        ranked."""
        steps = _steps(context)
        if not steps:
            found = list(task.sites)
        else:
            own = [await self._site(steps, place) for place in range(len(steps))]
            after = await self._offers.after(steps) if len(steps) < MAX_CHAIN else ()
            found = [*(site for site in own if site is not None), *after]
        fit = [
            s for s in rank_sites(found) if (s.plain or task.triton) and not self._is_out(s.skill)
        ]
        return self._cut(fit)

    def _cut(self, sites: list[Site]) -> list[Site]:
        """At most as many as a prompt shows: half by what they save, the others by what has
        paid."""
        most = sizing.MAX_SITES
        if len(sites) <= most:
            return sites
        head, rest = sites[: most // 2], sites[most // 2 :]
        order = self._order(list(dict.fromkeys(site.skill for site in rest)))
        return head + sorted(rest, key=lambda site: order.index(site.skill))[: most - len(head)]

    async def _site(self, steps: Sequence[Step], place: int) -> Site | None:
        """Where a step of the parent was applied; None: it is no longer offered there."""
        mine = steps[place].skill, steps[place].site
        offered = await self._offers.after(steps[:place])
        return next((site for site in offered if (site.skill, site.site) == mine), None)

    def _is_out(self, skill: str) -> bool:
        return self._failures[skill] >= LOST_AFTER

    # --- asking ---------------------------------------------------------------------------

    def _prompt(
        self, task: SearchTask, context: Context, sites: Sequence[Site], given: Sequence[str]
    ) -> Prompt:
        """Without the parent's text where that does not fit: its steps and results may be
        enough."""
        room, program = self._room, self._workshop.marked(None)
        parent = context.parent.candidate if context.parent else None
        record: dict[str, Any] = {"program": program, "outcome": feedback.line}
        if parent is not None:
            try:
                start = self._workshop.marked(parent)
                return prompts.policy(task, context, sites, given, room, start=start, **record)
            except BackboneError:
                pass
        return prompts.policy(task, context, sites, given, room, **record)

    async def _asked(
        self, task: SearchTask, prompt: Prompt, turn: _Turn
    ) -> tuple[Parsed, tuple[str, ...]]:
        """What the model has decided, and the skills that it has read before."""
        room, read, repairs = self._room, list[str](), 0
        while True:
            reply = await self._backbone.reply(prompt)
            parsed = replies.parse(reply, prompt.tools)
            turn.add("policy", prompt, reply, parsed)
            if parsed.calls and parsed.calls[0].name == tools.READ:
                read.append(parsed.calls[0].arguments["name"])
                skill = next(one for one in task.skills if one.name == read[-1])
                prompt = replace(prompt, tools=_tools_after(prompt, read))
                prompt = _answer_reading(prompt, skill, parsed.calls[0], room)
            elif parsed.calls or repairs == MAX_REPAIRS or not self._reads:
                return parsed, tuple(read)
            else:
                repairs += 1
                mended = _repair(prompt, reply, parsed)
                if sizing.spare([m.text for m in mended.messages], mended.tools, room) < 0:
                    return parsed, tuple(read)
                prompt = mended

    # --- doing ----------------------------------------------------------------------------

    async def _made(
        self, calls: Sequence[ToolCall], task: SearchTask, context: Context
    ) -> Candidate:
        """Raises RewriteError."""
        if calls[0].name == tools.WRITE:
            parent = context.parent.candidate if context.parent else None
            written = await self._workshop.write(str(calls[0].arguments["code"]), parent)
            if written.uses_triton and not task.triton:  # interpreted for minutes, and never timed
                raise RewriteError(
                    f"Triton kernels do not run on this {task.device}", "write PyTorch"
                )
            return written
        steps = chain_steps(_steps(context), calls)
        if len(steps) > MAX_CHAIN:
            raise RewriteError(
                f"that would be a chain of {len(steps)} skills", f"at most {MAX_CHAIN}"
            )
        skills = {str(call.arguments["skill"]) for call in calls}
        try:
            made = await self._workshop.apply(steps)
        except RewriteError as error:
            self._blame(skills, error)
            raise
        for skill in skills:
            self._failures.pop(skill, None)
        return made

    def _blame(self, skills: set[str], error: RewriteError) -> None:
        for skill in sorted(skills):
            self._failures[skill] += 1
            if self._failures[skill] == LOST_AFTER:
                text = (
                    f"skill {skill} failed {LOST_AFTER} times in a row and was left out of "
                    f"this search"
                )
                self.notes.append(f"{text}: {error}")


def chain_steps(before: Sequence[Step], calls: Sequence[ToolCall]) -> tuple[Step, ...]:
    """A step that is named again gets other parameters where it stands; another is added at the
    end."""
    steps = {(step.skill, step.site): step for step in before}
    for call in calls:
        arguments = call.arguments
        steps[arguments["skill"], arguments["site"]] = Step(
            skill=arguments["skill"],
            site=arguments["site"],
            parameters=dict(arguments["parameters"]),
        )
    return tuple(steps.values())


def _steps(context: Context) -> tuple[Step, ...]:
    """Of the parent; none when it was written by hand."""
    parent: Attempt | None = context.parent
    return parent.candidate.steps if parent and parent.candidate else ()


def _tools_after(prompt: Prompt, read: Sequence[str]) -> tuple[ToolSchema, ...]:
    """The prompt's tools when these skills were read; no further reading when that was the last."""
    kept = [tool for tool in prompt.tools if tool.name != tools.READ]
    unread = [name for name in _readable(prompt) if name not in read]
    may_read = bool(unread) and len(read) < MAX_READS
    return (*kept, tools.read_skill(unread)) if may_read else tuple(kept)


def _answer_reading(prompt: Prompt, skill: Skill, call: ToolCall, room: ExchangeLimits) -> Prompt:
    """The prompt after a skill was read: with its text, where there is room."""
    said = [message.text for message in prompt.messages]
    text = prompts.reference(skill)
    if sizing.spare([*said, text], prompt.tools, room) < 0:
        text = f"{skill.name}: {skill.description} (there is no room for its text)"
    answer = Message(role=Role.TOOL, text=text, call_id=call.id or None)
    asked = Message(role=Role.ASSISTANT, calls=(call,))
    return replace(prompt, messages=(*prompt.messages, asked, answer))


def _readable(prompt: Prompt) -> list[str]:
    offered = next(tool for tool in prompt.tools if tool.name == tools.READ)
    return list(offered.parameters["properties"]["name"]["enum"])


def _repair(prompt: Prompt, reply: Reply, parsed: Parsed) -> Prompt:
    problems = "\n".join(f"- {line(str(problem))}" for problem in parsed.problems)
    wanted = f"Answer again, with one call of: {tools.names(prompt.tools)}."
    text = f"That reply cannot be used:\n{problems}\n{wanted}"
    shown = harmless(reply.text[:SHOWN_REPLY]) or "(nothing)"
    said = (Message(role=Role.ASSISTANT, text=shown), Message(role=Role.USER, text=text))
    return replace(prompt, messages=(*prompt.messages, *said))


def _draft(turn: _Turn, candidate: Candidate | None = None, complaint: str = "") -> ProposedDraft:
    return ProposedDraft(
        candidate=candidate, complaint=complaint, exchanges=tuple(turn.exchanges), cost=turn.cost
    )
