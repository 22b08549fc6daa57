"""Classes of precision, doubled constants and the lower-precision control, with numbers worked by
hand."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator import deviations  # noqa: E402
from kernel_lsp.evaluator.judging import narrow, numerics  # noqa: E402
from kernel_lsp.evaluator.judging.drawing import draw  # noqa: E402
from kernel_lsp.evaluator.judging.oracle import Reference  # noqa: E402
from kernel_lsp.evaluator.judging.planning import plain  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402

pytestmark = pytest.mark.torch
EPS = 2.0**-23


@pytest.mark.parametrize(
    "precision, dtype, floor",
    [
        ("faithful", torch.float32, 0.0),
        ("tf32", torch.float32, 2.0**-10),
        ("tf32", torch.float16, 0.0),
        ("tf32", torch.float64, 0.0),
        ("low-precision", torch.float32, 2.0**-6),
        ("low-precision", torch.bfloat16, 2.0**-6),
        ("low-precision", torch.float64, 0.0),
    ],
)
def test_a_class_adds_its_floor_only_where_it_has_a_meaning(
    precision: str, dtype: "torch.dtype", floor: float
) -> None:
    assert numerics.class_floor(precision, dtype) == floor


@pytest.mark.parametrize("precision, allowed", [("faithful", 0.0), ("tf32", 2.0**-10)])
def test_the_tolerance_is_the_rules_plus_the_classs(precision: str, allowed: float) -> None:
    oracle = torch.ones(4, dtype=torch.float64)
    result = numerics.compare(torch.ones(4), torch.ones(4) + 4 * EPS, oracle, precision=precision)
    assert result.tolerance == pytest.approx((2 * 4 + 16) * EPS + allowed)


def test_gradients_have_doubled_constants() -> None:
    oracle = torch.ones(4, dtype=torch.float64)
    candidate, reference = torch.ones(4) + 40 * EPS, torch.ones(4) + 4 * EPS
    assert not numerics.compare(candidate, reference, oracle).passed  # 24 eps are allowed
    result = numerics.compare(candidate, reference, oracle, constants=2.0)
    assert result.passed and result.tolerance == pytest.approx(48 * EPS)


def test_the_worst_element_is_named_with_its_values() -> None:
    oracle = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    candidate = torch.tensor([[1.0, 2.0], [3.5, 4.0]])
    worst = numerics.compare(candidate, oracle.float(), oracle).worst
    assert worst == {"index": [1, 0], "candidate": 3.5, "reference": 3.0, "oracle": 3.0}


def test_nothing_is_worst_where_nothing_deviates() -> None:
    assert numerics.compare(torch.ones(2), torch.ones(2), torch.ones(2).double()).worst is None


def test_coarsening_rounds_to_the_next_lower_precision() -> None:
    third = torch.tensor([1.0 + 2.0**-10, 1.0 + 2.0**-12, -3.0, 0.0, float("inf")])
    assert numerics.coarsen(third).tolist() == [1.0 + 2.0**-10, 1.0, -3.0, 0.0, float("inf")]
    wide = torch.tensor([1.0 + 2.0**-30], dtype=torch.float64)
    assert numerics.coarsen(wide).tolist() == [1.0]
    half = torch.tensor([1.0 + 2.0**-10], dtype=torch.float16)
    assert numerics.coarsen(half).tolist() == [1.0]
    brain = torch.tensor([1.0 + 2.0**-4, 1.0 + 2.0**-6], dtype=torch.bfloat16)
    assert numerics.coarsen(brain).tolist() == [1.0 + 2.0**-4, 1.0]
    assert torch.equal(numerics.coarsen(torch.tensor([7])), torch.tensor([7]))


@given(st.floats(-(2.0**100), 2.0**100, allow_subnormal=False, width=32))
def test_coarsening_moves_by_at_most_half_a_step_and_only_once(value: float) -> None:
    given_value = torch.tensor([value])
    once = numerics.coarsen(given_value)
    assert abs(float(once) - value) <= 2.0**-11 * abs(value)
    assert torch.equal(numerics.coarsen(once), once)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_matrix_product_of_coarsened_operands_fails_the_faithful_rule(
    dtype: "torch.dtype",
) -> None:
    draw = torch.Generator().manual_seed(3)
    a, b = (torch.randn(32, 64, generator=draw, dtype=torch.float64).to(dtype) for _ in range(2))
    oracle = a.double() @ b.double().T
    coarse = numerics.coarsen(a) @ numerics.coarsen(b).T
    assert not numerics.compare(coarse, a @ b.T, oracle).passed


def test_a_complex_nudge_moves_both_parts_by_at_most_half_an_eps() -> None:
    values = torch.full((100,), 1 + 2j, dtype=torch.complex128)
    moved = numerics.nudge(values, torch.float32, torch.Generator().manual_seed(1))
    parts = torch.view_as_real(moved - values).abs().amax(0)
    assert 0 < parts[0] <= EPS / 2 and 0 < parts[1] <= EPS
    assert moved.dtype is torch.complex128


def test_an_empty_output_says_nothing_about_a_candidate() -> None:
    empty = torch.empty(0, 3, dtype=torch.float64)
    assert numerics.degenerate([empty, empty]) == "the output is empty"


def test_comparing_imports_nothing() -> None:
    """Some functions of torch import sympy when they are first called: a second in every judge."""
    code = (
        "import sys, torch\n"
        "from kernel_lsp.evaluator.judging import numerics\n"
        "before = set(sys.modules)\n"
        "o = torch.randn(3, 4, dtype=torch.float64)\n"
        "found = numerics.compare(o.float() + 1, o.float(), o, (o,))\n"
        "assert not found.passed and len(found.worst['index']) == 2\n"
        "numerics.coarsen(o), numerics.nudge(o, torch.float32, torch.Generator())\n"
        "numerics.degenerate([o, o])\n"
        "numerics.close_to_reference(o, o + 1)\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- 16 bits: what one element may be off -----------------------------------------------------


@pytest.mark.parametrize("constants", [1.0, 2.0])
@pytest.mark.parametrize("noise", [0.1, 3.0])  # of 1 %
def test_a_lost_element_is_found_and_named_however_noisy_the_rows_are(
    noise: float, constants: float
) -> None:
    """Rows whose errors have one degree of freedom, as a row of attention that two keys share."""
    draw = torch.Generator().manual_seed(0)
    oracle = torch.randn(4_000, 64, generator=draw, dtype=torch.float64)
    way = torch.randn(4_000, 64, generator=draw, dtype=torch.float64)
    oracle[17] = 1.0
    amounts = 0.01 * noise * torch.randn(2, 4_000, 1, generator=draw, dtype=torch.float64)
    reference, moved = (oracle + amount * way for amount in amounts)
    for one in (reference, moved):
        one[17] = oracle[17] * (1 + 2.0**-9)  # this row's own noise is a rounding
    candidate = reference.clone()
    candidate[17, 5] = 0.0
    said = narrow.problem(candidate, reference, oracle, [moved], 2.0**-7, constants)
    assert "1 elements are farther off than rounding explains, one of them by 1.00e+00" in said


# --- zero in exact arithmetic ------------------------------------------------------------------


def _left_of_zero(seed: int, eps: float) -> "torch.Tensor":
    """What rounding leaves of terms of about 1 that cancel."""
    return eps * torch.randn(64, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize(
    "times_eps, passes",
    [(8.0, True), (2.0**13, False), (1e5, False)],
    ids=["another-order", "tf32", "wrong"],
)
def test_what_is_zero_but_for_rounding_is_held_to_the_terms_that_cancelled(
    times_eps: float, passes: bool
) -> None:
    oracle, again = (_left_of_zero(seed, 2.0**-52) for seed in (1, 2))
    reference, candidate = (
        _left_of_zero(3, EPS).float(),
        _left_of_zero(4, times_eps * EPS).float(),
    )
    without = numerics.compare(candidate, reference, oracle, (again,))
    assert not without.passed  # 2 times the reference's own are allowed, which is chance
    found = numerics.compare(candidate, reference, oracle, (again,), again=again)
    assert found.passed is passes


def test_what_keeps_its_digits_is_held_to_its_own_size() -> None:
    oracle = 1e-6 * torch.linspace(1, 2, 64, dtype=torch.float64)
    candidate, again = oracle.float() + 8 * EPS, oracle * (1 + 1e-9)
    assert not numerics.compare(candidate, oracle.float(), oracle, again=again).passed


@pytest.mark.parametrize(
    "candidate, passes",
    [(0.1, False), (1e-7, True), (0.0, True)],
    ids=["wrong", "rounding", "zero"],
)
def test_what_is_zero_in_float64_is_held_to_the_references_rounding(
    candidate: float, passes: bool
) -> None:
    oracle = torch.zeros(64, dtype=torch.float64)
    reference = _left_of_zero(3, EPS).float()
    given = candidate * _left_of_zero(4, 1.0).float()
    assert numerics.compare(given, reference, oracle).passed is passes
    assert numerics.compare(given, reference, oracle, again=oracle).passed is passes
    assert numerics.compare(given, reference, oracle, again=2e-16 + oracle).passed is passes


BIAS_BEFORE_NORM = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.linear(x))

def get_inputs():
    return [torch.randn(32, 8)]
"""


def test_the_bias_before_a_norm_is_seen_to_have_no_gradient_and_the_weight_is_not() -> None:
    asked = request_from_files(BIAS_BEFORE_NORM, BIAS_BEFORE_NORM, device="cpu")
    reference = Reference(asked.reference, asked.workload, "cpu")
    reference.may_record_gradients = True
    trial = draw(reference, 0, {**plain("as_given"), "number": 1, "grad": True})
    cotangents = [torch.randn(32, 8)]
    oracle = reference.gradients_wide(trial, cotangents)
    again = reference.gradients_wide(trial, cotangents, last_bit=True)
    assert oracle is not None and again is not None
    differ = {
        name: deviations.relative_error(again[name], one)
        for name, one in oracle.items()
        if one is not None
    }
    assert differ.pop("parameter 'linear.bias'") > numerics.NO_DIGIT
    assert max(differ.values()) < 1e-10
