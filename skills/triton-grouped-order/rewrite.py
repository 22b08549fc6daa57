"""Programs of a two-dimensional grid in groups that share rows, so that what they load stays in L2.

Axis 0 of a grid runs fastest, so it stands second in tl.swizzle2d, which numbers row by row.
"""

from __future__ import annotations

import ast

from kernel_lsp.rewrite.kernels import effects
from kernel_lsp.rewrite.kernels.source import axis_of, find_calls, names_in
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

GROUPS = (8, 4, 16)


def match(kernel: Kernel) -> list[KernelMatch]:
    found = _programs(kernel)
    if (
        found is None
        or not find_calls(kernel.function, "dot")
        or find_calls(kernel.function, "swizzle2d")
    ):
        return []
    return [
        KernelMatch(
            "programs", "neighboring programs share what they load (grouped order)", 0.1, data=found
        )
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    atomics = [
        n
        for n in ast.walk(kernel.function)
        if isinstance(n, ast.Attribute) and n.attr.startswith("atomic_")
    ]
    asked = find_calls(kernel.function, "program_id")
    askers = effects.calls_that_may(kernel, ("program",))
    return [
        proof(
            "each program knows its place by two numbers alone",
            len(asked) == 2 and not find_calls(kernel.function, "num_programs"),
            "tl.program_id is asked once for each axis",
        ),
        proof(
            "no function that it calls asks for its place",
            not askers,
            f"it calls {', '.join(askers)}" if askers else "none of them names a program",
        ),
        proof("no program waits for another", not atomics, "the kernel has no atomic operation"),
        proof(
            "the grid has two axes",
            all(
                one.grid is None or len(one.grid) == 2 or one.grid[2:] == (1,)
                for one in kernel.launched
            ),
            "as its launches say",
        ),
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {"group": list(GROUPS)}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    rows, columns, later = match.data
    language = _language(later)
    indent = " " * later.col_offset
    kernel.replace(
        later,
        f"{kernel.text(later)}\n"
        f"{indent}# Programs that run at the same time share rows and columns, which then lie "
        f"in L2.\n"
        f"{indent}{columns}, {rows} = {language}.swizzle2d(\n"
        f"{indent}    {columns}, {rows}, {language}.num_programs(1), {language}.num_programs(0),"
        f" {parameters['group']}\n{indent})",
    )


def _programs(kernel: Kernel) -> tuple[str, str, ast.Assign] | None:
    """(row's name, column's name, the later of their statements): both are plain top-level
    assignments."""
    found: dict[int, tuple[str, ast.Assign]] = {}
    for statement in kernel.function.body:
        value = statement.value if isinstance(statement, ast.Assign) else None
        if (
            value is None
            or not isinstance(statement, ast.Assign)
            or not find_calls(value, "program_id")
        ):
            continue
        plain = isinstance(value, ast.Call) and [*map(type, statement.targets)] == [ast.Name]
        axis = axis_of(value) if plain and isinstance(value, ast.Call) else None
        if axis is None or axis in found:
            return None
        found[axis] = (next(iter(names_in(statement.targets[0]))), statement)
    if set(found) != {0, 1}:
        return None
    later = max((found[0][1], found[1][1]), key=lambda s: s.lineno)
    between = kernel.function.body[: kernel.function.body.index(later)]
    names = {found[0][0], found[1][0]}
    entries = [found[0][1], found[1][1]]
    if any(names & names_in(s) for s in between if s not in entries):
        return None  # one is used before the other is known
    return found[0][0], found[1][0], later


def _language(statement: ast.Assign) -> str:
    """``tl``, as the file calls it."""
    call = find_calls(statement.value, "program_id")[0]
    assert isinstance(call.func, ast.Attribute)
    return ast.unparse(call.func.value)
