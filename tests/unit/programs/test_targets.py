"""Which targets of a program are looked at, in which order, and what they cover of a step."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from search_helpers import candidate, proposal, verdict

from kernel_lsp.programs import targets
from kernel_lsp.programs.shares import ShareRow, Shares
from kernel_lsp.programs.targets import ENOUGH, MIN_SHARE, ProgramTarget
from kernel_lsp.records import Outcome, TargetKind

MODEL, BLOCK, NORM = ("m", "Model"), ("m", "Block"), ("m", "Norm")
ROWS = (
    ShareRow(ranges=(MODEL,), kind="forward", us=100.0),
    ShareRow(ranges=(MODEL, BLOCK), kind="forward", us=400.0, products_us=100.0),
    ShareRow(ranges=(MODEL, BLOCK, NORM), kind="forward", us=200.0),
    ShareRow(ranges=(), kind="optimizer", us=300.0),
)
SHARES = Shares(
    device="cuda",
    total_us=1000.0,
    rows=ROWS,
    calls={(MODEL,): 1, (MODEL, BLOCK): 6, (MODEL, BLOCK, NORM): 12},
)


def target(name: tuple[str, str], share: float = 0.5, *, judged: bool = False) -> ProgramTarget:
    outcome = None
    if judged:
        made = proposal(candidate(name=name[1]), verdict(2.0))
        outcome = Outcome(qualname=name[1], proposals=(made,))
    return ProgramTarget(
        path=Path("m.py"), qualname=name[1], module=name[0], share=share, calls=1, outcome=outcome
    )


def test_a_target_has_what_was_found_for_it() -> None:
    bare, found = target(BLOCK), target(BLOCK, judged=True)
    assert bare.proposal is None and bare.edit is None
    assert not bare.compiles and not bare.is_judged
    assert found.proposal is not None and found.edit is found.proposal.candidate.edit
    assert found.is_judged and not found.compiles and found.name == BLOCK
    assert targets.not_opened(bare, "no room").why_not == "no room"


def test_what_was_judged_counts_with_what_it_calls_itself() -> None:
    assert targets.looked_at([target(MODEL), target(BLOCK)], SHARES) == 0.0
    assert targets.looked_at([target(BLOCK, judged=True)], SHARES) == pytest.approx(0.6)
    assert targets.looked_at([target(MODEL, judged=True)], SHARES) == pytest.approx(0.5)
    both = [target(MODEL, judged=True), target(NORM, judged=True)]
    assert targets.looked_at(both, SHARES) == pytest.approx(0.7)
    assert targets.looked_at(both, replace(SHARES, total_us=0.0)) == 0.0


def test_what_is_covered_counts_all_that_is_within_and_a_timed_optimizer() -> None:
    judged = [target(MODEL, judged=True)]
    assert targets.covered_share(judged, SHARES, has_optimizer=False) == pytest.approx(0.7)
    assert targets.covered_share(judged, SHARES, has_optimizer=True) == pytest.approx(1.0)
    assert targets.covered_share([target(MODEL)], SHARES, has_optimizer=False) == 0.0


def test_nothing_is_looked_at_behind_enough_of_the_step() -> None:
    judged = [target(MODEL, judged=True), target(BLOCK, judged=True)]
    step = replace(SHARES, total_us=700.0 / ENOUGH, rows=ROWS[:3])
    assert targets.looked_at(judged, step) == pytest.approx(ENOUGH)
    nearly = replace(step, total_us=1.01 * step.total_us)
    assert targets.skip_reason(target(NORM), judged, nearly) is None
    enough = replace(step, total_us=0.99 * step.total_us)
    assert (
        targets.skip_reason(target(NORM), judged, enough) == "95% of the step were looked at before"
    )


def test_what_is_below_a_share_that_could_be_noticed_is_left_out() -> None:
    assert targets.skip_reason(target(NORM, MIN_SHARE), [], None) is None
    assert targets.skip_reason(target(NORM, MIN_SHARE - 1e-9), [], None) is not None
    closed = replace(target(NORM), why_not="closed")
    assert targets.skip_reason(closed, [], SHARES) == "closed"


def recording(*ways: dict[str, Any], seen: tuple[dict[str, Any], ...] = ()) -> Any:
    def named(way: dict[str, Any], place: int) -> str:
        return str(way["target"]).split("::")[place]

    return SimpleNamespace(
        ways=ways,
        seen=seen,
        path_of=lambda way: Path(named(way, 0)),
        qualname_of=lambda way: named(way, 1),
        snapshot=lambda way: way.get("snapshot"),
    )


def way(name: str, **more: Any) -> dict[str, Any]:
    kind = TargetKind.MODULE.value
    return {"target": f"m.py::{name}", "kind": kind, "module": "m", "snapshot": "s", **more}


def test_targets_come_by_what_could_be_saved_without_the_blocks_that_they_repeat() -> None:
    ways = [way("Model"), way("Norm"), way("Block"), way("Block", kind="module")]
    found = targets.rank_targets(recording(*ways), SHARES)
    assert [one.name for one in found] == [BLOCK, NORM, MODEL]
    assert [one.share for one in found] == pytest.approx([0.6, 0.2, 0.7])


def test_without_a_profile_targets_come_by_their_share_of_the_recorded_time() -> None:
    seen = (
        {"target": "m.py::Model", "share": 0.2, "calls": 3},
        {"target": "m.py::Block", "share": 0.9},
    )
    ways = [way("Model", not_kept="too large"), way("Block"), way("kernel", kind="launch")]
    found = targets.rank_targets(recording(*ways, seen=seen), None)
    assert [(one.qualname, one.share, one.calls) for one in found] == [
        ("Block", 0.9, 0),
        ("Model", 0.2, 3),
    ]
    assert [one.why_not for one in found] == [None, None], "its call was kept by somebody"
    lost = targets.rank_targets(recording(way("Model", snapshot=None, not_kept="large")), None)
    assert [one.why_not for one in lost] == ["large"]


def test_a_repeated_block_that_cannot_be_opened_leaves_its_time_to_the_outer_one() -> None:
    ways = [way("Model"), way("Block", snapshot=None, not_kept="no room"), way("Norm")]
    found = targets.rank_targets(recording(*ways), SHARES)
    assert [one.name for one in found] == [MODEL, BLOCK, NORM]
