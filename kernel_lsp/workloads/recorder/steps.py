"""The steps of a program, inside of it: where one ends, how long each takes, what it computes.

A step ends when one of the program's optimizers has stepped, when its root module was called, when
a function that its user has named has returned, or when its loader is asked for the next batch.
Times are of the device's own clock where the root lies on a GPU. With ``check`` every step leaves a
digest of its gradients (or of the root's results) instead; digests of two runs tell how far they
are apart. A few things are set from outside, without any change of the program's files:
torch.compile of the roots or of a repeated block, parameters that are moved by one rounding, seeds,
dropout that drops nothing. The last step can be profiled (profiling.py), of calls the one before.
The program ends after the last wanted step.

Standard library and relative imports alone; torch is the program's.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from . import drawing, functions, holding, imports, profiling, tokens
from .limit import OptimizerNumbers, count_batches
from .marking import StepMark
from .sites import OWN_PACKAGES, target_class

PROJECTIONS = 8
SAVED_S = 1.0
"""Between what is written down while steps go on. It takes 0.3 ms, and 50 ms more where a profiled
program has imported new modules."""
SEED = 0
SOURCES = "_kernel_lsp_sources"


def begin(settings: str) -> None:
    """Begins to observe the program's steps. ``settings``: a JSON object; see `StepObserver`."""
    given = json.loads(settings)
    if served := given.get("served"):
        sources = _load_file(given["sources"])
        sources.serve(
            {path: Path(text).read_text(encoding="utf-8") for path, text in served.items()}
        )
    steps = StepObserver(given)
    if steps.turn is not None:
        sys.meta_path.insert(0, steps.turn)
    imports.after("torch", steps.saw_torch)
    imports.after("numpy", lambda numpy: numpy.random.seed(SEED))
    random.seed(SEED)


class StepObserver:
    """Watches the steps of one process."""

    def __init__(self, given: dict[str, Any]) -> None:
        """``given``: out (file), roots ([[module, class] …], the main one first), clock
        (optimizer, calls of the main root, function, or loader), count (of steps) and begun (time
        of the start).

        Optional: optimizer (whose steps count, by the order of their first ones), marked ([module,
        function] of that clock), mode and region (of torch.compile), check, nudge (an eps), redraw
        (a number: other random draws from the first call on), undrawn (dropout drops nothing),
        edited ([[module, class] …]), profiled (the same, whose calls are told apart in the last
        step), served (path of an installed file -> a file with its edited text), sources (what
        serves them), go and pause (files by which it waits for its turn: holding.py) and steady (a
        file that it makes when its first step has ended).
        """
        self.given = given
        self.torch: Any = None
        self.ends: list[tuple[float, Any]] = []
        """Of each step: the host's clock, and an event on the GPU."""
        self.first_s: float | None = None
        self.digests: list[list[list[float]]] = []
        self.taken: dict[str, list[int]] = {}
        """Edited class -> calls, and those of them that went the original way."""
        self.notes: list[str] = []
        self.profiled: dict[str, Any] | None = None
        self._profile: profiling.ProfilerRun | None = None
        self._numbers = OptimizerNumbers()
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._made: dict[int, tuple[str, int]] = {}
        """By identity of an optimizer that has not stepped: file and line that made it."""
        self._data: Any = None
        """What the loader loads whose batches are steps."""
        self._tokens = tokens.TokenCounter(torch=None)
        self._draws = drawing.DrawWatch(torch=None)
        go = given.get("go")
        self.turn = holding.RunTurn(go, given["pause"]) if go else None
        self._is_digested = False
        """The step that goes on has left a digest."""
        self._prepared: set[int] = set()
        """Identities of roots, which live as long as the program."""
        self._ending: set[type] = set()
        self._stop_waiting: Callable[[], None] = lambda: None
        self._outermost: tuple[str, str] | None = None
        """Module and class of what is called first, where no root is known; None: nothing was."""
        self._written = False
        self._saved = time.perf_counter()
        self._imported: tuple[int, list[str]] = (0, [])
        """How many modules there were, and their files."""
        self._pid = os.getpid()
        self._cuda = False

    # --- what is put into torch -------------------------------------------------------------------

    def saw_torch(self, torch: Any) -> None:
        """Begins to watch; called when torch has been imported, before the program uses it."""
        self.torch = torch
        self._tokens, self._draws = tokens.TokenCounter(torch), drawing.DrawWatch(torch)
        if self.turn is not None:
            holding.FirstUse(torch, self.turn)
        torch.manual_seed(SEED)
        if self.given.get("undrawn"):
            drawing.leave_out(torch)
        if self.given["roots"]:
            self._wait_for_root()
        elif "profiled" in self.given:
            self._wait_for_first()
        clock = self.given["clock"]
        if clock != "calls":
            imports.after("torch.optim.optimizer", self._saw_optimizers)
        if clock == "function":
            StepMark(self.given["marked"], self._ended).saw_torch(torch)
        elif clock == "loader":
            imports.after("torch.utils.data.dataloader", self._saw_loaders)
        atexit.register(self.write)

    def _saw_loaders(self, module: Any) -> None:
        count_batches(module, self._before_batch)

    def _before_batch(self, data: Any) -> None:
        """A batch is asked for, which ends the step of the one before."""
        if self._data is None:
            self._data = data
        elif data is self._data:
            self._ended()

    def _saw_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self._before_step)
        module.register_optimizer_step_post_hook(self._after_step)
        if "profiled" in self.given:
            self._see_where_made(module.Optimizer)

    def _see_where_made(self, kind: Any) -> None:
        original = kind.__init__

        def making(self_: Any, /, *args: Any, **kwargs: Any) -> None:
            if (place := _caller(sys._getframe(1))) is not None:
                self._made[id(self_)] = place
            original(self_, *args, **kwargs)

        kind.__init__ = making

    def _wait_for_first(self) -> None:
        """Until any module is called: of a program that has only torch's own, the outermost one."""
        module = self.torch.nn.Module
        call = module.__call__

        def waiting(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            module.__call__ = call
            root = vars(self_).get("_modules", {}).get("_orig_mod", self_)
            self._outermost = _class_name(type(root))
            self._draws.watch(self_)
            return self_(*args, **kwargs)

        module.__call__ = waiting
        self._stop_waiting = lambda: setattr(module, "__call__", call)

    def _wait_for_root(self) -> None:
        """Until each of the roots' classes is called for the first time, or a step has ended."""
        module = self.torch.nn.Module
        call, wanted = module.__call__, {tuple(root) for root in self.given["roots"]}
        prepare = self._prepare

        def waiting(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            # What the program has compiled is prepared before a graph of it is made, and has hooks
            # around the graph: with fullgraph=True there is no way out of one.
            root = vars(self_).get("_modules", {}).get("_orig_mod", self_)
            kind = target_class(type(root))
            if _class_name(kind) in wanted:
                wanted.discard(_class_name(kind))
                if not wanted or self.ends:
                    module.__call__ = call
                prepare(root, self_)
                if kind.__module__.partition(".")[0] not in OWN_PACKAGES:
                    watch(kind)  # a container of torch's own is there everywhere
                return self_(*args, **kwargs)
            return call(self_, *args, **kwargs)

        def watch(kind: Any) -> None:
            """Other instances of the class are prepared at their first call too, and those of
            classes that inherit what is called."""

            def preparing(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
                if id(self_) not in self._prepared and target_class(type(self_)) is kind:
                    prepare(self_, self_)
                return inner(self_, *args, **kwargs)

            inner = kind.__call__ if "__call__" in vars(kind) else call
            kind.__call__ = preparing

        module.__call__ = waiting
        self._stop_waiting = lambda: setattr(module, "__call__", call)

    def _prepare(self, root: Any, called: Any) -> None:
        """``called``: the root, or what the program has made of it by torch.compile."""
        is_first = not self._prepared
        # One of its class within it is a part of it.
        self._prepared.update(map(id, root.modules()))
        self._cuda = self._cuda or any(
            tensor.is_cuda for tensor in (*root.parameters(), *root.buffers())
        )
        if eps := self.given.get("nudge"):
            self._nudge(root, eps)
        if is_first and (number := self.given.get("redraw")):
            drawing.redraw(self.torch, SEED + number)
        if mode := self.given.get("mode"):
            self._compile(root, mode)
        kind = target_class(type(root))
        is_main = _class_name(kind) == tuple(self.given["roots"][0])
        if (targets := self.given.get("profiled")) is not None:
            if is_first:
                self._profile = profiling.ProfilerRun(self.torch, targets)
                self._profile.watch()
                self._draws.watch(called)
            if is_main:
                called.register_forward_hook(self._tokens.called, with_kwargs=True)
        if is_main and self.given["clock"] == "calls" and kind not in self._ending:
            self._ending.add(kind)
            self._end_with_calls(kind)

    def _compile(self, root: Any, mode: str) -> None:
        """The root, or of it the repeated block."""
        region = tuple(self.given.get("region") or ())
        parts = [part for part in root.modules() if _class_name(target_class(type(part))) == region]
        for part in parts or [root]:
            part.compile(**({} if mode == "default" else {"mode": mode}))

    def _nudge(self, root: Any, eps: float) -> None:
        torch = self.torch
        for number, parameter in enumerate(root.parameters()):
            if parameter.is_floating_point():
                draw = torch.Generator(parameter.device).manual_seed(1 + number)
                amount = torch.rand(parameter.shape, generator=draw, device=parameter.device)
                with torch.no_grad():
                    parameter.mul_((1 + eps / 2 * (2 * amount - 1)).to(parameter.dtype))

    def _end_with_calls(self, kind: Any) -> None:
        """``kind``: whose ``forward`` is called, by its own instances and those of classes that
        inherit it."""
        original, inside = kind.__call__, [0]

        def ending(self_: Any, /, *args: Any, **kwargs: Any) -> Any:
            if target_class(type(self_)) is not kind:
                return original(self_, *args, **kwargs)
            if not inside[0]:
                self._profile_call()
            inside[0] += 1
            try:
                result = original(self_, *args, **kwargs)
            finally:
                inside[0] -= 1
            if not inside[0]:
                self._ended(result)
            return result

        kind.__call__ = ending

    # --- steps ------------------------------------------------------------------------------------

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns what a hook may: other arguments of the step, or None."""
        made = self._made.pop(id(optimizer), None)
        variant = {**_variant(optimizer), "made": made}
        self._optimizers.setdefault(self._numbers.number(optimizer), variant)
        if self.given.get("check"):
            groups = [
                parameter for group in optimizer.param_groups for parameter in group["params"]
            ]
            gradients = [p.grad for p in groups if p.grad is not None]
            # A fused optimizer takes a GradScaler's factor out of the gradients itself.
            scale = getattr(optimizer, "grad_scale", None)
            self._digest(gradients, 1.0 if scale is None else float(scale))
        return self._profile.begin_optimizer(args, kwargs) if self._profile is not None else None

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self._profile is not None:
            self._profile.end_optimizer()
        is_clock = self.given["clock"] == "optimizer"
        if is_clock and self._numbers.number(optimizer) == self.given.get("optimizer", 0):
            self._ended()

    def _ended(self, result: Any = None) -> None:
        """``result``: what the step's call has returned."""
        if self.given.get("check") and not self._is_digested:
            self._digest(_tensors(result, self.torch))
        self._is_digested = False
        self._tokens.end_step()
        if not self.ends and not self._prepared:
            self._cuda = self.torch.cuda.is_initialized()
            if (targets := self.given.get("profiled")) is not None:
                self._profile = profiling.ProfilerRun(self.torch, targets)
        if self._cuda:
            event = self.torch.cuda.Event(enable_timing=True)
            event.record()
        else:
            event = None
        count = self.given["count"]
        if self._profile is not None and self._is_last:
            self.profiled = self._profile.end()
        if not self.ends:
            if self._cuda:
                self.torch.cuda.synchronize()
            self.first_s = time.time() - self.given["begun"] - self._waited_s
            self._end_first()
        self.ends.append((time.perf_counter(), event))
        if len(self.ends) >= count:
            self.write()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # what the program does after its steps is not of interest
        self._save_if_due()
        if self._profile is not None:
            self._profile.watch()
            if self._is_last:
                self._profile.begin()

    @property
    def _is_last(self) -> bool:
        """The step that goes on is profiled from end to end; of calls it is not."""
        return bool(self.given["clock"] != "calls" and len(self.ends) == self.given["count"] - 1)

    def _profile_call(self) -> None:
        """A call begins that ends a step. Of the last two the time between their beginnings is
        profiled, so that a backward pass lies behind the call that it belongs to."""
        ended, count = len(self.ends), self.given["count"]
        if self._profile is not None and ended == count - 2:
            self._profile.begin()
        elif self._profile is not None and ended == count - 1 > 0:
            self.profiled = self._profile.end()

    def _end_first(self) -> None:
        """What is done once, when the first step has ended."""
        self._stop_waiting()
        if steady := self.given.get("steady"):
            Path(steady).touch()
        if self.given.get("check"):
            self._count_fast_paths()

    @property
    def _waited_s(self) -> float:
        """For its turn."""
        return self.turn.waited_s if self.turn is not None else 0.0

    def _digest(self, tensors: list[Any], scale: float = 1.0) -> None:
        """Of each tensor, divided by ``scale``, its norm and its products with random signs, which
        are the same in every run."""
        torch, found = self.torch, []
        for number, tensor in enumerate(tensors):
            values = tensor.detach().double().flatten() / scale
            draw = torch.Generator(values.device).manual_seed(1000 + number)
            row = [float(torch.linalg.vector_norm(values))]
            for _ in range(PROJECTIONS):
                signs = torch.randint(0, 2, values.shape, generator=draw, device=values.device)
                row.append(float((values * (2 * signs - 1)).sum()))
            found.append(row)
        if found:
            self.digests.append(found)
            self._is_digested = True

    def _count_fast_paths(self) -> None:
        for module, qualname in self.given.get("edited", ()):
            kind: Any = sys.modules.get(module)
            for part in qualname.split("."):
                kind = getattr(kind, part, None)
            owner = sys.modules[module] if isinstance(kind, FunctionType) else kind
            begin = qualname.rpartition(".")[2] if owner is not kind else "forward"
            found = {
                name: match.group(1)
                for name in vars(owner or object)
                if (match := re.fullmatch(rf"_({re.escape(begin)}(?:_part\w*?)?)_eager\w*", name))
            }
            if owner is None or not found:
                self.notes.append(f"{qualname} of {module} is not the edited one")
                continue
            counts = self.taken[f"{module}.{qualname}"] = [0, 0]
            for original, fast in found.items():
                _count(owner, fast if fast == begin else f"_{fast}", counts, 0)
                _count(owner, original, counts, 1)

    # --- what is written down ----------------------------------------------------------------------

    def write(self) -> None:
        """Once, by the process that has found the root and ended steps."""
        if self._written or os.getpid() != self._pid or not self.ends:
            return
        self._written = True
        if self._cuda:
            self.torch.cuda.synchronize()
        self._save()

    def _save_if_due(self) -> None:
        """A run of slow steps may be cut off."""
        if os.getpid() == self._pid and time.perf_counter() - self._saved > SAVED_S:
            self._save()

    def _save(self) -> None:
        """What was seen so far. Waits for no device."""
        record = {
            "steps_ms": self._steps_ms(),
            "first_s": self.first_s,
            "peak_bytes": self.torch.cuda.max_memory_allocated() if self._cuda else None,
            "room_bytes": self._room_bytes() if self._cuda else None,
            "digests": self.digests,
            "taken": self.taken,
            "notes": self.notes,
            "profile": self.profiled,
            "optimizers": list(self._optimizers.values()),
            "tokens": self._tokens.per_step,
            "draws": self._draws.found,
            "files": self._files() if "profiled" in self.given else [],
            "outermost": self._outermost,
        }
        path = Path(self.given["out"])
        with contextlib.suppress(OSError):
            fresh = path.with_suffix(".part")
            fresh.write_text(json.dumps(record), encoding="utf-8")
            fresh.replace(path)
        self._saved = time.perf_counter()

    def _files(self) -> list[str]:
        """Of the modules that the program has imported."""
        if len(sys.modules) != self._imported[0]:
            found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
            files = sorted({os.path.realpath(file) for file in found if isinstance(file, str)})
            self._imported = len(sys.modules), files
        return self._imported[1]

    def _room_bytes(self) -> int:
        cuda = self.torch.cuda
        return int(cuda.mem_get_info()[0]) + int(cuda.memory_reserved())

    def _steps_ms(self) -> list[float]:
        pairs = list(zip(self.ends, self.ends[1:], strict=False))
        if self._cuda:
            pairs = [pair for pair in pairs if pair[1][1].query()]
            return [before[1].elapsed_time(after[1]) for before, after in pairs]
        return [(after[0] - before[0]) * 1e3 for before, after in pairs]


def _variant(optimizer: Any) -> dict[str, Any]:
    """What it is, and which of its implementations it takes; None: its own choice."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    return {
        "kind": type(optimizer).__name__,
        "module": type(optimizer).__module__,
        "fused": group.get("fused"),
        "foreach": group.get("foreach"),
    }


def _caller(frame: Any) -> tuple[str, int] | None:
    """File and line of the innermost call that is not torch's own; None: there is none."""
    while (
        frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in OWN_PACKAGES
    ):
        frame = frame.f_back
    return None if frame is None else (os.path.realpath(frame.f_code.co_filename), frame.f_lineno)


def _load_file(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(SOURCES, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _class_name(kind: type) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


def _count(owner: Any, name: str, counts: list[int], place: int) -> None:
    """``owner``: a class, or a module, whose function others may have imported."""
    function = vars(owner)[name]
    counted = _counting(function, counts, place)
    if isinstance(owner, ModuleType):
        files = [vars(one) for one in list(sys.modules.values()) if isinstance(one, ModuleType)]
        functions.replace({function: counted}, files)
    else:
        setattr(owner, name, counted)


def _counting(function: Any, counts: list[int], place: int) -> Any:
    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[place] += 1
        return function(*args, **kwargs)

    return counted


def _tensors(value: Any, torch: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, float):
        return [torch.tensor([value], dtype=torch.float64)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item, torch)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item, torch)]
    return []
