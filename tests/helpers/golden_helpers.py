"""The rewritten file of a golden case, made in process as a user would get it, and what makes it
readable.

Covers the text alone: whether it is right is tested where the skill is, whether it is fast on a
GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rewrite_helpers import SKILLS, skill

from kernel_lsp import analysis
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import Job, Snapshot, Step, TargetKind
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.rewrite.engine import EngineSession
from kernel_lsp.rewrite.kernels.session import KernelSession

GOLDEN = Path(__file__).resolve().parents[1] / "cases" / "golden"
MAX_STEPS = 12
INVENTED = re.compile(
    r"(?:tmp|temp|var|buf|arg|val|acc|t|v)_?\d+(?:_\d+)*"  # as a code generator counts
    r"|(?:add|sub|mul|div|linear|view|permute|expand|unsqueeze|clone|getitem|to|relu|exp|sum|mean)_\d+"
)
"""Names that say which node of a graph this was, and nothing else."""


def names() -> list[str]:
    """Skills with a rewrite of their own."""
    return sorted(path.parent.name for path in SKILLS.glob("*/rewrite.py"))


@cache
def rewritten(name: str) -> str:
    """``<name>.in.py`` after its skill was applied, with default parameters, wherever it
    applies."""
    path = GOLDEN / f"{name}.in.py"
    prepared = _prepared(path, of_kernel=skill(name).scope == "triton")
    snapshot, target = prepared.snapshot, prepared.target
    session: EngineSession | KernelSession
    if prepared.program.kernel is not None:
        session = KernelSession(prepared.program, prepared.workload, "cuda", [skill(name)])
    else:
        session = EngineSession(prepared.program, prepared.workload, "cuda", [skill(name)])
    left, steps, candidate = session.capture().sites, list[Step](), None
    assert left, f"{name} applies nowhere in {path.name}: {session.notes}"
    while left and len(steps) < MAX_STEPS:
        steps.append(Step(skill=name, site=left[0].site))
        proposed = session.propose(steps)
        candidate, left = proposed.candidate, proposed.sites_left
    assert not session.notes
    assert candidate is not None and candidate.edit is not None
    return apply_edit(snapshot.text, target.span, candidate.edit)


def _prepared(path: Path, *, of_kernel: bool) -> PreparedJob:
    """The file's first target with a workload, of the kind that the skill rewrites."""
    text = path.read_text()
    for target in analysis.analyze(Snapshot(uri=path.as_uri(), text=text)).targets:
        if (target.kind is TargetKind.TRITON_KERNEL) is of_kernel:
            made = prepare(Job(text=text, path=str(path), qualname=target.qualname))
            if isinstance(made, PreparedJob):
                return made
    raise AssertionError(f"{path.name} has no target with a workload comment or get_inputs()")


def invented_names(text: str) -> list[str]:
    """Variables and arguments that only a generator would choose."""
    tree = ast.parse(text)
    stored = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    stored |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    return sorted(name for name in stored if INVENTED.fullmatch(name))


def kernels(text: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(text)):
        decorators = [ast.unparse(d) for d in getattr(node, "decorator_list", ())]
        if isinstance(node, ast.FunctionDef) and any(
            d.startswith("triton.jit") for d in decorators
        ):
            yield node


def unexplained_masks(text: str) -> list[str]:
    """Masks of loads and stores that are no comparison with a size and whose line has no
    comment."""
    lines = text.splitlines()
    return [
        f"{kernel.name}: {lines[call.lineno - 1].strip()}"
        for kernel in kernels(text)
        for call in ast.walk(kernel)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "mask" and not _explained(keyword.value, kernel, lines)
    ]


def _explained(mask: ast.expr, kernel: ast.FunctionDef, lines: list[str]) -> bool:
    """A comment at the mask, or at each of the named parts that it is put together from."""
    if _has_comment(lines, mask.lineno, mask.end_lineno or mask.lineno):
        return True
    named = [n.id for n in ast.walk(mask) if isinstance(n, ast.Name)]
    if isinstance(mask, ast.Compare) and all(len(name) > 1 for name in named):
        return True  # `rows < n_rows` says itself what it keeps out
    made = {n: places for n in named if (places := list(_assigned(kernel, n)))}
    return bool(made) and all(
        any(_has_comment(lines, p.lineno, p.end_lineno or p.lineno) for p in places)
        for name, places in made.items()
        if name in named and (isinstance(mask, ast.Name) or "mask" in name)
    )


def _assigned(kernel: ast.FunctionDef, name: str) -> Iterator[ast.Assign]:
    for node in ast.walk(kernel):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name
            for target in node.targets
            for t in ast.walk(target)
        ):
            yield node


def _has_comment(lines: list[str], first: int, last: int) -> bool:
    """On one of the lines, or right above them."""
    above = lines[first - 2].strip() if first > 1 else ""
    return above.startswith("#") or any("#" in line for line in lines[first - 1 : last])


def launchers_without_shapes(text: str) -> list[str]:
    """Functions that launch a kernel and whose docstring and comments give no shape."""
    own = {kernel.name for kernel in kernels(text)}
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and node.name not in own
        and _launches(node, own)
        and not _gives_shape("\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]))
    ]


def _launches(node: ast.FunctionDef, own: set[str]) -> bool:
    return any(
        isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id in own
        for n in ast.walk(node)
    )


def _gives_shape(body: str) -> bool:
    """``x, out: float32 (n_rows, n_cols)`` or ``[M, K]``, in the docstring or in a comment."""
    said = [*re.findall(r'"""(.*?)"""', body, re.DOTALL), *re.findall(r"#(.*)", body)]
    return any(re.search(r"[\[(]\w[\w */+-]*,|: one \w+ number", part) for part in said)
