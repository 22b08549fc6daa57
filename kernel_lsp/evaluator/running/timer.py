"""The timing process: reference and compiled reference first, then one candidate beside them.

Requests: import (what torch.compile needs), open_driver (what is built once for a machine),
prepare (reference and baselines, before any candidate exists here), renew (other values for them,
likewise), baseline (eager by itself), load, time (interleaved rounds; may be asked again), burst
(the parent holds the clock), replay (CUDA graphs). Fresh for every candidate: what was loaded here
is not trusted afterwards. Its clock is checked by the parent's, its outputs by the judge."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.evaluator import callees
from kernel_lsp.evaluator.callees import Callee, Conduct
from kernel_lsp.evaluator.running import timing
from kernel_lsp.evaluator.running.worker import Worker, failure, import_compiler, serve
from kernel_lsp.evaluator.tensors import TensorOutbox, decode, encode, tensor_leaves
from kernel_lsp.records import Program, Workload


class Timer(Worker):
    """A worker that also holds the reference and a clock."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.clock: timing.InterleavedRounds | None = None
        self.reference = Callee(None)

    def prepare(self, message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """Loads reference, compiled reference and input sets, before any candidate is loaded
        here."""
        program = wire.from_json(Program, message["program"])
        workload = wire.from_json(Workload, message["workload"])
        init = decode(message["init"], blobs)
        callees.prepare(program, workload, self.device.place)
        conduct = wire.from_json(Conduct, message["conduct"])
        self.reference = callees.callee_of(
            program, workload, (init[0], init[1]), self.device.place, conduct
        )
        self.clock = self._clock(message, blobs)
        self.clock.add_compiled(self.reference, message["compile_s"], header=message["header"])
        return {"notes": self.clock.notes, "header": self.clock.header}

    def renew(self, message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """The values of another session for the same baselines; still no candidate has been loaded
        here."""
        assert self.clock is not None
        compiled, self.clock = self.clock.providers.get("compile"), None
        self.clock = self._clock(message, blobs)
        if compiled is not None:
            self.clock.add("compile", compiled)
        return {"ok": True}

    def _clock(self, message: dict[str, Any], blobs: list[bytes]) -> timing.InterleavedRounds:
        """Eager on a session's values; the parameters are set in place, where compiled code has
        them too."""
        self.sets = [decode(item, blobs, self.device.place) for item in message["sets"]]
        self.state = decode(message["state"], blobs, self.device.place)
        if isinstance(self.reference.target, torch.nn.Module):
            self.reference.target.load_state_dict(self.state)
        clock = timing.InterleavedRounds(self.device, self.sets, message["seeds"], message["grad"])
        clock.add("eager", self.reference)
        clock.add_tf32(self.reference)
        return clock

    def baseline(self) -> dict[str, Any]:
        """The reference's times while nothing else is called here, and the bytes that it is
        given."""
        assert self.clock is not None
        given = [*tensor_leaves(self.sets[0]), *self.state.values()]
        return {
            "clean_ms": self.clock.alone("eager"),
            "notes": self.device.notes,
            "given_bytes": sum(t.numel() * t.dtype.itemsize for t in given if 0 not in t.stride()),
        }

    def load_and_warm(self, message: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
        """The candidate beside the baselines, all of them called until their times settle: what a
        first call compiles or allocates belongs here and not where everybody else stands still."""
        reply = self.load(message, blobs)
        if "error" in reply:
            return reply
        assert self.clock is not None
        name = "candidate"
        try:
            self.load_state(self.state)
            self.clock.add("candidate", self.callee)
            for name in self.clock.providers:
                self.clock.warm_up(name)
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, _timing(name))
        return reply

    def time(self, message: dict[str, Any], out: TensorOutbox) -> dict[str, Any]:
        """Times of interleaved rounds; a few outputs go back to be checked."""
        assert self.clock is not None
        try:
            measured = self.clock.run(message["timing_s"], message["checks"])
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "timing the candidate")
        checks = [
            {"set": item.set, "scale": item.scale, "outputs": encode(item.output, out)}
            for item in measured.checks
        ]
        return {
            "times_ms": measured.times_ms,
            "spans_ms": measured.spans_ms,
            "outside_ms": measured.outside_ms,
            "peak_bytes": measured.peak_bytes,
            "checks": checks,
            "notes": self.watch.problems(),
        }

    def replay(self, message: dict[str, Any]) -> dict[str, Any]:
        """Device times of graphs; whatever goes wrong costs these numbers and nothing else."""
        assert self.clock is not None
        self.clock.notes = []
        try:
            times = self.clock.replay(message["timing_s"])
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            times = {}
            self.clock.notes.append(failure(error, "replaying graphs")["error"])
        return {"times_ms": times, "notes": self.clock.notes}

    def burst(self, message: dict[str, Any]) -> dict[str, Any]:
        """Call one provider many times; the parent holds the clock."""
        assert self.clock is not None
        try:
            self.clock.burst(message["provider"], message["count"])
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "calling the candidate")
        return {"ok": True}


def _timing(provider: str) -> str:
    """Every sample waits for the device, so an error is of whoever was called; with a candidate
    loaded, a baseline's may still be the candidate's doing."""
    beside = "" if provider == "candidate" else f" (while its baseline {provider} was called)"
    return f"timing the candidate{beside}"


def open_driver(device: str) -> dict[str, Any]:
    """Builds what depends on the machine alone, so that it is kept for other processes: nothing of
    a candidate is here yet. For a GPU what Triton talks to its driver with (0.5 s of a C compiler);
    else what tells torch.compile which vector instructions the compiler knows (six programs, 5 s,
    with AMX)."""
    before = _built_files()
    with contextlib.suppress(Exception):  # a broken compiler is reported when it is used
        if device == "cuda":
            importlib.import_module("triton.runtime").driver.active.utils  # noqa: B018
        else:
            importlib.import_module("torch._inductor.cpu_vec_isa").valid_vec_isa_list()
    return {"built": _built_files() > before}


def _built_files() -> set[Path]:
    return set(Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.devnull)).rglob("*.so"))


def _answer(
    timer: Timer, message: dict[str, Any], blobs: list[bytes], out: TensorOutbox
) -> dict[str, Any]:
    what = message["do"]
    if what == "ready":  # constructing the device has made its context
        return {"ok": True}
    if what == "import":  # while the judge opens the reference
        if message["compiler"]:
            import_compiler(judged=False)
        return {"ok": True}
    if what == "open_driver":
        return open_driver(timer.device.name)
    if what == "prepare":
        return timer.prepare(message, blobs)
    if what == "renew":
        return timer.renew(message, blobs)
    if what == "baseline":
        return timer.baseline()
    if what == "load":
        return timer.load_and_warm(message, blobs)
    if what == "time":
        return timer.time(message, out)
    return timer.burst(message) if what == "burst" else timer.replay(message)


def main() -> None:
    """Answers each frame of stdin as the timing process, until stdin ends."""
    requests, replies = wire.claim_stdio()
    warnings.simplefilter("ignore")
    timer = Timer(sys.argv[1])
    serve(requests, replies, lambda message, blobs, out: _answer(timer, message, blobs, out))


if __name__ == "__main__":
    main()
