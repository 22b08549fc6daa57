"""Turn a program's source into a callable: load, make inputs, construct, set the mode.

Runs in judge and worker only. Sources are registered with linecache, because Triton and
tracebacks read them back; module names are random so that no code can tell where it runs.
"""

from __future__ import annotations

import linecache
import secrets
import sys
import types
from typing import Any

import torch

from kernel_lsp.errors import EvaluationError
from kernel_lsp.records import ArgSpec, Arguments, ValueSummary, Workload, split_arguments

LARGEST_RECORDED = 2.0**15
"""Half floats end at 65,504; what is recorded beyond is memory that nobody had written yet."""


def load(source: str) -> types.ModuleType:
    """Execute ``source`` as a fresh module. Whatever it raises passes through."""
    name = f"program_{secrets.token_hex(6)}"
    filename = f"<{name}>"
    # Our postponed annotations are not theirs.
    code = compile(source, filename, "exec", dont_inherit=True)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = types.ModuleType(name)
    module.__file__ = filename
    sys.modules[name] = module
    exec(code, module.__dict__)
    return module


def find(module: types.ModuleType, entry: str) -> Any:
    """The object called ``entry`` (dotted for nested classes). Raises EvaluationError."""
    found: Any = module
    for part in entry.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise EvaluationError(
                f"could not judge: the program defines no {entry!r}",
                "name the class or function that should be judged",
            )
    return found


def construct(target: Any, init: Arguments, device: str, training: bool | None) -> Any:
    """The callable to judge: a module instance on ``device``, or the function itself."""
    if not isinstance(target, type):
        return target
    instance = target(*init[0], **init[1])
    if isinstance(instance, torch.nn.Module):
        instance = instance.to(device)
        if training is not None:
            instance.train(training)
    return instance


def init_arguments(module: types.ModuleType, workload: Workload) -> Arguments:
    """Constructor arguments: the workload's, else get_init_inputs(), else none."""
    if workload.init is not None:
        return _from_specs(workload.init)
    maker = getattr(module, "get_init_inputs", None)
    return split_arguments(maker()) if maker else ([], {})


def call_arguments(module: types.ModuleType, workload: Workload) -> Arguments:
    """Arguments of one call: the workload's, else get_inputs()."""
    if workload.inputs is not None:
        return _from_specs(workload.inputs)
    maker = getattr(module, "get_inputs", None)
    if maker is None:
        raise EvaluationError(
            "could not judge: the reference has no get_inputs() and the workload names no inputs",
            "add get_inputs() or a workload comment",
        )
    return split_arguments(maker())


def _from_specs(specs: tuple[ArgSpec, ...]) -> Arguments:
    positional = [make(spec) for spec in specs if spec.name is None]
    return positional, {spec.name: make(spec) for spec in specs if spec.name is not None}


def make(spec: ArgSpec) -> Any:
    """One argument, drawn from torch's global generator (which the judge has seeded)."""
    if spec.dtype is None or spec.shape is None:
        return spec.value
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise EvaluationError(f"could not judge: {spec.dtype!r} is no dtype of torch")
    values = _draw(spec, dtype)
    if spec.stride is not None:
        values = torch.empty_strided(spec.shape, spec.stride, dtype=dtype).copy_(values)
    return values.requires_grad_() if spec.requires_grad else values


def _draw(spec: ArgSpec, dtype: torch.dtype) -> torch.Tensor:
    shape, how = spec.shape, spec.distribution
    if how in ("zeros", "ones"):
        return torch.full(shape, int(how == "ones"), dtype=dtype)
    if how.startswith("index:"):
        return torch.randint(int(how.removeprefix("index:")), shape).to(dtype)
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, 100, shape).to(dtype)
    draw = torch.rand if how == "uniform" else torch.randn
    made = draw(shape, dtype=dtype if dtype.is_complex else torch.float32)
    return (made if spec.values is None else _as_recorded(made, spec.values)).to(dtype)


def _as_recorded(made: torch.Tensor, seen: ValueSummary) -> torch.Tensor:
    """Values in the range, and with the share of zeros, that a recorded run had."""
    low, high = seen.low, seen.high
    if low is None or high is None or made.is_complex() or max(-low, high) > LARGEST_RECORDED:
        return made
    spread = (
        (made * (max(-low, high) / 3)).clamp(low, high) if low < 0 else low + (high - low) * made
    )
    return spread.masked_fill(torch.rand(made.shape) < seen.zeros, 0.0) if seen.zeros else spread
