"""Chat completions: a prompt as a request of one of three forms, and a stream of chunks as a
reply. Pure.

SCHEMA holds the whole reply to one JSON value, the call, and shows the tools beside it
(`tool_choice: none`, because the grammar of the schema and that of native calls are two); TOOLS
asks for a native call; NONE describes the calls in words. What the model said before is shown to
it in the form that is asked for now. Not covered: sending (transport.py), making sense of what
came (agents/replies.py)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernel_lsp.agents import tools
from kernel_lsp.agents.secrets import each_text
from kernel_lsp.records import (
    Finish,
    Json,
    Message,
    Prompt,
    Reply,
    Role,
    Structured,
    ToolCall,
    ToolSchema,
    Usage,
)

TEXT_CHARS = 1_000_000
"""Longest reply that is read."""
MAX_NAME_CHARS = 500
"""A model's name and version stand in every request, in errors and in the journal."""
MAX_COUNT = 10**12
"""Of tokens. JSON knows integers that are no float."""
CHARS_PER_TOKEN = 8
"""More than any tokenizer's average: a server that goes on after max_tokens times this ignores the
limit."""


class Oddity(Exception):
    """No chunk of a reply: an ``error`` event (with its status, where it has one), or something
    else."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def request(
    prompt: Prompt, *, model: str, form: Structured, vllm: bool, without: frozenset[str]
) -> Json:
    """The body of a chat request. ``without`` names fields that this server has refused."""
    sampling = prompt.sampling
    body: Json = {
        "model": model,
        "messages": each_text(messages(prompt, form), _clean),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed % 2**31
    if sampling.logprobs:
        body |= {"logprobs": True} | ({"return_token_ids": True} if vllm else {})
    body |= asked_for(prompt.tools, form) if prompt.tools else {}
    if vllm and prompt.tools:  # a grammar and a chain of thought before it exclude each other
        body["chat_template_kwargs"] = {"enable_thinking": False}
    if "max_tokens" in without:
        body["max_completion_tokens"] = body["max_tokens"]  # what OpenAI's reasoning models call it
    return {name: value for name, value in body.items() if name not in without}


def asked_for(offered: Sequence[ToolSchema], form: Structured) -> Json:
    """The fields that ask for one call of the tools."""
    shown = [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description, "parameters": tools.flat(t)},
        }
        for t in offered
    ]
    if form is Structured.SCHEMA:
        schema = {"name": "call", "schema": tools.envelope(offered), "strict": True}
        kind = {"type": "json_schema", "json_schema": schema}
        return {"response_format": kind, "tools": shown, "tool_choice": "none"}
    if form is Structured.TOOLS:
        return {"tools": shown, "tool_choice": "required", "parallel_tool_calls": False}
    return {}


def messages(prompt: Prompt, form: Structured) -> list[Json]:
    """The messages as this form shows them; neighbors of one role become one (some templates
    insist)."""
    if form is Structured.TOOLS or not prompt.tools:
        return [_native(message) for message in prompt.messages]
    plain = [_plain(message) for message in prompt.messages]
    if form is Structured.NONE and plain:
        plain[0] = replace(plain[0], text=f"{plain[0].text}\n\n{tools.in_words(prompt.tools)}")
    merged: list[Message] = []
    for message in plain:
        if merged and merged[-1].role is message.role:
            merged[-1] = replace(message, text=f"{merged[-1].text}\n\n{message.text}")
        else:
            merged.append(message)
    return [{"role": message.role.value, "content": message.text} for message in merged]


def _plain(message: Message) -> Message:
    """Calls as the JSON that is asked for, results of tools as the user's words."""
    if message.role is Role.TOOL:
        return replace(message, role=Role.USER)
    calls = [
        json.dumps({"name": c.name, "arguments": c.arguments}, ensure_ascii=False)
        for c in message.calls
    ]
    return replace(message, text="\n".join([*([message.text] if message.text else []), *calls]))


def _native(message: Message) -> Json:
    made: Json = {"role": message.role.value, "content": message.text}
    if message.calls:
        made["tool_calls"] = [
            {
                "id": _id(call, number),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for number, call in enumerate(message.calls)
        ]
    if message.role is Role.TOOL:
        made["tool_call_id"] = message.call_id or _id(None, 0)
    return made


def _id(call: ToolCall | None, number: int) -> str:
    return (
        call.id if call else ""
    ) or f"call{number:05d}"  # nine letters and digits: Mistral's templates check


def count(value: Any) -> int | None:
    """A number of tokens that a server has said; None for what is none."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= MAX_COUNT else None


def name_of(value: Any) -> str | None:
    """What a server calls its model or version; None for what is no name."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS else None


class StreamedReply:
    """A reply in the making, from the chunks of a stream or from one whole completion."""

    def __init__(self, sampling_tokens: int) -> None:
        self._most = min(TEXT_CHARS, sampling_tokens * CHARS_PER_TOKEN)
        self._text: list[str] = []
        self._calls: dict[int, Json] = {}
        self._chars = 0
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._usage = Usage()
        self.finish: str | None = None
        """As the server says it; None: it has not ended."""
        self.model: str | None = None
        self.version: str | None = None

    @property
    def begun(self) -> bool:
        """Whether any text or call of the reply has come yet."""
        return self._chars > 0

    @property
    def full(self) -> bool:
        """Whether the reply is longer than was asked for: time to hang up."""
        return self._chars > self._most

    def take(self, chunk: Any) -> str:
        """Read one chunk; returns the text that it adds. Raises Oddity."""
        if not isinstance(chunk, dict):
            raise Oddity("a chunk is no object")
        if error := chunk.get("error"):
            code = error.get("code") if isinstance(error, dict) else None
            is_status = isinstance(code, int) and 100 <= code < 600
            raise Oddity(json.dumps(error), code if is_status else None)
        self.model = name_of(chunk.get("model")) or self.model
        self.version = name_of(chunk.get("system_fingerprint")) or self.version
        self._take_usage(chunk.get("usage"))
        choices = _list(chunk.get("choices"))
        if not choices or not isinstance(choices[0], dict):
            return ""
        choice = choices[0]
        self.finish = _string(choice.get("finish_reason")) or self.finish
        self._take_tokens(choice)
        delta = choice.get("delta") or choice.get("message") or {}
        return self._take_delta(delta) if isinstance(delta, dict) else ""

    def reply(
        self, *, latency_s: float, first_token_s: float | None, model: str, version: str | None
    ) -> Reply:
        """The whole reply, once its last chunk has come: text, calls, tokens where the server named
        all, and what it took."""
        calls, broken = self._ended_calls()
        text = _clean("".join(self._text))[: self._most] + broken
        cut = self.finish == "length" or self.full
        known = self._ids and (not self._logprobs or len(self._ids) == len(self._logprobs))
        return Reply(
            text=text,
            calls=calls,
            finish=Finish.LENGTH if cut else Finish.CALLS if calls else Finish.STOP,
            token_ids=tuple(self._ids) if known else None,
            logprobs=tuple(self._logprobs) or None,
            usage=self._usage,
            latency_s=latency_s,
            first_token_s=first_token_s,
            model=self.model or model,
            version=self.version or version,
        )

    def _take_delta(self, delta: Json) -> str:
        text = _string(delta.get("content")) or ""
        thought = _string(delta.get("reasoning_content")) or _string(delta.get("reasoning")) or ""
        self._text.append(text)
        self._chars += len(text) + len(thought)
        for call in _list(delta.get("tool_calls")):
            if isinstance(call, dict):
                text += self._take_call(call)
        return text

    def _take_call(self, call: Json) -> str:
        index = call.get("index")
        known = self._calls.setdefault(
            index if isinstance(index, int) else len(self._calls),
            {"id": "", "name": "", "arguments": []},
        )
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        known["id"] = _string(call.get("id")) or known["id"]
        known["name"] = _string(function.get("name")) or known["name"]
        piece = function.get("arguments")
        piece = piece if isinstance(piece, str) else json.dumps(piece) if piece is not None else ""
        known["arguments"].append(piece)
        self._chars += len(piece)
        return piece

    def _take_tokens(self, choice: Json) -> None:
        self._ids += [i for i in _list(choice.get("token_ids")) if isinstance(i, int)]
        logprobs = choice.get("logprobs")
        for token in _list(logprobs.get("content")) if isinstance(logprobs, dict) else ():
            value = token.get("logprob") if isinstance(token, dict) else None
            if isinstance(value, (int, float)) and abs(value) <= MAX_COUNT:  # not NaN either
                self._logprobs.append(float(value))

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")
            self._usage = Usage(
                prompt_tokens=count(usage.get("prompt_tokens")),
                completion_tokens=count(usage.get("completion_tokens")),
                cached_tokens=count(details.get("cached_tokens"))
                if isinstance(details, dict)
                else None,
            )

    def _ended_calls(self) -> tuple[tuple[ToolCall, ...], str]:
        """Calls whose arguments are an object, and the others as the text that the parser knows."""
        calls, broken = [], ""
        for _, call in sorted(self._calls.items()):
            raw = "".join(call["arguments"])[: self._most]
            arguments: Any = None
            with contextlib.suppress(ValueError, RecursionError):
                arguments = each_text(json.loads(raw or "{}"), _clean)
            if isinstance(arguments, dict):
                calls.append(
                    ToolCall(name=_clean(call["name"]), arguments=arguments, id=call["id"])
                )
            else:
                name = json.dumps(_clean(call["name"]))
                broken += (
                    f'\n<tool_call>\n{{"name": {name}, "arguments": {_clean(raw)}}}\n</tool_call>'
                )
        return tuple(calls), broken


def _clean(text: str) -> str:
    """Without lone surrogates, which JSON can spell and no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
