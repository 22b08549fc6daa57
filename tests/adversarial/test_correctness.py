"""Every check of correctness through the public gate: a wrong candidate that it alone catches, an
honest one.

The programs are small, so that nearly all of the time is starting processes.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio
from verdict_helpers import judge, seed_of

from kernel_lsp.evaluator import EvaluationRequest, Gate
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import (
    ArgSpec,
    EvalStatus,
    Evaluation,
    TorchSetting,
    Workload,
    WorkloadOrigin,
)

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
INPUTS = "\n\ndef get_inputs():\n    return [torch.rand(24, 32)]\n"
WEIGHTED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32))
        self.bias = nn.Parameter(torch.randn(32))

"""


def program(body: str, inputs: str = INPUTS) -> str:
    """A Model whose forward has this body; bodies that start with ``class`` stand for
    themselves."""
    if body.lstrip().startswith(("class", "def")):
        return HEAD + body + inputs
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"{HEAD}{WEIGHTED}    def forward(self, x):\n{lines}\n{inputs}"


@dataclass(frozen=True)
class Case:
    """One check: its name in the verdict, and bodies of forward()."""

    check: str
    reference: str
    wrong: str
    honest: str
    workload: Workload | None = None


def gradients(training: bool | None, inputs: bool) -> Workload:
    spec = ArgSpec(name=None, dtype="float32", shape=(24, 32), requires_grad=inputs)
    return Workload(
        name="trained", origin=WorkloadOrigin.RECORDED, inputs=(spec,), training=training
    )


SQUARE = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, weight):
        return FACTOR * ctx.saved_tensors[0] * weight


class Model(nn.Module):
    def forward(self, x):
        return Square.apply(x)
"""
COUNTED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32))
        self.bias = nn.Parameter(torch.randn(32))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return (x * self.weight + self.bias) * (1 + 2.0**-22 * (self.calls % 2))
"""
FOLDED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32))
        self.bias = nn.Parameter(torch.randn(32))
        self.register_load_state_dict_post_hook(lambda module, keys: module.fold())

    def fold(self):
        self.folded = self.weight.detach() * 2

    def forward(self, x):
        return x * self.folded + self.bias
"""
KEYED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32))
        self.bias = nn.Parameter(torch.randn(32))
        self.key = None

    def forward(self, x):
        key = self.weight._version, self.weight.data_ptr()
        if key != self.key:
            self.key, self.folded = key, self.weight.detach() * 2
        return x * self.folded + self.bias
"""
NO_GRAD = Workload(
    name="no_grad", origin=WorkloadOrigin.GET_INPUTS, setting=TorchSetting(gradients=False)
)
CASES = {
    "layout": Case(
        "values",
        "return x * self.weight + self.bias",
        "rows = x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())\n"
        "return rows * self.weight + self.bias",
        "return x.contiguous() * self.weight + self.bias",
    ),
    "batch": Case(
        "values",
        "return (x * self.weight).sum(1)",
        "return (x * self.weight).reshape(24, -1).sum(1)",
        "return (x * self.weight).reshape(x.shape[0], -1).sum(1)",
    ),
    "updates": Case("values", "return x * (self.weight * 2) + self.bias", FOLDED, KEYED, NO_GRAD),
    "repeatable": Case(
        "repeatable",
        "return x * self.weight + self.bias",
        COUNTED,
        "return torch.addcmul(self.bias, x, self.weight)",
    ),
    "strides": Case(
        "strides",
        "return (x * self.weight).t()",
        "return (x * self.weight).t().contiguous()",
        "return x.mul(self.weight).transpose(0, 1)",
    ),
    "aliasing": Case(
        "aliasing",
        "return x * self.weight, x[:2]",
        "return x * self.weight, x[:2].clone()",
        "return self.weight * x, x.narrow(0, 0, 2)",
    ),
    "outputs-among-themselves": Case(
        "aliasing",
        "return (x * 2), (x * 2)",
        "y = x * 2\nreturn y, y",
        "y = x.repeat(2, 1) * 2\nreturn y[:x.shape[0]], y[x.shape[0]:]",
    ),
    "guard-bands": Case(
        "guard-bands",
        "return x * self.weight",
        "end = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride())) + 1\n"
        "x.as_strided((1,), (1,), end).fill_(0)\n"
        "return x * self.weight",
        "return self.weight * x",
    ),
    "random-stream": Case(
        "random-stream",
        "return x * self.weight",
        "torch.rand(1)\nreturn x * self.weight",
        "torch.rand(1, generator=torch.Generator())\nreturn x * self.weight",
    ),
    # Both take the same mask; whoever keeps more digits than the reference is no farther from
    # float64.
    "values-behind-a-mask": Case(
        "values",
        "return F.dropout((x + 4096) - 4096, 0.25)",
        "return F.dropout((x + 32768) - 32768, 0.25)",
        "return F.dropout(x, 0.25)",
    ),
    "requires-grad": Case(
        "requires-grad",
        "return x * x",
        "return (x * x).detach()",
        "return x.square()",
        gradients(None, inputs=True),
    ),
    "gradients-of-inputs": Case(
        "gradients",
        "class Model(nn.Module):\n    def forward(self, x):\n        return x * x\n",
        SQUARE.replace("FACTOR", "3"),
        SQUARE.replace("FACTOR", "2"),
        gradients(None, inputs=True),
    ),
    "gradients-of-parameters": Case(
        "gradients",
        "return x * self.weight + self.bias",
        "return x * self.weight.detach() + self.bias",
        "return torch.addcmul(self.bias, x, self.weight)",
        gradients(True, inputs=False),
    ),
}


def request(reference: str, candidate: str, workload: Workload | None = None) -> EvaluationRequest:
    made = request_from_files(reference, candidate, device="cpu", require_speed=False)
    return made if workload is None else replace(made, workload=workload)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate() -> AsyncIterator[Gate]:
    """Torch is imported once for all of these tests; what a gate leaves behind is tested in
    test_gate."""
    async with Gate() as made:
        yield made


def failed(evaluation: Evaluation) -> set[str]:
    return {check.name for check in evaluation.checks if check.passed is False}


@pytest.mark.parametrize("name", CASES)
async def test_the_wrong_candidate_is_rejected_by_this_check_alone(gate: Gate, name: str) -> None:
    case = CASES[name]
    asked = request(program(case.reference), program(case.wrong), case.workload)
    evaluation = await judge(gate, replace(asked, seed=seed_of(name)))
    assert evaluation.status is not EvalStatus.PASSED
    assert failed(evaluation) == {case.check}, evaluation.detail


@pytest.mark.parametrize("name", CASES)
async def test_the_honest_candidate_passes(gate: Gate, name: str) -> None:
    case = CASES[name]
    evaluation = await gate.evaluate(
        request(program(case.reference), program(case.honest), case.workload)
    )
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
    if case.workload not in (None, NO_GRAD):
        gradient = next(check for check in evaluation.checks if check.name == "gradients")
        assert gradient.passed and not gradient.detail.startswith("0 ")


def unchanged(body: str, inputs: str = INPUTS) -> EvaluationRequest:
    return request(program(body, inputs), program(body, inputs))


async def test_an_output_that_depends_on_parameters_alone_is_called_a_constant(gate: Gate) -> None:
    evaluation = await gate.evaluate(unchanged("return (x - x) * 0 + self.weight"))
    assert evaluation.status is EvalStatus.PASSED and failed(evaluation) == {"degenerate"}
    detail = next(check.detail for check in evaluation.checks if check.name == "degenerate")
    assert detail.startswith("your code computes a constant: it does not depend on the inputs")


async def test_one_dull_output_among_others_is_named(gate: Gate) -> None:
    evaluation = await gate.evaluate(unchanged("return x * self.weight, torch.zeros_like(x)"))
    check = next(check for check in evaluation.checks if check.name == "degenerate")
    assert (
        evaluation.status is EvalStatus.PASSED
        and check.passed
        and check.detail.startswith("output 1: ")
    )


async def test_a_workload_that_cannot_tell_precisions_apart_says_so(gate: Gate) -> None:
    # The seed is fixed: among many random values one may lie so close to a step that rounding moves
    # it.
    evaluation = await gate.evaluate(replace(unchanged("return torch.round(x)"), seed=1))
    control = next(check for check in evaluation.checks if check.name == "lower-precision-control")
    assert evaluation.status is EvalStatus.PASSED and control.passed is None


@pytest.mark.parametrize(
    "inputs, body",
    [
        ("torch.randn(6, 4, dtype=torch.complex64)", "return x * (1 + 2j)"),
        ("torch.randint(0, 9, (6, 4))", "return x * x"),
        ("torch.rand(0, 4)", "return x * 2"),
        ("torch.rand(6, 4) < 0.5", "return {'both': [x & True, (x, None, 3)]}"),
        ("torch.rand(4, dtype=torch.float64)", "return x.cumsum(0)"),
    ],
    ids=["complex", "integers", "empty", "nested", "float64"],
)
async def test_unusual_tensors_get_a_verdict(gate: Gate, inputs: str, body: str) -> None:
    made = f"\n\ndef get_inputs():\n    return [{inputs}]\n"
    evaluation = await gate.evaluate(unchanged(body, made))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail


async def test_every_comparison_reaches_the_evidence(gate: Gate) -> None:
    kept = []
    case = CASES["gradients-of-inputs"]
    asked = request(program(case.reference), program(case.honest), case.workload)
    await gate.evaluate(asked, keep=kept.append)
    trials = kept[0].trials
    assert len({trial.number for trial in trials}) >= 10 and all(trial.passed for trial in trials)
    assert {"output 0", "gradient of input 0", "repetition"} <= {
        t.detail.split(":")[0] for t in trials
    }
    assert any("inputs" in trial.variation for trial in trials)
    assert any("batch of" in trial.variation for trial in trials)
