"""What a claim must survive, with processes that answer by script."""

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.evaluator import roofline, vetoes
from kernel_lsp.evaluator.findings import PartialEvaluation, Rejected
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sharing.competing import CompetingLoad
from kernel_lsp.records import EvalStatus, Interval, Program, TargetKind, Workload, WorkloadOrigin


class Scripted:
    """A process whose answers are known."""

    def __init__(self, **answers: Callable[..., dict[str, Any]]) -> None:
        self.answers, self.asked = answers, []
        self.party, self.alone = self, contextlib.nullcontext

    async def ask(self, do: str, timeout_s: float, blobs: Any = None, **fields: Any) -> Any:
        self.asked.append(do)
        await asyncio.sleep(0)
        return self.answers[do](**fields), []


def claims() -> PartialEvaluation:
    return PartialEvaluation(speedups={"eager": Interval(low=1.96, mid=2.0, high=2.04)})


def times(ms: float) -> Callable[..., dict[str, Any]]:
    """About ``ms``, spread over 6 %."""
    return lambda **fields: {"clean_ms": [ms * (0.97 + 0.003 * i) for i in range(20)]}


def check(found: PartialEvaluation, name: str) -> bool | None:
    return next(check.passed for check in found.checks if check.name == name)


# --- the reference by itself ----------------------------------------------------------------


async def settle(before: float, mixed: float, beside: float, judge: float) -> PartialEvaluation:
    found = claims()
    timer, clean = Scripted(baseline=times(beside)), times(before)()["clean_ms"]
    party = vetoes.Disturbance(timer, Scripted(baseline=times(judge)), clean, 10, found)
    await party.settle(mixed)
    return found


async def test_a_reference_that_is_as_fast_as_before_is_not_looked_into() -> None:
    found = await settle(before=1.0, mixed=1.05, beside=99.0, judge=99.0)
    assert check(found, "baseline-undisturbed") is True and found.speedups["eager"].mid == 2.0


async def test_a_reference_that_is_slower_wherever_the_candidate_is_loaded_is_sabotage() -> None:
    with pytest.raises(Rejected) as rejection:
        await settle(before=1.0, mixed=1.5, beside=1.5, judge=1.0)
    assert (
        rejection.value.status is EvalStatus.CHEATED
        and "slows the reference" in rejection.value.detail
    )


async def test_a_machine_that_has_become_busy_is_no_sabotage() -> None:
    found = await settle(before=1.0, mixed=1.5, beside=1.5, judge=1.5)
    assert check(found, "baseline-undisturbed") is True and found.speedups["eager"].mid == 2.0


async def test_a_reference_that_is_slower_only_between_the_candidates_calls_lowers_the_claim() -> (
    None
):
    found = await settle(before=1.0, mixed=1.5, beside=1.0, judge=1.0)
    assert check(found, "baseline-undisturbed") is None
    assert found.speedups["eager"].mid == pytest.approx(2.0 / 1.5, rel=0.02)


async def test_a_difference_within_the_noise_condemns_nobody() -> None:
    found = await settle(before=1.0, mixed=1.12, beside=1.12, judge=1.0)
    assert check(found, "baseline-undisturbed") is None


# --- the parent's clock ----------------------------------------------------------------------


async def outside(
    seconds: dict[str, float],
    claimed: dict[str, float],
    claim: Interval | None = None,
    load: CompetingLoad | None = None,
) -> PartialEvaluation:
    """What is found where a call takes ``seconds`` by a clock that only calls move: beside other
    tests real sleeps of 4 ms take 8, and a pause of the machine makes any claim believable."""
    found, now = PartialEvaluation(speedups={"eager": claim}) if claim else claims(), [0.0]

    def burst(provider: str, count: int) -> dict[str, Any]:
        now[0] += seconds[provider] * count
        return {"ok": True}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vetoes, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        await vetoes.outside_clock(Scripted(burst=burst), claimed, 10, found, load)
    return found


async def test_times_that_the_parent_sees_too_are_believed() -> None:
    found = await outside({"eager": 5e-3, "candidate": 2e-3}, {"eager": 5.5, "candidate": 2.5})
    assert check(found, "outside-clock") is True and found.speedups["eager"].mid == 2.0


async def test_a_candidate_that_takes_four_times_what_it_claims_is_rejected() -> None:
    with pytest.raises(Rejected) as rejection:
        await outside({"eager": 5e-3, "candidate": 8e-3}, {"eager": 5.5, "candidate": 2.0})
    assert rejection.value.status is EvalStatus.CHEATED


async def test_what_the_interval_leaves_open_condemns_nobody_but_the_claim_pays_for_all_that_was_seen() -> (
    None
):
    busy = Interval(low=1.0, mid=2.0, high=4.0)
    found = await outside(
        {"eager": 5e-3, "candidate": 8e-3}, {"eager": 5.5, "candidate": 2.0}, busy
    )
    assert check(found, "outside-clock") is None
    assert found.speedups["eager"].mid <= 2.0 / 3.5


async def test_a_lie_beyond_the_widest_interval_is_rejected() -> None:
    busy = Interval(low=1.0, mid=2.0, high=4.0)
    with pytest.raises(Rejected):
        await outside({"eager": 5e-3, "candidate": 8e-3}, {"eager": 5.5, "candidate": 0.5}, busy)


async def test_what_slows_eager_down_as_well_is_a_busy_machine() -> None:
    found = await outside({"eager": 20e-3, "candidate": 8e-3}, {"eager": 5.0, "candidate": 2.0})
    assert check(found, "outside-clock") is True


async def test_a_doubtful_claim_is_lowered() -> None:
    found = await outside({"eager": 4e-3, "candidate": 3.2e-3}, {"eager": 5.5, "candidate": 2.0})
    assert check(found, "outside-clock") is None
    assert 1.2 <= found.speedups["eager"].mid <= 1.5


# --- work that the events do not see --------------------------------------------------------


def hidden(wait_ms: float) -> PartialEvaluation:
    found, jitter = claims(), [0.001 * (i % 5) for i in range(50)]
    spans = {"eager": [0.1] * 50, "candidate": [0.05] * 50}
    outside = {
        "eager": [0.5 + j for j in jitter],
        "candidate": [0.45 + wait_ms + j for j in jitter[::-1]],
    }
    vetoes.hidden_work(spans, outside, "cuda", found)
    return found


def test_work_that_goes_on_after_the_events_is_found() -> None:
    with pytest.raises(Rejected, match="does not wait"):
        hidden(0.04)


def test_the_jitter_of_waking_up_is_no_work() -> None:
    assert check(hidden(0.005), "work-in-order") is True


# --- the roofline ---------------------------------------------------------------------------


def test_the_least_time_worked_by_hand() -> None:
    # 4.8 GB at 4800 GB/s are 1 ms; 100 MB of output of which the L2 holds 52 MB leave 48 MB: 0.01 ms.
    assert roofline.least_ms(4_800_000_000, 0, 0, 4800) == pytest.approx(1.0)
    assert roofline.least_ms(0, 100_000_000, 52_000_000, 4800) == pytest.approx(0.01)
    assert roofline.least_ms(0, 50_000_000, 52_000_000, 4800) == 0


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 4800),
        ("NVIDIA GH200 480GB", 4900),
        ("NVIDIA H100 PCIe", 2039),
        ("NVIDIA H100 80GB HBM3", 3352),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA GeForce RTX 3090 Ti", 1008),
        ("NVIDIA L40S", 864),
        ("NVIDIA A1000", None),
        ("AMD EPYC", None),
        (None, None),
    ],
)
def test_peaks_are_known_by_whole_words(name: str | None, peak: int | None) -> None:
    assert roofline.peak_gb_per_s(name) == peak


def floor(read: int | None) -> tuple[vetoes.Floor, Scripted]:
    """A workload of 480 MB on an H200, at least 0.1 ms if all of it must be read."""
    answer = None if read is None else {"read": read, "written": 0}
    judge = Scripted(needed=lambda **fields: {"bytes": answer})
    found = PartialEvaluation(environment={"device_name": "NVIDIA H200", "l2_bytes": 50_000_000})
    program = Program(source="", entry="f", kind=TargetKind.FUNCTION)
    request = EvaluationRequest(
        reference=program, candidate_source="", candidate_entry="f", device="cuda",
        workload=Workload(name="w", origin=WorkloadOrigin.PRAGMA),
    )  # fmt: skip
    return vetoes.Floor(request, judge, 480_000_000, found), judge


async def test_a_time_above_the_roofline_asks_no_further() -> None:
    made, judge = floor(480_000_000)
    assert not await made.beaten([0.12, 0.12, 0.12]) and judge.asked == []


async def test_a_time_below_what_must_be_read_is_rejected_when_it_stays_so() -> None:
    made, _ = floor(480_000_000)
    assert await made.beaten([0.05, 0.05, 0.05])
    with pytest.raises(Rejected, match="memory of this device"):
        await made.settle([0.05, 0.05])
    await made.settle([0.11, 0.11])


@pytest.mark.parametrize("read", [48_000_000, None])
async def test_inputs_that_do_not_matter_need_not_be_read(read: int | None) -> None:
    made, judge = floor(read)
    assert not await made.beaten([0.05, 0.05, 0.05]) and judge.asked == ["needed"]


async def test_the_least_time_is_asked_once_for_all_candidates_of_a_reference() -> None:
    known: dict[str, Any] = {}
    made, judge = floor(480_000_000)
    assert await made.least_ms(known) == pytest.approx(0.1)
    assert await made.least_ms(known) == pytest.approx(0.1) and judge.asked == ["needed"]
    other, asked = floor(1)
    assert await other.least_ms(known) == pytest.approx(0.1) and asked.asked == []


async def test_a_least_time_that_nobody_knows_is_none_and_no_verdict() -> None:
    assert await floor(None)[0].least_ms({}) is None
    known: dict[str, Any] = {}
    made, judge = floor(1)
    judge.answers["needed"] = lambda **fields: {"refused": "out of memory", "remedy": None}
    assert await made.least_ms(known) is None and await made.least_ms(known) is None
    assert judge.asked == ["needed"] and check(made._found, "roofline") is None
    made._peak = None  # a device that is not listed
    assert await made.least_ms({}) is None and judge.asked == ["needed"]
