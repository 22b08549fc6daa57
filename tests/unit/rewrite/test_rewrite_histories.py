"""What a recorded program asks about gradients while it is captured: answered as in its own
call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recorded_helpers import recorded

from kernel_lsp.errors import CaptureError
from kernel_lsp.rewrite.capture.tracing import capture

pytestmark = pytest.mark.torch

NET = """\
class Net(nn.Module):
    def __init__(self, width, frozen=False):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)
        self.b.weight.requires_grad_(not frozen)

    def forward(self, x):
        h = self.a(x)
        {code}
        return h.relu()
"""
ADDS, EXPS = "aten.add.Tensor", "aten.exp.default"


def operators(
    folder: Path, code: str, *init: object, gradients: bool = True
) -> tuple[set[str], list[str]]:
    text = NET.replace("{code}", code)
    program, workload = recorded(folder, text, "Net", (8, *init), torch.randn(4, 8))
    workload = replace(workload, setting=replace(workload.setting, gradients=gradients))
    graph = capture(program, workload, "cpu")
    return {str(node.target) for node in graph.nodes}, list(graph.requirements)


@pytest.mark.parametrize(
    ("code", "trains"),
    [
        ("h = h + 1 if h.requires_grad else h.exp()", True),
        ("h = h + 1 if h.grad_fn is not None and not h.is_leaf else h.exp()", True),
        ("h = h.exp() if h.detach().requires_grad or (h > 0).requires_grad else h + 1", True),
        ("h = h + 1 if any(p.requires_grad for p in self.parameters()) else h.exp()", True),
        ("h = h.exp() if x.requires_grad else h + 1", True),
        ("h = h.exp() if h.requires_grad or torch.is_grad_enabled() else h + 1", False),
    ],
)
def test_answers_are_those_of_the_programs_own_call(
    tmp_path: Path, code: str, trains: bool
) -> None:
    found, conditions = operators(tmp_path, code, gradients=trains)
    assert ADDS in found and EXPS not in found
    assert ("torch.is_grad_enabled()" if trains else "not torch.is_grad_enabled()") in conditions
    assert "all(p.requires_grad for p in self.parameters())" in conditions or not trains


def test_a_guard_knows_which_parameters_are_frozen(tmp_path: Path) -> None:
    code = "h = h + 1 if all(p.requires_grad for p in self.parameters()) else h.exp()"
    found, conditions = operators(tmp_path, code, True)
    assert EXPS in found
    assert "[p.requires_grad for p in self.parameters()] == [True, True, False, True]" in conditions


def test_nobody_knows_after_the_program_has_switched_gradients(tmp_path: Path) -> None:
    code = "with torch.no_grad(): k = self.b(x)\n        h = h + 1 if k.requires_grad else h + k"
    with pytest.raises(CaptureError, match=r"asks for Tensor\.requires_grad"):
        operators(tmp_path, code)


def test_torchs_own_encoder_asks_for_much_and_is_captured(tmp_path: Path) -> None:
    text = """\
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        return self.encoder(x).exp()
"""
    program, workload = recorded(tmp_path, text, "Encoder", (), torch.randn(2, 4, 16))
    assert EXPS in {str(node.target) for node in capture(program, workload, "cpu").nodes}
