"""The judge as a process: files of a trial live exactly as long as the worker may read them."""

import os

import pytest

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator.processes.sandbox import InSession, Sandbox, ask_judge
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
        judge = InSession(await sandbox.judge(), 7)
        await ask_judge(
            judge, "open", 60, program=request.reference, workload=request.workload, device="cpu"
        )
        await ask_judge(judge, "begin", 60, seed=1, precision="faithful")
        drawn, _ = await ask_judge(judge, "trial", 60, number=1)
        file = drawn["arguments"]["items"][0]["items"][0]["file"]
        await ask_judge(judge, "sealed", 60, count=2)
        assert size_of(file) == 8 * 1024 * 1024
        verdict, _ = await ask_judge(judge, "compare", 60, number=1, error="none was made")
        assert not verdict["ok"] and size_of(file) == 8 * 1024 * 1024  # it may be run once more
        await ask_judge(judge, "trial", 60, number=2)
        assert size_of(file) == 8 * 1024 * 1024  # the next is drawn while the worker still reads
        await ask_judge(judge, "trial", 60, number=3)
        assert size_of(file) is None


async def test_sessions_of_one_reference_are_secret_from_each_other_and_interleave() -> None:
    request = request_from_files(REFERENCE, REFERENCE, device="cpu")
    async with Sandbox(request) as sandbox:
        party = await sandbox.judge()
        one, two, again = (InSession(party, number) for number in range(3))
        await ask_judge(
            party, "open", 60, program=request.reference, workload=request.workload, device="cpu"
        )
        for session, seed in ((one, None), (two, None), (again, None)):
            plan, _ = await ask_judge(session, "begin", 60, seed=seed, precision="faithful")
        summaries = [(await ask_judge(s, "summary", 60))[0]["seed"] for s in (one, two, again)]
        assert len(set(summaries)) == 3 and len(plan["trials"]) >= 8
        for session in (one, two):
            await ask_judge(session, "trial", 60, number=1)
        for session in (two, one):
            verdict, _ = await ask_judge(session, "compare", 60, number=1, error="none was made")
            assert not verdict["ok"]
        await ask_judge(one, "close", 60)
        with pytest.raises(EvaluationError, match="session 0 is not open"):
            await ask_judge(one, "summary", 60)
        assert (await ask_judge(two, "summary", 60))[0]["oracle_note"] == ""


TRAINED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        return torch.nn.functional.dropout(self.norm(x), 0.5)

def get_inputs():
    return [torch.rand(16, 8)]
"""


@pytest.mark.parametrize("reference", [REFERENCE, TRAINED])
async def test_a_rehearsal_changes_nothing_of_what_is_known(reference: str) -> None:
    request = request_from_files(reference, reference, device="cpu")
    known = []
    for rehearsed in (False, True):
        async with Sandbox(request) as sandbox:
            judge = InSession(await sandbox.judge(), 1)
            opening = {"program": request.reference, "workload": request.workload, "device": "cpu"}
            await ask_judge(judge, "open", 60, **opening)
            await ask_judge(judge, "begin", 60, seed=1, precision="faithful")
            drawn, blobs = await ask_judge(judge, "trial", 60, number=1)
            if rehearsed:
                assert await ask_judge(judge, "rehearse", 60) == ({}, [])
            verdict, _ = await ask_judge(judge, "compare", 60, number=1, error="none was made")
            summary, _ = await ask_judge(judge, "summary", 60)
            known.append((drawn["noise_seed"], drawn["state"], blobs, verdict, summary))
    assert known[0] == known[1]
