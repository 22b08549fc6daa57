"""Which Triton kernels a candidate launched, and whether its result needs them.

A launch counts when it succeeded. Signatures (when interpreted) are what ahead-of-time compilation
needs (devices/aot.py); resources are read from what ran on a GPU. :meth:`Recorder.knocked_out`
lets every launch do nothing: a result that stays the same comes from somewhere else (decoys.py
judges that). Does not cover kernels that are launched by other means than Triton's own launcher.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernel_lsp.evaluator.devices.interpreter import first_configurations
from kernel_lsp.evaluator.tensors import tensor_leaves

POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64",
    torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
    torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages", "num_ctas")
PLAIN = (int, float, bool, str, type(None))


class LaunchRecorder:
    """Wraps the interpreter's launcher; one per worker."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Any]] = {}
        self._launched: dict[str, None] = {}
        self._compiled: dict[tuple[str, int], Any] = {}
        self._silent = False
        self._tuned: dict[str, str] = {}
        self.recording = False

    def start(self, interpreted: bool) -> None:
        """Install the wrapper. A machine without Triton records nothing."""
        try:
            kind = launcher_of(interpreted)
            self._tuned = first_configurations() if interpreted else {}
        except ImportError:
            return
        launch, self.recording = kind.run, True

        @functools.wraps(launch)
        def run(function: Any, *args: Any, **kwargs: Any) -> Any:
            if self._silent:
                return None
            self._note(function, args, kwargs)
            compiled = launch(function, *args, **kwargs)
            self._launched[inspect.unwrap(function.fn).__qualname__] = None
            if not interpreted and compiled is not None:
                self._compiled[function.fn.__qualname__, id(compiled)] = compiled
            return compiled

        kind.run = run

    @contextmanager
    def knocked_out(self) -> Iterator[None]:
        """Every launch inside the block does nothing."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def launched(self) -> list[str]:
        """Names of all kernels that ran, in order."""
        return list(self._launched)

    def kernels(self) -> list[dict[str, Any]]:
        """Signatures of those whose arguments could be described."""
        return list(self._seen.values())

    def tuned(self) -> list[str]:
        """One sentence for every kernel whose tuner took a configuration without timing it."""
        return list(self._tuned.values())

    def resources(self) -> list[dict[str, Any]]:
        """Registers, spills and shared memory of what ran on the GPU; the heaviest of a kernel's
        variants."""
        found: dict[str, dict[str, Any]] = {}
        for (name, _), compiled in self._compiled.items():
            one = _resources(name, compiled)
            old = found.get(name)
            if old is None or (one["registers"] or 0) > (old["registers"] or 0):
                found[name] = one
        return list(found.values())

    def _note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        python = inspect.unwrap(function.fn)
        known = {
            key: value for key, value in kwargs.items() if key not in ("grid", "warmup", *OPTIONS)
        }
        try:
            bound = inspect.signature(python).bind(*args, **known)
        except TypeError:  # the launch itself will fail with the better message
            return
        bound.apply_defaults()
        described = {
            name: _describe(python, name, value) for name, value in bound.arguments.items()
        }
        if python.__qualname__ not in self._seen and None not in described.values():
            self._seen[python.__qualname__] = {
                "name": python.__qualname__,
                "arguments": described,
                "options": {key: kwargs[key] for key in OPTIONS if key in kwargs},
            }


def changed_share(usual: Any, other: Any) -> float:
    """Share of the elements of all tensors in ``usual`` that differ in ``other``; NaN equals
    NaN."""
    pairs = list(zip(tensor_leaves(usual), tensor_leaves(other), strict=False))
    if len(pairs) != len(tensor_leaves(usual)) or any(a.shape != b.shape for a, b in pairs):
        return 1.0
    total = sum(a.numel() for a, _ in pairs)
    same = sum(int(((a == b) | ((a != a) & (b != b))).sum()) for a, b in pairs)
    return 1.0 - same / total if total else 0.0


def launcher_of(interpreted: bool) -> Any:
    """The class whose ``run`` launches kernels. Raises ImportError without Triton."""
    if interpreted:
        from triton.runtime.interpreter import InterpretedFunction

        return InterpretedFunction
    from triton.runtime.jit import JITFunction

    return JITFunction


def _resources(name: str, compiled: Any) -> dict[str, Any]:
    """What Triton's driver says about a loaded kernel; it counts spills in words of four bytes."""
    metadata = getattr(compiled, "metadata", None)
    spills = getattr(compiled, "n_spills", None)
    target = getattr(metadata, "target", None)
    return {
        "name": name,
        "arch": f"sm_{getattr(target, 'arch', '?')}",
        "registers": getattr(compiled, "n_regs", None),
        "spill_bytes": None if spills is None else 4 * int(spills),
        "shared_bytes": getattr(metadata, "shared", None),
    }


def _describe(python: Any, name: str, value: Any) -> dict[str, Any] | None:
    """{"type", "constant"?, "aligned"?} of one argument; None when it cannot be described."""
    if "constexpr" in str(inspect.signature(python).parameters[name].annotation):
        return _describe_constexpr(getattr(value, "value", value))
    if isinstance(value, torch.Tensor):
        pointer = POINTERS.get(value.dtype)
        return {"type": pointer, "aligned": value.data_ptr() % 16 == 0} if pointer else None
    if type(value).__name__ == "TensorDescriptor":  # older Tritons have none
        pointer, block = POINTERS.get(value.base.dtype), ",".join(map(str, value.block_shape))
        return {"type": f"tensordesc<{pointer[1:]}[{block}]>"} if pointer else None
    return _describe_number(value)


def _describe_constexpr(value: Any) -> dict[str, Any] | None:
    if isinstance(value, PLAIN):
        return {"type": "constexpr", "constant": value}
    if type(value).__name__ == "dtype":
        return {"type": "constexpr", "dtype": str(value)}
    return None


def _describe_number(value: Any) -> dict[str, Any] | None:
    if value is None:
        return {"type": "constexpr", "constant": None}
    if isinstance(value, bool):
        return {"type": "i1"}
    if isinstance(value, int):
        if value == 1:  # Triton specializes a one
            return {"type": "constexpr", "constant": 1}
        return {"type": "i32" if -(2**31) <= value < 2**31 else "i64", "aligned": value % 16 == 0}
    return {"type": "fp32"} if isinstance(value, float) else None
