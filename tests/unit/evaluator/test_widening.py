"""What a program that names its types calculates in, where it is run in float64."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from kernel_lsp.evaluator.judging.widening import in_float64, names_types
from kernel_lsp.records import Program, TargetKind

pytestmark = pytest.mark.torch
WIDE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a method": lambda x: x.float() - x.float().mean(),
    "a type": lambda x: x.to(torch.float32).sin(),
    "a type and a device": lambda x: x.to("cpu", torch.float32),
    "of what it makes": lambda x: torch.zeros_like(x, dtype=torch.float32).index_add(
        0, torch.arange(4), x.float()
    ),
    "of a sum": lambda x: x.sum(-1, dtype=torch.float32),
    "of a softmax": lambda x: F.softmax(x, -1, dtype=torch.float32),
    "of Python's numbers": lambda x: torch.zeros(4, 8).add_(x) + torch.tensor(0.5),
    "of whole numbers": lambda x: torch.arange(8).float() / 3 + x,
    "in its own type again": lambda x: x.float().to(torch.bfloat16) * 1.001,
    "of a loss": lambda x: F.cross_entropy(x.float(), torch.arange(4)),
}


@pytest.mark.parametrize("name", WIDE)
def test_what_asks_for_float32_is_float64(name: str) -> None:
    values = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with in_float64({torch.bfloat16, torch.int64}, named=True):
        made = WIDE[name](values)
    assert made.dtype is torch.float64
    assert torch.get_default_dtype() is torch.float32


class Doubled(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return x.float() * 2

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grad: torch.Tensor) -> torch.Tensor:
        return (grad[0].float() / 3).float() * 6


def test_a_backward_pass_that_names_types_is_float64_too() -> None:
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with in_float64({torch.bfloat16}, named=True):
        (grad,) = torch.autograd.grad(Doubled.apply(x).sum(), x)
    assert torch.equal(grad, torch.full_like(x, 1 / 3) * 6)


def test_roundings_that_are_meant_are_made() -> None:
    x = torch.full((3,), 1 / 3, dtype=torch.float64)
    with in_float64({torch.float32}, named=True):
        assert x.to(torch.bfloat16).dtype is torch.bfloat16
        assert x.half().float().dtype is torch.float64
        assert x.long().dtype is torch.int64
    with in_float64({torch.bfloat16, torch.float32}, named=True):
        assert x.bfloat16().dtype is torch.bfloat16
    with in_float64({torch.float64}, named=True):
        assert x.float().dtype is torch.float32


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import torch\ndef f(x): return torch.relu(x)", False),
        ("import torch\ndef f(x): return x.float()", True),
        ("import torch\ndef f(x): return x.to(torch.complex64)", True),
        ("import torch\nfrom mine import f", True),
    ],
)
def test_a_program_that_names_no_type_is_not_watched(source: str, named: bool) -> None:
    assert names_types(Program(source=source, entry="f", kind=TargetKind.FUNCTION)) is named
