"""A recorded table as the agents see it: what is asked, what a reply does, what the next turn
reads.

A rollout starts from a task's plan with default parameters. The selection agent chooses among
the plan's skills and others that do not apply; policy turns each set the parameters of one step
whose skill was chosen (naming a step again changes it, as in the product); a summary says which
value of a skill's parameter paid. Selections and applications are the product's own calls
(agents/tools.py), a summary's draft is one value instead of a whole text; prompts are short, since
a model of a million parameters reads them. Not covered: verdicts (judging.py), sampling, programs:
a live task has an engine instead of a table."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from kernel_lsp.agents.tools import APPLY, MAX_SELECTED, SELECT, UPDATE
from kernel_lsp.records import Json, Message, Role, Step, ToolCall
from kernel_lsp.search.space import Point
from trainer.records import TurnOutcome
from trainer.rollouts.generation import MAX_CHOICES, Ask
from trainer.rollouts.parents import StoredParent
from trainer.tasks.spaces import RecordedSpace

OFFERED = 6
"""Skills that are recalled for a task: its own, filled up with others."""
SHOWN = 3
"""Attempts that a policy prompt tells, the newest last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldState:
    """One rollout so far."""

    task: str
    skills: tuple[str, ...] | None
    """Chosen ones; None: the null scheme, in which every step may be named."""
    point: Point
    """Where the next turn goes on: the best so far, else the start."""
    speedup: float | None = None
    """Of ``point``; None: not judged yet."""
    tried: tuple[tuple[Point, TurnOutcome], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """A draft of the summary agent: what it says to do from now on."""

    skill: str
    parameter: str
    value: Any


class TableWorld:
    """Every task of some spaces."""

    def __init__(self, spaces: Sequence[RecordedSpace]) -> None:
        self.spaces = {space.name: space for space in spaces}
        self._skills = sorted({step.skill for space in spaces for step in space.steps})

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks of the table."""
        return tuple(self.spaces)

    def texts(self) -> list[str]:
        """What a vocabulary is trained on: every kind of prompt and reply, in the order of the
        tasks."""
        found: list[str] = []
        for name, space in self.spaces.items():
            asks = [self.selection(name)]
            policy = self.policy(WorldState(task=name, skills=None, point=space.default))
            for ask in [*asks, *([policy] if policy else [])]:
                found += [message.text for message in ask.messages]
                found += list(ask.choices or ())[:64]
        return found

    # --- selection --------------------------------------------------------------------------------

    def offered(self, task: str) -> tuple[str, ...]:
        """The task's own skills among others, in an order that tells nothing."""
        own = list(dict.fromkeys(step.skill for step in self.spaces[task].steps))
        draw = random.Random(task)
        others = [skill for skill in self._skills if skill not in own]
        names = own + draw.sample(others, min(len(others), max(0, OFFERED - len(own))))
        draw.shuffle(names)
        return tuple(names)

    def selection(self, task: str) -> Ask:
        """The question which skills a rollout of the task may use."""
        names = self.offered(task)
        picked = [
            subset for count in range(MAX_SELECTED + 1) for subset in combinations(names, count)
        ]
        body = [*self._facts(task), *(f"skill {name}" for name in names)]
        return _ask("select", body, [select_call(subset) for subset in picked])

    def selected(self, reply: str) -> tuple[ToolCall, tuple[str, ...]]:
        """The call of a reply to `selection`, and the skills that it names."""
        call = read_call(reply)
        return call, tuple(one["name"] for one in call.arguments["selected_skills"])

    # --- policy -----------------------------------------------------------------------------------

    def begin(self, task: str, skills: Sequence[str] | None) -> WorldState:
        """The state in which a rollout begins: all parameters at their defaults."""
        point = self.spaces[task].default
        return WorldState(task=task, skills=None if skills is None else tuple(skills), point=point)

    def begin_at(self, parent: StoredParent) -> WorldState | None:
        """From a stored parent; None: the table does not hold it."""
        space = self.spaces.get(parent.task)
        point = space.point(parent.steps) if space is not None else None
        if space is None or point is None or point not in space.times:
            return None
        return WorldState(
            task=parent.task,
            skills=None,
            point=point,
            speedup=space.speedup(point),
            tried=((point, parent.outcome),),
        )

    def policy(self, state: WorldState) -> Ask | None:
        """None: none of the chosen skills applies, so there is no call to make."""
        space = self.spaces[state.task]
        steps = [
            place
            for place, step in enumerate(space.steps)
            if state.skills is None or step.skill in state.skills
        ]
        calls = [call for place in steps for call in _calls(space, place, state.point)]
        if not calls:
            return None
        body = [*self._facts(state.task)]
        body += [_site(space, place) for place in steps]
        body += [
            _describe_outcome(space, point, outcome) for point, outcome in state.tried[-SHOWN:]
        ]
        body.append(f"now {_values(space, state.point)}")
        return _ask("apply", body, calls[:MAX_CHOICES])

    def applied(self, state: WorldState, reply: str) -> tuple[ToolCall, tuple[Step, ...]]:
        """The call, and the whole plan after it."""
        call = read_call(reply)
        space = self.spaces[state.task]
        steps = list(space.at(state.point))
        for place, step in enumerate(steps):
            if (step.skill, step.site) == (call.arguments["skill"], call.arguments["site"]):
                merged = {**step.parameters, **call.arguments["parameters"]}
                steps[place] = replace(step, parameters=merged)
        return call, tuple(steps)

    def after(self, state: WorldState, steps: Sequence[Step], outcome: TurnOutcome) -> WorldState:
        """Goes on from the best point so far, as a search does."""
        space = self.spaces[state.task]
        point = space.point(steps)
        if point is None:
            return state
        tried = (*state.tried, (point, outcome))
        speedup = outcome.speedup.mid if outcome.speedup else None
        if speedup is not None and speedup > (state.speedup or 0.0):
            return replace(state, point=point, speedup=speedup, tried=tried)
        return replace(state, tried=tried)

    # --- summary ----------------------------------------------------------------------------------

    def summary(self, state: WorldState) -> Ask | None:
        """What of the best attempt differs from the start; None: nothing does."""
        space = self.spaces[state.task]
        changed = [
            Advice(
                skill=space.steps[axis.step].skill, parameter=axis.name, value=axis.choices[place]
            )
            for axis, place in zip(space.axes, state.point, strict=True)
            if place != 0
        ]
        if not changed:
            return None
        body = [
            *self._facts(state.task),
            *(_describe_outcome(space, *one) for one in state.tried[-SHOWN:]),
        ]
        body.append(f"best {_values(space, state.point)}")
        drafts: list[tuple[Advice, ...]] = [(), *((one,) for one in changed)]
        return _ask("learn", body, [update_call(draft) for draft in drafts])

    def advised(self, reply: str) -> tuple[ToolCall, tuple[Advice, ...]]:
        """The call of a summary, and which value of which parameter it recommends."""
        call = read_call(reply)
        drafts = []
        for skill in call.arguments["new_skills"]:
            data = json.loads(skill["content"])
            drafts.append(
                Advice(skill=data["skill"], parameter=data["parameter"], value=data["value"])
            )
        return call, tuple(drafts)

    def uplifts(self, advice: Advice, source: str, among: Sequence[str]) -> list[float]:
        """ln(speedup with / without) on every *other* task where the advice can be followed,
        paired.

        A task on which following it does not run counts as if it had halved the speed.
        """
        found = []
        for name in among:
            space = self.spaces[name]
            axes = [
                place
                for place, axis in enumerate(space.axes)
                if space.steps[axis.step].skill == advice.skill
                and axis.name == advice.parameter
                and advice.value in axis.choices
            ]
            without = space.speedup(space.default)
            if name == source or not axes or without is None:
                continue
            point = list(space.default)
            for place in axes:
                point[place] = space.axes[place].choices.index(advice.value)
            with_it = space.speedup(tuple(point))
            found.append(math.log(with_it / without) if with_it else math.log(0.5))
        return found

    def _facts(self, task: str) -> list[str]:
        space = self.spaces[task]
        return [f"device {space.device}", *space.facts]


# --- calls ----------------------------------------------------------------------------------------


def select_call(names: Sequence[str]) -> str:
    """The reply that selects these skills."""
    return _call(
        SELECT, {"think": "", "selected_skills": [{"name": name, "reason": ""} for name in names]}
    )


def apply_call(step: Step) -> str:
    """The reply that applies a skill."""
    return _call(APPLY, {"skill": step.skill, "site": step.site, "parameters": step.parameters})


def update_call(advice: Sequence[Advice]) -> str:
    """The reply of a summary that recommends these values."""
    drafts = [
        {
            "name": f"{one.skill}-{one.parameter.lower()}-{one.value}",
            "content": json.dumps(
                {"skill": one.skill, "parameter": one.parameter, "value": one.value},
                separators=(",", ":"),
            ),
        }
        for one in advice
    ]
    return _call(UPDATE, {"new_skills": drafts})


def read_call(reply: str) -> ToolCall:
    """The call that a reply is. Raises what JSON raises, and KeyError."""
    data = json.loads(reply)
    return ToolCall(name=data["name"], arguments=data["arguments"])


def _call(name: str, arguments: Json) -> str:
    return json.dumps({"name": name, "arguments": arguments}, separators=(",", ":"))


def _calls(space: RecordedSpace, place: int, point: Point) -> list[str]:
    """Every setting of one step's parameters, in the order of its axes."""
    own = [axis for axis in space.axes if axis.step == place]
    step = space.at(point)[place]
    return [
        apply_call(
            replace(step, parameters=dict(zip((axis.name for axis in own), values, strict=True)))
        )
        for values in product(*(axis.choices for axis in own))
        if own
    ]


def _site(space: RecordedSpace, place: int) -> str:
    step = space.steps[place]
    choices = [
        f"{axis.name} {'|'.join(map(str, axis.choices))}"
        for axis in space.axes
        if axis.step == place
    ]
    return f"{step.skill} at {step.site}: {' '.join(choices)}"


def _values(space: RecordedSpace, point: Point) -> str:
    return " ".join(
        f"{axis.name} {axis.choices[place]}" for axis, place in zip(space.axes, point, strict=True)
    )


def _describe_outcome(space: RecordedSpace, point: Point, outcome: TurnOutcome) -> str:
    result = f"{outcome.speedup.mid:.2f}x" if outcome.speedup else outcome.status.value
    return f"tried {_values(space, point)}: {result}"


def _ask(role: str, body: Sequence[str], choices: Sequence[str]) -> Ask:
    messages = (
        Message(role=Role.SYSTEM, text=role),
        Message(role=Role.USER, text="\n".join(body)),
    )
    return Ask(messages=messages, choices=tuple(dict.fromkeys(choices)))
