"""The status page: five lines, from what the journal has of the last seven days."""

from datetime import UTC, datetime
from pathlib import Path

from kernel_lsp.journal.store import Journal
from kernel_lsp.journal.week import summarize_week
from kernel_lsp.presenter.status import status_lines, status_page
from kernel_lsp.records import EvalStatus, Evaluation, Interval, WeekGain, WeekSummary
from tests.unit.journal.test_journal_store import FOLDER, event, proposal

NOW = datetime(2026, 1, 8, tzinfo=UTC)
"""Events of test_journal_store are of the 2nd."""


def measured(name: str, ratio: float) -> object:
    speedup = Interval(low=ratio - 0.1, mid=ratio, high=ratio + 0.1)
    evaluation = Evaluation(
        status=EvalStatus.PASSED, device="cpu", runs_as="eager", speedups={"eager": speedup}
    )
    return proposal(id=name, evaluation=evaluation)


def test_each_rewrite_counts_once_and_what_was_taken_back_is_no_gain(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        for name, ratio in (("a", 2.0), ("b", 8.0), ("c", 3.0)):
            journal.save(measured(name, ratio), folder=FOLDER, path="n.py", keep_source=False)
        journal.record(
            [
                *(event("offered", second, proposal=name) for second, name in enumerate("abcd")),
                event("offered", 9, proposal="a"),
                *(event("accepted", 10, proposal=name) for name in "abc"),
                event("reverted", 11, proposal="c"),
                event("dismissed", 12, proposal="d"),
                event("accepted", 13, proposal="other", folder="/elsewhere"),
                event("accepted", 14, proposal="old", time="2025-12-24T00:00:00.000+00:00"),
            ]
        )
        found = summarize_week(journal, FOLDER, NOW)
        later = summarize_week(journal, FOLDER, datetime(2026, 1, 20, tzinfo=UTC))
    assert (found.offered, found.accepted, found.taken_back, found.dismissed) == (4, 3, 1, 1)
    assert [(gain.qualname, gain.speedup) for gain in found.gains] == [("Net", 8.0), ("Net", 2.0)]
    assert later == WeekSummary()


def lines(**changes: object) -> tuple[str, ...]:
    usual: dict[str, object] = {
        "jobs": (),
        "device": "cpu",
        "interpreter": "/usr/bin/python",
        "consent": "allow",
        "week": WeekSummary(),
        "problems": (),
    }
    return status_lines(**{**usual, **changes})  # type: ignore[arg-type]


def test_there_are_five_lines_whatever_is_known() -> None:
    nothing = lines(device=None, interpreter=None, consent=None, week=None, problems=("a", "b"))
    assert len(nothing) == len(lines()) == 5
    assert "no interpreter" in nothing[1] and "after you have allowed it" in nothing[1]
    assert nothing[2:] == (
        "This week: unknown, the journal cannot be read.",
        "Gained: unknown.",
        "Wrong: a; b",
    )
    assert lines()[0] == "Now: nothing is running." and lines()[4] == "Nothing is wrong."


def test_the_gain_is_the_geometric_mean_of_what_was_measured() -> None:
    gains = (
        WeekGain(qualname="Net", path="n.py", speedup=8.0),
        WeekGain(qualname="Old", path="o.py", speedup=2.0),
        WeekGain(qualname="Gone", path="g.py", speedup=None),
    )
    shown = lines(jobs=("Net", "Other (search)"), week=WeekSummary(accepted=3, gains=gains))
    assert shown[0] == "Now: Net; 1 more wait."
    assert "4.00x" in shown[3] and "mean of 2" in shown[3] and "Net in n.py, 8.00x" in shown[3]
    page = status_page("/w", "1.0", shown)
    assert page.startswith("# kernel-lsp 1.0\n") and page.count("\n1. ") == 1 and "\n5. " in page


def test_rows_of_others_neither_end_the_page_nor_write_lines_of_it() -> None:
    """A team's journal has rows that anybody in it wrote."""
    gains = tuple(
        WeekGain(qualname=name, path="a.py\n6. Wrong", speedup=speedup)
        for name, speedup in (("[x](command:y)", 4.0), ("b", 0.0), ("c", -1.0), ("d", float("nan")))
    )
    week = WeekSummary(offered=4, accepted=4, taken_back=0, dismissed=0, gains=gains)
    lines = status_lines(
        jobs=["one\n7. two"], device="cpu", interpreter="p", consent=None, week=week, problems=[]
    )
    assert "4.00x as fast" in lines[3]
    page = status_page("/a\n8. b", "1", lines)
    assert not any(line.startswith(("6.", "7.", "8.")) for line in page.splitlines())
    assert "](command:" not in page
    worse = WeekSummary(offered=1, accepted=1, taken_back=0, dismissed=0, gains=gains[1:])
    assert (
        "no accepted rewrite"
        in status_lines(
            jobs=[], device=None, interpreter=None, consent=None, week=worse, problems=[]
        )[3]
    )
