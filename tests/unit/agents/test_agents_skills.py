"""Selection and summary: what is asked, what of a reply counts, and which advice is turned down."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agents_helpers import call, reply
from prompts_helpers import ARMS, TURNS, attempt, task

from kernel_lsp import skillbook
from kernel_lsp.agents import selection, summary
from kernel_lsp.agents.backbones.plan import PlanBackbone
from kernel_lsp.records import (
    Attempt,
    Finish,
    ModelInfo,
    OnText,
    Prompt,
    Reply,
    Report,
    SkillDraft,
    Usage,
)
from kernel_lsp.skillbook import format as skill_format

GOOD = """\
## Motivation

Rows are read twice.

## Key Idea

Keep the row in registers. Do not lower precision, and never skip a reduction.

## Example

```python
x = tl.load(p)  # falls back to torch.compile, in a comment
```

## Pitfalls

- Using cuBLAS here would read the rows again.
"""


class Scripted:
    """A backbone that gives one answer, for the faults that a real one seldom has."""

    def __init__(self, answer: Reply, context_tokens: int = 32_768) -> None:
        self.answer, self.asked = answer, list[Prompt]()
        self._info = ModelInfo(backbone="scripted", model="m", context_tokens=context_tokens)

    async def open(self, report: Report) -> ModelInfo:
        return self._info

    async def count(self, prompt: Prompt) -> int:
        return 0

    async def reply(self, prompt: Prompt, on_text: OnText | None = None) -> Reply:
        self.asked.append(prompt)
        return self.answer

    async def close(self) -> None:
        return None


def picks(*names: str) -> Reply:
    return reply(
        "",
        call("select_skills", think="", selected_skills=[{"name": n, "reason": ""} for n in names]),
    )


# --- selection -----------------------------------------------------------------------------


async def test_the_chosen_skills_come_in_the_models_order_and_once() -> None:
    backbone = Scripted(
        replace(picks("cuda-graph", "fused-pointwise", "cuda-graph"), usage=Usage(prompt_tokens=7))
    )
    chosen, exchange, cost = await selection.select(backbone, task(), 5, ARMS)
    assert chosen == ("cuda-graph", "fused-pointwise")
    assert exchange.agent == "selection" and not exchange.parsed.problems
    assert cost.prompt_tokens == 7 and backbone.asked[0].sampling.seed == 5
    assert "tried 4 times" in backbone.asked[0].messages[1].text


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (picks(), ""),
        (picks("no-such-skill"), "none of the choices"),
        (reply("All of them look useful."), "calls no tool"),
        (reply('{"name": "select', finish=Finish.LENGTH), "cut"),
    ],
)
async def test_no_usable_choice_is_no_skill_and_the_exchange_says_why(
    answer: Reply, why: str
) -> None:
    chosen, exchange, _ = await selection.select(Scripted(answer), task(), 1)
    assert chosen == () and why in " ".join(map(str, exchange.parsed.problems))


async def test_the_planner_answers_the_same_question() -> None:
    backbone = PlanBackbone()
    await backbone.open(lambda progress: None)
    chosen, exchange, _ = await selection.select(backbone, task(), 1)
    assert (
        chosen == ("fused-pointwise", "diagonal-matmul", "cuda-graph")
        and not exchange.parsed.problems
    )


def test_one_rollout_in_four_goes_without_skills() -> None:
    assert [n for n in range(9) if selection.without_skills(n)] == [3, 7]


# --- summary -------------------------------------------------------------------------------


def turn(number: int, fitness: float | None) -> Attempt:
    return attempt(number, "def tail(x, bias):\n    return x\n", fitness=fitness, turn=number)


@pytest.mark.parametrize(
    ("fitnesses", "expected"),
    [
        ([1.0, 1.3], (1, 2)),
        ([1.0, 1.19], None),  # not a fifth better
        ([0.5, 0.9, 1.1], None),  # better than the first, but than no baseline
        ([0.5, 1.2, 1.1], (1, 2)),
        ([1.5, 1.7], None),  # 1.13 times the first
        ([1.5, None, 1.8], (1, 3)),
        ([None, 2.0], None),  # the first was not right: nothing to compare with
        ([2.0], None),
        ([], None),
    ],
)
def test_a_rollout_is_summarized_when_it_clearly_improved(
    fitnesses: list[float | None], expected: tuple[int, int] | None
) -> None:
    found = summary.trigger([turn(i, fitness) for i, fitness in enumerate(fitnesses, 1)][::-1])
    assert (found and tuple(one.turn for one in found)) == expected


def draft(**changes: Any) -> dict[str, Any]:
    made = {"name": "keep-rows", "description": "Keep rows in registers", "scope": "triton"}
    return {**made, "tags": ["row", "reduction"], "content": GOOD, **changes}


def drafts(*skills: dict[str, Any]) -> Reply:
    return reply("", call("update_skill_library", think="", new_skills=list(skills)))


async def distilled(answer: Reply) -> tuple[tuple[SkillDraft, ...], str]:
    made, exchange, _ = await summary.distill(Scripted(answer), task(), *TURNS, ("cuda-graph",), 3)
    assert exchange.agent == "summary"
    return made, " ".join(map(str, exchange.parsed.problems))


async def test_a_good_draft_is_a_skill_file_that_loads(tmp_path: Path) -> None:
    made, problems = await distilled(
        drafts(draft(name="Keep__Rows-", tags=["row", "row", "--x--"]))
    )
    (one,) = made
    assert (one.name, one.tags) == ("keep-rows", ("row", "x")) and "read as" in problems
    folder = tmp_path / one.name
    folder.mkdir()
    front = f"name: {one.name}\ndescription: {one.description}\nmetadata:\n  scope: {one.scope}\n"
    text = f"---\n{front}  tags: [{', '.join(one.tags)}]\n  version: 1\n---\n{one.content}"
    (folder / "SKILL.md").write_text(text)
    assert not skill_format.lint(folder)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"description": "Wrap the model in torch.compile"}, "advises a compiler"),
        (
            {"content": GOOD.replace("Keep the row", "Use cuBLAS for the row")},
            "advises a library call",
        ),
        (
            {"content": GOOD.replace("Keep the row", "Fall back to PyTorch for the row")},
            "advises a library call",
        ),
        (
            {"content": GOOD.replace("Keep the row", "Skip the second reduction")},
            "advises skipped work",
        ),
        (
            {"content": GOOD.replace("Keep the row", "Return the cached result")},
            "advises skipped work",
        ),
        (
            {"content": GOOD.replace("Keep the row", "Convert the inputs to bf16")},
            "advises lower precision",
        ),
        ({"content": GOOD.replace("## Pitfalls", "## Traps")}, "sections Motivation"),
        ({"content": GOOD.replace("Rows are read twice.\n", "")}, "empty section Motivation"),
        ({"content": GOOD.replace("```python", "").replace("```", "")}, "without a code block"),
        ({"content": GOOD + "x" * 9000}, "characters long"),
        ({"name": "cuda-graph"}, "is called cuda-graph"),
    ],
)
async def test_a_bad_draft_is_turned_down_and_told(changes: dict[str, Any], why: str) -> None:
    made, problems = await distilled(drafts(draft(**changes)))
    assert not made and why in problems


async def test_of_two_drafts_with_one_name_the_first_counts() -> None:
    made, problems = await distilled(drafts(draft(), draft(description="Another")))
    assert [one.description for one in made] == [
        "Keep rows in registers"
    ] and "keep-rows" in problems


async def test_nothing_learned_is_a_good_answer() -> None:
    assert await distilled(drafts()) == ((), "")


@pytest.mark.parametrize(
    "advice",
    [
        "The same switch decides on TF32 as before.",
        "It computes in float32, loads bf16 inputs and keeps rows in registers.",
        "Use a float32 accumulator for bf16 inputs.",
        "Never fall back to eager for odd sizes.",
    ],
)
def test_honest_advice_passes(advice: str) -> None:
    assert summary.lazy_advice(advice) is None


def test_the_filter_turns_down_few_of_the_built_in_skills() -> None:
    skills = skillbook.load(skillbook.folders()).skills
    found = {skill.name: list(summary.faults(_as_draft(skill), set())) for skill in skills}
    assert found["compile-target"] == ["advises a compiler"]
    assert sum(map(bool, found.values())) <= 1 + len(skills) // 20


def _as_draft(skill: Any) -> SkillDraft:
    return SkillDraft(
        name=skill.name,
        description=skill.description,
        scope=skill.scope,
        tags=skill.tags,
        content=skill.body,
    )
