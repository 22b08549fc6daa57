"""What a person reads about a proposal."""

from dataclasses import replace

import pytest
from editor_helpers import TEXT, evaluation, proposal

from kernel_lsp.presenter import cards
from kernel_lsp.records import Candidate, EvalStatus, Evaluation, Verdict


def test_a_speedup_comes_with_interval_baseline_and_device() -> None:
    card = cards.make_card(proposal(), TEXT, TEXT.replace("torch.sum(x, dim=1)", "x.sum(1)", 1))
    assert card.title == "Rewrite Model: call the method, 2.50x (2.38–2.62) on H100"
    assert card.headline == "verified 2.50x (2.38–2.62) vs eager on H100 (95% CI)"


def test_evidence_fits_a_hover_and_says_what_can_differ() -> None:
    evidence = cards.make_card(proposal(), TEXT, None).evidence
    assert evidence.count("\n") < cards.MAX_HOVER_LINES
    assert "eager 1 ms, compile 800 µs → 400 µs (medians)" in evidence
    assert "2.50x (2.38–2.62) vs eager; 2.00x (1.90–2.10) vs compile" in evidence
    assert "order of additions" in evidence
    assert "error 1.0e-07, original 2.0e-07, allowed 1.0e-05; 8 trials" in evidence
    assert "40 per provider, cold cache" in evidence
    assert "unknown B spilled" in evidence


def test_the_report_has_everything_and_escapes_table_cells() -> None:
    report = cards.make_card(proposal(), TEXT, TEXT + "x = 1\n").report
    for part in (
        "## Times",
        "## Checks",
        "– aliasing: did not run",
        "## Why it may be rewritten",
        "```diff",
        "+x = 1",
    ):
        assert part in report
    odd = replace(proposal(), candidate=replace(proposal().candidate, caveats=("a | b",)))
    assert "a \\| b" in cards.make_card(odd, TEXT, None).evidence


def test_an_edit_that_no_longer_fits_has_no_diff() -> None:
    card = cards.make_card(proposal(), TEXT, None)
    assert card.diff == ""
    assert "no longer fits" in card.report


@pytest.mark.parametrize(
    ("verdict", "changed", "words"),
    [
        (Verdict.CORRECT, {"speedups": {}}, "right; speed unknown (checked by cuda)"),
        (Verdict.CORRECT, {}, "not surely faster on H100: 2.50x (2.38–2.62)"),
        (
            Verdict.REJECTED,
            {"status": EvalStatus.WRONG_RESULT, "detail": "off by 3"},
            "rejected: off by 3",
        ),
        (Verdict.UNKNOWN, {"status": EvalStatus.NOT_RUN}, "could not be judged: not_run"),
    ],
)
def test_only_a_verified_win_is_called_verified(
    verdict: Verdict, changed: dict, words: str
) -> None:
    judged = proposal(verdict=verdict, evaluation=replace(evaluation(), **changed))
    assert words in cards.headline(judged)
    assert "verified" not in cards.headline(judged)
    assert " on H100" not in cards.title(judged)


def test_a_proposal_with_nothing_known_still_makes_a_card() -> None:
    empty = proposal(
        verdict=Verdict.UNKNOWN,
        evaluation=Evaluation(status=EvalStatus.NOT_RUN, device="cpu"),
        candidate=Candidate(id="c", edit=None, program="", entry="Model"),
    )
    card = cards.make_card(empty, "", None)
    assert "None" not in card.evidence
    assert "None" not in card.report


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0.0412, "41.2 µs"), (1.5, "1.5 ms"), (123.4, "123 ms"), (2500.0, "2.5 s")],
)
def test_durations_have_a_fitting_unit(milliseconds: float, words: str) -> None:
    assert cards.duration(milliseconds) == words


def test_diffs_split_lines_as_editors_do() -> None:
    diff = cards.unified_diff("a\x0cb\nc", "a\x0cb\nd", "m.py")
    assert diff.splitlines(keepends=False)[0] == "--- a/m.py"
    assert " a\x0cb\n-c\n\\ No newline at end of file\n+d\n" in diff


def test_the_report_says_how_to_repeat_the_verdict() -> None:
    kept = replace(proposal(), evidence="/data of mine/evidence/p.json")
    report = cards.make_card(kept, TEXT, TEXT + "x = 1\n").report
    assert "kernel-lsp verify --evidence '/data of mine/evidence/p.json'" in report
    assert "## Repeat it" not in cards.make_card(proposal(), TEXT, TEXT + "x = 1\n").report
