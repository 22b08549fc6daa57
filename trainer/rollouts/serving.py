"""Rollouts by vLLM, with the weights of the step: the same interface as generation.Local.

A server of its own is started from a checkpoint-like folder; `refresh` writes the new weights
there and lets the workers read them again in place (0.1 s for a small model), then empties the
prefix cache, which still knows the old ones. Prompts go as token ids, and replies come as token
ids with their log-probabilities. A reply that is held to a list is asked for branch by branch, one
token among those that may follow (vLLM's own ``choice`` accepts any spelling of a text, so neither
its numbers nor its greedy answer are ours: 7 of 8 differed); what stands before is in the prefix
cache. A vLLM that died is started again, a few times. Not covered: servers on other machines;
others on this one, who cannot ask (a key) but can have the weights read again, which vLLM guards
with nothing."""

from __future__ import annotations

import asyncio
import atexit
import copy
import os
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import torch
from safetensors.torch import save_file
from torch import Tensor

from kernel_lsp.agents.backbones import vllm
from kernel_lsp.agents.backbones.serving import ModelServer, ServerOrder
from kernel_lsp.errors import BackboneError, KernelLspError
from trainer.algorithms.batches import Allowed
from trainer.config import RolloutsConfig
from trainer.policies import models
from trainer.rollouts.generation import Ask, Sampled, Trees
from trainer.training.checkpoints import WEIGHTS

REQUEST_S = 600.0
IDLE_S = 30 * 86_400.0
"""A step of training may be long, and whoever made the server ends it."""
IN_FLIGHT = 64
MAX_REVIVALS = 3
"""Of one run: a vLLM that died is started again; one that a prompt kills would die for ever."""
DEATH_S = 10.0
"""Until a connection that broke is a server that died."""
NAME = "policy"
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Of the trainer's processes; vLLM would take itself for one more of them."""
GPUS = "KERNEL_LSP_VLLM_GPUS"
"""Which GPUs are vLLM's, where whoever placed the run says so."""


class ServingError(KernelLspError):
    """vLLM could not be started, or does not answer."""


def apart_from_ranks(around: Mapping[str, str], gpus: int) -> dict[str, str]:
    """Returns what vLLM is started in: nothing of the trainer's processes, and other GPUs than
    theirs, where there are several of them or whoever placed the run says which."""
    own = {name: value for name, value in around.items() if name not in RANKS}
    own = {name: value for name, value in own.items() if not name.startswith("TORCHELASTIC_")}
    ranks, placed = int(around.get("LOCAL_WORLD_SIZE", "1")), own.pop(GPUS, "")
    if not placed and gpus and ranks > 1:
        visible = own.get("CUDA_VISIBLE_DEVICES", "").split(",")
        numbers = visible if visible != [""] else [str(n) for n in range(ranks + gpus)]
        placed = ",".join(numbers[ranks : ranks + gpus])
    return own | ({"CUDA_VISIBLE_DEVICES": placed} if placed else {})


class Served:
    """A vLLM that belongs to this run."""

    apart = True

    def __init__(
        self, config: Any, tokenizer: Any, folder: Path, rollouts: RolloutsConfig, seed: int
    ) -> None:
        """``config``: of the model, as transformers has it."""
        self._config = config
        self._tokenizer, self._folder, self._rollouts, self._seed = (
            tokenizer,
            folder.absolute(),  # the server is started elsewhere
            rollouts,
            seed,
        )
        self._version = -1
        self._server: ModelServer | None = None
        atexit.register(self.close)
        self._client: httpx2.Client
        self._key = secrets.token_hex(16)
        self._lock, self._revivals = threading.Lock(), 0
        self._trees = Trees(tokenizer)

    # --- weights ----------------------------------------------------------------------------------

    def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """From now on these weights. Raises ServingError."""
        if version == self._version:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        dtype = torch.bfloat16 if self._rollouts.gpus else torch.float32
        record = {
            name: value.detach().cpu().to(dtype).contiguous() for name, value in weights.items()
        }
        # As two matrices, also where they are one: a reload leaves vLLM's own copy of a tied one as
        # it was (0.32 on the CPU: half new, half old).
        record["lm_head.weight"] = record.get(
            "lm_head.weight", record["model.embed_tokens.weight"]
        ).clone()
        drafted = self._folder / f".{WEIGHTS}"
        save_file(record, drafted, metadata={"format": "pt"})
        drafted.replace(self._folder / WEIGHTS)
        if self._server is None:
            config = copy.deepcopy(self._config)
            config.tie_word_embeddings = False
            config.save_pretrained(self._folder)
            self._tokenizer.save_pretrained(self._folder)
            self._start()
        else:
            self._ask("/collective_rpc", {"method": "reload_weights"})
            self._ask("/reset_prefix_cache", None)
        self._version = version

    def _start(self) -> None:
        port = vllm.free_port()
        python = str(self._rollouts.python or sys.executable)
        order = ServerOrder(
            name="vLLM",
            argv=[*vllm.program(python), str(self._folder), *self._flags(port)],
            environment=apart_from_ranks(os.environ, self._rollouts.gpus) | self._environment(),
            log=self._folder / "log" / "vllm.log",
            origin=f"http://127.0.0.1:{port}",
            idle_s=IDLE_S,
        )
        self._server = ModelServer(order)
        self._client = httpx2.Client(
            base_url=order.origin,
            headers={"Authorization": f"Bearer {self._key}"},
            timeout=REQUEST_S,
            trust_env=False,
            limits=httpx2.Limits(max_connections=IN_FLIGHT),
        )
        try:
            with ThreadPoolExecutor(1) as apart:  # whoever asks may have an event loop of its own
                apart.submit(asyncio.run, self._server.well(lambda progress: None)).result()
        except BackboneError as failed:
            self.close()
            raise ServingError(
                f"vLLM did not start: {failed}", "rollouts.python names one that has vllm"
            ) from failed

    def _flags(self, port: int) -> list[str]:
        choice = self._rollouts
        gpu = [
            "--gpu-memory-utilization",
            str(choice.memory_share),
            "--tensor-parallel-size",
            str(choice.gpus),
        ]
        flags = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME]
        flags += [
            "--seed",
            str(self._seed),
            "--max-model-len",
            str(self._tokenizer.model_max_length),
        ]
        flags += ["--logprobs-mode", "processed_logprobs", "--disable-uvicorn-access-log"]
        # On the CPU as the trainer computes (left alone it takes float16); on GPUs half the memory.
        dtype = ["--dtype", "bfloat16" if choice.gpus else "float32"]
        return [*flags, *dtype, *(gpu if choice.gpus else ["--enforce-eager"])]

    def _environment(self) -> dict[str, str]:
        own = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # the routes that reload weights
            "VLLM_API_KEY": self._key,
        }
        return (
            own
            if self._rollouts.gpus
            else own | {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
        )

    def close(self) -> None:
        """Ends the server with all that it has started. Safe to call twice."""
        if self._server is not None:
            self._client.close()
            self._server.stop_now("the run ends")
            self._server = None

    # --- replies ----------------------------------------------------------------------------------

    def generate(self, asks: Sequence[Ask], seed: int, *, greedy: bool = False) -> list[Sampled]:
        """Raises ServingError."""
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            numbers = range(len(asks))
            return list(pool.map(lambda i: self._reply(asks[i], seed + i, greedy), numbers))

    def _reply(self, ask: Ask, seed: int, greedy: bool) -> Sampled:
        prompt = models.encode_prompt(self._tokenizer, ask.messages)
        if ask.choices is not None:
            return self._held(ask.choices, prompt, seed, greedy)
        body = self._body(prompt, self._rollouts.max_tokens, seed, greedy)
        choice = self._ask("/v1/completions", body)["choices"][0]
        return Sampled(
            text=choice["text"],
            prompt_ids=tuple(prompt),
            reply_ids=tuple(choice["token_ids"]),
            logprobs=tuple(choice["logprobs"]["token_logprobs"]),
            allowed=None,
            version=self._version,
            ended=choice.get("finish_reason") != "length",
        )

    def _held(
        self, choices: tuple[str, ...], prompt: Sequence[int], seed: int, greedy: bool
    ) -> Sampled:
        """One of these replies, in the tokenizer's own tokens."""
        node = self._trees.of(choices)
        reply: list[int] = []
        logprobs: list[float] = []
        allowed: list[Allowed] = []
        while node:
            among = tuple(node)
            token, logprob = among[0], 0.0
            if len(among) > 1:
                body = self._body([*prompt, *reply], 1, seed + len(reply), greedy)
                choice = self._ask("/v1/completions", body | {"allowed_token_ids": among})[
                    "choices"
                ][0]
                token, logprob = choice["token_ids"][0], choice["logprobs"]["token_logprobs"][0]
            reply.append(token)
            logprobs.append(logprob)
            allowed.append(among)
            node = node[token]
        return Sampled(
            text=self._tokenizer.decode(reply, skip_special_tokens=True),
            prompt_ids=tuple(prompt),
            reply_ids=tuple(reply),
            logprobs=tuple(logprobs),
            allowed=tuple(allowed),
            version=self._version,
        )

    def _body(self, prompt: Sequence[int], tokens: int, seed: int, greedy: bool) -> dict[str, Any]:
        return {
            "model": NAME,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0.0 if greedy else self._rollouts.temperature,
            "top_p": self._rollouts.top_p,
            "top_k": 0,
            "seed": seed % 2**31,
            "logprobs": 1,
            "return_token_ids": True,
        }

    def _ask(self, path: str, body: dict[str, Any] | None) -> Any:
        """Of a server that died meanwhile, its successor is asked. Raises ServingError."""
        while True:
            seen = self._revivals
            try:
                answer = self._client.post(path, json=body)
                answer.raise_for_status()
                return answer.json() if answer.content else {}
            except httpx2.HTTPStatusError as refused:
                said = f"{refused.response.status_code} {refused.response.text[:300]}"
                raise ServingError(f"vLLM refused {path}: {said}") from refused
            except httpx2.HTTPError as lost:
                self._revive(seen, lost)

    def _revive(self, seen: int, lost: httpx2.HTTPError) -> None:
        """Start it again from the folder, which has the weights of the step; once for all that ask
        at that time. Raises ServingError where it still runs, or has died too often."""
        with self._lock:
            if self._revivals > seen:
                return  # another thread was quicker
            server, end = self._server, time.monotonic() + DEATH_S
            while server is not None and server.alive and time.monotonic() < end:
                time.sleep(0.05)
            if server is None or server.alive or self._revivals == MAX_REVIVALS:
                often = f" (started again {self._revivals} times)" if self._revivals else ""
                raise ServingError(
                    f"vLLM does not answer{often}: {lost}",
                    f"see {self._folder / 'log' / 'vllm.log'}",
                ) from lost
            server.stop_now("it died")
            self._start()
            self._revivals += 1
