"""PReLU, GLU and their relatives as parts of pointwise kernels, in Triton's interpreter against
float64."""

import pytest
from codegen_helpers import as_close_as_eager, for_values, matches, program
from training_helpers import agrees as trained_agrees

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

SPECIAL = (
    'torch.tensor([[float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-30, -1e-30, -3.0]])'
)


def agrees(interpreter, source: str) -> str:
    after = for_values(source, "fused-pointwise")
    as_close_as_eager(interpreter, source, after)
    return after


@pytest.mark.parametrize("dtype", ["float", "bfloat16", "half"])
@pytest.mark.parametrize(
    "expression, shape, slopes",
    [
        ("F.prelu(x, y) * 2", "3, 5, 7", "1"),
        ("F.prelu(x, y) * 2", "3, 5, 7", "5"),
        ("F.prelu(x + 1, y) * 2", "3, 1, 7", "1"),
        ("torch.prelu(x * 2, y)", "6, 5", "5"),
        ("torch.prelu(x * 2, y)", "6", "1"),
        ("F.prelu(x[..., ::2], y.abs()) + 1", "2, 5, 3, 8", "5"),
        ("F.prelu(x.transpose(1, 2) + 1, y)", "2, 3, 5", "5"),
    ],
)
def test_prelu_joins_a_chain(interpreter, expression, shape, slopes, dtype) -> None:
    inputs = f"torch.randn({shape}).{dtype}(), torch.randn({slopes}).{dtype}()"
    assert "prelu" in agrees(interpreter, program(expression, inputs))


@pytest.mark.parametrize(
    "slope", ["torch.tensor([0.3])", "torch.tensor([-0.5])", "torch.full((8,), 0.3)"]
)
def test_prelu_of_special_numbers(interpreter, slope) -> None:
    agrees(interpreter, program("F.prelu(x, y) * 2", f"{SPECIAL}, {slope}"))


@pytest.mark.parametrize(
    "channels, shape", [("5", "3, 5, 7"), ("", "3, 5, 7"), ("5", "3, 5, 2, 1")]
)
def test_layers_of_prelu(interpreter, channels, shape) -> None:
    init = f"self.p = nn.PReLU({channels})"
    source = program("self.p(x) + x", f"torch.randn({shape})", arguments="x", init=init)
    agrees(interpreter, source)


def test_prelu_alone_is_left_to_torch() -> None:
    source = program("F.prelu(x, y)", "torch.randn(64, 64), torch.randn(64)")
    assert matches(source, "fused-pointwise")[1] == []


GATES = [
    "F.glu(x, -1) * 2",
    "F.glu(x, 1) + 1",
    "F.glu(x + 1, 0) * 0.5",
    "F.glu(x, -2) * F.glu(x, 1)",
    "torch.tanh(F.glu(x))",
    "(lambda a, b: a * torch.sigmoid(b))(*x.chunk(2, -1))",
    "(lambda a, b: F.silu(a) * b)(*x.chunk(2, dim=1))",
    "(lambda a, b: F.gelu(a) * b)(*x.split(x.shape[-1] // 2, -1))",
    "(lambda a, b: F.gelu(a, approximate='tanh') * b)(*torch.tensor_split(x, 2, dim=-1))",
    "F.relu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]",
    "(lambda a, b: F.silu(a) * b)(*x.unflatten(-1, (2, -1)).unbind(-2))",
]


@pytest.mark.parametrize("dtype", ["float", "bfloat16", "half"])
@pytest.mark.parametrize("shape", ["4, 6, 14", "2, 2, 2", "2, 38, 26"])
@pytest.mark.parametrize("expression", GATES)
def test_gates_in_many_spellings(interpreter, expression, shape, dtype) -> None:
    agrees(interpreter, program(expression, f"torch.randn({shape}).{dtype}()", arguments="x"))


def test_gates_of_special_numbers(interpreter) -> None:
    agrees(
        interpreter,
        program("F.glu(x, 0) * 2", f"torch.cat([{SPECIAL}, {SPECIAL}.flip(1)])", arguments="x"),
    )


def test_a_layer_of_glu_is_checked_by_the_guard(interpreter) -> None:
    init = "self.g = nn.GLU(1)"
    after = agrees(
        interpreter, program("self.g(x) * 2", "torch.randn(3, 6, 5)", arguments="x", init=init)
    )
    assert "self.g" in after and "torch.nn.GLU" in after


@pytest.mark.parametrize(
    "expression", ["F.glu(x, 1)", "F.glu(x, 1), F.glu(x, 0)", "F.glu(x.double(), 1) * 2"]
)
def test_a_glu_alone_is_left_to_torch(expression) -> None:
    assert (
        matches(program(expression, "torch.randn(64, 64)", arguments="x"), "fused-pointwise")[1]
        == []
    )


def test_looking_for_gates_changes_nothing() -> None:
    session, found = matches(
        program("F.glu(x, 1) * 2", "torch.randn(64, 64)", arguments="x"), "fused-pointwise"
    )
    assert [node.name for node in session.graph.nodes] == ["glu", "mul"]
    assert [match.label for match in found] == ["glu+mul"]


TRAINED = [
    ("F.prelu(x, self.w) * 2", "3, 5, 7", "self.w = nn.Parameter(torch.rand(5))"),
    ("self.p(x) * x", "3, 5, 7", "self.p = nn.PReLU()"),
    ("self.p(x * 2)", "6, 5", "self.p = nn.PReLU(5)"),
    ("F.glu(x, 1) * self.w", "3, 6, 7", "self.w = nn.Parameter(torch.rand(7))"),
    ("F.glu(x, -1).tanh()", "3, 6, 14", ""),
    ("(lambda a, b: F.silu(a) * b)(*x.chunk(2, -1))", "3, 6, 14", ""),
    ("(lambda a, b: F.gelu(a) * b)(*x.chunk(2, 1))", "3, 6, 14", ""),
]


@pytest.mark.parametrize("expression, shape, init", TRAINED)
def test_gradients_of_gates(trainer, expression, shape, init) -> None:
    source = program(
        expression, f"torch.randn({shape}, requires_grad=True)", arguments="x", init=init
    )
    trained_agrees(trainer, source, "fused-pointwise")


PARTS = [
    ("(lambda a, b: F.silu(a) * b)(*x.chunk(2, -1))", True),
    ("(lambda a, b: F.silu(a) * b)(*(x * 2).chunk(2, -1))", True),
    ("(lambda a, b, c: a * b * c.tanh())(*x.split(4, -1))", True),
    ("(lambda a, b: (F.silu(a) * b, b.mean(1)))(*x.chunk(2, -1))", True),
    ("(lambda a, b: F.silu(a) * b)(*x.transpose(0, 1).chunk(2, -1))", False),
    ("(lambda a, b, c: F.silu(a) * b)(*x.chunk(3, -1))", False),
    ("(lambda a, b: a + b.tanh())(*x.chunk(2, -1))", False),
    ("(lambda a, b: F.silu(a) * b)(*x.chunk(2, 1))", False),
]
"""With whether the backward writes into parts of one gradient."""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("expression, whole", PARTS)
def test_gradients_of_parts_are_written_into_the_whole(trainer, expression, whole, dtype) -> None:
    inputs = f"torch.randn(3, 6, 12, dtype=torch.{dtype}, requires_grad=True)"
    source = program(expression, inputs, arguments="x")
    after = trained_agrees(trainer, source, "fused-pointwise", twice=dtype == "float32")
    assert ("memory_format=torch.contiguous_format" in after) == whole
