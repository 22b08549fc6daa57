"""Two files in, one request out: the convention of `Model`/`ModelNew`, get_inputs, get_init_inputs.

Standard library only; nothing is executed here. The candidate is constructed with the reference's
constructor arguments and receives the reference's weights; its class may be called like the
reference's or like it with `New` appended. An autograd Function is judged by its ``apply``.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

from kernel_lsp import parsing
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import native
from kernel_lsp.evaluator.request import MAX_SOURCE_BYTES, EvaluationRequest, Precision
from kernel_lsp.files import read_source
from kernel_lsp.records import Program, TargetKind, TorchSetting, Workload, WorkloadOrigin

NAMES = ("Model", "ModelNew")
DEFINITIONS = (ast.ClassDef, ast.FunctionDef)
DERIVATIVES = ("torch.autograd.Function", "autograd.Function", "Function")


def program_text(path: Path) -> str:
    """The source of a file that is to be judged. Raises EvaluationError on what cannot be a
    program."""
    try:
        if path.exists() and not path.is_file():
            raise EvaluationError(
                f"could not judge: {path} is no regular file", "name a Python file"
            )
        _refuse_huge(path.stat().st_size, str(path))
        return read_source(path).text
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EvaluationError(
            f"could not judge: {path} cannot be read: {reason}", "name two readable Python files"
        ) from error


def _refuse_huge(size: int, what: str) -> None:
    if size > MAX_SOURCE_BYTES:
        raise EvaluationError(
            f"could not judge: {what} has {size / 2**20:.1f} MiB, a program to judge at most"
            f" {MAX_SOURCE_BYTES / 2**20:.0f}",
            "cut it down to the class and its inputs; tables of numbers can be computed",
        )


def request_from_files(
    reference_text: str,
    candidate_text: str,
    *,
    device: str = "auto",
    has_cuda: bool = False,
    python: str = sys.executable,
    require_speed: bool = True,
    timeout_s: float = 300.0,
    entry: str | None = None,
    precision: Precision = Precision.FAITHFUL,
    inference: bool = False,
    allow_native: bool = False,
) -> EvaluationRequest:
    """The request for two whole files; ``device`` may be auto, cuda, cpu or interpreter.

    Where there is no GPU and either program has Triton, both run in its interpreter. ``entry``
    names the class or function when it is not `Model`. ``inference``: nobody differentiates these
    calls; else gradients belong to the result. ``allow_native``: the candidate is a person's, and
    may have C++ and CUDA built (native.py). Raises EvaluationError (`could not judge: …`) when a
    file does not parse or defines nothing to judge."""
    reference = _parse(reference_text, "the reference")
    candidate = _parse(candidate_text, "the candidate")
    name = entry or _only_entry(reference)
    if name not in _defined_targets(reference):
        raise EvaluationError(
            f"could not judge: the reference defines no {name}", "name the class to judge"
        )
    other = next(
        (n for n in (f"{name}New", name, "ModelNew") if n in _defined_targets(candidate)), None
    )
    if other is None:
        raise EvaluationError(
            f"could not judge: the candidate defines neither {name} nor {name}New",
            "rename its class",
        )
    kind = _defined_targets(reference)[name]
    if _is_derivative(reference, name):
        reference_text, name = _with_apply(reference_text, name)
        kind = TargetKind.FUNCTION
    if _is_derivative(candidate, other):
        candidate_text, other = _with_apply(candidate_text, other)
    program = Program(source=reference_text, entry=name, kind=kind)
    setting = TorchSetting(gradients=False) if inference else TorchSetting()
    workload = Workload(name="get_inputs", origin=WorkloadOrigin.GET_INPUTS, setting=setting)
    if "get_inputs" not in _defined_targets(reference):
        raise EvaluationError(
            "could not judge: the reference has no get_inputs()",
            "add a function that returns its inputs",
        )
    builds = allow_native and native.uses(candidate_text)
    request = EvaluationRequest(
        reference=program,
        candidate_source=candidate_text,
        candidate_entry=other,
        workload=workload,
        python=python,
        require_speed=require_speed,
        uses_triton="triton" in parsing.imports(candidate),
        native=builds,
        timeout_s=timeout_s + (native.BUILD_S if builds else 0.0),
        precision=precision,
    )
    return replace(request, device=device_for(request, device, has_cuda))


def device_for(request: EvaluationRequest, asked: str, has_cuda: bool) -> str:
    """cuda, cpu or interpreter, of what was asked (also auto). Raises EvaluationError: there is no
    GPU."""
    if asked == "cuda" and not has_cuda:
        raise EvaluationError(
            "could not judge: torch sees no CUDA device here", "use --device cpu or auto"
        )
    if asked == "cuda" or (asked == "auto" and has_cuda):
        return "cuda"
    return "interpreter" if asked == "interpreter" else request.without_gpu


def _parse(text: str, which: str) -> ast.Module:
    _refuse_huge(len(text), which)
    try:
        return parsing.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SyntaxError) and error.lineno is not None:
            reason = f"line {error.lineno}: {error.msg}"
        else:  # a null byte, a lone surrogate, or brackets within brackets without end
            reason = str(error) or "it is nested too deeply"
        raise EvaluationError(
            f"could not judge: {which} does not parse: {reason}", "mend it"
        ) from error


def _defined_targets(tree: ast.Module) -> dict[str, TargetKind]:
    kinds = {ast.ClassDef: TargetKind.MODULE, ast.FunctionDef: TargetKind.FUNCTION}
    return {node.name: kinds[type(node)] for node in tree.body if isinstance(node, DEFINITIONS)}


def _is_derivative(tree: ast.Module, name: str) -> bool:
    """Whether it is a ``torch.autograd.Function``: a forward and its backward by hand."""
    found = next(n for n in tree.body if isinstance(n, DEFINITIONS) and n.name == name)
    bases = found.bases if isinstance(found, ast.ClassDef) else []
    return any(ast.unparse(base) in DERIVATIVES for base in bases)


def _with_apply(text: str, name: str) -> tuple[str, str]:
    """The program with a function that applies the class, and that function's name: what is judged
    are its values, and the gradients of the inputs that ask for some."""
    applied = f"apply_{name}"
    return f"{text}\n\n\ndef {applied}(*args):\n    return {name}.apply(*args)\n", applied


def _only_entry(tree: ast.Module) -> str:
    classes = [name for name, kind in _defined_targets(tree).items() if kind is TargetKind.MODULE]
    for name in NAMES:
        if name in classes:
            return name
    if len(classes) != 1:
        raise EvaluationError(
            f"could not judge: the reference has {len(classes)} classes and none is called Model",
            "name the one to judge",
        )
    return classes[0]
