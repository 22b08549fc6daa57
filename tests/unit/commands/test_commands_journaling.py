"""What the command line has applied: accepted at once, and kept, changed or taken back when it is
seen."""

from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from kernel_lsp import analysis
from kernel_lsp.commands import journaling
from kernel_lsp.journal import Journal
from kernel_lsp.journal.tracker import Tracker
from kernel_lsp.records import Proposal, Snapshot, Step, Verdict
from tests.unit.library.test_library_usage import proposal

BEFORE = """import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.relu(x))
"""
AFTER = BEFORE.replace("torch.relu(torch.relu(x))", "torch.relu(x)")
OTHER = BEFORE.replace("torch.relu(torch.relu(x))", "torch.sigmoid(x)")


def fingerprint(text: str) -> str:
    found = analysis.analyze(Snapshot(uri="file:///net.py", text=text))
    return next(target.fingerprint for target in found.targets if target.qualname == "Net")


def made() -> Proposal:
    found = proposal("p", "plan/2", 2.0, Verdict.FASTER)
    steps = (Step(skill="fused-pointwise", site="relu", parameters={"num_warps": 8}),)
    return replace(
        found,
        qualname="Net",
        fingerprint=fingerprint(BEFORE),
        fingerprint_after=fingerprint(AFTER),
        candidate=replace(found.candidate, steps=steps),
    )


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """In which --apply has just written a rewrite."""
    opened = Journal.open(tmp_path / "data" / "journal.db")
    opened.save(made(), folder=str(tmp_path), path="net.py", keep_source=False)
    (tmp_path / "net.py").write_text(AFTER)
    journaling.record_acceptance(opened, [made()], folder=tmp_path, path=tmp_path / "net.py")
    return opened


def kinds(journal: Journal) -> list[str]:
    return [event.kind.value for event in journal.events()]


def look(journal: Journal, tmp_path: Path) -> list[str]:
    return [
        papers.origin.event
        for papers in journaling.log_outcomes(journal, tmp_path, tmp_path / "data")
    ]


def test_what_was_just_written_is_accepted_and_no_more(journal: Journal) -> None:
    assert kinds(journal) == ["offered", "chosen", "accepted"]


def test_what_is_still_there_when_a_later_command_looks_was_kept_and_is_drafted(
    journal: Journal, tmp_path: Path
) -> None:
    assert set(look(journal, tmp_path)) == {"kept"}
    assert kinds(journal) == ["offered", "chosen", "accepted", "kept"]
    assert look(journal, tmp_path) == [] and kinds(journal)[-1] == "kept"  # said once


@pytest.mark.parametrize(
    ("text", "kind"),
    [(BEFORE, "reverted"), (OTHER, "modified"), (None, "deleted"), (AFTER + "def (", None)],
)
def test_what_is_not_there_any_more_is_told_apart(
    journal: Journal, tmp_path: Path, text: str | None, kind: str | None
) -> None:
    file = tmp_path / "net.py"
    file.unlink() if text is None else file.write_text(text)
    assert look(journal, tmp_path) == []
    assert kinds(journal)[3:] == ([] if kind is None else [kind])


def test_what_is_there_on_another_day_has_lasted(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(days=1)

    look(journal, tmp_path)
    monkeypatch.setattr(journaling, "datetime", Tomorrow)
    look(journal, tmp_path)
    assert kinds(journal)[-2:] == ["kept", "kept_committed"]


def test_what_an_editor_has_applied_is_the_editors(tmp_path: Path) -> None:
    """Its buffer may hold the rewrite while the disk does not."""
    with Journal.open(tmp_path / "data" / "journal.db") as opened:
        tracker = Tracker(session="editor-1", client="editor")
        offer = journaling.offer_of(made(), str(tmp_path), "net.py")
        assert offer is not None
        opened.record(
            [
                *tracker.chosen(offer, 1.0),
                *tracker.observed(offer.identity, offer.after, "change", 2.0),
            ]
        )
        opened.save_tracker(tracker.export())
        (tmp_path / "net.py").write_text(BEFORE)
        journaling.log_outcomes(opened, tmp_path, tmp_path / "data")
        assert kinds(opened)[-1] == "accepted"
