"""The tuning process: several variants of one rewrite, compiled beside each other and timed in
turn.

Requests: prepare (reference, inputs), compile (variants, in parallel), try (one variant's first
call; bar.py says when it is too inaccurate), race (interleaved rounds of some of them; each call
timed as timing.py does). It only says what is worth judging: nothing is claimed from its times,
nothing is offered because its values were near. Whatever it finds goes through the whole gate, in
other processes.

Launches are collected in a first, silent call of every variant (its kernels do nothing, its
PyTorch calls run), then compiled in threads: Triton's compiler leaves the interpreter's lock for
most of its work, and what it compiled lies in the cache folder when the variant is loaded again
and called in earnest. Not covered: variants whose silent call fails because a kernel's result is
used as an index."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.evaluator import callees, devices, relations
from kernel_lsp.evaluator.callees import Callee
from kernel_lsp.evaluator.running import timing
from kernel_lsp.evaluator.running.bar import ExpectedResult
from kernel_lsp.evaluator.running.worker import failure
from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves
from kernel_lsp.records import Program, Workload

WARMUPS = 8
LaunchOnce = Callable[[], Any]


class Tuner:
    """The variants of one program on one device."""

    def __init__(self, device: str) -> None:
        self.device = devices.of(device)
        self.state: dict[str, torch.Tensor] = {}
        self.subject: callees.Subject | None = None
        self.program: Program | None = None
        self.workload: Workload | None = None
        self.bar: ExpectedResult | None = None
        self.seed = 0
        self.clock: timing.InterleavedRounds | None = None

    # --- the reference -------------------------------------------------------------------

    def prepare(self, message: dict[str, Any]) -> dict[str, Any]:
        """Load the reference, draw one set of inputs, call it once."""
        program = wire.from_json(Program, message["program"])
        workload = wire.from_json(Workload, message["workload"])
        self.program, self.workload, self.seed = program, workload, message["seed"]
        subject = self._on_device(lambda: callees.subject_of(program, workload, self.device.place))
        self.subject, reference = subject, subject.callee
        given = self._on_device(lambda: subject.arguments(self.seed))
        inputs = list(map_tensors(self._placed, given))
        subject.learn(map_tensors(self._placed, inputs))
        if isinstance(reference.target, torch.nn.Module):
            self.state = dict(reference.target.state_dict())
        self.clock = timing.InterleavedRounds(
            self.device, [inputs], [self.seed], subject.records_gradients(inputs)
        )
        self.clock.add(message["name"], reference)
        self.bar = ExpectedResult(
            reference, subject.wide, inputs, self._outputs(reference), self.clock.call
        )
        self.clock.warm_up(message["name"], WARMUPS)
        return {"ok": True}

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self.device.place).requires_grad_(tensor.requires_grad)

    def _on_device(self, make: Callable[[], Any]) -> Any:
        """Made on the device where that works: drawing large tensors on a CPU takes seconds."""
        relations.seed(self.seed)
        try:
            with torch.device(self.device.place):
                return make()
        except Exception:
            # User code that mixes devices then; if something else is wrong, it is said now.
            relations.seed(self.seed)
            return make()

    def _outputs(self, callee: Callee) -> list[torch.Tensor]:
        assert self.clock is not None
        relations.seed(self.seed)
        result = self.clock.call(callee, self.clock.arena.fill(0, 1.0, 0))
        self.device.synchronize()
        return [tensor.detach().clone() for tensor in tensor_leaves(result)]

    # --- variants ------------------------------------------------------------------------

    def compile(self, message: dict[str, Any]) -> dict[str, Any]:
        """Compile the kernels of all variants: name -> what is wrong, "" when nothing is."""
        problems: dict[str, str] = {}
        launches: list[tuple[str, LaunchOnce]] = []
        tried: dict[str, LaunchOnce] = {}
        for variant in message["variants"]:
            try:
                with _silence_launches(tried) as collected:
                    self._outputs(self._loaded(variant))
            except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
                problems[variant["name"]] = failure(error, "the first call")["error"]
            else:
                problems[variant["name"]] = ""
                launches += [(variant["name"], launch) for launch in collected]
        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
            beside = [threads.submit(_compile_problem, launch) for launch in tried.values()]
            for (name, _), wrong in zip(
                launches, threads.map(_compile_problem, (c for _, c in launches)), strict=True
            ):
                problems[name] = problems[name] or wrong
            wait(beside)
        return {"problems": problems}

    def attempt(self, message: dict[str, Any]) -> dict[str, Any]:
        """The first real call of one variant; it takes part when its values are near the
        reference's."""
        assert self.clock is not None and self.bar is not None
        variant = message["variant"]
        try:
            callee = self._loaded(variant)
            if wrong := self.bar.problem(self._outputs(callee)):
                return {"error": wrong, "kind": "wrong_result"}
            self.clock.add(variant["name"], callee)
            self.clock.warm_up(variant["name"], WARMUPS)
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "calling the variant")
        return {"ok": True}

    def _loaded(self, variant: dict[str, Any]) -> Callee:
        subject, workload = self.subject, self.workload
        assert subject is not None and workload is not None and self.program is not None
        program = replace(self.program, source=variant["source"], entry=variant["entry"])
        place = self.device.place
        callee: Callee = self._on_device(
            lambda: callees.callee_of(program, workload, subject.init, place, subject.conduct)
        )
        if isinstance(callee.target, torch.nn.Module):
            # One copy of the weights for all.
            callee.target.load_state_dict(self.state, assign=True)
        return callee

    def race(self, message: dict[str, Any]) -> dict[str, Any]:
        """Some interleaved rounds: name -> milliseconds of each; fewer rounds when the time is
        over."""
        assert self.clock is not None
        try:
            return {
                "times_ms": self.clock.race(message["names"], message["rounds"], message["seconds"])
            }
        except BaseException as error:  # user code: also SystemExit and KeyboardInterrupt
            return failure(error, "racing")


@contextlib.contextmanager
def _silence_launches(tried: dict[str, LaunchOnce]) -> Iterator[list[LaunchOnce]]:
    """Inside the block Triton's kernels do nothing; the list receives what compiles each of them,
    ``tried`` what compiles the configurations of autotune, each once for all variants."""
    collected: list[LaunchOnce] = []
    try:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction
    except ImportError:  # plain programs are tuned without Triton
        yield collected
        return
    launch = JITFunction.run
    tuning = False

    def note(function: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        def compiles() -> Any:
            return launch(function, *args, grid=grid, warmup=True, **kwargs)

        if not tuning:
            collected.append(compiles)
            return
        plain = sorted((k, v) for k, v in kwargs.items() if not isinstance(v, torch.Tensor))
        tried.setdefault(f"{function.cache_key} {plain}", compiles)

    def every(tuner: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal tuning
        tuning, before = True, tuning
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        for config in tuner.prune_configs(kwargs):
            tuner.fn.run(*args, **kwargs, **config.all_kwargs())
        tuner.best_config = tuner.configs[0]  # libraries read it after a launch
        tuning = before

    kept = [
        (kind, kind.run) for kind in (Autotuner, *Autotuner.__subclasses__()) if "run" in vars(kind)
    ]
    for kind, _ in kept:
        kind.run = every
    JITFunction.run = note
    try:
        yield collected
    finally:
        JITFunction.run = launch
        for kind, original in kept:
            kind.run = original


def _compile_problem(launch: LaunchOnce) -> str:
    """What is wrong with one kernel; "" when it compiles and fits the device."""
    try:
        kernel = launch()
        getattr(
            kernel, "_init_handles", lambda: None
        )()  # raises OutOfResources: shared memory, registers
    except BaseException as error:  # Triton raises many kinds; each means: not this variant
        return failure(error, "compiling")["error"]
    return ""


def _answer(tuner: Tuner, message: dict[str, Any]) -> dict[str, Any]:
    if message["do"] == "ready":  # constructing the device has made its context
        return {"ok": True}
    asked = {
        "prepare": tuner.prepare,
        "compile": tuner.compile,
        "try": tuner.attempt,
        "race": tuner.race,
    }
    return asked[message["do"]](message)


def main() -> None:
    """Answers each frame of stdin as the tuning process, until stdin ends."""
    requests, replies = wire.claim_stdio()
    warnings.simplefilter("ignore")
    tuner = Tuner(sys.argv[1])
    while (request := wire.read_frame(requests)) is not None:
        with contextlib.suppress(BrokenPipeError):
            wire.write_frame(replies, _answer(tuner, request[0]))


if __name__ == "__main__":
    main()
