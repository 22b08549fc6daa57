"""Dry runs: sizes that can be counted by hand, and what stands in the way of a recipe."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from typer.testing import CliRunner

from kernel_lsp.commands import app
from kernel_lsp.commands.train import command_of, module_of
from kernel_lsp.errors import ConfigError, KernelLspError
from trainer import config, placement, planning
from trainer.config import Hardware, Lora, ModelConfig, Recipe, Rl
from trainer.policies import models

pytestmark = pytest.mark.torch
RECIPES = Path(__file__).resolve().parents[3] / "trainer" / "recipes"
SHAPE = ModelConfig(
    hidden=64, layers=2, heads=2, key_heads=1, head=32, inner=96, vocabulary=500, context=128
)


def test_parameters_are_counted_as_transformers_makes_them() -> None:
    made = transformers.Qwen3ForCausalLM(models.make_config(SHAPE, 500))
    assert models.num_parameters(SHAPE, 500) == sum(one.numel() for one in made.parameters())


def test_lora_parameters_are_counted_as_peft_makes_them() -> None:
    recipe = Recipe(name="t", model=SHAPE, rl=Rl(), lora=Lora(rank=4))
    adapted = models.with_lora(
        transformers.Qwen3ForCausalLM(models.make_config(SHAPE, 500)), Lora(rank=4)
    )
    trained = sum(one.numel() for one in adapted.parameters() if one.requires_grad)
    assert planning.lora_parameters(SHAPE, recipe) == trained


def test_fsdp_divides_what_can_be_divided() -> None:
    alone = planning.memory(SHAPE, Recipe(name="t", hardware=Hardware(gpus=1)), 10**9, 10**9, 1000)
    eight = Hardware(gpus=8, fsdp=True)
    divided = planning.memory(SHAPE, Recipe(name="t", hardware=eight), 10**9, 10**9, 1000)
    assert alone["weights (float32)"] == 4.0 and divided["weights (float32)"] == 0.5
    assert alone["AdamW's moments (float32)"] == 8.0 and divided["AdamW's moments (float32)"] == 1.0
    assert alone["activations"] == divided["activations"]


def test_the_fourteen_billion_recipe_fits_eight_gpus_and_says_what_is_missing() -> None:
    recipe = config.load(RECIPES / "qwen3-14b-8gpu.toml")
    found = planning.plan(recipe, "rl")
    assert found.parameters == pytest.approx(14.77e9, rel=0.01)
    assert 40 < found.total_gb < recipe.hardware.memory_gb
    assert [one for one in found.problems if "model.path" in one] and len(found.problems) == 1
    small = config.Hardware(gpus=8, fsdp=True, memory_gb=24.0)
    cramped = planning.plan(config.dataclasses.replace(recipe, hardware=small), "rl")
    assert any("are needed on each of 8 GPUs of 24 GB" in one for one in cramped.problems)


def test_the_fourteen_billion_recipe_is_placed_on_two_nodes_and_nobody_shares_a_gpu(
    capsys: Any,
) -> None:
    recipe = config.load(RECIPES / "qwen3-14b-8gpu.toml")
    placed = placement.place(recipe)
    assert placed is not None
    assert placed.taken == {"trainer": (4, 4), "vllm": (4, 0), "judges": (0, 4)}
    planning.show(recipe, "rl")
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    for line in ("0 0-3 trains,", "0 4-7 samples", "1 0-3 trains,", "1 4-7 judges"):
        assert line.split() in lines


def test_seconds_of_a_step_are_those_worked_by_hand() -> None:
    recipe = config.load(RECIPES / "qwen3-14b-8gpu.toml")
    found = placement.seconds(recipe, ModelConfig(context=40960, checkpointing=True), 10**10)
    assert found is not None
    # 16 tasks x 4 schemes x 4 rollouts x 3 turns = 768 replies of 2048 tokens, 64 at a time; a
    # token reads 20 GB on four GPUs of 4.3 TB/s.
    assert found.sampling == pytest.approx(768 * 2048 / 64 * 20e9 / (4 * 4.3e12))
    assert found.judging == 768 * 10.0 / 16
    # Forward, backward, and forward again twice: 10 operations a parameter and token.
    tokens = 768 * (40960 / 4 + 2048)
    assert found.update == pytest.approx(10 * 1e10 * tokens / (8 * 990e12 * 0.4))


CLUSTER = config.ClusterConfig(nodes=2, gpus=8)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"vllm": (8, 0), "trainer": (4, 4)}, "node 0 has 8 GPUs and 12 are asked for"),
        ({"judges": (0, 8)}, r"node 1 has 8 GPUs and 12 .*trainer 4, judges 8.*take fewer"),
        ({"nodes": 1}, "node 0 has 8 GPUs and 12 are asked for"),
        ({"vllm": (0, 4), "trainer": (8, 0)}, "beside which it must be"),
        ({"trainer": (4, 2)}, "cluster.trainer has 6 GPUs, and hardware.gpus is 8"),
        ({"vllm": (2, 0)}, "cluster.vllm has 2 GPUs, and rollouts.gpus is 4"),
        ({"trainer": (4, 4, 0)}, "has 3 numbers, and there are 2 nodes"),
        ({"gpus": 6}, "no GPU is left for judges|12 GPUs"),
    ],
)
def test_a_placement_that_cannot_work_is_refused(changed: dict[str, Any], words: str) -> None:
    recipe = config.load(RECIPES / "qwen3-14b-8gpu.toml")
    found = replace(recipe, cluster=replace(CLUSTER, **changed))
    assert re.search(words, "\n".join(planning.plan(found, "rl").problems))


def test_a_cluster_is_asked_by_a_process_of_its_own(tmp_path: Path) -> None:
    path = RECIPES / "qwen3-14b-8gpu.toml"
    command = command_of("rl", path, False, sys.executable)
    assert command[1:] == ["-m", "trainer.cluster_run", "rl", str(path)]
    assert "trainer.rl" in command_of("rl", path, True, sys.executable)


def test_a_dry_run_is_asked_for_and_shown(capsys: Any) -> None:
    path = RECIPES / "cpu-smoke.toml"
    command = command_of("rl", path, True, sys.executable)
    assert command[1:] == ["-m", "trainer.rl", str(path), "--dry-run"]
    assert planning.show(config.load(path), "rl") == 0
    said = capsys.readouterr().out
    assert "nothing is in the way" in said and "60 steps of 16 tasks" in said


def test_several_gpus_are_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text("[hardware]\ngpus = 4\n")
    command = command_of("sft", path, False, sys.executable)
    assert "torch.distributed.run" in command and "--nproc-per-node=4" in command


def test_what_cannot_start_is_said_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no recipe"):
        command_of("rl", tmp_path / "none.toml", False, sys.executable)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho accelerate tensorboard\n")
    python.chmod(0o755)
    with pytest.raises(
        ConfigError, match=r"lacks accelerate, tensorboard .*pip install .*accelerate"
    ):
        command_of("rl", RECIPES / "cpu-smoke.toml", False, str(python))


def test_a_broken_recipe_ends_in_words(tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "r.toml"
    path.write_text("[rl]\nstepz = 3\n")
    found = CliRunner().invoke(app.app, ["train", "rl", str(path), "--dry-run"])
    assert found.exit_code == 1
    assert "rl.stepz is no key: did you mean steps?" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "module"),
    [("export", "trainer.export"), ("parents", "trainer.rollouts.parents")],
)
def test_a_program_of_the_trainer_is_found_in_its_room(name: str, module: str) -> None:
    assert module_of(name) == module


@pytest.mark.parametrize("name", ["nothing", "../rl", "rollouts.parents", ""])
def test_a_program_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(KernelLspError, match="has no program"):
        module_of(name)
