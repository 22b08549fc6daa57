"""What stays in all trials of a small result in 16 bits is refused; roundings that stay are not."""

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.judging.drift import FEW, Drift, SmallResult  # noqa: E402

pytestmark = pytest.mark.torch
TRIALS = 20


def result(candidate: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> SmallResult:
    eps = torch.finfo(candidate.dtype).eps
    return SmallResult(
        name="output", candidate=candidate, reference=reference, oracle=oracle, eps=eps
    )


def judged(
    by: float, *, elements: int, seed: int, dtype: torch.dtype = torch.bfloat16, plus: float = 0.0
) -> str:
    """What is said of a candidate that is a right one times ``by``, rounded once more; the original
    rounds before a last step, too. ``plus``: of the root mean square, added."""
    draw, drift = torch.Generator().manual_seed(seed), Drift()
    for _ in range(TRIALS):
        o = torch.randn(elements, generator=draw, dtype=torch.float64)
        right = (o / 3).to(dtype) * 3
        mine = ((o.float() * by) + plus * float(o.square().mean().sqrt())).to(dtype)
        measured = [(o * (1 + torch.randn(elements, generator=draw) * 1e-3)).double()]
        found = drift.problem(result(mine, right, o), lambda m=measured: m)
        if found:
            return found
    return ""


@pytest.mark.parametrize("elements", [1, 8, 257])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_right_result_that_is_rounded_elsewhere_passes(elements: int, dtype: torch.dtype) -> None:
    assert not any(judged(1.0, elements=elements, seed=seed, dtype=dtype) for seed in range(20))


@pytest.mark.parametrize("elements", [1, 8, 257])
@pytest.mark.parametrize("by", [1.01, 0.99])
def test_a_factor_is_refused_whatever_the_seed(elements: int, by: float) -> None:
    for seed in range(20):
        assert "trials have a factor in common" in judged(by, elements=elements, seed=seed)


@pytest.mark.parametrize("plus", [0.012, -0.012])
def test_an_offset_is_refused_whatever_the_seed(plus: float) -> None:
    for seed in range(20):
        assert judged(1.0, elements=64, seed=seed, plus=plus)


def test_a_constant_that_was_rounded_once_passes() -> None:
    assert not judged(1 + 2**-9, elements=257, seed=0)


def test_a_few_trials_say_nothing() -> None:
    drift, o = Drift(), torch.ones(8, dtype=torch.float64)
    right, wrong = o.bfloat16(), (o * 1.02).bfloat16()
    given = result(wrong, right, o), lambda: [o]
    assert not any(drift.problem(*given) for _ in range(FEW - 1))
    assert drift.problem(*given)


def test_what_the_reference_does_as_well_is_no_fault() -> None:
    drift, o = Drift(), torch.ones(8, dtype=torch.float64)
    shifted = (o * 1.02).bfloat16()
    given = result(shifted, shifted, o), lambda: [o]
    assert not any(drift.problem(*given) for _ in range(TRIALS))


def test_a_sum_that_cancels_is_held_to_what_is_measured() -> None:
    """The original has no error by luck; moved inputs move the result by as much."""
    drift, o = Drift(), torch.full((1,), 0.01, dtype=torch.float64)
    moved = [o + 3e-4, o - 4e-4, o + 2e-4]
    for error in (3e-4, 2e-4, 3e-4, 1e-4, 3e-4, 2e-4):
        assert not drift.problem(result((o + error).half(), o.half(), o), lambda: moved)


def test_zero_and_what_is_not_finite_have_no_share() -> None:
    drift, zero = Drift(), torch.zeros(4, dtype=torch.float64)
    assert not drift.problem(result(zero.half(), zero.half(), zero), list)
    o = torch.tensor([1.0, float("inf"), float("nan")], dtype=torch.float64)
    for _ in range(TRIALS):
        assert not drift.problem(result(o.half(), o.half(), o), list)
