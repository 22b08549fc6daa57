"""One profiled step: which target's calls the device's time belongs to, forward and backward.

Calls of a target become ranges of torch.profiler. A kernel that ran within a range belongs to it;
one of the backward pass belongs to the ranges of the forward operation that its autograd node was
made by (the profiler gives both the same sequence number, as its own forward-backward arrows do).
On a machine without a GPU the time of operators on the processor is taken instead.

Standard library alone; torch is the program's. Not covered: replays of CUDA graphs, whose kernels
belong to whoever replays them; what a target computes on other streams while the step goes on is
counted all the same."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from . import functions
from .derivatives import METHODS

MARK = "kernel-lsp "
"""Begins the name of a range of ours."""
NODE = "autograd::engine::evaluate_function"
ACCUMULATE = "AccumulateGrad"
OPTIMIZER = "kernel-lsp: optimizer"
"""Name of the range of an optimizer's step: PyTorch's own is still open when its hooks are
called."""
CLOSURE = "kernel-lsp: closure"
"""Of what an optimizer calls within its step: forward and backward pass."""
OTHER, IN_OPTIMIZER = "other", "optimizer"
PRODUCT = re.compile(r"gemm|nvjet|xmma|cutlass|flash_|fmha|sdpa")
"""Names of a vendor's kernels for products of matrices, convolutions and attention."""
PLAIN = re.compile(r"^triton_|ffma|simt|gemmSN|(?<![a-z0-9])[sd]gemm")
"""Of those that do not run on tensor cores (float32 as a program may have left it), and a
compiler's, which say what is fused in them."""


class ProfilerRun:
    """Of one step, of these targets."""

    def __init__(self, torch: Any, targets: list[list[str]]) -> None:
        """``targets``: module and qualified name of each class."""
        self._torch, self._targets = torch, targets
        self._watched: set[str] = set()
        self._profiler: Any = None
        self._optimizer: Any = None

    def watch(self) -> None:
        """Make ranges of the targets' calls; classes that are defined later need another call of
        this."""
        for module, qualname in self._targets:
            kind: Any = sys.modules.get(module)
            for part in qualname.split("."):
                kind = getattr(kind, part, None)
            name = json.dumps([module, qualname])
            if name in self._watched:
                continue
            if isinstance(kind, FunctionType):
                self._watched.add(name)
                files = [
                    vars(one) for one in list(sys.modules.values()) if isinstance(one, ModuleType)
                ]
                functions.replace({kind: self._in_range(kind, MARK + name)}, files)
                continue
            written = getattr(kind, "__dict__", {}).get("forward")
            if isinstance(written, METHODS):  # an autograd Function's
                self._watched.add(name)
                kind.forward = type(written)(self._in_range(written.__func__, MARK + name))
            elif isinstance(getattr(kind, "forward", None), FunctionType):
                self._watched.add(name)
                kind.forward = self._in_range(kind.forward, MARK + name)

    def _in_range(self, forward: Callable[..., Any], name: str) -> Any:
        is_compiling, in_range = (
            self._torch.compiler.is_compiling,
            self._torch.profiler.record_function,
        )

        def observed(*args: Any, **kwargs: Any) -> Any:
            if self._profiler is None:
                return forward(*args, **kwargs)
            with in_range(name):
                return forward(*args, **kwargs)

        @functools.wraps(forward)
        def ranged(*args: Any, **kwargs: Any) -> Any:
            # torch.compile takes what an autograd Function's refers to into its graph
            return forward(*args, **kwargs) if is_compiling() else observed(*args, **kwargs)

        return ranged

    def begin_optimizer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Notes that an optimizer's step begins; returns the arguments that it is to have, where it
        was given a closure. None: those that it has."""
        if self._profiler is None:
            return None
        in_range = self._torch.profiler.record_function
        self._optimizer = in_range(OPTIMIZER)
        self._optimizer.__enter__()
        own, *rest = args
        closure = kwargs.get("closure", rest[0] if rest else None)
        if not callable(closure):
            return None

        def ranged() -> Any:
            with in_range(CLOSURE):
                return closure()

        return ((own,), {**kwargs, "closure": ranged}) if not rest else ((own, ranged), kwargs)

    def end_optimizer(self) -> None:
        """Notes that the optimizer's step is over."""
        if self._optimizer is not None:
            self._optimizer.__exit__(None, None, None)
            self._optimizer = None

    def begin(self) -> None:
        """Starts torch's profiler, on the GPU too where there is one."""
        profiler = self._torch.profiler
        kinds = [profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_available():
            kinds.append(profiler.ProfilerActivity.CUDA)
        self._profiler = profiler.profile(activities=kinds)
        self._profiler.start()

    def end(self) -> dict[str, Any]:
        """``device``; ``total_us``; ``rows``: the ranges that lie around each other, the outermost
        first, with their microseconds of device time forward and backward, and outermost calls."""
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        return summarize(list(profiler.events()))


def summarize(events: list[Any]) -> dict[str, Any]:
    """The time of each target in one profiled step. ``events``: torch.profiler's FunctionEvents of
    one step."""
    on_gpu = any(event.kernels for event in events)
    made_by = _forward_events(events)
    rows: dict[tuple[tuple[str, ...], str], float] = {}
    products: dict[tuple[tuple[str, ...], str], float] = {}
    total = 0.0
    for event in events:
        taken = _taken_us(event, on_gpu)
        if taken > 0:
            total += taken
            place = _place(event, made_by)
            rows[place] = rows.get(place, 0.0) + taken
            products[place] = products.get(place, 0.0) + _products_us(event)
    return {
        "device": "cuda" if on_gpu else "cpu",
        "total_us": total,
        "rows": [
            {
                "ranges": [json.loads(one) for one in ranges],
                "kind": kind,
                "us": us,
                "products_us": products[ranges, kind],
            }
            for (ranges, kind), us in sorted(rows.items(), key=lambda row: -row[1])
        ],
        "calls": [
            {"ranges": [json.loads(one) for one in ranges], "calls": count}
            for ranges, count in _calls(events).items()
        ],
    }


def _forward_events(events: list[Any]) -> dict[tuple[int, int], list[Any]]:
    """Thread and sequence number of autograd -> the events there, in the order of time."""
    found: dict[tuple[int, int], list[Any]] = {}
    for event in sorted(events, key=lambda event: float(event.time_range.start)):
        if event.sequence_nr >= 0 and not _backward(event):
            found.setdefault((event.thread, event.sequence_nr), []).append(event)
    return found


def _calls(events: list[Any]) -> dict[tuple[str, ...], int]:
    """Of each chain of ranges, without those inside of another of the same target."""
    found: dict[tuple[str, ...], int] = {}
    for event in events:
        if event.name.startswith(MARK) and not _is_on_device(event):
            ranges = _ranges(event)
            if len(ranges) == len(_all_ranges(event)):
                found[ranges] = found.get(ranges, 0) + 1
    return found


def _taken_us(event: Any, on_gpu: bool) -> float:
    """What the event itself has taken of the device's time."""
    if on_gpu:
        return sum(float(kernel.duration) for kernel in event.kernels)
    return 0.0 if _is_on_device(event) else float(event.self_cpu_time_total)


def _products_us(event: Any) -> float:
    """Of it in kernels that compute products on tensor cores; on a CPU nobody tells."""
    return sum(float(kernel.duration) for kernel in event.kernels if is_product(str(kernel.name)))


def is_product(kernel: str) -> bool:
    """Whether a kernel's name says that it is a vendor's product on tensor cores."""
    return PRODUCT.search(kernel) is not None and PLAIN.search(kernel) is None


def _place(event: Any, made_by: dict[tuple[int, int], list[Any]]) -> tuple[tuple[str, ...], str]:
    """The ranges that what this event took belongs to, and the kind of work that it is."""
    node = _backward(event)
    if ranges := _ranges(event):
        return ranges, "backward" if node else "forward"
    if node is None:
        around = [one.name for one in _chain(event) if one.name in (OPTIMIZER, CLOSURE)]
        return (), IN_OPTIMIZER if around[:1] == [OPTIMIZER] else OTHER
    if ACCUMULATE in node.name:
        return (), "backward"
    makers = made_by.get((node.fwd_thread, node.sequence_nr), ())
    return (_ranges_of_maker(makers[-1]) if makers else ()), "backward"


def _ranges_of_maker(event: Any) -> tuple[str, ...]:
    """Those around a forward operation; of an autograd Function also its own, which begins within
    the ``apply`` that made the node."""
    within = [one for one in event.cpu_children if one.name.startswith(MARK)]
    return _ranges(within[0] if within else event)


def _backward(event: Any) -> Any:
    """The autograd node within which it happened; None: it was none."""
    return next((one for one in _chain(event) if one.name.startswith(NODE)), None)


def _ranges(event: Any) -> tuple[str, ...]:
    """Each target once, the outermost first."""
    return tuple(dict.fromkeys(_all_ranges(event)))


def _all_ranges(event: Any) -> list[str]:
    names = [one.name for one in _chain(event) if one.name.startswith(MARK)]
    return [name.removeprefix(MARK) for name in reversed(names)]


def _chain(event: Any) -> list[Any]:
    found = []
    while event is not None:
        found.append(event)
        event = event.cpu_parent
    return found


def _is_on_device(event: Any) -> bool:
    return "CPU" not in str(event.device_type)
