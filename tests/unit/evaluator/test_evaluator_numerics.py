"""The rule of accuracy, with numbers worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator import deviations  # noqa: E402
from kernel_lsp.evaluator.judging import numerics  # noqa: E402

pytestmark = pytest.mark.torch
EPS = 2.0**-23


def exact(*values: float) -> "torch.Tensor":
    return torch.tensor(values, dtype=torch.float32)


def test_the_error_is_the_rms_of_the_difference_over_the_rms_of_the_oracle() -> None:
    oracle = torch.tensor([3.0, 4.0], dtype=torch.float64)  # RMS = sqrt(12.5)
    assert deviations.relative_error(torch.tensor([3.0, 9.0]), oracle) == pytest.approx(1.0)


def test_a_zero_oracle_accepts_only_zero() -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    assert deviations.relative_error(torch.zeros(3), zero) == 0.0
    assert deviations.relative_error(torch.tensor([0.0, 0.0, 1e-30]), zero) == float("inf")


def test_the_tolerance_is_twice_the_noise_plus_sixteen_eps() -> None:
    oracle = torch.ones(4, dtype=torch.float64)
    reference = torch.ones(4) + 4 * EPS
    result = numerics.compare(torch.ones(4) + 23 * EPS, reference, oracle)
    assert result.reference_error == pytest.approx(4 * EPS)
    assert result.tolerance == pytest.approx((2 * 4 + 16) * EPS)
    assert result.passed
    assert not numerics.compare(torch.ones(4) + 25 * EPS, reference, oracle).passed


def test_a_candidate_more_accurate_than_the_reference_passes() -> None:
    oracle = torch.ones(4, dtype=torch.float64)
    assert numerics.compare(torch.ones(4), torch.ones(4) + 1e-3, oracle).passed


def test_one_wrong_element_among_many_fails_although_the_rms_is_small() -> None:
    oracle = torch.ones(1_000_000, dtype=torch.float64)
    candidate = torch.ones(1_000_000)
    candidate[7] += 1e-3  # RMS error 1e-6 is below the floor of 1.9e-6
    result = numerics.compare(candidate, torch.ones(1_000_000), oracle)
    assert result.candidate_error < result.tolerance
    assert not result.passed and "one element" in result.detail


@pytest.mark.parametrize("bits, passes", [(23, True), (10, False), (7, False)])
def test_operands_cut_to_tf32_or_bf16_fail(bits: int, passes: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    a, b = (torch.randn(64, 256, generator=draw) for _ in range(2))
    drop = 23 - bits
    cut = [((t.view(torch.int32) >> drop) << drop).view(torch.float32) for t in (a, b)]
    oracle = a.double() @ b.double().T
    result = numerics.compare(cut[0] @ cut[1].T, a @ b.T, oracle)
    assert result.passed is passes
    assert numerics.compare(cut[0] @ cut[1].T, a @ b.T, oracle, precision="low-precision").passed


@given(
    seed=st.integers(0, 2**32),
    reference_noise=st.sampled_from([0.0, 1e-7, 1e-3, 1.0, 100.0]),
    difference=st.floats(0.0, 4e-6),
    spread=st.floats(0.0, 8.0),
)
def test_what_is_close_to_the_reference_passes_whatever_the_oracle_says(
    seed: int, reference_noise: float, difference: float, spread: float
) -> None:
    draw = torch.Generator().manual_seed(seed)
    noise = [torch.randn(64, generator=draw, dtype=torch.float64) for _ in range(4)]
    oracle = noise[0] * torch.exp(spread * noise[1])
    reference = (oracle + reference_noise * oracle.abs().max() * noise[2]).float()
    candidate = (reference * (1 + difference * noise[3])).float()
    if numerics.close_to_reference(candidate, reference):
        assert numerics.compare(candidate, reference, oracle).passed


def test_close_to_the_reference_is_half_the_floor() -> None:
    ones = torch.ones(4)
    assert numerics.close_to_reference(ones + 7 * EPS, ones)
    assert not numerics.close_to_reference(ones + 9 * EPS, ones)
    assert not numerics.close_to_reference(ones, torch.full((4,), float("nan")))
    assert numerics.close_to_reference(exact(1.0, float("inf")), exact(1.0, float("inf")))


def test_a_reassociated_sum_that_cancels_passes_by_the_moved_oracle() -> None:
    draw = torch.Generator().manual_seed(5)
    values = torch.randn(100_000, generator=draw)
    values -= values.mean()
    oracle = values.double().sum().reshape(1)
    moved = tuple(
        numerics.nudge(values.double(), torch.float32, draw).sum().reshape(1) for _ in range(3)
    )
    candidate = values.reshape(1000, 100).sum(0).sum().reshape(1)
    assert numerics.compare(candidate, values.sum().reshape(1), oracle, moved).passed


def test_nan_and_infinity_must_stand_where_the_reference_has_them() -> None:
    nan, inf = float("nan"), float("inf")
    reference = exact(nan, inf, -inf, 1.0)
    assert numerics.compare(reference.clone(), reference, reference.double()).passed
    for wrong in (
        exact(1.0, inf, -inf, 1.0),
        exact(nan, -inf, -inf, 1.0),
        exact(nan, inf, -inf, nan),
    ):
        result = numerics.compare(wrong, reference, reference.double())
        assert not result.passed and "other places" in result.detail


def test_whole_numbers_must_agree_with_reference_or_oracle() -> None:
    reference, oracle = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])
    assert numerics.compare(torch.tensor([1, 2, 3, 5]), reference, oracle).passed
    assert not numerics.compare(torch.tensor([9, 9, 9, 4]), reference, oracle).passed
    assert not numerics.compare(torch.tensor([0, 2, 3, 4]), reference, reference).passed


def test_complex_values_are_judged_part_by_part() -> None:
    reference = torch.tensor([1 + 2j, 3 - 1j])
    assert numerics.compare(reference.clone(), reference, reference.to(torch.complex128)).passed
    wrong = torch.tensor([1 + 2j, 3 + 1j])
    assert not numerics.compare(wrong, reference, reference.to(torch.complex128)).passed


def test_empty_tensors_agree() -> None:
    empty = torch.empty(0, 3)
    assert numerics.compare(empty, empty, empty.double()).passed


@pytest.mark.parametrize(
    "outputs, word",
    [
        ([[0.0, 0.0], [0.0, 0.0]], "zero"),
        ([[1.0, 2.0], [1.0, 2.0]], "does not depend"),
        ([[1.0] * 200 + [0.0], [2.0] * 200 + [0.0]], "99 %"),
        ([[float("nan")], [float("inf")]], "never finite"),
        ([[1.0, 2.0], [2.0, 1.0]], None),
        ([[1.0], [2.0]], None),
    ],
)
def test_outputs_that_cannot_tell_candidates_apart_are_named(
    outputs: list, word: str | None
) -> None:
    reason = numerics.degenerate([torch.tensor(o, dtype=torch.float64) for o in outputs])
    assert (reason is None) if word is None else (reason is not None and word in reason)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("off", [0.0, 1e-7, 1e-3, 0.05])
@pytest.mark.parametrize("special", [False, True])
def test_pieces_of_a_large_result_are_judged_as_the_whole(
    dtype: torch.dtype, off: float, special: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(0)
    oracle = torch.randn(300, 257, generator=draw, dtype=torch.float64)
    factor = 1 + off * torch.randn(300, 257, generator=draw, dtype=torch.float64)
    reference, candidate = oracle.to(dtype), (oracle * factor).to(dtype)
    if special:
        reference[0, 0] = candidate[0, 0] = float("inf")
    whole = numerics.compare(candidate, reference, oracle)
    monkeypatch.setattr(deviations, "PIECE", 5000)
    parts = numerics.compare(candidate, reference, oracle)
    assert (parts.passed, parts.worst) == (whole.passed, whole.worst)
    assert parts.candidate_error == pytest.approx(whole.candidate_error)
    assert parts.tolerance == pytest.approx(whole.tolerance)


def test_one_wrong_row_in_the_last_piece_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deviations, "PIECE", 5000)
    oracle = torch.randn(300, 257, dtype=torch.float64)
    reference = oracle.bfloat16()
    candidate = reference.clone()
    candidate[299] *= 1.05
    found = numerics.compare(candidate, reference, oracle)
    assert not found.passed and found.detail


def test_close_to_the_reference_is_within_half_the_floor_where_both_are_finite() -> None:
    reference = torch.ones(64)
    assert numerics.close_to_reference(reference.clone(), reference)
    assert numerics.close_to_reference(reference + 7 * EPS, reference)
    assert not numerics.close_to_reference(reference + 9 * EPS, reference)
    assert not numerics.close_to_reference(torch.ones(4, dtype=torch.int64), torch.zeros(4).long())


def test_close_to_the_reference_needs_infinities_and_nan_at_the_same_places() -> None:
    reference = exact(1.0, float("inf"), float("nan"), 1.0)
    assert numerics.close_to_reference(reference + 7 * EPS, reference)
    assert not numerics.close_to_reference(reference + 9 * EPS, reference)
    assert not numerics.close_to_reference(exact(1.0, 1.0, float("nan"), 1.0), reference)
    assert not numerics.close_to_reference(exact(1.0, float("-inf"), float("nan"), 1.0), reference)
    assert not numerics.close_to_reference(exact(float("nan"), float("inf"), 1.0, 1.0), reference)


def test_whole_numbers_may_fall_either_way_at_a_tie_and_as_often_as_the_reference_does() -> None:
    oracle = torch.zeros(100, dtype=torch.int64)
    reference = oracle.clone()
    reference[:3] = 1
    result = numerics.compare_exact(oracle, reference, oracle)
    assert result.passed and result.candidate_error == 0.0
    assert result.reference_error == pytest.approx(0.03)
    assert result.tolerance == pytest.approx(numerics.FACTOR * 0.03)
    wrong = reference.clone()
    wrong[50:56] = 7
    assert numerics.compare_exact(wrong, reference, oracle).passed
    wrong[56] = 7
    result = numerics.compare_exact(wrong, reference, oracle)
    assert not result.passed and result.candidate_error == pytest.approx(0.07)
    assert not numerics.compare_exact(wrong, reference, None).passed
    nothing = torch.zeros(0, dtype=torch.int64)
    assert numerics.compare_exact(nothing, nothing, nothing).passed


def edges(family: str, candidate: float, reference: float, oracle: float) -> bool:
    """Whether a candidate passes that differs from a reference of ones at one place."""
    one, other, wide = torch.ones(3), torch.ones(3), torch.ones(3, dtype=torch.float64)
    one[1], other[1], wide[1] = candidate, reference, oracle
    return numerics.compare_edges(one, other, wide, family) is None


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("family", "candidate", "reference", "oracle", "passes"),
    [
        ("infinite", 1.0, INF, 1.0, True),  # the reference overflows on its way
        ("infinite", INF, 1.0, 1.0, False),
        ("extreme", INF, 3e38, 3e38, True),  # parts of the sum were larger than the sum
        ("extreme", INF, 1e30, 1e30, False),
        ("infinite", INF, 3e38, 3e38, False),
    ],
)
def test_values_at_the_edges_mean_what_the_oracle_confirms(
    family: str, candidate: float, reference: float, oracle: float, passes: bool
) -> None:
    assert edges(family, candidate, reference, oracle) == passes


def test_nan_may_stand_for_anything_where_that_is_uncertain() -> None:
    one, other, wide = exact(NAN, 1.0), exact(1.0, 1.0), torch.ones(2, dtype=torch.float64)
    assert numerics.compare_edges(one, other, wide, "infinite") is not None
    here = torch.tensor([True, False])
    assert numerics.compare_edges(one, other, wide, "infinite", here) is None
    assert numerics.compare_edges(one, other, wide, "infinite", ~here) is not None
    assert numerics.compare_edges(exact(INF, 1.0), other, wide, "infinite", here) is not None
