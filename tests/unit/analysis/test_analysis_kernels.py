"""What a kernel's code says about its values, and a launch about its arguments."""

import ast

from kernel_lsp.analysis import analyze
from kernel_lsp.analysis.kernels import KernelFacts
from kernel_lsp.analysis.launches import LaunchExpression, launches_of, tuning_of
from kernel_lsp.analysis.source import ParsedSource, ParseProblem, parse
from kernel_lsp.analysis.targets import TargetDraft, find, structure
from kernel_lsp.records import Snapshot

SOURCE = """
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 128}, num_warps=8), triton.Config({"BLOCK": 256})]

@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def kernel(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row >= n:
        return
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = x_ptr + row * stride
    for i in range(4):
        x = tl.load(p + offs, mask=offs < n, other=0.0)
        p += stride
    tl.store(y_ptr + offs, x)

def launch(x, y, *rest):
    n = x.numel()
    grid = lambda meta: (n, triton.cdiv(n, meta["BLOCK"]))
    kernel[grid](x, y, n, stride=x.stride(0))
    kernel[(1,)](x, *rest)
"""


def file() -> ParsedSource:
    parsed = parse(SOURCE)
    assert not isinstance(parsed, ParseProblem)
    return parsed


def target() -> TargetDraft:
    return next(f for f in find(file(), structure(file())) if f.qualname == "kernel")


def facts() -> KernelFacts:
    node = target().node
    assert isinstance(node, ast.FunctionDef)
    return KernelFacts(file(), node)


def launched() -> list[LaunchExpression]:
    return launches_of(structure(file()), target())


def test_accesses_know_their_surroundings() -> None:
    load, store = facts().accesses
    assert (load.name, store.name) == ("load", "store")
    assert len(load.loops) == 1 and not store.loops
    assert [ast.unparse(t) for t in store.tests] == ["row >= n"]
    assert load.mask is not None and ast.unparse(load.mask) == "offs < n"
    assert store.mask is None and store.value is not None and ast.unparse(store.value) == "x"


def test_values_depend_on_what_their_names_were_bound_to() -> None:
    kernel = facts()
    load, store = kernel.accesses
    assert kernel.atoms(load.pointer) == {
        "x_ptr",
        "pid:0",
        "pid:1",
        "lanes",
        "stride",
        "BLOCK",
        "n",
    }
    # After the early return everything depends on the row that it looks at.
    assert kernel.atoms(store.pointer) == {"y_ptr", "pid:0", "pid:1", "lanes", "BLOCK", "n"}
    assert store.value is not None and {"memory", "x_ptr", "pid:0"} <= kernel.atoms(store.value)


def test_pointers_lead_back_to_their_parameter_even_when_a_loop_moves_them() -> None:
    kernel = facts()
    assert [kernel.base(a.pointer) for a in kernel.accesses] == ["x_ptr", "y_ptr"]


def test_a_launch_binds_arguments_by_position_and_by_name() -> None:
    whole, starred = launched()
    assert {name: ast.unparse(given) for name, given in whole.arguments.items()} == {
        "x_ptr": "x",
        "y_ptr": "y",
        "n": "n",
        "stride": "x.stride(0)",
    }
    assert ast.unparse(whole.resolve(whole.arguments["n"])) == "x.numel()"
    assert [ast.unparse(axis) for axis in whole.grid_axes() or ()] == [
        "n",
        "triton.cdiv(n, meta['BLOCK'])",
    ]
    assert starred.arguments.keys() == {"x_ptr"}


def test_tuning_reads_configurations_through_a_name() -> None:
    tuning = tuning_of(file(), target())
    assert tuning is not None and tuning.configs is not None
    assert [(c.number("BLOCK"), c.number("num_warps")) for c in tuning.configs] == [
        (128, 8),
        (256, None),
    ]
    assert list(tuning.names("key") or ()) == ["n"]
    assert tuning.measures and not tuning.may_restore


def test_names_that_double_or_lead_in_a_circle_come_to_an_end() -> None:
    doubled = "".join(f"    a{i + 1} = a{i} + a{i}\n" for i in range(60))
    text = f"""import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    a0 = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
{doubled}    b = c + c
    c = b + b
    for i in range(n):
        p, q = q + a60, p + a60
        q, p = p + b, q + c
        x = tl.load(p + a60, mask=(a60 + c) < n)
        tl.store(q + a60.to(tl.int64), tl.sum(x * tl.load(q + a60)))
"""
    analysis = analyze(Snapshot(uri="u", text=text))
    assert analysis.problem is None and [t.qualname for t in analysis.targets] == ["kernel"]
