"""Facts: never tighter than the truth, tight where skills need them."""

import math

import pytest
import torch
from example_helpers import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rewrite_helpers import graph_of, module

from kernel_lsp.rewrite.facts.bounds import widen_bounds
from kernel_lsp.rewrite.facts.tensors import TensorFact

pytestmark = pytest.mark.torch


def fact(expression: str) -> TensorFact:
    graph = graph_of(module(f"return {expression}"))
    return graph.fact(graph.outputs[0])


@pytest.mark.parametrize(
    "expression, lo, hi",
    [
        ("torch.relu(x)", 0, math.inf),
        ("torch.sigmoid(x)", 0, 1),
        ("torch.tanh(F.relu(x))", 0, 1),
        ("torch.softmax(x, dim=1) * 2 - 1", -1, 1),
        ("torch.clamp(x, -1.0, 2.0).abs()", 0, 2),
        ("-torch.sigmoid(x).transpose(0, 1)", -1, 0),
        ("torch.exp(x).mean(dim=1)", 0, math.inf),
        ("F.leaky_relu(torch.tanh(x), 0.5)", -0.5, 1),
        ("torch.cat([torch.sigmoid(x), torch.tanh(x)], dim=1)", -1, 1),
        ("F.pad(torch.sigmoid(x) + 1, (1, 1))", 0, 2),
        ("torch.max(torch.sigmoid(x), dim=1)[0]", 0, 1),
        ("torch.ones(3)", 1, 1),
        ("torch.ones(3) * 0.5", 0.5, 0.5),
        ("F.elu(torch.relu(x))", 0, math.inf),
        ("F.threshold(torch.sigmoid(x), 0.5, 0.25)", 0.25, 1),
        ("F.softshrink(torch.sigmoid(x))", 0, 1),
        ("torch.logsumexp(torch.relu(x), dim=1)", 0, math.inf),
        ("torch.clamp(x, -2.0, 1.0).square()", 0, 4),
        ("torch.clamp(x, 2.0, 3.0) ** 2", 4, 9),
        ("torch.rsqrt(torch.relu(x) + 1.0)", 0, math.inf),
        ("F.adaptive_max_pool1d(torch.sigmoid(x), 2)", 0, 1),
        ("x", -math.inf, math.inf),
        ("torch.relu(x) - torch.relu(x)", -math.inf, math.inf),
        ("torch.sigmoid(x) / 2", 0, 0.5),
        ("(torch.sigmoid(x) + 1) / -2", -1, -0.5),
        ("torch.sigmoid(x) / 0.0", -math.inf, math.inf),
        ("torch.tanh(x) - torch.sigmoid(x)", -2, 1),
        ("torch.add(torch.sigmoid(x), torch.sigmoid(x), alpha=2)", -math.inf, math.inf),
        ("torch.sigmoid(x) * torch.tanh(x)", -1, 1),
        ("torch.relu(x) * torch.sigmoid(x)", 0, math.inf),
        ("(torch.sigmoid(x) + 1) * (torch.sigmoid(x) - 3)", -6, -2),
        ("-torch.relu(x)", -math.inf, 0),
        ("torch.floor(torch.sigmoid(x) * 2.5)", 0, 3),
        ("torch.round(torch.sigmoid(x), decimals=1)", -math.inf, math.inf),
        ("torch.sigmoid(x).sum(dim=1)", 0, math.inf),
        ("(-torch.sigmoid(x)).sum(dim=1)", -math.inf, 0),
        ("torch.tanh(x).sum(dim=1)", -math.inf, math.inf),
        ("torch.clamp(x, 1.0, 2.0).abs()", 1, 2),
        ("torch.clamp(x, -3.0, -2.0).abs()", 2, 3),
        ("torch.clamp(x, -3.0, -2.0).square()", 4, 9),
        ("torch.sigmoid(x) ** 4", 0, math.inf),
        ("torch.sigmoid(x) ** 3", -math.inf, math.inf),
        ("torch.sqrt(torch.sigmoid(x))", 0, math.inf),
        ("F.softplus(x)", 0, math.inf),
        ("F.gelu(torch.relu(x))", 0, math.inf),
        ("torch.tanh(-torch.relu(x))", -1, 0),
        ("torch.maximum(torch.sigmoid(x), torch.tanh(x))", -1, 1),
        ("torch.max(torch.sigmoid(x), torch.tanh(x))", -1, 1),
        ("F.leaky_relu(torch.tanh(x), 0.0)", 0, 1),
        ("F.leaky_relu(x, -0.5)", -math.inf, math.inf),
        ("F.softshrink(torch.sigmoid(x) + 1)", 0, 2),
        ("F.threshold(torch.sigmoid(x), 0.5, 3.0)", 0.5, 3),
        ("F.relu6(x)", 0, 6),
        ("F.hardtanh(torch.sigmoid(x), 0.25, 0.5)", 0.25, 0.5),
        ("x.norm(dim=1)", 0, math.inf),
        ("torch.full((3,), 2.5)", 2.5, 2.5),
        ("torch.full((3,), 2, dtype=torch.int64)", 2, 2),
        ("torch.zeros_like(x)", 0, 0),
        ("torch.sigmoid(x).repeat_interleave(2, dim=0)", 0, 1),
        ("torch.std_mean(torch.sigmoid(x) + 5.0, dim=1)[0]", -math.inf, math.inf),
    ],
)
def test_ranges_worked_by_hand(expression: str, lo: float, hi: float) -> None:
    found = fact(expression)
    assert (found.lo, found.hi) == (lo, hi)


def test_nan_and_infinity_are_tracked_apart() -> None:
    assert not fact("torch.sigmoid(x)").may_be_inf and fact("torch.sigmoid(x)").may_be_nan
    assert fact("torch.relu(x)").may_be_inf
    assert fact("torch.zeros(2)").finite and fact("torch.zeros(2)").const == 0.0
    assert fact("torch.relu(x).clamp(0.0, 1.0) * float('inf')").may_be_nan


UNIT = "torch.cat([torch.zeros(2), torch.ones(2)])"
SIGNED = f"({UNIT} * 2 - 1)"
ENDLESS = "torch.tensor([1.0, 2.0, float('inf')])"


@pytest.mark.parametrize(
    "expression, nan, inf",
    [
        (UNIT, False, False),
        (SIGNED, False, False),
        (ENDLESS, False, True),
        (f"torch.sqrt({UNIT})", False, False),
        (f"torch.sqrt({SIGNED})", True, False),
        (f"torch.rsqrt({UNIT})", False, True),
        (f"torch.rsqrt({SIGNED})", True, True),
        (f"torch.sin({SIGNED})", False, False),
        (f"torch.sin({ENDLESS})", True, False),
        (f"torch.sigmoid({ENDLESS})", False, False),
        (f"torch.softmax({SIGNED}, dim=0)", False, False),
        (f"{SIGNED} * float('inf')", True, True),
        (f"{ENDLESS} * 2.0", False, True),
        (f"{ENDLESS} * 0.0", True, True),
        (f"{ENDLESS} + 1.0", False, True),
        (f"{ENDLESS} - {ENDLESS}", True, True),
        (f"{SIGNED} + {SIGNED}", False, False),
        (f"{SIGNED} / 4.0", False, False),
        (f"F.leaky_relu({ENDLESS}, 0.0)", True, True),
        (f"F.leaky_relu({ENDLESS}, 0.1)", False, True),
        (f"F.relu(-{ENDLESS})", False, False),
        (f"torch.clamp({ENDLESS}, max=3.0)", False, False),
        (f"torch.clamp({ENDLESS}, min=3.0)", False, True),
        (f"torch.exp(-{ENDLESS})", False, False),
        (f"{SIGNED}.sum(dim=0)", False, True),
        (f"({ENDLESS} - 2.0).sum(dim=0)", True, True),
        (f"{ENDLESS}.sum(dim=0)", False, True),
    ],
)
def test_nan_and_infinity_come_only_from_where_they_can(
    expression: str, nan: bool, inf: bool
) -> None:
    found = fact(expression)
    assert (found.may_be_nan, found.may_be_inf) == (nan, inf)


def test_exponentials_and_quotients_are_a_few_places_wider_than_worked_by_hand() -> None:
    low, high = fact("torch.exp(torch.tanh(x))").lo, fact("torch.exp(torch.tanh(x))").hi
    assert 0.999 / math.e < low <= 1 / math.e and math.e <= high < 1.001 * math.e
    assert fact("torch.exp(-torch.relu(x))").lo == 0.0
    third = fact("torch.sigmoid(x) / 3.0")
    assert third.lo == 0.0 and 1 / 3 < third.hi < 0.33334
    assert (
        fact("F.elu(x, 0.5)").lo == pytest.approx(-0.5, rel=1e-5)
        and fact("F.elu(x, 0.5)").lo < -0.5
    )
    assert fact("F.elu(x, -0.5)").lo == -math.inf


def test_whole_numbers_are_known_of_what_rounds_and_of_literals() -> None:
    assert fact("torch.floor(x)").integer and not fact("torch.sigmoid(x)").integer
    assert fact("torch.clamp(torch.floor(x), -2.0, 3.0)").integer
    assert not fact("torch.clamp(torch.floor(x), -2.5, 3.0)").integer
    assert fact("torch.tensor([1.0, 2.0])").integer and not fact("torch.tensor([1.5])").integer


def test_bounds_are_rounded_as_the_dtype_stores_them() -> None:
    assert fact("torch.clamp(x, max=0.1)").hi == torch.tensor(0.1).item()


def test_layout_facts() -> None:
    assert fact("x.t()").contiguous is False
    assert fact("x.view(6, 8, 1).unsqueeze(0)").singleton_dims == (0, 3)


UNARY = [
    "torch.relu({})", "torch.sigmoid({})", "torch.tanh({})", "torch.abs({})", "(-{})", "({} * 3.3)",
    "({} * -0.7)", "({} + 0.1)", "(1.5 - {})", "({} / 7.0)", "torch.clamp({}, -0.3, 0.7)",
    "torch.clamp({}, min=0.2)", "F.leaky_relu({}, 0.01)", "F.gelu({})", "F.silu({})", "F.mish({})",
    "F.hardswish({})", "F.softplus({})", "torch.softmax({}, dim=-1)", "F.log_softmax({}, dim=-1)",
    "torch.exp({})", "torch.sqrt({})", "{}.square()", "{}.mean(dim=-1, keepdim=True)",
    "{}.sum(dim=0, keepdim=True)", "torch.floor({})", "{}.amax(dim=0, keepdim=True)", "F.relu6({})",
    "F.hardsigmoid({})", "F.elu({}, 0.7)", "F.celu({}, 1.3)", "F.selu({})",
    "F.threshold({}, 0.3, -0.2)",
    "F.softshrink({})", "F.hardshrink({})", "torch.rsqrt({})", "torch.atan({})", "torch.expm1({})",
    "torch.logsumexp({}, dim=-1, keepdim=True)", "({} ** 2)", "({0} * {0})",
    "({0} + torch.relu({0}))", "torch.minimum({}, torch.ones(4))",
]  # fmt: skip


@settings(max_examples=examples(20), deadline=None)
@example(["F.gelu({})", "torch.rsqrt({})"], 0)  # gelu gives -0.0, whose inverse root is -inf
@given(st.lists(st.sampled_from(UNARY), min_size=1, max_size=4), st.integers(0, 2**31))
def test_no_value_ever_leaves_its_range(chain: list[str], seed: int) -> None:
    expression = "x"
    for step in chain:
        expression = step.format(expression)
    source = module(f"return {expression}", inputs="torch.randn(5, 4)")
    graph = graph_of(source)
    found = graph.fact(graph.outputs[0])
    generator = torch.Generator().manual_seed(seed)
    x = (
        torch.randn(5, 4, generator=generator)
        * 10 ** torch.randint(-3, 25, (5, 4), generator=generator).float()
    )
    x[0, 0], x[1, 1], x[2, 2] = math.inf, -math.inf, math.nan
    value = eval(expression, {"torch": torch, "F": torch.nn.functional, "x": x})
    real = value[~value.isnan()]
    assert (real >= found.lo).all() and (real <= found.hi).all(), expression
    assert found.may_be_nan or not value.isnan().any(), expression
    assert found.may_be_inf or not value.isinf().any(), expression


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bounds_that_the_dtype_cannot_store_move_outward_and_others_stay(
    dtype: torch.dtype,
) -> None:
    base, eps = TensorFact(dtype=dtype), torch.finfo(dtype).eps
    found = widen_bounds(base, -3.3, 0.7, nan=False, inf=False)
    assert -3.3 * (1 + 4 * eps) <= found.lo < -3.3 and 0.7 < found.hi <= 0.7 * (1 + 4 * eps)
    assert 0.3 * (1 - 4 * eps) <= widen_bounds(base, 0.3, 0.7, nan=True, inf=False).lo < 0.3
    exact = widen_bounds(base, -0.5, 2.0, nan=False, inf=False)
    assert (exact.lo, exact.hi, exact.may_be_nan, exact.may_be_inf) == (-0.5, 2.0, False, False)
    for low, high in ((0.0, 1e39), (-1e39, 0.0)):
        assert widen_bounds(base, low, high, nan=False, inf=False).may_be_inf
    unknown = widen_bounds(base, math.nan, 1.0, nan=False, inf=False)
    assert (unknown.lo, unknown.hi) == (-math.inf, math.inf)


def test_no_bound_of_whole_numbers_is_safe() -> None:
    found = widen_bounds(TensorFact(dtype=torch.int64), 0.0, 1.0, nan=False, inf=False)
    assert (found.lo, found.hi) == (-math.inf, math.inf)
