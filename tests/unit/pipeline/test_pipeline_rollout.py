"""One rollout with everything real but the model's mind: server, backbone, agent, engine, gate and
loop."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_model import Say, ScriptedModel
from test_pipeline_workshop import RIGHT, prepared

from kernel_lsp import process
from kernel_lsp.agents import backbones, feedback
from kernel_lsp.agents.policy import PolicyAgent
from kernel_lsp.config import Settings
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline.tournament import Tournament
from kernel_lsp.pipeline.workshop import EngineWorkshop
from kernel_lsp.records import (
    EvalStatus,
    Evaluation,
    SearchBudget,
    SearchPlan,
    SearchTask,
    StopReason,
)
from kernel_lsp.rewrite.client import Engine
from kernel_lsp.search.budget import SpentBudget
from kernel_lsp.search.ledger import MemoryArchive
from kernel_lsp.search.loop import SearchLoop
from kernel_lsp.search.turns import TurnsStrategy
from kernel_lsp.search.workers import SearchWorkers

pytestmark = pytest.mark.torch
WRONG = RIGHT.replace(".sum(dim=1)", ".sum(dim=1) + 1")
MENDED = (
    "<<<<<<< SEARCH\n        return self.fc(self.d[:, None] * x).sum(dim=1) + 1\n=======\n"
    "        return self.fc(self.d[:, None] * x).sum(dim=1)\n>>>>>>> REPLACE"
)


async def test_what_the_gate_said_of_the_first_turn_lets_the_second_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyring.get_password", lambda service, user: None)
    answers = [
        Say(f"Here:\n```python\n{WRONG}```\n"),
        Say("I am not sure."),
        Say("Well."),
        Say(MENDED),
    ]
    prompts: list[str] = []

    def say(body: dict[str, Any]) -> Say:
        prompts.append("\n".join(message["content"] for message in body["messages"]))
        return answers[len(prompts) - 1]

    job = prepared()
    engine = Engine(python=sys.executable, limits=process.Limits(), confinement=None)
    async with (
        ScriptedModel(say) as server,
        Gate(device_sharing=DeviceSharing(SharingRules(data_dir=str(tmp_path)))) as gate,
    ):

        async def judge(request: Any, *more: Any) -> Evaluation:
            return await gate.evaluate(replace(request, require_speed=False), *more)

        arena = Tournament(
            prepared=job,
            probe=Probe(python=sys.executable),
            device="cpu",
            settings=Settings(data_dir=str(tmp_path)),
            judge=judge,
            report=lambda progress: None,
        )
        settings = Settings(policy="openai", endpoint=server.endpoint)
        backbone = backbones.make(settings, python="", allowed_origin=None, data_dir=str(tmp_path))
        agent = PolicyAgent(
            backbone, EngineWorkshop(engine, job), info=await backbone.open(lambda progress: None)
        )
        plan = SearchPlan(budget=SearchBudget(candidates=2, seconds=None))
        loop = SearchLoop(
            task=SearchTask(
                qualname="Model",
                fingerprint=job.target.fingerprint,
                program=job.program,
                workload=job.workload,
                device="cpu",
                triton=False,
            ),
            strategy=TurnsStrategy(plan, 1),
            proposers=[agent],
            moves={},
            judge=arena.judged,
            archive=MemoryArchive(),
            budget=SpentBudget(limits=plan.budget),
            workers=SearchWorkers(),
            digest=feedback.digest,
        )
        stop = await loop.run()
        await backbone.close()
        await engine.close()

    first, unsure, second = loop.archive.attempts
    assert stop is StopReason.CANDIDATES
    assert (
        first.proposal is not None and first.proposal.evaluation.status is EvalStatus.WRONG_RESULT
    )
    assert unsure.proposal is None and "calls no tool" in unsure.complaint
    assert second.proposal is not None and second.proposal.evaluation.status is EvalStatus.PASSED
    assert second.candidate is not None and second.parent == first.number and second.turn == 3
    made = second.candidate.edit
    assert made is not None and made.target == RIGHT.rstrip()
    assert '"smallest_failing_trial"' in prompts[1] and "wrong_result" in prompts[1]
    assert "calls no tool" in prompts[3] and "wrong_result" in prompts[3]
    assert "def get_inputs" not in "".join(prompts)
    assert second.cost.tokens > 0 and loop.archive.cost.evaluations == 2
