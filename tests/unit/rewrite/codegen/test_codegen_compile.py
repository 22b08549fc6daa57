"""Every kernel family compiles ahead of time for sm_80 and sm_90 and keeps its values in
registers."""

import pytest
from codegen_helpers import program, rewritten

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

WIDE = "torch.randn(4096, 4096), torch.randn(4096, 4096)"
HALF = "torch.randn(4096, 16384, dtype=torch.bfloat16), torch.randn(16384, dtype=torch.bfloat16)"
FAMILIES = [
    ("fused-pointwise", "F.gelu(x + y) * torch.tanh(x) + F.mish(y)", WIDE),
    ("fused-pointwise", "F.elu(x * y) + F.softplus(x)", HALF),
    ("fused-pointwise", "F.gelu(x.t() + y) * 0.5", WIDE),
    ("fused-pointwise", "(lambda a, b: F.silu(a) * b)(*x.chunk(2, -1)) + y[:8192]", HALF),
    ("fused-row-softmax", "torch.softmax(x * 0.125 + y, dim=-1)", WIDE),
    ("fused-row-softmax", "F.log_softmax(x + y, dim=-1)", HALF),
    (
        "fused-row-softmax",
        "torch.softmax(x, dim=1) * 2 + y",
        "torch.randn(64, 512, 64, 64), torch.randn(64)",
    ),
    (
        "fused-row-softmax",
        "torch.softmax(x + y, dim=-1)",
        "torch.randn(512, 65536), torch.randn(65536)",
    ),
    (
        "fused-row-softmax",
        "torch.softmax(x / 3.0 + y, 1)",
        "torch.randn(64, 256, 256), torch.randn(256)",
    ),
    ("fused-norm", "F.silu(F.layer_norm(x + y, (16384,)))", HALF),
    (
        "fused-norm",
        "F.layer_norm(x, (16, 512, 512)) + y",
        "torch.randn(8, 16, 512, 512), torch.randn(512)",
    ),
    (
        "fused-norm",
        "F.relu(F.group_norm(x, 8)) * y",
        "torch.randn(32, 64, 64, 64), torch.randn(64)",
    ),
    (
        "fused-norm",
        "F.layer_norm(x.view(64, 577, 3, 16, 80).permute(2, 0, 3, 1, 4)[0], (80,), y, y)",
        "torch.randn(64, 577, 3840, dtype=torch.bfloat16), torch.randn(80, dtype=torch.bfloat16)",
    ),
    ("fused-reduction", "((x - y) ** 2).mean()", WIDE),
    ("fused-reduction", "torch.logsumexp(x + y, -1)", WIDE),
    ("fused-reduction", "(x.argmax(-1), y)", HALF),
    ("fused-reduction", "(x.argmin(1), y)", "torch.randn(64, 151, 63, 63), torch.randn(1)"),
    ("fused-loss", "F.binary_cross_entropy_with_logits(x, torch.sigmoid(y))", WIDE),
    (
        "fused-loss",
        "F.cross_entropy(x, y, weight=torch.ones(21, device=x.device), label_smoothing=0.1)",
        "torch.randn(8, 21, 512, 512), torch.randint(0, 21, (8, 512, 512))",
    ),
    (
        "fused-loss",
        "F.cross_entropy(x, y)",
        "torch.randn(4096, 50257), torch.randint(0, 50257, (4096,))",
    ),
]


@pytest.mark.parametrize("skill, expression, inputs", FAMILIES)
def test_kernels_compile_without_spills(compiler, skill, expression, inputs):
    kernels = compiler.ask(after=rewritten(program(expression, inputs), skill))
    assert {kernel["arch"] for kernel in kernels} == {80, 90}
    assert all(kernel["spill_bytes"] == 0 for kernel in kernels), kernels


@pytest.mark.parametrize(
    "expression, inputs",
    [
        ("torch.softmax(x / 3.0 + y, dim=1)", "torch.randn(8, 256, 64), torch.randn(64)"),
        ("torch.softmax(x * y, dim=-1)", "torch.randn(512, 40000), torch.randn(40000)"),
        ("F.log_softmax(x * y, dim=-1)", "torch.randn(4, 400000), torch.randn(400000)"),
        ("torch.softmax(x * 0.3, dim=-1) + y", WIDE),
    ],
)
def test_a_softmax_subtracts_the_maximum_from_what_it_was_taken_of(compiler, expression, inputs):
    """Contracted to a multiply-add, ``x / 3.0 - row_max`` is not 0 where x is the maximum."""
    kernels = compiler.ask(after=rewritten(program(expression, inputs), "fused-row-softmax"))
    assert kernels
    assert all(kernel["contracted"] == 0 for kernel in kernels), kernels


def test_a_tile_of_rows_that_no_even_number_divides_walks_neighbors(compiler):
    """With its threads along the row, n_inner elements apart, it had 226 registers."""
    images = "torch.randn(64, 256, 63, 63, dtype=torch.bfloat16)"
    source = program("torch.softmax(x / 3.0, 1) * 2", images, arguments="x")
    kernels = compiler.ask(after=rewritten(source, "fused-row-softmax"))
    assert all(kernel["registers"] <= 96 for kernel in kernels), kernels


def test_what_takes_no_maximum_may_contract(compiler):
    kernels = compiler.ask(
        after=rewritten(program("torch.relu(x * y + 0.5)", WIDE), "fused-pointwise")
    )
    assert all(kernel["contracted"] > 0 for kernel in kernels), kernels
