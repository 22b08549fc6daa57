"""What a target is really called with: recorded TOML, pragma comments, get_inputs(); best first.

Standard library only. Reads ``<folder>/.kernel-lsp/*.toml`` and nothing else; never runs code.
What cannot be read is returned beside what can, never raised.
"""

from __future__ import annotations

import ast
import warnings

from kernel_lsp.errors import WorkloadError
from kernel_lsp.records import Snapshot, Target, TargetKind, Workload, WorkloadOrigin
from kernel_lsp.workloads.pragma import pragmas
from kernel_lsp.workloads.recorded import recorded

__all__ = ["workloads_for"]

_MAKERS = ("get_inputs", "get_init_inputs")


def workloads_for(
    snapshot: Snapshot, target: Target, folder: str | None
) -> tuple[tuple[Workload, ...], tuple[WorkloadError, ...]]:
    """Every known workload of the target, best first, and what was wrong with the others."""
    from_files, file_problems = recorded(snapshot, target, folder) if folder else ((), ())
    from_comments, comment_problems = pragmas(snapshot, target)
    own = (_GET_INPUTS,) if _has_inputs(snapshot.text, target) else ()
    return (*from_files, *from_comments, *own), (*file_problems, *comment_problems)


_GET_INPUTS = Workload(name="get_inputs()", origin=WorkloadOrigin.GET_INPUTS)


def _has_inputs(text: str, target: Target) -> bool:
    """Does the file's get_inputs() mean this target?

    It means the outermost: a class or function that the file's other definitions do not use.
    A function is meant only where no module class is.
    """
    if "get_inputs" not in text or "." in target.qualname:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text.removeprefix("\ufeff")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if _MAKERS[0] not in {name for statement in body for name in _defined(statement)}:
        return False
    if target.kind is TargetKind.TRITON_KERNEL:
        return True
    if target.kind is TargetKind.FUNCTION and any(isinstance(s, ast.ClassDef) for s in body):
        return False
    others = [s for s in body if not set(_defined(s)) & {target.qualname, *_MAKERS}]
    return not any(_uses(s, target.qualname) for s in others if isinstance(s, ast.ClassDef | ast.FunctionDef))


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [t.id for t in targets if isinstance(t, ast.Name)]


def _uses(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))
