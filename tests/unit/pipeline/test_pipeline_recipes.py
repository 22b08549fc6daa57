"""A recipe's steps find their sites in another program, in order, or the recipe does not apply."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.agents.plan import RankedPlan
from kernel_lsp.errors import RewriteError
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline import recipes
from kernel_lsp.records import (
    Candidate,
    Proof,
    RecipeStep,
    Requirements,
    Site,
    Skill,
    SkillMatch,
    Step,
)


def site(
    skill: str, label: str, benefit: float = 0.1, *, holds: bool = True, plain: bool = True
) -> Site:
    return Site(
        skill=skill,
        site=label,
        summary="",
        proofs=(Proof(claim="c", holds=holds, because="b"),),
        parameters={"warps": [4, 8]} if skill == "fuse" else {},
        benefit=benefit,
        plain=plain,
    )


PROGRAM = (
    site("fuse", "linear+relu", 0.1),
    site("fuse", "linear_1+gelu", 0.3),
    site("fuse", "add+mul", 0.9),
    site("fuse", "linear_2", 0.8, holds=False),
    site("tidy", "x", 0.2),
)


async def look(steps: Sequence[Step]) -> tuple[Site, ...]:
    """What was taken is gone; after a fusion of gelu there is one more."""
    done = {(step.skill, step.site) for step in steps}
    more = (site("late", "softmax"),) if ("fuse", "linear_1+gelu") in done else ()
    return tuple(one for one in (*PROGRAM, *more) if (one.skill, one.site) not in done)


async def placed(*steps: RecipeStep, triton: bool = True) -> list[tuple[str, str, object]] | None:
    found = await recipes.place(steps, PROGRAM, look, triton=triton)
    return (
        None
        if found is None
        else [(s.skill, s.site, s.parameters.get("warps")) for s in found.steps]
    )


LINEAR = RecipeStep(skill="fuse", covers=("linear",), parameters={"warps": 8})


async def test_a_step_takes_the_site_of_its_kind_that_saves_most() -> None:
    assert await placed(LINEAR) == [("fuse", "linear_1+gelu", 8)]


async def test_every_takes_them_all_and_the_next_step_sees_what_that_has_left() -> None:
    every = RecipeStep(skill="fuse", covers=("linear",), parameters={"warps": 8}, every=True)
    late = RecipeStep(skill="late", covers=("softmax",))
    assert await placed(every, late) == [
        ("fuse", "linear_1+gelu", 8),
        ("fuse", "linear+relu", 8),
        ("late", "softmax", None),
    ]


async def test_a_step_without_a_site_means_that_it_does_not_apply() -> None:
    assert await placed(LINEAR, RecipeStep(skill="fuse", covers=("conv2d",))) is None
    assert await placed(RecipeStep(skill="late")) is None


async def test_what_is_not_offered_there_stays_the_default() -> None:
    assert await placed(RecipeStep(skill="fuse", parameters={"warps": 32})) == [
        ("fuse", "add+mul", 4)
    ]


async def test_a_site_that_the_engine_takes_back_is_passed_over() -> None:
    async def fails(steps: Sequence[Step]) -> tuple[Site, ...]:
        if steps[-1].site == "linear_1+gelu":
            raise RewriteError("gone")
        return await look(steps)

    found = await recipes.place([LINEAR], PROGRAM, fails, triton=True)
    assert found is not None and [step.site for step in found.steps] == ["linear+relu"]


@pytest.mark.parametrize(("triton", "applies"), [(True, True), (False, False)])
async def test_kernels_only_where_they_run(triton: bool, applies: bool) -> None:
    kernel = (site("kernel", "softmax", plain=False),)
    found = await recipes.place([RecipeStep(skill="kernel")], kernel, look, triton=triton)
    assert (found is not None) == applies


# --- in a job -----------------------------------------------------------------------------


def ranked_plan(name: str) -> RankedPlan:
    return RankedPlan(
        candidate=Candidate(id=name, edit=None, program="", entry="Model"), sites=(), steps=()
    )


async def planned(*names: str) -> AsyncIterator[RankedPlan]:
    for name in names:
        yield ranked_plan(name)


def learned(name: str, **more: Any) -> Skill:
    steps = (RecipeStep(skill="fuse", covers=("linear",)),)
    facts: dict[str, Any] = {"source": "learned", "recipe": steps, "executable": False, **more}
    return Skill(
        name=name, description="", scope="graph", tags=("a",), version=1, body="", path="", **facts
    )


def job(*skills: Skill, policy: object = None) -> Any:
    async def make(steps: Sequence[Step]) -> Candidate:
        return ranked_plan("+".join(step.site for step in steps)).candidate

    return SimpleNamespace(
        bench=SimpleNamespace(
            device="cuda",
            policy=policy,
            probe=Probe(python="python", torch="2.11.0", triton="3.6.0", capability="sm_90"),
            skills=SimpleNamespace(skills=skills),
        ),
        capture=SimpleNamespace(inputs=()),
        matches=(SkillMatch(skill="b", score=1.0, words=()),),
        known=SimpleNamespace(best=lambda site: None),
        sites=PROGRAM,
        engine=SimpleNamespace(look=look, make=make, weigh=None),
    )


async def offered(one: Any) -> list[tuple[str, str]]:
    found = recipes.ranked_plans(one, planned("p1", "p2", "linear_1+gelu"))
    return [(made.candidate.id, made.candidate.proposer) async for made in found]


async def test_verified_recipes_come_before_the_rule_and_nothing_comes_twice() -> None:
    told = await offered(job(learned("a")))
    assert told == [("linear_1+gelu", "recipe:a"), ("p1", "plan"), ("p2", "plan")]


async def test_a_trained_policy_keeps_the_first_place() -> None:
    told = await offered(job(learned("a"), policy="model"))
    assert told[:2] == [("p1", "plan"), ("linear_1+gelu", "recipe:a")]


@pytest.mark.parametrize(
    "skill",
    [
        learned("a", requires=Requirements(architectures=("sm_80",))),
        learned("a", source="workspace"),
        learned("a", recipe=()),
        learned("a", recipe=(RecipeStep(skill="gone"),)),
    ],
    ids=["elsewhere", "unverified", "text", "no-site"],
)
async def test_what_does_not_fit_takes_no_part(skill: Skill) -> None:
    assert [name for name, _ in await offered(job(skill))] == ["p1", "p2", "linear_1+gelu"]


PLANNED = RecipeStep(skill="fuse", covers=("linear",), parameters={"warps": 8}, planned=True)


async def test_what_is_planned_keeps_its_order_and_gets_the_parameters_of_the_skill() -> None:
    found = await recipes.ranked_plan_of(learned("a", recipe=(PLANNED,)), job())
    assert found is not None and found.candidate.proposer == "recipe:a"
    assert [(step.site, step.parameters.get("warps")) for step in found.steps] == [
        ("add+mul", 4),  # no linear: as it is planned
        ("linear_1+gelu", 8),
        ("x", None),
        ("linear+relu", 8),
        ("softmax", None),
    ]


async def test_parameters_that_won_here_before_count_where_the_skill_says_nothing() -> None:
    found = await recipes.ranked_plan_of(
        learned("a", recipe=(PLANNED,)),
        job(),
        lambda site: {"warps": 8} if site.parameters else None,
    )
    assert found is not None and {step.parameters.get("warps") for step in found.steps} == {8, None}


@pytest.mark.parametrize(
    "step", [replace(PLANNED, covers=("conv2d",)), replace(PLANNED, skill="none")]
)
async def test_where_no_such_step_is_planned_it_does_not_apply(step: RecipeStep) -> None:
    assert await recipes.ranked_plan_of(learned("a", recipe=(step,)), job()) is None


@pytest.mark.parametrize(
    ("asked", "applies"),
    [
        (Requirements(planned=("fuse",)), True),
        (Requirements(planned=("fuse", "tidy"), unplanned=("graph",)), True),
        (Requirements(planned=("conv",)), False),
        (Requirements(unplanned=("fuse",)), False),
    ],
)
async def test_what_was_shown_instead_of_a_skill_applies_where_that_is_planned(
    asked: Requirements, applies: bool
) -> None:
    found = await recipes.ranked_plan_of(learned("a", recipe=(LINEAR,), requires=asked), job())
    assert (found is not None) == applies


def test_at_most_a_few_the_best_matching_first() -> None:
    names = [skill.name for skill in recipes.fitting(job(learned("a"), learned("b"), learned("c")))]
    assert names == ["b", "a", "c"] and recipes.MAX_LEARNED_PLANS == 2
