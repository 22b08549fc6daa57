"""The profile of a verdict, seen from the parent: asked for when everything is timed, and nothing
hangs on it. No torch.

A kernel is the candidate's own when its name is that of a Triton kernel that its source defines.
Not covered: kernels that it compiles from C++ or CUDA text."""

from __future__ import annotations

import ast
import contextlib
import math
from typing import Any

from kernel_lsp import parsing
from kernel_lsp.errors import EvaluationError, WorkerLost
from kernel_lsp.evaluator import measure
from kernel_lsp.evaluator.findings import PartialEvaluation, Rejected, candidate
from kernel_lsp.evaluator.processes.sandbox import Sandbox
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.undisturbed import Alone, Undisturbed
from kernel_lsp.records import KernelTime, Profile

MAX_ROWS = 20
BOUNDS = ("busy_us", "gaps_us")
_BAD_REPLY = (ValueError, TypeError, KeyError, AttributeError)


async def profile(
    request: EvaluationRequest,
    sandbox: Sandbox,
    prepared: measure.PreparedTiming,
    session: measure.JudgeSession,
    alone: Alone,
    found: PartialEvaluation,
) -> None:
    """Adds to ``found`` where the time of a call goes; a check tells why nothing is known.

    The timing process is ended: its memory is needed."""
    budget = request.budget
    await prepared.timer.child.kill()
    try:
        party = Undisturbed(await sandbox.profiler(), alone)
        await measure.make_baselines(request, party, session, 0.0)
        loading = {**prepared.loading, "timing": True}
        await candidate(party, "load", budget.load_s, prepared.init, **loading)
        reply, _ = await candidate(party, "profile", budget.call_s)
        own = own_kernels(request.candidate_source)
        found.profiles = tuple(
            read_profile(name, reply["profiles"][name], own if name == "candidate" else frozenset())
            for name in ("eager", "candidate")
        )
    except (EvaluationError, WorkerLost, Rejected, OSError, *_BAD_REPLY) as error:
        found.check("profile", None, f"none: {error}")


def own_kernels(source: str) -> frozenset[str]:
    """Names of the Triton kernels that a program defines."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset(
            node.name
            for node in ast.walk(parsing.parse(source))
            if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list))
        )
    return frozenset()


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target) in ("jit", "triton.jit")


def read_profile(provider: str, reply: Any, own: frozenset[str]) -> Profile:
    """A confined process's answer as a record. Raises ValueError, TypeError or KeyError on what
    is none."""
    rows = tuple(
        KernelTime(
            name=str(row["name"])[:200],
            count=_amount(row["count"]),
            us=_amount(row["us"]),
            own=str(row["name"]) in own,
        )
        for row in list(reply["kernels"])[:MAX_ROWS]
    )
    busy, gaps = (None if reply[key] is None else _amount(reply[key]) for key in BOUNDS)
    operations, moved = (
        None if reply.get(key) is None else _amount(reply[key])
        for key in ("operations", "moved_bytes")
    )
    return Profile(
        provider=provider,
        kernels=rows,
        us=_amount(reply["us"]),
        busy_us=busy,
        gaps_us=gaps,
        operations=operations,
        moved_bytes=moved,
    )


def _amount(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{number} is no amount")
    return number


def coverage(profiles: tuple[Profile, ...]) -> float | None:
    """Share of the candidate's device time in kernels of its own; None where no device was seen."""
    mine = next((one for one in profiles if one.provider == "candidate"), None)
    if mine is None or mine.busy_us is None or not mine.us:
        return None
    return min(1.0, sum(row.us for row in mine.kernels if row.own) / mine.us)
