"""What a recorded program asks while it is captured, answered as it was when the program made the
call.

A capture runs on fake CPU tensors, without gradients, while torch traces. A program that asks for
devices, gradients, autocast or tracing would hear of the capture instead of its own run.
Answers that a later call may get otherwise become conditions of the guard
(`Answers.requirements`); what cannot be answered is refused. Only the program's own code and the
libraries it uses are answered so: torch's questions keep torch's answers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from kernel_lsp.errors import CaptureError
from kernel_lsp.records import TorchSetting
from kernel_lsp.rewrite.capture.autocast import Autocast
from kernel_lsp.rewrite.capture.loading import OnCpu
from kernel_lsp.rewrite.capture.places import is_program
from kernel_lsp.rewrite.histories import Histories

ASKED = "the program asks for it"
BETWEEN = (
    *("proxy_tensor.py", "non_strict_utils.py", "overrides.py", "_contextlib.py"),
    *("autocast.py", "answers.py", "loading.py", "histories.py"),
)
"""Files of torch's and ours whose frames lie between a program and what it asks."""


class Answers(OnCpu):
    """Sends explicit devices to the CPU, and answers questions about them and about gradients."""

    def __init__(self, device: str, setting: TorchSetting, autocast: Autocast) -> None:
        super().__init__()
        self.device, self.setting, self.autocast = device, setting, autocast
        self.requirements: dict[str, str] = {}
        """Condition of the guard -> why."""
        self.codes: dict[int, CodeType] = {}
        """Functions that ran, of the program and its libraries."""
        self.histories = Histories(asked_by_program)
        self.derivatives: list[str] = []
        """Classes of autograd functions that have run: inside of them nothing is recorded."""
        self._unknown: str | None = None
        self._module: torch.nn.Module | None = None
        self._inputs: list[tuple[str, torch.Tensor]] = []

    def knows(self, module: torch.nn.Module | None, inputs: list[tuple[str, torch.Tensor]]) -> None:
        """Parameters and inputs (by their source) require gradients as they did in the program."""
        self._module, self._inputs = module, inputs

    def refuse(self, entry: str) -> None:
        """Raises CaptureError when something was asked that nobody knows."""
        if self._unknown is not None:
            raise CaptureError(
                f"{entry} asks for {self._unknown}, which is answered differently while a graph "
                f"is captured",
                "split the function at that question",
            )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = GETTERS.get(func)
        if answer is not None and args and asked_by_program(sys._getframe(1)):
            return answer(self, args[0], func)
        result = super().__torch_function__(func, types, args, kwargs)
        if self.setting.gradients is not False:
            self.histories.follow(func, args, kwargs or {}, result)
        return result

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
        """requires_grad, is_leaf, grad_fn, as they are in the program's call."""
        name = str(getattr(get, "__self__", get).__name__)
        self._require_same_gradients()
        if isinstance(tensor, torch.nn.Parameter) or self.setting.gradients is False:
            return get(tensor)
        shadow = self.histories.of(tensor)
        if shadow is not None and not self.derivatives:
            return getattr(shadow, name)
        is_input = any(tensor is known for _, known in self._inputs)
        if not is_input or (name != "requires_grad" and tensor.requires_grad):
            self._unknown = self._unknown or f"Tensor.{name}"
        return get(tensor)

    def _require_same_gradients(self) -> None:
        """The program's answers follow from these, in other calls too."""
        self._grad_enabled()
        for source, tensor in self._inputs:
            if tensor.is_floating_point() or tensor.is_complex():
                is_set = f"{source}.requires_grad"
                self.requirements[is_set if tensor.requires_grad else f"not {is_set}"] = ASKED
        needs = (
            [p.requires_grad for p in self._module.parameters()] if self._module is not None else []
        )
        if needs and all(needs):
            self.requirements["all(p.requires_grad for p in self.parameters())"] = ASKED
        elif needs and not any(needs):
            self.requirements["not any(p.requires_grad for p in self.parameters())"] = ASKED
        elif needs:
            self.requirements[f"[p.requires_grad for p in self.parameters()] == {needs}"] = ASKED

    def _grad_enabled(self) -> bool:
        if self.setting.gradients is None:
            self._unknown = self._unknown or "torch.is_grad_enabled()"
        enabled = self.setting.gradients is not False
        self.requirements[
            "torch.is_grad_enabled()" if enabled else "not torch.is_grad_enabled()"
        ] = ASKED
        return enabled

    # --- the frame around a capture ---------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Answers torch's functions too while the block runs, and notes which functions run."""
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
            stack.enter_context(self.histories.watching())
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
