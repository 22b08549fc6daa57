"""A captured program as its operations: what a model reads that has no use for source text.

Names are there to tell which operations a `Site` covers, and for nothing else: they are never
shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kernel_lsp.records.rewrites import Site


class Layout(StrEnum):
    """How a tensor lies in memory."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"
    PERMUTED = "permuted"
    """Dense, with its dimensions in another order."""
    EXPANDED = "expanded"
    """Some dimension larger than one has stride 0."""
    STRIDED = "strided"
    """Anything else: a slice, say."""


class OperationRole(StrEnum):
    CALL = "call"
    INPUT = "input"
    STATE = "state"
    """A parameter or buffer."""
    CONSTANT = "constant"


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Everything about a tensor but its values."""

    dtype: str
    """torch's name without the prefix."""
    shape: tuple[int, ...]
    layout: Layout = Layout.CONTIGUOUS


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One value of the graph and where it comes from."""

    name: str
    role: OperationRole
    op: str
    """ATen's name without namespace and overload; ``kernel`` for generated code; "" unless a
    call."""
    reads: tuple[int, ...] = ()
    """Places of the operations that it reads, in the order of its arguments."""
    numbers: tuple[Any, ...] = ()
    """Whole numbers, decimals and booleans among its arguments, lists flattened."""
    words: tuple[str, ...] = ()
    """Texts and dtypes among its arguments."""
    forms: tuple[Form, ...] = ()
    """Of its results."""
    output: bool = False
    """The program returns it."""
    trained: bool = False
    """A placeholder that requires a gradient in the workload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphView:
    operations: tuple[Operation, ...]
    """Every one after those that it reads."""
    training: bool = False
    gradients: bool = False
    """The workload records gradients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCost:
    """Estimates for one call on a CUDA device, to be compared with each other
    (rewrite/call_time.py)."""

    host_s: float
    device_s: float
    replayed_s: float
    """The call when its kernels are replayed from a recording."""
    launches: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewed:
    """The program after some steps, for whoever chooses the next one."""

    graph: GraphView
    sites: tuple[Site, ...]
    cost: CallCost | None = None
    """None: not on a CUDA device."""
