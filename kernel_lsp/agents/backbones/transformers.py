"""A small language model in a child process of ours, by Hugging Face transformers, on CPU or GPU.

For machines without a server, and for tests. One prompt at a time: the child answers in order.
Nothing leaves the process tree, so prompts go as they are. A reply that is cancelled ends at the
next token; a child that does not come to one (a long prompt on a CPU) is ended and started again
by the next question. Not covered: what happens inside (child.py); speed, for which there is vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernel_lsp import process
from kernel_lsp.agents import tools
from kernel_lsp.agents.backbones import chat, weights
from kernel_lsp.config import Settings
from kernel_lsp.errors import BackboneError
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
    Usage,
)

MODULE = "kernel_lsp.agents.backbones.child"
LOAD_S = 600.0
COUNT_S = 20.0
THREADS = {"OMP_WAIT_POLICY": "passive"}
"""Threads that wait sleep, not spin: beside other work on two cores 120 tokens took 35 s, so
3.5."""
CANCEL_S = 2.0
"""How long a cancelled reply may compute on before its process is ended."""


@dataclass
class PendingReply:
    """A question that waits for its answer."""

    answer: asyncio.Future[Json]
    on_text: OnText | None = None


@dataclass
class ModelProcess:
    """One child and the questions that it has."""

    child: process.Child
    about: Json = field(default_factory=dict)
    waiting: dict[int, PendingReply] = field(default_factory=dict)
    reading: asyncio.Task[None] | None = None


class Transformers:
    """A `Backbone`."""

    def __init__(self, settings: Settings, python: str) -> None:
        if settings.model is None:
            remedy = "set model (--model) to a folder or an id, e.g. Qwen/Qwen3-0.6B"
            raise BackboneError("policy transformers needs a model", remedy)
        self._settings, self._python = settings, settings.model_python or python
        self._numbers = itertools.count(1)
        self._starting = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._dialog: ModelProcess | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._using = 0
        self._loose: set[asyncio.Task[None]] = set()

    async def open(self, report: Report) -> ModelInfo:
        """Load the model in a child of its own, unless it runs, and say what it is. Raises
        BackboneError."""
        about = (await self._ready(report)).about
        return ModelInfo(
            backbone="transformers",
            model=weights.served_name(str(self._settings.model)),
            version=about["version"],
            context_tokens=about["context"],
            structured=_form(about),
            on_measured_gpu=about["device"] == "cuda" and self._settings.device != "cpu",
            temperature=self._settings.model_temperature,
            top_p=self._settings.model_top_p,
            reply_tokens=self._settings.model_reply_tokens,
        )

    async def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt, by the model's own tokenizer; a turn of the child, which does one
        thing at a time."""
        async with self._turn:
            conversation = await self._ready(_nobody)
            answer = await self._ask(
                conversation,
                {"op": "count", **_request_fields(prompt, conversation.about)},
                COUNT_S,
            )
        return int(answer["count"])

    async def reply(self, prompt: Prompt, on_text: OnText | None = None) -> Reply:
        """One reply of the child's model to the prompt; others wait for their turn. Raises
        BackboneError."""
        async with self._turn:
            conversation = await self._ready(_nobody)
            sampling, begun = prompt.sampling, time.monotonic()
            message = {
                "op": "reply",
                **_request_fields(prompt, conversation.about),
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": None if sampling.seed is None else sampling.seed % 2**63,
            }
            said = await self._ask(conversation, message, self._settings.model_timeout_s, on_text)
        return Reply(
            text=said["text"],
            finish=Finish.LENGTH if said["finish"] == "length" else Finish.STOP,
            token_ids=tuple(said["token_ids"]),
            logprobs=tuple(said["logprobs"]),
            usage=Usage(
                prompt_tokens=said["prompt_tokens"], completion_tokens=len(said["token_ids"])
            ),
            latency_s=time.monotonic() - begun,
            first_token_s=said["first_token_s"],
            model=weights.served_name(str(self._settings.model)),
            version=f"transformers-{conversation.about['version']}",
        )

    async def close(self) -> None:
        """End the child and what it was still asked."""
        if self._idle is not None:
            self._idle.cancel()
        if self._dialog is not None:
            await self._end(self._dialog)
        await asyncio.gather(*self._loose, return_exceptions=True)

    async def _ready(self, report: Report) -> ModelProcess:
        """The child with its model, started (again) where there is none."""
        async with self._starting:
            if self._dialog is not None and self._dialog.child.alive and self._dialog.about:
                return self._dialog
            report(
                Progress(phase="model", message=f"starting a process for {self._settings.model}")
            )
            limits = process.Limits(file_bytes=None)
            child = await process.start(
                MODULE, python=self._python, environment=THREADS, limits=limits
            )
            conversation = ModelProcess(child)
            self._dialog = conversation
            conversation.reading = asyncio.create_task(self._read(conversation))
            ticking = asyncio.create_task(_tick(report))
            try:
                conversation.about = await self._ask(conversation, self._order(), LOAD_S)
            except (BackboneError, asyncio.CancelledError):
                await self._end(conversation)
                raise
            finally:
                ticking.cancel()
            return conversation

    def _order(self) -> Json:
        settings = self._settings
        model = str(settings.model)
        return {
            "op": "open",
            "model": weights.local(model) or model,
            "offline": weights.local(model) is not None,
            "device": settings.model_device,
            "memory_share": settings.model_memory_share,
        }

    async def _ask(
        self,
        conversation: ModelProcess,
        message: Json,
        limit_s: float,
        on_text: OnText | None = None,
    ) -> Json:
        """Raises BackboneError. Cancelled or too late, the child is asked to leave it."""
        number = next(self._numbers)
        asked = PendingReply(asyncio.get_running_loop().create_future(), on_text)
        conversation.waiting[number] = asked
        try:
            with self._busy():
                await conversation.child.send({**message, "id": number})
                return await asyncio.wait_for(asyncio.shield(asked.answer), limit_s)
        except ConnectionError:
            raise self._lost(conversation) from None
        except TimeoutError:
            self._leave(conversation, number)
            remedy = "raise model_timeout_s, ask for a shorter reply, or take a smaller model"
            raise BackboneError(f"the model gave no reply within {limit_s:.0f} s", remedy) from None
        except asyncio.CancelledError:
            self._leave(conversation, number)
            raise

    def _leave(self, conversation: ModelProcess, number: int) -> None:
        task = asyncio.create_task(self._settle(conversation, number))
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)

    async def _settle(self, conversation: ModelProcess, number: int) -> None:
        """See to it that the child stops computing what nobody waits for."""
        asked = conversation.waiting.get(number)
        if asked is None or not conversation.child.alive:
            return
        asked.on_text = None
        with contextlib.suppress(ConnectionError):
            await conversation.child.send({"op": "cancel", "id": number})
        if not (await asyncio.wait([asked.answer], timeout=CANCEL_S))[0]:
            await self._end(conversation)
        if asked.answer.done():
            asked.answer.exception()  # nobody else will look at it

    async def _read(self, conversation: ModelProcess) -> None:
        try:
            while True:
                message, _ = await conversation.child.receive()
                asked = conversation.waiting.get(message["id"])
                if asked is None:
                    continue
                if message["op"] == "text":
                    if asked.on_text is not None:
                        asked.on_text(message["text"])
                    continue
                del conversation.waiting[message["id"]]
                if message["op"] == "failed":
                    asked.answer.set_exception(BackboneError(message["cause"], message["remedy"]))
                else:
                    asked.answer.set_result(message.get("value", {}))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, KeyError):
            await conversation.child.kill()
        finally:
            for asked in conversation.waiting.values():
                asked.answer.set_exception(self._lost(conversation))
            conversation.waiting.clear()

    async def _end(self, conversation: ModelProcess) -> None:
        if self._dialog is conversation:
            self._dialog = None
        await conversation.child.kill()
        if conversation.reading is not None:
            conversation.reading.cancel()
            await asyncio.gather(conversation.reading, return_exceptions=True)

    def _lost(self, conversation: ModelProcess) -> BackboneError:
        lines = [line for line in conversation.child.log.splitlines() if line.strip()]
        last = lines[-1][:300] if lines else "it said nothing"
        remedy = "ask again; it is started anew"
        if "No module named" in last:
            remedy = (
                f"pip install transformers torch xgrammar, for {self._python}, or set model_python"
            )
        return BackboneError(f"the model's process ended: {last}", remedy)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """It is not idle meanwhile, and stopped so long afterwards."""
        self._using += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield
        finally:
            self._using -= 1
            if not self._using:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(self._settings.model_idle_s, self._stop_idle)

    def _stop_idle(self) -> None:
        if self._dialog is not None:
            task = asyncio.create_task(self._end(self._dialog))
            self._loose.add(task)
            task.add_done_callback(self._loose.discard)


def _request_fields(prompt: Prompt, about: Json) -> Json:
    """The part of a request that the model sees, in the strongest form that it takes."""
    form = _form(about)
    schema = tools.envelope(prompt.tools) if prompt.tools and form is Structured.SCHEMA else None
    shown = form if about["tools"] else Structured.NONE
    offered = (
        chat.asked_for(prompt.tools, Structured.TOOLS)["tools"]
        if shown is not Structured.NONE
        else []
    )
    return {"messages": chat.messages(prompt, shown), "tools": offered, "schema": schema}


def _form(about: Json) -> Structured:
    if about["schema"]:
        return Structured.SCHEMA
    return Structured.TOOLS if about["tools"] else Structured.NONE


async def _tick(report: Report) -> None:
    for seconds in itertools.count(1):
        await asyncio.sleep(1.0)
        report(Progress(phase="model", message=f"loading the model, {seconds} s"))


def _nobody(progress: Progress) -> None:
    pass
