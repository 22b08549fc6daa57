"""Logged sessions on Triton kernels, from a journal to a policy that has gone on learning."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launch_helpers import measured, warps

from kernel_lsp import models, wire
from kernel_lsp.journal import Journal, outcomes
from kernel_lsp.models import manifest
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    EventKind,
    Job,
    Proposal,
    Step,
    Timing,
    Verdict,
)
from trainer.data import logged_kernels
from trainer.policies import launch_policy, launch_sessions, launches
from trainer.policies.launches import KernelPlans

pytestmark = pytest.mark.torch

SHIPPED = Path(models.__file__).parent
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    tl.store(out_ptr + at, 2.0 * tl.load(x_ptr + at, mask=mask), mask=mask)


# kernel-lsp: workload x=f32[1048576]
def double(x):
    out = torch.empty_like(x)
    count = x.numel()
    double_kernel[(triton.cdiv(count, 256),)](x, out, count, BLOCK=256)
    return out
"""
IN_PLACE = KERNEL.replace("out = torch.empty_like(x)", "out = x")
MODULE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) + 1


def get_inputs():
    return [torch.randn(64, 64)]
"""
Said = Sequence[tuple[Step, float | None, EventKind | None]]
"""A plan's step, its milliseconds (as it is 1; None: wrong values; 0: not timed), what a person
did."""


def proposed(made: PreparedJob, number: int, step: Step, ms: float | None) -> Proposal:
    passed = ms is not None
    times = [("candidate", ms), ("eager", 1.0)] if passed else []
    evaluation = Evaluation(
        status=EvalStatus.PASSED if passed else EvalStatus.WRONG_RESULT,
        device="cuda",
        device_name="NVIDIA H200",
        timings=tuple(
            Timing(
                provider=name, median_ms=one, p20_ms=one, p80_ms=one, num_reps=9, cold_cache=True
            )
            for name, one in times
            if one
        ),
    )
    return Proposal(
        id=f"p{number}",
        fingerprint=made.target.fingerprint,
        fingerprint_after=f"after {number}",
        qualname=made.target.qualname,
        workload=made.workload,
        candidate=Candidate(
            id=f"c{number}",
            edit=None,
            program="",
            entry=made.program.entry,
            steps=(step,),
            proposer="plan/2",
        ),
        evaluation=evaluation,
        verdict=Verdict.FASTER if passed else Verdict.REJECTED,
        created="2026-11-23T09:00:00+00:00",
    )


def worked(
    path: Path, text: str, qualname: str, said: Said, *, keep_source: bool = True
) -> PreparedJob:
    """A journal with one session."""
    made = prepare(Job(text=text, path="/w/kernels.py", qualname=qualname, device="cuda"))
    assert isinstance(made, PreparedJob), made
    place = {"folder": "/w", "path": "/w/kernels.py", "client": "test"}
    with Journal.open(path) as journal:
        for number, (step, ms, did) in enumerate(said):
            proposal = proposed(made, number, step, ms)
            outcomes.save_proposals(
                journal,
                [proposal],
                keep_source=keep_source,
                training=True,
                reference=made.program.source,
                **place,
            )
            if did is not None:
                journal.record(outcomes.events(did, [proposal], **place))
    return made


def read(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str) -> list[KernelPlans]:
    command = [
        "launches",
        "--journal",
        str(folder / "journal.db"),
        "--out",
        str(folder / "out.json.xz"),
    ]
    monkeypatch.setattr("sys.argv", [*command, "--jobs", "1", *more])
    return launches.load(folder / "out.json.xz") if launches.main() == 0 else []


SESSION: Said = [
    (warps(8), 0.5, EventKind.KEPT),
    (warps(2), 2.0, None),
    (warps(1), None, None),
    (warps(8), 0.4, EventKind.DISMISSED),
    (warps(4), 0.0, None),
]


@pytest.mark.parametrize("text", [KERNEL, IN_PLACE])
def test_what_a_session_judged_is_told_as_launches(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worked(tmp_path / "journal.db", text, "double_kernel", SESSION)
    (one,) = read(monkeypatch, tmp_path)
    told = {plan.view.options["num_warps"]: plan for plan in one.plans}
    assert {count: plan.speedup for count, plan in told.items()} == {
        8: pytest.approx(2.25),
        2: 0.5,
        1: None,
    }
    assert told[8].liking == pytest.approx((0.25 - 0.1) / 2) and told[2].liking == 0.0
    assert one.family == "other:program_id>pointwise>other:load>pointwise>other:store"
    assert one.device_name == "NVIDIA H200"
    assert one.before.options == {} and one.before.programs == 4096
    assert f"left out     1: {launches.UNTIMED}" in capsys.readouterr().out


def test_without_its_text_a_session_is_known_by_a_suite_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worked(tmp_path / "journal.db", KERNEL, "double_kernel", SESSION, keep_source=False)
    assert read(monkeypatch, tmp_path) == []
    assert logged_kernels.NO_TEXT in capsys.readouterr().out
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "mine.py").write_text(KERNEL)
    (one,) = read(monkeypatch, tmp_path, "--tasks", str(tmp_path / "suite"))
    assert one.name == "mine" and len(one.plans) == 3


def test_a_session_on_a_model_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Step(skill="fuse-pointwise", site="tanh", parameters={})
    worked(tmp_path / "journal.db", MODULE, "Model", [(step, 0.5, None)])
    assert read(monkeypatch, tmp_path) == []
    assert logged_kernels.NO_KERNEL in capsys.readouterr().out


def test_something_measured_has_to_be_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["launches", "--out", str(tmp_path / "out.json.xz")])
    with pytest.raises(SystemExit):
        launches.main()


# --- going on -------------------------------------------------------------------------------------


def test_what_people_did_changes_what_a_plan_is_worth_and_not_how_fast_it_is_said_to_be() -> None:
    one = measured("k", (2.0, 1.9))
    liked = replace(one, plans=(one.plans[0], replace(one.plans[1], liking=0.25)))
    told = launch_policy.lesson([liked], "cpu", 0)
    assert told.targets.tolist() == pytest.approx([math.log(2.0), math.log(1.9)])
    assert told.gains.tolist() == pytest.approx([math.log(2.0) - math.log(1.9) - 0.25, 0.0])
    assert launch_policy.lesson([one], "cpu", 0).gains.tolist() == pytest.approx(
        [0.0, math.log(0.95)]
    )


def test_who_is_held_out_does_not_change_with_more_sessions() -> None:
    every = [measured(f"k{number}", (2.0, 1.0)) for number in range(60)]
    learn, held_out = launch_sessions.deal_tasks(every)
    assert 5 < len(held_out) < 25 and len(learn) + len(held_out) == 60
    few, out = launch_sessions.deal_tasks(every[:30])
    assert out == [one for one in held_out if one in every[:30]] and few == learn[: len(few)]
    never = [replace(one, first=None) for one in every]
    assert launch_sessions.deal_tasks(never) == (never, [])


def gone_on(monkeypatch: pytest.MonkeyPatch, folder: Path, count: int, start: str) -> Path:
    made = [measured(f"k{n}", (2.0, 1.0, 0.9, 0.5), f"f{n % 3}") for n in range(count)]
    launches.save([wire.to_json(one) for one in made], folder / "sessions.json.xz")
    command = [
        "launch_sessions",
        "--launches",
        str(folder / "sessions.json.xz"),
        "--tiny",
        "--version",
        "2",
    ]
    monkeypatch.setattr(
        "sys.argv", [*command, "--start", str(SHIPPED / start), "--out", str(folder / "out")]
    )
    assert launch_sessions.main() == 0
    return folder / "out"


def test_the_shipped_policy_goes_on_and_is_packed_with_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = gone_on(monkeypatch, tmp_path, 24, "launch-small-1")
    told: Any = json.loads((out / "sessions.json").read_text())
    made = manifest.read(out / "launch-small")
    assert (made.id, made.targets, made.weighs, made.unasked) == (
        "launch-small@2",
        ("kernel",),
        True,
        False,
    )
    assert made.devices == ("cuda:sm_90",)
    assert made.held_out is not None and made.held_out.tasks == told["held out"] > 0
    assert made.held_out.value == told["after"]["first_over_best"][1]
    before = manifest.read(SHIPPED / "launch-small-1")
    assert made.files["model.safetensors"] != before.files["model.safetensors"]
    assert told["before"]["each"].keys() == told["after"]["each"].keys()
    assert made.held_out.suite not in ("", before.held_out.suite)  # type: ignore[union-attr]


def test_numbers_of_several_gpus_are_not_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    devices = ("NVIDIA H200", "NVIDIA A100", "NVIDIA H200", None)
    every = [
        replace(measured(f"k{place}", (2.0, 1.0)), device_name=name)
        for place, name in enumerate(devices)
    ]
    assert launch_sessions.of_one_device(every, None) == [every[0], every[2]]
    assert launch_sessions.of_one_device(every, "NVIDIA A100") == [every[1]]
    assert (
        "left out: 1 kernels that an unknown device measured, not NVIDIA H200"
        in capsys.readouterr().err
    )


def test_one_that_became_worse_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mean = iter((0.9, 0.8))  # before, after
    report: Any = launch_sessions.report

    def told(found: Any) -> Any:
        return report(found) | {"first_over_best": [0.7, next(mean), 1.0]}

    monkeypatch.setattr(launch_sessions, "report", told)
    with pytest.raises(SystemExit, match=r"became worse, and is not packed: .* was 0\.900"):
        gone_on(monkeypatch, tmp_path, 24, "launch-small-1")
    assert (tmp_path / "out" / "sessions.json").exists()
    assert not (tmp_path / "out" / "launch-small").exists()


@pytest.mark.parametrize(
    ("count", "start", "why"),
    [(24, "graphs", "is no policy for Triton kernels"), (1, "launch-small-1", "too few")],
)
def test_what_cannot_go_on_is_refused(
    count: int, start: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if start == "graphs":
        start = str(shutil.copytree(SHIPPED / "launch-small-1", tmp_path / start))
        (Path(start) / manifest.NAME).unlink()
        manifest.seal(Path(start), name="graphs", version="1", held_out=None)
    with pytest.raises(SystemExit, match=why):
        gone_on(monkeypatch, tmp_path, count, start)
    assert not (tmp_path / "out").exists()
