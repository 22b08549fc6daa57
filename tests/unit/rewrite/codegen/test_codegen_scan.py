"""fused-scan: cumulative sums and products with what stands around them, and what it must leave
alone."""

import pytest
from codegen_helpers import for_values, matches, program, rewritten
from example_helpers import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from training_helpers import agrees as trained_agrees
from training_helpers import session

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

PAIR = "torch.randn(5, 37), torch.randn(5, 37)"
CUBE = "torch.randn(3, 6, 7), torch.randn(7)"
LONG = "torch.randn(2, 40000), torch.randn(2, 1)"
CASES = [
    ("torch.cumsum(x, 1) - x + 0 * y", PAIR, {}),
    ("torch.cumsum(x, 0) * y", PAIR, {}),
    ("torch.cumprod(x * 0.1 + 1, 1) + y", PAIR, {}),
    ("x.flip(1).cumsum(1).flip(1) + y", PAIR, {}),
    ("torch.cumsum(x * (y > 0), 1)", PAIR, {}),
    ("torch.cumsum(x, 1) - x + y", "torch.randn(3, 3000), torch.randn(3, 1)", {"BLOCK_SIZE": 2048}),
    ("x.flip(1).cumsum(1).flip(1) + y", "torch.randn(3, 5000), torch.randn(5000)", {"BLOCK_SIZE": 2048}),
    ("x.flip(0).cumsum(0).flip(0) * y", "torch.randn(70, 6, 7), torch.randn(7)", {}),
    ("torch.cumsum(torch.cat([torch.zeros(3, 1, 7), x * 2], 1), 1) + y", CUBE, {}),
    ("torch.cumsum(torch.cat([torch.zeros(3, 2), x], 1), "
     "1) + y[1]", "torch.randn(3, 6), torch.randn(7)", {}),
    ("F.pad(x * 2, (0, 0, 2, 0)).cumsum(1) + y", CUBE, {}),
    ("F.pad(x[:, :-1], (1, 0)).cumsum(1) + y", PAIR, {}),
    ("torch.cat([torch.zeros(5, 1), x[:, :-1]], 1).cumsum(1) + y", PAIR, {}),
    ("torch.cumsum(x > 0, 1), y", PAIR, {}),
    ("torch.cumsum((x * 10).int(), 0), y", "torch.randn(70, 6, 7), torch.randn(7)", {}),
    ("torch.cumsum(x, 1) + y", LONG, {}),
    ("x.flip(1).cumsum(1).flip(1) + y", LONG, {}),
    ("torch.cumprod(1 + x * 0.001, 1) + y", LONG, {}),
    ("torch.cumsum(x, 0) + y", "torch.randn(5000).bfloat16(), torch.randn(1).bfloat16()", {}),
    ("torch.cumsum(x.half(), 1), y", PAIR, {}),
]  # fmt: skip


def agrees(interpreter, source, **parameters) -> None:
    """As close to float64 as eager is, up to the interpreter's rounding; NaN at the same places."""
    found = interpreter.ask(before=source, after=for_values(source, "fused-scan", **parameters))
    assert not found["fell_back"]
    assert all(found["same_kind"])
    slack = 2**-8 if "bfloat16" in source else 3e-6
    assert all(
        ours <= 2 * eager + slack for ours, eager in zip(found["ours"], found["eager"], strict=True)
    )


@pytest.mark.parametrize("expression, inputs, parameters", CASES)
def test_scans_agree_with_torch(interpreter, expression, inputs, parameters):
    agrees(interpreter, program(expression, inputs), **parameters)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "expression, shape",
    [
        ("torch.cumsum(x, -1)", "9, 33"),
        ("torch.cumsum(x, 1).exp() * x", "3, 37, 7"),  # neighbors keep their own kernels
        ("x.flip(-1).cumsum(-1).flip(-1)", "5, 67"),
        ("torch.cumsum(x, -1)", "1, 40000"),  # one long line, by several programs
        ("torch.cumsum(x, 0).sum()", "5, 6"),  # an expanded gradient
    ],
)
def test_sums_train(trainer, expression, shape, dtype):
    inputs = f"(torch.randn({shape}) * 0.01).to(torch.{dtype}).requires_grad_()"
    after = trained_agrees(trainer, program(expression, inputs, arguments="x"), "fused-scan")
    assert "flip(" not in after.split("def _forward_eager")[0].replace("torch.flip(", "")


def test_sums_that_nothing_flows_through_need_no_backward() -> None:
    inputs = "torch.randn(64, 4096, requires_grad=True)"
    opened = session(program("torch.cumsum(x > 0, 1) * x", inputs, arguments="x"), "fused-scan")
    (found,) = opened.rewrites["fused-scan"].match(opened.graph)
    assert found.differentiable and [node.name for node in found.nodes] == ["cumsum"]


def test_products_have_no_backward() -> None:
    source = program("torch.cumprod(x, 1)", "torch.rand(64, 4096).requires_grad_()", arguments="x")
    opened = session(source, "fused-scan")
    assert not opened.rewrites["fused-scan"].match(opened.graph)


def test_nan_and_infinity_spread_as_in_torch(interpreter):
    inputs = (
        "torch.tensor([[1.0, float('inf'), 2.0, float('-inf'), 3.0], [1.0, float('nan'), 2.0, "
        "3.0, -0.0]]),"
        " torch.ones(5)"
    )
    agrees(interpreter, program("torch.cumsum(x, 1) * y", inputs))
    agrees(interpreter, program("x.flip(1).cumprod(1).flip(1) * y", inputs))


@settings(max_examples=examples(8), deadline=None)
@given(shape=st.lists(st.integers(2, 9), min_size=1, max_size=4), data=st.data())
def test_any_dimension_of_any_shape(shape, data):
    """The kernel's sizes come from the operand; here only that source is made, for whatever
    shape."""
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    source = program(
        f"torch.cumsum(x * 2, {dim}) + 1", f"torch.randn({tuple(shape)})", arguments="x"
    )
    text = rewritten(source, "fused-scan")
    assert "def fused_mul_cumsum_add(x):" in text
    assert f".shape[{dim % len(shape)}]" in text


LEFT_ALONE = [
    ("torch.cumsum(x, 1, dtype=torch.float64)", PAIR),
    ("torch.cumsum(x.half(), 1, dtype=torch.float32)", PAIR),
    ("x.flip(0).cumsum(1).flip(0).cummax(1).values", PAIR),
    ("torch.logcumsumexp(x, 1)", PAIR),
    ("torch.cumsum(x.double(), 1)", PAIR),
]


@pytest.mark.parametrize("expression, inputs", LEFT_ALONE)
def test_other_scans_are_left_alone(expression, inputs):
    found = matches(program(expression, inputs), "fused-scan")[1]
    assert all(
        "reverse" not in match.summary and "from the end" not in match.summary for match in found
    )
    if "flip" not in expression:
        assert found == []


@pytest.mark.parametrize(
    "expression",
    [
        "x.flip(1).cumsum(1)",  # one flip only
        "x.flip(1).cumsum(1).flip(0)",  # the flip back is along another dimension
        "x.flip(0).cumsum(1).flip(0)",  # the scan is
        "(lambda h: (h.flip(1), h))(x.flip(1).cumsum(1))",  # the sum itself is returned
    ],
)
def test_only_two_equal_flips_turn_the_scan_around(expression):
    for match in matches(program(expression, PAIR), "fused-scan")[1]:
        assert "from the end" not in match.summary


def test_zeros_in_front_must_be_zeros():
    for front in ("torch.ones(3, 1)", "y[:3, :1]"):
        source = program(
            f"torch.cumsum(torch.cat([{front}, x], 1), 1)", "torch.randn(3, 6), torch.randn(5, 5)"
        )
        assert all("cat" not in match.label for match in matches(source, "fused-scan")[1])


@pytest.mark.parametrize(
    "padded, folded",
    [
        ("F.pad(x, (2, 0))", True),
        ("F.pad(x, (1, 0), value=1.0)", False),
        ("F.pad(x, (1, 0), mode='replicate')", False),
        ("F.pad(x, (1, 1))", False),
        ("F.pad(x, (0, 0, 1, 0))", False),  # along another dimension
        ("F.pad(x[:, :-1], (1, 0))", False),  # what is behind the zeros is no whole tensor
    ],
)
def test_a_pad_with_zeros_in_front_is_no_work(padded: str, folded: bool) -> None:
    source = program(f"{padded}.cumsum(1)", "torch.randn(3, 6)", arguments="x")
    (match,) = matches(source, "fused-scan")[1]
    assert ("pad" in match.label) is folded


def test_a_product_from_the_front_is_not_shifted_by_zeros():
    source = program(
        "torch.cumprod(torch.cat([torch.zeros(3, 1), x], 1), 1)", "torch.randn(3, 6)", arguments="x"
    )
    assert all("cat" not in match.label for match in matches(source, "fused-scan")[1])


def test_what_others_read_is_still_written(interpreter):
    """The masked tensor is returned too: it stays an operand of the kernel."""
    source = program("(lambda h: (h, torch.cumsum(h, 1) * 2))(x * y)", PAIR)
    agrees(interpreter, source)


def test_an_operand_that_is_not_contiguous_is_not_copied_in_secret():
    source = program("torch.cumsum(x.transpose(0, 1), 1)", "torch.randn(64, 32)", arguments="x")
    assert matches(source, "fused-scan")[1] == []


@pytest.mark.parametrize(
    "expression, inputs",
    [
        ("torch.cumsum(x * y, 1)", "torch.randn(2048, 16384), torch.randn(16384)"),
        ("x.flip(1).cumsum(1).flip(1) * y", "torch.randn(2048, 8192), torch.randn(8192)"),
        ("torch.cumprod(x, 1) * y", "torch.randn(16, 1048576), torch.randn(16, 1)"),
        ("torch.cumsum(x, 1) * y", "torch.randn(64, 512, 1024), torch.randn(1024)"),
    ],
)
def test_scans_compile_without_spills(compiler, expression, inputs):
    kernels = compiler.ask(after=rewritten(program(expression, inputs), "fused-scan"))
    assert {kernel["arch"] for kernel in kernels} == {80, 90}
    assert all(kernel["spill_bytes"] == 0 for kernel in kernels), kernels
