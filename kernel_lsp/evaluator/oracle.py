"""The reference program in the judge: loaded once, run in its own precision and in float64.

A reference does not know about candidates or trials. It keeps what holds for every session: how it is
made, whether it draws random numbers, which buffers it changes. Does not cover: comparing.
"""

from __future__ import annotations

import copy
import hashlib
import random
import sys
from typing import Any

import torch

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError, boundary
from kernel_lsp.evaluator import devices, numerics, programs
from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves
from kernel_lsp.records import Program, Workload

State = dict[str, torch.Tensor]
RANGE_BOUND = ("binary_cross_entropy(", "BCELoss(", "multinomial(", "bernoulli(", ".erfinv(")
"""Operations that refuse (on a GPU: kill the process for) values outside a range."""


class Reference:
    """One program under one workload, constructed on its device."""

    def __init__(self, program: Program, workload: Workload, device: str) -> None:
        self.program, self.workload = program, workload
        self.device = devices.of(device)
        # The same program has the same parameters in every process: one seed repeats an evaluation.
        seed_everything(int(hashlib.sha256(wire.dumps([program, workload]).encode()).hexdigest()[:12], 16))
        with boundary(EvaluationError, "could not judge: loading the reference failed"):
            self.module = programs.load(program.source)
        target = programs.find(self.module, program.entry)
        with boundary(EvaluationError, "could not judge: get_init_inputs() failed"):
            self.init = programs.init_arguments(self.module, workload)
        with boundary(EvaluationError, "could not judge: constructing the reference failed"):
            self.target = programs.construct(target, self.init, self.device.place, workload.training)
        if not callable(self.target):
            raise EvaluationError(f"could not judge: {program.entry} is neither a module nor a function")
        self.own_state: State = {k: v.clone() for k, v in self._state().items()}
        self._oracle = copy.deepcopy(self.target).double() if self.is_module else self.target
        self.oracle_note = ""
        self.random = False
        self.changed: list[str] = []
        self.aliases = False

    @property
    def is_module(self) -> bool:
        return isinstance(self.target, torch.nn.Module)

    @property
    def grad(self) -> bool:
        return any(spec.requires_grad for spec in self.workload.inputs or ())

    @property
    def range_bound(self) -> bool:
        return any(word in self.program.source for word in RANGE_BOUND)

    def arguments(self, seed: int) -> Any:
        """[positional, by name] of one call, as the program makes them from this seed, on the CPU."""
        seed_everything(seed)
        with boundary(EvaluationError, "could not judge: get_inputs() failed"):
            given = programs.call_arguments(self.module, self.workload)
        return map_tensors(lambda t: t.detach().cpu().requires_grad_(t.requires_grad), list(given))

    def pristine(self) -> torch.nn.Module:
        """The module with the parameters that it was constructed with."""
        self.target.load_state_dict({**self.target.state_dict(), **self.own_state})
        module: torch.nn.Module = self.target
        return module

    def study(self, trial: dict[str, Any]) -> None:
        """Run on its own inputs and learn what kind of program this is. Raises EvaluationError."""
        with boundary(EvaluationError, "could not judge: the reference fails on its own inputs"):
            first, state = self.run(trial, noise_seed=1)
            self.aliases = self._shares_memory(trial)
            again, _ = self.run(trial, noise_seed=1)
            other, _ = self.run(trial, noise_seed=2)
        if not tensor_leaves(first):
            raise EvaluationError("could not judge: the reference returns no tensor")
        if not alike(first, again):
            raise EvaluationError(
                "could not judge: the reference gives another result when called again",
                "it keeps state outside its buffers, or draws randomness that no seed controls",
            )
        self.random = not alike(first, other)
        self.changed = [k for k, v in state.items() if not _same(v, trial["state"][k])]

    def _shares_memory(self, trial: dict[str, Any]) -> bool:
        """Whether the reference itself returns (views of) its inputs."""
        placed = map_tensors(self.place, trial["arguments"])
        with torch.set_grad_enabled(self.grad):
            result = self.target(*placed[0], **placed[1])
        mine = {t.untyped_storage().data_ptr() for t in tensor_leaves(placed) if t.numel()}
        return any(t.untyped_storage().data_ptr() in mine for t in tensor_leaves(result) if t.numel())

    # --- running ---------------------------------------------------------------------------

    def run(self, trial: dict[str, Any], noise_seed: int) -> tuple[Any, State]:
        """(output, state afterwards) on the device, in the program's own dtype."""
        result = self._call(self.target, trial["arguments"], trial["state"], noise_seed)
        self.carries_grad = [t.requires_grad for t in tensor_leaves(result)]
        return self._own(result, self.target)

    def run_wide(self, trial: dict[str, Any], moved: bool = False) -> tuple[Any, State] | None:
        """(output, state afterwards) in float64; None where the program cannot run in it."""
        if self.random or self.oracle_note:
            return None

        def widen(value: torch.Tensor) -> torch.Tensor:
            if not value.dtype.is_floating_point:
                return value
            wide = value.detach().double()
            return numerics.nudge(wide, value.dtype, trial["draw"]) if moved else wide

        try:
            state = {k: widen(v) for k, v in trial["state"].items()}
            result = self._call(self._oracle, map_tensors(widen, trial["arguments"]), state, 1)
        except Exception as error:  # hard-coded dtypes: any exception means no oracle
            self.oracle_note = (
                f"no float64 oracle ({type(error).__name__}): the reference is compared with itself"
            )
            return None
        return self._own(result, self._oracle)

    def _call(self, target: Any, arguments: Any, state: State, noise_seed: int) -> Any:
        if self.is_module:
            target.load_state_dict({**target.state_dict(), **state})
        torch.manual_seed(noise_seed)
        placed = map_tensors(self.place, arguments)
        with torch.set_grad_enabled(self.grad):
            result = target(*placed[0], **placed[1])
        self.device.synchronize()
        return result

    def _own(self, result: Any, target: Any) -> tuple[Any, State]:
        """Copies: a program may return one of its own buffers, and the next call changes them.

        They stay on the device: comparing 32 MB on an H200 took 0.5 s on its host and 0.1 s there.
        """
        after = target.state_dict() if self.is_module else {}
        state = {k: v.detach().clone() for k, v in after.items() if isinstance(v, torch.Tensor)}
        return map_tensors(lambda t: t.detach().clone(), result), state

    def _state(self) -> State:
        state = self.target.state_dict() if self.is_module else {}
        return {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device that carries gradients like the original."""
        place = self.device.place
        moved = tensor.detach().to(place) if place != "cpu" else tensor.detach().clone()
        return moved.requires_grad_(tensor.requires_grad)


def seed_everything(seed: int) -> None:
    """Every generator that a program's get_inputs() may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def alike(a: Any, b: Any) -> bool:
    """Equal up to the order of atomic additions."""
    for x, y in zip(tensor_leaves(a), tensor_leaves(b), strict=True):
        left, right = numerics.real(x).double().nan_to_num(), numerics.real(y).double().nan_to_num()
        if numerics.relative_error(left, right) > 1e-3:
            return False
    return True


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.cpu().nan_to_num(), b.cpu().nan_to_num())
