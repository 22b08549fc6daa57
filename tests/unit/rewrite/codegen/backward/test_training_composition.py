"""Rewritten programs under autocast, torch.func, checkpoints, replicas and torch.compile."""

import pytest
from codegen_helpers import program
from rewrite_helpers import instance, module, rewrite
from training_helpers import rewritten

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

INIT = "self.b = nn.Parameter(torch.randn(13))"
TENSOR = "torch.randn(7, 13)"
EVALUATED = program("F.gelu(x + self.b) * y", f"{TENSOR}, {TENSOR}", init=INIT)
TRAINED = EVALUATED.replace("(7, 13)", "(7, 13, requires_grad=True)")
FALLS_BACK = {"autocast", "vmap", "functional grad", "bfloat16 model"}


MODES = ["inference mode", "checkpoint", "replica", "frozen", "accumulated", *sorted(FALLS_BACK)]


@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_with_a_backward_composes_or_steps_aside(trainer, mode) -> None:
    after = rewritten(TRAINED, "fused-pointwise")
    found = trainer.ask(before=TRAINED, after=after, mode=mode)
    assert found["alike"]
    assert found["fell_back"] == (mode in FALLS_BACK)


@pytest.mark.parametrize("mode", ["autocast", "vmap", "bfloat16 model", "accumulated"])
def test_a_kernel_without_one_composes_or_steps_aside(trainer, mode) -> None:
    after = rewritten(EVALUATED, "fused-pointwise", training=None)
    before = TRAINED if mode == "accumulated" else EVALUATED
    found = trainer.ask(before=before, after=after, mode=mode)
    assert found == {"alike": True, "fell_back": True}


PLAIN = module(
    "return torch.sum(self.layer(x), dim=1)",
    "self.layer = nn.Linear(256, 512)",
    "torch.randn(64, 256)",
)


def test_a_plain_rewrite_compiles_without_a_break() -> None:
    candidate = rewrite(PLAIN, "reassociate-linear-reduction")
    made = instance(candidate.program, None, torch.float32)
    x = torch.randn(64, 256)
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), made(x))


def test_a_plain_rewrite_has_the_gradients_of_the_original() -> None:
    candidate = rewrite(PLAIN, "reassociate-linear-reduction", training=True)
    wide_program = candidate.program.replace("torch.float32", "torch.float64")
    before, after = (instance(text, True, torch.float64) for text in (PLAIN, wide_program))
    after._forward_eager = None  # the fast path it is
    x = torch.randn(64, 256, dtype=torch.float64, requires_grad=True)
    found = [
        torch.autograd.grad(m(x).square().sum(), [x, *m.parameters()]) for m in (before, after)
    ]
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want)
