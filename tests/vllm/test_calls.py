"""Two hundred calls that our agents ask of a real vLLM, every one of them well-formed.

Prompts, schemas and sites are those of a search: made by agents/prompts.py from a program that was
captured. The model's weights are random: what is valid here is valid by construction, not because
the model is clever."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jsonschema
import pytest
from vllm_helpers import AT_ONCE, Served, silent

from kernel_lsp import interpreter, skillbook
from kernel_lsp.agents import feedback, prompts, replies, sizing, tools
from kernel_lsp.config import Settings
from kernel_lsp.pipeline import Pipeline
from kernel_lsp.pipeline.deep import task_of
from kernel_lsp.pipeline.opened import JobBench, open_target
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.pipeline.workshop import EngineWorkshop
from kernel_lsp.records import (
    Backbone,
    CallForm,
    Context,
    Finish,
    Job,
    Move,
    Parsed,
    Prompt,
    Reply,
    SearchTask,
    ToolSchema,
)
from kernel_lsp.search.bandit import BanditArms

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

MANY = 50
PROGRAM = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 96)
        self.last = nn.Linear(96, 400)

    def forward(self, gain, x):
        y = F.gelu(self.first(torch.diag(gain) @ x) * 0.5 + 1.0)
        y = F.layer_norm(torch.tanh(y) * torch.sigmoid(y), (96,))
        return torch.softmax(y, dim=-1).amax(dim=1) + self.last(y).sum(dim=1)


def get_inputs():
    return [torch.rand(32), torch.randn(32, 64)]
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program as proposers know it."""

    task: SearchTask
    marked: str


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return asyncio.run(captured(tmp_path_factory.mktemp("capture")))


async def captured(data_dir: Path) -> Case:
    settings = Settings(data_dir=str(data_dir), device="cpu")
    prepared = prepare(Job(text=PROGRAM, path="model.py", qualname="Model", device="cpu"))
    assert isinstance(prepared, PreparedJob)
    library = skillbook.load([skillbook.built_in_folder()])
    bench = JobBench(probe=await interpreter.probe(sys.executable), device="cpu", skills=library)
    pipeline = Pipeline(settings)
    try:
        async with open_target(prepared, bench, pipeline.gate(), settings, silent) as one:
            task = task_of(one, (), BanditArms(data_dir))
            return Case(task=task, marked=EngineWorkshop(one.engine, prepared).marked(None))
    finally:
        await pipeline.close()


def of_policy(case: Case, served: Served, seed: int) -> Prompt:
    """What the policy agent asks in its first turn."""
    context = Context(number=seed, seed=seed, move=Move.RESTART, rollout=seed, turn=1)
    room = sizing.room(served.info)
    told = {"program": case.marked, "outcome": feedback.line}
    return prompts.policy(case.task, context, case.task.sites, (), room, **told)  # type: ignore[arg-type]


def of_selection(case: Case, served: Served, seed: int) -> Prompt:
    return prompts.selection(case.task, sizing.room(served.info), seed=seed)


def offering(prompt: Prompt, *offered: ToolSchema) -> Prompt:
    return replace(prompt, tools=offered)


def only(prompt: Prompt, name: str) -> ToolSchema:
    return next(tool for tool in prompt.tools if tool.name == name)


async def asked(
    backbone: Backbone, questions: Sequence[Prompt]
) -> list[tuple[Prompt, Reply, Parsed]]:
    await backbone.open(silent)
    free = asyncio.Semaphore(AT_ONCE)

    async def one(prompt: Prompt) -> tuple[Prompt, Reply, Parsed]:
        async with free:
            reply = await backbone.reply(prompt)
        return prompt, reply, replies.parse(reply, prompt.tools)

    return await asyncio.gather(*map(one, questions))


def arguments(
    answers: Sequence[tuple[Prompt, Reply, Parsed]], form: CallForm
) -> list[dict[str, object]]:
    """Of all replies, each of which is one call that needed no mending, by the schema of its
    tool."""
    found = []
    for prompt, reply, parsed in answers:
        assert not parsed.problems, reply.text
        (call,) = parsed.calls
        jsonschema.validate(call.arguments, only(prompt, call.name).parameters)
        assert call.form is form
        found.append({"tool": call.name, **call.arguments})
    return found


async def test_fifty_choices_among_twenty_skills(
    backbone: Backbone, served: Served, case: Case
) -> None:
    questions = [of_selection(case, served, seed) for seed in range(MANY)]
    chosen = questions[0].tools[0].parameters["properties"]["selected_skills"]
    assert len(chosen["items"]["properties"]["name"]["enum"]) == 20

    calls = arguments(await asked(backbone, questions), CallForm.ENVELOPE)
    picked = {one["name"] for call in calls for one in call["selected_skills"]}  # type: ignore[attr-defined]
    assert len(picked) > 10, "a random model should choose many skills"


async def test_fifty_applications_at_captured_sites(
    backbone: Backbone, served: Served, case: Case
) -> None:
    first = of_policy(case, served, 0)
    places = {(site.skill, site.site): site for site in first.sites}
    assert len(places) >= 4, "the program should have many sites"
    assert any(site.parameters for site in first.sites), "and parameters"
    prompts_ = [of_policy(case, served, seed) for seed in range(MANY)]

    calls = arguments(
        await asked(backbone, [offering(one, only(one, tools.APPLY)) for one in prompts_]),
        CallForm.ENVELOPE,
    )
    for call in calls:
        site = places[str(call["skill"]), str(call["site"])]
        assert isinstance(call["parameters"], dict)
        assert call["parameters"].keys() == site.parameters.keys()
        assert all(value in site.parameters[name] for name, value in call["parameters"].items())
    assert len({(call["skill"], call["site"]) for call in calls}) >= 3


async def test_fifty_wishes_to_read_a_skill(backbone: Backbone, served: Served, case: Case) -> None:
    questions = [of_policy(case, served, seed) for seed in range(MANY)]
    read = [offering(one, only(one, tools.READ)) for one in questions]

    calls = arguments(await asked(backbone, read), CallForm.ENVELOPE)
    assert len({call["name"] for call in calls}) > 5


async def test_fifty_calls_of_one_of_three_tools(
    backbone: Backbone, served: Served, case: Case
) -> None:
    choice = of_selection(case, served, 0).tools[0]
    questions = [of_policy(case, served, seed) for seed in range(MANY)]
    three = [
        offering(one, choice, only(one, tools.APPLY), only(one, tools.READ)) for one in questions
    ]

    calls = arguments(await asked(backbone, three), CallForm.ENVELOPE)
    assert {call["tool"] for call in calls} == {tools.SELECT, tools.APPLY, tools.READ}


async def test_code_and_drafts_of_skills_parse_or_complain(
    backbone: Backbone, served: Served, case: Case
) -> None:
    """Their texts have no longest form, so a random model is cut in many of them."""
    first = of_policy(case, served, 0)
    every = (*first.tools, of_selection(case, served, 0).tools[0], tools.update_skill_library())
    assert len({tool.name for tool in every}) == 5
    short = replace(first.sampling, max_tokens=600)
    questions = [
        replace(offering(first, *every), sampling=replace(short, seed=seed))
        for seed in range(2 * AT_ONCE)
    ]

    answers = await asked(backbone, questions)
    for _, reply, parsed in answers:
        assert bool(parsed.calls) == (reply.finish is not Finish.LENGTH), reply.text
        assert parsed.calls or "cut at the limit" in str(parsed.problems[0])
    assert any(parsed.calls for _, _, parsed in answers)


def test_the_cases_prompt_is_that_of_a_search(case: Case, served: Served) -> None:
    prompt = of_policy(case, served, 0)
    assert "# --- rewrite begins ---" in prompt.messages[1].text
    assert "get_inputs" not in prompt.messages[1].text
    assert "x=float32[32, 64]" in prompt.messages[1].text
