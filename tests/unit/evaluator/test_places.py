"""What is wrong at one place of a small result in 16 bits in every trial is refused; roundings of
every kind that differ from trial to trial are not."""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.judging.drift import FEW, SmallResult  # noqa: E402
from kernel_lsp.evaluator.judging.places import LocalDrift  # noqa: E402

pytestmark = pytest.mark.torch
TRIALS = 9
Change = Callable[[torch.Tensor], torch.Tensor]


def judged(
    change: Change,
    *,
    seed: int,
    shape: tuple[int, ...] = (24, 16),
    trials: int = TRIALS,
    dtype: torch.dtype = torch.bfloat16,
    tail: float = 0.0,
) -> str:
    """What is said of a right result that was changed and rounded; ``tail``: how unequal errors
    are."""
    draw, places = torch.Generator().manual_seed(seed), LocalDrift()
    eps = torch.finfo(dtype).eps
    for _ in range(trials):
        o = torch.randn(shape, generator=draw, dtype=torch.float64)

        def rounded(o: torch.Tensor = o) -> torch.Tensor:
            sizes = torch.exp(tail * torch.randn(shape, generator=draw))
            return o + torch.randn(shape, generator=draw) * sizes * (eps / 2)

        result = SmallResult(
            name="gradient",
            candidate=change(rounded()).to(dtype),
            reference=rounded().to(dtype),
            oracle=o,
            eps=eps,
            constants=2.0,
        )
        if found := places.problem(result, lambda made=rounded: [made() for _ in range(4)]):
            return found
    return ""


def at(place: object, by: float, plus: float = 0.0) -> Change:
    def change(values: torch.Tensor) -> torch.Tensor:
        values = values.clone()
        values[place] = values[place] * by + plus
        return values

    return change


@pytest.mark.parametrize("tail", [0.0, 1.5, 3.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_right_result_passes_however_unequal_its_roundings(
    tail: float, dtype: torch.dtype
) -> None:
    for seed in range(4):
        assert not judged(lambda values: values, seed=seed, tail=tail, dtype=dtype)


@pytest.mark.parametrize(
    ("place", "by", "said"),
    [
        ((2, 3), 0.9, "element 35"),
        ((23, 15), 1.05, "element 383"),
        (3, 0.97, "row 3"),
        ((slice(None), 5), 1.03, ""),
    ],
)
def test_one_element_row_or_column_is_refused_whatever_the_seed(
    place: object, by: float, said: str
) -> None:
    for seed in range(4):
        found = judged(at(place, by), seed=seed)
        assert "have a factor in common" in found and said in found


def test_an_offset_of_one_element_of_a_bias_is_refused() -> None:
    for seed in range(4):
        assert "an offset in common at element 4" in judged(
            at(4, 1.0, 0.12), seed=seed, shape=(8,), trials=20
        )


def test_a_constant_of_one_column_that_was_rounded_twice_passes() -> None:
    assert not judged(at((slice(None), 5), 1 + 2**-7), seed=0)


def test_one_trial_far_off_is_bad_luck() -> None:
    """One of nine weighs as much as the others together, and is wrong by half of the result."""
    places, o = LocalDrift(), torch.ones(8, dtype=torch.float64)
    for number in range(TRIALS):
        wrong = o.clone()
        wrong[3] = 1.5 if number == 4 else 1.0
        # The reference has large errors in the other trials.
        theirs = o if number == 4 else o * 1.03
        result = SmallResult(
            name="output",
            candidate=wrong.bfloat16(),
            reference=theirs.bfloat16(),
            oracle=o,
            eps=2**-7,
        )
        assert not places.problem(result, list)


def test_trials_of_other_shapes_are_no_trials_of_this_one() -> None:
    few = FEW - 1
    assert not judged(at(3, 0.5), seed=0, trials=few)
    assert judged(at(3, 0.5), seed=0, trials=FEW)


def test_what_is_not_finite_and_what_is_zero_have_no_place() -> None:
    places = LocalDrift()
    o = torch.tensor([1.0, float("inf"), float("nan"), 0.0], dtype=torch.float64)
    for _ in range(TRIALS):
        result = SmallResult(
            name="output", candidate=o.half(), reference=o.half(), oracle=o, eps=2**-10
        )
        assert not places.problem(result, list)
