"""Drafts that are turned down before anything is measured, each with a reason."""

from dataclasses import replace
from typing import Any

import pytest
from library_helpers import ROWS, lesson, seen

from kernel_lsp import skillbook
from kernel_lsp.agents import summary, summary_rule
from kernel_lsp.library import admission
from kernel_lsp.records import Bounds, Skill, SkillDraft, Step

BUILT_IN = skillbook.load([skillbook.built_in_folder()])


def as_draft(skill: Skill, name: str = "another-name") -> SkillDraft:
    return SkillDraft(
        name=name,
        description=skill.description,
        scope=skill.scope,
        tags=skill.tags,
        content=skill.body,
    )


def learned(draft: SkillDraft) -> Skill:
    return Skill(
        name=draft.name,
        description=draft.description,
        scope=draft.scope,
        tags=draft.tags,
        version=1,
        body=draft.content,
        path="",
        executable=False,
        source="learned",
        recipe=draft.recipe,
    )


@pytest.mark.parametrize("skill", BUILT_IN.skills, ids=lambda skill: skill.name)
def test_a_text_that_repeats_a_skill_is_found_and_no_other_built_in_one_is_taken_for_it(
    skill: Skill,
) -> None:
    found = list(admission.faults(as_draft(skill), BUILT_IN.skills))
    assert found == [f"says what {skill.name} says"]
    others = [one for one in BUILT_IN.skills if one.name != skill.name]
    assert list(admission.faults(as_draft(skill), others)) == []


def test_a_recipe_with_the_same_steps_on_the_same_sites_is_a_duplicate_whatever_its_name() -> None:
    draft = lesson("linear_3+relu_1").draft
    assert draft.name == lesson("linear+gelu").draft.name
    twin = learned(replace(draft, name="other-words"))
    assert list(admission.faults(draft, [twin])) == [
        "takes the steps of other-words to the same sites"
    ]
    other = lesson("linear", {"warps": 4}).draft
    assert list(admission.faults(other, [twin])) == []


@pytest.mark.parametrize(
    ("advice", "reason"),
    [
        ("Split the 1024 columns in halves.", "names a size of its task (1024)"),
        ("Use 1_024 threads.", "names a size of its task (1024)"),
        ("Make WideHead contiguous.", "names its task's class (WideHead)"),
        ("Use 8 warps and 128 columns.", None),
    ],
)
def test_constants_of_one_task(advice: str, reason: str | None) -> None:
    content = (
        f"## Motivation\n\nx\n\n## Key Idea\n\n{advice}\n\n## Example\n\n```\n1024\n```\n\n## "
        f"Pitfalls\n\nx\n"
    )
    draft = SkillDraft(
        name="split", description="Split rows", scope="graph", tags=("a",), content=content
    )
    found = list(admission.faults(draft, [], [ROWS], "WideHead.forward"))
    assert [one[: len(reason)] for one in found] == [reason] if reason else found == []


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            [Step(skill="compile-target", site="x", parameters={"mode": "default"})],
            "advises a compiler",
        ),
        ([Step(skill="remove-dead-work", site="dropout")], "advises skipped work"),
        (
            [Step(skill="fused-norm", site="layer_norm")],
            "is what the skill fused-norm does by itself",
        ),
        (
            [Step(skill="fused-norm", site="layer_norm", parameters={"precision": "bf16"})],
            "does by itself",
        ),
    ],
)
def test_lazy_recipes_are_refused(steps: list[Step], reason: str) -> None:
    draft = summary_rule.draft(steps, seen())
    assert draft is not None and any(reason in fault for fault in summary_rule.faults(draft))


@pytest.mark.parametrize(
    ("changes", "twice"),
    [
        ({}, True),
        ({"elements": Bounds(least=1, most=2**14)}, False),
        ({"dtypes": ("bfloat16",)}, False),
        ({"dtypes": ("bfloat16", "float32")}, True),
        ({"planned": ("fused-matmul",)}, False),
    ],
)
def test_the_same_steps_for_other_programs_are_no_duplicate(
    changes: dict[str, Any], twice: bool
) -> None:
    draft = lesson().draft
    assert draft.requires is not None  # 2^20 elements of float32, a factor of sixteen around
    known = replace(draft.requires, **changes)
    skill = Skill(
        name="x", description="", scope="graph", tags=("a",), version=1, body="", path="",
        executable=False,
        requires=known, recipe=draft.recipe,
    )  # fmt: skip
    assert any("takes the steps of x" in one for one in admission.faults(draft, [skill])) == twice


def test_one_step_alone_is_news_where_more_had_been_suggested() -> None:
    alone = summary_rule.draft([Step(skill="cuda-graph", site="x")], seen())
    lazy = summary_rule.draft([Step(skill="compile-target", site="x")], seen())
    first = [Step(skill="fused-pointwise", site="add"), Step(skill="cuda-graph", site="x")]
    assert alone is not None and lazy is not None
    assert list(summary_rule.faults(alone)) and not list(summary_rule.faults(alone, first))
    assert list(summary_rule.faults(lazy, first))


def test_what_the_rule_writes_passes_what_a_model_has_to_pass() -> None:
    draft = lesson().draft
    assert not list(summary.faults(draft, set())) and not list(summary_rule.faults(draft))
    assert not list(admission.faults(draft, BUILT_IN.skills, [ROWS], "Net"))
