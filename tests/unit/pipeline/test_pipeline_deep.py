"""A deeper search put together: real tournament, archive and workshop, a scripted engine and
gate."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from scripted_model import Say, ScriptedModel
from search_helpers import attempt
from test_pipeline_tournament import evaluation, prepared

from kernel_lsp import skillbook
from kernel_lsp.config import Settings
from kernel_lsp.errors import ArchiveError, EvaluationError
from kernel_lsp.evaluator import EvaluationRequest
from kernel_lsp.evaluator import evidence as evidences
from kernel_lsp.evaluator.findings import PartialEvaluation
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline import deep, turns
from kernel_lsp.pipeline.known import KnownWinners
from kernel_lsp.pipeline.opened import JobBench, Opened
from kernel_lsp.pipeline.tournament import FULL, Tournament
from kernel_lsp.records import (
    Attempt,
    Candidate,
    Evaluation,
    ModelInfo,
    Move,
    MoveTally,
    Progress,
    SearchBudget,
    SearchMode,
    SearchPlan,
    Site,
    SourceEdit,
    Step,
    StopReason,
    Verdict,
)
from kernel_lsp.rewrite.client import Capture
from kernel_lsp.search.bandit import BanditArms

SITES = (
    Site(skill="f", site="n", summary="f", proofs=(), parameters={"a": [0, 1, 2, 3]}, benefit=0.5),
    Site(skill="g", site="n", summary="g", proofs=(), benefit=0.2),
)


class Engine:
    """Writes the steps into a docstring, where the judge reads them."""

    async def look(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        taken = {step.skill for step in steps}
        return tuple(site for site in SITES if site.skill not in taken)

    async def make(self, steps: Sequence[Step]) -> Candidate:
        name = "+".join(s.skill + "".join(map(str, s.parameters.values())) for s in steps)
        body = (
            f"class Model(nn.Module):\n    def forward(self, x):\n        '{name}'\n        "
            f"return x\n"
        )
        edit = SourceEdit(qualname="Model", target=body)
        return Candidate(
            id=name, edit=edit, program="", entry="Model", steps=tuple(steps), summary=name
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses before a model that fails is asked again."""
    monkeypatch.setattr("kernel_lsp.agents.backbones.transport.BACKOFF_S", 0.01)


def speedup(name: str) -> float:
    """f alone gains with its parameter, g adds to it."""
    parts = name.split("+")
    return 1.0 + sum(0.2 + 0.2 * int(p[1:]) if p.startswith("f") else 0.3 for p in parts)


@dataclass
class Scene:
    folder: Path
    judged: list[tuple[str, bool]] = field(default_factory=list)
    said: list[Progress] = field(default_factory=list)
    kept: bool = True
    """The gate hands out evidence."""
    stop_at: int | None = None
    """The judgement in which the process is killed, as far as the search can tell."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    in_turn: int = 0

    async def judge(
        self, request: EvaluationRequest, report: Any, keep: Any, *_: Any
    ) -> Evaluation:
        assert self.in_turn, "judged without a turn on the device"
        name, full = request.candidate_source.split("'")[1], request.budget is FULL
        self.judged.append((name, full))
        found = evaluation(eager=speedup(name), compiled=speedup(name) if full else None)
        if self.kept:
            keep(evidences.gather(evidences.with_seed(request), PartialEvaluation(), found))
        if self.stop_at is not None and len(self.judged) >= self.stop_at:
            self.reached.set()
            await asyncio.sleep(600)
        return found

    @contextlib.asynccontextmanager
    async def turn(self) -> Any:
        self.in_turn += 1
        yield
        self.in_turn -= 1

    def opened(self, **job: Any) -> Opened:
        ready = prepared()
        ready = replace(ready, job=replace(ready.job, search=SearchPlan(), **job))
        probe = Probe(python="python", torch="2", triton=None)
        bench = JobBench(probe=probe, device="cpu", skills=skillbook.load([]))
        tournament = Tournament(
            prepared=ready,
            probe=probe,
            device="cpu",
            settings=self.settings(),
            judge=self.judge,
            report=self.said.append,
        )
        return Opened(
            prepared=ready,
            bench=bench,
            gate=None,  # type: ignore[arg-type]
            engine=Engine(),  # type: ignore[arg-type]
            capture=Capture(words=("add",), sites=SITES, inputs=(), read_bytes=2**30),
            matches=(),
            sites=SITES,
            compiling=None,
            known=KnownWinners(self.folder, probe, "cpu"),
            tournament=tournament,
        )

    def settings(self, **more: Any) -> Settings:
        return Settings(data_dir=str(self.folder), **more)

    async def search(self, plan: SearchPlan, *, job: Any = None, **settings: Any) -> Any:
        one = self.opened(**(job or {}))
        with_turn: turns.TakeTurn = self.turn
        seeds = []
        if plan.mode is SearchMode.EVOLVE:
            async with self.turn():
                seeds = [
                    (
                        await one.tournament.judged(await Engine().make([_first()]), full=True)
                    ).proposal
                ]
        return await deep.run(
            one, plan, seeds, self.settings(**settings), self.said.append, with_turn
        )


def _first() -> Step:
    return Step(skill="f", site="n", parameters={"a": 0})


def plan(mode: SearchMode = SearchMode.EVOLVE, **budget: Any) -> SearchPlan:
    return SearchPlan(mode=mode, budget=SearchBudget(**({"seconds": None} | budget)))


async def test_without_a_model_parameters_and_chains_are_searched(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    found, summary = await scene.search(plan(stagnation=99))
    assert summary.stop is StopReason.EXHAUSTED and summary.notes == ()
    assert found[0].candidate.summary in ("f3+g", "g+f3")
    assert found[0].verdict is Verdict.FASTER
    quick = [name for name, full in scene.judged[1:] if not full]
    assert len(quick) == len(set(quick)) and "f0" not in quick
    assert found[0].candidate.proposer in ("mutate/1", "chain/1") and found[0].candidate.search
    assert summary.cost.evaluations == len(scene.judged) - 1 and summary.gains >= 1
    assert summary.moves["seed"].improved == 1 and set(summary.moves) == {"seed", "mutate", "chain"}
    best = [p for p in scene.said if p.phase == "search" and p.proposal]
    assert best[-1].proposal is not None and best[-1].proposal.id == found[0].id


async def test_the_skills_that_took_part_are_learned_of(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.search(plan(candidates=4))
    await scene.search(plan(candidates=4))  # the same attempts once more: nothing is learned twice
    arms = {arm.skill: arm for arm in BanditArms(tmp_path).stats()}
    assert arms["f"].device == "cpu" and arms["f"].bottleneck.value == "memory"
    judged = sum("f" in name for name in {name for name, _ in scene.judged})
    assert judged <= arms["f"].tries <= judged + 1  # the seed was measured twice


async def test_a_killed_search_goes_on_and_judges_nothing_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stop_at=4)
    running = asyncio.create_task(scene.search(plan(stagnation=99)))
    await asyncio.wait_for(scene.reached.wait(), 120)
    running.cancel()  # in the middle of a judgement, whose evidence does not lie there yet
    with pytest.raises(asyncio.CancelledError):
        await running
    interrupted = scene.judged.pop()
    scene.stop_at = None
    _, summary = await scene.search(plan(stagnation=99))
    assert summary.resumed >= 2 and summary.stop is StopReason.EXHAUSTED
    mine = [one for one in scene.judged if one != ("f0", True)]
    assert len(mine) == len(set(mine)) and interrupted in mine


async def test_a_verdict_whose_evidence_lies_there_is_not_judged_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    _, first = await scene.search(plan(candidates=2))
    archive = Path(first.archive)
    with sqlite3.connect(archive) as database:  # as if killed between evidence and archive
        number, body = database.execute(
            "SELECT number, body FROM attempts WHERE body LIKE '%mutate%' OR body LIKE '%chain%'"
        ).fetchall()[-1]
        data = json.loads(body)
        candidate = data["proposal"]["candidate"]
        pending = {**data, "proposal": None, "complete": False, "fitness": None, "cell": None}
        database.execute(
            "UPDATE attempts SET state = 'begun', body = ? WHERE number = ?",
            (json.dumps({"attempt": pending, "candidate": candidate}), number),
        )
    database.close()
    before = len([one for one in scene.judged if one[0] == candidate["summary"]])
    _, second = await scene.search(plan(candidates=3))
    after = len([one for one in scene.judged if one[0] == candidate["summary"]])
    assert second.resumed == first.attempts - 1
    assert after == before


async def test_a_search_of_another_editor_is_not_disturbed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stop_at=2)
    running = asyncio.create_task(scene.search(plan()))
    await asyncio.wait_for(scene.reached.wait(), 120)
    with pytest.raises(ArchiveError, match="another process is searching"):
        await Scene(tmp_path).search(plan())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_archive_may_be_named_and_is_refused_for_another_target(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    _, summary = await Scene(tmp_path).search(replace(plan(candidates=1), archive=str(path)))
    assert summary.archive == str(path) and path.exists()
    scene = Scene(tmp_path)
    one = scene.opened()
    other = replace(
        one, prepared=replace(one.prepared, workload=replace(one.prepared.workload, name="y"))
    )
    with pytest.raises(ArchiveError, match="workload changed"):
        await deep.run(
            other,
            replace(plan(), archive=str(path)),
            (),
            scene.settings(),
            scene.said.append,
            scene.turn,
        )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"policy": "openai"}, "needs to know where the model is served"),
        ({"policy": "openai", "endpoint": "http://127.0.0.1:9/v1"}, "127.0.0.1:9"),
        ({"policy": "openai", "endpoint": "https://models.example/v1"}, "nobody allowed it"),
    ],
)
async def test_without_a_usable_model_the_rest_goes_on(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    scene = Scene(tmp_path)
    found, summary = await scene.search(plan(candidates=3), model_timeout_s=60.0, **settings)
    (note,) = summary.notes
    assert "no language model took part" in note and why in note
    assert len(found) == 3 and summary.stop is StopReason.CANDIDATES
    assert any(why in progress.message for progress in scene.said)


async def test_a_model_alone_has_no_seeds_and_no_company(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with ScriptedModel([Say(tool="apply_skill")]) as server:
        found, summary = await scene.search(
            plan(SearchMode.TURNS, candidates=3), policy="openai", endpoint=server.endpoint
        )
    assert found and all(p.candidate.proposer.startswith("openai:scripted") for p in found)
    assert summary.cost.tokens > 0 and set(summary.moves) <= {"restart", "refine"}
    assert all(p.candidate.turn >= 1 for p in found)


async def test_the_deterministic_backbone_proposes_turns_too(tmp_path: Path) -> None:
    found, summary = await Scene(tmp_path).search(plan(SearchMode.TURNS, candidates=4))
    assert found[0].verdict is Verdict.FASTER and found[0].candidate.proposer.startswith("plan")
    assert summary.cost.tokens == 0 and summary.notes == ()


async def test_everybody_together(tmp_path: Path) -> None:
    """Model and quick proposers in one search: all are archived under their own names."""
    scene = Scene(tmp_path)
    async with ScriptedModel(
        [Say(tool="apply_skill"), Say("no call here"), Say(status=500)]
    ) as server:
        settings = {"policy": "openai", "endpoint": server.endpoint, "model_timeout_s": 60.0}
        found, summary = await scene.search(plan(candidates=6), **settings)
    assert {p.candidate.proposer.split("/")[0] for p in found} & {"mutate", "chain"}
    assert summary.attempts >= 7 and summary.stop in (StopReason.CANDIDATES, StopReason.EXHAUSTED)


async def test_in_the_background_no_model_is_asked(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with ScriptedModel([Say(tool="apply_skill")]) as server:
        settings = {"policy": "openai", "endpoint": server.endpoint}
        await scene.search(plan(candidates=2), job={"background": True}, **settings)
        assert server.chats == []


async def test_a_target_that_cannot_be_judged_by_ends_the_search_and_frees_the_archive(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    one = scene.opened()

    async def judge(*_: object) -> Evaluation:
        raise EvaluationError("the reference crashes")

    broken = replace(one, tournament=replace(one.tournament, judge=judge))
    with pytest.raises(EvaluationError, match="crashes"):
        await deep.run(broken, plan(), (), scene.settings(), scene.said.append, scene.turn)
    await scene.search(plan(candidates=1))


def test_a_model_takes_turns_with_the_judge_where_it_computes_on_the_same_device() -> None:
    plan = ModelInfo(backbone="plan", model="2")
    child = ModelInfo(backbone="transformers", model="m")
    here = ModelInfo(
        backbone="openai", model="m", origin="http://127.0.0.1:8000", on_measured_gpu=True
    )
    away = ModelInfo(backbone="openai", model="m", origin="https://models.example.com", remote=True)
    models = (None, plan, child, here, away)
    assert [deep.disturbs(model, "cpu") for model in models] == [False, False, True, True, False]
    assert [deep.disturbs(model, "cuda") for model in models] == [False, False, False, True, False]


def test_moves_are_counted_with_what_they_brought() -> None:
    """A seed at 2x, a mutation at 4x, a quick one at 9x that counts for nothing, one that is
    wrong."""
    known: list[Attempt] = [
        attempt(0, 2.0, move=Move.SEED),
        attempt(1, 4.0),
        attempt(2, 9.0, full=False),
        attempt(3, None),
        attempt(4, 3.0, move=Move.CHAIN),
    ]
    found = deep.tally(known)
    assert found[Move.SEED] == MoveTally(
        tries=1, right=1, improved=1, gain=pytest.approx(0.693, abs=1e-3)
    )
    assert found[Move.MUTATE] == MoveTally(
        tries=3, right=2, improved=1, gain=pytest.approx(0.693, abs=1e-3)
    )
    assert found[Move.CHAIN] == MoveTally(tries=1, right=1)
    assert deep.gains(known) == 1
