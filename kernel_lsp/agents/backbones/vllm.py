"""vLLM that we start ourselves, then the same as any OpenAI-compatible endpoint.

What its command line and environment hold was measured on vLLM 0.32 (structured outputs without
free whitespace, native calls held to their schemas); never --trust-remote-code. It listens on the
loopback interface only, wants a random key, and sees nothing of the user's other keys. Not
covered: keeping and stopping it (serving.py), requests (openai.py), a model that fits no memory
share."""

from __future__ import annotations

import asyncio
import os
import secrets as random_keys
import socket
import sys
from dataclasses import replace
from pathlib import Path

from kernel_lsp.agents.backbones import serving
from kernel_lsp.agents.backbones.openai import OpenAI
from kernel_lsp.agents.backbones.weights import local, served_name
from kernel_lsp.config import Settings
from kernel_lsp.confinement import clean_environment
from kernel_lsp.errors import BackboneError
from kernel_lsp.origins import Endpoint
from kernel_lsp.records import ModelInfo, OnText, Progress, Prompt, Reply, Report
from kernel_lsp.secret_names import HIDDEN_VARIABLE

KV_CACHE_GB = 2
"""Of main memory, on the CPU only: 14,000 tokens of an 8B model, half a million of our test
model."""
CPU_SEQUENCES = 16
CPU_WITHOUT = frozenset({"seed"})
"""vLLM 0.32 on a CPU ends as a whole ("CPU Generator does not use offset") when it computes a
prompt in two parts and the request has a seed, which happens as soon as several long prompts are
in flight."""
KEPT = (
    "HOME",
    "USER",
    "TMPDIR",
    "XDG_",
    "HF_",
    "HUGGINGFACE_",
    "VLLM_",
    "NO_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
)
"""Beginnings of names, beside confinement.KEPT: where models are cached, and the way to them."""


class VLLM:
    """A `Backbone`. Its server outlives it until idle (serving.py)."""

    def __init__(self, settings: Settings, python: str, data_dir: str) -> None:
        if settings.model is None:
            raise BackboneError(
                "policy vllm needs a model",
                "set model (--model) to a folder or an id, e.g. Qwen/Qwen3-8B",
            )
        if settings.model.startswith("-"):
            raise BackboneError(
                f"{settings.model} is no model but an option", "set model to a folder or an id"
            )
        self._settings = replace(settings, model_requests_per_minute=None)
        self._python, self._data_dir = settings.model_python or python, data_dir
        self._starting = asyncio.Lock()
        self._server: serving.ModelServer | None = None
        self._chat: OpenAI | None = None

    async def open(self, report: Report) -> ModelInfo:
        """Start the server, unless it runs, and say which model it serves. Raises BackboneError."""
        await self._ready(report)
        assert self._chat is not None
        return await self._chat.open(report)

    async def count(self, prompt: Prompt) -> int:
        """Tokens of the prompt, as the server counts them; starts it where it does not run."""
        chat = await self._ready(_nobody)
        return await chat.count(prompt)

    async def reply(self, prompt: Prompt, on_text: OnText | None = None) -> Reply:
        """One reply of the server, which is not stopped as idle meanwhile. Raises BackboneError,
        which says so where the server has ended."""
        chat = await self._ready(_nobody)
        server = self._server
        assert server is not None
        try:
            with server.used():
                return await chat.reply(prompt, on_text)
        except BackboneError:
            if not server.alive:
                raise server.ended("in the middle of its work") from None
            raise

    async def close(self) -> None:
        """Ends our connections; the server stays for the next job until it is idle."""
        if self._chat is not None:
            await self._chat.close()

    async def _ready(self, report: Report) -> OpenAI:
        """A face of the running server, started again where it was stopped or died."""
        async with self._starting:
            if self._chat is not None and self._server is not None and self._server.alive:
                return self._chat
            if self._chat is not None:
                await self._chat.close()
                self._chat = None
            report(Progress(phase="model", message=f"vLLM starts with {self._settings.model}"))
            self._server = server = await asyncio.to_thread(
                serving.running,
                self._key(),
                lambda: order(self._settings, self._python, self._data_dir),
            )
            await server.well(report)
            chat = OpenAI(
                Endpoint(origin=server.order.origin, path="/v1"),
                replace(self._settings, model=served_name(str(self._settings.model))),
                kind="vllm",
                key=server.order.environment["VLLM_API_KEY"],
                on_measured_gpu=device(self._settings) == "cuda" and self._settings.device != "cpu",
                gone=lambda: not server.alive,
                without=CPU_WITHOUT if device(self._settings) == "cpu" else frozenset(),
            )
            await chat.open(report)
            self._chat = chat
            return chat

    def _key(self) -> object:
        s = self._settings
        return self._python, s.model, device(s), s.model_memory_share, self._data_dir


def order(settings: Settings, python: str, data_dir: str) -> serving.ServerOrder:
    """What to start for these settings, on a port that is free now."""
    port = free_port()
    return serving.ServerOrder(
        name="vLLM",
        argv=command(settings, python, port),
        environment=environment(settings, python),
        log=Path(data_dir).absolute() / "logs" / "vllm.log",
        origin=f"http://127.0.0.1:{port}",
        idle_s=settings.model_idle_s,
    )


def command(settings: Settings, python: str, port: int) -> list[str]:
    """The command line of vLLM's server for the model of the settings, on this machine's
    loopback."""
    model = str(settings.model)
    options = [
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", served_name(model)),
        *("--max-model-len", "auto"),  # the model's own, or what fits into the memory
        *("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}'),
        "--disable-uvicorn-access-log",
    ]
    if device(settings) == "cuda":
        options += ["--gpu-memory-utilization", str(settings.model_memory_share)]
    else:
        options += ["--enforce-eager", "--max-num-seqs", str(CPU_SEQUENCES)]
    return [*program(python), local(model) or model, *options]


def program(python: str) -> list[str]:
    """vLLM's own command, of the environment that has it; a model's folder or id follows."""
    return [python, "-m", "vllm.entrypoints.cli.main", "serve"]


def environment(settings: Settings, python: str) -> dict[str, str]:
    """Its own key and the user's settings of vLLM and Hugging Face; no other secret of the
    user's."""
    offline = local(str(settings.model)) is not None
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(KEPT)
        and not (HIDDEN_VARIABLE.search(name) and (offline or not name.startswith("HF_")))
    }
    beside = str(Path(python).absolute().parent)  # ninja, nvcc and the like of its environment
    mine = {
        "PATH": os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]),
        "VLLM_API_KEY": random_keys.token_urlsafe(32),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Otherwise native calls are held to the model's own markup, in which whitespace is free
        # again.
        "VLLM_ENFORCE_STRICT_TOOL_CALLING": "0",
    }
    if offline:
        mine |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if device(settings) == "cpu":
        # The first request with log-probabilities compiles a helper: 12.8 s, and 0.3 s without.
        mine |= {"TORCH_COMPILE_DISABLE": "1"}
        mine |= {
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", str(KV_CACHE_GB))
        }
    return {**clean_environment(), **kept, **mine}


def device(settings: Settings) -> str:
    """cuda or cpu. A vLLM is built for one of them: where a GPU is, for that, unless the settings
    say."""
    if settings.model_device != "auto":
        return settings.model_device
    return "cuda" if sys.platform == "linux" and Path("/dev/nvidiactl").exists() else "cpu"


def free_port() -> int:
    """A port of this machine that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _nobody(progress: Progress) -> None:
    pass
