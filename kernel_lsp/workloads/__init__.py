"""What a target is really called with: recorded TOML, pragma comments, get_inputs(); best first.

Standard library only. Reads ``<folder>/.kernel-lsp/*.toml`` and nothing else; never runs code.
What cannot be read is returned beside what can, never raised.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

from kernel_lsp import parsing
from kernel_lsp.errors import WorkloadError
from kernel_lsp.records import Snapshot, Target, TargetKind, Workload, WorkloadOrigin
from kernel_lsp.workloads.launched import busy, launches, launching, shares_in
from kernel_lsp.workloads.pragma import pragmas
from kernel_lsp.workloads.recorded import RECORD_A_RUN, by_hand, recorded_workloads

__all__ = [
    "RECORD_A_RUN",
    "busy",
    "is_written",
    "launches",
    "recorded_workloads",
    "shares_in",
    "workloads_for",
]

_MAKERS = ("get_inputs", "get_init_inputs")


def workloads_for(
    snapshot: Snapshot, target: Target, folder: str | None
) -> tuple[tuple[Workload, ...], tuple[WorkloadError, ...]]:
    """Every known workload of the target, best first, and what was wrong with the others."""
    from_files, file_problems = recorded_workloads(snapshot, target, folder)
    if folder and target.kind is TargetKind.TRITON_KERNEL:
        seen, unreadable = launching(snapshot, target, folder)
        from_files, file_problems = (*from_files, *seen), (*file_problems, *unreadable)
    from_comments, comment_problems = pragmas(snapshot, target)
    own = (_GET_INPUTS,) if _has_inputs(snapshot.text, target) else ()
    return (*from_files, *from_comments, *own), (*file_problems, *comment_problems)


def is_written(snapshot: Snapshot, target: Target, folder: str | None) -> bool:
    """Whether people have said themselves what the target is called with."""
    return bool(pragmas(snapshot, target)[0] or by_hand(snapshot, target, folder))


_GET_INPUTS = Workload(name="get_inputs()", origin=WorkloadOrigin.GET_INPUTS)


def _has_inputs(text: str, target: Target) -> bool:
    """Does the file's get_inputs() mean this target?

    It means the outermost: a class or function that the file's other definitions do not use.
    A function is meant only where no module class is.
    """
    if "get_inputs" not in text or "." in target.qualname:
        return False
    outline = _outline(text)
    if outline is None or _MAKERS[0] not in outline.defined:
        return False
    if target.kind is TargetKind.TRITON_KERNEL:
        return True
    if target.kind is TargetKind.FUNCTION and outline.has_class:
        return False
    return not any(
        target.qualname in used
        for name, used in outline.users
        if name not in (target.qualname, *_MAKERS)
    )


@dataclass(frozen=True, slots=True)
class _Outline:
    """A file's top level, as far as get_inputs() is concerned."""

    defined: frozenset[str]
    has_class: bool
    users: tuple[tuple[str, frozenset[str]], ...]
    """(name, every name in its body) of each class and function."""


@functools.lru_cache(maxsize=2)
def _outline(text: str) -> _Outline | None:
    """None for text that does not parse. Kept, because a file is asked about once per target."""
    try:
        body = parsing.parse_text(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return _Outline(
        defined=frozenset(name for statement in body for name in _defined_names(statement)),
        has_class=any(isinstance(statement, ast.ClassDef) for statement in body),
        users=tuple(
            (s.name, _names(s)) for s in body if isinstance(s, ast.ClassDef | ast.FunctionDef)
        ),
    )


def _defined_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [t.id for t in targets if isinstance(t, ast.Name)]


def _names(statement: ast.stmt) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
