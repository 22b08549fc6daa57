"""Running a suite: shards, several at once, the time box, resuming, merging. The pipeline is a
stand-in."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp import phases, scores
from kernel_lsp.commands import bench, rows, suites
from kernel_lsp.config import Settings
from kernel_lsp.errors import CaptureError, EvaluationError, KernelLspError
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    Interval,
    Job,
    Outcome,
    Progress,
    Proposal,
    SearchMode,
    SearchPlan,
    SearchSummary,
    Step,
    StopReason,
    Timing,
    Verdict,
    Workload,
    WorkloadOrigin,
)

TASK = '"""A task.\n\nFamily: norm.\n"""\n\n\nclass Model: ...\n'


class Stand:
    """What `Runs` needs of a pipeline; notes which tasks run at the same time."""

    def __init__(self, broken: str = "", seconds: float = 0.0) -> None:
        self.settings = Settings(device="cpu")
        self.broken, self.seconds = broken, seconds
        self.asked: list[str] = []
        self.now = self.most = 0
        self.closed = False

    async def optimize(self, job: Job, report: Any) -> Outcome:
        name = Path(job.path).name
        self.asked.append(name)
        self.now += 1
        self.most = max(self.most, self.now)
        report(Progress(phase="capture", message="reading"))
        await asyncio.sleep(self.seconds)
        self.now -= 1
        if name == self.broken:
            raise (
                EvaluationError("the device was lost")
                if self.seconds
                else ZeroDivisionError("a bug")
            )
        return Outcome(qualname="Model", note="no skill applies to this program")

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    for name in ("a", "b", "c", "d", "e"):
        (folder / "operators").mkdir(parents=True, exist_ok=True)
        (folder / "operators" / f"{name}.py").write_text(TASK)
    (folder / "helper.py").write_text("x = 1\n")
    return folder


def runs(root: Path, stand: Any, results: suites.SuiteResults, **more: Any) -> suites.SuiteRun:
    suite = suites.find(root, more.pop("filter", ""), more.pop("shard", (1, 1)), None)
    maker = rows.LocalRows(stand, more.pop("asked", rows.RowOptions()))
    given: dict[str, Any] = {"jobs": 1, "limit_s": None, "say": lambda text: None, **more}
    return suites.SuiteRun(maker=maker, suite=suite, results=results, **given)


def test_shards_are_disjoint_and_cover_everything(root: Path) -> None:
    parts = [suites.find(root, "", (number, 3), None) for number in (1, 2, 3)]
    names = [[path.name for path in part.tasks] for part in parts]
    assert names == [["a.py", "d.py"], ["b.py", "e.py"], ["c.py"]]
    assert all(len(part.every) == 5 for part in parts)


def test_a_filter_without_tasks_says_what_a_task_is(root: Path) -> None:
    with pytest.raises(KernelLspError, match="no task below"):
        suites.find(root, "nothing", (1, 1), None)
    with pytest.raises(KernelLspError, match="no folder"):
        suites.find(root / "gone", "", (1, 1), None)


async def test_rows_are_on_the_disk_and_are_not_made_again(root: Path, tmp_path: Path) -> None:
    path, stand = tmp_path / "r.json", Stand()
    await runs(root, stand, suites.load(path)).all()
    assert stand.closed and sorted(stand.asked) == ["a.py", "b.py", "c.py", "d.py", "e.py"]
    row = json.loads(path.read_text())["tasks"]["operators/a.py"]
    assert (row["status"], row["family"]) == ("silent", "norm")
    assert row["note"] == "no skill applies to this program" and row["total_s"] >= 0
    again = Stand()
    await runs(root, again, suites.load(path)).all()
    assert again.asked == []
    # A run that adds nothing is no part of the file.
    assert len(json.loads(path.read_text())["runs"]) == 1


async def test_every_task_is_searched_as_the_run_was_asked_to(root: Path) -> None:
    plan, seen = SearchPlan(mode=SearchMode.TURNS), list[Job]()
    summary = SearchSummary(mode=SearchMode.TURNS, stop=StopReason.CANDIDATES, attempts=9)

    class Searching(Stand):
        async def optimize(self, job: Job, report: Any) -> Outcome:
            seen.append(job)
            return Outcome(qualname="Model", search=summary)

    results = suites.SuiteResults(path=None)
    asked = rows.RowOptions(search=plan, allowed_origin="https://x")
    await runs(root, Searching(), results, filter="a.py", asked=asked).all()
    assert [(job.search, job.allowed_origin) for job in seen] == [(plan, "https://x")]
    assert results.runs[0]["search"]["mode"] == "turns"
    assert results.rows["operators/a.py"]["search"]["attempts"] == 9


async def test_jobs_run_at_the_same_time(root: Path) -> None:
    one, three = Stand(seconds=0.02), Stand(seconds=0.3)
    await runs(root, one, suites.SuiteResults(path=None)).all()
    await runs(root, three, suites.SuiteResults(path=None), jobs=3).all()
    assert (one.most, three.most) == (1, 3)


@pytest.mark.parametrize("seconds", [0.0, 0.01], ids=["a bug", "an error of ours"])
async def test_a_broken_task_is_a_row_and_is_tried_again(
    root: Path, tmp_path: Path, seconds: float
) -> None:
    path = tmp_path / "r.json"
    await runs(root, Stand(broken="b.py", seconds=seconds), suites.load(path)).all()
    failed = suites.load(path).rows["operators/b.py"]
    assert failed["status"] == "failed" and failed["note"]
    again = Stand()
    await runs(root, again, suites.load(path)).all()
    assert again.asked == ["b.py"]


async def test_a_target_that_is_left_alone_is_silence_with_its_reason(root: Path) -> None:
    class Refusing(Stand):
        async def optimize(self, job: Job, report: Any) -> Outcome:
            raise CaptureError("Model has a forward hook", "remove it")

    results = suites.SuiteResults(path=None)
    await runs(root, Refusing(), results, filter="a.py").all()
    row = results.rows["operators/a.py"]
    assert (row["status"], row["note"]) == ("silent", "Model has a forward hook (remove it)")


def test_the_table_has_two_lines_a_group_and_says_what_is_unknown() -> None:
    known = {"operators/a.py": {"status": "silent", "note": "", "ms": {}, "speedups": {}}}
    lines = bench._table(scores.groups(known)).splitlines()
    assert len(lines) == 1 + 2 * 2 and len({len(line.split()) for line in lines[1::2]}) == 1
    assert lines[0].split()[:4] == ["group", "against", "tasks", "correct"]
    assert lines[1].split()[:4] == ["all", "eager", "1", "1.00"] and "-" in lines[1].split()


async def test_after_the_time_no_task_is_begun_and_what_is_missing_counts_nowhere(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand, results = Stand(), suites.SuiteResults(path=None)
    # 5 s for each task.
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: 5.0 * len(stand.asked)})
    monkeypatch.setattr(suites, "time", clock)
    await runs(root, stand, results, limit_s=7.0).all()
    assert len(stand.asked) == 2
    content = results.content()
    assert content["missing"] == ["operators/c.py", "operators/d.py", "operators/e.py"]
    assert content["groups"]["all"]["best"]["tasks"] == 2


async def test_a_cancelled_run_keeps_what_is_finished(root: Path, tmp_path: Path) -> None:
    class Endless(Stand):
        async def optimize(self, job: Job, report: Any) -> Outcome:
            self.seconds = 600.0 if self.asked else 0.0
            return await super().optimize(job, report)

    path, stand = tmp_path / "r.json", Endless()
    task = asyncio.create_task(runs(root, stand, suites.load(path)).all())
    while len(stand.asked) < 2:  # noqa: ASYNC110 - the first is finished then
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled() and stand.closed
    assert list(suites.load(path).rows) == ["operators/a.py"]


async def test_shards_merge_to_what_one_run_would_have_been(root: Path, tmp_path: Path) -> None:
    files = []
    for number in (1, 2):
        results = suites.load(tmp_path / f"{number}.json")
        broken = "a.py" if number == 1 else ""
        await runs(root, Stand(broken=broken), results, shard=(number, 2)).all()
        files.append(suites.load(tmp_path / f"{number}.json"))
    assert files[0].missing == ["operators/b.py", "operators/d.py"]
    made = suites.merge_results(files, None)
    assert len(made.rows) == 5 and not made.missing and len(made.runs) == 2
    assert made.rows["operators/a.py"]["status"] == "failed"
    better = suites.SuiteResults(
        path=None, rows={"operators/a.py": {**made.rows["operators/b.py"]}}
    )
    for order in ([*files, better], [better, *files]):  # a failure never hides what was judged
        assert suites.merge_results(order, None).rows["operators/a.py"]["status"] == "silent"


def test_what_is_no_results_file_is_refused(tmp_path: Path) -> None:
    for text in ("{}", "[]", "no json", '{"tasks": {"a": {}}}', '{"tasks": 3}'):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(KernelLspError, match="no results file"):
            suites.load(tmp_path / "r.json")


def judged(name: str, speedup: float, verdict: Verdict, **more: Any) -> Proposal:
    interval = Interval(low=speedup - 0.1, mid=speedup, high=speedup + 0.1)
    times = {"eager": 2.0, "candidate": 2.0 / speedup}
    evaluation = Evaluation(
        device="cuda",
        status=more.pop("status", EvalStatus.PASSED),
        device_name="NVIDIA H200",
        timings=tuple(
            Timing(provider=k, median_ms=v, p20_ms=v, p80_ms=v, num_reps=9, cold_cache=True)
            for k, v in times.items()
        ),
        speedups={"eager": interval},
        **more,
    )
    step = Step(skill="fused-norm", site="layer_norm", parameters={"num_warps": 8})
    candidate = Candidate(
        id=name, edit=None, program="", entry="Model", steps=(step,), summary=name
    )
    workload = Workload(name="w", origin=WorkloadOrigin.GET_INPUTS)
    return Proposal(
        id=name,
        fingerprint="f",
        fingerprint_after="g",
        qualname="Model",
        workload=workload,
        candidate=candidate,
        evaluation=evaluation,
        verdict=verdict,
        created="2026-01-01T00:00:00Z",
    )


def test_a_row_keeps_what_was_offered_and_why_the_others_lost() -> None:
    won = judged("one pass", 2.0, Verdict.FASTER, peak_bytes={"eager": 8, "candidate": 4})
    lost = judged(
        "wrong", 3.0, Verdict.REJECTED, status=EvalStatus.WRONG_RESULT, detail="off by one"
    )
    outcome = Outcome(
        qualname="Model",
        proposals=(won, lost),
        read_bytes=1_200_000_000,
        written_bytes=1_200_000_000,
    )
    row = json.loads(json.dumps(rows.of_outcome(outcome)))
    assert row["status"] == "offered" and row["ms"] == {"eager": 2.0, "candidate": 1.0}
    assert row["speedups"]["eager"]["mid"] == 2.0
    assert row["offered"]["steps"] == [
        {"skill": "fused-norm", "site": "layer_norm", "parameters": {"num_warps": 8}}
    ]
    assert row["least_ms"] == pytest.approx(0.5)  # 2.4 GB at 4800 GB/s
    assert [(item["status"], item["detail"]) for item in row["rejected"]] == [
        ("wrong_result", "off by one")
    ]


def test_what_is_right_but_not_faster_is_silence_with_its_reason() -> None:
    slow = judged("slower", 0.8, Verdict.CORRECT)
    row = rows.of_outcome(Outcome(qualname="Model", proposals=(slow,), note="not surely faster"))
    assert (row["status"], row["note"], row["ms"]) == ("silent", "not surely faster", {})
    assert row["rejected"][0]["speedups"]["eager"]["mid"] == 0.8


@pytest.mark.parametrize(
    ("text", "family"),
    [(TASK, "norm"), ('"""No family."""\n', None), ("x = 1\n", None), ("def (", None)],
)
def test_the_family_stands_in_the_docstring(text: str, family: str | None) -> None:
    assert rows.family(text) == family


async def test_what_is_waited_for_is_said_when_nothing_else_is(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "QUIET_S", 0.02)
    said, results = list[str](), suites.SuiteResults(path=None)
    stand = Stand(seconds=0.1)
    made = runs(root, stand, results, filter=r"/[ab]\.py", jobs=2, say=said.append)
    made.report = (told := list[Progress]()).append
    await made.all()
    waiting = [line for line in said if line.startswith("waiting for")]
    words = r"waiting for operators/a\.py \(\d+ s: reading\); operators/b\.py \(\d+ s: reading\)"
    assert re.fullmatch(words, waiting[0])
    assert len(said) == len(waiting) + 2
    assert [(one.done, one.total) for one in told] == [(0, 2), (1, 2), (2, 2)]


def test_the_oldest_task_is_named_first() -> None:
    doing = {"b": (50.0, "tuning fused-norm: 4 left"), "a": (10.0, "checking values")}
    expected = "waiting for a (60 s: checking values); b (20 s: tuning fused-norm: 4 left)"
    assert suites.waiting_for(doing, 70.0) == expected


async def test_a_row_says_where_the_time_went(root: Path) -> None:
    class Measured(Stand):
        async def optimize(self, job: Job, report: Any) -> Outcome:
            with phases.phase("capture"):
                return await super().optimize(job, report)

    results = suites.SuiteResults(path=None)
    await runs(root, Measured(seconds=0.02), results, filter=r"/[ab]\.py", jobs=2).all()
    spent = [row["phases_s"] for row in results.rows.values()]
    assert len(spent) == 2 and all(
        list(one) == ["capture"] and one["capture"] >= 0.02 for one in spent
    )


@pytest.mark.torch
async def test_a_row_says_of_which_text_it_is_as_the_trainer_reads_it(root: Path) -> None:
    from trainer.tasks.task_suites import digest

    results = suites.SuiteResults(path=None)
    await runs(root, Stand(), results, filter=r"/a\.py", jobs=1).all()
    ((name, row),) = results.rows.items()
    assert row["reference"] == digest((root / name).read_text())
