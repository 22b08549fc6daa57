"""What an output is besides its values, and what torch.compile leaves in a process."""

import subprocess
import sys

import pytest
import torch

from kernel_lsp.evaluator import relations
from kernel_lsp.evaluator.running.watch.outputs import output_problems
from kernel_lsp.evaluator.running.worker import needs_compiler

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "name, value, plain",
    [
        ("_dynamo_propagated_dynamic_indices", {0}, True),  # as torch.compile writes it
        ("_dynamo_sum", lambda: 0, False),
        ("sum", {0}, False),
    ],
)
def test_marks_of_the_compiler_are_no_behavior(name, value, plain) -> None:
    result = torch.ones(3)
    setattr(result, name, value)
    found = [note["name"] for note in output_problems(result, [torch.ones(3)], aliases=False)]
    assert found == ([] if plain else ["plain-outputs"])


def test_the_mode_that_a_module_is_left_in_is_a_mark() -> None:
    module = torch.nn.Linear(2, 2)
    assert relations.marks([], module, []) == ["the module in train()"]
    assert relations.marks([], module.eval(), []) == ["the module in eval()"]
    assert relations.marks([], module.forward, []) == []


@pytest.mark.parametrize("change", ["None", "torch.zeros(2, 2)", "m.weight.grad.mul_(2)", ""])
def test_a_gradient_that_a_parameter_had_is_not_changed_by_a_call(change: str) -> None:
    module = torch.nn.Linear(2, 2)
    with relations.held_gradients(module) as left:
        assert module.bias.grad is not None
        if change:
            module.weight.grad = eval(change, {"torch": torch, "m": module})
    assert left == (["parameter 'weight': not the gradient that it had"] if change else [])
    assert module.bias.grad is None and (module.weight.grad is None) == (
        change in ("None", "", "m.weight.grad.mul_(2)")
    )


def test_gradients_are_taken_away_after_a_call_that_raises() -> None:
    module = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no"), relations.held_gradients(module):
        raise ValueError("no")
    assert module.weight.grad is None


COMPILE = """
import sys
import torch
from kernel_lsp.evaluator.running import watch
from kernel_lsp.evaluator.running.worker import import_compiler

import_compiler(judged=True)
seen = watch.Watch()
seen.start()
run = torch.compile(lambda x: torch.sigmoid(x) * x)
x = torch.randn(8, requires_grad=True)
y = run(x)
first, = torch.autograd.grad(y, [x], torch.ones(8), retain_graph=True)
second, = torch.autograd.grad(y, [x], torch.ones(8))
assert torch.equal(first, second)
sys.setrecursionlimit(max(sys.getrecursionlimit(), 2000))  # as a cold compilation does
print([note for note in seen.problems() if note["name"] == "flags-unchanged"])
"""


def test_a_compiled_candidate_changes_no_switch() -> None:
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr[-2000:]


def test_a_guard_that_asks_whether_it_is_compiled_needs_no_compiler() -> None:
    guard = "if torch.compiler.is_compiling():\n    pass\n"
    assert not needs_compiler(guard)
    for own in ("torch.compile(f)", "torch.compiler.disable(f)", "from torch import compile"):
        assert needs_compiler(guard + own)
