"""Timed rounds on a CUDA device: the head start, graphs, programs against themselves, work out of
order."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator import EvaluationBudget, devices, evaluate, stats  # noqa: E402
from kernel_lsp.evaluator.callees import Callee  # noqa: E402
from kernel_lsp.evaluator.judging import traffic  # noqa: E402
from kernel_lsp.evaluator.running import timing  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402
from kernel_lsp.records import EvalStatus, Evaluation  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROGRAMS = {
    "softmax": (lambda x: torch.softmax(x, -1), (4096, 4096)),
    "pointwise": (lambda x: torch.relu(x * 2 + 1), (4096, 4096)),
    "matmul": (lambda x: x @ x, (2048, 2048)),
    "tiny": (lambda x: torch.softmax(x, -1), (64, 64)),
}


def rounds(shape, **providers):
    sets = [[[torch.rand(shape, device="cuda") / shape[0]], {}] for _ in range(4)]
    made = timing.InterleavedRounds(devices.of("cuda"), sets, [1, 2, 3, 4], grad=False)
    for name, call in providers.items():
        made.add(name, Callee(call))
        made.warm_up(name)
    return made


def speedup(times):
    keep = stats.kept_rounds(times)
    return stats.paired_speedup(
        *([times[name][i] for i in keep] for name in ("eager", "candidate"))
    )


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_is_as_fast_as_itself(name):
    call, shape = PROGRAMS[name]
    made = rounds(shape, eager=call, candidate=lambda x: call(x))
    measured = made.run(2.0, 1)
    assert len(measured.times_ms["eager"]) >= 50
    assert speedup(measured.times_ms).mid == pytest.approx(1.0, abs=0.1 if name == "tiny" else 0.02)


@pytest.mark.parametrize("name", ["softmax", "pointwise", "matmul"])
def test_the_span_is_repeated_within_two_percent(name):
    call, shape = PROGRAMS[name]
    medians = [median(rounds(shape, eager=call).run(1.0, 0).spans_ms["eager"]) for _ in range(3)]
    assert max(medians) <= 1.02 * min(medians)


def test_no_launch_is_inside_a_span_that_python_is_quick_enough_for():
    """Ten launches take Python about 50 us and the device about 20; the span must be the
    device's."""

    def ten(x):
        for _ in range(10):
            x = x + 1
        return x

    made = rounds((64, 64), eager=ten)
    measured = made.run(1.0, 0)
    device = median(made.replay(1.0)["eager"])
    assert median(measured.spans_ms["eager"]) <= 2.5 * device + 0.01
    assert median(measured.times_ms["eager"]) >= median(measured.spans_ms["eager"])


def test_a_span_covers_what_the_memory_needs():
    made = rounds((8192, 8192), eager=lambda x: x + 1)
    least = 2 * 8192 * 8192 * 4 / 8e12 * 1e3  # no memory has 8 TB/s in 2026
    assert median(made.run(1.0, 0).spans_ms["eager"]) > least


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch.compile forks in a process with threads
def test_graphs_of_eager_compiled_and_triton_give_device_times():
    sys.path.insert(0, str(Path(__file__).parent))
    from timing_kernel import add_one

    made = rounds((1024, 1024), eager=lambda x: x + 1)
    made.add_compiled(Callee(lambda x: x + 1), 120)
    made.add("candidate", Callee(add_one))
    for name in list(made.providers):
        made.warm_up(name)
    times = made.replay(1.0)
    assert set(times) == {"eager", "compile", "candidate"}, made.notes
    assert all(len(values) >= timing.MIN_ROUNDS and min(values) > 0 for values in times.values())


def test_memory_of_a_call_is_counted_without_its_inputs():
    measured = rounds((1024, 1024), eager=lambda x: (x + 1) * 2).run(0.3, 0)
    size = 1024 * 1024 * 4
    assert 2 * size <= measured.peak_bytes["eager"] <= 2.2 * size


REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(torch.relu(x * 2 + 1), -1)

def get_inputs():
    return [torch.rand(4096, 4096)]
"""


def judged(forward: str) -> Evaluation:
    lines = "".join(f"        {line}\n" for line in forward.splitlines())
    source = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n" + lines
    request = request_from_files(REFERENCE, source, has_cuda=True, inference=True)
    budget = EvaluationBudget(compile_s=0, timing_s=1)
    return asyncio.run(evaluate(replace(request, device="cuda", budget=budget)))


def test_work_on_a_private_stream_that_nobody_waits_for_is_rejected():
    evaluation = judged(
        "self.side = getattr(self, 'side', None) or torch.cuda.Stream()\n"
        "self.side.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(self.side):\n"
        "    return torch.softmax(torch.relu(x * 2 + 1), -1)"
    )
    assert evaluation.status is not EvalStatus.PASSED, evaluation.speedups


def test_work_on_a_side_stream_that_joins_passes_and_gains_nothing():
    evaluation = judged(
        "self.side = getattr(self, 'side', None) or torch.cuda.Stream()\n"
        "self.side.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(self.side):\n"
        "    y = torch.softmax(torch.relu(x * 2 + 1), -1)\n"
        "torch.cuda.current_stream().wait_stream(self.side)\n"
        "return y"
    )
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert not evaluation.faster()


def test_the_same_program_passes_with_device_times_and_is_not_called_faster():
    evaluation = judged("return torch.softmax(torch.relu(x * 2 + 1), -1)")
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    assert not evaluation.faster()
    assert evaluation.speedups["eager"].mid == pytest.approx(1.0, abs=0.03)
    assert evaluation.device_speedups["eager"].mid == pytest.approx(1.0, abs=0.03)
    assert {row.provider for row in evaluation.device_timings} >= {"eager", "candidate"}


def test_needed_bytes_are_counted_on_the_device():
    from kernel_lsp.evaluator.judging.oracle import Reference

    request = request_from_files(REFERENCE, REFERENCE, has_cuda=True, inference=True)
    reference = Reference(request.reference, request.workload, "cuda")
    trial = {
        "arguments": reference.arguments(3), "state": reference.own_state, "noise_seed": 5,
        "label": "given",
        "draw": torch.Generator().manual_seed(1),
    }  # fmt: skip
    found = traffic.needed_bytes(reference, trial)
    assert found is not None and found["written"] == 4096 * 4096 * 4
    assert found["read"] > 0.99 * 4096 * 4096 * 4


def test_a_program_that_cannot_be_recorded_is_a_note_and_the_others_have_device_times():
    made = rounds((64, 64), eager=lambda x: x + 1, candidate=lambda x: x + float(x.sum().cpu()))
    times = made.replay(0.5)
    assert set(times) == {"eager"}
    assert any("candidate cannot be recorded" in note for note in made.notes)
    assert torch.rand(8, device="cuda").unique().numel() > 1, "random numbers go on as before"
