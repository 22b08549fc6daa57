"""Verifications with a scripted gate: which arms are judged, how often, what kills and busy
devices cost."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from library_helpers import lesson

from kernel_lsp.config import Settings
from kernel_lsp.errors import CaptureError, EvaluationError
from kernel_lsp.interpreter import Probe
from kernel_lsp.library import SkillLibrary
from kernel_lsp.library.store import Shelved
from kernel_lsp.pipeline import skill_validation
from kernel_lsp.pipeline.skill_validation import Validating, VerificationRequest
from kernel_lsp.records import (
    ArgSpec,
    Candidate,
    EvalStatus,
    Evaluation,
    Job,
    Program,
    Proof,
    Proposal,
    SearchJudgement,
    Site,
    Step,
    TargetKind,
    Verdict,
    Verification,
    Workload,
    WorkloadOrigin,
)
from tests.unit.pipeline.test_pipeline_tournament import evaluation

WORKLOAD = Workload(name="w", origin=WorkloadOrigin.PRAGMA)
SITE = Site(
    skill="fused-matmul",
    site="linear+relu",
    summary="fuse",
    proofs=(Proof(claim="c", holds=True, because="b"),),
    parameters={"warps": [4, 8]},
    benefit=0.5,
)


@dataclass
class Gate:
    """A pipeline whose programs all have one site, and whose judge gives the speeds that it was
    told."""

    settings: Settings
    speeds: dict[tuple[str, int], float | None]
    """(task, warps) -> speed over eager; None: wrong values."""
    asked: list[tuple[str, int]] = field(default_factory=list)
    fail: list[Exception] = field(default_factory=list)
    """Raised by the next judgements, one each."""
    unjudged: int = 0
    """So many judgements end without a verdict."""
    sites: tuple[Site, ...] = (SITE,)
    inputs: tuple[ArgSpec, ...] = (ArgSpec(name=None, dtype="float32", shape=(1024, 1024)),)

    @asynccontextmanager
    async def opened(self, job: Job) -> AsyncIterator[Any]:
        name = Path(job.path).stem
        if name.startswith("broken"):
            raise CaptureError("no workload")
        program = Program(source=name, entry="Model", kind=TargetKind.MODULE)
        target = SimpleNamespace(
            fingerprint="source" if name == "source" else name, qualname="Model"
        )
        yield SimpleNamespace(
            prepared=SimpleNamespace(target=target, program=program, workload=WORKLOAD, job=job),
            bench=SimpleNamespace(
                device="cpu", policy=None, probe=Probe(python="python", torch="2.13.0")
            ),
            capture=SimpleNamespace(inputs=self.inputs),
            identity=lambda: {"program": program, "workload": WORKLOAD, "device": "cpu"},
            sites=self.sites,
            matches=(),
            engine=SimpleNamespace(
                look=self._look,
                make=lambda steps: self._make(name, steps),
                weigh=lambda steps: None,
            ),
            tournament=SimpleNamespace(
                recalled=lambda candidate, full: None,
                judged=lambda candidate, full: self._judged(name, candidate),
            ),
        )

    async def close(self) -> None:
        """Nothing is warm."""

    async def _look(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        return ()

    async def _make(self, name: str, steps: Sequence[Step]) -> Candidate:
        text = f"{name} {[(s.skill, s.site, s.parameters) for s in steps]}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return Candidate(id=digest, edit=None, program=text, entry="Model", steps=tuple(steps))

    async def _judged(self, name: str, candidate: Candidate) -> SearchJudgement:
        key = name, int(candidate.steps[0].parameters["warps"])
        if self.fail:
            raise self.fail.pop()
        self.asked.append(key)
        speed = self.speeds[key]
        found = Evaluation(status=EvalStatus.WRONG_RESULT, device="cpu")
        if speed is not None:
            found = evaluation(eager=speed)
        if self.unjudged:
            self.unjudged -= 1
            found = Evaluation(status=EvalStatus.NOT_RUN, device="cpu")
        return SearchJudgement(
            proposal=Proposal(
                id=candidate.id,
                fingerprint=name,
                fingerprint_after="x",
                qualname="Model",
                workload=WORKLOAD,
                candidate=candidate,
                evaluation=found,
                verdict=Verdict.CORRECT,
                created="2026-11-21T12:00:00",
            )
        )


NAMES = ("a", "b", "c")
FASTER = {(name, warps): speed for name in NAMES for warps, speed in ((4, 1.5), (8, 3.0))}


@pytest.fixture
def draft(tmp_path: Path) -> Shelved:
    """Eight warps instead of four: what was learned."""
    library = SkillLibrary(tmp_path)
    library.stage(lesson())
    (found,) = library.staged()
    return found


def gate(tmp_path: Path, speeds: dict[tuple[str, int], float | None], **more: Any) -> Gate:
    return Gate(settings=Settings(data_dir=str(tmp_path)), speeds=speeds, **more)


async def verified(
    pipeline: Gate,
    draft: Shelved,
    names: Sequence[str] = NAMES,
    library: Sequence[Any] = (),
    **asked: Any,
) -> Verification:
    folder = Path(pipeline.settings.data_dir)
    for name in names:
        (folder / f"{name}.py").write_text("class Model: ...")
    tasks = tuple(folder / f"{name}.py" for name in names)
    proof = Validating(
        pipeline=pipeline,  # type: ignore[arg-type]
        shelved=draft,
        library=library,
        asked=VerificationRequest(tasks=tasks, **asked),
        report=lambda step: None,
    )
    return await proof.run()


async def test_twice_as_fast_on_three_tasks_is_accepted(tmp_path: Path, draft: Shelved) -> None:
    pipeline = gate(tmp_path, {**FASTER, ("b", 8): 2.9, ("c", 8): 3.1})
    found = await verified(pipeline, draft)
    assert found.accepted, found.reason
    assert found.uplift is not None and found.uplift.mean == pytest.approx(0.692, abs=1e-3)
    assert len(pipeline.asked) == 18  # three tasks, three samples, two candidates
    assert {task.gain_null for task in found.tasks} == {task.gain_without for task in found.tasks}
    assert found.credit == pytest.approx({draft.skill.name: found.uplift.mean})
    assert (found.hardware, found.versions) == ("cpu", {"torch": "2.13.0"})


async def test_which_half_of_a_pair_comes_first_changes(tmp_path: Path, draft: Shelved) -> None:
    pipeline = gate(tmp_path, FASTER)
    await verified(pipeline, draft, ["a"], samples=2)
    assert [warps for _, warps in pipeline.asked] in ([4, 8, 8, 4], [8, 4, 4, 8])


async def test_the_task_it_was_learned_from_and_what_cannot_be_used_are_passed_over(
    tmp_path: Path, draft: Shelved
) -> None:
    found = await verified(gate(tmp_path, FASTER), draft, ["source", "broken", "a"])
    assert [task.task for task in found.tasks] == ["a"]
    assert found.skipped == {"the task that it was learned from": 1, "cannot be captured": 1}
    assert not found.accepted and found.undecided and "add tasks" in found.reason
    small = gate(tmp_path, FASTER, inputs=(ArgSpec(name=None, dtype="float32", shape=(2, 2)),))
    found = await verified(small, draft)
    assert found.skipped == {"outside of its requirements": 3}
    assert found.reason == "it applies to none of the tasks: 3 outside of its requirements"
    bare = gate(tmp_path, FASTER, sites=())
    assert (await verified(bare, draft)).skipped == {"its sites do not occur": 3}


async def test_side_by_side_no_task_more_is_judged_than_is_needed(
    tmp_path: Path, draft: Shelved
) -> None:
    """Of eight tasks three cannot be read; four count, whoever is under way at the same time."""
    names = ["broken1", "a1", "a2", "broken2", "a3", "broken3", "a4", "a5"]
    pipeline = gate(
        tmp_path, {(name, warps): 1.5 + warps / 8 for name in names for warps in (4, 8)}
    )
    judge, under_way, most = pipeline._judged, set[str](), 0

    async def slow(name: str, candidate: Candidate) -> SearchJudgement:
        nonlocal most
        under_way.add(name)
        most = max(most, len(under_way))
        await asyncio.sleep(0.001)
        try:
            return await judge(name, candidate)
        finally:
            under_way.discard(name)

    pipeline._judged = slow  # type: ignore[method-assign]
    found = await verified(pipeline, draft, names, most=4, samples=2, jobs=3)
    assert found.accepted and len(found.tasks) == 4 and len(pipeline.asked) == 16
    assert 1 < most <= 3


async def test_what_does_harm_on_three_tasks_is_not_tried_on_more(
    tmp_path: Path, draft: Shelved
) -> None:
    names = ["a", "b", "c", "d", "e"]
    slower = {
        (name, warps): 2.0 - warps / 8 - n / 100 for n, name in enumerate(names) for warps in (4, 8)
    }
    found = await verified(gate(tmp_path, slower), draft, names, samples=2)
    assert len(found.tasks) == 3 and not found.accepted and not found.undecided
    assert "it does harm" in found.reason


async def test_one_task_in_two_files_counts_once(tmp_path: Path, draft: Shelved) -> None:
    pipeline = gate(tmp_path, FASTER)
    (tmp_path / "more").mkdir()
    for path in (tmp_path / "a.py", tmp_path / "more" / "a.py"):
        path.write_text("class Model: ...")
    asked = VerificationRequest(tasks=skill_validation.tasks_of([tmp_path]))
    proof = Validating(
        pipeline=pipeline,  # type: ignore[arg-type]
        shelved=draft,
        library=(),
        asked=asked,
        report=lambda step: None,
    )
    found = await proof.run()
    assert len(found.tasks) == 1 and found.skipped == {"the same as another task": 1}


async def test_a_wrong_result_ends_it_at_once(tmp_path: Path, draft: Shelved) -> None:
    pipeline = gate(
        tmp_path, {(name, warps): None if warps == 8 else 1.5 for name, warps in FASTER}
    )
    found = await verified(pipeline, draft)
    assert not found.accepted and not found.undecided and len(found.tasks) == 1
    assert "correctness falls" in found.reason


async def test_what_changes_nothing_is_not_judged(tmp_path: Path, draft: Shelved) -> None:
    only = (replace(SITE, parameters={"warps": [8]}),)
    pipeline = gate(tmp_path, FASTER, sites=only)
    found = await verified(pipeline, draft)
    assert pipeline.asked == [] and not any(task.differs for task in found.tasks)
    assert "on 3 it changed nothing" in found.reason


async def test_a_second_run_judges_nothing_again_and_says_the_same(
    tmp_path: Path, draft: Shelved
) -> None:
    first = await verified(gate(tmp_path, FASTER), draft)
    again = gate(tmp_path, FASTER)
    second = await verified(again, draft)
    assert again.asked == [] and second.tasks == first.tasks
    fresh = gate(tmp_path, FASTER)
    await verified(fresh, draft, fresh=True)
    assert len(fresh.asked) == 18


@pytest.mark.parametrize("after", range(6))
async def test_wherever_it_ends_what_was_judged_is_not_judged_again(
    tmp_path: Path, draft: Shelved, after: int
) -> None:
    class Killed(BaseException):
        """Nothing of ours catches it."""

    pipeline = gate(tmp_path, FASTER)
    judge = pipeline._judged

    async def dies(name: str, candidate: Candidate) -> SearchJudgement:
        if len(pipeline.asked) == after:
            raise Killed
        return await judge(name, candidate)

    pipeline._judged = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await verified(pipeline, draft, ["a"])
    rest = gate(tmp_path, FASTER)
    await verified(rest, draft, ["a"])
    assert len(rest.asked) == 6 - after


async def test_a_lost_process_is_tried_again_and_three_tasks_in_a_row_end_it(
    tmp_path: Path, draft: Shelved
) -> None:
    lost = EvaluationError("the worker died")
    pipeline = gate(tmp_path, FASTER, fail=[lost, lost])
    await verified(pipeline, draft)
    assert len(pipeline.asked) == 18
    with pytest.raises(EvaluationError, match="worker died"):
        await verified(gate(tmp_path, FASTER, fail=[lost] * 9), draft, fresh=True)
    found = await verified(gate(tmp_path, FASTER, fail=[lost] * 6), draft, fresh=True)
    assert len(found.tasks) == 1 and found.skipped == {"cannot be judged": 2}


async def test_a_pair_whose_half_cannot_be_judged_does_not_count(
    tmp_path: Path, draft: Shelved
) -> None:
    found = await verified(gate(tmp_path, FASTER, unjudged=3), draft, ["a"], samples=3)
    assert [task.samples for task in found.tasks] == [2]
    assert found.skipped == {"samples that could not be judged": 1}


async def test_another_learned_skill_is_what_it_has_to_beat(tmp_path: Path, draft: Shelved) -> None:
    """A rival that chooses eight warps too: nothing is gained, and on all tasks that is a
    duplicate."""
    twin = replace(draft.skill, name="twin")
    found = await verified(gate(tmp_path, FASTER), draft, library=[twin])
    assert not found.accepted and not found.undecided
    assert found.reason == "leads to the same candidates as twin on all 3 tasks"


def test_tasks_are_files_with_a_model_and_their_absence_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("class Model: ...")
    (tmp_path / "y.py").write_text("def helper(): ...")
    assert skill_validation.tasks_of([tmp_path]) == (tmp_path / "x.py",)
    for places, said in (
        ([], "was named"),
        ([tmp_path / "y.py"], "y.py"),
        ([tmp_path / "z"], "does not exist"),
    ):
        with pytest.raises(EvaluationError, match=said):
            skill_validation.tasks_of(places)


def test_a_skill_for_kernels_is_shown_on_every_kernel_that_a_file_launches(tmp_path: Path) -> None:
    kernel = (
        "@triton.jit\ndef {0}_kernel(x):\n    pass\n\n\ndef {0}(x):\n    {0}_kernel[(1,)](x)\n\n\n"
    )
    text = "import triton\n\n\n" + kernel.format("one") + kernel.format("two")
    (tmp_path / "k.py").write_text(text + "@triton.jit\ndef helper(x):\n    return x\n")
    (tmp_path / "m.py").write_text("class Model: ...")
    files = skill_validation.tasks_of([tmp_path])
    assert [task.title for task in skill_validation.targets(files, "triton")] == [
        "k::one_kernel",
        "k::two_kernel",
    ]
    assert [task.name for task in skill_validation.targets(files, "graph")] == ["m.py"]
