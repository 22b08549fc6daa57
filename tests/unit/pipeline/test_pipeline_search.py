"""The search among candidates: hand-made times and verdicts, no processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from test_pipeline_tournament import evaluation, prepared

from kernel_lsp.agents.plan import RankedPlan
from kernel_lsp.config import Settings
from kernel_lsp.errors import RewriteError, Withdrawn
from kernel_lsp.evaluator.tuning import ORIGINAL, Race, TunedVariant, TunerLost
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline import accuracy, search
from kernel_lsp.pipeline.known import KnownWinners
from kernel_lsp.pipeline.search import RankAgain, TargetSearch
from kernel_lsp.pipeline.tournament import EvaluationRequest, Tournament
from kernel_lsp.records import Candidate, EvalStatus, Evaluation, Proposal, Site, SourceEdit, Step

PROBE = Probe(python="python", triton="3.6", capability="sm_90")
WRONG = Evaluation(status=EvalStatus.WRONG_RESULT, device="cuda", detail="error 3 times eager's")


def candidate(name: str, *, triton: bool = False) -> Candidate:
    body = (
        f'class Model(nn.Module):\n    def forward(self, x):\n        "{name}"\n        return '
        f"x.sum(-1)\n"
    )
    edit = SourceEdit(qualname="Model", target=body)
    return Candidate(
        id=name, edit=edit, program=name, entry="Model", summary=name, uses_triton=triton
    )


def ranked_plan(name: str, *, triton: bool = False, **parameters: list[Any]) -> RankedPlan:
    site = Site(skill=name, site="n", summary="", proofs=(), parameters=parameters, kind=name)
    step = Step(skill=name, site="n", parameters={k: v[0] for k, v in parameters.items()})
    return RankedPlan(
        candidate=candidate(_name([step]), triton=triton), sites=(site,), steps=(step,)
    )


def _name(steps: Sequence[Step]) -> str:
    return "+".join(s.skill + "".join(f":{v}" for v in s.parameters.values()) for s in steps)


class FakeEngine:
    """Names candidates by their steps; ``spaces`` has the choices of a skill's parameters."""

    def __init__(self, ranked_plans: Sequence[RankedPlan]) -> None:
        self.sites = {site.skill: site for c in ranked_plans for site in c.sites}
        self.proposed: list[str] = []

    async def variants(self, steps: Sequence[Step], at: int, limit: int) -> tuple[Candidate, ...]:
        parameters = self.sites[steps[at].skill].parameters
        ((name, choices),) = parameters.items()
        others = [
            steps[at].parameters,
            *({name: c} for c in choices if {name: c} != steps[at].parameters),
        ]
        made = []
        for choice in others[:limit]:
            changed = [*steps]
            changed[at] = Step(skill=steps[at].skill, site="n", parameters=choice)
            one = candidate(_name(changed))
            made.append(
                Candidate(id=one.id, edit=one.edit, program="", entry="M", steps=tuple(changed))
            )
        return tuple(made)

    async def make(self, steps: Sequence[Step]) -> Candidate:
        self.proposed.append(_name(steps))
        if "gone" in _name(steps):
            raise RewriteError("gone")
        return candidate(_name(steps))


@dataclass
class FakeTuner:
    times: dict[str, float]
    asked: list[list[str]] = field(default_factory=list)
    lost_in: int | None = None
    takes_s: float = 0.0
    is_queued: bool = False
    """What it takes is waiting for its turn."""
    waited_s: float = 0.0

    def __post_init__(self) -> None:
        self.known = Race()

    async def race(self, variants: Sequence[TunedVariant], what: str = "") -> Race:
        self.asked.append([v.name for v in variants])
        begun = time.monotonic()
        # Whoever is judged beside it is judged meanwhile, unless that is slow.
        await asyncio.sleep(self.takes_s)
        self.waited_s += time.monotonic() - begun if self.is_queued else 0.0
        if self.lost_in == len(self.asked):
            raise TunerLost("gone")
        self.known.median_ms[ORIGINAL] = self.times[ORIGINAL]
        for variant in variants:
            if variant.name in self.times:
                self.known.median_ms[variant.name] = self.times[variant.name]
            else:
                self.known.dropped[variant.name] = "does not compile"
        names = [name for name in self.known.median_ms if name != ORIGINAL]
        self.known.order = sorted(names, key=self.known.median_ms.__getitem__)
        return self.known


@dataclass
class Played:
    judged: list[str]
    found: tuple[Proposal, ...]
    tuner: FakeTuner
    engine: FakeEngine
    known: KnownWinners

    @property
    def ranking(self) -> list[str]:
        return [f"{p.candidate.id} {p.verdict.value}" for p in self.found]


async def play(
    ranked_plans: list[RankedPlan],
    times: dict[str, float],
    verdicts: dict[str, Evaluation],
    folder: Path,
    *,
    device: str = "cuda",
    budget: int = 8,
    lost_in: int | None = None,
    slow: bool = False,
    again: RankAgain | None = None,
    tuner: FakeTuner | None = None,
) -> Played:
    """``slow``: trials take longer than all races."""
    judged: list[str] = []
    engine, tuner = FakeEngine(ranked_plans), tuner or FakeTuner({}, lost_in=lost_in)
    tuner.times = {ORIGINAL: 10.0, **times}

    async def judge(
        request: EvaluationRequest, report: object, keep: object, wanted: Callable[[], bool]
    ) -> Evaluation:
        name = request.candidate_source.split('"')[1]
        judged.append(name)
        if slow:
            await asyncio.sleep(0.1)
        if not wanted():
            judged[judged.index(name)] = f"{name} withdrawn"
            raise Withdrawn("not timed")
        return verdicts[name]

    @contextlib.asynccontextmanager
    async def opened(request: object) -> AsyncIterator[FakeTuner]:
        yield tuner

    async def given() -> AsyncIterator[RankedPlan]:
        for one in ranked_plans:
            yield one

    tournament = Tournament(
        prepared=prepared(),
        probe=PROBE,
        device=device,
        settings=Settings(),
        judge=judge,
        report=lambda progress: None,
    )
    known = KnownWinners(folder, PROBE, device)
    made = TargetSearch(
        tournament=tournament,
        engine=engine,  # type: ignore[arg-type]
        known=known,
        tuner=opened,  # type: ignore[arg-type]
        device=device,
        budget=budget,
        again=again,
    )
    return Played(judged, await made.run(given()), tuner, engine, known)


def faster(times: float) -> Evaluation:
    return evaluation(eager=times, compiled=times)


async def test_the_default_is_judged_at_once_and_what_won_the_race_afterwards(
    tmp_path: Path,
) -> None:
    one = ranked_plan("f", block=[1, 2, 4])
    times = {"f:1": 5.0, "f:2": 4.0, "f:4": 6.0}
    played = await play([one], times, {"f:1": faster(2.0), "f:2": faster(2.5)}, tmp_path)
    assert played.judged == ["f:1", "f:2"]
    assert played.ranking == ["f:2 faster", "f:1 faster"]
    assert played.engine.proposed == ["f:2"]  # made again as it is offered
    assert played.known.best(one.sites[0]) == {"block": 2}


async def test_what_is_weighed_is_judged_first_and_another_course_is_searched(
    tmp_path: Path,
) -> None:
    weighed, rules = (
        replace(ranked_plan("w", warps=[4, 8]), weighed=True),
        ranked_plan("f", block=[1, 2]),
    )
    times = {"w:4": 5.0, "w:8": 5.0, "f:1": 6.0, "f:2": 3.0}
    played = await play([weighed, rules], times, {"w:4": faster(2.0), "f:2": faster(3.3)}, tmp_path)
    assert played.judged == ["w:4", "f:2"]
    assert played.tuner.asked[0] == ["w:4", "f:1", "f:2"]
    alone = await play([weighed], times, {"w:4": faster(2.0)}, tmp_path / "alone")
    assert alone.tuner.asked[0] == ["w:4", "w:8"]


async def test_nothing_more_is_judged_when_the_first_is_the_best(tmp_path: Path) -> None:
    one = ranked_plan("f", block=[1, 2])
    played = await play([one], {"f:1": 4.0, "f:2": 3.9}, {"f:1": faster(2.5)}, tmp_path)
    assert played.judged == ["f:1"]  # 2.5 % is no reason for another full judgement
    assert played.known.best(one.sites[0]) == {"block": 1}


async def test_a_planner_that_is_told_of_the_first_race_suggests_one_more_course(
    tmp_path: Path,
) -> None:
    ranked_plans, new = [ranked_plan("f", block=[1, 2]), ranked_plan("g")], ranked_plan("h")
    times = {"f:1": 5.0, "g": 6.0, "f:2": 5.2, "h": 2.0}
    verdicts = {"f:1": faster(2.0), "h": faster(5.0)}
    told: list[tuple[str, float | None]] = []

    async def again(first: RankedPlan, speedup: float | None) -> RankedPlan | None:
        told.append((first.candidate.id, speedup))
        return new

    played = await play(ranked_plans, times, verdicts, tmp_path, again=again)
    assert told == [("f:1", 2.0)]
    assert played.tuner.asked == [["f:1", "g", "f:2"], ["f:1", "h"]]
    assert played.ranking[0] == "h faster"
    told.clear()
    await play(
        ranked_plans, {"g": 6.0, "h": 2.0}, verdicts | {"g": faster(1.6)}, tmp_path, again=again
    )
    assert told == [("f:1", None)]  # it did not run in the race


async def test_what_is_known_is_not_searched_again(tmp_path: Path) -> None:
    one = ranked_plan("f", block=[1, 2])
    times, verdicts = {"f:1": 5.0, "f:2": 4.0}, {"f:1": faster(2.0), "f:2": faster(2.5)}
    await play([one], times, verdicts, tmp_path)
    again = await play([one], times, verdicts, tmp_path)
    assert again.tuner.asked == [] and again.judged == ["f:1"]  # the planner would start from f:2


async def test_competing_courses_race_and_then_the_best_one_is_tuned(tmp_path: Path) -> None:
    ranked_plans = [ranked_plan("f"), ranked_plan("g", block=[1, 2]), ranked_plan("h")]
    times = {"f": 6.0, "g:1": 5.0, "h": 9.0, "g:2": 4.0}
    verdicts = {"f": faster(1.6), "g:1": faster(2.0), "g:2": faster(2.5)}
    played = await play(ranked_plans, times, verdicts, tmp_path)
    assert played.tuner.asked == [["f", "g:1", "h"], ["g:1", "g:2"]]
    assert played.judged == ["f", "g:1", "g:2"] and played.ranking[0] == "g:2 faster"


@pytest.mark.parametrize(("is_queued", "races"), [(True, 2), (False, 1)])
async def test_waiting_for_a_turn_at_the_device_costs_no_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_queued: bool, races: int
) -> None:
    monkeypatch.setitem(search.TUNE_S, "cuda", 0.5)
    ranked_plans = [ranked_plan("f"), ranked_plan("g", block=[1, 2]), ranked_plan("h")]
    times = {"f": 6.0, "g:1": 5.0, "h": 9.0, "g:2": 4.0}
    verdicts = {"f": faster(1.6), "g:1": faster(2.0), "g:2": faster(2.5)}
    tuner = FakeTuner({}, takes_s=0.6, is_queued=is_queued)
    played = await play(ranked_plans, times, verdicts, tmp_path, tuner=tuner)
    assert len(played.tuner.asked) == races


async def test_what_falls_far_behind_and_gains_little_is_not_timed(tmp_path: Path) -> None:
    """f gains 5 % and g:1 leads it by far; g:2 leads g:1 by less than 1.1, so both are timed."""
    ranked_plans = [ranked_plan("f"), ranked_plan("g", block=[1, 2])]
    times = {"f": 9.5, "g:1": 5.0, "g:2": 4.6}
    verdicts = {"g:1": faster(2.0), "g:2": faster(2.2)}
    played = await play(ranked_plans, times, verdicts, tmp_path, slow=True)
    assert played.judged == ["f withdrawn", "g:1", "g:2"]
    assert played.ranking == ["g:2 faster", "g:1 faster"]


async def test_the_first_that_gains_is_verified_although_another_leads_by_far(
    tmp_path: Path,
) -> None:
    ranked_plans = [ranked_plan("f"), ranked_plan("g")]
    verdicts = {"f": faster(1.6), "g": faster(2.5)}
    played = await play(ranked_plans, {"f": 6.0, "g": 4.0}, verdicts, tmp_path, slow=True)
    assert played.judged == ["f", "g"] and played.ranking == ["g faster", "f faster"]


async def test_what_was_withdrawn_has_its_turn_when_the_better_one_is_wrong(tmp_path: Path) -> None:
    ranked_plans = [ranked_plan("f"), ranked_plan("g")]
    verdicts = {"f": faster(1.6), "g": WRONG}
    played = await play(ranked_plans, {"f": 9.3, "g": 5.0}, verdicts, tmp_path, slow=True)
    assert played.judged == ["f withdrawn", "g", "f"] and played.ranking[0] == "f faster"


async def test_a_safer_class_is_timed_although_a_coarser_one_leads(tmp_path: Path) -> None:
    one = ranked_plan("m", precision=["tf32x3", "tf32"])
    verdicts = {"m:tf32x3": faster(1.3), "m:tf32": WRONG}
    played = await play([one], {"m:tf32x3": 9.5, "m:tf32": 2.0}, verdicts, tmp_path, slow=True)
    assert played.judged == ["m:tf32x3", "m:tf32"] and played.ranking[0] == "m:tf32x3 faster"


async def test_what_cannot_reach_torch_compile_is_not_judged(tmp_path: Path) -> None:
    """f is half as fast as torch.compile: g, 1.2 times f, would be 0.6, and h, 2.5 times f,
    1.25."""
    verdicts = {"f": evaluation(eager=1.25, compiled=0.5), "g": faster(3.0), "h": faster(3.0)}
    played = await play(
        [ranked_plan("f"), ranked_plan("h")], {"f": 8.0, "h": 3.2}, verdicts, tmp_path
    )
    assert played.judged == ["f", "h"]
    verdicts |= {"h": WRONG}
    ranked_plans = [ranked_plan("f"), ranked_plan("g"), ranked_plan("h")]
    played = await play(ranked_plans, {"f": 8.0, "g": 8.0 / 1.2, "h": 3.2}, verdicts, tmp_path)
    assert played.judged == ["f", "h"]


def chained(*ranked_plans: RankedPlan) -> RankedPlan:
    """One course with the steps of all."""
    steps = tuple(step for one in ranked_plans for step in one.steps)
    sites = tuple(site for one in ranked_plans for site in one.sites)
    return RankedPlan(candidate=candidate(_name(steps)), sites=sites, steps=steps)


async def test_a_step_that_does_harm_is_left_out(tmp_path: Path) -> None:
    """c has no parameters, f has: the race meets f's other choice and the chain without either."""
    one = chained(ranked_plan("c"), ranked_plan("f", block=[1, 2]))
    times = {"c+f:1": 5.0, "c+f:2": 4.8, "f:1": 3.0, "c": 9.0}
    played = await play([one], times, {"c+f:1": faster(2.0), "f:1": faster(3.3)}, tmp_path)
    assert played.tuner.asked == [["c+f:1", "c+f:2", "f:1", "c"]]
    assert played.judged == ["c+f:1", "f:1"] and played.ranking[0] == "f:1 faster"


async def test_steps_are_tuned_one_after_the_other_from_what_is_best_so_far(tmp_path: Path) -> None:
    one = chained(ranked_plan("f", block=[1, 2]), ranked_plan("g", block=[1, 2]))
    times = {"f:1+g:1": 6.0, "f:2+g:1": 5.0, "f:2+g:2": 4.0, "f:1": 9.0, "g:1": 9.0, "f:2": 9.0}
    verdicts = {"f:1+g:1": faster(1.6), "f:2+g:1": faster(2.0), "f:2+g:2": faster(2.5)}
    played = await play([one], times, verdicts, tmp_path)
    assert played.tuner.asked == [["f:1+g:1", "f:2+g:1", "g:1"], ["f:2+g:1", "f:2+g:2", "f:2"]]
    assert played.judged == ["f:1+g:1", "f:2+g:1", "f:2+g:2"]
    assert [played.known.best(site) for site in one.sites] == [{"block": 2}, {"block": 2}]


async def test_a_coarser_class_that_is_wrong_is_followed_by_a_safer_one(tmp_path: Path) -> None:
    one = ranked_plan("m", precision=["tf32x3", "bf16x6", "bf16x3", "bf16"])
    times = {"m:tf32x3": 9.5, "m:bf16x6": 7.0, "m:bf16x3": 4.0, "m:bf16": 2.0}
    verdicts = {
        "m:tf32x3": faster(1.2),
        "m:bf16": WRONG,
        "m:bf16x3": WRONG,
        "m:bf16x6": faster(1.4),
    }
    played = await play([one], times, verdicts, tmp_path)
    assert played.judged == ["m:tf32x3", "m:bf16", "m:bf16x3", "m:bf16x6"]
    assert played.ranking[0] == "m:bf16x6 faster"
    assert played.known.best(one.sites[0]) == {"precision": "bf16x6"}


async def test_what_is_as_coarse_as_a_wrong_one_is_not_judged(tmp_path: Path) -> None:
    """The class that failed is the second of three: the third is not tried, though it looks
    faster."""
    one = ranked_plan("m", precision=["safe", "middle", "coarse"])
    times = {"m:safe": 9.0, "m:middle": 4.0, "m:coarse": 5.0}
    played = await play([one], times, {"m:safe": faster(1.3), "m:middle": WRONG}, tmp_path)
    assert played.judged == ["m:safe", "m:middle"] and played.ranking[0] == "m:safe faster"


async def test_how_safe_a_class_is_does_not_depend_on_the_order_of_the_choices(
    tmp_path: Path,
) -> None:
    one = ranked_plan("m", precision=["bf16x3", "tf32", "tf32x3"])
    times = {"m:bf16x3": 4.0, "m:tf32": 2.0, "m:tf32x3": 6.0}
    verdicts = {"m:bf16x3": WRONG, "m:tf32": WRONG, "m:tf32x3": faster(1.6)}
    played = await play([one], times, verdicts, tmp_path)
    assert played.judged == ["m:bf16x3", "m:tf32", "m:tf32x3"]


async def test_another_course_is_not_taken_down_by_a_wrong_one(tmp_path: Path) -> None:
    ranked_plans = [ranked_plan("m", precision=["coarse"]), ranked_plan("p")]
    played = await play(
        ranked_plans, {"m:coarse": 3.0, "p": 5.0}, {"m:coarse": WRONG, "p": faster(2.0)}, tmp_path
    )
    assert played.judged == ["m:coarse", "p"] and played.ranking[0] == "p faster"


async def test_nothing_that_looks_slower_than_the_original_is_judged(tmp_path: Path) -> None:
    ranked_plans = [ranked_plan("f"), ranked_plan("g")]
    played = await play(
        ranked_plans, {"f": 12.0, "g": 11.0}, {"f": evaluation(eager=0.8)}, tmp_path
    )
    assert played.judged == ["f"] and played.ranking == ["f correct"]


async def test_full_judgements_are_bounded_by_the_budget(tmp_path: Path) -> None:
    ranked_plans = [ranked_plan(name) for name in "fghij"]
    times = {name: 5.0 - number for number, name in enumerate("fghij")}
    for budget, expected in ((1, ["j"]), (2, ["f", "j"]), (8, ["f", "j", "i", "h"])):
        played = await play(
            ranked_plans[: max(budget, 5)],
            times,
            dict.fromkeys("fghij", WRONG),
            tmp_path,
            budget=budget,
        )
        assert played.judged == expected


async def test_a_lost_tuner_leaves_the_quick_judgements(tmp_path: Path) -> None:
    ranked_plans = [ranked_plan("f"), ranked_plan("g")]
    verdicts = {"f": faster(2.0), "g": evaluation(eager=1.5)}
    played = await play(ranked_plans, {}, verdicts, tmp_path, lost_in=1)
    assert played.judged == ["f", "g"] and played.ranking == ["f faster", "g correct"]


async def test_a_tuner_lost_later_leaves_what_it_had_found(tmp_path: Path) -> None:
    ranked_plans = [ranked_plan("f"), ranked_plan("g", block=[1, 2])]
    times = {"f": 6.0, "g:1": 5.0}
    played = await play(
        ranked_plans, times, {"f": faster(1.6), "g:1": faster(2.0)}, tmp_path, lost_in=2
    )
    assert played.judged == ["f", "g:1"] and played.ranking[0] == "g:1 faster"


async def test_a_winner_that_the_engine_takes_back_is_passed_over(tmp_path: Path) -> None:
    one = ranked_plan("f", block=["old", "gone", "new"])
    times = {"f:old": 6.0, "f:gone": 2.0, "f:new": 4.0}
    played = await play([one], times, {"f:old": faster(1.6), "f:new": faster(2.5)}, tmp_path)
    assert played.judged == ["f:old", "f:new"]


async def test_on_a_cpu_the_race_follows_the_first_and_kernels_are_only_checked(
    tmp_path: Path,
) -> None:
    ranked_plans = [ranked_plan("p"), ranked_plan("q"), ranked_plan("k", triton=True)]
    slow = evaluation(eager=0.9)
    right = Evaluation(status=EvalStatus.PASSED, device="interpreter")
    times = {"p": 6.0, "q": 5.0}
    verdicts = {"p": faster(1.5), "q": faster(2.0)}
    played = await play(ranked_plans, times, verdicts, tmp_path, device="cpu", slow=True)
    assert played.tuner.asked == [["p", "q"]] and played.judged == ["p", "q"]
    assert played.ranking[0] == "q faster"
    played = await play(ranked_plans, {"p": 5.0, "q": 6.0}, verdicts, tmp_path, device="cpu")
    assert played.judged == ["p"]
    played = await play(
        ranked_plans, times, {"q": slow, "p": slow, "k": right}, tmp_path, device="cpu"
    )
    assert played.judged == ["p", "q", "k"]


async def test_what_torch_compile_makes_is_judged_only_when_nothing_else_is_faster(
    tmp_path: Path,
) -> None:
    compiled = ranked_plan("c")
    slow = dataclasses.replace(compiled.candidate, program="torch.compile(function)")
    ranked_plans = [
        ranked_plan("f"),
        dataclasses.replace(compiled, candidate=slow),
        ranked_plan("g"),
    ]
    times = {"f": 6.0, "g": 5.0}
    verdicts = {"f": faster(1.6), "g": faster(2.0), "c": faster(1.3)}
    played = await play(ranked_plans, times, verdicts, tmp_path)
    assert played.tuner.asked == [["f", "g"]] and played.judged == ["f", "g"]
    verdicts |= {"f": evaluation(eager=0.9), "g": evaluation(eager=0.9)}
    played = await play(ranked_plans, times, verdicts, tmp_path)
    assert played.judged == ["f", "g", "c"] and played.ranking[0] == "c faster"


async def test_a_slow_planner_does_not_hold_up_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "PLAN_S", 0.0)
    ranked_plans = [ranked_plan("f"), ranked_plan("g"), ranked_plan("h")]
    times = {"f": 6.0, "g": 5.0, "h": 1.0}
    played = await play(ranked_plans, times, {"f": faster(1.6), "g": faster(2.0)}, tmp_path)
    assert played.tuner.asked == [["f", "g"]] and played.judged == ["f", "g"]


async def test_no_course_is_no_proposal(tmp_path: Path) -> None:
    played = await play([], {}, {}, tmp_path)
    assert played.found == () and played.judged == []


async def test_one_course_without_parameters_needs_no_race(tmp_path: Path) -> None:
    played = await play([ranked_plan("f")], {}, {"f": faster(2.0)}, tmp_path)
    assert played.tuner.asked == [] and played.ranking == ["f faster"]


async def test_a_failure_of_the_comparison_ends_the_judgement_beside_it(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def judge(*_: object) -> Evaluation:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        raise AssertionError("unreachable")

    async def given() -> AsyncIterator[RankedPlan]:
        yield ranked_plan("f")
        await asyncio.sleep(0)
        raise RuntimeError("the engine broke")

    tournament = Tournament(
        prepared=prepared(),
        probe=PROBE,
        device="cuda",
        settings=Settings(),
        judge=judge,
        report=lambda progress: None,
    )
    made = TargetSearch(
        tournament=tournament,
        engine=FakeEngine([]),  # type: ignore[arg-type]
        known=KnownWinners(tmp_path, PROBE, "cuda"),
        tuner=lambda request: contextlib.nullcontext(),  # type: ignore[arg-type, return-value]
        device="cuda",
        budget=8,
    )
    with pytest.raises(RuntimeError, match="broke"):
        await made.run(given())
    assert ended.is_set()


# --- a safer class of precision ------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "verdicts", "judged"),
    [
        (
            {"c:tf32": 2.0, "d": 11.0},
            {"c:tf32": WRONG, "c:tf32x3": faster(1.5)},
            ["c:tf32", "c:tf32x3"],
        ),
        ({"c:tf32": 2.0, "d": 3.0}, {"c:tf32": WRONG, "d": faster(3.0)}, ["c:tf32", "d"]),
        ({"c:tf32": 2.0, "d": 11.0}, {"c:tf32": WRONG, "c:tf32x3": WRONG}, ["c:tf32", "c:tf32x3"]),
    ],
    ids=["all that is left", "something else is faster", "wrong again"],
)
async def test_what_is_wrong_in_a_coarse_class_is_tried_in_the_next_safer_one(
    times: dict[str, float],
    verdicts: dict[str, Evaluation],
    judged: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(search.MAX_VARIANTS, "cuda", 1)  # the races see the coarse one alone
    ranked_plans = [ranked_plan("c", precision=["tf32", "tf32x3"]), ranked_plan("d")]
    played = await play(ranked_plans, times, verdicts, tmp_path)
    assert played.judged == judged


def test_the_next_safer_class_of_every_step() -> None:
    def step(precision: str | None, **parameters: Any) -> Step:
        chosen = {"precision": precision} if precision else {}
        return Step(skill="c", site="n", parameters={**parameters, **chosen})

    (conv,) = ranked_plan("c", precision=["tf32", "tf32x3", "ieee"], block=[1, 2]).sites
    (own,) = ranked_plan("c", precision=["exact", "fast"]).sites
    (plain,) = ranked_plan("c", block=[1, 2]).sites
    assert accuracy.safer([conv], [step("tf32", block=2)]) == (step("tf32x3", block=2),)
    assert accuracy.safer([conv, plain], [step(None), step(None, block=1)]) == (
        step("tf32x3"),
        step(None, block=1),
    )  # without one it has the first choice
    assert accuracy.safer([conv, own], [step("ieee"), step("fast")]) == (
        step("ieee"),
        step("exact"),
    )
    assert accuracy.safer([conv, own, plain], [step("ieee"), step("exact"), step(None)]) is None
