"""Pointwise kernels over transposed, sliced, expanded and channels-last tensors, in Triton's
interpreter."""

import pytest
from codegen_helpers import as_close_as_eager, for_values, matches, program, rewritten
from training_helpers import agrees as trained_agrees

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def pair(left: str, right: str, dtype: str = "float32") -> str:
    return f"torch.randn({left}, dtype=torch.{dtype}), torch.randn({right}, dtype=torch.{dtype})"


WALKS = [
    ("F.silu(x.transpose(1, 2) * y[:, None] + 1)", "3, 5, 7", "7"),
    ("F.silu(x.transpose(1, 2) * y[:, None] + 1)", "3, 1, 7", "7"),
    ("(x.t() + 1).relu() * y", "5, 9", "5"),
    ("(x.mT * y).tanh() + y", "2, 5, 9", "9, 1"),
    ("(x.permute(0, 2, 3, 1) * y).relu() + 1", "2, 5, 3, 4", "5"),
    ("(x.permute(2, 3, 0, 1) * y).relu() + y[0]", "2, 5, 3, 1", "2, 5"),
    ("(x.movedim(1, -1) + y).sigmoid() * x.movedim(1, -1)", "2, 6, 37", "6"),
    ("(lambda h: (h, h.relu()))(x.t() * 2 + y.t())", "6, 14", "6, 14"),
    ("(x + y.expand_as(x)).relu() * 2", "3, 6, 14", "14"),
    ("(x * y.expand(3, 6, 14)).relu() * 2", "3, 6, 14", "3, 1, 14"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("expression, left, right", WALKS)
def test_a_chain_walks_the_memory_of_its_results(
    interpreter, expression, left, right, dtype
) -> None:
    source = program(expression, pair(left, right, dtype))
    after = for_values(source, "fused-pointwise")
    assert "_stride_" not in after
    as_close_as_eager(interpreter, source, after)


def test_results_are_laid_out_as_eager_lays_them_out() -> None:
    after = rewritten(program("(x.t() + 1).relu() * y", pair("5, 9", "5")), "fused-pointwise")
    assert "fused_add_relu_mul(x, y).t" in after or "mul_fused.transpose(0, 1)" in after
    assert ".contiguous().t" not in after


STEPS = [
    ("(x[:, ::2] * y[:, ::2]).tanh()", "5, 13", "5, 13"),
    ("(x[::3] * y[1::3]).tanh()", "13", "14"),
    ("(x[..., :6] * y[..., 6:]).tanh()", "3, 5, 12", "3, 5, 12"),
    ("(x[:, 1:4] + y[1]).tanh()", "3, 5, 12", "2, 12"),
    ("(x.transpose(0, 1)[:, 1:] * 2 + y).relu()", "4, 7", "7, 3"),
    ("x.select(1, 2) * 2 + y.select(1, 0)", "3, 4, 5", "3, 2, 5"),
    ("(x.unfold(1, 3, 2) + y).relu()", "4, 9", "3"),
    ("torch.diagonal(x) * 2 + y", "9, 9", "9"),
    ("(x.transpose(1, 2) + y).relu()", "2, 5, 3", "2, 3, 5"),
    ("(x.expand(4, 7, 5) * 2 + y).relu()", "7, 5", "5"),
    ("(x[:, None].expand(-1, 4, 5) * 2).relu() + y", "3, 5", "5"),
    ("(x.expand(4, 7, 5) * 2).relu() * y[0]", "7, 1", "5"),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("expression, left, right", STEPS)
def test_gaps_are_stepped_over(interpreter, expression, left, right, dtype) -> None:
    source = program(expression, pair(left, right, dtype)).replace("torch.float16", "torch.half")
    after = for_values(source, "fused-pointwise")
    assert "_stride_0" in after
    as_close_as_eager(interpreter, source, after)


HEADS = "(lambda q: {})(x.view(2, 5, 3, 2, 12).permute(2, 0, 3, 1, 4)[1])"
BY_ROWS = [
    ("fused-norm", HEADS.format("F.layer_norm(q, (12,), y, y)"), "2, 5, 72", "12"),
    ("fused-norm", HEADS.format("F.rms_norm(q, (12,), y, 1e-6) * 0.5"), "2, 5, 72", "12"),
    ("fused-norm", "F.rms_norm(x[:, 4:28].view(7, 2, 12), (12,), y)", "7, 36", "12"),
    ("fused-norm", "F.layer_norm(x[:, ::2], (6, 7), y)", "3, 12, 7", "6, 7"),
    ("fused-row-softmax", "torch.softmax(x.transpose(0, 1)[..., 3:] * y, -1)", "5, 3, 21", "18"),
    ("fused-reduction", "(x.transpose(1, 2) * y).square().mean(-1)", "3, 19, 5, 7", "7"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("skill, expression, left, right", BY_ROWS)
def test_rows_are_read_where_they_lie(interpreter, skill, expression, left, right, dtype) -> None:
    source = program(expression, pair(left, right, dtype))
    after = for_values(source, skill)
    assert "_stride_0" in after
    as_close_as_eager(interpreter, source, after)


def test_rows_whose_elements_lie_apart_are_left_alone() -> None:
    source = program("F.layer_norm(x.transpose(1, 2), (45,), y)", pair("4, 45, 37", "45"))
    assert matches(source, "fused-norm")[1] == []


TILES = [
    ("F.gelu(x.transpose(1, 2) + y) * 0.5", "2, 37, 45", "2, 45, 37"),
    ("F.gelu(x.t() + y) * y", "37, 45", "45, 37"),
    ("x.transpose(1, 2).contiguous() * 2", "2, 37, 45", "1"),
    ("(x.transpose(1, 2).contiguous() + y).relu()", "2, 37, 45", "37"),
    ("(x.transpose(1, 2).contiguous() + y).relu()", "2, 37, 45", "45, 1"),
    ("(x.permute(0, 2, 3, 1).contiguous() + y).relu()", "2, 37, 4, 9", "37"),
    ("(x.permute(2, 0, 1) + y).relu() * y[:1]", "5, 17, 19", "19, 5, 17"),
    ("(x.permute(1, 2, 0) + y).relu() * y[:, :, :1]", "33, 5, 18", "5, 18, 33"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("expression, left, right", TILES)
def test_what_is_read_along_two_dimensions_comes_in_tiles(
    interpreter, expression, left, right, dtype
) -> None:
    source = program(expression, pair(left, right, dtype))
    after = for_values(source, "fused-pointwise")
    assert "BLOCK_ROWS" in after
    as_close_as_eager(interpreter, source, after)


CHANNELS_LAST = ".to(memory_format=torch.channels_last)"


@pytest.mark.parametrize(
    "expression, inputs",
    [
        ("(x * y).sigmoid() * x", f"torch.randn(2, 5, 3, 4){CHANNELS_LAST}, torch.randn(5, 1, 1)"),
        ("(x + y).relu() * 2", f"torch.randn(2, 5, 3, 1){CHANNELS_LAST}, torch.randn(2, 1, 3, 1)"),
        (
            "(x + y).relu() * 2",
            f"torch.randn(2, 17, 5, 7){CHANNELS_LAST}, torch.randn(2, 17, 5, 7)",
        ),
        (
            "(x + y).relu() * 2",
            f"torch.randn(1, 5, 3, 4){CHANNELS_LAST}, torch.randn(1, 5, 3, 4){CHANNELS_LAST}",
        ),
    ],
)
def test_channels_last_stays_channels_last(interpreter, expression, inputs) -> None:
    source = program(expression, inputs)
    after = for_values(source, "fused-pointwise")
    assert "permute(0, 3, 1, 2)" in after or "transpose(1, 2)" in after
    as_close_as_eager(interpreter, source, after)


@pytest.mark.parametrize(
    "proved, called",
    [
        # Inputs that are not contiguous to begin with may be laid out in another way in another
        # call.
        (f"torch.randn(2, 5, 3, 4){CHANNELS_LAST}", "torch.randn(2, 5, 3, 4)"),
        (f"torch.randn(2, 5, 3, 4){CHANNELS_LAST}", "torch.randn(2, 5, 4, 3).transpose(2, 3)"),
        ("torch.randn(2, 5, 4, 6)[..., ::2].transpose(2, 3)", "torch.randn(2, 5, 3, 4)"),
        ("torch.randn(2, 5, 3, 8)[..., ::2]", "torch.randn(2, 4, 3, 5).transpose(1, 3)"),
        ("torch.randn(2, 5, 3, 8)[..., ::2]", "torch.randn(1, 5, 3, 1).expand(2, 5, 3, 4)"),
        ("torch.randn(2, 5, 3, 8)[..., ::2]", "torch.randn(7, 5, 3, 8)[..., 1::2]"),
        ("torch.randn(2, 5, 3, 8)[..., ::2]", "torch.randn(0, 5, 3, 4)"),
    ],
)
def test_another_layout_in_another_call_is_right_too(interpreter, proved, called) -> None:
    expression = "(x * 2 + 1).sigmoid() * x"
    after = rewritten(program(expression, proved, arguments="x"), "fused-pointwise")
    as_close_as_eager(interpreter, program(expression, called, arguments="x"), after)


@pytest.mark.parametrize("view", ["x.t()", "x.t().contiguous()"])
def test_a_batch_that_ends_up_last_is_pinned(view) -> None:
    """With a batch of 1 nothing would be transposed."""
    expression = f"({view} * 2 + y).relu()"
    after = rewritten(
        program(expression, "torch.randn(3, 9), torch.randn(9, 1)"), "fused-pointwise"
    )
    assert "x.shape == (3, 9)" in after


@pytest.mark.parametrize("batch", [1, 5])
def test_another_batch_takes_the_fast_path(interpreter, batch) -> None:
    proved, called = (
        program("F.silu(x.transpose(1, 2) + y) * 2", f"torch.randn({n}, 17, 19), torch.randn(17)")
        for n in (3, batch)
    )
    as_close_as_eager(interpreter, called, rewritten(proved, "fused-pointwise"))


@pytest.mark.parametrize(
    "expression",
    [
        "(x.t() * 2 + y.t(), x * 2)",  # nothing to share
        "x.t().contiguous()",
        "x.t() * 2",
        "(x.t().double() * 2).relu()",
    ],
)
def test_what_is_one_operation_or_of_another_type_is_left_alone(expression) -> None:
    found = matches(program(expression, pair("64, 64", "64, 64")), "fused-pointwise")[1]
    assert all(
        len([n for n in match.nodes if "mul" in n.name or "add" in n.name]) == 2 for match in found
    )
    assert not any("double" in match.label for match in found)


def test_two_that_are_expanded_measure_each_other(interpreter) -> None:
    source = program("(x.expand(4, 7, 5) * y.expand(4, 7, 5)).relu()", pair("7, 1", "4, 1, 5"))
    as_close_as_eager(interpreter, source, for_values(source, "fused-pointwise"))


@pytest.mark.parametrize("dim", [0, -1])
def test_a_sum_over_what_is_expanded_is_left_alone(dim) -> None:
    source = program(f"(x.expand(4, 7, 5) * 2).sum({dim})", "torch.randn(7, 5)", arguments="x")
    assert matches(source, "fused-reduction")[1] == []


def test_results_in_two_layouts_do_not_share_a_kernel() -> None:
    source = program("(lambda h: (h, h + y))(x.t() * 2)", pair("64, 32", "32, 64"))
    for match in matches(source, "fused-pointwise")[1]:
        assert len({node.meta["val"].stride() for node in match.nodes}) == 1


TRAINED = [
    ("F.silu(x.transpose(1, 2) * 3) * y", "3, 5, 7", "7, 5"),
    ("F.silu(x.transpose(1, 2) * y)", "3, 5, 7", "3, 7, 5"),
    ("F.silu(x.transpose(1, 2) + y) * y", "2, 17, 19", "2, 19, 17"),
    ("(x.permute(0, 2, 3, 1) * y).tanh()", "2, 5, 3, 4", "5"),
    ("(x[:, ::2] * y[:, ::2]).tanh()", "5, 13", "5, 13"),
    ("(x[:, ::2] * y).tanh()", "5, 14", "7"),
    ("(x[..., :6] * 2 + y).tanh()", "3, 5, 12", "5, 1"),
    ("(lambda a, b: F.silu(a) * b + y)(*x.chunk(2, -1))", "4, 14", "7"),
]


@pytest.mark.parametrize("expression, left, right", TRAINED)
def test_gradients_through_layouts(trainer, expression, left, right) -> None:
    inputs = f"torch.randn({left}, requires_grad=True), torch.randn({right}, requires_grad=True)"
    trained_agrees(trainer, program(expression, inputs), "fused-pointwise")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("skill, expression, left, right", BY_ROWS)
def test_gradients_of_rows_that_are_read_where_they_lie(
    trainer, skill, expression, left, right, dtype
) -> None:
    rest = f"dtype=torch.{dtype}, requires_grad=True"
    inputs = f"torch.randn({left}, {rest}), torch.randn({right}, {rest})"
    assert "_stride_0" in trained_agrees(trainer, program(expression, inputs), skill)


def test_gradients_of_gradients_through_a_transpose(trainer) -> None:
    inputs = "torch.randn(3, 5, 7, requires_grad=True), torch.randn(3, 7, 5, requires_grad=True)"
    source = program("torch.tanh(x.transpose(1, 2) * y) * y", inputs)
    trained_agrees(trainer, source, "fused-pointwise", twice=True)


@pytest.mark.parametrize(
    "expression, skill, inputs, others",
    [
        (
            "((x[None] - x[:, None]) ** 2).sum(-1) + 1",
            "fused-reduction",
            "torch.randn(7, 3)",
            "13, 3",
        ),
        ("((x[None] - x[:, None]) ** 2).sum(-1)", "fused-reduction", "torch.randn(3, 3)", "5, 3"),
        ("(x[None] - x[:, None]).abs().amax(-1)", "fused-reduction", "torch.randn(5, 2)", "1, 2"),
        (
            "F.group_norm(x * x.mean(0)[:, :1], 2).relu()",
            "fused-norm",
            "torch.randn(3, 4, 1, 5)",
            "7, 4, 1, 5",
        ),
        (
            "F.group_norm(x * self.w, 2).relu()",
            "fused-norm",
            "torch.randn(3, 4, 1, 1)",
            "7, 4, 1, 1",
        ),
    ],
)
def test_a_result_that_no_operand_spans_has_the_size_of_another_batch(
    interpreter, expression, skill, inputs, others
) -> None:
    """Its size was a number: of another batch the kernel wrote past its end."""
    init = "self.w = nn.Parameter(torch.randn(1, 4, 5, 6))" if "self.w" in expression else ""
    after = rewritten(program(expression, inputs, arguments="x", init=init), skill)
    assert "x.shape == (" not in after
    for call in (inputs, f"torch.randn({others})"):
        as_close_as_eager(interpreter, program(expression, call, arguments="x", init=init), after)
