"""Documents and what is known about them without running them: watch and analyze."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kernel_lsp.records.common import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One immutable version of one document."""

    uri: str
    text: str
    version: int | None = None
    """The client's own version number; None when read from disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    start: int
    end: int


class TargetKind(StrEnum):
    MODULE = "module"
    FUNCTION = "function"
    TRITON_KERNEL = "triton_kernel"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Something that can be made faster: a module class, a tensor function, a Triton kernel."""

    qualname: str
    kind: TargetKind
    name_span: Span
    """The name in its ``class`` or ``def`` line: where hints are drawn."""
    span: Span
    """Decorators through the last line of the body."""
    fingerprint: str
    """Hash of the target's AST and of every name of its own file that it uses, recursively."""
    launchers: tuple[str, ...] = ()
    """Functions of the same file that launch this Triton kernel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """How a recorded program is run again, for what its snapshot could not hold."""

    command: tuple[str, ...]
    """As it was recorded."""
    root: str
    """The workspace: what is written there is thrown away."""
    files: tuple[str, ...] = ()
    """Further files that the program read while it was recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """Where a target lives: a module of a recorded program, and one call that the program made."""

    module: str
    """Name that the program has imported it under; ``__main__`` for its script."""
    path: str
    """The file, absolute."""
    snapshot: str
    """File of the call snapshot; it is named by its content."""
    search_path: tuple[str, ...]
    """Where the program's imports were found."""
    pickler: str
    """File of the cloudpickle that wrote the snapshot."""
    device: str = "cpu"
    """cuda when anything of the call lay on a GPU."""
    others: tuple[tuple[str, str], ...] = ()
    """Further files of the program whose text is another one now: (path, text)."""
    replay: Replay | None = None
    """None: an object that the snapshot lacks is a stand-in, which says so when it is used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Statements of a module's ``forward`` that are a target of their own, by their lines in the
    file."""

    first: int
    last: int

    @property
    def words(self) -> str:
        """``lines 4 to 9``, for people."""
        return (
            f"line {self.first}"
            if self.first == self.last
            else f"lines {self.first} to {self.last}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Break:
    """A place where a module cannot be one graph."""

    line: int | None
    """In the file of the target, from 1; None: in code that it calls elsewhere."""
    code: str
    """The line that breaks, without its indentation."""
    cause: str
    """What it does, as the end of a sentence."""
    remedy: str
    """What would remove the break."""
    place: str = ""
    """``file.py:12`` where the code stands, when that is another file than the target's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What is opened for one target: the smallest self-contained source, or (with a home) its
    whole file."""

    source: str
    """A slice, which never runs the user's file; with a home the text of that file."""
    entry: str
    """Qualified name of the target inside ``source``."""
    kind: TargetKind
    missing: tuple[str, ...] = ()
    """Names that the slice uses and that the file does not define (the program will not run)."""
    kernel: str | None = None
    """The Triton kernel that is the target, where ``entry`` calls the function that launches it."""
    launcher: str | None = None
    """That function: ``entry`` itself, or what ``entry`` calls on copies, because it works in
    place."""
    elsewhere: str | None = None
    """A place besides this program that names the kernel, and may launch it; None: there is
    none."""
    home: Home | None = None
    """None: the source stands by itself, and arguments come from the workload."""
    part: Part | None = None
    """What of ``entry``'s forward is rewritten; None: all of it. Judged is always the whole."""


class WorkloadOrigin(StrEnum):
    GET_INPUTS = "get_inputs"
    PRAGMA = "pragma"
    RECORDED = "recorded"


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueSummary:
    """What a tensor held in a recorded run: rounded, over sampled calls, and never a value
    itself."""

    low: float | None = None
    """Nothing finite was below it: the next power of two outward, exact for integers. None:
    unknown."""
    high: float | None = None
    zeros: float | None = None
    """Share of exact zeros, in tenths."""
    finite: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ArgSpec:
    """One argument: a tensor described by dtype and shape, or a plain value."""

    name: str | None
    """Keyword name; None for a positional argument."""
    dtype: str | None = None
    """torch's name without the prefix (``float32``, ``int64``, ``bool``); None for a plain
    value."""
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    """None means contiguous."""
    value: Any = None
    """The literal, when this is no tensor."""
    distribution: str = "normal"
    """How base values are drawn: normal, uniform, zeros, ones, index:N (integers below N)."""
    requires_grad: bool = False
    values: ValueSummary | None = None
    """What a recorded run saw; None: nobody looked."""
    device: str | None = None
    """cuda, cpu …, where a recorded run had it; None: where the target is judged."""
    alignment: int | None = None
    """Largest power of two, up to 256, that divided every recorded address; in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchSetting:
    """How a program had set torch when it called a target. None: nobody looked, torch's own
    default."""

    autocast: str | None = None
    """dtype of torch.autocast on the target's device; None: it was off."""
    gradients: bool | None = None
    """Gradients were recorded."""
    inference: bool = False
    """Under torch.inference_mode."""
    matmul_precision: str | None = None
    """torch.get_float32_matmul_precision(): highest, high (TF32) or medium."""
    cudnn_tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    compiled: bool = False
    """The program runs the target by torch.compile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What a target is really called with."""

    name: str
    origin: WorkloadOrigin
    inputs: tuple[ArgSpec, ...] | None = None
    """None: the program's own get_inputs() makes them."""
    init: tuple[ArgSpec, ...] | None = None
    """Constructor arguments; None: the program's get_init_inputs(), or no arguments."""
    training: bool | None = None
    """Module mode; None: as constructed (train), which is what KernelBench-style files mean."""
    setting: TorchSetting = TorchSetting()


Arguments = tuple[list[Any], dict[str, Any]]
"""Positional, and by name."""


def split_arguments(made: Any) -> Arguments:
    """What get_inputs() returns: a sequence, a dictionary, a pair of both, or the one argument."""
    if isinstance(made, dict):
        return [], made
    if isinstance(made, (list, tuple)):
        if len(made) == 2 and isinstance(made[0], (list, tuple)) and isinstance(made[1], dict):
            return list(made[0]), dict(made[1])
        return list(made), {}
    return [made], {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One static observation. Never a claim of speed."""

    rule: str
    """Rule id, e.g. ``KL101``."""
    name: str
    """Rule name in words, e.g. ``unfused-pointwise-chain``."""
    target: str | None
    """Qualified name of the target it belongs to; None: it is about the program (its loop, its
    loader …)."""
    span: Span
    message: str
    severity: str = "hint"
    """``hint`` (could be faster), ``warning`` (can be wrong), ``error`` (does not compile);
    settings may choose another one, and also ``information``."""
    unnecessary: bool = False
    """What is marked does nothing and can go: editors draw it faded."""
    data: Json = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParseProblem:
    line: int
    column: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """Everything that is known about a snapshot without running it."""

    targets: tuple[Target, ...] = ()
    findings: tuple[Finding, ...] = ()
    problem: ParseProblem | None = None
    failures: tuple[str, ...] = ()
    """A sentence for every rule of ours that crashed; what the others found is in ``findings``."""
