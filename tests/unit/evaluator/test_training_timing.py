"""The clock of a workload that records gradients: a call is forward and backward, for every
provider."""

import pytest

from kernel_lsp.evaluator import devices
from kernel_lsp.evaluator.callees import Callee
from kernel_lsp.evaluator.running import timing

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


class Doubled(torch.autograd.Function):
    """Remembers the gradients it was asked to hand back."""

    seen: list = []

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        Doubled.seen.append(grad.clone())
        return grad * 2


def rounds(grad: bool) -> timing.InterleavedRounds:
    Doubled.seen.clear()
    sets = [[[torch.full((8,), float(number + 1), requires_grad=grad)], {}] for number in range(2)]
    made = timing.InterleavedRounds(devices.of("cpu"), sets, [1, 2], grad=grad)
    made.add("candidate", Callee(Doubled.apply))
    return made


def test_the_backward_is_part_of_each_call_and_its_weights_stay_the_same() -> None:
    clock = rounds(grad=True)
    for _ in range(3):
        result = clock.call(Callee(Doubled.apply), clock.arena.fill(0, 1.0, 0))
    assert result.requires_grad and torch.equal(result, torch.full((8,), 2.0))
    assert len(Doubled.seen) == 3
    assert all(torch.equal(grad, Doubled.seen[0]) for grad in Doubled.seen)
    assert Doubled.seen[0].unique().numel() > 1  # all ones would invite shortcuts


def test_without_gradients_nothing_runs_backward() -> None:
    clock = rounds(grad=False)
    assert not clock.call(Callee(Doubled.apply), clock.arena.fill(0, 1.0, 0)).requires_grad
    clock.race(["candidate"], 2, 1.0)
    assert Doubled.seen == []


def test_every_timed_call_of_a_race_runs_backward() -> None:
    clock = rounds(grad=True)
    clock.race(["candidate"], 2, 1.0)
    assert len(Doubled.seen) >= 2


def test_parameters_of_a_module_get_their_gradients_too() -> None:
    layer = torch.nn.Linear(8, 4)
    asked = []
    layer.weight.register_hook(asked.append)
    clock = rounds(grad=True)
    clock.call(Callee(layer), clock.arena.fill(0, 1.0, 0))
    assert len(asked) == 1
    assert layer.weight.grad is None  # nothing is left behind
