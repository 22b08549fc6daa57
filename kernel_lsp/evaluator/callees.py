"""What is judged and timed, and how it is called: the same for reference, compiled reference and
candidate.

Arguments travel between processes as [positional, by name]. A slice's are passed as they are. Of a
recorded call only the tensors travel, as one flat list: `Callee.bind` puts the program's own
objects around them, outside of what is timed, and calling it puts torch as the program had it.
What comes back is made of tensors, numbers, strings, lists, tuples and dicts, whatever the program
returns; with the arguments that the reference changes (caches, what is written in place), as they
are after the call, and the buffers that it changes and that no state_dict holds.

Runs in judge, worker, timer and tuner. Not covered: arguments that share memory and are written
to."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernel_lsp.errors import EvaluationError, SnapshotError, boundary
from kernel_lsp.evaluator import programs
from kernel_lsp.evaluator.gradients import is_differentiable
from kernel_lsp.evaluator.tensors import PLAIN, map_tensors, portable, same_bits, tensor_leaves
from kernel_lsp.records import Arguments, Home, Program, TorchSetting, Workload
from kernel_lsp.snapshots import making, sources
from kernel_lsp.snapshots.opening import OpenedCall, ValueSpec, open_call

SEED = 0
"""For what is no parameter and no argument: the same numbers in every process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conduct:
    """How the reference treats its arguments, found out by calling it (`conduct_of`)."""

    changed: tuple[str, ...] = ()
    """Arguments (a position, or a name) that are not the same after a call."""
    writes: tuple[int, ...] = ()
    """Tensors among them, by number, that it writes into."""
    buffers: tuple[str, ...] = ()
    """Buffers of a module that it changes and that are not saved with it: caches. Every call
    begins with them as they were recorded."""
    copies: bool = False
    """It writes into tensors with gradients, which can be no leaves then."""


class Callee:
    """A target, called on arguments as they travel."""

    def __init__(self, target: Any) -> None:
        self.target = target

    @property
    def changes_arguments(self) -> bool:
        """What was bound serves for one call."""
        return False

    def bind(self, arguments: Any) -> Any:
        """What a call takes; made outside of what is timed."""
        return arguments

    def __call__(self, bound: Any) -> Any:
        return portable(self.target(*bound[0], **bound[1]))

    def around(self, target: Any) -> Callee:
        """The same call of something else: a compiled target."""
        return Callee(target)


class RecordedCallee(Callee):
    """The target of a recorded call, in the setting of its program."""

    def __init__(
        self, target: Any, opened: OpenedCall, workload: Workload, conduct: Conduct, place: str
    ) -> None:
        super().__init__(target)
        self._opened, self.conduct, self._place = opened, conduct, place
        self._template = _template(opened)
        self._unsaved = {name: b.detach().clone() for name, b in unsaved_buffers(self._own).items()}
        setting = workload.setting
        self._autocast = getattr(torch, setting.autocast) if setting.autocast else None
        self._inference = setting.inference

    @property
    def changes_arguments(self) -> bool:
        """Whether a call writes into its arguments, or into buffers that it begins with anew."""
        return bool(self.conduct.changed or self.conduct.buffers)

    @property
    def _own(self) -> Any:
        """The target as it was opened, whatever is around it."""
        return self._opened.target

    def around(self, target: Any) -> Callee:
        """The same recorded call of another target, a candidate for example."""
        made = copy.copy(self)
        made.target = target
        return made

    def bind(self, arguments: Any) -> Any:
        """(positional, by name) as the program called it, with these tensors in the place of the
        recorded ones."""
        specs = self._opened.specs
        tensors = [self._passed(t, spec) for t, spec in zip(arguments[0], specs, strict=True)]
        own = unsaved_buffers(self._own) if self.conduct.buffers else {}
        for name in self.conduct.buffers:
            if name in own:
                own[name].detach().copy_(self._unsaved[name])
        if self._autocast is not None:
            torch.clear_autocast_cache()  # weights are cast once in a step, not once for all
        if self._template is not None:
            args, kwargs = _fill_template(self._template, tensors)
            return args, kwargs
        return self._opened.bind(tensors)

    def _passed(self, tensor: torch.Tensor, spec: ValueSpec) -> torch.Tensor:
        if self._place == "cuda" and spec["device"] == "cpu":
            # Beside tensors on a GPU: sizes, positions.
            tensor = tensor.cpu()
        if self.conduct.copies and tensor.requires_grad and not spec["leaf"]:
            return tensor.clone()
        return tensor

    def __call__(self, bound: Any) -> Any:
        args, kwargs = bound
        with self._set():
            result = collect_tensors(self.target(*args, **kwargs))
        if not self.changes_arguments:
            return result
        after = {
            name: collect_tensors(value)
            for name, value in _name_arguments(bound)
            if name in self.conduct.changed
        }
        if not self.conduct.buffers:
            return {"returned": result, "arguments": after}
        own = unsaved_buffers(self._own)
        kept = {name: own[name] for name in self.conduct.buffers if name in own}
        return {"returned": result, "arguments": after, "buffers": kept}

    @contextlib.contextmanager
    def _set(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._inference:
                stack.enter_context(torch.inference_mode())
            if self._autocast is None:
                yield
                return
            before = torch.is_autocast_enabled(self._place)
            torch.set_autocast_dtype(self._place, self._autocast)
            torch.set_autocast_enabled(self._place, True)
            try:
                yield
            finally:
                torch.set_autocast_enabled(self._place, before)


class Subject:
    """A reference that was opened: what it is, and what it is called with."""

    def __init__(self, program: Program, workload: Workload, place: str) -> None:
        """Raises EvaluationError."""
        self._workload = workload
        with boundary(EvaluationError, "could not judge: loading the reference failed"):
            self._module = programs.load(program.source)
        target = programs.find(self._module, program.entry)
        with boundary(EvaluationError, "could not judge: get_init_inputs() failed"):
            self.init: Arguments = programs.init_arguments(self._module, workload)
        with boundary(EvaluationError, "could not judge: constructing the reference failed"):
            made = programs.construct(target, self.init, place, workload.training)
        self.callee: Callee = Callee(made)
        self.wide: Callee = self.callee
        """The same in float64."""
        if isinstance(made, torch.nn.Module):
            self.wide = Callee(copy.deepcopy(made)._apply(widen_tensor))
        self.fixed: frozenset[int] = frozenset()
        """Places of argument tensors that keep the values they were recorded with."""

    @property
    def has_single(self) -> bool:
        """Whether it could run in float32 although it does in 16 bits: all floating tensors of its
        own have one type of 16 bits, or there are none and its source names no type."""
        target = self.callee.target
        state = target.state_dict().values() if isinstance(target, torch.nn.Module) else ()
        tensors = [*state, *tensor_leaves(list(self.arguments(SEED)))]
        dtypes = {
            t.dtype for t in tensors if isinstance(t, torch.Tensor) and t.dtype.is_floating_point
        }
        return len(dtypes) == 1 and dtypes <= {torch.float16, torch.bfloat16}

    @functools.cached_property
    def single(self) -> Callee:
        """The same in float32, where it is in 16 bits."""
        target = self.callee.target
        if not isinstance(target, torch.nn.Module):
            return self.callee
        return Callee(copy.deepcopy(target)._apply(in_single))

    @property
    def conduct(self) -> Conduct:
        """How a function on new arguments behaves: nothing of what it is called with is changed or
        kept."""
        return Conduct()

    def learn(self, arguments: Any) -> None:
        """Find out how the target treats its arguments; ``arguments`` are used up.

        Raises EvaluationError for one that cannot be judged by.
        """
        before = [tensor.detach().clone() for tensor in tensor_leaves(arguments)]
        with torch.no_grad():
            self.callee(arguments)
        if not all(same_bits(*pair) for pair in zip(before, tensor_leaves(arguments), strict=True)):
            raise EvaluationError(
                "could not judge: the reference writes into its own inputs",
                "return the result instead, or work on a copy: a rewrite is judged by what it "
                "returns",
            )

    def arguments(self, seed: int) -> Any:
        """[positional, by name] of one call on torch's default device; torch's generators are
        seeded."""
        return programs.call_arguments(self._module, self._workload)

    def records_gradients(self, arguments: Any) -> bool:
        """Whether calls are made to differentiate them."""
        if self._is_inference:
            return False
        if any(tensor.requires_grad for tensor in tensor_leaves(arguments)):
            return True
        target = self.callee.target
        trained = self._workload.training is True and isinstance(target, torch.nn.Module)
        return trained and any(parameter.requires_grad for parameter in target.parameters())

    def may_record_gradients(self, arguments: Any) -> bool:
        """Whether a program could differentiate such calls although this workload does not: nobody
        said that they are inference, and a parameter or an input may require a gradient."""
        if self._is_inference:
            return False
        target = self.callee.target
        state = target.parameters() if isinstance(target, torch.nn.Module) else ()
        trained = any(parameter.requires_grad for parameter in state)
        return trained or any(map(is_differentiable, tensor_leaves(arguments)))

    @property
    def _is_inference(self) -> bool:
        """The workload says so; what nobody said is no inference."""
        return self._workload.setting.gradients is False or self._workload.setting.inference


class RecordedSubject(Subject):
    """A recorded call, opened where it lives."""

    def __init__(self, program: Program, workload: Workload, place: str) -> None:
        """Raises EvaluationError."""
        self._workload = workload
        set_torch(workload.setting)
        self._opened, wide = _open(program, place), _open(program, place, widened=True)
        plain = replace(workload, setting=replace(workload.setting, autocast=None))
        self._callees = [
            RecordedCallee(opened.target, opened, how, Conduct(), place)
            for opened, how in ((self._opened, workload), (wide, plain))
        ]
        self.callee, self.wide = self._callees
        self.init = ([], {})
        self.fixed = frozenset(i for i, spec in enumerate(self._opened.specs) if "blob" in spec)

    def arguments(self, seed: int) -> Any:
        """[positional, by name] of one call, its tensors drawn by the seed with the shapes, strides
        and kinds of values that were recorded; what is fixed is as recorded."""
        device = torch.get_default_device()
        tensors = []
        for place, spec in enumerate(self._opened.specs):
            made = making.make_strided(spec, getattr(torch, spec["dtype"]), None, device)
            core = making.one_of_each(made)
            if place in self.fixed:
                core.copy_(making.one_of_each(self._opened.tensors[place].detach()))
            else:
                generator = torch.Generator(device).manual_seed(seed + place)
                core.copy_(making.draw_values(spec, core, generator))
            tensors.append(made.requires_grad_(spec["requires_grad"]))
        return [tensors, {}]

    def records_gradients(self, arguments: Any) -> bool:
        """Whether a call with these arguments is recorded by autograd: they or the parameters need
        gradients, and the program was not in inference."""
        if self._is_inference:
            return False
        state = (
            self.callee.target.parameters()
            if isinstance(self.callee.target, torch.nn.Module)
            else ()
        )
        return any(tensor.requires_grad for tensor in (*tensor_leaves(arguments), *state))

    def may_record_gradients(self, arguments: Any) -> bool:
        """False: what records gradients was seen in the run."""
        return False

    @property
    def has_single(self) -> bool:
        """False: objects of a program hold the dtypes that they were made with."""
        return False

    @property
    def conduct(self) -> Conduct:
        """How the recorded program treats its arguments, as `learn` has seen it."""
        return self._callees[0].conduct

    def learn(self, arguments: Any) -> None:
        """Call the reference once and keep what it does to its arguments, for all callees. Raises
        EvaluationError where it writes into memory that arguments share."""
        with torch.set_grad_enabled(self.records_gradients(arguments)):
            conduct = conduct_of(self._callees[0], arguments)
        for callee in self._callees:
            callee.conduct = conduct
        if conduct.changed and _share_memory(self._opened):
            raise EvaluationError(
                "could not judge: the target writes into an argument that shares memory with "
                "another",
                "return the result instead",
            )


def subject_of(program: Program, workload: Workload, place: str) -> Subject:
    """Open a reference on a device. Raises EvaluationError, and what the program raises."""
    return (Subject if program.home is None else RecordedSubject)(program, workload, place)


def callee_of(
    program: Program, workload: Workload, init: Arguments, place: str, conduct: Conduct
) -> Callee:
    """A program beside its reference, in a process that has opened the reference before
    (`prepare`).

    Raises EvaluationError, and what the program raises.
    """
    if program.home is None:
        target = programs.find(programs.load(program.source), program.entry)
        return Callee(programs.construct(target, init, place, workload.training))
    unload(program)
    opened = _open(program, place)
    return RecordedCallee(opened.target, opened, workload, conduct, place)


def prepare(program: Program, workload: Workload, place: str) -> None:
    """Import what a recorded program imports, and set torch as it does, before anybody is
    watched."""
    if program.home is not None:
        set_torch(workload.setting)
        _open(program, place)
        unload(program)


def unload(program: Program) -> None:
    """Forget the modules of a recorded program, before anybody is watched who loads them anew."""
    if program.home is not None:
        sources.unload(program.home.path)


def set_torch(setting: TorchSetting) -> None:
    """Set this process's switches as the program had them."""
    if setting.matmul_precision is not None:
        torch.set_float32_matmul_precision(setting.matmul_precision)
    if setting.cudnn_tf32 is not None:
        torch.backends.cudnn.allow_tf32 = setting.cudnn_tf32
    if setting.cudnn_benchmark is not None:
        torch.backends.cudnn.benchmark = setting.cudnn_benchmark


def _open(program: Program, place: str, *, widened: bool = False) -> OpenedCall:
    home: Home | None = program.home
    assert home is not None
    try:
        maker = making.Drawn(place, SEED, widened=widened)
        return open_call(home, program.source, maker, live=True)
    except SnapshotError as error:
        raise EvaluationError(f"could not judge: {error.cause}", error.remedy) from error


# --- arguments ----------------------------------------------------------------------------


def conduct_of(callee: RecordedCallee, arguments: Any) -> Conduct:
    """How the target treats its arguments, from one call on them."""
    try:
        return _observe(callee, arguments)
    except RuntimeError as error:
        if "leaf" not in str(error) or "in-place" not in str(error):
            raise
    callee.conduct = Conduct(copies=True)
    return replace(_observe(callee, arguments), copies=True)


def _observe(callee: RecordedCallee, arguments: Any) -> Conduct:
    bound, tensors = callee.bind(arguments), tensor_leaves(arguments)
    buffers = unsaved_buffers(callee.target)
    kept = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    values = [tensor.detach().clone() for tensor in tensors]
    before = {
        name: map_tensors(_copy, collect_tensors(value)) for name, value in _name_arguments(bound)
    }
    callee(bound)
    after = {name: collect_tensors(value) for name, value in _name_arguments(bound)}
    return Conduct(
        changed=tuple(name for name, value in before.items() if not _same(value, after[name])),
        writes=tuple(i for i, tensor in enumerate(tensors) if not same_bits(tensor, values[i])),
        buffers=tuple(  # one that is made anew, as tables that have become too short, is no cache
            name for name, buffer in buffers.items() if not same_bits(buffer, kept[name])
        ),
    )


def unsaved_buffers(target: Any) -> dict[str, torch.Tensor]:
    """Name -> buffer, of those of a module that its state_dict leaves out."""
    if not isinstance(target, torch.nn.Module):
        return {}
    saved = target.state_dict()
    named = target.named_buffers(remove_duplicate=False)
    return {name: buffer for name, buffer in named if name not in saved}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _name_arguments(bound: Any) -> list[tuple[str, Any]]:
    args, kwargs = bound
    return [*((str(place), value) for place, value in enumerate(args)), *kwargs.items()]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        return both and same_bits(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or one is other


def _share_memory(opened: OpenedCall) -> bool:
    """Whether two tensors of the call lie in one storage, one of them an argument."""
    count: dict[int, int] = {}
    for spec in opened.header["tensors"]:
        count[spec["storage"]] = count.get(spec["storage"], 0) + 1
    return any(count[spec["storage"]] > 1 for spec in opened.specs)


@dataclass(frozen=True)
class _TensorSlot:
    """Where a tensor stands in a template."""

    number: int


def _template(opened: OpenedCall) -> Any:
    """The arguments with places for their tensors; None when they hold objects, which every call
    needs anew: to unpickle them takes 0.3 ms, to fill a template a few microseconds."""
    places = {id(tensor): _TensorSlot(number) for number, tensor in enumerate(opened.tensors)}

    def made(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return places[id(value)]
        if type(value) in (list, tuple):
            return type(value)(map(made, value))
        if type(value) is dict:
            return {key: made(item) for key, item in value.items()}
        if isinstance(value, (*PLAIN, torch.dtype, torch.device)):
            return value
        raise KeyError

    try:
        return made(opened.bind(opened.tensors)[0]), made(opened.bind(opened.tensors)[1])
    except KeyError:  # an object, or a tensor of the target's own
        return None


def _fill_template(template: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(template, _TensorSlot):
        return tensors[template.number]
    if isinstance(template, (list, tuple)):
        return type(template)(_fill_template(item, tensors) for item in template)
    if isinstance(template, dict):
        return {key: _fill_template(item, tensors) for key, item in template.items()}
    return template


# --- results ------------------------------------------------------------------------------


def collect_tensors(value: Any) -> Any:
    """Any object as tensors, plain values, lists, tuples and dicts of them."""
    if isinstance(value, (torch.Tensor, *PLAIN, torch.dtype, torch.device)):
        return value
    return _Collecting().collect(value)


@dataclass
class _Collecting:
    around: set[int] = field(default_factory=set)
    """ids of the objects that hold the one that is looked at: an object may hold itself."""

    def collect(self, value: Any) -> Any:
        """The tensors and plain values in a value, with the kind of whatever else it holds; an
        object that holds itself is entered once."""
        if isinstance(value, torch.Tensor) or type(value) in (*PLAIN, torch.dtype, torch.device):
            return value
        if (
            id(value) in self.around
            or isinstance(value, (type, torch.nn.Module))
            or callable(value)
        ):
            return _kind(value)
        self.around.add(id(value))
        try:
            return self._items(value)
        finally:
            self.around.discard(id(value))

    def _items(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): self.collect(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self.collect(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, (set, frozenset)):
            return sorted(map(str, value))
        if isinstance(value, PLAIN):  # an enum of numbers or strings
            return str(value)
        own = getattr(value, "__dict__", None)
        if own is None:
            return _kind(value)
        return {"": _kind(value)} | {str(name): self.collect(item) for name, item in own.items()}


def _kind(value: Any) -> str:
    named = value if isinstance(value, type) else type(value)
    return f"{named.__module__.rpartition('.')[2]}.{named.__qualname__}"


def in_single(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, if it has 16 bits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def widen_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 or complex128."""
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.dtype.is_floating_point else tensor
