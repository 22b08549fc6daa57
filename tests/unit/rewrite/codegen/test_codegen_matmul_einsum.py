"""Einsums as products: every order of the result's labels, laid out in memory as eager's result
is."""

import itertools

import pytest
from codegen_helpers import for_values, matches, program, rewritten

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

SIZES = {"a": 2, "b": 3, "c": 4, "h": 5, "w": 6, "d": 7, "k": 11, "j": 9, "i": 13, "n": 2}
PLAN = "pointers 32x64x64 warps 4 stages 2 splits 1"


def einsum(equation, tail="{}", operand=""):
    """A program around one einsum of tensors whose sizes all differ; ``operand``: labels of z in
    the tail."""
    names = [*equation.split("->")[0].split(","), *([operand] if operand else [])]
    inputs = ", ".join(f"torch.randn({sizes(name)})" for name in names)
    arguments = "x, y, z" if operand else "x, y"
    return program(tail.format(f"torch.einsum('{equation}', x, y)"), inputs, arguments=arguments)


def sizes(labels):
    return ", ".join("1" if label == "1" else str(SIZES[label]) for label in labels)


def agrees(interpreter, source, plan=PLAN):
    """Values against float64, and the very strides of eager."""
    after = for_values(source, "fused-matmul", plan=plan)
    found = interpreter.ask(before=source, after=after)
    assert not found["fell_back"] and all(found["same_kind"])
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 8 * eager + 2e-6
    for ours, eager in found["strides"]:
        assert ours == eager
    return after


ORDERED = [
    (given, "".join(out))
    for given, inner in (("nchw,cd", "c"), ("bij,bjk", "j"), ("bij,jk", "j"), ("cd,nhc", "c"))
    for out in itertools.permutations(sorted(set(given) - {",", inner}))
]


@pytest.mark.parametrize("given, out", ORDERED)
def test_every_order_of_the_result_lies_in_memory_as_eager_leaves_it(interpreter, given, out):
    agrees(interpreter, einsum(f"{given}->{out}", "torch.relu({} * 0.5)"))


@pytest.mark.parametrize(
    "equation",
    [
        "iaj,jbk->abik",
        "iaj,jbk->kbia",
        "abj,bjc->acb",
        "bihd,bkhd->bhik",
        "bihd,bkhd->bikh",
        "bhik,bkhd->bihd",
        "abcd,cdk->kba",
        "adcb,cbdk->ak",
        "abj,abk->jk",
        "ij,jk",
        "ji,jk",
        "ba,ib",
    ],
)
def test_several_labels_for_batch_rows_columns_or_inner(interpreter, equation):
    agrees(interpreter, einsum(equation))


@pytest.mark.parametrize(
    "equation, left, right",
    [
        ("...ij,jk->...ik", "abij", "jk"),
        ("...ij,jk->k...i", "abij", "jk"),
        ("...ij,...jk->...ik", "abij", "abjk"),
        ("a...j,...jk", "abj", "bjk"),
        ("...ij,...jk->...ik", "ij", "jk"),
        ("... j, j k -> ... k", "abcj", "jk"),
    ],
)
def test_an_ellipsis_stands_for_labels(interpreter, equation, left, right):
    inputs = f"torch.randn({sizes(left)}), torch.randn({sizes(right)})"
    agrees(interpreter, program(f"torch.einsum('{equation}', x, y)", inputs))


@pytest.mark.parametrize("plan", ["parts", "tiles"])
@pytest.mark.parametrize("splits", ["1", "2", "1 persistent"])
@pytest.mark.parametrize("equation", ["nchw,cd->ndhw", "bihd,bkhd->ibhk"])
def test_every_form_of_the_kernel(interpreter, equation, plan, splits):
    agrees(
        interpreter,
        einsum(equation, "{}.tanh()"),
        f"{plan} 32x64x64 warps 4 stages 2 splits {splits}",
    )


BROADCAST = ["d11", "1d11", "n111", "1hw", "11w", "n1hw", "nd11", "1", "1d1w"]


@pytest.mark.parametrize("operand", BROADCAST)
def test_operands_of_the_tail_follow_the_memory(interpreter, operand):
    after = agrees(interpreter, einsum("nchw,cd->ndhw", "{} * z + 1.0", operand))
    assert "+ 1.0" not in after.split("def forward")[1]  # in the kernel


def test_results_that_others_read_are_permuted_too(interpreter):
    agrees(interpreter, einsum("nchw,cd->ndhw", "(lambda h: (h, h.relu()))({})"))


def test_a_residual_that_lies_as_the_product_does_joins(interpreter):
    source = einsum("nchw,cd->ndhw", "{} + z.permute(0, 3, 1, 2)", "nhwd")
    (match,) = matches(source, "fused-matmul")[1]
    assert [node.name for node in match.nodes] == ["einsum", "add"]
    agrees(interpreter, source)


@pytest.mark.parametrize("tail", ["{} + z", "z + {}"])
def test_a_residual_that_lies_otherwise_does_not(interpreter, tail):
    source = einsum("nchw,cd->ndhw", tail, "ndhw")
    (match,) = matches(source, "fused-matmul")[1]
    assert [node.name for node in match.nodes] == ["einsum"]
    agrees(interpreter, source)


def test_a_result_whose_order_depends_on_the_batch_is_fixed_to_it():
    """Of one image eager multiplies the transposes, whose product is contiguous."""
    assert "x.shape == (2, 4, 5, 6)" in rewritten(einsum("nchw,cd->ndhw"), "fused-matmul")
    assert "x.shape[1:] == (4, 5, 6)" in rewritten(einsum("nchw,cd->nhwd"), "fused-matmul")


@pytest.mark.parametrize("half", ["half", "bfloat16"])
def test_16_bit_tensors_are_matched(half):
    inputs = f"torch.randn(2, 4, 5, 6).{half}(), torch.randn(4, 7).{half}()"
    assert matches(program("torch.einsum('nchw,cd->ndhw', x, y)", inputs), "fused-matmul")[1]


@pytest.mark.parametrize(
    "equation, left, right",
    [
        ("bij,bjk->bik", "1ij", "bjk"),  # torch broadcasts the batch
        ("bij,bjk->bik", "bij", "b1k"),
        ("...ij,...jk->...ik", "aij", "jk"),
        ("...ij,...jk->...ik", "aij", "1jk"),
        ("bij,bj->bi", "bij", "bj"),
        ("bi,bj->bij", "bi", "bj"),
        ("bij,jk->ik", "bij", "jk"),
        ("iij,jk->ik", "iij", "jk"),
        ("ij,jk->i", "ij", "jk"),
    ],
)
def test_near_misses_stay_silent(equation, left, right):
    inputs = f"torch.randn({sizes(left)}), torch.randn({sizes(right)})"
    source = program(f"torch.einsum('{equation}', x, y)", inputs)
    assert matches(source, "fused-matmul")[1] == []


def test_three_factors_are_left_alone():
    inputs = "torch.randn(3, 4), torch.randn(4, 5), torch.randn(5, 6)"
    source = program("torch.einsum('ab,bc,cd->ad', x, y, z)", inputs, arguments="x, y, z")
    assert matches(source, "fused-matmul")[1] == []


@pytest.mark.parametrize(
    "equation, left, right",
    [
        ("nchw,cd->ndhw", "16, 256, 64, 64", "256, 128"),
        ("bqhd,bkhd->bhqk", "8, 512, 16, 64", "8, 512, 16, 64"),
    ],
)
def test_default_plans_compile(compiler, equation, left, right):
    source = program(
        f"torch.einsum('{equation}', x, y) * 0.5", f"torch.randn({left}), torch.randn({right})"
    )
    kernels = compiler.ask(after=rewritten(source, "fused-matmul"))
    assert all(kernel["spill_bytes"] <= 256 for kernel in kernels if kernel["arch"] == 90), kernels
