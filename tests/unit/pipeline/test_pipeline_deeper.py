"""When a job searches beyond the quick search, with which seeds, and what becomes of both
results."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from editor_helpers import TEXT, proposal

from kernel_lsp.config import Settings
from kernel_lsp.errors import ArchiveError
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline import deep, order
from kernel_lsp.pipeline.opened import JobBench
from kernel_lsp.records import (
    EvalStatus,
    Interval,
    Job,
    Outcome,
    Progress,
    Proposal,
    SearchBudget,
    SearchMode,
    SearchPlan,
    SearchSummary,
    StopReason,
    Verdict,
)
from kernel_lsp.rewrite.client import Capture
from kernel_lsp.skillbook import Skillbook

JOB = Job(text=TEXT, path="/project/model.py", qualname="Model")
QUICK = proposal()
DEEP = replace(
    proposal(id="p-deep"),
    evaluation=replace(QUICK.evaluation, speedups={"eager": Interval(low=8.0, mid=9.0, high=10.0)}),
)
SUMMARY = SearchSummary(mode=SearchMode.EVOLVE, stop=StopReason.STAGNATION, attempts=5)


class Scripted:
    """Both searches: what they are asked for, and what they find."""

    def __init__(self, pipeline: order.Pipeline) -> None:
        self.pipeline = pipeline
        self.found: tuple[Proposal, ...] = (DEEP,)
        self.error: Exception | None = None
        self.notes: tuple[str, ...] = ()
        self.quick_runs = 0
        self.plans: list[SearchPlan] = []
        self.seeds: list[list[str]] = []
        self.turns: list[str] = []
        self.judged = QUICK
        self.warmed: list[str] = []

    async def quick(self, one: Any, report: object) -> Outcome:
        self.quick_runs += 1
        assert self.turns == ["taken"]
        return await order._outcome(one, (self.judged,))

    async def deeper(
        self, one: Any, plan: SearchPlan, seeds: Sequence[Proposal], *rest: object
    ) -> tuple[tuple[Proposal, ...], SearchSummary]:
        self.plans.append(plan)
        self.seeds.append([seed.id for seed in seeds])
        assert self.turns == []  # it takes its own, judgement by judgement
        if self.error:
            raise self.error
        return self.found, replace(SUMMARY, mode=plan.mode, notes=self.notes)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        self.turns.append("taken")
        yield
        self.turns.clear()

    async def run(self, job: Job, said: list[str] | None = None) -> Outcome:
        def report(progress: Progress) -> None:
            if said is not None:
                said.append(progress.message)

        return await self.pipeline.optimize(job, report, self.turn)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def scripted(**settings: Any) -> Scripted:
        pipeline = order.Pipeline(Settings(data_dir=str(tmp_path), **settings))
        both = Scripted(pipeline)
        bench = JobBench(probe=Probe(python="python"), device="cpu", skills=Skillbook(skills=()))

        async def on_the_bench(job: Job, target: str) -> JobBench:
            return bench

        @contextlib.asynccontextmanager
        async def opened(prepared: object, *rest: object) -> AsyncIterator[Any]:
            capture = Capture(words=(), sites=(), inputs=())
            yield SimpleNamespace(
                prepared=prepared, bench=bench, capture=capture, matches=(), sites=()
            )

        monkeypatch.setattr(pipeline, "bench", on_the_bench)
        monkeypatch.setattr(pipeline, "_quick", both.quick)
        monkeypatch.setattr(
            pipeline, "gate", lambda background: SimpleNamespace(warm=both.warmed.append)
        )
        monkeypatch.setattr(order, "open_target", opened)
        monkeypatch.setattr(deep, "run", both.deeper)
        return both

    return scripted


def planned(mode: SearchMode = SearchMode.EVOLVE) -> Job:
    return replace(JOB, search=SearchPlan(mode=mode))


async def test_a_search_starts_from_what_the_quick_one_found_and_the_better_one_is_offered(
    make: Any,
) -> None:
    both = make()
    outcome = await both.run(planned())
    assert [p.id for p in outcome.proposals] == ["p-deep", "p-Model"]
    assert outcome.search == SUMMARY
    assert both.seeds == [["p-Model"]]
    # Goes on: what is known are its seeds, the quick search is over.
    again = await both.run(planned())
    assert both.quick_runs == 1
    assert both.seeds[1] == ["p-deep", "p-Model"]
    assert not again.cached
    known = await both.run(JOB)  # a quick job gets the best that was ever found
    assert (known.cached, known.best and known.best.id, len(both.plans)) == (True, "p-deep", 2)


async def test_torch_is_not_imported_for_what_is_likely_known(make: Any) -> None:
    both = make()
    await both.run(JOB)
    assert len(both.warmed) == 1
    assert (await both.run(JOB)).cached
    assert len(both.warmed) == 1
    await both.run(replace(JOB, text=TEXT.replace("dim=1", "dim=0")))
    assert len(both.warmed) == 2


async def test_what_a_busy_machine_cut_short_is_judged_again(make: Any) -> None:
    both = make()
    late = replace(QUICK.evaluation, status=EvalStatus.TIMED_OUT, speedups={})
    both.judged = replace(QUICK, evaluation=late, verdict=Verdict.REJECTED)
    outcome = await both.run(JOB)
    assert (outcome.cut_short, outcome.cached) == (True, False)
    both.judged = QUICK
    again = await both.run(JOB)
    assert (again.cut_short, again.cached, both.quick_runs) == (False, False, 2)


@pytest.mark.parametrize("mode", [SearchMode.BEST, SearchMode.TURNS])
async def test_a_model_alone_has_no_seeds_and_the_quick_search_stands_in_where_it_fails(
    make: Any, mode: SearchMode
) -> None:
    both = make(policy="openai")
    outcome = await both.run(planned(mode))
    assert (both.quick_runs, both.seeds) == (0, [[]])
    assert [p.id for p in outcome.proposals] == ["p-deep"]
    both.found = ()
    job = replace(planned(mode), text=TEXT.replace("dim=1", "dim=0"))
    outcome = await both.run(job)
    assert (both.quick_runs, [p.id for p in outcome.proposals]) == (1, ["p-Model"])
    assert outcome.search is not None


@pytest.mark.parametrize(
    ("policy", "background", "plans"),
    [("plan", False, 0), ("openai", True, 0), ("openai", False, 1)],
)
async def test_a_quick_job_gives_a_model_a_few_turns_only_when_somebody_waits(
    make: Any, policy: str, background: bool, plans: int
) -> None:
    both = make(policy=policy)
    outcome = await both.run(replace(JOB, background=background))
    assert both.quick_runs == 1
    assert len(both.plans) == plans
    if plans:
        assert both.plans[0].budget == SearchBudget(candidates=3, seconds=60.0, stagnation=3)
        assert outcome.best is not None
        assert outcome.best.id == "p-deep"


async def test_trouble_with_an_archive_never_costs_the_quick_result(make: Any) -> None:
    both, said = make(policy="openai"), list[str]()
    both.error = ArchiveError("another process is searching", "wait")
    outcome = await both.run(JOB, said)  # nobody asked for a search
    assert [p.id for p in outcome.proposals] == ["p-Model"]
    assert any("another process is searching" in message for message in said)
    with pytest.raises(ArchiveError):
        await both.run(planned())
    assert (await both.run(JOB)).best == QUICK


async def test_every_model_gets_its_turns_and_the_quick_search_runs_once(make: Any) -> None:
    both = make(policy="openai", model="a")
    await both.run(replace(JOB, background=True))  # without a model
    assert (await both.run(JOB)).best == DEEP
    assert (await both.run(JOB)).cached
    other = make(policy="openai", model="b")
    other.notes = ("no language model took part: refused",)
    await other.run(JOB)
    await other.run(JOB)  # it may be there again
    assert (both.quick_runs, len(both.plans), other.quick_runs, len(other.plans)) == (1, 1, 0, 2)
    assert both.plans[0].archive != other.plans[0].archive
