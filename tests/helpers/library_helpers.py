"""Drafts, papers and verifications for the tests of the learned library."""

from kernel_lsp.agents import summary_rule
from kernel_lsp.agents.summary_rule import MeasuredPlace
from kernel_lsp.records import (
    ArgSpec,
    Interval,
    Json,
    Lesson,
    Origin,
    Step,
    TaskUplift,
    Uplift,
    Verification,
)

ROWS = ArgSpec(name=None, dtype="float32", shape=(1024, 1024))


def seen(*inputs: ArgSpec, device: str = "cpu") -> MeasuredPlace:
    return MeasuredPlace(
        device=device,
        device_name="NVIDIA H200" if device == "cuda" else "a CPU",
        architecture="sm_90" if device == "cuda" else None,
        inputs=inputs or (ROWS,),
        layouts=("contiguous",),
        torch="2.11.0+cu130",
        triton="3.6.0",
        speedup=Interval(low=1.7, mid=1.8, high=1.9),
    )


def lesson(
    site: str = "linear+relu", parameters: Json | None = None, skill: str = "fused-matmul"
) -> Lesson:
    steps = [
        Step(skill=skill, site=site, parameters={"warps": 8} if parameters is None else parameters)
    ]
    draft = summary_rule.draft(steps, seen())
    assert draft is not None
    origin = Origin(
        event="kept", fingerprint="source", qualname="Model", hardware="cpu", created="2026-11-21"
    )
    return Lesson(draft=draft, origin=origin)


def on(name: str, gain_with: float, gain_without: float, **changes: object) -> TaskUplift:
    told = {
        "samples": 3,
        "right_with": 3,
        "right_without": 3,
        "gain_null": 0.0,
        "differs": True,
        **changes,
    }
    return TaskUplift(
        task=name,
        fingerprint=name,
        gain_with=gain_with,
        gain_without=gain_without,
        **told,  # type: ignore[arg-type]
    )


def verification(
    *, accepted: bool = True, undecided: bool = False, reason: str = "uplift"
) -> Verification:
    return Verification(
        hardware="cpu",
        device_name="a CPU",
        created="2026-11-21T12:00:00+00:00",
        accepted=accepted,
        undecided=undecided,
        reason=reason,
        uplift=Uplift(mean=0.2, low=0.1, high=0.3, tasks=3),
    )
