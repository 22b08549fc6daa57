"""A launcher is followed where no GPU is: what it asks of one is answered, what it computes is
guessed.

`on_a_gpu()` answers the questions that launchers and libraries ask of ``torch.cuda`` and of
Triton's driver as an H200 would. `Guessing` is a dispatch mode for what only data could tell
(``.item()``, ``if x.any()``): whoever uses it runs a launcher with different guesses, and believes
only what is the same in all. Not covered: libraries that ask the driver through ctypes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_lsp.devices import REFERENCE

PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=REFERENCE.processors,
    total_memory=150_000_000_000,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65_536,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=REFERENCE.shared_bytes,
    shared_memory_per_multiprocessor=233_472,
    L2_cache_size=REFERENCE.l2_bytes,
)
_ANSWERS: dict[str, Any] = {
    "is_available": True,
    "is_initialized": True,
    "is_bf16_supported": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_properties": PROPERTIES,
    "get_device_capability": (9, 0),
    "get_device_name": PROPERTIES.name,
    "synchronize": None,
    "set_device": None,
    "device": contextlib.nullcontext(),
    "current_stream": SimpleNamespace(cuda_stream=0),
}


class Guessing(TorchDispatchMode):
    """Answers what depends on data: every number is ``number``, every condition ``holds``."""

    def __init__(self, number: int, holds: bool) -> None:
        super().__init__()
        self.number, self.holds = number, holds
        self.asked: set[type] = set()
        """bool, int and float, as far as the launcher wanted to know one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._answer(args[0].dtype)
        if func is torch.ops.aten.equal.default:
            return self._answer(torch.bool)
        return func(*args, **(kwargs or {}))

    def _answer(self, dtype: torch.dtype) -> bool | int | float:
        kind = bool if dtype == torch.bool else float if dtype.is_floating_point else int
        self.asked.add(kind)
        return self.holds if kind is bool else kind(self.number)


@contextlib.contextmanager
def on_a_gpu() -> Iterator[None]:
    """``x.is_cuda`` holds, ``torch.cuda.device(x.device)`` is entered, properties are an H200's."""
    kept: list[tuple[Any, str, Any]] = [
        (torch.Tensor, name, getattr(torch.Tensor, name)) for name in ("is_cuda", "data_ptr")
    ]
    kept += [(torch.cuda, name, getattr(torch.cuda, name)) for name in _ANSWERS]
    torch.Tensor.is_cuda = property(lambda self: True)
    torch.Tensor.data_ptr = _address(torch.Tensor.data_ptr)
    for name, answer in _ANSWERS.items():
        setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
    try:
        with _driver():
            yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)


def _address(known: Callable[[torch.Tensor], int]) -> Callable[[torch.Tensor], int]:
    """Of a fake tensor: one as torch's allocator gives them, another for each, a multiple of 512
    bytes."""

    def data_ptr(tensor: torch.Tensor) -> int:
        if not isinstance(tensor, FakeTensor):
            return known(tensor)
        return (
            512 * tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size()
        )

    return data_ptr


@contextlib.contextmanager
def _driver() -> Iterator[None]:
    """Triton's driver, where the machine has none of its own."""
    from triton.runtime import driver

    properties = {
        "multiprocessor_count": PROPERTIES.multi_processor_count,
        "max_shared_mem": 232_448,
    }
    properties |= {
        "max_num_regs": PROPERTIES.regs_per_multiprocessor,
        "warpSize": PROPERTIES.warp_size,
    }
    kept = driver._active
    driver.set_active(
        SimpleNamespace(
            utils=SimpleNamespace(get_device_properties=lambda _device: properties),
            get_current_device=lambda: 0,
            get_current_stream=lambda _device=0: 0,
            get_active_torch_device=lambda: torch.device("cpu"),
            get_device_interface=lambda: torch.cuda,
            get_current_target=_target,
        )
    )
    try:
        yield
    finally:
        driver._active = kept


def _target() -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", 90, 32)
