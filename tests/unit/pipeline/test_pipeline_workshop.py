"""The workshop on a real engine, and what the real gate says of code that a model wrote."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from rewrite_helpers import skill

from kernel_lsp import process
from kernel_lsp.agents import feedback
from kernel_lsp.config import Settings
from kernel_lsp.errors import RewriteError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.pipeline.tournament import Tournament
from kernel_lsp.pipeline.workshop import UNPROVED, EngineWorkshop
from kernel_lsp.records import EvalStatus, Evaluation, Job, Step, Verdict
from kernel_lsp.rewrite.client import Engine

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]
DIAGONAL, LINEAR = "diagonal-matmul", "reassociate-linear-reduction"
TEXT = """\
import torch
from torch import nn

FACTOR = 2.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.Parameter(torch.ones(16))
        self.fc = nn.Linear(8, 400)

    def forward(self, x):
        return self.fc(torch.diag(self.d) @ x).sum(dim=1)


def get_inputs():
    return [torch.randn(16, 8)]


def other(x):
    return FACTOR * x
"""
RIGHT = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.Parameter(torch.ones(16))
        self.fc = nn.Linear(8, 400)

    def forward(self, x):
        return self.fc(self.d[:, None] * x).sum(dim=1)
"""


def prepared(text: str = TEXT) -> PreparedJob:
    found = prepare(Job(text=text, path="model.py", qualname="Model"))
    assert isinstance(found, PreparedJob)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    """Torch is imported once for all of these tests; each opens a program of its own, or needs
    none."""
    made = Engine(python=sys.executable, limits=process.Limits(), confinement=None)
    yield made
    await made.close()


async def test_steps_are_applied_appended_and_refused_by_the_engine(engine: Engine) -> None:
    forward = "self.fc(x).sum(dim=1) + (torch.diag(self.d) @ x).amax(dim=1)"
    text = TEXT.replace("self.fc(torch.diag(self.d) @ x).sum(dim=1)", forward)
    job = prepared(text.replace("ones(16)", "ones(640)").replace("randn(16", "randn(640"))
    capture = await engine.open(job.program, job.workload, "cpu", [skill(DIAGONAL), skill(LINEAR)])
    workshop = EngineWorkshop(engine, job)
    assert await workshop.sites([]) == capture.sites
    places = {site.skill: site for site in capture.sites}
    first = Step(skill=DIAGONAL, site=places[DIAGONAL].site)
    (left,) = await workshop.sites([first])
    assert left.skill == LINEAR
    both = await workshop.apply([first, Step(skill=LINEAR, site=left.site)])
    assert [step.skill for step in both.steps] == [DIAGONAL, LINEAR] and both.proofs
    assert all(proof.holds for proof in both.proofs)
    for steps in ([], [Step(skill=DIAGONAL, site="nowhere")], [Step(skill="unknown", site="x")]):
        with pytest.raises(RewriteError) as failure:
            await workshop.apply(steps)
        assert failure.value.remedy
    await engine.close()  # lost: the next request starts it again with the same program
    assert await workshop.apply(both.steps) == both


async def test_a_skill_that_is_edited_into_nonsense_while_in_use_is_refused_in_words(
    engine: Engine, tmp_path: Path
) -> None:
    """The loaded one goes on; a fresh engine finds that it cannot be loaded, and others go on."""
    copied = tmp_path / DIAGONAL
    shutil.copytree(skill(DIAGONAL).path, copied)
    job, mine = prepared(), replace(skill(DIAGONAL), path=str(copied))
    (site,) = (await engine.open(job.program, job.workload, "cpu", [mine])).sites
    workshop, steps = EngineWorkshop(engine, job), [Step(skill=DIAGONAL, site=site.site)]
    made = await workshop.apply(steps)
    (copied / "rewrite.py").write_text("this is ( no Python")
    assert await workshop.apply(steps) == made
    await engine.close()
    with pytest.raises(RewriteError, match="has no rewrite"):
        await workshop.apply(steps)
    assert await workshop.sites([]) == ()


async def test_written_code_is_the_same_candidate_as_the_engines_when_its_text_is(
    engine: Engine,
) -> None:
    """And a model that edits a parent's text starts from exactly what the engine wrote."""
    job = prepared()
    (site,) = (await engine.open(job.program, job.workload, "cpu", [skill(DIAGONAL)])).sites
    workshop = EngineWorkshop(engine, job)
    parent = await workshop.apply([Step(skill=DIAGONAL, site=site.site)])
    assert parent.edit is not None
    again = await workshop.write(f"{parent.edit.definitions}\n{parent.edit.target}", None)
    assert (again.id, again.program) == (parent.id, parent.program)
    assert again.edit is not None and again.edit.target == parent.edit.target.rstrip()
    assert again.steps == again.proofs == () and again.caveats == (UNPROVED,)
    assert "# --- rewrite begins ---\nclass Model" in workshop.marked(None)
    line = next(
        line
        for line in parent.edit.target.split("\n")
        if "[:, None]" in line or "unsqueeze" in line
    )
    edited = f"<<<<<<< SEARCH\n{line}\n=======\n{line} * 1.0\n>>>>>>> REPLACE"
    child = await workshop.write(edited, parent)
    assert child.edit is not None and f"{line} * 1.0" in child.edit.target
    assert child.id != parent.id and line in workshop.marked(parent)
    with pytest.raises(RewriteError, match="do not occur"):
        await workshop.write(edited, None)


async def test_what_the_file_could_not_hold_is_refused() -> None:
    workshop = EngineWorkshop(
        Engine(python="", limits=process.Limits(), confinement=None), prepared()
    )
    for code, said in (
        (RIGHT.replace("* x)", "* y)"), "nothing defines y"),
        (RIGHT.replace("nn.Module", "object"), "no target any more"),
        ("import os as FACTOR\n" + RIGHT, "FACTOR means something else"),
        ("def torch():\n    pass\n" + RIGHT, "torch stands outside|torch means something else"),
        ("class Model(nn.Module):\n    def forward(self, x):\n        yield from", "line 3"),
    ):
        with pytest.raises(RewriteError, match=said) as failure:
            await workshop.write(code, None)
        assert failure.value.remedy


async def test_triton_is_noticed(engine: Engine) -> None:
    kernel = "@triton.jit\ndef kernel(x, N: tl.constexpr):\n    pass\n\n\n"
    workshop = EngineWorkshop(engine, prepared())
    code = f"import triton\nimport triton.language as tl\n{kernel}" + RIGHT.replace("x)", "x)", 1)
    unused = await workshop.write(code, None)
    assert not unused.uses_triton  # nothing calls it, so the slice that is judged leaves it out
    used = await workshop.write(
        code.replace("return self", "kernel[(1,)](x, 1)\n        return self"), None
    )
    assert used.uses_triton and used.edit is not None and "@triton.jit" in used.edit.definitions


# --- the gate ------------------------------------------------------------------------------


async def test_the_gate_judges_what_was_written_and_hostile_code_does_nothing(
    tmp_path: Path, engine: Engine
) -> None:
    canary = tmp_path / "canary"
    body = "return self.fc(self.d[:, None] * x).sum(dim=1)"
    async with Gate(
        device_sharing=DeviceSharing(SharingRules(data_dir=str(tmp_path / "data"))), idle_s=60
    ) as gate:

        async def judge(request: Any, *more: Any) -> Evaluation:
            return await gate.evaluate(replace(request, require_speed=False), *more)

        arena = Tournament(
            prepared=prepared(),
            probe=Probe(python=sys.executable),
            device="cpu",
            settings=Settings(data_dir=str(tmp_path)),
            judge=judge,
            report=lambda progress: None,
        )
        workshop = EngineWorkshop(engine, prepared())

        async def judged(line: str, head: str = "") -> Any:
            made = await workshop.write(head + RIGHT.replace(body, line), None)
            return await arena.judged(replace(made, proposer="openai:m", search="0f#1"), full=False)

        right = await judged(body)
        assert right.proposal.verdict is Verdict.CORRECT
        assert right.evidence.provenance.proposer == "openai:m"

        wrong = await judged(f"{body} * (x.abs() < 9).all() + 1e-3")
        assert wrong.proposal.evaluation.status is EvalStatus.WRONG_RESULT
        told = feedback.digest(wrong, 1.05)
        assert told["trials"]["failed"] == 1 and told["smallest_failing_trial"]["error"] > 0

        hostile = {
            "os.system": (f"os.system('touch {canary}'); {body}", "import os\n"),
            "getattr": (f"getattr(torch.os, 'sys' + 'tem')('touch {canary}'); {body}", ""),
            "write": (f"open({str(canary)!r}, 'w').write('x'); {body}", ""),
            "network": (
                f"socket.create_connection(('127.0.0.1', 9), 1); {body}",
                "import socket\n",
            ),
            "kill": (f"__import__('os').kill({os.getpid()}, 9); {body}", ""),
        }
        for name, (line, head) in hostile.items():
            found = (await judged(line, head)).proposal
            assert found.evaluation.status in (EvalStatus.CHEATED, EvalStatus.RUNTIME_ERROR), name
            assert found.verdict is Verdict.REJECTED
    assert not canary.exists()
