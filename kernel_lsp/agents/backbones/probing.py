"""What `kernel-lsp doctor` says of the language model: is it there, and what can it do. Starts no
server.

An endpoint is asked for its models and for one call of a harmless tool (some 100 tokens), which
shows whether it can be held to a schema. Of a model of our own, what is installed is looked up.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kernel_lsp import scratch
from kernel_lsp.agents import backbones, secrets
from kernel_lsp.agents.backbones import weights
from kernel_lsp.config import Settings
from kernel_lsp.confinement import Confinement, clean_environment, entry
from kernel_lsp.errors import BackboneError, Unconfined
from kernel_lsp.records import Message, ModelInfo, Prompt, Role, Sampling, Structured, ToolSchema

NEEDED = {"vllm": ("vllm",), "transformers": ("transformers", "torch", "xgrammar")}
LOOK_S = 20.0
HELD = {
    Structured.SCHEMA: "every call held to its schema",
    Structured.TOOLS: "tool calls, not held to their schema",
    Structured.NONE: "neither schemas nor tool calls: replies are read as they come",
}
_QUESTION = Prompt(
    messages=(Message(role=Role.USER, text="Answer with the size 2."),),
    tools=(
        ToolSchema(
            name="answer",
            description="Answer.",
            parameters={
                "type": "object",
                "properties": {"size": {"enum": [1, 2, 4]}},
                "required": ["size"],
                "additionalProperties": False,
            },
        ),
    ),
    sampling=Sampling(max_tokens=512, temperature=0.0),  # room for a model that thinks first
)
_LOOK = (
    "import sys, importlib.util as u; print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"
)


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    ok: bool
    words: str
    remedy: str | None = None


async def probe(settings: Settings, *, python: str, allowed_origin: str | None) -> ProbeResult:
    """What there is to say of the configured model: whether it answers, and what it can. Never
    raises for what a model or its absence can do."""
    if settings.policy == "plan":
        return ProbeResult(ok=True, words="none: policy plan needs no model")
    try:
        if settings.policy == "openai":
            return await _endpoint(settings, python, allowed_origin)
        return await _own(settings, settings.model_python or python)
    except BackboneError as error:
        return ProbeResult(ok=False, words=f"{settings.policy}: {error.cause}", remedy=error.remedy)


async def _endpoint(settings: Settings, python: str, allowed_origin: str | None) -> ProbeResult:
    backbone = backbones.make(
        settings, python=python, allowed_origin=allowed_origin, data_dir=settings.data_dir
    )
    try:
        info = await backbone.open(lambda progress: None)
        await backbone.reply(_QUESTION)
        info = await backbone.open(lambda progress: None)
    finally:
        await backbone.close()
    key = await asyncio.to_thread(secrets.key_source, str(info.origin), settings)
    return ProbeResult(
        ok=True,
        words=", ".join((*_about(info), f"key: {key[1] if key else 'none, and none needed'}")),
    )


def _about(info: ModelInfo) -> tuple[str, ...]:
    context = f"{info.context_tokens} tokens" if info.context_tokens else "context length unknown"
    return f"{info.name} at {info.origin}", context, HELD[info.structured]


async def _own(settings: Settings, python: str) -> ProbeResult:
    # Raises where something is missing; nothing is started by it.
    backbones.make(settings, python=python, allowed_origin=None, data_dir=settings.data_dir)
    missing = await _missing(python, NEEDED[settings.policy])
    model = str(settings.model)
    where = "a folder here" if weights.local(model) else "downloaded at its first use"
    words = f"{settings.policy}: {model} ({where}), by {python}"
    pip = f"{python} -m pip install {' '.join(missing)}"
    if missing == ["xgrammar"]:
        return ProbeResult(
            ok=True, words=words, remedy=f"{pip}: replies are then held to their schema"
        )
    if missing:
        words += f", which has no {', '.join(missing)}"
        return ProbeResult(
            ok=False, words=words, remedy=f"{pip}, or set model_python to one that has it"
        )
    return ProbeResult(ok=True, words=words)


async def _missing(python: str, names: tuple[str, ...]) -> list[str]:
    """Modules that an interpreter does not have; none of them is imported."""
    with scratch.folder("probe") as neutral:
        try:
            begun = await entry.start(
                (python, "-I", "-c", _LOOK, *names),
                confinement=Confinement(scratch=neutral),
                environment=clean_environment(),
                stderr=entry.DEVNULL,
            )
        except OSError as error:
            cause = f"{python} cannot be started: {error.strerror}"
            raise BackboneError(cause, "correct model_python") from None
        except Unconfined as error:
            raise BackboneError(error.cause, error.remedy) from None
        process = begun.process
        try:
            async with asyncio.timeout(LOOK_S):
                out, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            cause = f"{python} said nothing for {LOOK_S:.0f} s"
            raise BackboneError(cause, "correct model_python") from None
    if process.returncode:
        raise BackboneError(f"{python} is no Python that works", "correct model_python")
    return out.decode().split()
