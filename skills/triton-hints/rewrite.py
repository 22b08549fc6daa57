"""Sizes of which the compiler learns that they are multiples of 2, 4 or 8, so that it loads whole
vectors.

Triton itself asks for multiples of 16 alone. `n // 8 * 8` is n where n is a multiple of 8, and the
compiler's analysis understands it. tl.multiple_of does nothing on a kernel's parameter (seen in
the PTX of Triton 3.9)."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from kernel_lsp.rewrite.kernels import launch_constants
from kernel_lsp.rewrite.kernels.launch_constants import Constant
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.terms import Atom, TermCounts, TermReader, add_terms, bounds
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

KNOWN = 16
"""Triton compiles a variant of its own for multiples of it."""
WIDEST = 16
"""Bytes of the widest load."""
BENEFIT = 0.08
"""Often more, but below what changes a kernel's structure, which has to be read as it was
written."""


def match(kernel: Kernel) -> list[KernelMatch]:
    if not launch_constants.fits(kernel):
        return []
    found = _multiples(kernel)
    names = _wanted_hints(kernel, found)
    if not names:
        return []
    said = ", ".join(f"{name} of {found[name]}" for name in names)
    summary = f"wider loads: the compiler learns of multiples ({said})"
    return [
        KernelMatch(", ".join(names), summary, BENEFIT, data={name: found[name] for name in names})
    ]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    return [
        proof(
            f"{name} // {_constant(name)} * {_constant(name)} is {name}",
            True,
            f"the launcher passes {multiple} only for multiples of it, else 1, which is the "
            f"default, too",
        )
        for name, multiple in match.data.items()
    ]


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    return {}


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    body = kernel.function.body
    first = body[1] if ast.get_docstring(kernel.function) is not None and len(body) > 1 else body[0]
    indent = " " * first.col_offset
    lines = [f"{name} = {name} // {_constant(name)} * {_constant(name)}" for name in match.data]
    why = "# The same numbers, written so that the compiler sees what they are multiples of."
    kernel.replace(first, f"\n{indent}".join([why, *lines, kernel.text(first)]))
    constants = [
        Constant(
            _constant(name),
            f"What {name} is a multiple of.",
            "1",
            f"{multiple} if {launch_constants.given_text(kernel, name)} % {multiple} == 0 else 1",
        )
        for name, multiple in match.data.items()
    ]
    launch_constants.add(kernel, constants)


def _constant(name: str) -> str:
    return f"{name.upper()}_MULTIPLE"


def _multiples(kernel: Kernel) -> dict[str, int]:
    """Integer parameters that are multiples of a power of two in every launch, where Triton knows
    of none."""
    found = {}
    for name in kernel.launched[0].arguments:
        seen = [one.arguments.get(name) for one in kernel.launched]
        values = [value for value in seen if type(value) is int and value > 1]
        multiple = math.gcd(KNOWN, *values) if len(values) == len(seen) else 1
        fit = launch_constants.given_text(kernel, name) is not None and launch_constants.is_free(
            kernel, _constant(name)
        )
        if 1 < multiple < KNOWN and fit:
            found[name] = multiple
    return found


# --- where it makes a load or store wider ------------------------------------------------------


def _wanted_hints(kernel: Kernel, multiples: dict[str, int]) -> list[str]:
    """Parameters without which some load or store stays narrow."""
    reader, found = TermReader(kernel.function), set[str]()
    for access in (*find_calls(kernel.function, "load"), *find_calls(kernel.function, "store")):
        numbers = list(_steps(kernel, reader, access))
        if not numbers:
            continue
        before, after = (
            min(_power(kernel, n, known) for n in numbers) for known in ({}, multiples)
        )
        if min(_widest(kernel, reader, access), after) > before:
            found |= {one.key for product, _ in numbers for one in product if one.key in multiples}
    return [name for name in multiples if name in found]


def _steps(
    kernel: Kernel, reader: TermReader, access: ast.Call
) -> Iterator[tuple[tuple[Atom, ...], int]]:
    """What is added to neighboring lanes' addresses, and to their index where a mask or a modulo
    ends.

    All of it must be multiples of a vector's length. Nothing, where lanes are not neighbors.
    """
    address = _address(kernel, reader, access)
    lanes = {one for product in address for one in product if one.kind == "arange"}
    modulo = _remainders(address)
    plain = [one for one in lanes if address.get((one,)) == 1]
    if not plain and not modulo:
        return
    inside = [add_terms(reader.terms(n.left), reader.terms(n.right)) for n in modulo]
    for terms in (address, *_ends(reader, access, plain), *inside):
        for product, count in terms.items():
            is_index = abs(count) == 1 and _is_lane_index(product, modulo)
            if not is_index and not _has_pointer(kernel, product):
                yield product, count


def _ends(reader: TermReader, access: ast.Call, lanes: list[Atom]) -> list[TermCounts]:
    """What the mask compares the lanes with."""
    return [terms for terms in _compared(reader, access) if any((one,) in terms for one in lanes)]


def _has_pointer(kernel: Kernel, product: tuple[Atom, ...]) -> bool:
    return any(one.key in kernel.pointers() for one in product)


def _remainders(address: TermCounts) -> list[ast.BinOp]:
    """The ``a % b`` that are added to an address as they are."""
    alone = [product[0].node for product in address if len(product) == 1]
    return [n for n in alone if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]


def _compared(reader: TermReader, access: ast.Call) -> list[TermCounts]:
    """Left minus right of every comparison that the access depends on."""
    masks = [n for n in _reached_nodes(reader, access) if isinstance(n, ast.Compare)]
    return [
        add_terms(reader.terms(n.left), reader.terms(n.comparators[0]), -1)
        for n in masks
        if len(n.comparators) == 1
    ]


def _is_lane_index(product: tuple[Atom, ...], modulo: Sequence[ast.BinOp]) -> bool:
    """Whether it numbers the lanes, perhaps wrapped."""
    return len(product) == 1 and (product[0].kind == "arange" or product[0].node in modulo)


def _address(kernel: Kernel, reader: TermReader, access: ast.Call) -> TermCounts:
    """Without factors that are 1 in this workload; of a pointer that moves, all that is added to
    it."""
    if not access.args:
        return {}
    node, found = access.args[0], TermCounts()
    ones = {name for name, value in kernel.launched[0].arguments.items() if value == 1}
    unknown = any(_is_unknown(product) for product in reader.terms(node))
    for value in _moves(reader, node) if unknown else [node]:
        for product, count in reader.terms(value).items():
            rest = tuple(one for one in product if one.key not in ones)
            if not _is_unknown(rest):
                found = add_terms(found, {rest: count})
    return found


def _is_unknown(product: tuple[Atom, ...]) -> bool:
    return any(one.kind == "other" and one.node is None for one in product)


def _moves(reader: TermReader, node: ast.expr) -> list[ast.expr]:
    """What a name is given, or what is added to it, anywhere: only to see how wide its loads may
    become."""
    if not isinstance(node, ast.Name):
        return []
    found = []
    for one in ast.walk(reader.function):
        match one:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == node.id:
                found.append(value)
            case ast.AugAssign(target=ast.Name(id=name), value=value) if name == node.id:
                found.append(value)
    return found


def _reached_nodes(reader: TermReader, access: ast.Call) -> Iterator[ast.AST]:
    """Nodes of the mask, through names."""
    waiting = [k.value for k in access.keywords if k.arg == "mask"]
    waiting += access.args[1:] if ast.unparse(access.func).endswith("load") else access.args[2:]
    for _ in range(16):
        names = []
        for one in (n for value in waiting for n in ast.walk(value)):
            yield one
            if isinstance(one, ast.Name):
                found = reader.definition(one.id, one)
                names += [found.value] if isinstance(found, ast.Assign) else []
        waiting = names


def _power(kernel: Kernel, product: tuple[tuple[Atom, ...], int], multiples: dict[str, int]) -> int:
    """The largest power of two that the compiler sees in it."""
    atoms, count = product
    return math.gcd(
        WIDEST, abs(count) * math.prod(_seen_multiple(kernel, one, multiples) for one in atoms)
    )


def _seen_multiple(kernel: Kernel, one: Atom, multiples: dict[str, int]) -> int:
    launched = kernel.launched[0]
    if one.key in launched.constants:
        value = launched.constants[one.key]
        return value if type(value) is int else 1
    if one.kind == "name" and one.key in launched.arguments:
        value = launched.arguments[one.key]
        return KNOWN if type(value) is int and value % KNOWN == 0 else multiples.get(one.key, 1)
    if one.kind == "loop" and (ends := bounds(one.node)) is not None and ends[2] is not None:
        steps = TermReader(kernel.function).terms(ends[2])
        return math.gcd(*(_power(kernel, item, multiples) for item in steps.items()))
    tuned = any(one.key in config for config in launched.configs)
    return KNOWN if tuned else 1


def _widest(kernel: Kernel, reader: TermReader, access: ast.Call) -> int:
    """Elements of the widest vector of the tensor."""
    address = _address(kernel, reader, access)
    names = {one.key for product in address for one in product} & kernel.pointers().keys()
    return min((_elements(kernel.pointers()[name].dtype) for name in names), default=1)


def _elements(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdecimal())
    return max(1, WIDEST * 8 // int(digits)) if digits else WIDEST
