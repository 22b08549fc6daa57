"""From accepted work to drafts: which rewrites, which searches, and what is turned down."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from library_helpers import verification
from test_pipeline_deep import Scene, plan
from test_pipeline_tournament import evaluation

from kernel_lsp import wire
from kernel_lsp.config import Settings
from kernel_lsp.host import Host
from kernel_lsp.journal import Journal
from kernel_lsp.library import SkillLibrary
from kernel_lsp.pipeline import learning
from kernel_lsp.records import (
    ArgSpec,
    Attempt,
    Event,
    EventKind,
    Move,
    Proposal,
    Standing,
    Step,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.skillbook import Skillbook
from tests.unit.library.test_library_usage import MINE, proposal

ROWS = (ArgSpec(name="x", dtype="float32", shape=(512, 512)),)


def judged(name: str, *steps: Step, speed: float = 2.0) -> Proposal:
    found = proposal(name, "plan/2", speed, Verdict.FASTER)
    workload = Workload(name="w", origin=WorkloadOrigin.PRAGMA, inputs=ROWS)
    return replace(found, candidate=replace(found.candidate, steps=steps), workload=workload)


JOB: Any = SimpleNamespace(bench=SimpleNamespace(device="cpu"))

TILES = Step(skill="fused-matmul", site="linear+relu", parameters={"plan": "tiles"})


def journal(path: Path, *events: tuple[str, EventKind]) -> Journal:
    found = Journal.open(path / "journal.db")
    stored = {
        "a": judged("a", TILES),
        "b": judged("b", Step(skill="compile-target", site="x")),
        "c": judged("c"),
    }
    for one in stored.values():
        found.save(one, folder=str(path), path="m.py", keep_source=False)
    for minute, (name, kind) in enumerate(events):
        time = f"2026-11-21T12:{minute:02d}:00+00:00"
        found.record([Event(kind=kind, proposal=name, time=time, folder=str(path), path="m.py")])
    return found


def test_a_kept_rewrite_becomes_a_draft_once_and_without_its_source(tmp_path: Path) -> None:
    library = SkillLibrary(tmp_path)
    with journal(tmp_path, ("a", EventKind.ACCEPTED), ("a", EventKind.KEPT)) as kept:
        ordered, tuned = learning.from_journal(kept, library, Skillbook())
        assert learning.from_journal(kept, library, Skillbook()) == []
    assert (ordered.standing, ordered.origin.event) == (Standing.STAGED, "kept")
    draft, _ = library.staged()
    assert draft.skill.recipe[0].covers == ("linear",) and draft.skill.requires is not None
    assert draft.skill.requires.dtypes == ("float32",)
    found = library.find(tuned.name)
    assert found is not None
    assert found.skill.recipe == (replace(draft.skill.recipe[0], planned=True),)
    assert found.skill.requires == draft.skill.requires


def test_where_code_makes_the_inputs_the_proposal_says_what_they_were(tmp_path: Path) -> None:
    """A workload by get_inputs() tells no shapes."""
    made = Workload(name="w", origin=WorkloadOrigin.GET_INPUTS)
    told = replace(judged("a", TILES), workload=made)
    unknown, known = learning.of_kept(told)[0], learning.of_kept(replace(told, inputs=ROWS))[0]
    assert unknown.draft.requires is not None and unknown.draft.requires.elements is None
    assert known.draft.requires is not None and known.draft.requires.dtypes == ("float32",)
    assert known.draft.requires.elements is not None and known.draft.requires.elements.most == 2**22


def test_what_a_gpu_has_judged_is_asked_of_its_architecture() -> None:
    on_cpu = judged("a", TILES)
    seen = replace(on_cpu.evaluation, device="cuda", environment={"capability": "9.0"})
    wanted = [
        learning.of_kept(one)[0].draft.requires
        for one in (on_cpu, replace(on_cpu, evaluation=seen))
    ]
    assert [one and (one.device, one.architectures) for one in wanted] == [
        ("cpu", ()),
        ("cuda", ("sm_90",)),
    ]


def test_what_was_taken_back_only_shown_or_made_by_hand_teaches_nothing(tmp_path: Path) -> None:
    events = [
        ("a", EventKind.KEPT),
        ("a", EventKind.REVERTED),
        ("b", EventKind.OFFERED),
        ("c", EventKind.KEPT),
    ]
    with journal(tmp_path, *events) as found:
        assert learning.from_journal(found, SkillLibrary(tmp_path), Skillbook()) == []


def test_a_lazy_one_is_kept_as_refused_and_not_drafted_again(tmp_path: Path) -> None:
    library = SkillLibrary(tmp_path)
    with journal(tmp_path, ("b", EventKind.KEPT)) as found:
        events = [Event(kind=EventKind.KEPT, proposal="b", time="2026-11-21T12:00:00+00:00")]
        (papers,) = learning.from_events(found, events, tmp_path)
        assert papers.standing is Standing.REFUSED and "advises a compiler" in papers.reason
        assert learning.from_events(found, events, tmp_path) == []
    assert [one.papers.standing for one in library.staged()] == [Standing.REFUSED]


def test_what_a_learned_skill_has_led_to_is_nothing_new() -> None:
    mine = judged("a", TILES)
    assert learning.of_kept(mine)
    assert not learning.of_kept(replace(mine, candidate=replace(mine.candidate, proposer=MINE)))


def attempt(number: int, fitness: float | None, *steps: Step) -> Attempt:
    found = judged(f"c{number}", *steps)
    return Attempt(
        number=number,
        move=Move.SEED if number == 0 else Move.MUTATE,
        proposer="plan/2",
        proposal=replace(found, evaluation=evaluation(eager=fitness or 1.0, low=1.0)),
        fitness=fitness,
        complete=True,
        created="2026-11-21",
    )


def test_a_search_teaches_when_its_best_is_a_fifth_better_than_its_first_and_the_baseline() -> None:
    first, best = attempt(0, 1.5, TILES), attempt(3, 1.8, TILES)
    assert learning.find_improvement([first, attempt(1, None, TILES), best]) == best
    # 1.2 times 1.5 is 1.8.
    assert learning.find_improvement([first, attempt(3, 1.79, TILES)]) is None
    assert learning.find_improvement([attempt(0, 0.5, TILES), attempt(1, 1.19, TILES)]) is None
    assert learning.find_improvement([attempt(0, 0.5, TILES), attempt(1, 1.2, TILES)]) is not None
    # Written by hand: no steps.
    assert learning.find_improvement([attempt(0, 0.5), attempt(1, 9.0)]) is None
    assert learning.find_improvement([]) is None


def test_what_stopped_helping_is_retired_at_the_end_of_a_job(tmp_path: Path) -> None:
    library = SkillLibrary(tmp_path)
    with journal(tmp_path, ("a", EventKind.KEPT)) as found:
        papers, _ = learning.from_journal(found, library, Skillbook())
    library.promote(papers.name, verification())
    said: list[str] = []
    for number in range(8):
        mine = proposal(f"m{number}", MINE.replace("learned-a", papers.name), 1.1)
        ranked = [proposal(f"p{number}", "plan/2", 1.3, Verdict.FASTER), mine]
        learning.count_usage(
            ranked, JOB, Settings(data_dir=str(tmp_path)), lambda step: said.append(step.message)
        )
        assert bool(said) == (number == 7)
    retired = library.current.get(papers.name)
    assert retired is not None and retired.standing is Standing.RETIRED
    assert "the offer in 0 of 8 jobs" in retired.reason


async def test_a_search_that_improved_stages_a_draft(tmp_path: Path) -> None:
    """From 1.2x to 2.1x."""
    scene = Scene(tmp_path / "a")
    await scene.search(plan(stagnation=99))
    (draft,) = (
        one for one in SkillLibrary(tmp_path / "a").staged() if not one.skill.recipe[0].planned
    )
    assert draft.papers.origin.event == "search" and draft.papers.standing is Standing.STAGED
    assert sorted(step.skill for step in draft.skill.recipe) == ["f", "g"]
    assert {"a": 3} in [step.parameters for step in draft.skill.recipe]
    assert any(
        "drafted f-g" in step.message or "drafted g-f" in step.message for step in scene.said
    )


async def test_a_library_that_cannot_be_written_costs_a_search_a_note(tmp_path: Path) -> None:
    (tmp_path / "library").write_text("in the way")
    _, summary = await Scene(tmp_path).search(plan(stagnation=99))
    assert any("nothing was learned of this search" in note for note in summary.notes)


async def test_what_the_editor_reports_as_kept_is_drafted_by_the_host(tmp_path: Path) -> None:
    with journal(tmp_path):
        pass
    replies = io.BytesIO()
    host = Host(tmp_path, wire.Pipe(replies, wire.Seal(bytes(wire.KEY_BYTES), wire.REPLIES)))
    for kind in (EventKind.ACCEPTED, EventKind.KEPT):
        time = "2026-11-21T13:00:00+00:00"
        told = wire.to_json(
            [Event(kind=kind, proposal="a", time=time, folder=str(tmp_path), path="m.py")]
        )
        await host.handle({"op": "record", "id": 1, "events": told})
        assert SkillLibrary(tmp_path).staged() == []
    await host.close()
    assert [one.papers.origin.event for one in SkillLibrary(tmp_path).staged()] == ["kept", "kept"]
