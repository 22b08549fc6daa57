"""What `optimize` prints where there is little room, and into a file."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from editor_helpers import TEXT, outcome, proposal
from rich.console import Console

from kernel_lsp.commands import console, optimize
from kernel_lsp.files import SourceFile
from kernel_lsp.presenter import cards


@pytest.mark.parametrize("columns", [40, 60, 80, 109, 110, 200])
def test_no_number_is_cut(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns, as everybody's terminal has, the interval ended in an ellipsis."""
    stream = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=stream, width=columns))
    one = proposal()
    console.out.print(optimize._table((one,)))
    assert one.evaluation.speedup is not None
    shown = stream.getvalue()
    assert "…" not in shown
    assert all(word in shown for word in cards.spread(one.evaluation.speedup).split())
    if columns >= 60:
        assert cards.spread(one.evaluation.speedup) in shown
        for timing in one.evaluation.timings:
            assert f"{timing.median_ms:.3f} ms" in shown


def test_what_goes_into_a_file_holds_the_whole_patch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = TEXT.replace("torch.sum(x, dim=1)", f"torch.sum(x, dim=1)  # {'long ' * 30}end")
    monkeypatch.setattr(console, "out", Console(file=sys.stdout, width=80))
    request = optimize.Request(
        path=Path("model.py"), source=SourceFile(text=long, encoding="utf-8"), qualname="Model"
    )
    optimize._show([(request, outcome(proposal(long)))], [])
    shown = capsys.readouterr().out
    assert f"-        return torch.sum(x, dim=1)  # {'long ' * 30}end\n" in shown
