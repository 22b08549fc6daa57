"""The process that holds the shipped policy: loads a checkpoint, answers with replies along a
grammar.

Frames (wire.py): open (folder), reply (tokens, table, temperature, seed). Runs in the project's
interpreter, which needs torch and nothing else. One thread: the engine computes beside it, and two
threads that wait for each other on two busy cores took eight times as long. Not covered: several
dialogs at once."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from kernel_lsp import wire
from kernel_lsp.agents.backbones.small import shape, tensors
from kernel_lsp.agents.backbones.small.decoding import Decoder
from kernel_lsp.agents.backbones.small.network import Network
from kernel_lsp.agents.backbones.small.shape import UnfitCheckpoint
from kernel_lsp.records import Json


def open_decoder(folder: Path) -> Decoder:
    """The decoder of the checkpoint in that folder. Raises Unfit, OSError."""
    return Decoder(Network(shape.read(folder), tensors.load(folder / "model.safetensors")))


def answer_message(message: Json, decoder: Decoder | None) -> Json:
    """The answer to one message of the parent. Raises Unfit."""
    if decoder is None:
        raise UnfitCheckpoint("no model is loaded")
    begun, busy = time.perf_counter(), time.process_time()
    said = decoder.reply(
        message["tokens"],
        message["table"],
        temperature=message["temperature"],
        seed=message["seed"],
    )
    return {
        "tokens": said.tokens,
        "logprobs": said.logprobs,
        "choices": [[place, choices] for place, choices in said.choices.items()],
        "seconds": time.perf_counter() - begun,
        "cpu_s": time.process_time() - busy,
    }


def main() -> None:
    """Answer requests until the parent goes."""
    requests, replies = wire.claim_stdio()
    torch.set_num_threads(1)
    decoder: Decoder | None = None
    while (frame := wire.read_frame(requests)) is not None:
        message = frame[0]
        try:
            if message["op"] == "open":
                decoder = open_decoder(Path(message["folder"]))
                answer: Json = {"ready": True}
            else:
                answer = answer_message(message, decoder)
        except (UnfitCheckpoint, OSError) as error:
            answer = {"failed": str(error)}
        except Exception as error:  # whatever a checkpoint's files can do is one failed question
            answer = {"failed": f"{type(error).__name__}: {error}"}
        wire.write_frame(replies, answer)


if __name__ == "__main__":
    main()
