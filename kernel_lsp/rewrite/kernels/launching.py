"""What a launcher launches: run on fake tensors, with every launch written down instead of made.

`observe(program, workload) -> tuple[Launched, ...]`. Nothing is computed and nothing of the user's
size is allocated. What only data tells is guessed twice, and unknown where the guess shows in a
launch. Wrappers around a kernel (autotune, its subclasses, heuristics, a library's own) are
followed to the kernel. Not covered: launchers whose next launch depends on what an earlier one
computed, and what is launched by anything but ``JITFunction.run``, such as compiled kernels that a
launcher keeps."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernel_lsp.errors import CaptureError
from kernel_lsp.records import Program, TargetKind, Workload
from kernel_lsp.rewrite.capture.loading import (
    OnCpu,
    construct,
    conversions,
    execute,
    lookup,
    make_arguments,
)
from kernel_lsp.rewrite.kernels.fake_device import Guessing, on_a_gpu
from kernel_lsp.rewrite.kernels.heuristics import ObservedArguments
from kernel_lsp.rewrite.kernels.launched import Blocks, Launched, Pointer

OPTIONS = ("num_warps", "num_stages", "num_ctas")


def observe(program: Program, workload: Workload) -> tuple[Launched, ...]:
    """Every launch of one call, in order. Raises CaptureError with cause and remedy."""
    if program.missing:
        raise CaptureError(
            f"{', '.join(program.missing)} is used but not defined in this file",
            "import or define it in the same file",
        )
    guess = Guessing(1, holds=True)
    found = _follow_launches(program, workload, guess)
    if bool in guess.asked:
        try:
            otherwise = _follow_launches(program, workload, Guessing(1, holds=False))
        except CaptureError:
            # An assertion about values: where it does not hold, nothing is launched.
            otherwise = found
        found = _alike(program, found, otherwise)
    if guess.asked - {bool}:
        found = _alike(program, found, _follow_launches(program, workload, Guessing(2, holds=True)))
    if not found:
        raise CaptureError(
            f"{_launcher(program)} launched no Triton kernel for this workload",
            "give a workload that launches it",
        )
    return tuple(found)


def _follow_launches(program: Program, workload: Workload, guess: Guessing) -> list[Launched]:
    found: list[Launched] = []
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        OnCpu(),
        conversions(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the user's own warnings are not ours to raise
        with on_a_gpu():
            namespace = execute(program.source)
            launcher = _callable(lookup(namespace, program), namespace, program, workload)
            with _written_down([], {}):  # inputs may be what other kernels have made
                args, kwargs = make_arguments(namespace, workload)
            with _written_down(found, _owners(launcher, args, kwargs)), guess:
                try:
                    launcher(*args, **kwargs)
                except (Exception, SystemExit) as error:  # the launcher is the user's code
                    said = f"{type(error).__name__}: {error}".split("\n", 1)[0][:200]
                    raise CaptureError(
                        f"{_launcher(program)} could not be followed to its launches ({said})",
                        "launch the kernel from a function whose launches follow from shapes alone",
                    ) from error
    return found


def _callable(found: Any, namespace: dict[str, Any], program: Program, workload: Workload) -> Any:
    """The function itself; of a module one that is made as the workload says, by its forward."""
    if program.kind is not TargetKind.MODULE:
        return found
    module = construct(found, namespace, workload)
    if workload.training is not None:
        module.train(workload.training)
    return module.forward


def _alike(program: Program, first: list[Launched], second: list[Launched]) -> list[Launched]:
    """What both guesses saw; a number that changed with the guess is unknown. Raises
    CaptureError."""
    facts = [[replace(one, arguments={}) for one in launches] for launches in (first, second)]
    if facts[0] != facts[1]:
        raise CaptureError(
            f"{_launcher(program)} chooses what it launches by values (.item() or a condition on "
            f"a tensor)",
            "launch the kernel from a function whose launches follow from shapes alone",
        )
    return [
        replace(
            one,
            arguments={
                name: value if value == other.arguments[name] else None
                for name, value in one.arguments.items()
            },
        )
        for one, other in zip(first, second, strict=True)
    ]


def _launcher(program: Program) -> str:
    """As the user knows it, where the entry is a function of ours around it."""
    return program.launcher or program.entry


def _owners(launcher: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[int, str]:
    """Storage -> the launcher's argument that it belongs to."""
    try:
        bound = inspect.signature(launcher).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise CaptureError(f"the workload does not fit the signature: {error}") from error
    return {
        _storage(value): name
        for name, value in bound.items()
        if isinstance(value, torch.Tensor) and value.numel()
    }


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


@contextlib.contextmanager
def _written_down(found: list[Launched], owners: dict[int, str]) -> Iterator[None]:
    """Launches go into ``found``. The interpreter's class is another one; autotune stands before
    both."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    def tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        configs = [{**c.kwargs, **{n: getattr(c, n) for n in OPTIONS}} for c in self.configs]
        chosen = {name for config in self.configs for name in config.kwargs}
        self.best_config = self.configs[0]  # libraries read it after a launch
        kernel, decided = _unwrap_kernel(self.fn)
        found.append(
            _describe_launch(kernel, args, kwargs, owners, tuple(configs), chosen | decided)
        )
        return _Compiled(found)

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(replace(_describe_launch(self, args, kwargs, owners), decided=dict(decided)))
        return _Compiled(found)

    decided: dict[str, frozenset[str]] = {}

    def decide(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name, heuristic in self.values.items():
            given = ObservedArguments({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
            kwargs[name] = heuristic(given)
            decided[name] = frozenset(given.asked)
        try:
            return self.fn.run(*args, **kwargs)
        finally:
            for name in self.values:
                decided.pop(name, None)

    tuners = [kind for kind in _subclasses(Autotuner) if "run" in vars(kind)]
    kept = [(kind, kind.run) for kind in (*tuners, Heuristics, InterpretedFunction, JITFunction)]
    for kind, _ in kept:
        kind.run = tuned if issubclass(kind, Autotuner) else decide if kind is Heuristics else run
    try:
        yield
    finally:
        for kind, original in kept:
            kind.run = original


def _subclasses(kind: Any) -> list[Any]:
    below: list[Any] = kind.__subclasses__()
    return [kind, *(one for subclass in below for one in _subclasses(subclass))]


def _unwrap_kernel(wrapper: Any) -> tuple[Any, set[str]]:
    """The kernel that autotune stands before, and the constants that heuristics between them
    decide."""
    decided: set[str] = set()
    while hasattr(wrapper.fn, "fn"):
        decided |= set(getattr(wrapper, "values", ()))
        wrapper = wrapper.fn
    return wrapper, decided


class _Compiled:
    """What a launch returns: libraries keep it, and launch it again by ``compiled[grid](…)``."""

    def __init__(self, found: list[Launched]) -> None:
        self._found, self._launched = found, found[-1]

    def __getitem__(self, grid: Any) -> Any:
        again = replace(self._launched, grid=tuple(int(extent) for extent in _as_tuple(grid)))
        return lambda *_, **__: self._found.append(again)


def _describe_launch(
    kernel: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    owners: dict[int, str],
    configs: tuple[dict[str, Any], ...] = (),
    chosen: frozenset[str] | set[str] = frozenset(),
) -> Launched:
    constexprs = {n for n, note in kernel.fn.__annotations__.items() if "constexpr" in str(note)}
    filled = _filled(kernel, args, kwargs)
    grid = kwargs.get("grid")
    if callable(grid):
        options = {name: kwargs[name] for name in OPTIONS if name in kwargs}
        grid = None if chosen else grid({**filled, **options})
    return Launched(
        kernel=kernel.fn.__qualname__,
        arguments={n: _describe_value(v, owners) for n, v in filled.items() if n not in constexprs},
        constants={n: v for n, v in filled.items() if n in constexprs},
        grid=None if grid is None else tuple(int(extent) for extent in _as_tuple(grid)),
        options={name: kwargs[name] for name in OPTIONS if isinstance(kwargs.get(name), int)},
        configs=configs,
    )


def _filled(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The kernel's parameters with what they are given, or their defaults."""
    parameters = inspect.signature(kernel.fn).parameters
    given = dict(zip(parameters, args, strict=False))
    given |= {name: value for name, value in kwargs.items() if name in parameters}
    return {
        name: given.get(name, parameter.default)
        for name, parameter in parameters.items()
        if name in given or parameter.default is not inspect.Parameter.empty
    }


def _as_tuple(grid: Any) -> tuple[Any, ...]:
    return tuple(grid) if isinstance(grid, (list, tuple)) else (grid,)


def _describe_value(value: Any, owners: dict[int, str]) -> Any:
    if type(value).__name__ == "TensorDescriptor":  # older Tritons have none
        return Blocks(_describe_value(value.base, owners), tuple(value.block_shape))
    if not isinstance(value, torch.Tensor):
        return value
    return Pointer(
        dtype=str(value.dtype).removeprefix("torch."),
        shape=tuple(value.shape),
        stride=tuple(value.stride()),
        argument=owners.get(_storage(value)),
    )
