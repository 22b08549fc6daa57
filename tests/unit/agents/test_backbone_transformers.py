"""The transformers backbone on a real, tiny and random model: one process, told what to do and
when to stop.

Replies held to a schema need xgrammar, which this environment lacks: tests/vllm has them.
"""

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import tiny_qwen3

from kernel_lsp.agents import backbones
from kernel_lsp.agents.backbones import transformers
from kernel_lsp.agents.backbones.transformers import Transformers
from kernel_lsp.config import Settings
from kernel_lsp.errors import BackboneError
from kernel_lsp.process import Child
from kernel_lsp.records import (
    Finish,
    Message,
    Progress,
    Prompt,
    Role,
    Sampling,
    Structured,
    ToolSchema,
)

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]
TOOL = ToolSchema(
    name="pick_a_size", description="Pick.", parameters={"type": "object", "properties": {}}
)
PROMPT = Prompt(
    messages=(
        Message(role=Role.SYSTEM, text="You help."),
        Message(role=Role.USER, text="def f(x):\n    return x"),
    ),
    sampling=Sampling(max_tokens=24, seed=3),
)
ENDLESS = replace(PROMPT, sampling=Sampling(max_tokens=20_000, seed=3, temperature=0.0))
"""Always the likeliest token, which is not the end; drawn, one in 4096 would be."""


LONG_S = 60.0
"""What ends at once may take so long on a busy machine; an ENDLESS reply would take longer."""


def silent(progress: Progress) -> None:
    pass


async def ended(child: Child) -> None:
    async with asyncio.timeout(LONG_S):
        while child.alive:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.1)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that has to wait for the processor is not ended for it."""
    monkeypatch.setattr(transformers, "CANCEL_S", LONG_S)


def made(folder: Path, **more: float) -> Transformers:
    settings = Settings(policy="transformers", model=str(folder), model_device="cpu", **more)  # type: ignore[arg-type]
    backbone = backbones.make(
        settings, python=sys.executable, allowed_origin=None, data_dir="/nowhere"
    )
    assert isinstance(backbone, Transformers)
    return backbone


@pytest.fixture(scope="module", autouse=True)
def sleeping_threads() -> Iterator[None]:
    """Spinning, OpenMP's threads of the child take from each other, and from other tests, the
    cores that they wait for: 120 tokens took 35 s on two busy cores, and 3.5 s with threads that
    sleep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_WAIT_POLICY", "passive")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny-qwen3"
    tiny_qwen3.write_model(folder)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backbone(folder: Path) -> AsyncIterator[Transformers]:
    backbone = made(folder)
    yield backbone
    await backbone.close()


async def test_opening_tells_what_the_model_is_and_how_long_it_loads(
    folder: Path, backbone: Transformers
) -> None:
    said: list[str] = []
    info = await backbone.open(lambda progress: said.append(progress.message))
    assert (info.backbone, info.model, info.context_tokens) == (
        "transformers",
        "tiny-qwen3",
        32_768,
    )
    assert info.structured in (Structured.TOOLS, Structured.SCHEMA)
    assert (info.origin, info.remote, info.on_measured_gpu, info.max_in_flight) == (
        None,
        False,
        False,
        1,
    )
    assert any(message.startswith("loading the model, ") for message in said)


async def test_a_reply_has_text_ids_and_log_probabilities(backbone: Transformers) -> None:
    pieces: list[str] = []
    reply = await backbone.reply(PROMPT, pieces.append)
    assert reply.text == "".join(pieces)
    assert reply.finish is Finish.LENGTH
    assert reply.token_ids is not None
    assert reply.logprobs is not None
    assert len(reply.token_ids) == len(reply.logprobs) == reply.usage.completion_tokens == 24
    # Nearly uniform over 4096: ln is -8.3.
    assert all(-12 < logprob < -4 for logprob in reply.logprobs)
    assert reply.first_token_s is not None
    assert 0 < reply.first_token_s <= reply.latency_s
    assert await backbone.count(PROMPT) == reply.usage.prompt_tokens


async def test_the_same_seed_gives_the_same_reply_and_no_temperature_the_likeliest(
    backbone: Transformers,
) -> None:
    first, again = await asyncio.gather(backbone.reply(PROMPT), backbone.reply(PROMPT))
    other = await backbone.reply(replace(PROMPT, sampling=Sampling(max_tokens=24, seed=4)))
    assert first.token_ids == again.token_ids != other.token_ids
    cold = [
        await backbone.reply(
            replace(PROMPT, sampling=Sampling(max_tokens=24, seed=seed, temperature=0.0))
        )
        for seed in (1, 2)
    ]
    assert cold[0].token_ids == cold[1].token_ids
    assert sum(cold[0].logprobs or ()) > sum(first.logprobs or ())


async def test_tools_are_shown_by_the_chat_template(backbone: Transformers) -> None:
    bare, shown = await backbone.count(PROMPT), await backbone.count(replace(PROMPT, tools=(TOOL,)))
    assert shown > bare + 20


async def test_a_prompt_too_long_is_said_in_tokens(backbone: Transformers) -> None:
    long = replace(PROMPT, messages=(Message(role=Role.USER, text="x " * 40_000),))
    with pytest.raises(BackboneError, match=r"the prompt needs 4\d{4} tokens, the model has 32768"):
        await backbone.reply(long)


@pytest.mark.usefixtures("patient")
async def test_cancelling_ends_it_at_the_next_token_and_the_process_stays(
    backbone: Transformers,
) -> None:
    await backbone.open(silent)
    begun_at, pieces = asyncio.Event(), []
    assert backbone._dialog is not None
    pid = backbone._dialog.child.process.pid
    asking = asyncio.create_task(
        backbone.reply(ENDLESS, lambda text: (pieces.append(text), begun_at.set())[0])
    )
    await begun_at.wait()
    begun = time.monotonic()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await backbone.count(PROMPT)  # answered in order: nothing is computed before it any more
    assert time.monotonic() - begun < LONG_S
    assert backbone._dialog.child.process.pid == pid
    heard = len(pieces)
    await backbone.reply(PROMPT)
    assert len(pieces) == heard


@pytest.mark.usefixtures("patient")
async def test_a_time_limit_is_an_error_and_ends_the_reply(folder: Path) -> None:
    backbone = made(folder, model_timeout_s=1.0)
    try:
        await backbone.open(silent)
        with pytest.raises(BackboneError, match=r"gave no reply within 1 s .*model_timeout_s"):
            await backbone.reply(ENDLESS)
        begun = time.monotonic()
        assert await backbone.count(PROMPT) > 0
        assert time.monotonic() - begun < LONG_S
    finally:
        await backbone.close()
        await backbone.close()


async def test_one_that_does_not_come_to_its_next_token_is_ended(backbone: Transformers) -> None:
    """Whoever asks next starts another."""
    await backbone.open(silent)
    assert backbone._dialog is not None
    child = backbone._dialog.child
    asking = asyncio.create_task(backbone.reply(ENDLESS))
    await asyncio.sleep(0.5)
    os.kill(child.process.pid, signal.SIGSTOP)  # as a long prompt would keep it
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await ended(child)


async def test_a_process_that_dies_is_an_error_and_the_next_question_starts_another(
    folder: Path,
) -> None:
    backbone = made(folder, model_idle_s=1.0)
    try:
        await backbone.open(silent)
        assert backbone._dialog is not None
        pid = backbone._dialog.child.process.pid
        asking = asyncio.create_task(backbone.reply(ENDLESS))
        await asyncio.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BackboneError, match=r"the model's process ended: .*started anew"):
            await asking
        assert (await backbone.reply(PROMPT)).text
        second = backbone._dialog.child
        assert second.process.pid != pid
        await ended(second)  # it is idle
    finally:
        await backbone.close()


async def test_a_model_that_cannot_be_used_says_why(folder: Path, tmp_path: Path) -> None:
    nowhere = made(tmp_path)
    with pytest.raises(BackboneError, match=f"{tmp_path} cannot be loaded: .*safetensors"):
        await nowhere.open(silent)
    mute = shutil.copytree(folder, tmp_path / "mute")
    (mute / "chat_template.jinja").unlink()
    backbone = made(mute)
    with pytest.raises(BackboneError, match=r"no chat template .*instruction-tuned"):
        await backbone.open(silent)
    await nowhere.close()
    await backbone.close()


async def test_an_interpreter_without_the_libraries_and_no_model_at_all(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    settings = Settings(policy="transformers", model="some/model", model_python=str(bare))
    backbone = backbones.make(
        settings, python=sys.executable, allowed_origin=None, data_dir="/nowhere"
    )
    with pytest.raises(BackboneError, match=r"No module named 'torch' \(pip install transformers"):
        await backbone.open(silent)
    await backbone.close()
    with pytest.raises(BackboneError, match="needs a model"):
        backbones.make(
            Settings(policy="transformers"),
            python="python",
            allowed_origin=None,
            data_dir="/nowhere",
        )
