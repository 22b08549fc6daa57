"""The judge as a process: files of a trial live exactly as long as the worker may read them."""

import os

import pytest

from kernel_lsp.evaluator.sandbox import Sandbox, ask_judge
from kernel_lsp.evaluator.verify import request_from_files

pytestmark = pytest.mark.torch
REFERENCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum()

def get_inputs():
    return [torch.rand(2 * 1024 * 1024)]
"""


def size_of(path: str) -> int | None:
    return os.path.getsize(path) if os.path.exists(path) else None


async def test_other_requests_between_trial_and_answer_leave_the_files_of_the_trial() -> None:
    request = request_from_files(REFERENCE, REFERENCE, device="cpu")
    async with Sandbox(request) as sandbox:
        judge = await sandbox.judge()
        await ask_judge(
            judge, "open", 60, program=request.reference, workload=request.workload,
            device="cpu", seed=1, precision="faithful",
        )  # fmt: skip
        drawn, _ = await ask_judge(judge, "trial", 60, number=1, family="as_given")
        file = drawn["arguments"]["items"][0]["items"][0]["file"]
        await ask_judge(judge, "sealed", 60, count=2)
        assert size_of(file) == 8 * 1024 * 1024
        verdict, _ = await ask_judge(judge, "compare", 60, number=1, error="none was made")
        assert not verdict["ok"] and size_of(file) is None
