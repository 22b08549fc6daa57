"""Interleaved timed rounds of reference, compiled reference and candidate in one process.

A round calls every provider once, in random order (every second round reverses the order of the
one before, so that each pair of providers runs first equally often), on the same fresh values (an
input set times a random factor) at the same fresh addresses, with caches evicted right before each
call. Inputs are rewritten before every call, so all providers meet the same memory traffic, also
after one that writes into them. A random few of the candidate's outputs are kept and checked by
the judge, which alone knows the input sets independently. Clock, synchronization and random
numbers are bound before a candidate is loaded.

What is measured, per provider and round (devices/cuda.py has the order of events):
  span     what the device needs from a warm start of its queue: no launch latency in front;
  launch   how long Python is busy with the call when the device is idle (CUDA only), best of a few;
  call     the larger of both: what one more call costs a program that calls in a row. Claims are
           made on it. Launches far below the span are measured in every 16th round.
  outside  the host's clock around everything, for the parent to compare with the span.
`replay` measures CUDA graphs, which have no launch cost in them at all: the device time.
A call of a workload that records gradients is forward and backward together.
Not covered: locked clocks (needs root), how a call does with its inputs in cache.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from kernel_lsp.evaluator import relations, stats
from kernel_lsp.evaluator.callees import Callee
from kernel_lsp.evaluator.devices.base import ColdCall, TimingDevice
from kernel_lsp.evaluator.gradients import backward, leaves_with_gradients
from kernel_lsp.evaluator.processes import crashes
from kernel_lsp.evaluator.running import compiling
from kernel_lsp.evaluator.running.arena import Arena
from kernel_lsp.evaluator.running.outputs import apart, is_close, norms_of, num_bytes
from kernel_lsp.evaluator.running.time_box import Slow, time_box
from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves

MIN_ROUNDS, MAX_ROUNDS, MAX_REPLAYS = 10, 200, 100
"""Per series. A round of two small providers takes about 1 ms on a GPU; times that scatter by 2 %
give a median of 200 ratios that scatters by 0.25 %."""
MAX_WARMUPS = 60
SMALL_BYTES = 2**20
"""An output that is copied to the host in every round in which eager comes after the candidate."""
ALONE, ALONE_S = 20, 1.0
LAUNCH_SHARE = 0.2
"""A launch above this share of the span is measured in every round."""
RARELY = 16
PROBES = 8
"""First rounds of a series, which measure every launch."""
LAUNCHES = 3
"""Calls of which the fastest is a round's launch: what else the host does can only add to one. Of
single calls, fresh processes on an H200 read the same launch of a library kernel as 23 to 56
us."""
RETAKES = 3
"""Of a sample whose call was queued after the head start was over: the device had to wait for the
host."""
LEAD, MAX_LEAD_MS = 1.5, 3.0
"""The head start in units of what Python needs to queue inputs, flush and call, and its bound.
With the call alone as the unit, small programs read up to 20 % slower than themselves on a busy
host."""
SCALES = 0.7, 1.0
"""Factors that make values new. Not above 1: a probability stays one."""
_clock, _collect, _disable, _enable = perf_counter, gc.collect, gc.disable, gc.enable
_set_grad = torch.set_grad_enabled


@dataclass
class Checked:
    """One timed output that goes back to the judge."""

    set: int
    scale: float
    output: Any


@dataclass
class MeasuredRounds:
    """Lists have one entry per round."""

    times_ms: dict[str, list[float]]
    spans_ms: dict[str, list[float]]
    outside_ms: dict[str, list[float]]
    launches_ms: dict[str, list[float]] = field(default_factory=dict)
    """Only of the rounds that measured them."""
    checks: list[Checked] = field(default_factory=list)
    """Outputs of as many random rounds as were asked for, and of the round that looked worst."""
    peak_bytes: dict[str, int] = field(default_factory=dict)
    worst: tuple[float, Checked | None] = (-1.0, None)
    """(how far the norm of an output was from eager's in the same round, that output)."""


class InterleavedRounds:
    """The providers of one comparison. Add them in order of trust: the candidate last."""

    def __init__(self, device: TimingDevice, sets: list[Any], seeds: list[int], grad: bool) -> None:
        self.device, self.sets, self.seeds, self.grad = device, sets, seeds, grad
        self.providers: dict[str, Callee] = {}
        self.notes: list[str] = []
        self.header = False
        """Whether a header was compiled for the kernels of torch.compile."""
        self.arena = Arena(sets, device.place, device.cache_bytes())
        self._random = random.SystemRandom()
        self._launch_bound: set[str] = set()
        self._last_order: list[str] = []
        self._cotangents: dict[Any, torch.Tensor] = {}

    # --- providers -----------------------------------------------------------------------

    def add(self, name: str, callee: Callee) -> None:
        """Adds a provider, or replaces the one of that name."""
        self.providers[name] = callee

    def add_compiled(self, callee: Callee, seconds: float, *, header: bool = False) -> None:
        """Adds torch.compile's default mode, when it works here within ``seconds``; else a note.
        ``header``: see `compiling.common_header`.

        It works when it does at other addresses too, which every timed call has: what fails there
        fails before a candidate is here, and is not blamed on the candidate."""
        if seconds <= 0:
            self.notes.append("torch.compile was not asked for")
            return
        crashes.say(crashes.COMPILED)
        try:
            with (
                compiling.common_header(self.device.name, header) as made,
                compiling.side_by_side(self.device.name),
                time_box(seconds),
            ):
                compiled = callee.around(torch.compile(callee.target))
                for offset in (0, 0, self.arena.last_offset):
                    self.call(compiled, self.arena.fill(0, 1.0, offset))
                    self.device.synchronize()
        except Slow:
            self.notes.append(
                f"torch.compile took longer than {seconds:.0f} s and is no baseline here"
            )
        except Exception as error:
            # A compiler may fail in any way; then eager is the only baseline.
            if self.device.is_lost():
                # Nothing can be timed here any more; another process leaves it out.
                crashes.end(error, crashes.COMPILED)
            self.notes.append(
                f"torch.compile failed ({type(error).__name__}) and is no baseline here"
            )
        else:
            self.providers["compile"] = compiled
            self.header = bool(made)
        crashes.say(crashes.PLAIN)

    def add_tf32(self, callee: Callee) -> None:
        """Adds eager with TF32 matrix products, where that is another computation than eager."""
        switching = self.device.with_tf32(callee.target)
        if switching is None:
            return
        switched, outputs = callee.around(switching), []
        for call in (callee, switched):
            relations.seed(self.seeds[0])
            result = self.call(call, self.arena.fill(0, 1.0, 0))
            outputs.append([t.detach().clone() for t in tensor_leaves(result)])
        if not all(torch.equal(a, b) for a, b in zip(*outputs, strict=True)):
            self.providers["eager_tf32"] = switched

    # --- calls ---------------------------------------------------------------------------

    def warm_up(self, name: str, most: int = MAX_WARMUPS) -> list[float]:
        """Run until two successive medians agree, ``most`` times at most; returns the times
        (ms)."""
        times, queued = list[float](), list[float]()
        while not stats.is_settled(times) and len(times) < most and sum(times) < 2000:
            sample, _ = self._take(name, *self._draw())
            times.append(sample.ms)
            queued.append(sample.queued_ms)
        launches = [self._launch(name, *self._draw()) for _ in range(3)]
        self._note_launches(name, [launch for launch in launches if launch is not None], times)
        late = stats.quantile(queued, 0.5)
        self.device.lead_ms = max(self.device.lead_ms, min(LEAD * late, MAX_LEAD_MS))
        return times

    def alone(self, name: str) -> list[float]:
        """Times (ms) of one provider by itself, warm-up left out."""
        self.warm_up(name)
        times: list[float] = []
        end = _clock() + ALONE_S
        while len(times) < ALONE and (len(times) < MIN_ROUNDS or _clock() < end):
            times.append(self._sample(name, *self._draw())[0].ms)
        return times

    def race(self, names: Sequence[str], rounds: int, seconds: float) -> dict[str, list[float]]:
        """Milliseconds of one call in every round, for choosing between many: nothing else is
        kept.

        Every provider is called in every round, in random order on the same values. At least one
        round; no more when ``seconds`` have passed."""
        times: dict[str, list[float]] = {name: [] for name in names}
        end = _clock() + seconds
        for _ in range(rounds):
            drawn = self._draw()
            for name in self._random.sample(list(names), len(names)):
                took = self._sample(name, *drawn)[0].ms
                launch = self._launch(name, *drawn) if name in self._launch_bound else None
                times[name].append(max(took, launch or 0.0))
            if _clock() > end:
                break
        return times

    def run(self, seconds: float, checks: int) -> MeasuredRounds:
        """Times of at least MIN_ROUNDS rounds, then more until ``seconds`` have passed."""
        times, spans, outside = ({name: list[float]() for name in self.providers} for _ in range(3))
        measured = MeasuredRounds(times_ms=times, spans_ms=spans, outside_ms=outside)
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
        if measured.worst[1] is not None:
            measured.checks.append(measured.worst[1])
        return measured

    def _round(self, measured: MeasuredRounds, number: int, checks: int) -> None:
        drawn, order = self._draw(), self._order(number)
        norms: dict[str, list[float]] = {}
        early: Checked | None = None
        for name in order:
            if number % RARELY == 0:
                self._note_peak(measured, name, drawn)
            sample, output = self._sample(name, *drawn)
            # Of all outputs: what runs before a call is the same for every provider.
            norms[name] = norms_of(output)
            if name == "candidate":
                self._keep(measured, number, checks, drawn, output)
                if "eager" in norms:
                    self._keep_worst(measured, norms, drawn, output)
                elif num_bytes(output) <= SMALL_BYTES:
                    early = _check_output(drawn, output)
            del output  # freed before the next provider allocates
            measured.times_ms[name].append(sample.ms)
            measured.spans_ms[name].append(sample.ms)
            measured.outside_ms[name].append(sample.outside_ms)
        if early is not None and "eager" in norms:
            self._keep_worst(measured, norms, drawn, early)
        self._time_launches(measured, number, order, drawn)

    def _time_launches(
        self,
        measured: MeasuredRounds,
        number: int,
        order: Sequence[str],
        drawn: tuple[int, float, int],
    ) -> None:
        """Apart from the samples: keeping an output leaves the host's caches cold."""
        for name in order:
            if number < PROBES or name in self._launch_bound or number % RARELY == 0:
                launch = self._launch(name, *drawn)
                if launch is not None:
                    measured.launches_ms.setdefault(name, []).append(launch)
                    measured.times_ms[name][-1] = max(measured.times_ms[name][-1], launch)
        if number == PROBES - 1:
            for name, launches in measured.launches_ms.items():
                self._note_launches(name, launches, measured.spans_ms[name])

    def _note_launches(self, name: str, launches: list[float], spans: list[float]) -> None:
        """Whether its launches must be measured in every round. Asked again where nobody else
        runs: beside others spans read long, and a kernel of 4 us with a launch of 14 was once
        timed as 4."""
        if launches and stats.quantile(launches, 0.5) > LAUNCH_SHARE * stats.quantile(spans, 0.5):
            self._launch_bound.add(name)

    def _order(self, number: int) -> list[str]:
        """Random; reversed in odd rounds. With 10 rounds of free draws, an advantage of 10 % for
        whoever comes first was called a speedup in 7 % of simulated comparisons of a program with
        itself."""
        if number % 2:
            self._last_order.reverse()
        else:
            self._last_order = self._random.sample(list(self.providers), len(self.providers))
        return self._last_order

    def _draw(self) -> tuple[int, float, int]:
        """(set, factor, offset) of one round."""
        number = self._random.randrange(len(self.sets))
        return number, self._random.uniform(*SCALES), self.arena.offset(self._random)

    def _keep(
        self,
        measured: MeasuredRounds,
        number: int,
        checks: int,
        drawn: tuple[int, float, int],
        output: Any,
    ) -> None:
        """Reservoir sampling: every round is equally likely to be checked, however many there
        are."""
        slot = number if number < checks else self._random.randrange(number + 1)
        if slot < checks:
            measured.checks[slot : slot + 1] = [_check_output(drawn, output)]

    def _keep_worst(
        self,
        measured: MeasuredRounds,
        norms: dict[str, list[float]],
        drawn: tuple[int, float, int],
        seen: Any,
    ) -> None:
        """Look at every output beside eager's (at large ones in half of the rounds), for calls
        that do nothing now and then: a few random checks would miss one in ten. The judge decides;
        this only chooses. ``seen``: the output, or its copy."""
        far = max(map(apart, norms["eager"], norms["candidate"]))
        if far > measured.worst[0]:
            measured.worst = far, seen if isinstance(seen, Checked) else _check_output(drawn, seen)

    def _note_peak(
        self, measured: MeasuredRounds, name: str, drawn: tuple[int, float, int]
    ) -> None:
        """Of a call that is not timed: reading the counters takes the host tens of microseconds."""
        arguments = self.arena.fill(*drawn)
        self.device.reset_peak()
        self.call(self.providers[name], arguments)
        self.device.synchronize()
        peak = self.device.peak_bytes()
        if peak is not None:
            measured.peak_bytes[name] = max(peak, measured.peak_bytes.get(name, 0))

    def burst(self, name: str, count: int) -> None:
        """``count`` calls back to back on the same fresh values, then a synchronization."""
        callee = self.providers[name]
        with _set_grad(self.grad):
            arguments, bound = self._filled(callee, *self._draw())
            for number in range(count):
                if number and callee.changes_arguments:
                    bound = callee.bind(arguments)
                self._step(callee, arguments, bound)
        self.device.synchronize()

    def _sample(self, name: str, place: int, scale: float, offset: int) -> tuple[ColdCall, Any]:
        """A call that was queued in time, if one of a few can be: a host that stumbles is no slow
        device. What Python itself takes for a call is in its launch."""
        for _ in range(RETAKES):
            sample, output = self._take(name, place, scale, offset)
            if sample.queued_ms <= self.device.lead_ms or self.device.lead_ms >= MAX_LEAD_MS:
                return sample, output
            del output  # freed before the next take allocates
        return self._take(name, place, scale, offset)

    def _take(self, name: str, place: int, scale: float, offset: int) -> tuple[ColdCall, Any]:
        callee = self.providers[name]
        relations.seed(self.seeds[place])  # the judge draws the same stream for random references
        with _set_grad(self.grad):
            return self.device.sample(
                lambda: self._filled(callee, place, scale, offset),
                lambda given: self._step(callee, *given),
            )

    def _launch(self, name: str, place: int, scale: float, offset: int) -> float | None:
        callee, launches = self.providers[name], list[float]()
        with _set_grad(self.grad):
            for _ in range(LAUNCHES):
                launch = self.device.launch(
                    lambda: self._filled(callee, place, scale, offset),
                    lambda given: self._step(callee, *given),
                )
                if launch is None:
                    return None
                launches.append(launch)
        return min(launches)

    def call(self, callee: Callee, arguments: Any) -> Any:
        """One call on (positional, by name), gradients recorded as the workload has it."""
        with _set_grad(self.grad):
            return self._step(callee, arguments, callee.bind(arguments))

    def _filled(self, callee: Callee, place: int, scale: float, offset: int) -> tuple[Any, Any]:
        """Fresh arguments, and what a call takes of them."""
        arguments = self.arena.fill(place, scale, offset)
        return arguments, callee.bind(arguments)

    def _step(self, callee: Callee, arguments: Any, bound: Any) -> Any:
        """The result. A workload that records gradients pays for making them, so that is timed as
        well."""
        result = callee(bound)
        if self.grad:
            outputs = [t for t in tensor_leaves(result) if t.requires_grad]
            wanted = leaves_with_gradients(arguments, callee.target)
            backward(result, wanted, [self._weights(t) for t in outputs])
        return result

    def _weights(self, output: torch.Tensor) -> torch.Tensor:
        """What the gradients of an output are weighted with: made once, the same for every
        provider."""
        key = tuple(output.shape), output.dtype
        if key not in self._cotangents:
            self._cotangents[key] = torch.randn_like(output, requires_grad=False)
        return self._cotangents[key]

    # --- graphs --------------------------------------------------------------------------

    def replay(self, seconds: float) -> dict[str, list[float]]:
        """Milliseconds of each provider as a CUDA graph, in random order per round; a provider
        that cannot be recorded, or whose graph gives other values, is a note. Run it last: a
        failed recording can leave the process unable to go on."""
        graphs = {name: graph for name in self.providers if (graph := self._record(name))}
        times: dict[str, list[float]] = {name: [] for name in graphs}
        end = _clock() + seconds
        for number in range(MAX_REPLAYS if graphs else 0):
            if number >= MIN_ROUNDS and _clock() > end:
                break
            scale = self._random.uniform(*SCALES)
            for name in sorted(graphs, key=self._order(number).index):
                times[name].append(self._replay(graphs[name], scale).ms)
        return times

    def _replay(self, graph: Callable[[], Any], scale: float) -> ColdCall:
        return self.device.sample(lambda: self.arena.fill(0, scale, 0), lambda arguments: graph())[
            0
        ]

    def _record(self, name: str) -> Callable[[], Any] | None:
        callee, arguments = self.providers[name], self.arena.fill(0, 1.0, 0)
        if callee.changes_arguments:
            self.notes.append(
                f"{name} changes its arguments, which a graph would do once: no device time"
            )
            return None
        bound = callee.bind(arguments)
        try:
            with _set_grad(self.grad):
                made = self.device.graph(lambda: self._step(callee, arguments, bound))
            if made is None or self._same_values(callee, *made):
                return made and made[0]
            self.notes.append(
                f"{name}: a recorded graph gives other values, so it has no device time"
            )
        except Exception as error:  # a program may do anything that cannot be recorded
            first = " ".join(str(error).split())[:120]
            self.notes.append(
                f"{name} cannot be recorded as a graph ({type(error).__name__}: {first})"
            )
        return None

    def _same_values(self, callee: Callee, replay: Callable[[], Any], output: Any) -> bool:
        """Whether a replay on new values computes what a call does."""
        scale = self._random.uniform(*SCALES)
        self.arena.fill(0, scale, 0)
        replay()
        recorded = [t.detach().clone() for t in tensor_leaves(output)]
        called = tensor_leaves(self.call(callee, self.arena.fill(0, scale, 0)))
        return all(is_close(a, b) for a, b in zip(recorded, called, strict=True))


def _check_output(drawn: tuple[int, float, int], output: Any) -> Checked:
    return Checked(
        drawn[0], drawn[1], map_tensors(lambda t: t.detach().to("cpu", copy=True), output)
    )
