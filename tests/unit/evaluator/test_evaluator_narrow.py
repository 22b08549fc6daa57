"""Results of 16 bits: what rounding explains passes, in another order too; what it does not is
refused."""

import pytest
import torch
import torch.nn.functional as F

from kernel_lsp.evaluator.judging import numerics
from kernel_lsp.evaluator.judging.inputs import EXTREME, INFINITE, NOT_A_NUMBER

pytestmark = pytest.mark.torch
ROWS, COLUMNS = 256, 512


def normalized(x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight * F.silu(gate)


def drawn(dtype: torch.dtype, tails: bool) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(3)
    x, gate = (torch.randn(ROWS, COLUMNS, generator=draw) for _ in range(2))
    if tails:
        x = x * torch.exp(torch.randn(ROWS, COLUMNS, generator=draw))
    return x.to(dtype), torch.randn(COLUMNS, generator=draw).to(dtype), gate.to(dtype)


def in_float32(*inputs: torch.Tensor) -> torch.Tensor:
    return normalized(*(t.float() for t in inputs)).to(inputs[0].dtype)


def otherwise(x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """As many roundings, at other places."""
    return (x * (weight * F.silu(gate))) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def judged(candidate: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> numerics.Comparison:
    oracle, reference = normalized(*(t.double() for t in inputs)), normalized(*inputs)
    draw = torch.Generator().manual_seed(5)
    moved = tuple(
        normalized(*(numerics.nudge(t.double(), t.dtype, draw) for t in inputs)) for _ in range(2)
    )
    return numerics.compare(candidate, reference, oracle, moved)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("honest", [in_float32, otherwise])
def test_honest_roundings_pass(dtype: torch.dtype, tails: bool, honest: object) -> None:
    inputs = drawn(dtype, tails)
    found = judged(honest(*inputs), inputs)  # type: ignore[operator]
    assert found.passed, found.detail


def scaled(values: torch.Tensor) -> torch.Tensor:
    return (values.float() * 1.009).to(values.dtype)


def some_zeros(values: torch.Tensor) -> torch.Tensor:
    made = values.clone()
    made.view(-1)[torch.randperm(made.numel(), generator=torch.Generator().manual_seed(7))[:12]] = 0
    return made


def one_row(values: torch.Tensor) -> torch.Tensor:
    made = values.clone()
    made[77] = (made[77].float() * 1.04).to(made.dtype)
    return made


def one_column(values: torch.Tensor) -> torch.Tensor:
    made = values.clone()
    made[:, 11] = (made[:, 11].float() * 1.04).to(made.dtype)
    return made


@pytest.mark.parametrize("wrong", [scaled, some_zeros, one_row, one_column])
def test_what_rounding_does_not_explain_is_refused(wrong: object) -> None:
    inputs = drawn(torch.bfloat16, tails=False)
    assert not judged(wrong(in_float32(*inputs)), inputs).passed  # type: ignore[operator]


def test_a_whole_that_is_too_large_is_said_to_be() -> None:
    inputs = drawn(torch.bfloat16, tails=False)
    right = in_float32(*inputs)
    larger, smaller = ((right.float() * by).bfloat16() for by in (1.009, 0.991))
    for wrong in (larger, smaller):
        problem = judged(wrong, inputs).detail
        assert problem.startswith("the whole is off by a factor of 1.0"), problem


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "family, reference, candidate, passes",
    [
        (INFINITE, [0.0, 1.0], [NAN, 1.0], False),  # relu(-inf) as x * (x > 0)
        (INFINITE, [INF, 1.0], [NAN, 1.0], True),  # a difference of two terms
        (INFINITE, [INF, 1.0], [-INF, 1.0], False),
        (INFINITE, [INF, 1.0], [5.0, 1.0], False),
        (INFINITE, [NAN, 1.0], [INF, 1.0], True),  # there is no answer
        (NOT_A_NUMBER, [NAN, 1.0], [0.0, 1.0], False),
        (NOT_A_NUMBER, [NAN, NAN], [0.0, NAN], True),  # a product with zeros was left out
        (NOT_A_NUMBER, [NAN, 1.0], [NAN, NAN], False),
        (EXTREME, [1e38, 1.0], [INF, 1.0], True),  # the terms in another order
        (EXTREME, [3.0, 1.0], [INF, 1.0], False),
    ],
)
def test_values_at_the_edges(family: str, reference: list, candidate: list, passes: bool) -> None:
    r = torch.tensor(reference)
    assert numerics.compare(torch.tensor(candidate), r, r.double(), edge=family).passed is passes


def test_what_overflows_in_the_reference_alone_may_be_either() -> None:
    reference, oracle = torch.tensor([INF, 1.0]), torch.tensor([1e30, 1.0], dtype=torch.float64)
    assert numerics.compare(torch.tensor([1e30, 1.0]), reference, oracle, edge=EXTREME).passed


def test_what_float32_leaves_where_terms_cancel_is_no_error() -> None:
    """The gradient of a softmax that one element dominates: by torch, and by hand."""
    refused = []
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(5, 257, generator=draw).bfloat16().float()
        x = (x * torch.exp(torch.randn(5, 257, generator=draw)) * 3).bfloat16()
        g = torch.randn(5, 257, generator=draw).bfloat16()
        oracle, reference, candidate = gradients_of_softmax(x, g)
        problem = numerics.compare(candidate, reference, oracle, constants=2.0).detail
        refused += [(seed, problem)] if problem else []
    assert not refused


def gradients_of_softmax(
    x: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """In float64, by torch, and by autograd through another spelling."""

    def gradient(x: torch.Tensor, spelled: bool) -> torch.Tensor:
        x = x.detach().requires_grad_()
        wide = x if x.dtype is torch.float64 else x.float()
        if spelled:
            e = torch.exp(wide - wide.amax(-1, keepdim=True))
            y = e / e.sum(-1, keepdim=True)
        else:
            y = torch.softmax(wide, -1)
        (found,) = torch.autograd.grad(y, x, g.to(y.dtype))
        return found

    return gradient(x.double(), False), gradient(x, False), gradient(x, True)


def test_a_row_that_is_lost_beside_larger_ones_is_still_seen() -> None:
    oracle = torch.randn(64, 64, dtype=torch.float64)
    oracle[3] *= 1e-3
    reference = oracle.bfloat16()
    candidate = reference.clone()
    candidate[3] = 0
    assert numerics.compare(candidate, reference, oracle).detail
