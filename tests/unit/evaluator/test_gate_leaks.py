"""A refused reference leaves no process and no open channel behind."""

import sys

import pytest

from kernel_lsp import process
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.verify import request_from_files

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="zygotes are Linux only"),
]
REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        raise ValueError("number {number}")

def get_inputs():
    return [torch.rand(3)]
"""


async def test_every_child_of_a_refused_evaluation_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children: list[process.Child] = []
    make = process.Child.__init__

    def remember(self: process.Child, *args: object, **kwargs: object) -> None:
        make(self, *args, **kwargs)  # type: ignore[arg-type]
        children.append(self)

    monkeypatch.setattr(process.Child, "__init__", remember)
    async with Gate() as gate:
        for number in range(5):
            text = REFERENCE.format(number=number)
            with pytest.raises(EvaluationError, match="could not judge"):
                await gate.evaluate(request_from_files(text, text, device="cpu"))
    assert len(children) >= 5
    assert not [child.name for child in children if child.alive or not child.closed]
