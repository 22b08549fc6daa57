"""The same model in a child process of ours, where xgrammar is: the same calls without any server.

What needs no xgrammar is in tests/unit/agents/test_backbone_transformers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import pytest_asyncio
from vllm_helpers import made_for, silent

from kernel_lsp.agents import replies, tools
from kernel_lsp.config import Settings
from kernel_lsp.records import (
    Backbone,
    CallForm,
    Finish,
    Message,
    Prompt,
    Role,
    Sampling,
    Site,
    Structured,
    ToolSchema,
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]

CALLS = 4
"""A second each, and eight where others compute on the same cores."""
MAX_CALLS = 16
"""Of which two must differ: random weights prefer one of three tools, and four draws may agree."""
SITES = (
    Site(
        skill="fused-pointwise",
        site="add+gelu",
        summary="",
        proofs=(),
        parameters={"BLOCK": [1024, 512], "warps": [4, 8]},
    ),
    Site(skill="diagonal-matmul", site="diag+matmul", summary="", proofs=()),
)
NAMES = ("fused-pointwise", "diagonal-matmul", "cuda-graph")
OFFERED = (tools.select_skills(NAMES), tools.read_skill(NAMES), tools.apply_skill(SITES))
PROMPT = Prompt(
    messages=(Message(role=Role.USER, text="def f(x, w):\n    return torch.diag(x) @ w\n"),),
    tools=OFFERED,
    sampling=Sampling(max_tokens=1200),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backbone(
    vllm_environment: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Backbone]:
    made = made_for(
        Settings(
            policy="transformers",
            model=str(small_model),
            model_device="cpu",
            model_python=str(vllm_environment / "python"),
            data_dir=str(tmp_path_factory.mktemp("data")),
            model_timeout_s=600.0,
        )
    )
    yield made
    await made.close()


def schema_of(name: str) -> ToolSchema:
    return next(tool for tool in OFFERED if tool.name == name)


async def test_every_reply_is_one_call_by_its_schema(backbone: Backbone) -> None:
    info = await backbone.open(silent)
    assert (info.backbone, info.structured, info.context_tokens) == (
        "transformers",
        Structured.SCHEMA,
        4096,
    )
    called = set[str]()
    for seed in range(MAX_CALLS):
        if seed >= CALLS and len(called) > 1:
            break
        prompt = replace(PROMPT, sampling=replace(PROMPT.sampling, seed=seed))
        reply = await backbone.reply(prompt)
        parsed = replies.parse(reply, prompt.tools)
        assert not parsed.problems, reply.text
        (call,) = parsed.calls
        assert (call.form, reply.finish) == (CallForm.ENVELOPE, Finish.STOP)
        jsonschema.validate(call.arguments, schema_of(call.name).parameters)
        called.add(call.name)
        assert reply.token_ids is not None
        assert reply.logprobs is not None
        assert len(reply.token_ids) == len(reply.logprobs) == reply.usage.completion_tokens
        assert all(logprob <= 0 for logprob in reply.logprobs)
    assert len(called) > 1
    assert await backbone.count(PROMPT) == reply.usage.prompt_tokens


async def test_a_call_that_is_cancelled_leaves_room_for_the_next(backbone: Backbone) -> None:
    await backbone.open(silent)
    begun = asyncio.Event()
    endless = replace(PROMPT, tools=(), sampling=Sampling(max_tokens=3000))
    asking = asyncio.create_task(backbone.reply(endless, lambda text: begun.set()))
    await begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert replies.parse(await backbone.reply(PROMPT), PROMPT.tools).calls
