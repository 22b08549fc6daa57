"""Simplification operators: what each makes of a kernel's text, and that experts end at naive
kernels."""

from functools import cache
from pathlib import Path

import pytest

from kernel_lsp.errors import RewriteError
from kernel_lsp.lineage import catalog
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import Job
from kernel_lsp.rewrite.kernels.session import KernelSession
from kernel_lsp.rewrite.kernels.source import KernelSource
from kernel_lsp.rewrite.kernels.view import Kernel

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

EXPERTS = Path(__file__).resolve().parents[3] / "benchmarks" / "experts"


@cache
def session(name: str) -> KernelSession:
    path = EXPERTS / f"{name}.py"
    one = prepare(Job(text=path.read_text(), path=str(path), qualname=f"{name}_kernel"))
    assert isinstance(one, PreparedJob)
    return KernelSession(one.program, one.workload, "cuda", list(catalog.operators()))


def test_a_statement_without_text_goes_with_its_line() -> None:
    text = (
        "def kernel():\n    a = 1  # one\n    b = 2\n    c = 3; d = 4\n\n\ndef launch():\n    "
        "kernel()\n"
    )
    source = KernelSource.parse(text, "kernel", "launch")
    first, second, third, _ = source.function("kernel").body
    assert source.edited([(second, "")]).text == text.replace("    b = 2\n", "")
    assert source.edited([(first, "x = 1")]).text == text.replace("a = 1", "x = 1")
    with pytest.raises(RewriteError, match="would not compile"):  # its line holds another one
        source.edited([(third, "")])


def chain(name: str) -> tuple[list[str], Kernel]:
    """Every operator that matches, in order, each with its most drastic choice; and what is
    left."""
    opened, kernel, taken = session(name), session(name).kernel, list[str]()
    for operator, module in opened.rewrites.items():
        for match in module.match(kernel)[:1]:
            assert all(proof.holds for proof in module.preconditions(kernel, match)), operator
            chosen = {
                name: choices[0] for name, choices in module.parameters(kernel, match).items()
            }
            edited = Kernel(kernel.source, kernel.launched)
            module.apply(edited, match, chosen)
            kernel = opened._observed(kernel.source.edited(edited.edits))
            assert module.match(kernel) == [] or match.label != module.match(kernel)[0].label
            taken.append(operator)
    return taken, kernel


TAKEN = {
    "matmul": [
        "drop_autotune",
        "plain_pointers",
        "no_grouped_order",
        "unfused_epilogue",
        "exact_products",
        "one_stage",
        "smaller_tile",
        "fewer_warps",
    ],
    "softmax": [
        "two_passes",
        "plain_exponentials",
        "no_hints",
        "no_eviction",
        "one_stage",
        "smaller_tile",
        "fewer_warps",
    ],
    "layer_norm": [
        "loads_where_used",
        "one_tile_per_program",
        "no_hints",
        "no_eviction",
        "fewer_warps",
    ],
    "attention": [
        "drop_autotune",
        "loads_where_used",
        "whole_loop",
        "two_passes",
        "plain_exponentials",
        "exact_products",
        "one_stage",
        "smaller_tile",
        "fewer_warps",
    ],
    "scan": [
        "drop_autotune",
        "no_hints",
        "no_eviction",
        "plain_loops",
        "one_stage",
        "smaller_tile",
        "fewer_warps",
    ],
}


@pytest.mark.parametrize("name", TAKEN)
def test_every_expert_is_walked_back_to_a_naive_kernel(name: str) -> None:
    taken, naive = chain(name)
    assert taken == TAKEN[name]
    text = naive.source.text
    gone = (
        "autotune",
        "swizzle2d",
        "descriptor(",
        "multiple_of",
        "eviction_policy",
        "exp2",
        "tl.range",
        "min(",
    )
    assert [word for word in gone if word in text] == []
    assert naive.launched[0].options.get("num_warps") == 1


def after(name: str, *operators: str) -> str:
    """The expert's text after these alone."""
    opened, kernel = session(name), session(name).kernel
    for operator in operators:
        module = opened.rewrites[operator]
        match = module.match(kernel)[0]
        edited = Kernel(kernel.source, kernel.launched)
        choices = module.parameters(kernel, match)
        module.apply(edited, match, {name: values[0] for name, values in choices.items()})
        kernel = opened._observed(kernel.source.edited(edited.edits))
    return kernel.source.text


def test_a_configuration_stands_at_the_launch() -> None:
    text = after("scan", "drop_autotune")
    assert (
        "scan_kernel[grid](gate, x, out, length, width, BLOCK_T=64, BLOCK_D=32, num_warps=4, "
        "num_stages=3)" in text
    )


HEURISTIC = """import torch
import triton
import triton.language as tl


@triton.heuristics({"EVEN": lambda given: given["n"] % 64 == 0})
@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=2)], key=["n"])
@triton.jit
def even_kernel(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=EVEN or at < n), mask=at < n)


def even(x):
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    even_kernel[grid](x, out, x.numel())
    return out


def get_inputs():
    return [torch.randn(100)]
"""


def test_a_configuration_beneath_heuristics_stands_at_the_launch_too() -> None:
    opened = opened_kernel(HEURISTIC, "even_kernel")
    operator, kernel = opened.rewrites["drop_autotune"], opened.kernel
    (match,) = operator.match(kernel)
    edited = Kernel(kernel.source, kernel.launched)
    operator.apply(edited, match, {"config": 0})
    text = kernel.source.edited(edited.edits).text
    assert "even_kernel[grid](x, out, x.numel(), BLOCK=64, num_warps=2, num_stages=3)" in text
    assert "autotune" not in text and "@triton.heuristics" in text
    above = HEURISTIC.replace("@triton.heuristics", "@other.wrapper")
    source = KernelSource.parse(above, "even_kernel", "even")
    assert operator.match(Kernel(source, kernel.launched)) == []


def test_a_persistent_loop_becomes_one_tile_and_the_grid_their_number() -> None:
    text = after("layer_norm", "one_tile_per_program")
    assert "    row = tl.program_id(0)\n    place = row * tl.cast(columns, tl.int64)\n" in text
    assert "layer_norm_kernel[(rows,)](" in text


def test_descriptors_become_masked_pointers() -> None:
    text = after("matmul", "drop_autotune", "plain_pointers")
    rows, inner = (
        "(row * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]",
        "(start + tl.arange(0, BLOCK_K))[None, :]",
    )
    assert (
        f"a = tl.load(a_ptr + {rows} * K + {inner}, mask=({rows} < M) & ({inner} < K), other=0.0)"
        in text
    )


def test_the_maximum_has_a_pass_of_its_own_that_holds_only_what_it_needs() -> None:
    text = after("softmax", "two_passes")
    first, second = text.split("for start in range(0, columns, BLOCK):")[1:3]
    assert "now = tl.maximum(largest, tl.max(x, axis=0))" in first and "largest = now" in first
    assert "exp2" not in first and "total" not in first
    assert "now = largest" in second and "tl.max(" not in second and "largest = now" not in second


def test_an_epilogue_is_done_by_torch_in_float32() -> None:
    text = after("matmul", "drop_autotune", "unfused_epilogue")
    assert "    c = (c + bias)\n    c = c.clamp(min=0.0)\n    c = c.to(kept)\n    return c" in text
    assert "tl.maximum" not in text and "tl.load(bias_ptr" not in text


CARRIED = """import torch
import triton
import triton.language as tl


@triton.jit
def {name}_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, SPLIT: tl.constexpr):
    best = -1.0e30
    total = 0.0
    scale = tl.load(x_ptr)
    for start in tl.static_range(0, 64, BLOCK):
        x = tl.load(x_ptr + start + tl.arange(0, BLOCK)){load}
        now = tl.maximum(best, tl.max(x))
        total = total * tl.exp(best - now) + tl.sum(tl.exp(x - now))
        best = now
    tl.atomic_add(out_ptr + tl.program_id(0), total * scale)


# kernel-lsp: workload x=f32[64]
def {name}(x):
    out = torch.zeros(4, device=x.device)
    n = x.numel()
    {name}_kernel[(1, 4)](x, out, n, BLOCK=32, EVEN=n % 32 == 0, SPLIT=4)
    return out
"""


def opened_kernel(text: str, kernel: str) -> KernelSession:
    one = prepare(Job(text=text, path="/w/k.py", qualname=kernel))
    assert isinstance(one, PreparedJob)
    opened = KernelSession(one.program, one.workload, "cuda", list(catalog.operators()))
    assert opened.notes == []
    return opened


def matches(text: str, kernel: str, operator: str) -> list[str]:
    opened = opened_kernel(text, kernel)
    return [match.label for match in opened.rewrites[operator].match(opened.kernel)]


def test_operators_leave_alone_what_they_do_not_understand() -> None:
    online, carried = CARRIED.format(name="a", load=""), CARRIED.format(name="a", load=" * best")
    assert matches(online, "a_kernel", "two_passes") == ["maximum best"]
    assert matches(online, "a_kernel", "loads_where_used") == []  # scale is used behind the loop
    assert matches(online, "a_kernel", "masks_everywhere") == ["EVEN"]
    assert matches(online, "a_kernel", "plain_loops") == ["1 loops"]
    assert matches(online, "a_kernel", "no_split") == []  # no axis of the grid is called SPLIT
    split = online.replace("[(1, 4)]", "[lambda meta: (1, meta['SPLIT'])]")
    assert matches(split, "a_kernel", "no_split") == ["SPLIT"]
    stored = carried.replace(
        "        best = now\n", "        tl.store(out_ptr, now)\n        best = now\n"
    )
    assert matches(stored, "a_kernel", "two_passes") == []
