"""Kept rewrites become verified skills while nobody waits: the queue, one piece of work at a time,
and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from library_helpers import lesson
from test_pipeline_proving import FASTER, NAMES, Gate, gate
from test_pipeline_tournament import evaluation

from kernel_lsp.config import Settings
from kernel_lsp.errors import EvaluationError
from kernel_lsp.journal.converting import StoredProposal
from kernel_lsp.journal.outcomes import save_proposals
from kernel_lsp.journal.store import Journal
from kernel_lsp.library import SkillLibrary
from kernel_lsp.pipeline import lessons
from kernel_lsp.pipeline.lessons import IdleWork, LessonNews, LessonQueue, learn_once
from kernel_lsp.pipeline.skill_validation.tasks import ValidationTask, workspace_targets
from kernel_lsp.records import (
    Candidate,
    Event,
    EventKind,
    Proposal,
    Standing,
    Step,
    Verdict,
    Workload,
    WorkloadOrigin,
)


def event(proposal: str, kind: EventKind = EventKind.KEPT, second: int = 0) -> Event:
    return Event(kind=kind, proposal=proposal, time=f"2026-01-02T03:04:{second:02d}+00:00")


def targets(folder: Path, names: Sequence[str] = NAMES) -> tuple[ValidationTask, ...]:
    for name in names:
        (folder / f"{name}.py").write_text("class Model: ...")
    return tuple(ValidationTask(path=folder / f"{name}.py", stamp=name) for name in names)


async def once(pipeline: Gate, queue: LessonQueue, work: IdleWork) -> LessonNews | None:
    return await learn_once(pipeline, queue, lambda name: (), work)  # type: ignore[arg-type]


def test_what_is_kept_waits_until_it_is_taken_back_or_done(tmp_path: Path) -> None:
    queue = LessonQueue(tmp_path)
    queue.note([event("b", second=2), event("a", second=1), event("x", EventKind.ACCEPTED)])
    queue.note([event("a", second=9), event("c", EventKind.KEPT_COMMITTED, second=3)])
    assert queue.waiting() == ("a", "b", "c")
    queue.note([event("b", EventKind.REVERTED)])
    queue.done("c")
    (tmp_path / lessons.FOLDER / lessons.QUEUE / "junk.json").write_text("[")
    assert LessonQueue(tmp_path).waiting() == ("a",)


def test_a_machine_that_is_never_idle_does_not_collect_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lessons, "MAX_QUEUED", 3)
    queue = LessonQueue(tmp_path)
    queue.note([event(str(second), second=second) for second in range(5)])
    assert queue.waiting() == ("2", "3", "4")


async def test_a_draft_is_verified_on_other_targets_and_admitted(tmp_path: Path) -> None:
    library, queue = SkillLibrary(tmp_path), LessonQueue(tmp_path)
    library.stage(lesson())
    pipeline, work = gate(tmp_path, FASTER), IdleWork(targets=targets(tmp_path))
    news = await once(pipeline, queue, work)
    assert news is not None and news.papers is not None
    name = lesson().draft.name
    assert news.line == f"learned {name} (2.00x [2.00, 2.00] on 3 other targets)"
    papers = SkillLibrary(tmp_path).current.get(name)
    assert papers is not None and papers.standing is Standing.VERIFIED
    assert await once(pipeline, queue, work) is None  # nothing is left


async def test_one_that_does_harm_is_refused_and_said(tmp_path: Path) -> None:
    SkillLibrary(tmp_path).stage(lesson())
    slower = {key: 3.0 if key[1] == 4 else 1.5 for key in FASTER}
    news = await once(
        gate(tmp_path, slower), LessonQueue(tmp_path), IdleWork(targets=targets(tmp_path))
    )
    assert news is not None and news.papers is not None
    assert news.papers.standing is Standing.REFUSED and " refused: " in news.line


async def test_too_few_targets_wait_and_the_same_ones_are_not_tried_twice(tmp_path: Path) -> None:
    SkillLibrary(tmp_path).stage(lesson())
    queue, same = LessonQueue(tmp_path), dict.fromkeys(FASTER, 1.5)
    pipeline = gate(tmp_path, same)
    every = targets(tmp_path)
    assert await once(pipeline, queue, IdleWork(targets=every[:2])) is None and not pipeline.asked
    pipeline.fail = [EvaluationError("busy") for _ in range(9)]
    news = await once(pipeline, queue, IdleWork(targets=every))
    assert news is not None and "could not be verified: busy" in news.line
    assert await once(pipeline, queue, IdleWork(targets=every)) is None
    changed = (*every[:2], replace(every[2], stamp="edited"))
    pipeline.fail = []
    assert await once(pipeline, queue, IdleWork(targets=changed)) is not None


def stored(
    name: str, speed: float, second: int, reference: str | None = "x = 1\n"
) -> StoredProposal:
    candidate = Candidate(
        id=name, edit=None, program="", entry="Model", steps=(Step(skill="f", site="n"),)
    )
    proposal = Proposal(
        id=name,
        fingerprint="f",
        fingerprint_after="g",
        qualname="Model",
        workload=Workload(name="w", origin=WorkloadOrigin.PRAGMA),
        candidate=candidate,
        evaluation=evaluation(eager=speed),
        verdict=Verdict.FASTER,
        created=f"2026-01-02T03:04:{second:02d}+00:00",
    )
    return StoredProposal(
        proposal=proposal, folder="w", path="net.py", keep_source=True, hashes={},
        reference=reference,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ((stored("a", 1.1, 1), stored("b", 2.0, 2)), True),
        ((stored("a", 1.9, 1), stored("b", 2.0, 2)), False),  # little better than the first
        ((stored("b", 2.0, 2),), False),  # nothing to compare with
        ((stored("a", 1.1, 1), stored("b", 2.0, 2, None)), False),  # its text was not kept
        ((), False),  # forgotten meanwhile
    ],
)
async def test_a_model_is_asked_of_what_clearly_improved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Any, asked: bool
) -> None:
    """And each only once, whatever comes of it; a model that fails is said."""
    seen: list[str] = []

    async def ask(pipeline: Any, kept: StoredProposal, first: Any, best: Any, *rest: Any) -> Any:
        seen.append(f"{first.candidate.id} {best.candidate.id}")
        return [SimpleNamespace(name="fuse-rows", standing=Standing.STAGED)]

    monkeypatch.setattr(lessons, "_ask", ask)
    queue = LessonQueue(tmp_path)
    queue.note([event("b")])
    pipeline = SimpleNamespace(settings=Settings(data_dir=str(tmp_path), policy="openai"))
    news = await learn_once(pipeline, queue, lambda name: known, IdleWork())  # type: ignore[arg-type]
    assert seen == (["a b"] if asked else []) and queue.waiting() == ()
    assert (news is not None and news.line == "learned: drafted fuse-rows") == asked
    by_rule = SimpleNamespace(settings=Settings(data_dir=str(tmp_path)))
    queue.note([event("b")])
    assert await learn_once(by_rule, queue, lambda name: known, IdleWork()) is None  # type: ignore[arg-type]
    assert queue.waiting() == ("b",)  # until a model is configured


async def test_a_model_that_fails_costs_one_lesson(tmp_path: Path) -> None:
    """The real road: nobody serves at this endpoint, and the target cannot be opened."""
    queue, told = LessonQueue(tmp_path), list[str]()
    queue.note([event("b")])
    known = (stored("a", 1.1, 1), stored("b", 2.0, 2))
    settings = Settings(data_dir=str(tmp_path), policy="openai", endpoint="http://127.0.0.1:9/v1")
    pipeline = gate(tmp_path, {})
    pipeline.settings = settings
    news = await learn_once(
        pipeline,  # type: ignore[arg-type]
        queue,
        lambda name: tuple(replace(one, path="broken.py") for one in known),
        IdleWork(),
        lambda progress: told.append(progress.message),
    )
    assert news is None and queue.waiting() == ()


def test_what_a_kept_proposal_is_told_with(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        for one in (stored("b", 2.0, 2), stored("a", 1.1, 1), stored("c", 2.5, 3)):
            save_proposals(
                journal, [one.proposal], folder=tmp_path, path=tmp_path / "net.py",
                keep_source=True, client=None, reference="x = 1\n",
            )  # fmt: skip
        found = lessons.logged_for(journal, "b")
        assert [one.proposal.id for one in found] == ["a", "b"]
        assert found[-1].reference == "x = 1\n" and lessons.logged_for(journal, "z") == ()


def test_targets_of_a_workspace_are_those_that_say_what_they_are_called_with(
    tmp_path: Path,
) -> None:
    net = (
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    )
    (tmp_path / "known.py").write_text(f"{net}\ndef get_inputs():\n    return [torch.ones(2)]\n")
    (tmp_path / "unknown.py").write_text(net)
    (tmp_path / "broken.py").write_text("class")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    (found,) = workspace_targets(tmp_path, tmp_path / "data")
    assert (found.path.name, found.qualname, found.kernel) == ("known.py", "Net", False)
    assert found.stamp and found.folder == str(tmp_path)


def test_cancelling_a_piece_leaves_the_draft_waiting(tmp_path: Path) -> None:
    async def cancelled() -> None:
        SkillLibrary(tmp_path).stage(lesson())
        queue, work = LessonQueue(tmp_path), IdleWork(targets=targets(tmp_path))
        pipeline = gate(tmp_path, FASTER)
        task = asyncio.create_task(once(pipeline, queue, work))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again = await once(pipeline, queue, work)
        assert again is not None and again.line.startswith("learned ")

    asyncio.run(cancelled())
