"""Interleaved timed rounds of reference, compiled reference and candidate in one process.

Every round runs all providers in random order on the same fresh values (an input set times a random
factor), with caches flushed before each. A random few of the candidate's outputs are kept and
checked by the judge, which alone knows the input sets independently. Clock, synchronization and
random numbers are bound before a candidate is loaded.
Not covered: CUDA graphs, locked clocks, other processes on the device.
"""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from kernel_lsp.evaluator import stats
from kernel_lsp.evaluator.devices import Device
from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves

MIN_ROUNDS, MAX_ROUNDS = 10, 100
MAX_WARMUPS = 60
_clock, _collect, _disable, _enable = perf_counter, gc.collect, gc.disable, gc.enable
_manual_seed, _set_grad = torch.manual_seed, torch.set_grad_enabled


class Slow(BaseException):
    """The time box of torch.compile is over. No Exception: the compiler swallows those."""


@dataclass
class Checked:
    """One timed output that goes back to the judge."""

    set: int
    scale: float
    output: Any


@dataclass
class Measured:
    times_ms: dict[str, list[float]]
    checks: list[Checked] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)


class Rounds:
    """The providers of one comparison. Add them in order of trust: the candidate last."""

    def __init__(self, device: Device, sets: list[Any], seeds: list[int], grad: bool) -> None:
        self.device, self.sets, self.seeds, self.grad = device, sets, seeds, grad
        self.providers: dict[str, Callable[..., Any]] = {}
        self.notes: list[str] = []
        self._random = random.SystemRandom()

    def add(self, name: str, target: Callable[..., Any]) -> None:
        self.providers[name] = target

    def add_compiled(self, target: Callable[..., Any], seconds: float) -> None:
        """torch.compile's default mode, when it works here within ``seconds``; else a note."""
        if seconds <= 0:
            self.notes.append("torch.compile was not asked for")
            return
        try:
            with _time_box(seconds):
                compiled = torch.compile(target)
                for _ in range(2):
                    self._call(compiled, self.sets[0])
        except Slow:
            self.notes.append(f"torch.compile took longer than {seconds:.0f} s and is no baseline here")
        except Exception as error:  # a compiler may fail in any way; then eager is the only baseline
            self.notes.append(f"torch.compile failed ({type(error).__name__}) and is no baseline here")
        else:
            self.providers["compile"] = compiled

    def add_tf32(self, target: Callable[..., Any]) -> None:
        """Eager with TF32 matrix products, where that is another computation than eager."""
        switched = self.device.with_tf32(target)
        if switched is None:
            return
        arguments = self._fresh(0, 1.0)
        with _set_grad(self.grad):
            _manual_seed(self.seeds[0])
            plain = target(*arguments[0], **arguments[1])
            _manual_seed(self.seeds[0])
            cut = switched(*arguments[0], **arguments[1])
        pairs = zip(tensor_leaves(plain), tensor_leaves(cut), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            self.providers["eager_tf32"] = switched

    def warm_up(self, name: str) -> list[float]:
        """Run until two successive medians agree; returns the times (ms)."""
        times: list[float] = []
        while not stats.settled(times) and len(times) < MAX_WARMUPS and sum(times) < 2000:
            times.append(self._timed(name, len(times) % len(self.sets), 1.0)[0])
        return times

    def run(self, seconds: float, checks: int) -> Measured:
        """At least MIN_ROUNDS rounds, then more until ``seconds`` have passed."""
        measured = Measured(times_ms={name: [] for name in self.providers})
        end = _clock() + seconds
        _collect()
        _disable()
        try:
            for number in range(MAX_ROUNDS):
                if number >= MIN_ROUNDS and _clock() > end:
                    break
                self._round(measured, number, checks)
        finally:
            _enable()
        return measured

    def _round(self, measured: Measured, number: int, checks: int) -> None:
        place, scale = self._random.randrange(len(self.sets)), self._random.uniform(0.75, 1.25)
        order = self._random.sample(list(self.providers), len(self.providers))
        for name in order:
            self.device.reset_peak()
            elapsed, output = self._timed(name, place, scale)
            measured.times_ms[name].append(elapsed)
            peak = self.device.peak_bytes()
            if peak is not None:
                measured.peak_bytes[name] = max(peak, measured.peak_bytes.get(name, 0))
            if name == "candidate":
                self._keep(measured, number, checks, place, scale, output)
            del output

    def _keep(
        self, measured: Measured, number: int, checks: int, place: int, scale: float, output: Any
    ) -> None:
        """Reservoir sampling: every round is equally likely to be checked, however many there are."""
        slot = number if number < checks else self._random.randrange(number + 1)
        if slot >= checks:
            return
        kept = Checked(place, scale, map_tensors(lambda t: t.detach().to("cpu", copy=True), output))
        measured.checks[slot : slot + 1] = [kept]

    def burst(self, name: str, count: int) -> None:
        """``count`` calls back to back on fresh values, then a synchronization."""
        target, arguments = self.providers[name], self._fresh(0, self._random.uniform(0.75, 1.25))
        for _ in range(count):
            self._call(target, arguments, wait=False)
        self.device.synchronize()

    def _fresh(self, place: int, scale: float) -> Any:
        return map_tensors(lambda t: _rescaled(t, scale), self.sets[place])

    def _timed(self, name: str, place: int, scale: float) -> tuple[float, Any]:
        target, arguments = self.providers[name], self._fresh(place, scale)
        _manual_seed(self.seeds[place])  # the judge draws the same stream for random references
        self.device.flush()
        self.device.synchronize()
        with _set_grad(self.grad):
            return self.device.time_ms(lambda: target(*arguments[0], **arguments[1]))

    def _call(self, target: Callable[..., Any], arguments: Any, wait: bool = True) -> None:
        with _set_grad(self.grad):
            target(*arguments[0], **arguments[1])
        if wait:
            self.device.synchronize()


def _rescaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    if not tensor.dtype.is_floating_point:
        return tensor.clone()
    return (tensor.detach() * scale).requires_grad_(tensor.requires_grad)


@contextmanager
def _time_box(seconds: float) -> Iterator[None]:
    """Raise Slow inside the block after ``seconds``. Main thread only; long C calls finish first."""

    def ring(*_: Any) -> None:
        raise Slow

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
