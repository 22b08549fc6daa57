"""A real vLLM from its start to its end, as our backbone keeps it. The last test here ends the
server."""

from __future__ import annotations

import asyncio
import re
import socket
import time
import urllib.request
from collections.abc import Callable
from urllib.error import HTTPError
from urllib.parse import urlsplit

import psutil
import pytest
from vllm_helpers import AT_ONCE, Served, made_for, silent

from kernel_lsp.agents.backbones import serving
from kernel_lsp.errors import BackboneError
from kernel_lsp.records import (
    Backbone,
    Finish,
    Message,
    Prompt,
    Role,
    Sampling,
    Structured,
    ToolSchema,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PROMPT = Prompt(
    messages=(
        Message(role=Role.SYSTEM, text="You make PyTorch code faster."),
        Message(role=Role.USER, text="def f(x, w):\n    return torch.softmax(x @ w, dim=-1)\n"),
    ),
    tools=(
        ToolSchema(
            name="pick",
            description="Pick a size.",
            parameters={
                "type": "object",
                "properties": {"size": {"enum": [32, 64, 128]}, "warps": {"enum": [1, 2, 4, 8]}},
                "required": ["size", "warps"],
                "additionalProperties": False,
            },
        ),
    ),
    sampling=Sampling(max_tokens=200, logprobs=True),
)
# One token in 4096 ends it.
ENDLESS = Prompt(messages=PROMPT.messages, sampling=Sampling(max_tokens=15_000))
CANCEL_S = 3.0
TRIES = 3
"""The best of them counts: other work on these cores is not what is measured. A quiet machine
needs 0.2 s."""


def test_its_start_is_told_second_by_second(served: Served) -> None:
    assert served.said[0] == f"model: vLLM starts with {served.settings.model}"
    assert any(re.fullmatch(r"model: vLLM loads the model, \d+ s", line) for line in served.said)
    assert served.said[-1] == f"model: asking {served.info.origin}"


def test_what_it_is_and_how_much_it_takes(served: Served) -> None:
    info = served.info
    assert info.name == "vllm:tiny-qwen3@0.32.0"
    assert (info.context_tokens, info.structured, info.max_in_flight) == (
        32_768,
        Structured.SCHEMA,
        AT_ONCE,
    )
    assert str(info.origin).startswith("http://127.0.0.1:")
    assert not info.remote
    assert not info.on_measured_gpu


def test_others_on_this_machine_cannot_ask_it(served: Served) -> None:
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(f"{served.info.origin}/v1/models", timeout=30)
    with refused.value as answer:
        assert answer.code == 401


async def test_two_jobs_share_one_server(backbone: Backbone, served: Served) -> None:
    other = made_for(served.settings)
    try:
        infos = await asyncio.gather(backbone.open(silent), other.open(silent))
        assert infos == [served.info, served.info]
    finally:
        await other.close()
    assert (await backbone.reply(PROMPT)).text  # the other's end was not the server's


async def test_a_reply_comes_in_pieces_with_an_id_and_a_log_probability_for_every_token(
    backbone: Backbone,
) -> None:
    pieces: list[str] = []
    await backbone.open(silent)
    reply = await backbone.reply(PROMPT, pieces.append)

    assert "".join(pieces) == reply.text
    assert len(pieces) > 3
    assert reply.finish is Finish.STOP
    assert reply.token_ids is not None
    assert reply.logprobs is not None
    assert len(reply.token_ids) == len(reply.logprobs) == reply.usage.completion_tokens
    assert all(logprob <= 0 for logprob in reply.logprobs)
    assert reply.first_token_s is not None
    assert 0 < reply.first_token_s <= reply.latency_s
    assert await backbone.count(PROMPT) == reply.usage.prompt_tokens
    assert reply.model == "tiny-qwen3"
    assert str(reply.version).startswith("vllm-0.32.0")


async def test_a_prompt_that_is_too_long_is_refused_with_a_way_out(backbone: Backbone) -> None:
    await backbone.open(silent)
    long = Prompt(messages=(Message(role=Role.USER, text="x y z " * 20_000),))
    with pytest.raises(
        BackboneError, match=r"does not fit the model, which has 32768 tokens: .*longer"
    ):
        await backbone.reply(long)


async def test_cancelling_ends_the_request_here_and_the_work_there(
    backbone: Backbone, served: Served
) -> None:
    await backbone.open(silent)
    taken = [await cancelled(backbone, served) for _ in range(TRIES)]
    assert min(taken) < CANCEL_S, taken


async def cancelled(backbone: Backbone, served: Served) -> float:
    """Seconds until the server computes nothing any more."""
    # Several, for one of random weights may end by itself before it is counted.
    asking = [asyncio.create_task(backbone.reply(ENDLESS)) for _ in range(4)]
    await until(lambda: running(served) >= 1)
    when = time.monotonic()
    for one in asking:
        one.cancel()
    ends = await asyncio.gather(*asking, return_exceptions=True)
    assert any(isinstance(end, asyncio.CancelledError) for end in ends)
    await until(lambda: running(served) == 0)
    return time.monotonic() - when


async def test_a_server_that_is_killed_is_an_error_and_leaves_nothing(
    backbone: Backbone, served: Served
) -> None:
    await backbone.open(silent)
    # Found before anything is asked: on a slow machine that takes as long as a short reply.
    (server,) = serving._running.values()
    (keeper,) = {
        pid for pid, mark in serving._find_marked() if mark == server.mark and is_keeper(pid)
    }
    below = psutil.Process(keeper).children(recursive=True)
    assert len(below) >= 3, "server, engine and worker"
    (first,) = (one for one in below if one.ppid() == keeper)

    asked = time.monotonic()
    killed: list[float] = []

    def kill(text: str) -> None:
        """At the first text of the first of them, before anything else runs here."""
        if not killed:
            killed.append(time.monotonic() - asked)
            first.kill()

    # Several, for one of random weights may end by itself just before.
    asking = [asyncio.create_task(backbone.reply(ENDLESS, kill)) for _ in range(AT_ONCE)]
    replies = await asyncio.gather(*asking, return_exceptions=True)
    lost = [reply for reply in replies if isinstance(reply, BackboneError)]
    others = [reply for reply in replies if isinstance(reply, BaseException) and reply not in lost]
    times = f"killed after {killed} s, ended after {time.monotonic() - asked:.1f} s"
    assert lost and not others, (times, computes(first), replies)
    assert "vLLM ended in the middle of its work: it was ended by SIGKILL" in str(lost[0])
    assert f"its log is {served.settings.data_dir}/logs/vllm.log and ends with:\n" in str(
        lost[0].remedy
    )
    await until(lambda: not any(map(computes, below)))
    with socket.create_server(("127.0.0.1", urlsplit(str(served.info.origin)).port or 0)):
        pass  # its port is free


def is_keeper(pid: int) -> bool:
    return str(serving.KEEPER) in psutil.Process(pid).cmdline()


def computes(one: psutil.Process) -> bool:
    """It is there, and not only because nobody has asked how it ended."""
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def running(served: Served) -> float:
    """Requests that the engine works on."""
    with urllib.request.urlopen(f"{served.info.origin}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{")
    )


async def until(true: Callable[[], bool], within_s: float = 120.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)
