"""How runs start, go on and stop: adapters, from supervised weights, from weights that must not be
used."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers

from tests.unit.trainer.test_trainer_runs import losses_of, one_thread, recipe  # noqa: F401
from trainer import config, rl, sft, starting
from trainer.policies import models
from trainer.records import Tally
from trainer.rollouts import held_out
from trainer.training import checkpoints
from trainer.training import runs as training
from trainer.training.checkpoints import CheckpointError

pytestmark = pytest.mark.torch
LORA = '[lora]\nrank = 4\nalpha = 8.0\ntargets = ["q_proj", "down_proj"]\n'
SHORT = "batch = 8\nepochs = 3"


def supervised(path: Path, *tables: str) -> config.Recipe:
    """A run of the recipe with these tables added."""
    path.write_text(path.read_text().replace("batch = 4\nepochs = 2", SHORT) + "\n".join(tables))
    told = config.load(path)
    assert told.sft is not None and sft.train(told, told.sft) == 0
    return told


def first_weights(told: config.Recipe) -> dict[str, torch.Tensor]:
    world, _ = held_out.worlds_of(told, Tally())
    model, _ = models.load(told, world.texts())
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def test_adapters_are_trained_alone_merged_where_they_are_saved_and_go_on_exactly(
    tmp_path: Path,
) -> None:
    told = supervised(recipe(tmp_path, output="whole"), LORA)
    before = first_weights(told)
    whole = tmp_path / "whole" / "whole" / "sft"
    curve, (last, earlier) = losses_of(whole), checkpoints.find_checkpoints(whole)
    assert curve[-1][1] < curve[0][1]
    state = checkpoints.load_file(last / checkpoints.TENSORS)
    learned = {name for name in state if name.endswith("|exp_avg")}
    assert learned and all("lora_" in name for name in learned)

    # What is saved is the model below, with what the adapters add to the layers that they adapt.
    saved = transformers.AutoModelForCausalLM.from_pretrained(
        str(last), local_files_only=True
    ).state_dict()
    for name, tensor in before.items():
        if "lora_" in name:
            continue
        plain = name.replace(".base_layer", "").removeprefix("base_model.model.")
        adapted = ".base_layer" in name
        assert torch.equal(saved[plain], tensor) is not adapted, plain

    # Another run, stopped after the step before, has the same end.
    stopped = recipe(tmp_path, output="stopped")
    folder = tmp_path / "stopped" / "stopped" / "sft"
    shutil.copytree(earlier, folder / earlier.name)
    supervised(stopped, LORA)
    assert losses_of(folder) == curve[-1:]
    again = checkpoints.load_file(checkpoints.find_checkpoints(folder)[0] / checkpoints.TENSORS)
    assert all(torch.equal(again[name], state[name]) for name in learned)
    assert {name for name in again if "adapter/" in name} == {
        name for name in state if "adapter/" in name
    }


def test_reinforcement_learning_begins_with_the_supervised_weights(tmp_path: Path) -> None:
    path = recipe(tmp_path, steps=2, rl='start = "sft"\nsummaries = 0')
    told = config.load(path)
    assert told.rl is not None
    with pytest.raises(config.ConfigError, match=r"rl\.start is sft.*run trainer\.sft"):
        rl.train(told, told.rl)
    told = supervised(path)
    assert told.rl is not None
    (place, *_) = checkpoints.find_checkpoints(tmp_path / "out/out/sft")
    model, _ = models.load(rl.load_start(told, told.rl), ())
    ours, theirs = model.state_dict(), checkpoints.weights_of(place)
    assert theirs and all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert rl.train(told, told.rl) == 0 and losses_of(tmp_path / "out/out/rl")
    (begun, *_) = checkpoints.find_checkpoints(tmp_path / "out/out/rl")
    moved = [
        (checkpoints.weights_of(begun)[name] - tensor).abs().max()
        for name, tensor in theirs.items()
    ]
    # Two steps of at most 3e-3 from there, and not from random weights.
    assert 0 < max(moved) < 0.01


def spoiled(place: Path, told: config.Recipe, factor: float) -> None:
    """Its weights times this, saved as they are saved."""
    _, tokenizer = models.load(config.read({"model": {"path": str(place)}, "sft": {}}, place), ())
    model, _ = models.load(config.read({"model": {"path": str(place)}, "sft": {}}, place), ())
    weights = {name: factor * tensor for name, tensor in checkpoints.weights_of(place).items()}
    state = checkpoints.restore(place, f"sft-{told.fingerprint}", tokenizer)
    checkpoints.save(place.parent, model, tokenizer, weights, state, 9)


def test_a_run_does_not_begin_or_go_on_with_weights_that_are_not_finite(tmp_path: Path) -> None:
    path = recipe(tmp_path, steps=1, rl='start = "sft"')
    told = supervised(path)
    assert told.rl is not None and told.sft is not None
    spoiled(checkpoints.find_checkpoints(tmp_path / "out/out/sft")[0], told, float("nan"))
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        rl.train(told, told.rl)
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        sft.train(told, told.sft)
    assert not (tmp_path / "out/out/rl").exists()


def test_a_run_does_not_go_on_with_another_tokenizers_checkpoint(tmp_path: Path) -> None:
    told = supervised(recipe(tmp_path))
    (place, *_) = checkpoints.find_checkpoints(tmp_path / "out/out/sft")
    model, tokenizer = models.load(
        config.read({"model": {"path": str(place)}, "sft": {}}, place), ()
    )
    other = models.make_tokenizer(["entirely other words"], 400, 640)
    state = checkpoints.restore(place, f"sft-{told.fingerprint}", tokenizer)
    checkpoints.save(place.parent, model, other, checkpoints.weights_of(place), state, 9)
    assert told.sft is not None
    with pytest.raises(CheckpointError, match="another tokenizer"):
        sft.train(told, told.sft)


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_loss_that_is_not_finite_stops_the_run_in_a_line(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights that are finite, and too large to compute with."""
    told = supervised(recipe(tmp_path, output="good"))
    (place, *_) = checkpoints.find_checkpoints(tmp_path / "good/good/sft")
    spoiled(place, told, 1e30)
    path = recipe(tmp_path, steps=1)
    path.write_text(path.read_text().replace("[model]", f'[model]\npath = "{place}"'))
    monkeypatch.setattr(sys, "argv", ["trainer", str(path)])
    with pytest.raises(SystemExit) as ended:
        starting.main(kind, "x", {"sft": sft.train, "rl": rl.train}[kind])
    assert str(ended.value.code).startswith("trainer: stopped at step 1: loss")
    assert checkpoints.find_checkpoints(tmp_path / "out/out" / kind) == []
    assert all("loss" not in row for row in training.curve(tmp_path / "out/out" / kind))
