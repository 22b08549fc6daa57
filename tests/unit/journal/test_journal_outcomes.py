"""What of a job's outcome is new to the journal, and what an event says of who proposed it."""

from dataclasses import replace
from typing import Any

from editor_helpers import outcome, proposal

from kernel_lsp.journal import outcomes
from kernel_lsp.records import EventKind, SearchMode, SearchSummary, StopReason

SUMMARY = SearchSummary(mode=SearchMode.EVOLVE, stop=StopReason.CANDIDATES, attempts=2)
BEFORE = replace(proposal(id="p-before"), created="2026-11-21T12:00:07.455+00:00")
NOW = replace(proposal(id="p-now"), created="2026-11-21T12:00:07.457+00:00")
BEGUN = "2026-11-21T12:00:07.456+00:00"


def test_a_search_that_goes_on_tells_only_what_it_has_judged_now() -> None:
    found = replace(outcome(BEFORE, NOW), search=SUMMARY)
    # The other was judged before a restart, in the same second.
    assert outcomes.fresh(found, BEGUN) == [NOW]
    assert outcomes.fresh(replace(found, search=None), BEGUN) == [BEFORE, NOW]
    assert outcomes.fresh(replace(found, cached=True), BEGUN) == []


def test_a_verdict_names_its_proposer_and_cost_once() -> None:
    where: dict[str, Any] = {"folder": "/project", "path": "/project/model.py", "client": None}
    (judged,) = outcomes.events(EventKind.EVALUATED, [NOW], **where)
    assert judged.data["provenance"]["skills"] == ["sum-method"]
    assert judged.data["cost"] == {"evaluation_s": NOW.evaluation.seconds}
    (offered,) = outcomes.events(EventKind.OFFERED, [NOW], **where)
    assert sorted(offered.data) == ["after", "before", "verdict"]
