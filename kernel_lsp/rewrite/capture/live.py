"""A recorded call that really runs, on the CPU and with drawn numbers: what it hands to a part of
itself.

A graph of a part needs to know what flows in, which only the statements before it say, and these
may decide by values: on fake tensors they cannot run. `values_at(program, method, …)` opens the
recorded call with memory, runs it until it calls the method that `outlining.py` has made of the
part, and stops there. `open_with_memory` is the call itself; `numbers_that_vary` compares two.
Confined like the rest of the engine; calls that would take more than `MAX_BYTES` are refused."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernel_lsp.errors import CaptureError, SnapshotError
from kernel_lsp.records import Arguments, Part, Program, TorchSetting
from kernel_lsp.rewrite.capture.answers import Answers
from kernel_lsp.rewrite.capture.autocast import Autocast
from kernel_lsp.rewrite.outlining import outline
from kernel_lsp.snapshots import making, sources
from kernel_lsp.snapshots.opening import ValueSpec, dtype_of, header_of, open_call

MAX_BYTES = 4 * 2**30
"""Parameters and arguments of a call that is run: activations come on top, and the machine is the
user's."""
SEED = 0
PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.dtype, torch.device, FunctionType),
)


class _PartReached(BaseException):
    """The run has come to the part. No Exception: the program may catch these."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """What a part of a call is called with."""

    values: tuple[Any, ...]
    """One for each of its parameters; tensors hold drawn numbers."""
    setting: TorchSetting
    """As torch is set where the part begins."""


def values_at(
    program: Program, method: str, setting: TorchSetting, device: str, seed: int = SEED
) -> Live:
    """The call until it comes to ``self.method(…)``. Raises CaptureError with what is in the
    way."""
    target, (args, kwargs) = open_with_memory(program, seed)
    seen: list[Live] = []
    autocast = Autocast.around(setting, device)

    def stop(*values: Any) -> None:
        dtype = str(autocast.dtype).removeprefix("torch.") if autocast.dtype is not None else None
        gradients = None if setting.gradients is None else torch.is_grad_enabled()
        now = replace(
            setting,
            autocast=dtype,
            gradients=gradients,
            inference=torch.is_inference_mode_enabled(),
        )
        seen.append(Live(values=values, setting=now))
        raise _PartReached

    vars(target)[method] = stop  # before the class's own, which is found later
    answers = Answers(device, setting, autocast)
    try:
        with warnings.catch_warnings(), _set(setting), answers, autocast:
            warnings.simplefilter("ignore")  # the user's own warnings are not ours to raise
            with autocast.watching(), answers.watching():
                target(*args, **kwargs)
    except _PartReached:
        pass
    except (Exception, SystemExit) as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise CaptureError(
            f"{program.entry} could not be run up to that part: {type(error).__name__}: {first}",
            "its numbers are drawn like the recorded ones; optimize the modules that it calls",
        ) from error
    if not seen:
        raise CaptureError(
            f"{program.entry} did not come to that part with numbers like the recorded ones",
            "optimize the modules that it calls",
        )
    return seen[0]


def numbers_that_vary(
    program: Program, part: Part, setting: TorchSetting, device: str
) -> list[str]:
    """Names of plain numbers that a part is called with and that depend on the data: a rewrite
    holds for one value, and would never be taken. Raises CaptureError."""
    outlined = outline(program.source, program.entry, part)
    whole = replace(program, source=outlined.text, part=None)
    first, second = (
        values_at(whole, outlined.method, setting, device, seed).values for seed in (SEED, SEED + 1)
    )
    return [
        name
        for name, *pair in zip(outlined.inputs, first, second, strict=True)
        if _numbers_in(pair[0]) != _numbers_in(pair[1])
    ]


def _numbers_in(value: Any) -> list[str]:
    return [
        repr(leaf)
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, (bool, int, float, complex))
    ]


def open_with_memory(program: Program, seed: int = SEED) -> tuple[Any, Arguments]:
    """The recorded target and the arguments of its call. Raises CaptureError."""
    home = program.home
    assert home is not None
    try:
        size = _bytes(header_of(home)["tensors"])
        if size > MAX_BYTES:
            raise CaptureError(
                f"{program.entry} is too large to be run for its parts ({size / 2**30:.1f} GB)",
                "optimize the modules that it calls",
            )
        sources.unload(home.path)
        opened = open_call(home, program.source, making.Drawn("cpu", seed), live=True)
        pairs = zip(opened.tensors, opened.specs, strict=True)
        arguments = opened.bind([_passed_values(tensor, spec) for tensor, spec in pairs])
    except SnapshotError as error:
        raise CaptureError(error.cause, error.remedy) from error
    return opened.target, arguments


def fake_tensors(live: Live, mode: Any) -> list[Any]:
    """The values as fake tensors. Raises CaptureError for one that has none."""
    found = []
    for value in live.values:
        for leaf in pytree.tree_leaves(value):
            if not isinstance(leaf, (torch.Tensor, *PLAIN)):
                raise CaptureError(
                    f"a {type(leaf).__name__} is handed to that part",
                    "only tensors, numbers and containers of them can be",
                )
        found.append(pytree.tree_map_only(torch.Tensor, lambda tensor: _fake(tensor, mode), value))
    return found


def _fake(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    with mode:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return made.requires_grad_() if tensor.requires_grad else made


def _passed_values(tensor: torch.Tensor, spec: ValueSpec) -> torch.Tensor:
    """What was no leaf is none: the program may write into it."""
    return tensor.clone() if tensor.requires_grad and not spec["leaf"] else tensor


def _bytes(specs: list[ValueSpec]) -> int:
    """Of the tensors, each storage once."""
    sizes: dict[int, int] = {}
    for spec in specs:
        size = math.prod(spec["shape"]) * dtype_of(spec).itemsize
        sizes[spec["storage"]] = max(size, sizes.get(spec["storage"], 0))
    return sum(sizes.values())


@contextlib.contextmanager
def _set(setting: TorchSetting) -> Iterator[None]:
    with (
        torch.set_grad_enabled(setting.gradients is not False),
        torch.inference_mode(setting.inference),
    ):
        yield
