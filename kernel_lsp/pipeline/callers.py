"""Which module or function of the file calls a launcher that has no workload of its own, and with
what.

`reached(...)` finds the first one with a workload; `program_of` is the kernel's program with that
one inside and its inputs made by it (kernels/caller_inputs.py). `kernels_of` is the other way: the
kernels that a module or function comes to. Not covered: callers of other files, and callers of
methods that launch kernels."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp import analysis, workloads
from kernel_lsp.errors import CaptureError, WorkloadError
from kernel_lsp.pipeline import applied
from kernel_lsp.records import (
    Analysis,
    Program,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite.kernels.caller_inputs import ReachedLauncher, with_inputs
from kernel_lsp.rewrite.kernels.source import defined_names


def find_caller(
    snapshot: Snapshot, target: Target, found: Analysis, folder: str | None
) -> tuple[ReachedLauncher | None, list[WorkloadError]]:
    """The first of a kernel's launchers that is called with a workload; None: no caller has one
    itself, with what is wrong with those that they have."""
    problems: list[WorkloadError] = []
    for launcher in (
        one for one in target.launchers if applied.is_called_alone(snapshot.text, one)
    ):
        for caller in _callers(snapshot, found, launcher.split(".")[0]):
            known, wrong = workloads.workloads_for(snapshot, caller, folder)
            if known:
                return ReachedLauncher(caller.qualname, caller.kind, launcher, known[0]), []
            problems += wrong
    return None, problems


def workload_of(one: ReachedLauncher) -> Workload:
    """The workload that a caller's own inputs make of a launcher, named by who passes them."""
    return Workload(name=f"what {one.caller} passes", origin=WorkloadOrigin.GET_INPUTS)


def program_of(snapshot: Snapshot, target: Target, one: ReachedLauncher) -> Program:
    """The kernel's program with the caller. Raises RewriteError."""
    launchers = tuple(dict.fromkeys((*target.launchers, one.caller)))
    program = analysis.slice_program(snapshot, replace(target, launchers=launchers))
    return replace(program, source=with_inputs(program.source, one))


def kernels_of(snapshot: Snapshot, found: Analysis, qualname: str) -> list[str]:
    """Triton kernels of the file that a target's or launcher's code comes to, in the order of the
    text."""
    target = analysis.find_target(found, qualname)
    kernels = [
        one for one in found.targets if one.kind is TargetKind.TRITON_KERNEL and one.launchers
    ]
    if target is None:
        return [one.qualname for one in kernels if qualname in one.launchers]
    if target in kernels:
        return []
    names = _names(snapshot, target)
    return [one.qualname for one in kernels if one.qualname in names]


def _callers(snapshot: Snapshot, found: Analysis, name: str) -> list[Target]:
    """Targets of the file whose code comes to this function or class."""
    others = (one for one in found.targets if one.kind is not TargetKind.TRITON_KERNEL)
    return [
        one
        for one in others
        if one.qualname.split(".")[0] != name
        and "." not in one.qualname
        and name in _names(snapshot, one)
    ]


def _names(snapshot: Snapshot, target: Target) -> frozenset[str]:
    """Functions and classes that the target's own program defines."""
    try:
        return defined_names(analysis.slice_program(snapshot, replace(target, launchers=())).source)
    except (CaptureError, SyntaxError):
        return frozenset()
