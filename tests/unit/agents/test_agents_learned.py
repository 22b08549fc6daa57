"""Courses of a policy, against a scripted model and a small engine: likeliest first, then the
rule's."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import talks
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.agents.backbones.small.runtime import ChosenWord, ModelReply
from kernel_lsp.agents.learned import MAX_COURSES, LearnedPlanner
from kernel_lsp.agents.plan import Planner, RankedPlan
from kernel_lsp.agents.prompt_encoding import Dialog, Situation, grammar
from kernel_lsp.agents.prompt_encoding.value_model import PlanQuestion
from kernel_lsp.errors import BackboneError, RewriteError
from kernel_lsp.records import CallCost, Candidate, GraphView, Proof, Site, Step, Viewed

SOUND = (Proof(claim="it is sound", holds=True, because="test"),)
Weigh = Callable[[Any, Sequence[str], str], float]
"""(talk, words of the reply so far, word) -> how likely, in proportion."""


def site(skill: str, benefit: float = 0.5, **parameters: list[int]) -> Site:
    return Site(
        skill=skill,
        site=skill,
        summary="",
        proofs=SOUND,
        benefit=benefit,
        plain=False,
        parameters=parameters,
    )


A, B, C = site("a", BLOCK=[64, 128]), site("b"), site("c", 0.1)


class Engine:
    """Each step consumes its site; what is in ``broken`` is refused, ``unspoken`` cannot be
    written."""

    def __init__(self, sites: Sequence[Site], broken: str = "", unspoken: str = "") -> None:
        self.sites, self.broken, self.unspoken = sites, broken, unspoken

    async def view(self, steps: Sequence[Step]) -> Viewed:
        return Viewed(graph=GraphView(operations=()), sites=await self.look(steps))

    async def look(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        if any(step.skill in self.broken for step in steps):
            raise RewriteError("refused")
        done = {step.skill for step in steps}
        return tuple(s for s in self.sites if s.skill not in done)

    async def make(self, steps: Sequence[Step]) -> Candidate:
        if any(step.skill in self.unspoken for step in steps):
            raise RewriteError("cannot be written down")
        name = "+".join(
            step.skill + "".join(f":{v}" for v in step.parameters.values()) for step in steps
        )
        return Candidate(id=name, edit=None, program="", entry="M", steps=tuple(steps))


class Model:
    """Greedy among the valid words, by ``weigh``."""

    def __init__(self, weigh: Weigh, fails_after: int = 10**6) -> None:
        self.weigh, self.left = weigh, fails_after

    async def answer(self, talk: Dialog | PlanQuestion, among: grammar.GrammarNode) -> ModelReply:
        self.left -= 1
        if self.left < 0:
            raise BackboneError("the child was lost", "try later")
        words: list[str] = []
        choices, total = [], 0.0
        while among.branches:
            weights = [self.weigh(talk, words, word) for word in among.words]
            logs = [math.log(weight / sum(weights)) for weight in weights]
            best = logs.index(max(logs))
            if len(logs) > 1:
                choices.append(
                    ChosenWord(place=len(words), words=among.words, logprobs=tuple(logs))
                )
            total += logs[best]
            words.append(among.words[best])
            among = among.branches[words[-1]]
        return ModelReply(words=tuple(words), logprob=total, choices=tuple(choices), seconds=0.0)


def prefers(*order: str) -> Weigh:
    """Each word twice as likely as the next; others equal and last."""
    return lambda talk, words, word: 2.0 ** -(order.index(word) if word in order else len(order))


async def ranked_plans(
    engine: Engine, model: Model, told: list[str] | None = None, margin: float = 0.0
) -> list[RankedPlan]:
    planner = LearnedPlanner(
        Situation(graph=GraphView(operations=()), sites=tuple(engine.sites), device="cuda"),
        name="policy:test@1#0",
        answer=model.answer,
        view=engine.view,
        make=engine.make,
        rule=Planner(engine.make, engine.look),
        margin=margin,
        tell=(told if told is not None else []).append,
    )
    return [ranked_plan async for ranked_plan in planner.ranked_plans(engine.sites, triton=True)]


def ids(found: Sequence[RankedPlan], proposer: str = "policy:test@1#0") -> list[str]:
    return [
        ranked_plan.candidate.id
        for ranked_plan in found
        if ranked_plan.candidate.proposer == proposer
    ]


async def test_the_first_course_is_the_greedy_one() -> None:
    found = await ranked_plans(Engine([A, B, C]), Model(prefers("apply_skill", "@1", "@0", "p7")))
    assert found[0].candidate.id == "b+a:128+c"
    assert (
        [step.skill for step in found[0].steps]
        == [site.skill for site in found[0].sites]
        == list("bac")
    )


async def test_the_next_ones_differ_in_the_likeliest_words() -> None:
    def weigh(talk: Dialog, words: Sequence[str], word: str) -> float:
        table = {
            "@0": 0.6,
            "@1": 0.3,
            "@2": 0.1,
            "p6": 0.9,
            "p7": 0.1,
            "apply_skill": 0.2,
            "stop": 0.8,
        }
        return table.get(word, 1.0)

    found = ids(await ranked_plans(Engine([A, B, C]), Model(weigh)))
    # a:64 stop (0.6*0.9*0.8); then @1 instead (0.3); then another step after a:64 (0.6*0.9*0.2, of
    # b and c the likelier); 0.1 for @2 comes before 0.06 for p7.
    assert found == ["a:64", "b", "a:64+b", "c"]


async def test_the_model_reads_the_rules_course_before_it_answers() -> None:
    heard: list[str] = []

    def weigh(talk: Dialog, words: Sequence[str], word: str) -> float:
        heard.append(talk.text)
        return 1.0

    await ranked_plans(Engine([A, B]), Model(weigh))
    own = next(text for text in heard if "got" in text)
    assert (
        "apply_skill @0 BLOCK p6 . then gone @0 apply_skill @1 . then gone @1 stop . got right g- "
        in own
    )


async def test_told_how_its_course_did_it_suggests_another() -> None:
    """It likes b; told that b is 2x (g8) it would go on with c, told that b fails with a."""
    engine, heard = Engine([A, B, C]), list[str]()

    def weigh(talk: Dialog, words: Sequence[str], word: str) -> float:
        heard.append(talk.text)
        wanted = {"g8": ["@2", "stop"], "failed": ["@0", "p7", "stop"]}
        after = next(
            (order for mark, order in wanted.items() if mark in talk.words), ["@1", "stop"]
        )
        return prefers(*after)(talk, words, word)

    for speedup, told, expected in (
        (2.0, "stop . got right g8 ", "c"),
        (None, "stop . got failed ", "a:128"),
    ):
        planner = LearnedPlanner(
            Situation(graph=GraphView(operations=()), sites=(A, B, C), device="cuda"),
            name="policy",
            answer=Model(weigh).answer,
            view=engine.view,
            make=engine.make,
            rule=Planner(engine.make, engine.look),
            margin=100.0,
        )
        known = [ranked_plan async for ranked_plan in planner.ranked_plans([A, B, C], triton=True)]
        own = next(
            ranked_plan for ranked_plan in known if ranked_plan.candidate.proposer == "policy"
        )
        rules = next(
            ranked_plan for ranked_plan in known if ranked_plan.candidate.proposer == "plan/2"
        )
        assert own.candidate.id == "a:64+b+c"  # the margin holds it to the rule's
        assert await planner.again(rules, 1.5) is None  # that was not its own
        found = await planner.again(own, speedup)
        assert found is not None and found.candidate.id not in {
            ranked_plan.candidate.id for ranked_plan in known
        }
        assert found.steps[0].skill == expected[0] and told in heard[-1]


class Priced(Engine):
    """Each step of A saves host time; a course is told with what it would cost."""

    async def view(self, steps: Sequence[Step]) -> Viewed:
        host = 4e-5 / (1 + sum(step.skill == "a" for step in steps))
        cost = CallCost(host_s=host, device_s=1e-5, replayed_s=1e-5, launches=4 - len(steps))
        return replace(await super().view(steps), cost=cost)


async def weighed(
    engine: Engine, model: Model, told: list[str], margin: float = 0.0
) -> list[RankedPlan]:
    planner = LearnedPlanner(
        Situation(graph=GraphView(operations=()), sites=tuple(engine.sites), device="cuda"),
        name="policy",
        answer=model.answer,
        view=engine.view,
        make=engine.make,
        rule=Planner(engine.make, engine.look),
        margin=margin,
        weighs=True,
        tell=told.append,
    )
    return [ranked_plan async for ranked_plan in planner.ranked_plans(engine.sites, triton=True)]


async def test_a_model_that_weighs_puts_the_most_promising_of_the_rules_courses_first() -> None:
    def shorter(talk: Dialog | PlanQuestion, words: Sequence[str], word: str) -> float:
        """Expects more of a course the more launches it leaves: of a single step."""
        assert isinstance(talk, PlanQuestion)
        return 100.0 if word == f"g{talk.ranked_plan.cost.launches}" else 1.0

    told: list[str] = []
    rule = [
        ranked_plan
        async for ranked_plan in Planner(
            Engine([A, B, C]).make, Engine([A, B, C]).look
        ).ranked_plans([A, B, C], triton=True)
    ]
    found = await weighed(Priced([A, B, C]), Model(shorter), told)
    assert [ranked_plan.candidate.id for ranked_plan in rule][:2] == ["a:64+b+c", "a:64"]
    assert [ranked_plan.candidate.id for ranked_plan in found] == ["a:64", "b", "c", "a:64+b+c"]
    assert [ranked_plan.candidate.proposer for ranked_plan in found] == [
        "policy",
        "plan/2",
        "plan/2",
        "plan/2",
    ]
    # ln(gain) of 0.13 is more.
    sure = await weighed(Priced([A, B, C]), Model(shorter), told, margin=0.1)
    unsure = await weighed(Priced([A, B, C]), Model(shorter), told, margin=0.2)
    assert [ranked_plan.candidate.id for ranked_plan in sure] == ["a:64", "b", "c", "a:64+b+c"]
    assert [ranked_plan.candidate.id for ranked_plan in unsure] == ["a:64+b+c", "a:64", "b", "c"]
    assert {ranked_plan.candidate.proposer for ranked_plan in unsure} == {"plan/2"}
    alike = await weighed(Priced([A, B, C]), Model(lambda talk, words, word: 1.0), told)
    unknown = await weighed(Engine([A, B, C]), Model(shorter), told)  # an engine that tells no cost
    failing = await weighed(Priced([A, B, C]), Model(shorter, fails_after=2), told)
    for other in (alike, unknown, failing):
        assert [ranked_plan.candidate.id for ranked_plan in other] == [
            ranked_plan.candidate.id for ranked_plan in rule
        ]
    assert told == ["planned by the rule: the child was lost (try later)"]


async def test_it_leaves_the_rules_course_only_where_it_is_sure_enough() -> None:
    """The rule: a:64, b, c. The model finds b in place of a 1.5 times as likely (ln 0.41), then
    stops."""

    def weigh(talk: Dialog, words: Sequence[str], word: str) -> float:
        return {"@0": 0.4, "@1": 0.6, "@2": 0.01, "p6": 0.5, "p7": 0.6, "stop": 0.9}.get(word, 0.1)

    free = await ranked_plans(Engine([A, B, C]), Model(weigh))
    sure = await ranked_plans(Engine([A, B, C]), Model(weigh), margin=0.3)
    unsure = await ranked_plans(Engine([A, B, C]), Model(weigh), margin=0.5)
    never = await ranked_plans(Engine([A, B, C]), Model(weigh), margin=100.0)
    assert [found[0].candidate.id for found in (free, sure)] == ["b", "b"]
    # ln(0.6 / 0.5) for p7 is too little as well; ln 9 for stop is not.
    assert unsure[0].candidate.id == "a:64"
    assert never[0].candidate.id == "a:64+b+c"
    for found in (sure, unsure, never):
        assert len({ranked_plan.candidate.id for ranked_plan in found}) == len(found)


async def test_a_rule_whose_course_has_no_words_plans_alone() -> None:
    told: list[str] = []
    engine = Engine([A, B])
    planner = LearnedPlanner(
        Situation(graph=GraphView(operations=()), sites=(A, B), device="cuda"),
        name="policy",
        answer=Model(prefers("@1")).answer,
        view=engine.view,
        make=engine.make,
        rule=Planner(
            engine.make, engine.look, lambda site: {"BLOCK": 96}
        ),  # no choice of A's any more
        tell=told.append,
    )
    found = [ranked_plan async for ranked_plan in planner.ranked_plans([A, B], triton=True)]
    assert found[0].candidate.id == "a:96+b:96" and {
        ranked_plan.candidate.proposer for ranked_plan in found
    } == {"plan/2"}
    assert len(told) == 1 and "cannot be written" in told[0]


async def test_the_rule_follows_without_what_was_there() -> None:
    found = await ranked_plans(Engine([A, B, C]), Model(prefers("@2", "stop")))
    rule = ids(found, "plan/2")
    assert len(ids(found)) == MAX_COURSES
    assert "a:64+b+c" in rule
    assert len({ranked_plan.candidate.id for ranked_plan in found}) == len(found)


async def test_a_refused_step_is_passed_over() -> None:
    found = await ranked_plans(
        Engine([A, B, C], broken="b"), Model(prefers("@1", "@0", "stop", "@2"))
    )
    assert found[0].candidate.id == "a:64"
    assert not [ranked_plan for ranked_plan in found if "b" in ranked_plan.candidate.id]


async def test_what_cannot_be_written_down_loses_its_last_steps() -> None:
    found = await ranked_plans(
        Engine([A, B, C], unspoken="b"), Model(prefers("@0", "@1", "stop", "@2"))
    )
    assert found[0].candidate.id == "a:64"


async def test_a_model_that_fails_in_the_middle_leaves_the_rule_and_a_reason() -> None:
    for after in range(6):
        told: list[str] = []
        found = await ranked_plans(
            Engine([A, B, C]), Model(prefers("@1", "stop"), fails_after=after), told
        )
        assert ids(found, "plan/2")
        assert told == ["planned by the rule: the child was lost (try later)"]


async def test_parameters_that_won_before_count_more_than_the_models() -> None:
    engine = Engine([A])
    planner = LearnedPlanner(
        Situation(graph=GraphView(operations=()), sites=(A,), device="cuda"),
        name="policy",
        answer=Model(prefers("p6")).answer,
        view=engine.view,
        make=engine.make,
        rule=Planner(engine.make, engine.look),
        prefer=lambda site: {"BLOCK": 128},
    )
    found = [ranked_plan async for ranked_plan in planner.ranked_plans([A], triton=True)]
    assert found[0].steps[0].parameters == {"BLOCK": 128}


async def test_nothing_to_apply_is_no_course() -> None:
    assert await ranked_plans(Engine([]), Model(prefers())) == []


@given(st.integers(0, 10**6))
async def test_whatever_a_model_says_courses_are_sound_and_apart(seed: int) -> None:
    sites = talks.situation(seed).sites
    dice = random.Random(seed)
    model = Model(lambda talk, words, word: dice.random() + 1e-9, fails_after=dice.randrange(1, 60))
    engine = Engine(sites, broken=dice.choice(["", "cuda-graph"]))
    found = await ranked_plans(engine, model)
    assert len({ranked_plan.candidate.id for ranked_plan in found}) == len(found)
    for ranked_plan in found:
        for step, where in zip(ranked_plan.steps, ranked_plan.sites, strict=True):
            assert (step.skill, step.site) == (where.skill, where.site)
            assert all(step.parameters[name] in values for name, values in where.parameters.items())
