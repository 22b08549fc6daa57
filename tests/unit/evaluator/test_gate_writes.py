"""What a recorded call leaves in its arguments and buffers is part of what is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recorded_helpers import recorded

from kernel_lsp.evaluator import EvaluationRequest, Gate
from kernel_lsp.records import TorchSetting

pytestmark = pytest.mark.torch

NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 64)
        self.register_buffer("past", torch.zeros(2, 8, 64), persistent=False)

    def forward(self, x, cache, position):
        h = self.a(x)
        cache["k"] = torch.cat([cache["k"], h], dim=1)
        cache["v"].index_copy_(1, position, h)
        cache["n"].add_(1)
        self.past[:, 2:3] = h
        return cache["k"].mean(1) * 0.5 + h.mean(1)
"""
WRONG = {
    "forgets the item": ('cache["k"] = torch.cat', 'cache = {**cache}; cache["k"] = torch.cat'),
    "puts the item twice": (
        "        return",
        '        cache["k"] = torch.cat([cache["k"], h], dim=1)\n        return',
    ),
    "another slot": ("index_copy_(1, position, h)", "index_copy_(1, position + 1, h)"),
    "counts twice": ('cache["n"].add_(1)', 'cache["n"].add_(2)'),
    "forgets the buffer": ("        self.past[:, 2:3] = h\n", ""),
    "another place of the buffer": ("self.past[:, 2:3]", "self.past[:, 3:4]"),
}


async def test_a_rewrite_that_leaves_something_else_behind_is_refused(tmp_path: Path) -> None:
    given = {"k": torch.randn(2, 5, 64), "v": torch.randn(2, 8, 64), "n": torch.tensor([4])}
    args = torch.randn(2, 1, 64), given, torch.tensor([3])
    program, workload = recorded(tmp_path, NET, "Net", (), *args)
    workload = replace(workload, training=False, setting=TorchSetting(gradients=False))
    changes = {"right": ("* 0.5 + h.mean(1)", "/ 2 + torch.mean(h, 1)"), **WRONG}
    found = {}
    async with Gate() as gate:
        for name, (old, new) in changes.items():
            assert old in program.source
            made = await gate.evaluate(
                EvaluationRequest(
                    reference=program,
                    candidate_source=program.source.replace(old, new, 1),
                    candidate_entry="Net",
                    workload=workload,
                    require_speed=False,
                )
            )
            found[name] = made.status.value
    assert found == {"right": "passed", **dict.fromkeys(WRONG, "wrong_result")}
