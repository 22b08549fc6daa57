"""The timing process: reference and compiled reference first, then one candidate beside them.

Requests: import (what torch.compile needs), prepare (reference and baselines, before any candidate
exists here), baseline, load, time, burst. Fresh for every candidate: what was loaded here is not
trusted afterwards. Its clock is checked by the parent's, its outputs by the judge.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.evaluator import programs, timing
from kernel_lsp.evaluator.tensors import Outbox, decode, encode
from kernel_lsp.evaluator.worker import Worker, failure
from kernel_lsp.records import Program, Workload


class Timer(Worker):
    """A worker that also holds the reference and a clock."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.clock: timing.Rounds | None = None

    def prepare(self, message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Reference, compiled reference and input sets, before any candidate is loaded here."""
        program = wire.from_json(Program, message["program"])
        workload = wire.from_json(Workload, message["workload"])
        init = decode(message["init"], blobs)
        module = programs.load(program.source)
        target = programs.find(module, program.entry)
        reference = programs.construct(target, (init[0], init[1]), self.device.place, workload.training)
        self.sets = [decode(item, blobs, self.device.place) for item in message["sets"]]
        self.state = decode(message["state"], blobs)
        if isinstance(reference, torch.nn.Module):
            reference.load_state_dict(self.state)
        self.clock = timing.Rounds(self.device, self.sets, message["seeds"], message["grad"])
        self.clock.add("eager", reference)
        self.clock.add_tf32(reference)
        self.clock.add_compiled(reference, message["compile_s"])
        return {"notes": self.clock.notes}

    def baseline(self) -> dict[str, Any]:
        """The reference's times in a process that no candidate has touched."""
        assert self.clock is not None
        return {"clean_ms": self.clock.warm_up("eager")}

    def time(self, message: dict[str, Any], out: Outbox) -> dict[str, Any]:
        """Interleaved rounds; a few outputs go back to be checked."""
        assert self.clock is not None
        try:
            self.load_state(self.state)
            self.clock.add("candidate", self.target)
            self.clock.warm_up("candidate")
            measured = self.clock.run(message["timing_s"], message["checks"])
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "timing the candidate")
        checks = [
            {"set": item.set, "scale": item.scale, "outputs": encode(item.output, out)}
            for item in measured.checks
        ]
        return {
            "times_ms": measured.times_ms,
            "peak_bytes": measured.peak_bytes,
            "checks": checks,
            "notes": self.watch.problems(),
        }

    def burst(self, message: dict[str, Any]) -> dict[str, Any]:
        """Call one provider many times; the parent holds the clock."""
        assert self.clock is not None
        try:
            self.clock.burst(message["provider"], message["count"])
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "calling the candidate")
        return {"ok": True}


def import_compiler(wanted: bool) -> dict[str, Any]:
    """Import what torch.compile needs (3 s) while the judge opens the reference."""
    if wanted:
        with contextlib.suppress(Exception):  # a broken compiler is told when it is used
            importlib.import_module("torch._inductor.compile_fx")
    return {"ok": True}


def answer(timer: Timer, message: dict[str, Any], blobs: list[bytes], out: Outbox) -> dict[str, Any]:
    what = message["do"]
    if what == "import":
        return import_compiler(message["compiler"])
    if what == "prepare":
        return timer.prepare(message, blobs)
    if what == "baseline":
        return timer.baseline()
    if what == "load":
        return timer.load(message, blobs)
    return timer.time(message, out) if what == "time" else timer.burst(message)


def main() -> None:
    requests, replies = wire.claim_stdio()
    warnings.simplefilter("ignore")
    timer = Timer(sys.argv[1])
    while (request := wire.read_frame(requests)) is not None:
        out = Outbox()
        with contextlib.suppress(BrokenPipeError):
            wire.write_frame(replies, answer(timer, request[0], request[1], out), out.blobs)


if __name__ == "__main__":
    main()
