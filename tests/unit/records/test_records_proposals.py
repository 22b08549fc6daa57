"""The one order in which proposals for a target are listed."""

from dataclasses import replace

import search_helpers as helpers

from kernel_lsp.records import EvalStatus, Interval, Outcome, Proposal, Verdict, rank
from kernel_lsp.records.rewrites import COMPILER_SKILL
from kernel_lsp.records.verdicts import TIE, Evaluation, is_tie


def proposed(verdict: Verdict, speed: float, *, compiles: bool = False) -> Proposal:
    made = helpers.candidate(name=f"{verdict.value} {speed}")
    if compiles:
        made = replace(made, steps=(helpers.step(COMPILER_SKILL),))
    proposal = helpers.proposal(made, helpers.verdict(speed))
    return replace(proposal, verdict=verdict)


def over(baseline: str, low: float, high: float) -> Evaluation:
    found = Interval(low=low, mid=(low + high) / 2, high=high)
    return replace(
        helpers.verdict(2.0), speedups={**helpers.verdict(2.0).speedups, baseline: found}
    )


def test_faster_ones_come_first_then_right_ones_unknown_ones_and_those_that_are_refused() -> None:
    order = [Verdict.FASTER, Verdict.CORRECT, Verdict.UNKNOWN, Verdict.REJECTED]
    mixed = [proposed(order[at], 2.0) for at in (2, 0, 3, 1)]
    assert [one.verdict for one in sorted(mixed, key=rank)] == order


def test_of_one_verdict_the_largest_speedup_over_eager_comes_first() -> None:
    slow, fast = proposed(Verdict.FASTER, 1.2), proposed(Verdict.FASTER, 1.9)
    assert sorted([slow, fast], key=rank) == [fast, slow]
    unknown = replace(slow, evaluation=helpers.verdict(None))
    assert sorted([unknown, slow], key=rank) == [slow, unknown]
    assert rank(unknown) == (0, 0.0)


def test_a_tie_with_torch_compile_is_won_by_it_and_more_than_a_tie_is_not() -> None:
    compiled = proposed(Verdict.FASTER, 1.5, compiles=True)
    assert compiled.candidate.compiles
    near = proposed(Verdict.FASTER, 1.5 * (TIE[1] - 0.005))
    far = proposed(Verdict.FASTER, 1.5 * (TIE[1] + 0.005))
    assert sorted([near, far, compiled], key=rank) == [far, compiled, near]


def test_a_claim_clears_the_threshold_and_is_not_behind_torch_compile() -> None:
    assert helpers.verdict(1.05).faster(1.05) and not helpers.verdict(1.04).faster(1.05)
    assert over("compile", 1.0, 1.2).faster() and not over("compile", 0.8, 0.9).faster()
    assert over("compile", 0.98, 1.01).faster()
    assert over("compile", 0.8, 0.9).faster(compiles=True)
    assert over("compile", 0.8, 0.9).faster(may_compile=False)
    assert not helpers.verdict(2.0).faster(compiles=True, may_compile=False)
    assert not helpers.verdict(None).faster()


def test_only_what_offers_nothing_was_cut_short() -> None:
    right, better = proposed(Verdict.CORRECT, 1.0), proposed(Verdict.FASTER, 2.0)
    late = replace(right, evaluation=Evaluation(status=EvalStatus.TIMED_OUT, device="cpu"))
    for proposals, is_cut_short in (
        ((late, right), True),
        ((late, better), False),
        ((right,), False),
        ((), False),
    ):
        assert Outcome(qualname="Model", proposals=proposals).cut_short is is_cut_short


def test_a_tie_holds_up_to_its_very_ends() -> None:
    assert is_tie(Interval(low=TIE[0], mid=1.0, high=TIE[1]))
    assert not is_tie(Interval(low=TIE[0] - 0.001, mid=1.0, high=1.0))
    assert not is_tie(Interval(low=1.0, mid=1.0, high=TIE[1] + 0.001))
