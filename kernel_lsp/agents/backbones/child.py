"""The process that holds a small language model: loads it, answers one prompt after the other.

Frames (wire.py): open, count and reply are answered in order; cancel is looked at between two
tokens by the reply that it names. Everything comes ready from the parent (transformers.py):
messages, tools, schema. Runs in the interpreter that has torch and transformers; with xgrammar
there, replies are held to their schema. Weights are read from safetensors alone and a model's own
code is never run. Not covered: batches, quantization, several GPUs: that is vLLM's business."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from typing import Any

import torch
import transformers

from kernel_lsp import wire
from kernel_lsp.records import Json

GRAMMARS = 64
"""Compiled ones that are kept: most turns of a search offer other sites."""


class Failure(Exception):
    """What the parent tells as a BackboneError: (cause, remedy)."""


class RequestReader:
    """Requests in order, and which of them have been cancelled; read by a thread of its own."""

    def __init__(self, requests: wire.Pipe) -> None:
        self._pipe = requests
        self._waiting: queue.SimpleQueue[Json] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def next(self) -> Json:
        """The oldest request that nobody has taken yet; waits for one."""
        return self._waiting.get()

    def cancelled(self, number: int) -> bool:
        """Whether the request of that number has been cancelled by its asker."""
        return number in self._cancelled

    def _read(self) -> None:
        while (frame := wire.read_frame(self._pipe)) is not None:
            message = frame[0]
            if message["op"] == "cancel":
                self._cancelled.add(message["id"])
            else:
                self._waiting.put(message)
        os._exit(0)  # the parent is gone; whatever is being computed is nobody's any more


class Stop(transformers.StoppingCriteria):  # type: ignore[misc]
    """Ends a generation whose asker has left."""

    def __init__(self, inbox: RequestReader, number: int) -> None:
        self._inbox, self._number = inbox, number

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        gone = self._inbox.cancelled(self._number)
        return torch.full((input_ids.shape[0],), gone, dtype=torch.bool, device=input_ids.device)


class Logprobs(transformers.LogitsProcessor):  # type: ignore[misc]
    """Log-probabilities of the sampled tokens, as vLLM counts them: under the grammar, at
    temperature 1.

    It sees each token one step after the distribution that it was drawn from, and keeps that one
    alone (all of them would be 600 MB for a thousand tokens of a vocabulary of 150,000)."""

    def __init__(self) -> None:
        self._last: torch.Tensor | None = None
        self._found: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._take(int(input_ids[0, -1]))
        self._last = torch.log_softmax(scores[0].float(), dim=-1)
        return scores

    def ended(self, last_token: int) -> list[float]:
        """One log-probability per sampled token, ``last_token`` included; to be called when
        sampling is over."""
        self._take(last_token)
        return self._found

    def _take(self, token: int) -> None:
        if self._last is not None:
            self._found.append(float(self._last[token]))


class Pieces(transformers.TextStreamer):  # type: ignore[misc]
    """Sends text as it is finished; notes when the first token came."""

    def __init__(self, tokenizer: Any, replies: wire.Pipe, number: int) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._replies, self._number = replies, number
        self.first: float | None = None

    def put(self, value: Any) -> None:
        """Notes when the first token after the prompt comes, then hands the tokens to the base
        class."""
        if not self.next_tokens_are_prompt and self.first is None:
            self.first = time.monotonic()
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Sends a finished piece of text as a frame; called by the base class."""
        if text:
            wire.write_frame(self._replies, {"op": "text", "id": self._number, "text": text})


class LoadedModel:
    """One model with its tokenizer, on one device."""

    def __init__(self, request: Json) -> None:
        device = request["device"]
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda":
            torch.cuda.set_per_process_memory_fraction(request["memory_share"])
        source = {"trust_remote_code": False, "local_files_only": request["offline"]}
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(request["model"], **source)
        kind = "auto" if device == "cuda" else torch.float32  # half precision is slow on most CPUs
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            request["model"], dtype=kind, use_safetensors=True, **source
        )
        self._model, self._device = loaded.to(device).eval(), device
        self._context = int(getattr(self._model.config, "max_position_embeddings", 0)) or None
        self._compiler = _compiler(self._tokenizer, self._model.config.vocab_size)
        self._grammars: dict[str, Any] = {}

    def about(self) -> Json:
        """What the parent learns of the model: context in tokens, device, what it can be held to.
        Raises Failure when it has no chat template."""
        template = self._tokenizer.chat_template
        if not template:
            raise Failure(
                "the model has no chat template",
                "take an instruction-tuned one, whose folder has it",
            )
        return {
            "context": self._context,
            "device": self._device,
            "schema": self._compiler is not None,
            "tools": "tools" in str(template),
            "version": transformers.__version__,
        }

    def prompt(self, request: Json) -> Any:
        """Token ids and attention mask of the messages."""
        return self._tokenizer.apply_chat_template(
            request["messages"],
            tools=request["tools"] or None,
            add_generation_prompt=True,
            enable_thinking=request["schema"]
            is None,  # a grammar and thoughts before it exclude each other
            return_tensors="pt",
            return_dict=True,
        )

    def reply(self, request: Json, inbox: RequestReader, replies: wire.Pipe) -> Json:
        """Samples the reply of one request and sends its text piece by piece; returns what is sent
        when it is over. Raises Failure when the prompt leaves no room."""
        given = self.prompt(request).to(self._device)
        length = int(given["input_ids"].shape[1])
        room = (
            request["max_tokens"]
            if self._context is None
            else min(request["max_tokens"], self._context - length)
        )
        if room < 1:
            cause = f"the prompt needs {length} tokens, the model has {self._context}"
            raise Failure(cause, "take a model with a longer context")
        logprobs, pieces = Logprobs(), Pieces(self._tokenizer, replies, request["id"])
        torch.manual_seed(request["seed"]) if request["seed"] is not None else torch.seed()
        begun = time.monotonic()
        with torch.inference_mode():
            made = self._model.generate(
                **given,
                **_sampling(request),
                max_new_tokens=room,
                logits_processor=[*self._constraint(request["schema"]), logprobs],
                stopping_criteria=[Stop(inbox, request["id"])],
                streamer=pieces,
                pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id,
            )
        ids = [int(i) for i in made[0, length:]]
        ends = self._model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends, self._tokenizer.eos_token_id]
        return {
            "text": self._tokenizer.decode(ids, skip_special_tokens=True),
            "finish": "stop" if ids and ids[-1] in ends else "length",
            "token_ids": ids,
            "logprobs": logprobs.ended(ids[-1]) if ids else [],
            "prompt_tokens": length,
            "first_token_s": pieces.first - begun if pieces.first else None,
        }

    def _constraint(self, schema: Json | None) -> list[Any]:
        if schema is None or self._compiler is None:
            return []
        from xgrammar.contrib.hf import LogitsProcessor

        text = json.dumps(schema)
        if text not in self._grammars:
            if len(self._grammars) >= GRAMMARS:
                self._grammars.pop(next(iter(self._grammars)))
            self._grammars[text] = self._compiler.compile_json_schema(
                text, any_whitespace=False, separators=(",", ":")
            )
        return [LogitsProcessor(self._grammars[text])]


def _compiler(tokenizer: Any, vocabulary: int) -> Any:
    """Of grammars; None where xgrammar is not installed."""
    try:
        import xgrammar
    except ImportError:
        return None
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
    return xgrammar.GrammarCompiler(info)


def _sampling(request: Json) -> Json:
    if request["temperature"] <= 0:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {
        "do_sample": True,
        "temperature": request["temperature"],
        "top_p": request["top_p"],
        "top_k": 0,  # or the default of 50 counts
    }


def _answer(
    message: Json, model: LoadedModel | None, inbox: RequestReader, replies: wire.Pipe
) -> Json:
    if model is None:
        raise Failure("no model is loaded", "this is a defect of kernel-lsp")
    if message["op"] == "about":
        return model.about()
    if message["op"] == "count":
        return {"count": int(model.prompt(message)["input_ids"].shape[1])}
    return model.reply(message, inbox, replies)


def _failure_message(message: Json, error: Exception) -> Json:
    words = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"
    if message["op"] != "open":
        return {"op": "failed", "cause": f"the model failed: {words}", "remedy": None}
    remedy = (
        "model must be a folder or an id of a causal language model with tokenizer and safetensors"
    )
    return {
        "op": "failed",
        "cause": f"{message['model']} cannot be loaded: {words}",
        "remedy": remedy,
    }


def main() -> None:
    """Answer requests until the parent goes."""
    requests, replies = wire.claim_stdio()
    inbox, model = RequestReader(requests), None
    while True:
        message = inbox.next()
        answer: Json = {"op": "answer", "id": message["id"]}
        try:
            if message["op"] == "open":
                model, message = LoadedModel(message), {**message, "op": "about"}
            if not inbox.cancelled(message["id"]):
                answer["value"] = _answer(message, model, inbox, replies)
        except Failure as failure:
            answer |= {"op": "failed", "cause": failure.args[0], "remedy": failure.args[1]}
        except Exception as error:  # whatever a model's files can do is one failed question
            answer |= _failure_message(message, error)
        wire.write_frame(replies, answer)


if __name__ == "__main__":
    main()
