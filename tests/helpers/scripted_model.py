"""An OpenAI-compatible server that does what a script says: a double for the faults that real ones
have.

    async with ScriptedModel([Say(tool="apply_skill"), Say(status=429), Say("prose")]) as server:
        ... Settings(policy="openai", endpoint=server.endpoint) ...
    with served([Say(tool="apply_skill")]) as server:  # in a thread, for code without a loop

Every chat request takes the next `Say`; when the script is at its end, its last entry answers on.
A function (request body -> Say) may stand for the list. A `Say` with a tool is carried as the
request allows: as JSON in the content under a schema, as a native call, else fenced in prose;
without arguments they are drawn from the schema, so that they are valid. What was asked stands in
`server.requests`. Standard library only. Not covered: what a real server does with a schema
(tests/vllm does that)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
PIECE = 8
"""Characters of one streamed piece, which counts as one token."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What kind of server it is."""

    models: tuple[str, ...] = ("scripted",)
    context: int | None = 32_768
    """Longest prompt and reply in tokens (4 characters each), else 400. None: it does not tell."""
    schema: bool | None = True
    """Does it know response_format: yes, no (400), or None: it accepts and ignores it."""
    tools: bool | None = True
    """Does it know tools: yes, no (400), or None: it accepts and ignores them."""
    key: str | None = None
    """The key that it wants."""
    vllm: bool = False
    """It says that it is vLLM 0.32.0, counts tokens and returns their ids."""
    refuses: tuple[str, ...] = ()
    """Names of request fields that it answers with 400."""
    seed: int = 0
    """Of arguments that are drawn."""


@dataclass(frozen=True)
class Say:
    """One answer. Faults can be combined with a text or a call."""

    text: str = ""
    tool: str | None = field(default=None, kw_only=True)
    """Call this one; "" takes the first that is offered. The text stands before it, where one
    can."""
    arguments: Json | str | None = field(default=None, kw_only=True)
    """None: drawn from the schema. A string is sent as it is, broken or not."""
    prose: bool = field(default=False, kw_only=True)
    """The call stands in a fence inside the text, whatever was asked for."""
    finish: str | None = field(default=None, kw_only=True)
    """Finish reason; None: stop or tool_calls, or length where max_tokens cut it."""
    delay_s: float = field(default=0.0, kw_only=True)
    """Before the headers."""
    gap_s: float = field(default=0.0, kw_only=True)
    """Between pieces."""
    status: int = field(default=200, kw_only=True)
    error: Any = field(default=None, kw_only=True)
    """Body's ``error`` with a status: an object, or a string as vLLM has it for 401."""
    retry_after: float | str | None = field(default=None, kw_only=True)
    location: str | None = field(default=None, kw_only=True)
    """With a 3xx status."""
    cut_after: int | None = field(default=None, kw_only=True)
    """The connection is cut after so many pieces."""
    endless: bool = field(default=False, kw_only=True)
    """The text is repeated until the client goes."""
    garbage: str | None = field(default=None, kw_only=True)
    """Sent as the data of one event, instead of the reply."""
    late_error: Any = field(default=None, kw_only=True)
    """An ``error`` event in the middle of the stream."""
    whole: bool = field(default=False, kw_only=True)
    """Answer with one JSON body although a stream was asked for."""


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    target: str
    """Path, or the absolute address when we are somebody's proxy."""
    headers: dict[str, str]
    """Names in lower case."""
    body: Json


Script = Sequence[Say] | Callable[[Json], Say]


class ScriptedModel:
    """The server, on a free port of ``host``, while its ``async with`` block lasts."""

    def __init__(
        self,
        script: Script = (Say("ok"),),
        options: Options | None = None,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        self.script, self.options, self.host = script, options or Options(), host
        self.port = 0
        self.requests: list[Request] = []
        self.running = 0
        """Chat requests being answered now."""
        self.most_running = 0
        self.left = 0
        """Chat requests whose client went before the end."""
        self._said = 0
        self._handlers: set[asyncio.Task[None]] = set()

    @property
    def origin(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def endpoint(self) -> str:
        return f"{self.origin}/v1"

    @property
    def chats(self) -> list[Json]:
        """Bodies of the chat requests, in order."""
        return [r.body for r in self.requests if r.target.endswith("/chat/completions")]

    async def __aenter__(self) -> ScriptedModel:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, limit=2**24)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Die: every connection is cut, none is accepted any more."""
        self._server.close()
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            request = await _read(reader)
            if request is not None:
                self.requests.append(request)
                await self._until_the_client_goes(reader, self._answer(request, writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # the client went, or stop() cut it off; asyncio would log a handler that was cancelled
            pass
        finally:
            self._handlers.discard(task)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _until_the_client_goes(self, reader: asyncio.StreamReader, answer: Any) -> None:
        answering, gone = asyncio.ensure_future(answer), asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
            else:
                self.left += 1
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        path, options = urlsplit(request.target).path, self.options
        if (
            options.key
            and path.startswith("/v1")
            and request.headers.get("authorization") != f"Bearer {options.key}"
        ):
            await _send(writer, 401, {"error": "Unauthorized"})
        elif path == "/v1/models":
            await _send(
                writer,
                200,
                {"object": "list", "data": [self._model(name) for name in options.models]},
            )
        elif path == "/v1/chat/completions":
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await self._chat(request.body, writer)
            finally:
                self.running -= 1
        elif path in ("/version", "/tokenize", "/health") and options.vllm:
            count = _tokens(request.body)
            await _send(
                writer, 200, {"version": "0.32.0", "count": count, "max_model_len": options.context}
            )
        else:
            await _send(
                writer, 404, {"error": {"message": f"no such path: {path}", "type": "NotFound"}}
            )

    def _model(self, name: str) -> Json:
        about: Json = {
            "id": name,
            "object": "model",
            "owned_by": "vllm" if self.options.vllm else "scripted",
        }
        return about | ({"max_model_len": self.options.context} if self.options.context else {})

    async def _chat(self, body: Json, writer: asyncio.StreamWriter) -> None:
        refusal = self._refusal(body)
        if refusal is not None:
            await _send(writer, *refusal)
            return
        say = self._next(body)
        await asyncio.sleep(say.delay_s)
        if say.status != 200:
            extra = {"Retry-After": str(say.retry_after)} if say.retry_after is not None else {}
            extra |= {"Location": say.location} if say.location else {}
            error = (
                say.error
                if say.error is not None
                else {"message": f"scripted {say.status}", "type": "scripted"}
            )
            await _send(writer, say.status, {"error": error}, extra)
        elif say.whole or not body.get("stream"):
            await _send(writer, 200, _completion(body, *self._carried(say, body), say))
        else:
            await self._stream(say, body, writer)

    def _next(self, body: Json) -> Say:
        if callable(self.script):
            return self.script(body)
        index, self._said = min(self._said, len(self.script) - 1), self._said + 1
        return self.script[index]

    def _refusal(self, body: Json) -> tuple[int, Json] | None:
        """What a server that checks its input would say."""
        options, kind = self.options, body.get("response_format", {}).get("type")

        def bad(message: str, param: str | None = None, status: int = 400) -> tuple[int, Json]:
            return status, {
                "error": {
                    "message": message,
                    "type": "BadRequestError",
                    "param": param,
                    "code": status,
                }
            }

        if body.get("model") not in options.models:
            return bad(f"The model `{body.get('model')}` does not exist.", "model", 404)
        if kind and options.schema is False:
            return bad("response_format is not supported", "response_format")
        if body.get("tools") and options.tools is False:
            return bad("this model does not support tools", "tools")
        for name in options.refuses:
            if name in body:
                return bad(
                    f"Unsupported parameter: '{name}' is not supported with this model.", name
                )
        if (
            options.context is not None
            and _tokens(body) + body.get("max_tokens", 0) > options.context
        ):
            words = f"This model's maximum context length is {options.context} tokens."
            return bad(words, "input_tokens")
        return None

    def _carried(self, say: Say, body: Json) -> tuple[str, list[tuple[str, str]]]:
        """(content, native calls) of an answer, in the form that was asked for."""
        if say.tool is None:
            return say.text, []
        name, arguments = self._call(say, body)
        envelope = f'{{"name":{json.dumps(name)},"arguments":{arguments}}}'
        if say.prose:
            return f"{say.text}\n```json\n{envelope}\n```\n", []
        if "response_format" in body and self.options.schema:
            return envelope, []
        if body.get("tools") and body.get("tool_choice") != "none" and self.options.tools:
            return say.text, [(name, arguments)]
        return f"{say.text}\n```json\n{envelope}\n```\n", []

    def _call(self, say: Say, body: Json) -> tuple[str, str]:
        offered = {
            tool["function"]["name"]: tool["function"]["parameters"]
            for tool in body.get("tools", ())
        }
        offered |= _branches(
            body.get("response_format", {}).get("json_schema", {}).get("schema", {})
        )
        name = say.tool or next(iter(offered), "")
        if isinstance(say.arguments, str):
            return name, say.arguments
        draw = random.Random(f"{self.options.seed}:{len(self.requests)}")
        arguments = (
            say.arguments if say.arguments is not None else sample(offered.get(name, {}), draw)
        )
        return name, json.dumps(arguments, separators=(",", ":"))

    async def _stream(self, say: Say, body: Json, writer: asyncio.StreamWriter) -> None:
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: "
            "close\r\n\r\n"
        )
        writer.write(head.encode())
        if say.garbage is not None:
            await _event(writer, say.garbage)
            return
        text, calls = self._carried(say, body)
        sent, limit = 0, body.get("max_tokens") if not say.endless else None
        async for delta in _deltas(text, calls, endless=say.endless):
            if say.cut_after is not None and sent >= say.cut_after:
                writer.transport.abort()
                return
            if say.late_error is not None and sent:
                await _event(writer, json.dumps({"error": say.late_error}))
                return
            if limit is not None and sent >= limit:
                break
            await _event(writer, json.dumps(_chunk(body, delta, sent, ids=self.options.vllm)))
            sent += 1
            await asyncio.sleep(say.gap_s)
        cut = limit is not None and sent >= limit
        finish = say.finish or ("length" if cut else "tool_calls" if calls else "stop")
        await _event(writer, json.dumps(_chunk(body, {}, None, finish=finish)))
        if body.get("stream_options", {}).get("include_usage"):
            await _event(
                writer,
                json.dumps({"choices": [], "model": body["model"], "usage": _usage(body, sent)}),
            )
        await _event(writer, "[DONE]")


@contextlib.contextmanager
def served(
    script: Script = (Say("ok"),), options: Options | None = None, *, host: str = "127.0.0.1"
) -> Iterator[ScriptedModel]:
    """A server in a thread of its own."""
    server, started = ScriptedModel(script, options, host=host), threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def run() -> None:
        async with server:
            started.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert started.wait(120), "the scripted server did not start"
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(120)
        loop.close()


def sample(schema: Json, draw: random.Random) -> Any:
    """A valid instance of a schema in the dialect of agents/tools.py."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if "anyOf" in schema:
        return sample(draw.choice(schema["anyOf"]), draw)
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return {name: sample(part, draw) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        count = draw.randint(schema.get("minItems", 0), schema.get("maxItems", 1))
        return [sample(schema.get("items", {}), draw) for _ in range(count)]
    if kind == "integer":
        return draw.randint(schema.get("minimum", 0), schema.get("maximum", 9))
    values: Json = {
        "boolean": draw.random() < 0.5,
        "number": draw.random(),
        "string": "because",
        "null": None,
    }
    return values.get(str(kind))


def _branches(schema: Json) -> Json:
    """Tool -> schema of its arguments, from an envelope."""
    found = {}
    for branch in schema.get("anyOf", [schema]):
        parts = branch.get("properties", {})
        if "name" in parts and "arguments" in parts:
            found[parts["name"].get("const") or parts["name"]["enum"][0]] = parts["arguments"]
    return found


async def _deltas(text: str, calls: list[tuple[str, str]], *, endless: bool) -> AsyncIterator[Json]:
    while True:
        for at in range(0, len(text), PIECE):
            yield {"content": text[at : at + PIECE]}
        if not endless:
            break
        if not text:
            yield {"content": " "}
    for index, (name, arguments) in enumerate(calls):
        start = {"index": index, "id": f"call-{index}", "type": "function"}
        yield {"tool_calls": [start | {"function": {"name": name, "arguments": arguments[:PIECE]}}]}
        for at in range(PIECE, len(arguments), PIECE):
            yield {
                "tool_calls": [
                    {"index": index, "function": {"arguments": arguments[at : at + PIECE]}}
                ]
            }


def _chunk(
    body: Json, delta: Json, number: int | None, *, finish: str | None = None, ids: bool = False
) -> Json:
    choice: Json = {"index": 0, "delta": delta, "finish_reason": finish}
    if body.get("logprobs") and number is not None:
        choice["logprobs"] = {"content": [{"token": "x", "logprob": -0.25 * number}]}
    if ids and body.get("return_token_ids") and number is not None:
        choice["token_ids"] = [1000 + number]
    return {
        "id": "chat",
        "object": "chat.completion.chunk",
        "model": body.get("model"),
        "choices": [choice],
    }


def _completion(body: Json, text: str, calls: list[tuple[str, str]], say: Say) -> Json:
    native = [
        {"id": f"call-{i}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(calls)
    ]
    message: Json = {"role": "assistant", "content": text or None} | (
        {"tool_calls": native} if native else {}
    )
    finish = say.finish or ("tool_calls" if native else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return {
        "id": "chat",
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model"),
        "choices": [choice],
        "usage": _usage(body, len(text) // PIECE + 1),
    }


def _usage(body: Json, sent: int) -> Json:
    prompt = _tokens(body)
    return {"prompt_tokens": prompt, "completion_tokens": sent, "total_tokens": prompt + sent}


def _tokens(body: Json) -> int:
    return len(json.dumps([body.get("messages"), body.get("tools")], ensure_ascii=False)) // 4


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, target, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(
        method=method, target=target, headers=headers, body=json.loads(raw) if raw else {}
    )


async def _event(writer: asyncio.StreamWriter, data: str) -> None:
    writer.write(f"data: {data}\n\n".encode())
    await writer.drain()


async def _send(
    writer: asyncio.StreamWriter, status: int, body: Json, extra: dict[str, str] | None = None
) -> None:
    raw = json.dumps(body).encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(raw)),
        "Connection": "close",
    } | (extra or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} Scripted\r\n{lines}\r\n".encode() + raw)
    await writer.drain()
