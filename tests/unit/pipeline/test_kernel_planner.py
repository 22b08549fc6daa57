"""Courses of a policy for Triton kernels, against a scripted model: the best of what is near the
rule's.

The last test is against a real kernel, opened as the engine opens it.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.agents.backbones.small.runtime import ChosenWord, ModelReply
from kernel_lsp.agents.kernel_planner import MAX_ASKED, KernelPlanner
from kernel_lsp.agents.plan import NAME, Planner, RankedPlan
from kernel_lsp.agents.prompt_encoding import value_model
from kernel_lsp.agents.prompt_encoding.launching import LaunchQuestion
from kernel_lsp.errors import BackboneError, RewriteError
from kernel_lsp.records import Candidate, Json, KernelView, Proof, Site, Step

SOUND = (Proof(claim="it is sound", holds=True, because="test"),)
POLICY = "policy:test@1#0"
Score = Callable[[KernelView], float]
"""State -> binary logarithm of how much faster it is."""


def site(skill: str, benefit: float, **parameters: list[int]) -> Site:
    return Site(
        skill=skill,
        site=skill,
        summary="",
        proofs=SOUND,
        benefit=benefit,
        plain=False,
        parameters=parameters,
    )


WARPS = site("warps", 0.5, num_warps=[4, 8, 16])
BLOCK = site("block", 0.3, BLOCK=[64, 128, 256])
HARM = site("harm", 0.2)


class Engine:
    """Steps whose parameters are the state. ``refuses``: states that it will not tell or make."""

    def __init__(
        self,
        *sites: Site,
        refuses: Callable[[Json], bool] = lambda state: False,
        unspoken: Callable[[Json], bool] = lambda state: False,
    ) -> None:
        self.sites, self.refuses, self.unspoken = sites, refuses, unspoken

    def state(self, steps: Sequence[Step]) -> Json:
        found: Json = {"steps": [step.skill for step in steps]}
        for step in steps:
            found |= step.parameters
        if self.refuses(found):
            raise RewriteError("refused")
        return found

    async def look(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        done = [step.skill for step in steps]
        return tuple(one for one in self.sites if one.skill not in done)

    async def launched(self, steps: Sequence[Step]) -> KernelView:
        state = self.state(steps)
        return KernelView(
            operations=("load", "store"),
            tensors=(),
            constants={"BLOCK": state.get("BLOCK", 64)},
            options={"num_warps": state.get("num_warps", 4)},
            programs=64,
            loaded=state.get("BLOCK", 64),
            consecutive=64,
            held=0,
            masked=1,
            evicting=state["steps"].count("harm"),
            ahead=1,
        )

    async def make(self, steps: Sequence[Step]) -> Candidate:
        state = {
            name: value for name, value in sorted(self.state(steps).items()) if name != "steps"
        }
        if self.unspoken(state):
            raise RewriteError("cannot be written down")
        name = " ".join(
            [*sorted(step.skill for step in steps), *(f"{k}={v}" for k, v in state.items())]
        )
        return Candidate(id=name, edit=None, program="", entry="M", steps=tuple(steps))


class Model:
    """Expects what it is told to, by whole eighths."""

    def __init__(self, score: Score, fails_after: int = 10**6) -> None:
        self.score, self.left, self.asked = score, fails_after, list[LaunchQuestion]()

    async def answer(self, asked: LaunchQuestion) -> ModelReply:
        self.left -= 1
        if self.left < 0:
            raise BackboneError("the child was lost", "try later")
        self.asked.append(asked)
        word = value_model.word(self.score(asked.after) * math.log(2))
        every = asked.offer.words
        logprobs = tuple(0.0 if one == word else -1000.0 for one in every)
        choice = ChosenWord(place=0, words=every, logprobs=logprobs)
        return ModelReply(words=(word,), logprob=0.0, choices=(choice,), seconds=0.0)


def warps(view: KernelView) -> float:
    """Eight are best, and fewer are better than more."""
    return {4: 0.5, 8: 1.0, 16: 0.0}[view.options["num_warps"]]


def harmed(view: KernelView) -> float:
    """Of a large block much, of what harms nothing."""
    return view.constants["BLOCK"] / 256 - 1.5 * view.evicting


async def ranked_plans(
    engine: Engine,
    model: Model,
    told: list[str] | None = None,
    margin: float = 0.0,
    known: Json | None = None,
) -> list[RankedPlan]:
    """``known``: parameters that won before, by skill."""

    def prefer(one: Site) -> Json | None:
        return (known or {}).get(one.skill)

    planner = KernelPlanner(
        name=POLICY,
        answer=model.answer,
        launched=engine.launched,
        make=engine.make,
        rule=Planner(engine.make, engine.look, prefer),
        capability="sm_90",
        margin=margin,
        prefer=prefer,
        tell=(told if told is not None else []).append,
    )
    found = [ranked_plan async for ranked_plan in planner.ranked_plans(engine.sites, triton=True)]
    assert len({ranked_plan.candidate.id for ranked_plan in found}) == len(found)
    return found


async def of_the_rule(engine: Engine) -> list[str]:
    rule = Planner(engine.make, engine.look)
    return [
        ranked_plan.candidate.id
        async for ranked_plan in rule.ranked_plans(engine.sites, triton=True)
    ]


def ids(found: Sequence[RankedPlan]) -> list[str]:
    return [ranked_plan.candidate.id for ranked_plan in found]


def proposers(found: Sequence[RankedPlan]) -> list[str]:
    return [ranked_plan.candidate.proposer for ranked_plan in found]


async def test_what_promises_most_comes_first_then_the_rules_first_then_the_others() -> None:
    engine = Engine(WARPS, BLOCK)
    found = await ranked_plans(
        engine, Model(lambda view: warps(view) + view.constants["BLOCK"] / 512)
    )
    assert ids(found) == [
        "block warps BLOCK=256 num_warps=8",
        "block warps BLOCK=64 num_warps=4",
        "warps num_warps=4",
        "block BLOCK=64",
    ]
    assert proposers(found) == [POLICY, NAME, NAME, NAME]
    assert [one.weighed for one in found] == [True, False, False, False]
    best = found[0]
    assert (
        [one.skill for one in best.sites]
        == [step.skill for step in best.steps]
        == ["warps", "block"]
    )
    assert best.sites[0].parameters == WARPS.parameters and best.places() == [0, 1]


async def test_the_rules_first_is_followed_by_its_others_in_order() -> None:
    model = Model(lambda view: float(-2 * view.evicting + view.constants["BLOCK"] / 256))
    found = await ranked_plans(Engine(HARM, BLOCK, WARPS), model)
    assert proposers(found) == [POLICY, POLICY, *[NAME] * (len(found) - 2)]
    assert [one.weighed for one in found] == [True, True, *[False] * (len(found) - 2)]
    best, carried, second, *others = ids(found)
    assert best == "block warps BLOCK=256 num_warps=4"
    assert carried == "block harm warps BLOCK=256 num_warps=4"
    assert second == "block harm warps BLOCK=64 num_warps=4"
    assert others == ["warps num_warps=4", "block BLOCK=64", "harm"]


async def test_what_is_best_already_stays_the_rules() -> None:
    engine = Engine(WARPS, BLOCK)
    found = await ranked_plans(engine, Model(lambda view: 0.0))
    assert ids(found) == await of_the_rule(engine)
    assert set(proposers(found)) == {NAME}


async def test_a_harmful_step_is_dropped_and_the_rest_is_tuned() -> None:
    found = await ranked_plans(
        Engine(WARPS, BLOCK, HARM), Model(lambda view: harmed(view) + warps(view))
    )
    assert ids(found)[0] == "block warps BLOCK=256 num_warps=8"
    assert (
        [step.skill for step in found[0].steps]
        == [one.skill for one in found[0].sites]
        == ["warps", "block"]
    )


async def test_several_steps_are_dropped_where_that_is_better_but_never_all() -> None:
    engine = Engine(*(site(f"harm{number}", 0.5) for number in range(3)))

    def fewer(view: KernelView) -> float:
        return -float(view.masked)

    async def launched(steps: Sequence[Step]) -> KernelView:
        view = await Engine.launched(engine, steps)
        return KernelView(
            **{name: getattr(view, name) for name in view.__slots__} | {"masked": len(steps)}
        )

    engine.launched = launched  # type: ignore[method-assign]
    found = await ranked_plans(engine, Model(fewer))
    assert ids(found)[0] in {"harm0", "harm1", "harm2"}


async def test_questions_about_both_states_are_bounded() -> None:
    many = [site(f"s{number}", 0.5, **{f"P{number}": list(range(9))}) for number in range(9)]
    model = Model(lambda view: 0.0)
    found = await ranked_plans(Engine(*many), model)
    assert len(model.asked) == MAX_ASKED
    assert len(found) == 1 + len(many)
    assert {one.before.options["num_warps"] for one in model.asked} == {4}
    assert {one.capability for one in model.asked} == {"sm_90"}


async def test_no_state_is_asked_about_twice() -> None:
    model = Model(lambda view: harmed(view) + warps(view))
    await ranked_plans(Engine(WARPS, BLOCK, HARM), model)
    # 4 courses of the rule; 3 shorter than its first (2 shorter than that are courses); 2 and 2
    # choices
    assert len(model.asked) == 4 + 3 + 2 + 2


async def test_a_combination_that_the_engine_refuses_is_passed_over() -> None:
    model = Model(lambda view: view.options["num_warps"] / 16)
    found = await ranked_plans(
        Engine(WARPS, refuses=lambda state: state.get("num_warps") == 16), model
    )
    assert ids(found) == ["warps num_warps=8", "warps num_warps=4"]


async def test_what_cannot_be_written_down_is_passed_over() -> None:
    model = Model(lambda view: view.options["num_warps"] / 16)
    found = await ranked_plans(
        Engine(WARPS, unspoken=lambda state: state.get("num_warps") == 16), model
    )
    assert ids(found) == ["warps num_warps=4"] and proposers(found) == [NAME]


async def test_the_rules_first_is_the_second_even_where_its_state_cannot_be_told() -> None:
    engine = Engine(WARPS, BLOCK)

    async def launched(steps: Sequence[Step]) -> KernelView:
        if len(steps) == 2:
            raise RewriteError("another kernel is launched")
        return await Engine.launched(engine, steps)

    engine.launched = launched  # type: ignore[method-assign]
    found = await ranked_plans(engine, Model(warps))
    assert ids(found) == [
        "warps num_warps=8",
        "block warps BLOCK=64 num_warps=8",
        "block warps BLOCK=64 num_warps=4",
        "warps num_warps=4",
        "block BLOCK=64",
    ]


@pytest.mark.parametrize("refused", [0, 1])
async def test_where_no_state_can_be_told_the_rules_order_stays(refused: int) -> None:
    """``refused``: from how many steps on."""
    engine, model = Engine(WARPS, BLOCK), Model(warps)

    async def launched(steps: Sequence[Step]) -> KernelView:
        if len(steps) >= refused:
            raise RewriteError("what it launches follows from data")
        return await Engine.launched(engine, steps)

    engine.launched = launched  # type: ignore[method-assign]
    found = await ranked_plans(engine, model)
    assert ids(found) == await of_the_rule(engine) and not model.asked


@pytest.mark.parametrize("answers", [0, 3, 5])
async def test_a_model_that_fails_leaves_the_rule_and_a_reason(answers: int) -> None:
    engine, told = Engine(WARPS, BLOCK, HARM), list[str]()
    found = await ranked_plans(engine, Model(harmed, fails_after=answers), told)
    assert ids(found) == await of_the_rule(engine)
    assert set(proposers(found)) == {NAME}
    assert len(told) == 1 and told[0].startswith("planned by the rule: the child was lost")


async def test_the_rules_first_is_left_for_a_margin_alone() -> None:
    engine = Engine(WARPS, BLOCK)
    for margin, first in ((0.3, POLICY), (0.4, NAME)):  # eight warps promise ln(2) / 2 = 0.35 more
        found = await ranked_plans(engine, Model(warps), margin=margin)
        assert found[0].candidate.proposer == first
        assert POLICY in proposers(found) and "block warps BLOCK=64 num_warps=8" in ids(found)


async def test_parameters_that_won_before_are_not_searched() -> None:
    model = Model(lambda view: (view.options["num_warps"] == 8) + view.constants["BLOCK"] / 256)
    found = await ranked_plans(Engine(WARPS, BLOCK), model, known={"warps": {"num_warps": 16}})
    assert ids(found)[0] == "block warps BLOCK=256 num_warps=16"


async def test_of_equals_the_rules_choice_stays() -> None:
    found = await ranked_plans(
        Engine(WARPS, BLOCK), Model(lambda view: view.constants["BLOCK"] / 256)
    )
    assert ids(found)[0] == "block warps BLOCK=256 num_warps=4"


async def test_without_courses_nothing_is_asked() -> None:
    model = Model(warps)
    assert await ranked_plans(Engine(refuses=lambda state: True), model) == [] and not model.asked


# --- a real kernel -----------------------------------------------------------------------------

GOLDEN = Path(__file__).resolve().parents[2] / "cases" / "golden"


@pytest.mark.torch
async def test_a_real_kernel_comes_out_as_the_model_wants_it() -> None:
    """What is chosen is in the text, by steps that the engine has proved; told is what is
    launched."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    session = opened("rms_norm_kernel", "eviction", "launch-options", "block-size")
    model = Model(lambda view: view.options.get("num_warps", 4) / 32 - 1.0 * view.evicting)
    first, *others = await planned(session, model)
    assert {one.before.options.get("num_warps") for one in model.asked} == {None}
    assert "num_warps=32" in first.candidate.program and "evict" not in first.candidate.program
    assert [one.skill for one in first.sites] == [step.skill for step in first.candidate.steps]
    assert {step.skill for step in first.steps} == {"triton-launch-options", "triton-block-size"}
    carried, *others = others
    assert first.candidate.proposer == carried.candidate.proposer == POLICY
    assert {one.candidate.proposer for one in others} == {NAME}
    assert "num_warps=32" in carried.candidate.program and "evict" in carried.candidate.program
    promises = ["evict" not in one.candidate.program for one in others[1:]]
    assert promises == sorted(promises, reverse=True) and not promises[-1]
    assert first.candidate.proofs and all(proof.holds for proof in first.candidate.proofs)


def opened(kernel: str, name: str, *more: str) -> Any:
    from rewrite_helpers import skill

    from kernel_lsp.pipeline.prepare import PreparedJob, prepare
    from kernel_lsp.records import Job
    from kernel_lsp.rewrite.kernels.session import KernelSession

    text = (GOLDEN / f"triton-{name}.in.py").read_text()
    made = prepare(Job(text=text, path="/w/kernels.py", qualname=kernel, device="cuda"))
    assert isinstance(made, PreparedJob), made
    skills = [skill(f"triton-{one}") for one in (name, *more)]
    return KernelSession(made.program, made.workload, "cuda", skills)


async def planned(session: Any, model: Model) -> list[RankedPlan]:
    def asked(question: Callable[[list[Step]], Any]) -> Callable[[Sequence[Step]], Awaitable[Any]]:
        async def answer(steps: Sequence[Step]) -> Any:
            return question(list(steps))

        return answer

    make = asked(session.make)
    planner = KernelPlanner(
        name=POLICY,
        answer=model.answer,
        launched=asked(session.launched),
        make=make,
        rule=Planner(make, asked(session.look)),
        capability="sm_90",
    )
    return [
        ranked_plan
        async for ranked_plan in planner.ranked_plans(session.capture().sites, triton=True)
    ]
