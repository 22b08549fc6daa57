"""max(dim) and min(dim) with their places, in Triton's interpreter: values, ties, NaN and
gradients."""

import pytest
from codegen_helpers import as_close_as_eager, for_values, matches, program
from training_helpers import agrees as trained_agrees
from training_helpers import session

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

SHAPES = [("5, 37", 1), ("5, 37", 0), ("3, 19, 7", 1), ("3, 1, 7", -1), ("2, 5000", -1), ("301", 0)]
TIES = "torch.randint(0, 4, ({shape},)).to(torch.{dtype})"
SPECIAL = "torch.tensor([[1.0, float('nan'), 3.0, float('nan')], [2.0, 2.0, -float('inf'), 2.0]])"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape, dim", SHAPES)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_the_first_of_equals_is_found_with_its_place(interpreter, kind, shape, dim, dtype) -> None:
    inputs = TIES.format(shape=shape, dtype=dtype)
    source = program(f"tuple(x.{kind}({dim}, keepdim={dim == 1}))", inputs, arguments="x")
    as_close_as_eager(interpreter, source, for_values(source, "max-and-place"))


@pytest.mark.parametrize("kind", ["max", "min"])
def test_nan_comes_before_all(interpreter, kind) -> None:
    source = program(f"tuple(x.{kind}(-1))", SPECIAL, arguments="x")
    as_close_as_eager(interpreter, source, for_values(source, "max-and-place"))


@pytest.mark.parametrize("expression", [
    "x.max(1).values * 2", "x.min(0, keepdim=True)[0]", "(lambda m: (m[0], m[1]))(x.max(-1))[0]",
])  # fmt: skip
def test_the_gradient_goes_to_one_of_equals(trainer, expression) -> None:
    inputs = "torch.randint(0, 3, (6, 23)).half().requires_grad_()"
    source = program(expression, inputs, arguments="x").replace("half()", "to(torch.float16)")
    trained_agrees(trainer, source, "max-and-place")


def test_gradients_of_gradients(trainer) -> None:
    source = program("x.max(1)[0] ** 2", "torch.randn(6, 23, requires_grad=True)", arguments="x")
    trained_agrees(trainer, source, "max-and-place", twice=True)


@pytest.mark.parametrize("expression, inputs", [
    ("x.max(1)[0]", "torch.randn(5, 37)"),  # max-without-indices has it
    ("tuple(x.t().max(1))", "torch.randn(5, 37)"),
    ("tuple(x.max(1))", "torch.randint(0, 9, (5, 37))"),
    ("tuple(x.double().max(1))", "torch.randn(5, 37)"),
])  # fmt: skip
def test_what_is_left_alone(expression, inputs) -> None:
    assert matches(program(expression, inputs, arguments="x"), "max-and-place")[1] == []


def test_small_tensors_promise_nothing() -> None:
    opened = session(
        program("tuple(x.max(1))", "torch.randn(5, 37)", arguments="x"), "max-and-place", False
    )
    assert opened.capture().sites == ()
