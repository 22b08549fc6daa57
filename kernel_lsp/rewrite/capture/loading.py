"""The slice's definitions run under the fake mode: its module, and the arguments of one call.

Every device is the CPU here, since fake CUDA tensors need a CUDA build of torch; where a tensor
would lie is remembered. Not covered: what forward does with them (tracing.py)."""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernel_lsp.errors import CaptureError
from kernel_lsp.records import ArgSpec, Arguments, Program, Workload, split_arguments
from kernel_lsp.rewrite.capture.numbers import AskedNumbers


def execute(source: str) -> dict[str, Any]:
    """Run the slice's definitions. Registered with linecache, so that traces show its lines."""
    name = f"<kernel-lsp {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = ModuleType("kernel_lsp_program")
    module.__file__ = name
    sys.modules[module.__name__] = module  # dataclasses look up there what their annotations mean
    try:
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
    except ModuleNotFoundError as error:
        raise CaptureError(
            f"the program imports {error.name}, which is not installed",
            "choose the project's interpreter in the settings, or install it there",
        ) from error
    except (Exception, SystemExit) as error:  # anything the user's definitions raise
        if isinstance(error, ImportError) and "relative import" in str(error):
            raise CaptureError(
                "the program imports from its own package by dots, which a part of a file cannot",
                "import by the package's whole name, and install it in the project's interpreter",
            ) from error
        raise CaptureError(
            f"the program's definitions failed: {_line(error)}",
            "run the file once by itself to see the full error",
        ) from error
    return module.__dict__


def lookup(namespace: dict[str, Any], program: Program) -> Any:
    """What the program's entry names, dots included. Raises CaptureError where it is not
    defined."""
    found: Any = namespace.get(program.entry.split(".")[0])
    for part in program.entry.split(".")[1:]:
        found = getattr(found, part, None)
    if found is None:
        raise CaptureError(f"{program.entry} is not defined by the program")
    return found


def construct(target: Any, namespace: dict[str, Any], workload: Workload) -> Any:
    """An instance of the target by the workload's constructor arguments. Raises CaptureError where
    it fails, since the constructor is the user's code."""
    if workload.init is not None:
        args, kwargs = _from_specs(workload.init)
    else:
        args, kwargs = _call_maker(namespace, "get_init_inputs", optional=True)
    try:
        return target(*args, **kwargs)
    except (Exception, SystemExit) as error:  # the constructor is the user's code
        if "UninitializedParameter" in str(error):
            raise CaptureError(
                f"{target.__name__} has a lazy layer, whose size its first call decides",
                "write the size",
            ) from error
        raise CaptureError(
            f"{target.__name__}(…) failed: {_line(error)}",
            "give its constructor arguments with get_init_inputs() or `| init name=value` in "
            "the pragma",
        ) from error


def make_arguments(namespace: dict[str, Any], workload: Workload) -> Arguments:
    """The arguments of one call, (positional, by name), by the workload or by the program's
    `get_inputs`."""
    if workload.inputs is not None:
        return _from_specs(workload.inputs)
    return _call_maker(namespace, "get_inputs")


def _call_maker(namespace: dict[str, Any], name: str, optional: bool = False) -> Arguments:
    maker = namespace.get(name)
    if maker is None:
        if optional:
            return [], {}
        raise CaptureError(
            f"no {name}() in the file", "add one, or a `# kernel-lsp: workload` comment"
        )
    try:
        return split_arguments(maker())
    except (Exception, SystemExit) as error:  # the user's code
        for words, meaning in MAKERS.items():
            if words in str(error):
                raise CaptureError(
                    f"{name}() makes {meaning}", "give it ordinary tensors"
                ) from error
        raise CaptureError(
            f"{name}() failed: {_line(error)}", "run the file once by itself"
        ) from error


MAKERS = {
    "not a subclass of the requested type": "a subclass of Tensor, which may redefine any "
    "operation",
    "shape_env must not be None": "a nested tensor, whose rows have sizes of their own",
}
"""What fake tensors say about inputs that they cannot stand for."""


def _line(error: BaseException) -> str:
    """Kind and first line of what the user's code raised."""
    said = str(error).strip().split("\n")[0][:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _from_specs(specs: tuple[ArgSpec, ...]) -> Arguments:
    args: list[Any] = [_make(spec) for spec in specs if spec.name is None]
    return args, {spec.name: _make(spec) for spec in specs if spec.name is not None}


def _make(spec: ArgSpec) -> Any:
    if spec.dtype is None or spec.shape is None:
        return spec.value
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CaptureError(f"{spec.dtype} is no torch dtype", "use a name such as float32 or int64")
    if spec.stride is None:
        made = torch.empty(spec.shape, dtype=dtype)
    else:
        made = torch.empty_strided(spec.shape, spec.stride, dtype=dtype)
    return made.requires_grad_() if spec.requires_grad else made


class OnCpu(TorchFunctionMode):
    """Sends every explicit device to the CPU: fake CUDA tensors need a CUDA build of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, str] = {}
        """id of a tensor -> ``cuda`` or ``cpu``, where that is certain."""
        self.named: set[str] = set()
        """CUDA devices that the program names by their number."""
        self.numbers = AskedNumbers()
        self._alive: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if (numbers := self.numbers.known(func, args, kwargs)) is not None:
            return numbers
        place = self._place(func, args, kwargs)
        if func is torch.Tensor.cuda:
            made = args[0].view_as(args[0]) if isinstance(args[0], torch.Tensor) else args[0]
            return self._placed(made, place)
        if func is torch.Tensor.to:
            args = (args[0], *(_cpu_if_cuda(a) for a in args[1:]))
        if "device" in kwargs:
            kwargs["device"] = _cpu_if_cuda(kwargs["device"])
        result = func(*args, **kwargs)
        self.numbers.saw(func, args, kwargs, result)
        return self._placed(result, place)

    def _place(self, func: Any, args: Any, kwargs: dict[str, Any]) -> str | None:
        """Where the result lies: as asked for, else where the first tensor does, else on the
        CPU."""
        asked = [kwargs.get("device"), *(args[1:] if func is torch.Tensor.to else ())]
        names = [str(item) for item in asked if isinstance(item, (str, torch.device))]
        self.named |= {name for name in names if name.startswith("cuda:")}
        if func is torch.Tensor.cuda or any(name.startswith("cuda") for name in names):
            return "cuda"
        if names:  # an x.device that we have turned into the CPU, or really the CPU
            return None
        first = next((item for item in args if isinstance(item, torch.Tensor)), None)
        return "cpu" if first is None else self.places.get(id(first))

    def _placed(self, made: Any, place: str | None) -> Any:
        if place is not None and isinstance(made, torch.Tensor):
            self.places[id(made)] = place
            self._alive.append(made)  # no other tensor may get its id
        return made


@contextlib.contextmanager
def conversions() -> Iterator[None]:
    """Let ``layer.half()`` work in constructors: torch cannot swap fake parameters in place."""
    original = torch.nn.Module._apply

    def convert(self: Any, fn: Any, recurse: bool = True) -> Any:
        for child in self.children() if recurse else ():
            child._apply(fn)
        for name, old in self._parameters.items():
            if old is not None:
                self._parameters[name] = torch.nn.Parameter(fn(old), old.requires_grad)
        self._buffers.update(
            {name: fn(old) for name, old in self._buffers.items() if old is not None}
        )
        return self

    torch.nn.Module._apply = convert
    try:
        yield
    finally:
        torch.nn.Module._apply = original


def _cpu_if_cuda(value: Any) -> Any:
    """Leaves ``meta`` alone: the fake mode itself needs it."""
    named = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
    return "cpu" if named else value
