"""The reference program in the judge: loaded once, run in its own precision and in float64.

A reference does not know about candidates or trials. It keeps what holds for every session: how it
is made, whether it draws random numbers, which buffers it changes. Does not cover: comparing."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from kernel_lsp import wire
from kernel_lsp.errors import EvaluationError, boundary
from kernel_lsp.evaluator import callees, circumstances, devices, relations
from kernel_lsp.evaluator.callees import Callee, widen_tensor
from kernel_lsp.evaluator.circumstances import AUTOCAST, AUTOCAST_DTYPE, INFERENCE, OTHER_MODE
from kernel_lsp.evaluator.devices import interpreter
from kernel_lsp.evaluator.gradients import (
    GradientsByName,
    backward,
    leaves_with_gradients,
    second_order,
)
from kernel_lsp.evaluator.judging import needs, noise, numerics, variations
from kernel_lsp.evaluator.judging.split_products import SplitProducts
from kernel_lsp.evaluator.judging.widening import in_float64, names_types
from kernel_lsp.evaluator.processes import crashes
from kernel_lsp.evaluator.tensors import as_stored, map_tensors, strided_copy, tensor_leaves
from kernel_lsp.records import Program, Workload

ModuleState = dict[str, torch.Tensor]
TrialInputs = dict[str, Any]
"""family, arguments ([positional, by name]), state, noise_seed, draw (a generator), label (in
words)."""
T = TypeVar("T")
RANGE_BOUND = ("binary_cross_entropy(", "BCELoss(", "multinomial(", "bernoulli(", ".erfinv(")
"""Operations that refuse (on a GPU: kill the process for) values outside a range."""
ORDER_BOUND = ("searchsorted(", "bucketize(")
"""Operations whose results have no meaning where their bounds are in no order."""
NEAR_SHARE = 32
"""Inputs that fit so often into the device's memory are drawn there: an oracle in float64, several
copies and another program's are there as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """One call of the reference; tensors are copies."""

    output: Any
    state: ModuleState
    strides: list[tuple[int, ...]]
    carries_grad: list[bool]
    relations: list[list[str]]
    """Per output tensor: whose memory it shares (see relations.py)."""
    names: list[list[str]]
    """Of the items of every tuple, where they have names."""
    marks: list[str]
    """What it leaves on its inputs and parameters."""
    generators: dict[str, str]
    draws: bool
    """Random numbers were drawn, or a generator was seeded."""


class Reference:
    """One program under one workload, constructed on its device."""

    def __init__(self, program: Program, workload: Workload, device: str) -> None:
        self.program, self.workload = program, workload
        self.device = devices.of(device)
        devices.few_threads(self.device)
        # The same program has the same parameters in every process: one seed repeats an evaluation.
        relations.seed(
            int(hashlib.sha256(wire.dumps([program, workload]).encode()).hexdigest()[:12], 16)
        )
        if device == "interpreter" and "triton" in program.source:
            interpreter.first_configurations()
        self.subject = callees.subject_of(program, workload, self.device.place)
        self.init = self.subject.init
        if not callable(self.target):
            raise EvaluationError(
                f"could not judge: {program.entry} is neither a module nor a function"
            )
        self.own_state: ModuleState = {k: v.clone() for k, v in self._state(self.target).items()}
        self.oracle_note = ""
        self.tells_precision: bool | None = None
        """Whether the reference on coarser operands differs from itself; None: not known."""
        self.grad = self.random = False
        self.may_record_gradients = False
        """Nobody said that calls are inference: then what a program would differentiate is judged
        as well."""
        self.deterministic = True
        self.changed: list[str] = []
        self.changed_otherwise: list[str] = []
        self.draws_otherwise = False
        """Buffers that it changes, and whether it draws, in the other mode."""
        self.circumstances: list[str] = []
        """Those that it takes besides its workload's."""
        self.output_dtypes: list[torch.dtype] = []
        self.elements = 0
        """Of all arguments together."""
        self.result_bytes = self.needed_bytes = 0
        """Of what one call returns; of everything that judging it needs."""
        self.aliases = False
        self.insensitive: list[int] = []
        """Places of the outputs that are the same for other inputs."""
        self.layouts: list[str] = []
        self._names_types = names_types(program)
        self._delicate = any(name in program.source for name in variations.DELICATE)
        self.batch: tuple[tuple[int, ...], list[int]] | None = None
        """Which arguments share a batch dimension, and other sizes for it; None: none was
        accepted."""
        self.edges: list[str] = []
        """Families of values at the edges that it takes."""
        self.sizes: list[tuple[variations.Group, list[int]]] = []
        """Dimensions that it takes in other sizes, and which are worth a trial."""
        self.rehearsed = False
        """Whether a comparison was rehearsed; see Session.rehearse."""
        self.draws_near = False
        """Whether inputs are drawn in the device's memory; see :meth:`settle`."""
        self.ordered: frozenset[int] = frozenset()
        """Numbers of argument tensors that are in ascending order in every trial."""

    @property
    def callee(self) -> Callee:
        """The reference as it is called, in its own precision."""
        return self.subject.callee

    @property
    def wide(self) -> Callee:
        """The program in float64."""
        return self.subject.wide

    @property
    def target(self) -> Any:
        """The constructed module, or the function itself."""
        return self.subject.callee.target

    @property
    def is_module(self) -> bool:
        """Whether the reference is an ``nn.Module`` rather than a function."""
        return isinstance(self.target, torch.nn.Module)

    @property
    def range_bound(self) -> bool:
        """Whether its source calls an operation that refuses values outside a range."""
        return any(word in self.program.source for word in RANGE_BOUND)

    def relaid(self, tensor: torch.Tensor, layout: str) -> torch.Tensor:
        """The same values in other memory, as far as this program bears it."""
        return variations.relay_memory(
            tensor, layout, aligned=self._delicate and self.device.name == "cuda"
        )

    def settle(self, given: Any) -> None:
        """Draw on the device from now on where inputs are a small part of its memory: a trial of
        64 million elements took two CPU threads 1 to 6 s, and a dozen trials are drawn for every
        candidate. Keep in order what is in order where the program asks for that."""
        if any(word in self.program.source for word in ORDER_BOUND):
            leaves = enumerate(tensor_leaves(given))
            self.ordered = frozenset(place for place, one in leaves if variations.is_ordered(one))
        place = torch.device(self.device.place)
        if place.type == "cuda":
            size = sum(t.numel() * t.dtype.itemsize for t in tensor_leaves(given))
            total = torch.cuda.get_device_properties(place).total_memory
            self.draws_near = size * NEAR_SHARE <= total

    def generator(self, seed: int) -> torch.Generator:
        """A seeded generator of the device that inputs are drawn on."""
        place = self.device.place if self.draws_near else "cpu"
        return torch.Generator(place).manual_seed(seed)

    def arguments(self, seed: int) -> Any:
        """:meth:`given`, on the device that inputs are drawn on."""
        if not self.draws_near:
            given = self.given(seed)
            return map_tensors(
                lambda t: t.detach().cpu().requires_grad_(t.requires_grad), list(given)
            )
        try:
            with torch.device(self.device.place):
                given = self.given(seed)
        except EvaluationError:  # it mixes devices then; if something else is wrong, it is said now
            given = self.given(seed)
        return map_tensors(self.place, list(given))

    def given(self, seed: int) -> Any:
        """[positional, by name] of one call, as the program makes them from this seed."""
        relations.seed(seed)
        with boundary(EvaluationError, "could not judge: get_inputs() failed"):
            return self.subject.arguments(seed)

    def pristine(self) -> torch.nn.Module:
        """The module with the parameters that it was constructed with."""
        self.target.load_state_dict({**self.target.state_dict(), **self.own_state})
        module: torch.nn.Module = self.target
        return module

    def behavior(self, circumstance: str) -> dict[str, Any]:
        """What it does in a circumstance: buffers that it changes, whether it draws."""
        if circumstance == OTHER_MODE:
            return {"changed": self.changed_otherwise, "draws": self.draws_otherwise}
        return {"changed": self.changed, "draws": self.random}

    # --- running ---------------------------------------------------------------------------

    def run(self, trial: TrialInputs, noise_seed: int) -> Ran:
        """Output, state afterwards and everything else that a call does, in the program's own
        dtype."""
        crashes.say(trial["label"])
        placed = map_tensors(self.place, trial["arguments"])
        if "rows" in trial:
            # Only now: a copy to the device would leave behind what stands behind them.
            placed = variations.first_rows(placed, trial["rows"])
        callee = self.subject.single if trial.get("single") else self.callee
        before = self._prepare(callee.target, trial["state"], noise_seed)
        required = relations.requirements(placed)
        grad, circumstance = _records(trial, self.grad), _circumstance(trial)
        with relations.held_gradients(callee.target if trial.get("held") else None) as left:
            result = self._call(callee, placed, grad, circumstance)
        drawn = relations.generators(self.device.place)
        return Ran(
            output=map_tensors(lambda t: t.detach().clone(), result),
            state={k: v.detach().clone() for k, v in self._state(callee.target).items()},
            strides=[t.stride() for t in tensor_leaves(result)],
            carries_grad=[t.requires_grad for t in tensor_leaves(result)],
            relations=relations.relations(result, placed, self._memory(callee)),
            names=relations.names(result),
            marks=left + relations.marks(placed, callee.target, required),
            generators=drawn,
            draws=drawn != before,
        )

    def run_split(self, trial: TrialInputs) -> Ran:
        """`run`, with NaN for what a float32 product on tensor cores may not know."""
        with SplitProducts():
            return self.run(trial, trial["noise_seed"])

    def learn(self, placed: Any, state: ModuleState) -> None:
        """Call it once to see how it treats its arguments. Raises EvaluationError, and what it
        raises."""
        crashes.say(crashes.PLAIN)
        self._prepare(self.target, state, 1)
        with _naming_unsupported():
            self.subject.learn(placed)
        self.device.synchronize()

    def repeat(self, trial: TrialInputs) -> None:
        """One call of a trial, forward and, where it records gradients, backward; nothing is
        kept."""
        placed = map_tensors(self.place, trial["arguments"])
        result = self._call(self.callee, placed, _records(trial, self.grad))
        if outputs := [t for t in tensor_leaves(result) if t.requires_grad]:
            wanted = leaves_with_gradients(placed, self.target)
            backward(result, wanted, [torch.ones_like(t) for t in outputs])

    def call(self, placed: Any, state: ModuleState) -> Any:
        """What one call returns, with tensors of its own."""
        crashes.say(crashes.PLAIN)
        self._prepare(self.target, state, 1)
        return self._call(self.callee, placed, self.grad)

    def run_wide(self, trial: TrialInputs, moved: bool = False) -> tuple[Any, ModuleState] | None:
        """(output, state afterwards) in float64; None where the program cannot run in it."""

        def run() -> tuple[Any, ModuleState]:
            wide, drawn = self._widened(trial, moved), self._drawn(trial)
            self._prepare(self.wide.target, wide["state"], 1)
            with self._replaying(drawn), self._calculating_wide(trial):
                placed = map_tensors(self.place, wide["arguments"])
                grad = _records(trial, self.grad)
                result = self._call(self.wide, placed, grad, _circumstance(trial, wide=True))
            # A program may return one of its own buffers, and the next call changes them. The
            # copies stay on the device: comparing 32 MB on an H200 took 0.5 s on its host and 0.1 s
            # there.
            state = {k: v.detach().clone() for k, v in self._state(self.wide.target).items()}
            return map_tensors(lambda t: t.detach().clone(), result), state

        return self._in_float64(run, lasting=not trial.get("circumstance") and "anew" not in trial)

    def gradients(
        self,
        trial: TrialInputs,
        cotangents: list[torch.Tensor],
        noise_seed: int,
        weights: GradientsByName | None = None,
    ) -> GradientsByName:
        """Gradients by name of input and parameter; None where nothing flows. ``weights``:
        gradients of these gradients instead, weighted so."""
        self._prepare(self.target, trial["state"], noise_seed)
        return self._gradients(self.callee, trial, cotangents, weights)

    def gradients_wide(
        self,
        trial: TrialInputs,
        cotangents: list[torch.Tensor],
        moved: bool = False,
        weights: GradientsByName | None = None,
        last_bit: bool = False,
        all_moved: bool = False,
    ) -> GradientsByName | None:
        """The same in float64; None where the program cannot run in it. ``all_moved``: everything
        that a gradient is made of, ``cotangents`` and ``weights`` too. ``last_bit``: by float64's
        eps alone, so that what has no digit in common with the oracle is rounding."""

        def widen(value: torch.Tensor) -> torch.Tensor:
            wide = widen_tensor(value)
            if not all_moved or wide.dtype not in (torch.float64, torch.complex128):
                return wide
            return numerics.nudge(wide, value.dtype.to_real(), trial["draw"])

        def run() -> GradientsByName:
            wide = self._widened(trial, moved or last_bit, about_zero=moved, last_bit=last_bit)
            drawn = self._drawn(trial)
            self._prepare(self.wide.target, wide["state"], 1)
            with self._replaying(drawn), self._calculating_wide(trial):
                wider, heavier = map_tensors(widen, cotangents), map_tensors(widen, weights)
                return self._gradients(self.wide, wide, wider, heavier)

        return self._in_float64(run, lasting=not trial.get("circumstance") and "anew" not in trial)

    def _gradients(
        self,
        callee: Callee,
        trial: TrialInputs,
        cotangents: list[torch.Tensor],
        weights: GradientsByName | None,
    ) -> GradientsByName:
        placed = map_tensors(self.place, trial["arguments"])
        circumstance = _circumstance(trial, wide=callee is self.wide)
        result = self._call(callee, placed, True, circumstance)
        wanted = leaves_with_gradients(placed, callee.target)
        if weights is None:
            found = backward(result, wanted, cotangents)
        else:
            chosen = {name: one for name, one in weights.items() if one is not None}
            found = second_order(result, wanted, cotangents, chosen)
        self.device.synchronize()
        return found

    def rounds_coarsely(self, trial: TrialInputs) -> bool:
        """Whether it rounds intermediate values to fewer bits than its inputs have: under
        autocast."""
        return self.workload.setting.autocast is not None or _circumstance(trial) == AUTOCAST

    def as_good(self, trial: TrialInputs) -> TrialInputs:
        """The trial with every input, parameter and weight of a gradient moved by at most half an
        eps of its dtype (of autocast's, where that rounds): values that the program rounds
        otherwise, and is no more or less right on."""
        recorded = self.workload.setting.autocast
        coarse = getattr(torch, recorded) if recorded else AUTOCAST_DTYPE
        coarse = coarse if self.rounds_coarsely(trial) else None
        draw = trial["draw"]

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.dtype.is_floating_point:
                return tensor
            own = tensor.detach()
            for dim in (dim for dim, stride in enumerate(own.stride()) if not stride):
                own = own.narrow(dim, 0, min(1, own.shape[dim]))  # what is expanded stays so
            nudged = numerics.nudge(own.double(), coarse or tensor.dtype, draw)
            made = strided_copy(own, str(tensor.device)).copy_(as_stored(nudged, tensor.dtype))
            return made.expand(tensor.shape).requires_grad_(tensor.requires_grad)

        parts = ("state", "arguments", "weights", "second weights")
        return {**trial, **{key: map_tensors(moved, trial[key]) for key in parts if key in trial}}

    def _drawn(self, trial: TrialInputs) -> list[noise.NoiseDraw]:
        """What the program draws in this trial, in its own dtype."""
        if not trial["draws"]:
            return []
        self._prepare(self.target, trial["state"], trial["noise_seed"])
        circumstance = _circumstance(trial)
        if circumstance == INFERENCE:  # what is drawn there could not be used elsewhere
            circumstance = ""
        with noise.NoiseRecording(self.device.place) as recording:
            placed = map_tensors(self.place, trial["arguments"])
            self._call(self.callee, placed, _records(trial, self.grad), circumstance)
        return recording.draws

    @contextlib.contextmanager
    def _replaying(self, drawn: list[noise.NoiseDraw]) -> Iterator[None]:
        if not drawn:
            yield
            return
        with noise.NoiseReplay(drawn) as replay:
            yield
        replay.end()

    def _calculating_wide(self, trial: TrialInputs) -> AbstractContextManager[None]:
        given = tensor_leaves([trial["arguments"], trial["state"]])
        return in_float64({tensor.dtype for tensor in given}, self._names_types)

    def _in_float64(self, run: Callable[[], T], *, lasting: bool) -> T | None:
        """``lasting``: what fails once fails always."""
        if self.oracle_note:
            return None
        try:
            return run()
        except Exception as error:
            # Hard-coded dtypes, draws within a kernel: any exception means no oracle.
            if needs.is_out_of_memory(error):
                raise
            note = f"no float64 oracle ({type(error).__name__})"
            if lasting:
                self.oracle_note = f"{note}: the reference is compared with itself"
            return None

    def _widened(
        self, trial: TrialInputs, moved: bool, *, about_zero: bool = False, last_bit: bool = False
    ) -> TrialInputs:
        """``last_bit``: moved by float64's eps, not by its own type's. ``about_zero``: what is
        zero moves, too, to either side. There a slope may have a step, and each value between both
        sides is a gradient: clamp(min=0) and relu() differ so."""

        sign = trial.get("sign", 1)

        def widen(value: torch.Tensor) -> torch.Tensor:
            wide = widen_tensor(value.detach())
            if moved and wide.dtype in (torch.float64, torch.complex128):
                like = torch.float64 if last_bit else value.dtype.to_real()
                wide = numerics.nudge(wide, like, trial["draw"], sign)
            if moved and about_zero and wide.dtype is torch.float64:
                wide = numerics.nudge_zeros(wide, value.dtype, trial["draw"], sign)
            return wide.requires_grad_(value.requires_grad)

        state = {k: widen(v) for k, v in trial["state"].items()}
        return {**trial, "state": state, "arguments": map_tensors(widen, trial["arguments"])}

    def _prepare(self, target: Any, state: ModuleState, noise_seed: int) -> dict[str, str]:
        """Parameters and generators as every call starts with them; the generators' digests."""
        if self.is_module:
            target.load_state_dict({**target.state_dict(), **state})
        relations.seed(noise_seed)
        return relations.generators(self.device.place)

    def _call(self, callee: Callee, placed: Any, grad: bool, circumstance: str = "") -> Any:
        within = circumstances.within(circumstance, callee.target, self.device.place)
        with torch.set_grad_enabled(grad), within, _naming_unsupported():
            result = callee(callee.bind(placed))
        self.device.synchronize()
        return result

    def _state(self, target: Any) -> ModuleState:
        state = target.state_dict() if self.is_module else {}
        return {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}

    def _memory(self, callee: Callee) -> ModuleState:
        """What results may share memory with, by name."""
        kept = callees.unsaved_buffers(callee.target) if self.subject.conduct.buffers else {}
        return {**self._state(callee.target), **kept}

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, laid out like the original, that carries gradients like it."""
        return strided_copy(tensor, self.device.place)


def _records(trial: TrialInputs, usual: bool) -> bool:
    """Whether gradients are recorded in this trial."""
    grad = trial.get("grad")
    return usual if grad is None else bool(grad)


def _circumstance(trial: TrialInputs, *, wide: bool = False) -> str:
    """In which one a trial is; in float64 autocast would round."""
    name: str = trial.get("circumstance", "")
    return name if name == OTHER_MODE or not wide else ""


@contextlib.contextmanager
def _naming_unsupported() -> Iterator[None]:
    """What only Triton's interpreter cannot run is no fault of the program."""
    try:
        yield
    except Exception as error:
        if why := interpreter.find_unsupported(error):
            raise EvaluationError(why, interpreter.REMEDY) from error
        raise
