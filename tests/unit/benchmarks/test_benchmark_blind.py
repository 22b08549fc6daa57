"""The candidates written by hand: what they are, and how verdicts on them are counted."""

import ast

from benchmarks.gating.blind import BlindCase, cases
from benchmarks.gating.blind.judging import summed
from benchmarks.gating.running import Judged
from kernel_lsp.records import EvalStatus


def test_there_are_enough_of_either_side_and_half_of_the_wrong_have_16_bits() -> None:
    every = list(cases())
    assert len({case.key for case in every}) == len(every)
    wrong = [case for case in every if case.is_wrong]
    assert len(wrong) >= 120 and len(every) - len(wrong) >= 80
    assert 2 * sum(case.dtype != "float32" for case in wrong) >= len(wrong)


def test_every_text_parses_and_has_its_class() -> None:
    for case in cases():
        for text, name in ((case.reference, "Model"), (case.candidate, "ModelNew")):
            classes = {n.name for n in ast.parse(text).body if isinstance(n, ast.ClassDef)}
            assert name in classes, case.key


def judged(case: BlindCase, status: EvalStatus | None) -> Judged[BlindCase]:
    return Judged(key=case, status=status, detail="because", seconds=1.0)


def test_a_wrong_one_that_passes_and_an_honest_one_that_does_not_are_named() -> None:
    wrong, *_, honest = cases()
    right = summed(
        [judged(wrong, EvalStatus.WRONG_RESULT), judged(honest, EvalStatus.PASSED)], asked=2
    )
    assert [row.met for row in right.rows[:2]] == [True, True]
    bad = summed(
        [judged(wrong, EvalStatus.PASSED), judged(honest, EvalStatus.WRONG_RESULT)], asked=2
    )
    assert [row.met for row in bad.rows[:2]] == [False, False]
    assert f"accepted: {wrong.key}" in bad.notes
    assert f"refused: {honest.key}: because" in bad.notes
    assert [row.met for row in summed([judged(wrong, None)], asked=2).rows[:2]] == [None, None]
