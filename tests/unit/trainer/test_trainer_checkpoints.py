"""Checkpoints under faults: full disks, changed files, other tokenizers, NaN, half-written
folders."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.config import ModelConfig, Recipe, Rl
from trainer.policies import models
from trainer.training import checkpoints
from trainer.training.checkpoints import CheckpointError, TrainingState

pytestmark = pytest.mark.torch
SHAPE = ModelConfig(
    hidden=32, layers=1, heads=2, key_heads=1, head=16, inner=32, vocabulary=300, context=64
)


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any]:
    return models.load(Recipe(name="t", model=SHAPE, rl=Rl()), ["some words"])


def state(step: int, **tensors: torch.Tensor) -> TrainingState:
    return TrainingState(
        step=step,
        recipe="rl-x",
        position={"step": step},
        scheduler={"step": step},
        tensors=tensors or {"state.w.exp_avg": torch.ones(3)},
        optimizer={"param_groups.w.lr": 0.5},
    )


def save(
    root: Path, made: tuple[Any, Any], step: int, keep: int = 9, **changed: torch.Tensor
) -> Path:
    weights = {k: v.detach() for k, v in made[0].state_dict().items()} | changed
    return checkpoints.save(root, *made, weights, state(step), keep)


def test_what_is_saved_comes_back_and_transformers_loads_it(
    tmp_path: Path, made: tuple[Any, Any]
) -> None:
    import transformers

    place = save(tmp_path, made, 4)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    place = save(tmp_path, made, 5)
    torch.rand(7)
    found = checkpoints.restore(place, "rl-x", made[1])
    assert (
        found.step == 5
        and found.position == {"step": 5}
        and found.optimizer == {"param_groups.w.lr": 0.5}
    )
    assert found.tensors["state.w.exp_avg"].tolist() == [1, 1, 1]
    assert torch.equal(torch.rand(2), expected)  # the generator too
    loaded = transformers.AutoModelForCausalLM.from_pretrained(str(place), local_files_only=True)
    ours = dict(made[0].named_parameters())
    assert all(torch.equal(parameter, ours[name]) for name, parameter in loaded.named_parameters())
    assert json.loads((place / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    again = transformers.AutoTokenizer.from_pretrained(str(place), local_files_only=True)
    assert models.vocabulary_hash(again) == models.vocabulary_hash(made[1])


def test_the_newest_are_kept(tmp_path: Path, made: tuple[Any, Any]) -> None:
    for step in (1, 2, 30):
        save(tmp_path, made, step, keep=2)
    assert [place.name for place in checkpoints.find_checkpoints(tmp_path)] == [
        "step-00000030",
        "step-00000002",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000030"]


def test_a_folder_without_a_manifest_is_no_checkpoint(
    tmp_path: Path, made: tuple[Any, Any]
) -> None:
    """A kill between the rename and the manifest; repeated, the step is saved all the same."""
    first = save(tmp_path, made, 1)
    second = save(tmp_path, made, 2)
    (second / checkpoints.MANIFEST).unlink()
    assert checkpoints.find_checkpoints(tmp_path) == [first]
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        checkpoints.check(second)
    assert save(tmp_path, made, 2) == second and checkpoints.find_checkpoints(tmp_path) == [
        second,
        first,
    ]


@pytest.mark.parametrize("limit", [100, 3_000, 20_000])
def test_a_full_disk_loses_nothing(tmp_path: Path, made: tuple[Any, Any], limit: int) -> None:
    """The kernel refuses writes beyond ``limit`` bytes of a file, in config, tokenizer or
    weights."""
    first = save(tmp_path, made, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(CheckpointError, match="older checkpoints are as they were"):
            save(tmp_path, made, 2, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [first]
    checkpoints.check(first, made[1])
    assert save(tmp_path, made, 2, keep=1).name == "step-00000002"


def test_another_tokenizer_is_refused_with_both_hashes(
    tmp_path: Path, made: tuple[Any, Any]
) -> None:
    place, other = save(tmp_path, made, 1), models.make_tokenizer(["other words entirely"], 300, 64)
    with pytest.raises(
        CheckpointError, match=f"another tokenizer.*{models.vocabulary_hash(other)}"
    ):
        checkpoints.restore(place, "rl-x", other)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, made: tuple[Any, Any], value: float
) -> None:
    broken = torch.full((32,), value)
    place = save(tmp_path, made, 1, **{"model.norm.weight": broken})
    with pytest.raises(CheckpointError, match=r"NaN or infinity in model\.norm\.weight"):
        checkpoints.check(place)


def test_another_recipe_is_refused(tmp_path: Path, made: tuple[Any, Any]) -> None:
    with pytest.raises(CheckpointError, match="another recipe"):
        checkpoints.restore(save(tmp_path, made, 1), "rl-y", made[1])


@pytest.mark.parametrize(
    "name", [checkpoints.WEIGHTS, checkpoints.STATE, checkpoints.TENSORS, "config.json"]
)
def test_a_file_that_was_changed_or_cut_is_noticed(
    tmp_path: Path, made: tuple[Any, Any], name: str
) -> None:
    place = save(tmp_path, made, 1)
    content = (place / name).read_bytes()
    (place / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=name):
        checkpoints.check(place)
    (place / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=name):
        checkpoints.check(place)


def test_a_manifest_of_another_format_is_refused(tmp_path: Path, made: tuple[Any, Any]) -> None:
    place = save(tmp_path, made, 1)
    told = json.loads((place / checkpoints.MANIFEST).read_text())
    (place / checkpoints.MANIFEST).write_text(json.dumps({**told, "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoints.check(place)
