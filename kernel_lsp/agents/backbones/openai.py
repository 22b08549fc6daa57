"""Any OpenAI-compatible endpoint as a backbone: vLLM first, then whatever speaks its dialect.

What a server can do is found by asking: a request in the strongest form that has not been refused,
the next weaker one when it is (400, or 500 as vLLM says of a grammar that it cannot compile), and
what worked is remembered. Fields that a server does not know are left out from then on. Every
message is redacted before it leaves, and placeholders in the reply are put back. Not covered: HTTP
(transport.py), bodies (chat.py), whether the origin is allowed (`backbones.make`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernel_lsp.agents import secrets
from kernel_lsp.agents.backbones import chat, neighbor, refusals
from kernel_lsp.agents.backbones.transport import HttpFailure, Transport
from kernel_lsp.config import Settings
from kernel_lsp.errors import BackboneError
from kernel_lsp.origins import Endpoint
from kernel_lsp.records import (
    Finish,
    Json,
    ModelInfo,
    OnText,
    Progress,
    Prompt,
    Reply,
    Report,
    Structured,
)

log = logging.getLogger(__name__)

FORMS = (Structured.SCHEMA, Structured.TOOLS, Structured.NONE)
DOUBTS = 2
"""So many failures of the server itself on a form that has not worked yet, and a weaker one is
taken."""
TOKENS_PER_BYTE = 0.4
"""Until a server has counted: source code has 0.25 to 0.35 tokens a byte."""
TOKENS_PER_MESSAGE = 8
MARGIN = 1.1
COUNTED = ("messages", "tools", "chat_template_kwargs")
"""Fields that the chat template sees."""
CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
"""How servers call it in /v1/models: vLLM and SGLang first."""


class OpenAI:
    """A `Backbone`. For our own server: its ``key``, whether it is ``gone`` (see Transport), and
    fields that requests go ``without``."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: Settings,
        *,
        kind: str = "openai",
        key: str | None = None,
        on_measured_gpu: bool = False,
        gone: Callable[[], bool] = lambda: False,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._endpoint, self._settings, self._kind = endpoint, settings, kind
        self._given_key, self._on_measured_gpu = key, on_measured_gpu
        self._gone = gone
        self._key: str | None = None
        self._transport: Transport | None = None
        self._info: ModelInfo | None = None
        self._opening = asyncio.Lock()
        self._vllm = False
        self._proven = False
        """The form in ``_info`` has worked."""
        self._doubts = 0
        self._without = without
        self._per_byte = 0.0

    async def open(self, report: Report) -> ModelInfo:
        """Ask the endpoint once which model it serves and which forms it takes; the answer is kept.
        Raises BackboneError."""
        async with self._opening:
            if self._info is None or self._transport is None:
                report(Progress(phase="model", message=f"asking {self._endpoint.origin}"))
                self._key = self._given_key or await asyncio.to_thread(
                    secrets.key_for, self._endpoint.origin, self._settings
                )
                if self._key and not (
                    self._key.isascii() and self._key.isprintable() and " " not in self._key
                ):
                    remedy = (
                        f"put it anew into {self._settings.api_key_env} or the keyring, "
                        f"without quotes"
                    )
                    raise BackboneError("the API key holds characters that no key has", remedy)
                if (
                    self._key
                    and self._endpoint.remote
                    and self._endpoint.origin.startswith("http:")
                ):
                    raise _in_the_clear(self._endpoint.origin)
                self._transport = self._transport or Transport(
                    self._endpoint,
                    key=self._key,
                    in_flight=self._settings.model_samples,
                    per_minute=self._settings.model_requests_per_minute,
                    gone=self._gone,
                )
                self._info = await self._asked(self._transport)
            return self._info

    async def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt, secrets taken out: counted by a vLLM, estimated from bytes
        elsewhere."""
        info, transport = self._opened()
        safe = secrets.redact_prompt(prompt, self._keys())[0]
        body = chat.request(
            safe, model=info.model, form=info.structured, vllm=self._vllm, without=self._without
        )
        asked: Json = {name: part for name, part in body.items() if name in COUNTED}
        if self._vllm:
            try:
                counted = await transport.ask("/tokenize", {"model": info.model, **asked})
                tokens = chat.count(counted.get("count")) if isinstance(counted, dict) else None
                if tokens is not None:
                    return tokens
            except HttpFailure as failure:
                log.debug("%s does not count tokens: %s", self._endpoint.origin, failure)
        return self._estimate(asked)

    async def reply(self, prompt: Prompt, on_text: OnText | None = None) -> Reply:
        """One reply of the model to the prompt, secrets taken out. Raises BackboneError, also after
        `model_timeout_s`."""
        self._opened()
        safe, redaction = secrets.redact_prompt(prompt, self._keys())
        limit = self._settings.model_timeout_s
        try:
            async with asyncio.timeout(limit):
                reply = await self._in_some_form(safe, on_text, time.monotonic() + limit)
        except TimeoutError:
            remedy = "raise model_timeout_s, ask for a shorter reply, or take a faster model"
            raise BackboneError(
                f"{self._endpoint.origin} gave no reply within {limit:.0f} s", remedy
            ) from None
        except HttpFailure as failure:
            raise self._error(failure) from None
        return restore_secrets(reply, redaction)

    async def close(self) -> None:
        """Close the connections; `open` makes new ones."""
        transport, self._transport, self._info = self._transport, None, None
        if transport is not None:
            await transport.close()

    def _opened(self) -> tuple[ModelInfo, Transport]:
        if self._info is None or self._transport is None:
            raise BackboneError(
                "the model was asked while it was not open", "this is a defect of kernel-lsp"
            )
        return self._info, self._transport

    def _keys(self) -> tuple[str, ...]:
        return (self._key,) if self._key else ()

    async def _in_some_form(self, prompt: Prompt, on_text: OnText | None, deadline: float) -> Reply:
        """In the strongest form that this server takes; remembers which one that is. Raises
        HttpFailure."""
        first = self._opened()[0].structured if prompt.tools else Structured.NONE
        refusal: HttpFailure | None = None
        for form in FORMS[FORMS.index(first) :]:
            try:
                reply = await self._in_form(prompt, form, on_text, deadline)
            except HttpFailure as failure:
                if form is Structured.NONE or not refusals.of_the_form(failure):
                    raise
                log.info("%s refuses the form %s: %s", self._endpoint.origin, form.value, failure)
                refusal = failure
                continue
            if prompt.tools:
                self._learn(form, reply, refusal)
            return reply
        raise AssertionError("unreachable")

    def _learn(self, form: Structured, reply: Reply, refusal: HttpFailure | None) -> None:
        """What a server takes is known by its first success; a form that has worked stays, and one
        failure of the server's own (500) proves nothing."""
        info = self._opened()[0]
        if form is info.structured:
            complete = reply.finish is not Finish.LENGTH and bool(reply.text.strip())
            ignored = (
                form is Structured.SCHEMA and complete and not self._proven and not _is_json(reply)
            )
            self._proven, self._doubts = not ignored, 0
            if ignored:
                self._info = replace(info, structured=Structured.TOOLS)
        elif not self._proven and refusal is not None:
            self._doubts += 1 if refusal.status == 500 else DOUBTS
            if self._doubts >= DOUBTS:
                self._info, self._proven = replace(info, structured=form), True

    async def _in_form(
        self, prompt: Prompt, form: Structured, on_text: OnText | None, deadline: float
    ) -> Reply:
        """With fewer fields where the server refuses some. Raises HttpFailure."""
        transport = self._opened()[1]
        unless = frozenset() if self._proven or form is Structured.NONE else frozenset({500})
        while True:
            try:
                return await transport.persist(
                    lambda: self._once(prompt, form, on_text), unless=unless, deadline=deadline
                )
            except HttpFailure as failure:
                refused = refusals.field(failure) - self._without
                if not refused:
                    raise
                self._without |= refused

    async def _once(self, prompt: Prompt, form: Structured, on_text: OnText | None) -> Reply:
        info, transport = self._opened()
        body = chat.request(
            prompt, model=info.model, form=form, vllm=self._vllm, without=self._without
        )
        answer, begun, first = (
            chat.StreamedReply(prompt.sampling.max_tokens),
            time.monotonic(),
            None,
        )
        try:
            async with contextlib.aclosing(transport.answers("chat/completions", body)) as chunks:
                async for chunk in chunks:
                    text = answer.take(chunk)
                    if answer.begun and first is None:
                        first = time.monotonic() - begun
                    if text and on_text is not None:
                        on_text(text)
                    if answer.full:
                        break
        except chat.Oddity as oddity:
            raise HttpFailure(
                oddity.status, f"it broke off: {transport.clean(str(oddity))}"
            ) from None
        if answer.finish is None and not answer.full:
            raise HttpFailure(None, "the connection was cut in the middle of the reply")
        seconds = time.monotonic() - begun
        reply = answer.reply(
            latency_s=seconds, first_token_s=first, model=info.model, version=info.version
        )
        self._calibrate(body, reply)
        return reply

    def _calibrate(self, body: Json, reply: Reply) -> None:
        if reply.usage.prompt_tokens:
            share = MARGIN * reply.usage.prompt_tokens / _size(body)
            self._per_byte = max(self._per_byte, share)

    def _estimate(self, body: Json) -> int:
        each = TOKENS_PER_MESSAGE * len(body["messages"])
        return each + math.ceil(_size(body) * (self._per_byte or TOKENS_PER_BYTE))

    async def _asked(self, transport: Transport) -> ModelInfo:
        """What /models says of the server. Raises BackboneError."""
        try:
            deadline = time.monotonic() + self._settings.model_timeout_s
            listed = await transport.persist(lambda: transport.ask("models"), deadline=deadline)
        except HttpFailure as failure:
            if failure.status not in (404, 405, 501) or self._settings.model is None:
                raise self._error(failure) from None
            listed = None  # a server without this list; it says itself whether it knows the model
        models = [m for m in _list(listed) if isinstance(m, dict) and chat.name_of(m.get("id"))]
        about = self._chosen(models)
        self._vllm = about.get("owned_by") == "vllm"
        return ModelInfo(
            backbone=self._kind,
            model=about["id"],
            version=await self._version(transport) if self._vllm else None,
            origin=self._endpoint.origin,
            remote=self._endpoint.remote,
            context_tokens=next(
                (tokens for k in CONTEXT_KEYS if (tokens := chat.count(about.get(k)))), None
            ),
            structured=Structured.SCHEMA,
            on_measured_gpu=await asyncio.to_thread(self._shares_gpu),
            max_in_flight=self._settings.model_samples,
            temperature=self._settings.model_temperature,
            top_p=self._settings.model_top_p,
            reply_tokens=self._settings.model_reply_tokens,
        )

    def _shares_gpu(self) -> bool:
        """Does it compute on the GPU that judges? Of somebody else's server here: does it use
        any."""
        if self._on_measured_gpu or self._endpoint.remote or self._settings.device == "cpu":
            return self._on_measured_gpu
        return self._given_key is None and neighbor.computes_here(self._endpoint.port)

    def _chosen(self, models: list[Json]) -> Json:
        wanted, names = self._settings.model, [str(m["id"]) for m in models]
        if wanted is None:
            if len(models) != 1:
                remedy = f"set model to one of: {', '.join(names[:8]) or 'none is listed'}"
                raise BackboneError(f"{self._endpoint.origin} serves {len(models)} models", remedy)
            return models[0]
        found = next((m for m in models if m["id"] == wanted), None)
        if found is None and any(m.get("owned_by") == "vllm" for m in models):
            # Others have unlisted aliases.
            remedy = f"it serves: {', '.join(names[:8])}"
            raise BackboneError(f"{self._endpoint.origin} does not serve {wanted!r}", remedy)
        return found or {"id": wanted}

    async def _version(self, transport: Transport) -> str | None:
        with contextlib.suppress(HttpFailure):
            said = await transport.ask("/version")
            return chat.name_of(said.get("version")) if isinstance(said, dict) else None
        return None

    def _error(self, failure: HttpFailure) -> BackboneError:
        return refusals.explain_failure(
            failure, self._endpoint, self._settings, has_key=bool(self._key), info=self._info
        )


def _in_the_clear(origin: str) -> BackboneError:
    cause = (
        f"the API key would go to {origin} in the clear, for everybody between: that is plain http"
    )
    remedy = (
        "write https:// in endpoint; or forward a port of this machine (ssh -L "
        "8000:localhost:8000 HOST)"
        " and set http://127.0.0.1:8000/v1; or take the key away"
    )
    return BackboneError(cause, remedy)


def restore_secrets(reply: Reply, redaction: secrets.Redaction) -> Reply:
    """The reply with the secrets back in place of their placeholders: inside JSON as JSON writes
    them, where the whole text is that."""
    calls = (
        replace(c, arguments=secrets.each_text(c.arguments, redaction.restore)) for c in reply.calls
    )
    text = redaction.restore(reply.text)
    if text != reply.text:
        with contextlib.suppress(ValueError, RecursionError):
            whole = secrets.each_text(json.loads(reply.text), redaction.restore)
            text = json.dumps(whole, ensure_ascii=False)
    return replace(reply, text=text, calls=tuple(calls))


def _is_json(reply: Reply) -> bool:
    """Whether a server kept to a schema: the text is one JSON value, or it had parsed calls by
    itself."""
    try:
        json.loads(reply.text)
    except (ValueError, RecursionError):
        return bool(reply.calls)
    return True


def _size(body: Json) -> int:
    return len(json.dumps([body["messages"], body.get("tools")], ensure_ascii=False).encode())


def _list(listed: Any) -> list[Any]:
    found = listed.get("data") if isinstance(listed, dict) else listed
    return found if isinstance(found, list) else []
