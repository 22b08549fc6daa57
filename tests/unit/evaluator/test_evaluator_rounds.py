"""When timing stops: by the width of the interval, and by the ratio only where no claim hangs on
it."""

import random

import pytest

from kernel_lsp.evaluator import measure


def rounds(ratio: float, spread: float, count: int = 40, seed: int = 1) -> measure.TimedRounds:
    """Rounds of a candidate that takes 1/``ratio`` of eager's time, give or take."""
    draw = random.Random(seed)
    eager = [10.0 * draw.uniform(1 - spread, 1 + spread) for _ in range(count)]
    mine = [10.0 / ratio * draw.uniform(1 - spread, 1 + spread) for _ in range(count)]
    return measure.TimedRounds(times={"eager": eager, "candidate": mine})


@pytest.mark.parametrize(
    "ratio, spread, decided",
    [
        (0.5, 0.2, True),
        (3.0, 0.05, True),
        (3.0, 0.6, False),
        (1.0, 0.1, False),
        (1.1, 0.1, False),
        (1.1, 0.01, False),  # narrow, and a claim may still hang on it
        (1.0, 0.01, False),
    ],
)
def test_more_rounds_are_taken_unless_they_would_change_digits_alone(
    ratio: float, spread: float, decided: bool
) -> None:
    assert measure._is_decided(rounds(ratio, spread)) is decided


def test_a_program_against_itself_is_never_decided_to_be_faster() -> None:
    for seed in range(200):
        same = rounds(1.0, 0.4, count=10, seed=seed)
        slower = any(i.high < measure.SURELY_SLOWER for i in measure._speedups(same.times).values())
        assert slower or not measure._is_decided(same)
