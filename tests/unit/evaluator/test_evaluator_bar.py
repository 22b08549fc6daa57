"""What is too inaccurate to be judged: products in lower precision, other shapes, infinite
values."""

import copy

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.callees import Callee  # noqa: E402
from kernel_lsp.evaluator.running.bar import FAR, ExpectedResult  # noqa: E402

pytestmark = pytest.mark.torch


def call(callee, arguments):
    with torch.no_grad():
        return callee(callee.bind(arguments))


def bar(target, *inputs) -> tuple[ExpectedResult, torch.Tensor]:
    arguments = [list(inputs), {}]
    callee = Callee(target)
    wide = Callee(copy.deepcopy(target).double()) if isinstance(target, torch.nn.Module) else callee
    output = call(callee, arguments)
    return ExpectedResult(callee, wide, arguments, [output], call), output


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_product_in_another_order_may_be_judged_and_one_of_rounded_operands_may_not() -> None:
    weight = torch.nn.Linear(256, 64, bias=False)
    made, output = bar(weight, tensor(128, 256))
    x, w = tensor(128, 256), weight.weight.detach()
    halves = x[:, :128] @ w[:, :128].T + x[:, 128:] @ w[:, 128:].T
    assert made.problem([output]) == "" == made.problem([halves])
    rounded = (x.bfloat16() @ w.bfloat16().T).float()
    assert "error 0.00" in made.problem([rounded]) and "at most" in made.problem([rounded])


def test_a_product_of_operands_with_eleven_bits_may_not_be_judged() -> None:
    """Rounding to multiples of 2^-11 is about what TF32 does to numbers near 1."""
    left, right = tensor(64, 512), tensor(512, 64)
    made, _ = bar(torch.matmul, left, right)
    coarse = (left * 2048).round() / 2048
    assert made.problem([coarse @ right])
    assert made.problem([(left.double() @ right.double()).float()]) == ""


def test_results_of_another_kind_or_number_are_refused() -> None:
    made, output = bar(torch.sin, tensor(8))
    assert "shape" in made.problem([output[:4]]) and "dtype" in made.problem([output.double()])
    assert "2 results" in made.problem([output, output])


def test_whole_numbers_are_left_to_the_judge() -> None:
    made, output = bar(torch.argmax, tensor(8))
    assert made.problem([output + 1]) == ""


def test_a_program_that_names_its_dtype_is_compared_with_itself() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.eye(16, dtype=torch.float32)

    made, output = bar(program, tensor(4, 16))
    assert made.problem([output * (1 + FAR / 2)]) == ""
    assert "far" in made.problem([output * (1 + 2 * FAR)])


def test_what_is_not_finite_is_compared_without_an_oracle() -> None:
    made, output = bar(torch.log, torch.tensor([-1.0, 2.0, 3.0]))
    assert made.problem([output]) == "" and made.problem([output + 1])


def test_a_candidate_that_is_not_finite_where_the_program_is() -> None:
    made, output = bar(torch.sin, tensor(8))
    assert made.problem([output / 0.0])
