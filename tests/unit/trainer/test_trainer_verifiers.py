"""Rollouts driven by the real `verifiers` library, which is not among what the tests install (it
brings some thirty packages): skipped without it. With it, in an environment of its own:

    python -m venv --system-site-packages V && V/bin/pip install verifiers==0.4.0
    V/bin/python -m pytest -n 0 tests/unit/trainer/test_trainer_verifiers.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_model import Say, ScriptedModel

from tests.unit.pipeline.test_pipeline_workshop import RIGHT, TEXT

vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed")
WRONG = RIGHT.replace(".sum(dim=1)", ".sum(dim=1) + 1")


async def episode_of(folder: Path, answers: list[Say]) -> tuple[Any, list[Any]]:
    """An episode of two turns, and the requests that reached the model."""
    from verifiers.v1.utils.loaders import load_environment, taskset_config_type

    told = {"id": "trainer", "folder": folder, "device": "cpu", "turns": 2, "scheme": "kevin"}
    here = {"runtime": {"type": "subprocess"}}
    taskset = taskset_config_type("trainer").model_validate(told)
    environment = load_environment(vf.SingleAgentEnvConfig(taskset=taskset, agent=here))
    (task,) = environment.taskset
    said = iter(answers)
    async with ScriptedModel(lambda body: next(said)) as server:
        client = vf.EvalClientConfig(base_url=server.endpoint, api_key_var="KERNEL_LSP_NO_KEY")
        async with environment.serving():
            found = await environment.run_episode(
                task, vf.ModelContext(model="scripted", client=client)
            )
        return found, server.chats


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_LSP_NO_KEY", "none")
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("KERNEL_LSP_PYTHON", sys.executable)
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "diagonal.py").write_text(TEXT)
    return folder


async def test_verifiers_rolls_out_and_has_every_question_and_the_gates_reward(
    tasks: Path,
) -> None:
    answers = [
        Say(tool="select_skills", arguments={"think": "", "selected_skills": []}),
        Say(tool="write_rewrite", arguments={"code": WRONG}),
        Say(tool="write_rewrite", arguments={"code": RIGHT}),
    ]
    episode, chats = await episode_of(tasks, answers)
    assert episode.ok, [*episode.errors, *(one.errors for one in episode.traces)]
    (trace,) = episode.traces
    assert trace.reward > 0.3 and trace.metrics["judged_turns"] == 2.0
    assert len(chats) == 3 and len(trace.branches) == 3
    for chat, branch in zip(chats, trace.branches, strict=True):
        assert [one["content"] for one in chat["messages"]] == [
            one.content for one in branch.messages[: len(chat["messages"])]
        ]


async def test_what_is_of_no_use_earns_nothing(tasks: Path) -> None:
    episode, _ = await episode_of(tasks, [Say("I do not know.")] * 12)
    (trace,) = episode.traces
    assert episode.ok and trace.reward == 0.0
