"""A launcher's inputs where only what calls it has some: the caller is run as far as the launcher.

`with_inputs(text, reached)` ends a program with a ``get_inputs()`` that makes the caller, calls it
with its own inputs and hands on what it passes the launcher. Kernels that the caller launches
before are launched there, too. Standard library only. Not covered: callers that catch every
exception, and launchers that are methods of an object."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass

from kernel_lsp.records import ArgSpec, TargetKind, Workload
from kernel_lsp.rewrite.kernels.operators import operator_of

MAKERS = ("get_inputs", "get_init_inputs")


@dataclass(frozen=True, slots=True)
class ReachedLauncher:
    """A launcher of one file, reached from a module or function of it."""

    caller: str
    kind: TargetKind
    launcher: str
    workload: Workload
    """The caller's."""


def with_inputs(text: str, reached: ReachedLauncher) -> str:
    """``text`` holds caller and launcher. Raises RewriteError for an operator that cannot be
    applied."""
    operator = operator_of(tree := ast.parse(text), reached.launcher)
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    owner, _, name = reached.launcher.rpartition(".")
    name = "forward" if operator is not None else name
    has_context = operator is not None and len(operator.parameters) < len(
        operator.forward.args.args
    )
    made = TEMPLATE.format(
        caller=reached.caller,
        launcher=reached.launcher,
        kept=f'vars({owner})["{name}"]' if owner else name,
        set=f"{owner}.{name} = staticmethod(reached)"
        if owner
        else f'globals()["{name}"] = reached',
        put_back=f"{owner}.{name} = original" if owner else f'globals()["{name}"] = original',
        first=int(has_context),
        arguments=_arguments("get_inputs", reached.workload.inputs, defined),
        called=_call_text(reached, defined),
        grad=operator is None or not operator.is_backward,
    )
    own = "".join(f"of_caller_{maker} = {maker}\n" for maker in MAKERS if maker in defined)
    return "\n\n\n".join(part for part in (text.rstrip(), own.rstrip(), made) if part)


def _call_text(reached: ReachedLauncher, defined: set[str]) -> str:
    if reached.kind is not TargetKind.MODULE:
        return reached.caller
    mode = "" if reached.workload.training is None else f".train({reached.workload.training})"
    given = _arguments("get_init_inputs", reached.workload.init, defined)
    return f"call({reached.caller}, {given}).to(place){mode}"


def _arguments(maker: str, specs: tuple[ArgSpec, ...] | None, defined: set[str]) -> str:
    """[positional], {by name} as an expression of the text."""
    if specs is None:
        return f"split(of_caller_{maker}())" if maker in defined else "([], {})"
    positional = ", ".join(_value(spec) for spec in specs if spec.name is None)
    named = ", ".join(f"{spec.name!r}: {_value(spec)}" for spec in specs if spec.name is not None)
    return f"([{positional}], {{{named}}})"


def _value(spec: ArgSpec) -> str:
    """As the judge draws it (evaluator/programs.py), without a recorded run's range of values."""
    if spec.dtype is None or spec.shape is None:
        return repr(spec.value)
    shape, dtype, how = spec.shape, f"torch.{spec.dtype}", spec.distribution
    if how in ("zeros", "ones"):
        drawn = f"torch.{how}({shape}, dtype={dtype})"
    elif how.startswith("index:") or spec.dtype == "bool" or "int" in spec.dtype:
        least = int(how[6:]) if how.startswith("index:") else 2 if spec.dtype == "bool" else 100
        drawn = f"torch.randint({least}, {shape}).to({dtype})"
    else:
        drawn = f"torch.{'rand' if how == 'uniform' else 'randn'}({shape}).to({dtype})"
    if spec.stride is not None:
        drawn = f"torch.empty_strided({shape}, {spec.stride}, dtype={dtype}).copy_({drawn})"
    return f"{drawn}.requires_grad_()" if spec.requires_grad else drawn


TEMPLATE = textwrap.dedent('''\
    def get_inputs():
        """What {caller} passes {launcher}."""
        import torch
        from torch.utils._pytree import tree_map_only

        class Reached(BaseException):
            pass

        def reached(*args, **kwargs):
            raise Reached(args[{first}:], kwargs)

        def split(given):
            if isinstance(given, dict):
                return [], given
            if not isinstance(given, (list, tuple)):
                return [given], {{}}
            if len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict):
                return given
            return given, {{}}

        def call(target, given):
            args, kwargs = tree_map_only(torch.Tensor, lambda one: one.to(place), given)
            return target(*args, **kwargs)

        place = "cuda" if torch.cuda.is_available() else "cpu"
        original = {kept}
        {set}
        try:
            with torch.device(place):
                given = {arguments}
                call({called}, given)
        except Reached as found:
            args, kwargs = found.args
        else:
            raise RuntimeError("{caller} does not call {launcher} with its workload")
        finally:
            {put_back}

        def handed(one):
            return one.detach().requires_grad_({grad} and one.requires_grad)

        return list(tree_map_only(torch.Tensor, handed, args)), tree_map_only(torch.Tensor, handed, kwargs)
    ''')
