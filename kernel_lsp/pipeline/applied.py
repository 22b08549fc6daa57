"""Workloads of a ``torch.autograd.Function`` whose forward or backward launches a kernel: what its
``apply`` is called with.

Found in a recording of its forward's launches, above the class or its forward, or above a function
of the file that hands its own arguments on to ``Op.apply``. A backward's are its forward's:
gradients are made of them (kernels/operators.py). Not covered: what calls it with something else
than its own arguments (callers.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernel_lsp import analysis, parsing, workloads
from kernel_lsp.analysis.source import definitions, parse
from kernel_lsp.errors import RewriteError, WorkloadError
from kernel_lsp.records import (
    Analysis,
    ArgSpec,
    ParseProblem,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite.kernels.operators import AutogradOperator, operator_of
from kernel_lsp.rewrite.kernels.source import KernelSource
from kernel_lsp.workloads.recorded import relative

FoundWorkloads = tuple[tuple[Workload, ...], tuple[WorkloadError, ...]]


def workloads_of(
    snapshot: Snapshot, target: Target, launcher: str, found: Analysis, folder: str | None
) -> FoundWorkloads | None:
    """The workloads of an autograd Function whose half the launcher is; None for any other
    launcher."""
    tree = parsing.parse_text(snapshot.text)
    operator = _operator(tree, launcher)
    if operator is None:
        return None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    applying = [(one, calls) for one in functions if (calls := _applications(one, operator.name))]
    known, problems = list(_recorded_workloads(snapshot, operator, folder)), list[WorkloadError]()
    for more, wrong in (
        *_pragma_workloads(snapshot, target, operator, folder),
        *_of_callers(snapshot, applying, found, folder),
    ):
        known += more
        problems += wrong
    if not known and not problems:
        problems.append(
            WorkloadError(
                f"nothing says what {operator.name}.apply is called with",
                f"put a comment above class {operator.name}, e.g. # kernel-lsp: workload "
                f"x=f32[128,4096]",
            )
        )
    return tuple(known), tuple(problems)


def fit_workload(workload: Workload, source: str, launcher: str | None) -> Workload:
    """The workload of a judged program: one that makes gradients itself is given none to record."""
    operator = _operator(parsing.parse_text(source), launcher or "")
    if operator is None or not operator.is_backward or workload.inputs is None:
        return workload
    return replace(
        workload, inputs=tuple(replace(spec, requires_grad=False) for spec in workload.inputs)
    )


def is_called_alone(text: str, launcher: str) -> bool:
    """Whether it is a function, a static method or half of an autograd Function, and no method of
    an object."""
    source = KernelSource.parse(text, launcher, launcher)
    return not source.needs_object(launcher) or _operator(source.tree, launcher) is not None


def _operator(tree: ast.Module, launcher: str) -> AutogradOperator | None:
    try:
        return operator_of(tree, launcher)
    except RewriteError:  # said where the program is made
        return None


def _recorded_workloads(
    snapshot: Snapshot, operator: AutogradOperator, folder: str | None
) -> Iterator[Workload]:
    """How the forward was called in a recorded run, what took most of the time first."""
    if folder is None:
        return
    wanted = f"{relative(snapshot.uri, folder)}::{operator.name}.forward"
    for launch in workloads.launches(folder)[0]:
        if launch.launcher == wanted and launch.called_with is not None:
            name = f"recorded launch of {' x '.join(map(str, launch.grid))} programs"
            yield Workload(name=name, origin=WorkloadOrigin.RECORDED, inputs=launch.called_with)


def _pragma_workloads(
    snapshot: Snapshot, target: Target, operator: AutogradOperator, folder: str | None
) -> Iterator[FoundWorkloads]:
    """Above forward, then above the class."""
    file = parse(snapshot.text)
    assert not isinstance(file, ParseProblem)  # it has been analyzed
    nodes = dict(definitions(file.tree.body))
    for qualname in (f"{operator.name}.forward", operator.name):
        span = file.full_span(nodes[qualname])
        half = replace(target, qualname=qualname, kind=TargetKind.FUNCTION, span=span, launchers=())
        yield workloads.workloads_for(snapshot, half, folder)


def _of_callers(
    snapshot: Snapshot,
    applying: Sequence[tuple[ast.FunctionDef, list[ast.Call]]],
    found: Analysis,
    folder: str | None,
) -> Iterator[FoundWorkloads]:
    """``applying``: functions of the file, with their calls of the operator."""
    for function, calls in applying:
        caller = analysis.find_target(found, function.name)
        if caller is None:
            continue
        known, problems = workloads.workloads_for(snapshot, caller, folder)
        # get_inputs() is asked by callers.py.
        known = tuple(one for one in known if one.inputs is not None)
        handed = _handed_arguments(function, calls)
        if handed is not None:
            made = (_through(function, handed, one) for one in known)
            yield tuple(one for one in made if one is not None), problems


def _applications(function: ast.FunctionDef, name: str) -> list[ast.Call]:
    calls = (n for n in ast.walk(function) if isinstance(n, ast.Call))
    return [call for call in calls if ast.unparse(call.func) == f"{name}.apply"]


def _handed_arguments(function: ast.FunctionDef, calls: list[ast.Call]) -> list[ast.expr] | None:
    """What the only call passes, where that is constants and arguments as they were given."""
    own = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    set_here = {
        n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    values = calls[0].args
    plain = all(
        isinstance(v, ast.Constant) or (isinstance(v, ast.Name) and v.id in own - set_here)
        for v in values
    )
    return values if len(calls) == 1 and not calls[0].keywords and plain else None


def _through(
    function: ast.FunctionDef, handed: list[ast.expr], workload: Workload
) -> Workload | None:
    """The caller's workload as that of what it calls; None: an argument of it is not in there."""
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args)]
    specs = {a.arg: _constant(d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    last = names[len(names) - len(given.defaults) :]
    specs |= dict(zip(last, map(_constant, given.defaults), strict=True))
    positional = iter(names)
    for spec in workload.inputs or ():
        specs[spec.name or next(positional, "")] = spec
    made = [_constant(v) or specs.get(ast.unparse(v)) for v in handed]
    known = [replace(spec, name=None) for spec in made if spec is not None]
    return replace(workload, inputs=tuple(known)) if len(known) == len(made) else None


def _constant(node: ast.expr | None) -> ArgSpec | None:
    return ArgSpec(name=None, value=node.value) if isinstance(node, ast.Constant) else None
