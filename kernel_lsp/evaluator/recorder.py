"""Which Triton kernels a candidate launched, and with which signature. Interpreter runs only.

What is recorded is what ahead-of-time compilation needs (devices/aot.py). Does not cover kernels
that are launched by other means than Triton's own launcher.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64",
    torch.int8: "*i8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
    torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages", "num_ctas")
PLAIN = (int, float, bool, str, type(None))


class Recorder:
    """Wraps the interpreter's launcher; one per worker."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        """Install the wrapper. A machine without Triton records nothing."""
        try:
            from triton.runtime.interpreter import InterpretedFunction
        except ImportError:
            return
        launch = InterpretedFunction.run

        @functools.wraps(launch)
        def run(function: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(function, args, kwargs)
            return launch(function, *args, **kwargs)

        InterpretedFunction.run = run

    def kernels(self) -> list[dict[str, Any]]:
        return list(self._seen.values())

    def _note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        python = inspect.unwrap(function.fn)
        known = {key: value for key, value in kwargs.items() if key not in ("grid", "warmup", *OPTIONS)}
        try:
            bound = inspect.signature(python).bind(*args, **known)
        except TypeError:  # the launch itself will fail with the better message
            return
        bound.apply_defaults()
        described = {name: _describe(python, name, value) for name, value in bound.arguments.items()}
        if python.__qualname__ not in self._seen and None not in described.values():
            self._seen[python.__qualname__] = {
                "name": python.__qualname__,
                "arguments": described,
                "options": {key: kwargs[key] for key in OPTIONS if key in kwargs},
            }


def _describe(python: Any, name: str, value: Any) -> dict[str, Any] | None:
    """{"type", "constant"?, "aligned"?} of one argument; None when it cannot be described."""
    if "constexpr" in str(inspect.signature(python).parameters[name].annotation):
        value = getattr(value, "value", value)
        if isinstance(value, PLAIN):
            return {"type": "constexpr", "constant": value}
        return {"type": "constexpr", "dtype": str(value)} if type(value).__name__ == "dtype" else None
    if isinstance(value, torch.Tensor):
        pointer = POINTERS.get(value.dtype)
        return {"type": pointer, "aligned": value.data_ptr() % 16 == 0} if pointer else None
    if value is None or value is True or value is False:
        return {"type": "constexpr", "constant": value} if value is None else {"type": "i1"}
    if isinstance(value, int):
        if value == 1:  # Triton specializes a one
            return {"type": "constexpr", "constant": 1}
        return {"type": "i32" if -(2**31) <= value < 2**31 else "i64", "aligned": value % 16 == 0}
    return {"type": "fp32"} if isinstance(value, float) else None
