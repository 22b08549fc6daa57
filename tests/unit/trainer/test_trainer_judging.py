"""Programs of recorded tasks, made by the engine and judged by the gate, as a recipe asks for."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.errors import ConfigError
from kernel_lsp.records import Step
from trainer import config, planning
from trainer.records import Tally, TurnStatus
from trainer.rollouts import held_out
from trainer.rollouts.judge import Case

pytestmark = pytest.mark.torch
TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1

def get_inputs():
    return [torch.randn(64, 64)]
"""
STEP = {"skill": "fused-pointwise", "site": "relu+mul+add", "parameters": {"BLOCK_SIZE": 1024}}
RECIPE = """
[world]
tables = ["table.json"]
[rl]
[judging]
pool = "local"
tasks = "tasks"
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> config.Recipe:
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "steps.py").write_text(TASK)
    table = {
        "device": "cpu",
        "tasks": {
            "steps": {
                "summary": "one kernel",
                "steps": [STEP],
                "axes": [{"step": 0, "name": "num_warps", "choices": [4, 8]}],
                "original_ms": 1.0,
                "combinations": [[[0], "a", 0.5, ""], [[1], "b", 0.4, ""]],
            }
        },
    }
    (tmp_path / "table.json").write_text(json.dumps(table))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return config.load(tmp_path / "recipe.toml")


def test_a_tables_steps_are_made_and_judged_and_what_cannot_be_made_is_refused(
    recipe: config.Recipe,
) -> None:
    world, _ = held_out.worlds_of(recipe, Tally())
    pool = held_out.pool_of(recipe, world)
    (space,) = world.spaces.values()
    elsewhere = (Step(skill="fused-pointwise", site="nowhere"),)
    cases = [Case(task="steps", steps=steps) for steps in (space.at((0,)), elsewhere, ())]

    async def batch(chosen: list[Case]) -> list[Any]:
        return await pool.judge(chosen)

    # Two batches, each in a loop of its own, as between two steps.
    first = asyncio.run(batch(cases))
    again = asyncio.run(batch(cases[:1]))
    asyncio.run(pool.close())
    assert [one.status for one in first] == [
        TurnStatus.PASSED,
        TurnStatus.REFUSED,
        TurnStatus.REFUSED,
    ]
    assert first[0].correct and first[0].speedups == {}  # without a GPU a kernel is right, not fast
    assert "nowhere" in first[1].complaint and again == first[:1]


def test_recipes_whose_pool_has_nothing_to_run_are_refused(
    tmp_path: Path, recipe: config.Recipe
) -> None:
    (tmp_path / "tasks" / "steps.py").rename(tmp_path / "tasks" / "other.py")
    with pytest.raises(ConfigError, match="lacks 1 of 1 tasks, such as steps"):
        held_out.pool_of(recipe, held_out.worlds_of(recipe, Tally())[0])
    path = tmp_path / "recipe.toml"
    for table, words in (
        ('pool = "cluster"\naddress = "auto"', 'judging.pool is "cluster", which runs programs'),
        ('pool = "clusters"', "should be 'table', 'local' or 'cluster'"),
    ):
        path.write_text(f"[world]\nsynthetic = 4\n[rl]\n[judging]\n{table}\n")
        with pytest.raises(ConfigError, match=words):
            config.load(path)


def test_where_the_cluster_is_does_not_make_another_run(recipe: config.Recipe) -> None:
    def at(**judged: Any) -> str:
        told = {
            "world": {"tables": ["t.json"]},
            "rl": {},
            "judging": {"tasks": "x", "pool": "cluster", **judged},
        }
        return config.read(told, Path("r.toml")).fingerprint

    assert at(address="a:1") == at(address="local") != at(timeout_s=1.0)


def test_a_dry_run_says_what_live_judges_lack(
    recipe: config.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not planning.plan(recipe, "rl").problems
    monkeypatch.setitem(sys.modules, "ray", None)
    lacking = replace(recipe, judging=replace(recipe.judging, tasks="gone", pool="cluster"))
    folder, library = planning.plan(lacking, "rl").problems
    assert "gone is no folder" in folder and "pip install ray" in library
