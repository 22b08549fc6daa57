"""References and candidates of every odd kind: each gets a verdict or a refusal that says why.

One warm gate serves all of them, so that whatever one does to its processes would be seen in the
next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationBudget
from kernel_lsp.evaluator.gate import Gate
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import EvalStatus, Evaluation, Evidence

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]

SPOIL = """
def spoiled(value):
    if isinstance(value, torch.Tensor):
        return ~value if value.dtype is torch.bool else value + 1
    if isinstance(value, (list, tuple)):
        made = map(spoiled, value)
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return {key: spoiled(item) for key, item in value.items()} if isinstance(value, dict) else value
"""


def program(
    inputs: str = "[torch.randn(4, 8)]",
    forward: str = "return torch.tanh(x)",
    top: str = "",
    init: str = "pass",
    end: str = "",
) -> str:
    return f"""
import collections, ctypes, os, random, sys, time, torch
from torch import nn
{top}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}

def get_inputs():
    return {inputs}
{end}
"""


PLAIN = program()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate() -> AsyncIterator[Gate]:
    async with Gate() as made:
        yield made


async def judged(
    gate: Gate, reference: str, candidate: str | None = None, **budget: float
) -> Evaluation:
    new = candidate or reference.replace("class Model(", "class ModelNew(")
    limits = EvaluationBudget(**{"memory_bytes": 6 * 2**30, **budget})  # type: ignore[arg-type]
    request = replace(
        request_from_files(reference, new, device="cpu"), require_speed=False, budget=limits
    )
    return await gate.evaluate(request)


# --- references that can be judged by ----------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "forward"),
    [
        ("[torch.randn(())]", "return torch.tanh(x)"),
        ("[torch.randn(4, 8)]", "return x.sum()"),
        ("[torch.randn(4, 8, dtype=torch.complex64)]", "return x * x.conj() + x"),
        ("[torch.randint(-5, 5, (4, 8), dtype=torch.int8)]", "return x * 2"),
        ("[torch.randint(-5, 5, (4, 8))]", "return x * 2"),
        ("[torch.rand(4, 8) < 0.5]", "return ~x"),
        ("[torch.randn(4, 8, dtype=torch.float64)]", "return torch.tanh(x)"),
        ("[torch.randn(4, 8).half()]", "return x * 2 + 1"),
        ("[torch.randn(4, 8).bfloat16()]", "return x * 2 + 1"),
        (
            "[[torch.randn(4), {'a': torch.randn(4), 'n': 3}]]",
            "return x[0] + x[1]['a'] * x[1]['n']",
        ),
        ("[torch.randn(4, 8)]", "return [x * 2, (x + 1, {'a': x * 3})]"),
        ("[torch.randn(4, 8)]", "return torch.max(x, dim=1)"),
        ("[torch.randn(4, 8)]", "return torch.log(x)"),  # NaN in half of the places
        ("[torch.randn(4, 8)]", "return x * 2, None, float('nan'), True"),
    ],
)
async def test_odd_inputs_and_outputs_are_judged_right(
    gate: Gate, inputs: str, forward: str
) -> None:
    reference = program(inputs, forward)
    evaluation = await judged(gate, reference)
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    wrong = reference.replace("class Model(", "class ModelNew(").replace(
        "return ", "return spoiled(", 1
    )
    head, _, tail = wrong.partition("return spoiled(")
    line, _, rest = tail.partition("\n")
    evaluation = await judged(gate, reference, f"{head}return spoiled(({line}))\n{rest}{SPOIL}")
    assert evaluation.status is EvalStatus.WRONG_RESULT


@pytest.mark.parametrize(
    "change",
    [
        {
            "init": "self.register_buffer('n', torch.zeros(()))",
            "forward": "self.n += 1; return x + self.n",
        },
        {
            "init": "self.register_buffer('n', torch.ones(8), persistent=False)",
            "forward": "return x * self.n",
        },
        {"init": "self.register_buffer('n', None)"},
        {
            "init": "self.a = nn.Linear(8, 8); self.b = nn.Linear(8, 8); self.b.weight = "
            "self.a.weight",
            "forward": "return self.b(self.a(x))",
        },
        {"forward": "print('y' * 4_000_000); return torch.tanh(x)"},
    ],
    ids=["counted", "not-saved", "none", "tied", "talkative"],
)
async def test_buffers_tied_weights_and_talk_are_no_obstacle(
    gate: Gate, change: dict[str, str]
) -> None:
    evaluation = await judged(gate, program(**change))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail


@pytest.mark.parametrize(
    ("inputs", "forward"),
    [
        ("[torch.randn(0, 8)]", "return torch.tanh(x)"),
        ("[torch.randn(4, 0)]", "return x.sum(1)"),
        ("[torch.randn(4, 8)]", "return x[:0]"),
        ("[torch.randn(4, 8)]", "return x * 0"),
        ("[3]", "return torch.ones(3) * x"),
    ],
)
async def test_outputs_that_tell_nothing_apart_earn_no_claim(
    gate: Gate, inputs: str, forward: str
) -> None:
    evaluation = await judged(gate, program(inputs, forward))
    dull = next(check for check in evaluation.checks if check.name == "degenerate")
    assert evaluation.status is EvalStatus.PASSED and dull.passed is False and dull.detail


# --- references that cannot -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": "None"}, "must be Tensor, not NoneType"),
        ({"inputs": "(t for t in [torch.randn(4)])"}, "a value of type generator"),
        ({"inputs": "[object()]", "forward": "return torch.ones(3)"}, "a value of type object"),
        ({"inputs": "[torch.eye(4).to_sparse()]"}, "a sparse tensor"),
        (
            {"inputs": "[torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)]"},
            "a quantized tensor",
        ),
        ({"inputs": "[torch.randn(4, device='meta')]"}, "a meta tensor"),
        (
            {"inputs": "[torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])]"},
            "a nested tensor",
        ),
        ({"inputs": "[torch.randn(4, 8).to(torch.float8_e8m0fnu)]"}, "float8_e8m0fnu"),
        (
            {"inputs": "[{1: torch.randn(3)}]", "forward": "return x[1]"},
            "keys that are not strings",
        ),
        ({"inputs": "[torch.randn(3), torch.randn(3)]"}, "positional arguments"),
        ({"inputs": "[torch.full((4, 8), float('nan'))]"}, "never finite"),
        ({"inputs": "sys.exit(0)"}, "running the reference failed"),
        ({"forward": "return None"}, "a value of type NoneType|no tensor"),
        ({"forward": "return x.sum().item()"}, "no tensor"),
        ({"forward": "return {(1,): x}"}, "keys that are not strings"),
        (
            {"forward": "return D(x)", "top": "class D:\n    def __init__(self, a): self.a = a\n"},
            "of type D",
        ),
        ({"forward": "y = []; y.append(y); return y"}, "nested without end"),
        ({"forward": "return x.to_sparse()"}, "a sparse tensor"),
        ({"forward": "return x * float('nan')"}, "never finite"),
        ({"forward": "x += 1; return x * 2"}, "writes into its own inputs"),
        ({"forward": "raise ValueError('bad value')"}, "bad value"),
        ({"forward": "raise SystemExit(0)"}, "running the reference failed"),
        ({"forward": "raise KeyboardInterrupt"}, "running the reference failed"),
        ({"forward": "os._exit(0)"}, "running the reference failed"),
        ({"forward": "ctypes.string_at(0)"}, "running the reference failed"),
        ({"forward": "os.closerange(0, 64); return torch.tanh(x)"}, "running the reference failed"),
        (
            {"forward": "return x * random.SystemRandom().random()"},
            "another result when called again",
        ),
        ({"init": "self.n = 0", "forward": "self.n += 1; return x * self.n"}, "another result"),
        ({"top": "1 / 0"}, "division by zero"),
        ({"top": "sys.exit(3)"}, "running the reference failed"),
        ({"init": "raise RuntimeError('no weights')"}, "no weights"),
        ({"end": "del Model"}, "defines no 'Model'"),
        ({"end": "Model = 3"}, "neither a module nor a function"),
        ({"end": "get_inputs = 3"}, "get_inputs"),
        ({"end": "def get_init_inputs(): return [1, 2, 3]"}, "constructing the reference failed"),
    ],
    ids=str,
)
async def test_a_reference_that_cannot_be_judged_by_says_why_and_what_to_do(
    gate: Gate, change: dict[str, str], words: str
) -> None:
    with pytest.raises(EvaluationError, match=f"could not judge.*({words})") as caught:
        await judged(gate, program(**change))
    assert caught.value.remedy


async def test_a_reference_that_sleeps_is_ended_in_time(gate: Gate) -> None:
    with pytest.raises(EvaluationError, match="no answer within 5 s"):
        await judged(gate, program(forward="time.sleep(600); return x"), load_s=5)


# --- candidates -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("forward(self, x)", "forward(self, x, y)"),
        ("__init__(self)", "__init__(self, width)"),
        ("return torch.tanh(x)", "return None"),
        ("return torch.tanh(x)", "return 10 ** 5000"),
        ("return torch.tanh(x)", "return {1: torch.tanh(x)}"),
        ("return torch.tanh(x)", "return (torch.tanh(x),)"),
        ("return torch.tanh(x)", "return torch.tanh(x).to('meta')"),
        ("return torch.tanh(x)", "return torch.tanh(x).to_sparse()"),
        ("return torch.tanh(x)", "return torch.tanh(x).double()"),
        ("return torch.tanh(x)", "return torch.tanh(x)[:2]"),
        ("return torch.tanh(x)", "return torch.tanh(x) * float('nan')"),
        ("return torch.tanh(x)", "raise SystemExit(0)"),
        ("return torch.tanh(x)", "raise KeyboardInterrupt"),
        ("return torch.tanh(x)", "y = []; y.append(y); return y"),
        ("return torch.tanh(x)", "raise type('n' * 10**6, (Exception,), {})('z' * 10**7)"),
        ("    return [torch.randn(4, 8)]", "    return []\nModelNew = 3"),
        ("    return [torch.randn(4, 8)]", "    return []\ndel ModelNew"),
    ],
    ids=str,
)
async def test_a_candidate_of_another_shape_is_rejected_with_a_short_reason(
    gate: Gate, old: str, new: str
) -> None:
    candidate = PLAIN.replace("class Model(", "class ModelNew(").replace(old, new)
    evaluation = await judged(gate, PLAIN, candidate)
    assert evaluation.status not in (EvalStatus.PASSED, EvalStatus.NOT_RUN)
    assert 0 < len(evaluation.detail) <= 1000 and "\n" not in evaluation.detail


async def test_a_candidate_without_the_parameters_of_the_reference_is_rejected(gate: Gate) -> None:
    reference = program(init="self.l = nn.Linear(8, 8)", forward="return self.l(x)")
    evaluation = await judged(gate, reference, PLAIN.replace("class Model(", "class ModelNew("))
    assert evaluation.status is EvalStatus.WRONG_RESULT and "parameters" in evaluation.detail


# --- evidence ---------------------------------------------------------------------------------


async def test_the_evidence_of_a_verdict_repeats_it_trial_by_trial(gate: Gate) -> None:
    kept: list[Evidence] = []
    request = request_from_files(PLAIN, PLAIN, device="cpu")
    request = replace(request, require_speed=False, budget=EvaluationBudget(memory_bytes=6 * 2**30))
    await gate.evaluate(request, keep=kept.append)
    await gate.evaluate(replace(request, seed=kept[0].seed), keep=kept.append)
    first, again = kept
    assert len(first.trials) >= 8 and all(trial.passed for trial in first.trials)
    assert again.trials == first.trials and again.seed == first.seed
    await gate.evaluate(request, keep=kept.append)
    assert kept[2].seed != first.seed


async def test_a_rejection_keeps_the_trial_that_failed(gate: Gate) -> None:
    kept: list[Evidence] = []
    candidate = PLAIN.replace("torch.tanh(x)", "torch.tanh(x).clamp(min=0)")
    request = replace(request_from_files(PLAIN, candidate, device="cpu"), require_speed=False)
    evaluation = await gate.evaluate(request, keep=kept.append)
    assert evaluation.status is EvalStatus.WRONG_RESULT and kept[0].evaluation == evaluation
    assert kept[0].trials[-1].passed is False and kept[0].trials[-1].detail
