"""What a recorded program asks while it is captured, answered as it was when the program made the call.

A capture runs on fake CPU tensors, without gradients, while torch traces. A program that asks for devices,
gradients, autocast or tracing would be told of the capture instead of its own run. Answers that a later call
may get otherwise become conditions of the guard (`Answers.requirements`); what cannot be answered is refused.
Only the program's own code and the libraries it uses are answered so: torch's questions keep torch's answers.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from kernel_lsp.errors import CaptureError
from kernel_lsp.records import Setting
from kernel_lsp.rewrite.autocast import Autocast
from kernel_lsp.rewrite.loading import OnCpu

TORCH = str(Path(torch.__file__).parent)
OURS = str(Path(__file__).parent.parent)
STANDARD_LIBRARY = str(Path(contextlib.__file__).parent)
BETWEEN = ("proxy_tensor.py", "overrides.py", "autocast.py", "answers.py", "loading.py")
"""Files of torch's and ours whose frames lie between a program and what it asks."""


class Answers(OnCpu):
    """Sends explicit devices to the CPU, and answers questions about them and about gradients."""

    def __init__(self, device: str, setting: Setting, autocast: Autocast) -> None:
        super().__init__()
        self.device, self.setting, self.autocast = device, setting, autocast
        self.requirements: dict[str, str] = {}
        """Condition of the guard -> why."""
        self.codes: dict[int, CodeType] = {}
        """Functions that ran, of the program and its libraries."""
        self._unknown: str | None = None
        self._known: set[int] = set()
        """ids of tensors whose ``requires_grad`` is the program's own."""

    def knows(self, tensors: list[torch.Tensor]) -> None:
        """These are parameters and inputs: they require gradients as they did in the program."""
        self._known.update(map(id, tensors))

    def refuse(self, entry: str) -> None:
        """Raises CaptureError when something was asked that nobody knows."""
        if self._unknown is not None:
            raise CaptureError(
                f"{entry} asks for {self._unknown}, which is answered differently while a graph is captured",
                "split the function at that question",
            )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = GETTERS.get(func)
        if answer is not None and args and asked_by_program(sys._getframe(1)):
            return answer(self, args[0], func)
        return super().__torch_function__(func, types, args, kwargs)

    # --- answers -------------------------------------------------------------------------

    def _is_cuda(self, tensor: torch.Tensor, get: Any) -> Any:
        return self.device == "cuda"

    def _is_cpu(self, tensor: torch.Tensor, get: Any) -> Any:
        return self.device != "cuda"

    def _device(self, tensor: torch.Tensor, get: Any) -> Any:
        return torch.device("cuda", 0) if self.device == "cuda" else get(tensor)

    def _index(self, tensor: torch.Tensor, get: Any) -> Any:
        return 0 if self.device == "cuda" else get(tensor)

    def _history(self, tensor: torch.Tensor, get: Any) -> Any:
        """requires_grad, is_leaf, grad_fn: known of parameters and inputs; without gradients of all."""
        if self.setting.gradients is not False and id(tensor) not in self._known:
            self._unknown = self._unknown or f"Tensor.{getattr(get, '__self__', get).__name__}"
        return get(tensor)

    def _grad_enabled(self) -> bool:
        if self.setting.gradients is None:
            self._unknown = self._unknown or "torch.is_grad_enabled()"
        enabled = self.setting.gradients is not False
        self.requirements["torch.is_grad_enabled()" if enabled else "not torch.is_grad_enabled()"] = (
            "the program asks for it"
        )
        return enabled

    # --- the frame around a capture ---------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While the block runs: answer torch's functions too, and note which functions run."""
        asked: list[tuple[Any, str, Callable[..., Any]]] = [
            (torch, "is_grad_enabled", self._grad_enabled),
            (torch, "is_inference_mode_enabled", lambda: self.setting.inference),
            (torch, "is_autocast_enabled", lambda *device: self.autocast.dtype is not None),
            (torch, "get_autocast_dtype", lambda *device: self.autocast.dtype or torch.float16),
            (torch, "get_autocast_gpu_dtype", lambda: self.autocast.dtype or torch.float16),
            (torch.compiler, "is_compiling", lambda: False),
            (torch.compiler, "is_dynamo_compiling", lambda: False),
            (torch.compiler, "is_exporting", lambda: False),
            (torch.cuda, "current_device", lambda: 0),
        ]
        with contextlib.ExitStack() as stack:
            for owner, name, answer in asked:
                if hasattr(owner, name):
                    stack.enter_context(_answering(owner, name, answer))
            stack.enter_context(self._noting())
            yield

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        codes = self.codes

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                codes[id(frame.f_code)] = frame.f_code

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(before)
            self.codes = {key: code for key, code in codes.items() if is_program(code.co_filename)}


def _property(name: str) -> Any:
    return getattr(torch.Tensor, name).__get__


GETTERS: dict[Any, Callable[[Answers, torch.Tensor, Any], Any]] = {
    _property("is_cuda"): Answers._is_cuda,
    _property("is_cpu"): Answers._is_cpu,
    _property("device"): Answers._device,
    torch.Tensor.get_device: Answers._index,
    _property("requires_grad"): Answers._history,
    _property("is_leaf"): Answers._history,
    _property("grad_fn"): Answers._history,
}


@contextlib.contextmanager
def _answering(owner: Any, name: str, answer: Callable[..., Any]) -> Iterator[None]:
    original = getattr(owner, name)

    def asked(*args: Any, **kwargs: Any) -> Any:
        return answer(*args) if asked_by_program(sys._getframe(1)) else original(*args, **kwargs)

    setattr(owner, name, asked)
    try:
        yield
    finally:
        setattr(owner, name, original)


def asked_by_program(frame: FrameType | None) -> bool:
    """Whether the code that asks is the program's or a library's, not torch's or ours."""
    while frame is not None and frame.f_code.co_filename.endswith(BETWEEN):
        if is_program(frame.f_code.co_filename):
            break
        frame = frame.f_back
    return frame is not None and is_program(frame.f_code.co_filename)


def is_program(filename: str) -> bool:
    """Whether a file is the program's own or an installed package's."""
    if filename.startswith("<kernel-lsp"):
        return True
    installed = "site-packages" in filename or "dist-packages" in filename
    if installed and "/triton/" in filename:  # as torch's own
        return False
    if filename.startswith(STANDARD_LIBRARY) and not installed:
        return False
    return not filename.startswith((TORCH, OURS, "<"))
