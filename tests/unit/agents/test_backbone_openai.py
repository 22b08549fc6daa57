"""The openai backbone against a scripted server: every way in which one behaves, and what is made
of it."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as drawing
from hypothesis import strategies as st
from scripted_model import Options, Say, ScriptedModel

from kernel_lsp.agents import backbones
from kernel_lsp.agents.backbones import chat, probing, transport
from kernel_lsp.config import Settings
from kernel_lsp.errors import BackboneError
from kernel_lsp.records import (
    Backbone,
    CallForm,
    Finish,
    Message,
    Progress,
    Prompt,
    Role,
    Sampling,
    Structured,
    ToolCall,
    ToolSchema,
)

KEY = "sk-test-0123456789abcdefghij"
LONG_S = 60.0
"""What ends at once may take so long on a busy machine; what does not would take longer."""
TOOL = ToolSchema(
    name="pick",
    description="Pick one.",
    parameters={
        "type": "object",
        "properties": {"size": {"enum": [1, 2, 4]}},
        "required": ["size"],
        "additionalProperties": False,
    },
)
TEXT = Prompt(
    messages=(Message(role=Role.SYSTEM, text="You help."), Message(role=Role.USER, text="Hello?"))
)
CALL = replace(TEXT, tools=(TOOL,))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, no key from this machine's keyring, no proxy."""
    monkeypatch.setattr(transport, "BACKOFF_S", 0.01)
    monkeypatch.setattr("keyring.get_password", lambda service, user: None)
    for name in (
        "KERNEL_LSP_API_KEY",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "NO_PROXY",
        "no_proxy",
    ):
        monkeypatch.delenv(name, raising=False)


def settings(server: ScriptedModel, **more: Any) -> Settings:
    return Settings(policy="openai", endpoint=server.endpoint, **more)


def silent(progress: Progress) -> None:
    pass


def made(configured: Settings, allowed: str | None = None) -> Backbone:
    return backbones.make(configured, python="python", allowed_origin=allowed, data_dir="/nowhere")


@asynccontextmanager
async def opened(server: ScriptedModel, **more: Any) -> AsyncIterator[Backbone]:
    backbone = made(settings(server, **more))
    try:
        await backbone.open(silent)
        yield backbone
    finally:
        await backbone.close()


async def refused(server: ScriptedModel, prompt: Prompt = TEXT, **more: Any) -> BackboneError:
    with pytest.raises(BackboneError) as caught:
        async with opened(server, **more) as backbone:
            await backbone.reply(prompt)
    assert caught.value.remedy
    return caught.value


# --- what is known of a server --------------------------------------------------------------------


async def test_a_plain_server_tells_its_model_and_context() -> None:
    async with ScriptedModel(options=Options(context=4096)) as server, opened(server) as backbone:
        info = await backbone.open(silent)
    assert (info.name, info.origin, info.remote) == ("openai:scripted", server.origin, False)
    assert (info.context_tokens, info.structured, info.max_in_flight) == (
        4096,
        Structured.SCHEMA,
        4,
    )
    assert [r.target for r in server.requests] == ["/v1/models"]


async def test_vllm_tells_its_version_and_counts_tokens() -> None:
    async with ScriptedModel(options=Options(vllm=True)) as server, opened(server) as backbone:
        assert (await backbone.open(silent)).name == "openai:scripted@0.32.0"
        counted = await backbone.count(TEXT)
    asked = next(r.body for r in server.requests if r.target == "/tokenize")
    assert counted == len(json.dumps([asked["messages"], asked.get("tools")])) // 4


async def test_an_estimate_of_tokens_is_no_lower_than_what_the_server_counts_later() -> None:
    async with ScriptedModel() as server, opened(server) as backbone:
        guess = await backbone.count(CALL)
        said = (await backbone.reply(CALL)).usage.prompt_tokens
        assert said is not None
        assert said <= guess
        assert said <= await backbone.count(CALL) <= 2 * said


async def test_several_models_need_a_choice_and_vllm_knows_what_it_has() -> None:
    async with ScriptedModel(options=Options(models=("a", "b"), vllm=True)) as server:
        assert "one of: a, b" in str(await refused(server))
        assert "does not serve 'c'" in str(await refused(server, model="c"))
        async with opened(server, model="b") as backbone:
            assert (await backbone.open(silent)).model == "b"


async def test_an_unknown_model_of_another_server_is_what_the_server_says() -> None:
    async with ScriptedModel() as server:
        error = await refused(server, model="nope")
    assert "The model `nope` does not exist." in error.cause
    assert len(server.chats) == 1  # asking again would not help


# --- replies --------------------------------------------------------------------------------------


async def test_a_text_arrives_in_pieces_and_as_a_whole() -> None:
    pieces: list[str] = []
    async with (
        ScriptedModel([Say("a text in several pieces")]) as server,
        opened(server) as backbone,
    ):
        reply = await backbone.reply(TEXT, pieces.append)
    assert reply.text == "".join(pieces) == "a text in several pieces"
    assert (reply.finish, reply.calls, reply.model) == (Finish.STOP, (), "scripted")
    assert reply.usage.completion_tokens == 3
    assert reply.first_token_s is not None
    assert 0 < reply.first_token_s <= reply.latency_s


async def test_a_call_under_a_schema_is_json_text_and_the_tools_are_shown() -> None:
    async with (
        ScriptedModel([Say(tool="pick", arguments={"size": 2})]) as server,
        opened(server) as backbone,
    ):
        reply = await backbone.reply(CALL)
        assert (await backbone.open(silent)).structured is Structured.SCHEMA
    assert json.loads(reply.text) == {"name": "pick", "arguments": {"size": 2}}
    (body,) = server.chats
    assert body["tool_choice"] == "none"
    assert body["tools"][0]["function"]["name"] == "pick"
    assert body["response_format"]["json_schema"]["strict"] is True
    assert "guided_json" not in body


@pytest.mark.parametrize("schema", [False, None])
async def test_without_schemas_a_native_call_is_asked_for_and_that_is_remembered(
    schema: bool | None,
) -> None:
    script = [Say("Hm.", tool="pick", arguments={"size": 4})]
    async with ScriptedModel(script, Options(schema=schema)) as server, opened(server) as backbone:
        await backbone.reply(CALL)
        reply = await backbone.reply(CALL)
        assert (await backbone.open(silent)).structured is Structured.TOOLS
        await backbone.reply(CALL)
    assert reply.calls == (
        ToolCall(name="pick", arguments={"size": 4}, id="call-0", form=CallForm.NATIVE),
    )
    assert (reply.finish, reply.text) == (Finish.CALLS, "Hm.")
    last = server.chats[-1]
    assert (last["tool_choice"], last["parallel_tool_calls"]) == ("required", False)
    assert "response_format" not in last
    assert len(server.chats) == (4 if schema is False else 3)


async def test_one_reply_that_is_no_json_does_not_cost_a_proven_server_its_schemas() -> None:
    script = [Say(tool="pick"), Say("Sorry, I cannot."), Say(tool="pick")]
    async with ScriptedModel(script) as server, opened(server) as backbone:
        for _ in script:
            await backbone.reply(CALL)
    assert ["response_format" in body for body in server.chats] == [True, True, True]


async def test_without_tools_too_the_calls_are_described_in_words() -> None:
    script = [Say("I pick:", tool="pick", arguments={"size": 1})]
    async with (
        ScriptedModel(script, Options(schema=False, tools=False)) as server,
        opened(server) as backbone,
    ):
        reply = await backbone.reply(CALL)
        assert (await backbone.open(silent)).structured is Structured.NONE
    assert "```json" in reply.text
    last = server.chats[-1]
    assert "tools" not in last
    assert "pick" in last["messages"][0]["content"]


async def test_one_trouble_of_the_server_does_not_cost_it_its_schemas() -> None:
    script = [Say(status=500), Say(tool="pick"), Say(tool="pick")]
    async with ScriptedModel(script) as server, opened(server) as backbone:
        await backbone.reply(CALL)
        assert (await backbone.open(silent)).structured is Structured.SCHEMA
        await backbone.reply(CALL)
    assert ["response_format" in body for body in server.chats] == [True, False, True]


async def test_a_grammar_that_the_server_cannot_compile_ends_in_the_weaker_form() -> None:
    def script(body: dict[str, Any]) -> Say:
        return Say(status=500) if "response_format" in body else Say(tool="pick")

    async with ScriptedModel(script) as server, opened(server) as backbone:
        for _ in range(3):
            assert (await backbone.reply(CALL)).calls
        assert (await backbone.open(silent)).structured is Structured.TOOLS
    assert ["response_format" in body for body in server.chats] == [True, False, True, False, False]


async def test_fields_that_a_server_refuses_are_left_out_from_then_on() -> None:
    options = Options(refuses=("seed", "max_tokens", "parallel_tool_calls"), schema=False)
    prompt = replace(CALL, sampling=Sampling(seed=7, max_tokens=100))
    async with ScriptedModel([Say(tool="pick")], options) as server, opened(server) as backbone:
        await backbone.reply(prompt)
        before = len(server.chats)
        await backbone.reply(prompt)
    assert len(server.chats) == before + 1
    assert not {"seed", "max_tokens", "parallel_tool_calls"} & server.chats[-1].keys()
    assert server.chats[-1]["max_completion_tokens"] == 100


async def test_arguments_that_are_no_json_stand_in_the_text() -> None:
    script = [Say(tool="pick", arguments='{"size": 2')]
    async with ScriptedModel(script, Options(schema=False)) as server, opened(server) as backbone:
        reply = await backbone.reply(CALL)
    assert reply.calls == ()
    assert '<tool_call>\n{"name": "pick", "arguments": {"size": 2}\n</tool_call>' in reply.text


async def test_log_probabilities_and_ids_are_kept_where_the_server_gives_them() -> None:
    prompt = replace(TEXT, sampling=Sampling(logprobs=True))
    script = [Say("0123456789")]
    async with ScriptedModel(script, Options(vllm=True)) as server, opened(server) as backbone:
        reply = await backbone.reply(prompt)
    assert reply.logprobs == (0.0, -0.25)
    assert reply.token_ids == (1000, 1001)
    async with ScriptedModel(script) as server, opened(server) as backbone:
        reply = await backbone.reply(prompt)
    assert (reply.logprobs, reply.token_ids) == ((0.0, -0.25), None)
    assert "return_token_ids" not in server.chats[0]


async def test_a_server_that_does_not_stream_is_read_all_the_same() -> None:
    script = [Say("whole", whole=True), Say(tool="pick", arguments={"size": 1}, whole=True)]
    async with ScriptedModel(script, Options(schema=False)) as server, opened(server) as backbone:
        assert (await backbone.reply(TEXT)).text == "whole"
        assert (await backbone.reply(CALL)).calls[0].arguments == {"size": 1}


async def test_earlier_calls_are_shown_in_the_form_that_is_asked_for() -> None:
    call = ToolCall(name="pick", arguments={"size": 1})
    history = (
        *TEXT.messages,
        Message(role=Role.ASSISTANT, calls=(call,)),
        Message(role=Role.TOOL, text="too small", call_id=""),
        Message(role=Role.USER, text="Again."),
    )
    prompt = replace(CALL, messages=history)
    plain = chat.messages(prompt, Structured.SCHEMA)
    assert [m["role"] for m in plain] == ["system", "user", "assistant", "user"]
    assert json.loads(plain[2]["content"]) == {"name": "pick", "arguments": {"size": 1}}
    assert plain[3]["content"] == "too small\n\nAgain."
    native = chat.messages(prompt, Structured.TOOLS)
    assert native[2]["tool_calls"][0]["function"] == {"name": "pick", "arguments": '{"size": 1}'}
    assert native[3]["tool_call_id"] == native[2]["tool_calls"][0]["id"] == "call00000"


# --- faults ---------------------------------------------------------------------------------------


async def test_a_reply_without_end_is_cut_and_the_connection_closed() -> None:
    prompt = replace(TEXT, sampling=Sampling(max_tokens=50))
    async with ScriptedModel([Say("x" * 80, endless=True)]) as server, opened(server) as backbone:
        reply = await backbone.reply(prompt)
        assert (reply.finish, len(reply.text)) == (Finish.LENGTH, 400)
        await until(lambda: server.running == 0)


async def test_a_megabyte_is_cut_too() -> None:
    prompt = replace(TEXT, sampling=Sampling(max_tokens=10**6))
    script = [Say("y" * 1_200_000, whole=True)]
    async with ScriptedModel(script, Options(context=None)) as server, opened(server) as backbone:
        reply = await backbone.reply(prompt)
    assert (reply.finish, len(reply.text)) == (Finish.LENGTH, 1_000_000)


async def test_an_event_that_is_too_long_is_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "TRIES", 2)
    async with ScriptedModel([Say(garbage="z" * 300_000)]) as server:
        assert "262144" in str(await refused(server))
    assert len(server.chats) == 2


async def test_a_reply_that_the_limit_cut_says_so() -> None:
    prompt = replace(TEXT, sampling=Sampling(max_tokens=2))
    async with ScriptedModel([Say("0123456789" * 4)]) as server, opened(server) as backbone:
        reply = await backbone.reply(prompt)
    assert (reply.finish, reply.text) == (Finish.LENGTH, "0123456789012345")


@pytest.mark.parametrize(
    "fault",
    [
        Say("half a reply that is cut", cut_after=1),
        Say("nothing of this", cut_after=0),
        Say(garbage="{no json"),
        Say(garbage="[1]"),
        Say("a longer text", late_error={"message": "engine died", "code": 500}),
        Say("a longer text", late_error="overloaded"),
        Say(status=503),
        Say(status=429, retry_after=0.05),
        Say(status=429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"),
        Say(status=429, retry_after="soon"),
        Say(status=429, retry_after="nan"),
        Say(status=429, retry_after="-inf"),
        Say(status=500, error="plain words"),
    ],
    ids=lambda say: str(say)[:60],
)
async def test_what_may_pass_is_tried_again(fault: Say) -> None:
    async with ScriptedModel([fault, fault, Say("fine")]) as server, opened(server) as backbone:
        assert (await backbone.reply(TEXT)).text == "fine"
    assert len(server.chats) == 3


async def test_after_five_tries_it_is_an_error() -> None:
    async with ScriptedModel([Say(status=503, error={"message": "loading"})]) as server:
        error = await refused(server)
    assert error.cause == f"{server.origin} answered 503: loading"
    assert len(server.chats) == 5


@pytest.mark.parametrize("error", ["Unauthorized", {"message": "Unauthorized", "code": 401}])
async def test_a_wrong_key_is_not_tried_twice(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_LSP_API_KEY", KEY)
    async with ScriptedModel([Say(status=401, error=error)]) as server:
        said = await refused(server)
    assert "refuses the key: Unauthorized" in said.cause
    assert "KERNEL_LSP_API_KEY" in str(said.remedy)
    assert len(server.chats) == 1


async def test_no_key_where_one_is_needed_is_said_before_the_first_prompt() -> None:
    async with ScriptedModel(options=Options(key=KEY)) as server:
        assert "asks for a key" in str(await refused(server))
    assert server.chats == []


async def test_a_prompt_too_long_names_the_context_and_is_not_asked_in_another_form() -> None:
    async with ScriptedModel(options=Options(context=100)) as server:
        error = await refused(server, CALL)
    assert "does not fit the model, which has 100 tokens" in error.cause
    assert len(server.chats) == 1


async def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # ours, so that nobody else listens there meanwhile
        backbone = made(Settings(policy="openai", endpoint=f"http://127.0.0.1:{port}/v1"))
        with pytest.raises(BackboneError, match="gave no answer: ConnectError") as caught:
            await backbone.open(silent)
        assert "vllm serve" in str(caught.value.remedy)
        await backbone.close()


async def test_an_endpoint_that_dies_between_two_prompts() -> None:
    async with ScriptedModel() as server, opened(server) as backbone:
        await backbone.reply(TEXT)
        await server.stop()
        with pytest.raises(BackboneError, match="gave no answer"):
            await backbone.reply(TEXT)


async def test_the_time_limit_holds_over_all_tries() -> None:
    async with ScriptedModel([Say(status=503), Say("slow", delay_s=600)]) as server:
        begun = time.monotonic()
        error = await refused(server, model_timeout_s=2.0)
    assert "gave no reply within 2 s" in error.cause
    assert 1.9 < time.monotonic() - begun < LONG_S
    assert len(server.chats) == 2


async def test_a_pause_that_is_longer_than_the_time_limit_is_not_waited_for() -> None:
    async with ScriptedModel([Say(status=429, retry_after=600, error="quota")]) as server:
        begun = time.monotonic()
        error = await refused(server, model_timeout_s=2 * LONG_S)
    assert "permits no more requests now: quota" in error.cause
    assert time.monotonic() - begun < LONG_S


async def test_a_date_to_come_back_at_is_understood() -> None:
    script = [Say(status=429, retry_after="Wed, 21 Oct 2099 07:28:00 GMT")]
    async with ScriptedModel(script) as server:
        assert "permits no more requests" in (await refused(server)).cause
    assert len(server.chats) == 1


async def test_a_key_that_no_header_can_carry_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("schlüssel-0123", "two words", "line\nbreak"):
        monkeypatch.setenv("KERNEL_LSP_API_KEY", key)
        async with ScriptedModel() as server:
            error = await refused(server)
        assert "characters that no key has" in error.cause
        assert key not in str(error)


async def test_after_closing_it_can_be_opened_again_but_not_asked() -> None:
    async with ScriptedModel() as server:
        backbone = made(settings(server))
        await backbone.open(silent)
        await backbone.close()
        await backbone.close()
        with pytest.raises(BackboneError, match="not open"):
            await backbone.reply(TEXT)
        await backbone.open(silent)
        assert (await backbone.reply(TEXT)).text == "ok"
        await backbone.close()


async def test_requests_are_held_to_so_many_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MINUTE_S", 0.4)
    begun = time.monotonic()
    async with ScriptedModel() as server, opened(server, model_requests_per_minute=2) as backbone:
        await asyncio.gather(*(backbone.reply(TEXT) for _ in range(4)))
        assert len(server.requests) == 5  # the first was for the list of models
    assert time.monotonic() - begun > 0.7


# --- cancelling -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("say", "until_running"),
    [
        (Say(delay_s=600), True),
        (Say("a slow text", gap_s=600), True),
        (Say("x", endless=True, gap_s=0.01), True),
        (Say(status=429, retry_after=100), False),
    ],
    ids=["headers", "streaming", "endless", "backing off"],
)
async def test_cancelling_ends_the_request_at_once(say: Say, until_running: bool) -> None:
    prompt = replace(TEXT, sampling=Sampling(max_tokens=10**6))
    async with ScriptedModel([say], Options(context=None)) as server, opened(server) as backbone:
        asking = asyncio.create_task(backbone.reply(prompt))
        await until(lambda: server.running == 1 if until_running else len(server.chats) == 1)
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: server.running == 0)
        assert time.monotonic() - begun < LONG_S


async def test_cancelling_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name in ((transport, "CONNECT_S"), (transport, "QUESTION_S"), (probing, "LOOK_S")):
        monkeypatch.setattr(place, name, 600.0)
    with socket.socket() as full:  # a backlog that nobody empties: connecting hangs
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        others = [socket.socket() for _ in range(8)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        backbone = made(
            Settings(policy="openai", endpoint=f"http://127.0.0.1:{full.getsockname()[1]}/v1")
        )
        asking = asyncio.create_task(backbone.open(silent))
        await asyncio.sleep(0.3)
        assert not asking.done()
        begun = time.monotonic()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert time.monotonic() - begun < LONG_S
        await backbone.close()
        for other in others:
            other.close()


async def until(true: Any) -> None:
    end = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


# --- what may leave -------------------------------------------------------------------------------


def my_address() -> str:
    """An address of this machine that is no loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has a loopback interface only")
        address: str = probe.getsockname()[0]
        return address


async def test_another_machine_is_refused_without_leave_and_before_its_name_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object, **__: object) -> Any:
        raise AssertionError("a name was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    configured = Settings(policy="openai", endpoint="https://models.example.com/v1")
    for allowed in (None, "http://models.example.com", "https://models.example.com.evil"):
        with pytest.raises(
            BackboneError, match=r"nobody allowed it .*--remote https://models.example.com"
        ):
            made(configured, allowed)
    made(configured, "https://models.example.com")


async def test_without_leave_nothing_reaches_a_server_on_another_address() -> None:
    async with ScriptedModel(host=my_address()) as server:
        with pytest.raises(BackboneError, match="nobody allowed it"):
            made(settings(server))
        assert server.requests == []
        backbone = made(settings(server), server.origin)
        assert (await backbone.open(silent)).remote
        assert (await backbone.reply(TEXT)).text == "ok"
        await backbone.close()


async def test_a_key_does_not_go_to_another_machine_in_the_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNEL_LSP_API_KEY", "a-key-of-somebody")
    async with ScriptedModel(host=my_address()) as server:
        backbone = made(settings(server), server.origin)
        with pytest.raises(BackboneError, match=r"in the clear.*plain http.*write https://"):
            await backbone.open(silent)
        assert server.requests == []
        await backbone.close()
        monkeypatch.delenv("KERNEL_LSP_API_KEY")
        backbone = made(settings(server), server.origin)
        assert (await backbone.open(silent)).remote, (
            "without a key nothing of it is shown to anybody"
        )
        await backbone.close()
    async with ScriptedModel() as here:
        monkeypatch.setenv("KERNEL_LSP_API_KEY", "a-key-of-somebody")
        backbone = made(settings(here))
        assert not (await backbone.open(silent)).remote, "on this machine nobody is between"
        await backbone.close()


async def test_a_redirect_is_not_followed() -> None:
    async with (
        ScriptedModel() as other,
        ScriptedModel([Say(status=307, location=f"{other.endpoint}/chat/completions")]) as server,
    ):
        error = await refused(server)
        assert other.origin in error.cause
        assert other.requests == []
    assert len(server.chats) == 1


async def test_a_proxy_is_used_for_other_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        ScriptedModel([Say("through the proxy")]) as proxy,
        ScriptedModel([Say("direct")]) as server,
    ):
        monkeypatch.setenv("HTTP_PROXY", proxy.origin)
        monkeypatch.setenv("http_proxy", proxy.origin)
        async with opened(server) as backbone:
            assert (await backbone.reply(TEXT)).text == "direct"
        assert proxy.requests == []
        there = "http://models.example.com"
        backbone = made(Settings(policy="openai", endpoint=f"{there}/v1"), there)
        await backbone.open(silent)
        assert (await backbone.reply(TEXT)).text == "through the proxy"
        await backbone.close()
    assert proxy.requests[-1].target == "http://models.example.com/v1/chat/completions"


async def test_secrets_are_replaced_before_they_leave_and_put_back_in_what_comes() -> None:
    words = "AbCd1234+/" * 8
    secret = f"-----BEGIN PRIVATE KEY-----\n{words}\n-----END PRIVATE KEY-----"

    def echo(body: dict[str, Any]) -> Say:
        return Say(tool="pick", arguments={"size": body["messages"][-1]["content"]})

    prompt = replace(CALL, messages=(Message(role=Role.USER, text=f'token = "{secret}"'),))
    for options in (Options(), Options(schema=False)):
        async with ScriptedModel(echo, options) as server, opened(server) as backbone:
            reply = await backbone.reply(prompt)
        assert words not in json.dumps(server.chats)
        said = reply.calls[0].arguments if reply.calls else json.loads(reply.text)["arguments"]
        assert said == {"size": f'token = "{secret}"'}


async def test_the_key_goes_into_the_header_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("KERNEL_LSP_API_KEY", KEY)
    echo = {"message": f"Incorrect API key provided: {KEY}"}
    prompt = replace(TEXT, messages=(Message(role=Role.USER, text=f"my key is {KEY}"),))
    script = [Say("a"), Say(status=503, error=echo), Say(status=401, error=echo)]
    async with ScriptedModel(script, Options(key=KEY)) as server, opened(server) as backbone:
        await backbone.reply(prompt)
        with pytest.raises(BackboneError) as caught:
            await backbone.reply(prompt)
        shown = repr(backbone) + repr(await backbone.open(silent)) + repr(vars(caught.value))
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    for text in (
        str(caught.value),
        repr(caught.value),
        shown,
        caplog.text,
        json.dumps(server.chats),
    ):
        assert KEY not in text
    assert "my key is" not in caplog.text


async def test_half_a_character_in_a_document_does_not_stop_the_prompt() -> None:
    prompt = replace(TEXT, messages=(Message(role=Role.USER, text="x = '\ud800'"),))
    async with ScriptedModel() as server, opened(server) as backbone:
        assert (await backbone.reply(prompt)).text == "ok"
    assert server.chats[0]["messages"][0]["content"] == "x = '?'"


async def test_numbers_and_names_that_no_server_means_are_not_taken() -> None:
    """JSON knows integers that are no float, and texts of megabytes."""
    async with ScriptedModel(options=Options(context=10**400)) as server, opened(server) as model:
        assert (await model.open(silent)).context_tokens is None
        assert await model.count(TEXT) > 0
    long = Options(models=("m" * 10**6, "n" * 10**6))
    async with ScriptedModel(options=long) as server:
        assert len(str(await refused(server))) < 1000
    answer = chat.StreamedReply(100)
    answer.take({"usage": {"prompt_tokens": 10**400}, "model": "m" * 10**6})
    reply = answer.reply(latency_s=1.0, first_token_s=None, model="m", version=None)
    assert (reply.usage.prompt_tokens, reply.model) == (None, "m")


async def test_an_answer_of_any_json_raises_nothing_but_our_errors() -> None:
    odd: list[Any] = [
        {}, {"choices": 3}, {"choices": [None]}, {"choices": [{"delta": 5, "finish_reason": 3}]},
        [], 7, None,
        {"choices": [{"delta": {"content": 5, "tool_calls": [3, {"function": 4}, {}]}, "token_ids": "x"}]},
        {"choices": [{"delta": {"content": "\ud800"}, "logprobs": [], "finish_reason": "stop"}]},
        {"error": {"message": 3}}, {"usage": [], "choices": [{}]},
        {"choices": [{"delta": {}, "logprobs": {"content": [{"logprob": None}, 3]}, "finish_reason": "x"}]},
        {"choices": [{"delta": {}, "logprobs": {"content": [{"logprob": -(10**400)}]}}]},
        {"error": {"code": 10**30}}, {"usage": {"prompt_tokens": 10**400}, "model": "m" * 10**6},
    ]  # fmt: skip
    for chunk in odd:
        answer = chat.StreamedReply(100)
        try:
            answer.take(json.loads(json.dumps(chunk)))
        except chat.Oddity:
            continue
        reply = answer.reply(latency_s=1.0, first_token_s=None, model="m", version=None)
        reply.text.encode()


NAMES = st.sampled_from([
    "choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments",
    "index", "id",
    "finish_reason", "logprobs", "logprob", "token_ids", "usage", "prompt_tokens", "model", "error",
    "code",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("{}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)
CHUNK = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"delta": JSON, "logprobs": JSON}))}
)


@drawing(max_examples=50)  # each is drawn slowly
@given(st.lists(JSON | CHUNK, max_size=5))
def test_chunks_of_any_shape_make_a_reply_or_an_oddity(chunks: list[Any]) -> None:
    answer = chat.StreamedReply(100)
    for chunk in chunks:
        try:
            answer.take(chunk)
        except chat.Oddity as oddity:
            assert str(oddity)
    reply = answer.reply(latency_s=1.0, first_token_s=None, model="m", version=None)
    reply.text.encode()
    assert (
        reply.token_ids is None
        or reply.logprobs is None
        or len(reply.token_ids) == len(reply.logprobs)
    )
