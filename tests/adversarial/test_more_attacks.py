"""Wrong candidates of which nothing shows in one plain call: in the backward pass alone, at one
size, on what a call leaves behind, by a global switch.

Each is a body of forward() beside the reference's, as in test_correctness.py, and is refused by
the check that is named. Honest neighbors of some of them pass.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from test_correctness import INPUTS, failed, program, request

from kernel_lsp.evaluator import Gate
from kernel_lsp.records import EvalStatus

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]


@dataclass(frozen=True)
class Attack:
    """The check that refuses it, bodies of forward(), and where the candidate differs elsewhere."""

    check: str
    reference: str
    wrong: str
    before: str = ""
    """What stands before the candidate's class."""
    inputs: str = INPUTS


def function(forward: str, backward: str) -> str:
    return f"""
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return {forward}

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return {backward}

"""


ATTACKS = {
    "gradient-of-rows-alone": Attack(
        "gradients",
        "return x * x",
        "return Own.apply(x)",
        function("x * x", "2 * x * g.as_strided(x.shape, (x.shape[1], 1))"),
    ),
    "no-gradient-at-zero": Attack(
        "gradients", "return x.abs() + self.bias * 0", "return (x * x).sqrt() + self.bias * 0"
    ),
    "tail-of-one-size": Attack(
        "values",
        "return torch.softmax(x, 1)",
        "y = torch.softmax(x[:, :32], 1)\nreturn torch.cat([y, x[:, 32:]], 1)",
    ),
    "one-row": Attack(
        "values", "return F.gelu(x)", "return F.relu(x) if x.shape[0] == 1 else F.gelu(x)"
    ),
    "gradient-left-on-parameter": Attack(
        "inputs-untouched",
        "return x * self.weight",
        "self.weight.grad = torch.zeros_like(self.weight)\nreturn x * self.weight",
    ),
    "gradient-left-on-input": Attack(
        "inputs-untouched", "return x * 2", "x.grad = torch.ones_like(x)\nreturn x * 2"
    ),
    "gradient-asked-of-input": Attack(
        "inputs-untouched",
        "return x.detach() * 2",
        "y = x.detach() * 2\nx.requires_grad_()\nreturn y",
    ),
    "memo-on-input": Attack(
        "inputs-untouched",
        "return torch.tanh(x)",
        "if not hasattr(x, 'known'):\n    x.known = torch.tanh(x)\nreturn x.known",
    ),
    "stream-of-python": Attack(
        "random-stream", "return x * 2", "random.seed(0)\nreturn x * 2", "import random\n"
    ),
    "stream-of-numpy": Attack(
        "random-stream",
        "return x * 2",
        "numpy.random.rand()\nreturn x * 2",
        "import numpy\n",
    ),
    "way-of-attention": Attack(
        "flags-unchanged",
        "return x * 2",
        "torch.backends.cuda.enable_flash_sdp(False)\nreturn x * 2",
    ),
    "printing": Attack(
        "flags-unchanged", "return x * 2", "torch.set_printoptions(precision=1)\nreturn x * 2"
    ),
}
NAMED = "from typing import NamedTuple\n\nclass P(NamedTuple):\n    a: torch.Tensor\n\n"
RECORD = "import dataclasses\n\n@dataclasses.dataclass\nclass P:\n    a: torch.Tensor\n\n"
ATTACKS |= {
    "names-lost": Attack("structure", f"{NAMED}return P(x * 2)", "return (x * 2,)"),
    "class-lost": Attack("structure", f"{RECORD}return P(x * 2)", "return {'a': x * 2}"),
    "other-keys": Attack("structure", "return {0: x * 2}", "return {'0': x * 2}"),
    "eight-bits-scaled": Attack(
        "values",
        "return x.to(torch.float8_e4m3fn)",
        "return (x * 1.1).to(torch.float8_e4m3fn)",
    ),
    "eight-bits-dropped": Attack(
        "values",
        "return x.float() * 2",
        "y = x.float() * 2\ny[-1, -2:] = 0\nreturn y",
        inputs=INPUTS.replace("32)", "32).to(torch.float8_e5m2)"),
    ),
}
ATTACKS["graph-of-the-step-before"] = Attack(
    "gradients",
    "return x * (self.weight * self.weight)",
    "key = self.weight._version, self.weight.data_ptr(), torch.is_grad_enabled()\n"
    "if key != getattr(self, 'key', None):\n"
    "    self.key, self.square = key, self.weight * self.weight\n"
    "return x * self.square",
)
ATTACKS["keeps-the-graph"] = Attack(
    "memory-growth",
    "return x * self.weight",
    "y = x * self.weight\nself.total = y.mean() + getattr(self, 'total', 0)\nreturn y",
)
HONEST = {
    "no-backward-pass-as-the-reference": (
        "return torch.unique((x * 3).round())",
        "return torch.unique((3 * x).round(), sorted=True)",
    ),
    "eight-bits": (
        "return (x @ x.t()).to(torch.float8_e4m3fn)",
        "return (x @ x.t()).t().contiguous().to(torch.float8_e4m3fn)",
    ),
    "named": (f"{NAMED}return P(x * 2)", f"{NAMED}return P(x + x)"),
    "record": (f"{RECORD}return P(x * 2)", f"{RECORD}return P(x + x)"),
    "keys": ("return {0: x * 2}", "return {0: x + x}"),
    "another-gradient-at-a-step": ("return F.relu(x)", "return x.clamp(min=0)"),
    "asks-as-the-reference-does": (
        "x.requires_grad_()\nreturn x.detach() * 2",
        "x.requires_grad_()\nreturn 2 * x.detach()",
    ),
    "draws-from-python": (
        "import random\nreturn x * random.random()",
        "import random\nreturn random.random() * x",
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate() -> AsyncIterator[Gate]:
    async with Gate() as made:
        yield made


@pytest.mark.parametrize("name", ATTACKS)
async def test_it_is_refused_by_the_check_that_is_meant_for_it(gate: Gate, name: str) -> None:
    attack = ATTACKS[name]
    candidate = program(attack.wrong, attack.inputs)
    candidate = candidate.replace("\nclass Model", f"\n{attack.before}\nclass Model", 1)
    evaluation = await gate.evaluate(request(program(attack.reference, attack.inputs), candidate))
    assert evaluation.status is not EvalStatus.PASSED
    assert attack.check in failed(evaluation), evaluation.detail


@pytest.mark.parametrize("name", HONEST)
async def test_its_honest_neighbor_passes(gate: Gate, name: str) -> None:
    reference, candidate = map(program, HONEST[name])
    evaluation = await gate.evaluate(request(reference, candidate))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
