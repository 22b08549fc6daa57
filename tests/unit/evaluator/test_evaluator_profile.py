"""Where a verdict's time goes: what a profiler saw, told by kernel, and nothing decided by it."""

from dataclasses import dataclass, replace

import pytest

torch = pytest.importorskip("torch")

from editor_helpers import evaluation, proposal  # noqa: E402

from kernel_lsp.evaluator import EvaluationBudget, Gate, profiles  # noqa: E402
from kernel_lsp.evaluator.running import work  # noqa: E402
from kernel_lsp.evaluator.running.profiler import summarize  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402
from kernel_lsp.presenter import cards, verdicts  # noqa: E402
from kernel_lsp.records import EvalStatus, KernelTime, Profile  # noqa: E402

pytestmark = pytest.mark.torch
CUDA, CPU = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
SEEN = {
    "kernels": [{"name": "mine", "count": 1, "us": 75.0}, {"name": "cub", "count": 2, "us": 25.0}],
    "us": 100.0, "busy_us": 90.0, "gaps_us": 5.0,
}  # fmt: skip


@dataclass
class Range:
    start: float
    end: float


@dataclass
class Event:
    name: str
    device_type: object
    time_range: Range
    self_cpu_time_total: float = 0.0


def test_kernels_are_told_by_name_with_gaps_and_overlaps() -> None:
    events = [
        Event("launch", CPU, Range(0, 100), 100.0),
        Event("a", CUDA, Range(0, 10)),
        Event("b", CUDA, Range(5, 15)),
        Event("a", CUDA, Range(20, 30)),
    ]
    found = summarize(events, on_gpu=True, calls=1)
    assert [(row["name"], row["count"], row["us"]) for row in found["kernels"]] == [
        ("a", 2, 20.0), ("b", 1, 10.0),
    ]  # fmt: skip
    assert (found["us"], found["busy_us"], found["gaps_us"]) == (30.0, 25.0, 5.0)
    on_cpu = summarize(events, on_gpu=False, calls=2)
    assert on_cpu["us"] == 50.0 and on_cpu["gaps_us"] is None


def test_coverage_is_the_share_of_kernels_that_the_candidate_defines() -> None:
    source = (
        "import triton\n@triton.jit\ndef mine(x): pass\n"
        "@triton.autotune([], [])\n@triton.jit\ndef tuned(x): pass\ndef cub(x): pass\n"
    )
    own = profiles.own_kernels(source)
    assert own == {"mine", "tuned"} and not profiles.own_kernels("def (")
    found = profiles.read_profile("candidate", SEEN, own)
    assert profiles.coverage((found,)) == 0.75
    assert profiles.coverage((replace(found, busy_us=None, gaps_us=None),)) is None
    assert profiles.coverage(()) is None


@pytest.mark.parametrize(
    "change", [{"us": float("nan")}, {"us": -1}, {"kernels": 3}, {"kernels": [{"name": "x"}]}]
)
def test_what_a_candidate_makes_of_the_answer_is_no_profile(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        profiles.read_profile("candidate", {**SEEN, **change}, frozenset())


def test_operations_and_bytes_of_a_call_are_counted_once() -> None:
    x, w = torch.rand(64, 32), torch.rand(32, 16, requires_grad=True)
    with work.counted() as product:
        (x @ w).t()
    assert (product.operations, product.bytes) == (2 * 64 * 32 * 16, 4 * (64 * 32 + 512 + 1024))
    with work.counted() as pointwise:
        x.add_(1.0)
        x.view(32, 64).unsqueeze(0)
        torch.rand(64, 1).expand(64, 32).exp()
    drawn, read = 64 * 4, 64 * 4
    assert pointwise.bytes == 64 * 32 * 4 + drawn + read + 64 * 32 * 4
    assert pointwise.launches == 0


def test_what_nobody_counted_is_unknown() -> None:
    assert profiles.read_profile("eager", SEEN, frozenset()).operations is None
    counted = {**SEEN, "operations": 3, "moved_bytes": None}
    found = profiles.read_profile("eager", counted, frozenset())
    assert (found.operations, found.moved_bytes) == (3.0, None)
    with pytest.raises(ValueError):
        profiles.read_profile("eager", {**SEEN, "operations": -1}, frozenset())


def test_hover_report_and_terminal_say_where_the_time_goes() -> None:
    rows = (KernelTime(name="a|b", count=2, us=75.0, own=True),)
    profile = Profile(provider="candidate", kernels=rows, us=100.0, busy_us=90.0, gaps_us=5.0)
    made = replace(evaluation(), profiles=(profile,), coverage=0.75)
    assert "a\\|b 75%; 75% in its own kernels" in cards.evidence(
        replace(proposal(), evaluation=made)
    )
    assert any("its time goes to a|b 75%" in line for line in verdicts.evaluation_lines(made))
    assert "| a\\|b (own) | 2 | 75 µs | 75% |" in cards._profile_table(profile)


REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) @ x

def get_inputs():
    return [torch.rand(32, 32)]
"""


async def test_a_full_verdict_has_a_profile_of_both_programs() -> None:
    """Of a process of its own, which is confined like every other."""
    made = request_from_files(REFERENCE, REFERENCE + "\n# again\n", inference=True)
    full = replace(made, budget=EvaluationBudget(compile_s=0.01, timing_s=0.1))
    async with Gate() as gate:
        found = await gate.evaluate(full)
    assert found.status is EvalStatus.PASSED, found.detail
    assert [one.provider for one in found.profiles] == ["eager", "candidate"]
    names = {row.name for row in found.profiles[1].kernels}
    assert {"aten::tanh", "aten::mm"} <= names and found.coverage is None
    eager, again = found.profiles
    assert eager.operations and eager.operations == again.operations
    assert eager.moved_bytes and eager.moved_bytes == again.moved_bytes
