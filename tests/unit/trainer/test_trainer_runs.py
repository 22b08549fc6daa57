"""Whole runs on a model of a second: learning, going on after kill -9, offline losses, bad rows."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_lsp import membership
from kernel_lsp.errors import ConfigError
from trainer import config, evaluate, rl, sft, sources
from trainer.algorithms import batches
from trainer.data import forgetting
from trainer.records import Tally
from trainer.rollouts import held_out
from trainer.training import checkpoints
from trainer.training import runs as training

pytestmark = pytest.mark.torch
CHILD = Path(__file__).parents[2] / "helpers" / "trainer_child.py"
ROOT = Path(__file__).resolve().parents[3]
TINY = """
seed = 3
output = "{output}"
[model]
hidden = 32
layers = 1
heads = 2
key_heads = 1
head = 16
inner = 48
vocabulary = 400
context = 640
[optimizer]
rate = 3e-3
schedule = "cosine"
[world]
synthetic = 8
[sft]
batch = 4
epochs = 2
{sft}
[rl]
steps = {steps}
tasks = 2
schemes = 1
rollouts = 2
turns = 2
aggregate = "mean_tokens"
{rl}
[checkpoints]
every = 1
[hardware]
threads = 1
"""


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(folder: Path, steps: int = 4, output: str = "out", rl: str = "", sft: str = "") -> Path:
    path = folder / f"{output}.toml"
    path.write_text(TINY.format(output=folder / output, steps=steps, rl=rl, sft=sft))
    return path


def losses_of(folder: Path) -> list[tuple[float, float]]:
    return [(row["step"], row["loss"]) for row in training.curve(folder) if "loss" in row]


def test_a_run_that_is_killed_at_any_point_has_the_losses_of_one_that_never_stopped(
    tmp_path: Path,
) -> None:
    """Killed while a step is said, in its save, in the next rollouts or the update."""
    names = ("whole", "killed")
    recipes = [recipe(tmp_path, 4, name) for name in names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CHILD), "rl", *map(str, recipes), "0", "0.1", "0.3"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert ran.returncode == 0, ran.stderr
    whole, killed = (losses_of(tmp_path / name / name / "rl") for name in names)
    assert [step for step, _ in whole] == [1, 2, 3, 4] and killed == whole
    curve = training.curve(tmp_path / "killed" / "killed" / "rl")
    assert {row["staleness/oldest"] for row in curve if "loss" in row} == {0}
    weights = [
        checkpoints.weights_of(checkpoints.find_checkpoints(tmp_path / name / name / "rl")[0])
        for name in names
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_rows_of_weights_that_are_too_old_are_left_out_and_the_curve_says_how_old_they_were() -> (
    None
):
    sampled = [batches.Example(prompt=(1,), reply=(2,), version=one) for one in (7, 5, 4, None)]
    kept, said = rl.fresh_rows(sampled, 7, 2)
    assert [one.version for one in kept] == [7, 5, None]
    assert said == {"staleness/oldest": 3, "staleness/left_out": 1}
    assert rl.fresh_rows(sampled[3:], 7, 0) == (sampled[3:], {})


def trained(path: Path) -> config.Recipe:
    told = config.load(path)
    assert told.sft is not None
    assert sft.train(told, told.sft) == 0
    return told


def test_supervised_training_learns_its_rows_and_goes_on(tmp_path: Path, capsys: Any) -> None:
    told = trained(recipe(tmp_path))
    assert re.search(r"step 1 of \d+, \d:\d\d:\d\d left  loss", capsys.readouterr().out)
    curve = training.curve(tmp_path / "out/out/sft")
    assert curve[-1]["loss"] < 0.95 * curve[0]["loss"]
    assert evaluate.newest(told).name == f"step-{len(curve):08d}"
    before = losses_of(tmp_path / "out/out/sft")
    trained(recipe(tmp_path))  # there is nothing left to do, and nothing is done
    assert losses_of(tmp_path / "out/out/sft") == before


def test_a_checkpoint_is_evaluated_on_held_out_families(tmp_path: Path, capsys: Any) -> None:
    path = recipe(tmp_path)
    trained(path)
    out = tmp_path / "told.json"
    options = argparse.Namespace(checkpoint=None, turns=3, out=out, dry_run=False)
    assert evaluate.run(config.load(path), options) == 0
    found = json.loads(out.read_text())
    assert (
        found["tasks"] >= 1
        and 0 < found["first_over_best"]["low"] <= found["first_over_best"]["high"] <= 1.2
    )


@pytest.mark.parametrize("loss", ["supervised", "advantage_weighted", "best_step"])
def test_logged_sessions_train_offline(tmp_path: Path, loss: str) -> None:
    exported(tmp_path / "turns-train.parquet")
    told = f'data = ["turns-*.parquet"]\nloss = "{loss}"\npreference = 0.5'
    trained(recipe(tmp_path, sft=told))
    curve = training.curve(tmp_path / "out/out/sft")
    assert (
        all(row["preference"] > 0 for row in curve)
        and curve[-1]["preference"] < curve[0]["preference"]
    )


def exported(path: Path, **changed: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    messages = json.dumps([{"role": "user", "text": "a task"}])

    def row(number: int, speedup: float, human: str | None) -> dict[str, Any]:
        interval = {"low": speedup * 0.9, "mid": speedup, "high": speedup * 1.1}
        return {
            "trajectory": f"r{number}",
            "task": "t",
            "number": 0,
            "agent": "policy",
            "messages": messages,
            "reply": json.dumps({"name": "apply_skill", "arguments": {"n": number}}),
            "calls": "[]",
            "example": speedup > 1,
            "human": human,
            "status": "passed",
            "correct": True,
            "speedups": json.dumps({"eager": interval}),
            "allowed_training": True,
            "allowed_source": True,
        } | changed

    rows = [
        row(0, 2.0, "kept"),
        row(1, 0.7, "reverted"),
        row(2, 1.5, None),
        row(3, 3.0, "accepted"),
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"allowed_training": False}, sources.NOT_ALLOWED),
        ({"allowed_source": False}, sources.NOT_ALLOWED),
        ({"messages": None}, sources.NO_PROMPT),
        ({"agent": "nobody"}, sources.BROKEN),
        ({"example": False}, sources.NO_EXAMPLE),
    ],
)
def test_rows_that_must_not_be_learned_from_are_counted(
    tmp_path: Path, changed: dict[str, Any], reason: str, capsys: Any
) -> None:
    exported(tmp_path / "turns.parquet", **changed)
    with pytest.raises(ConfigError, match="nothing is left"):
        trained(recipe(tmp_path, sft='data = ["turns.parquet"]'))
    assert f"left out: 4 x {reason}" in capsys.readouterr().out


def test_rows_of_who_asked_to_be_forgotten_are_left_out_of_an_older_data_set(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    gone = membership.hash_of("a machine")
    membership.write_state(tmp_path / "data", membership.SyncedState(forgotten=(gone,)))
    exported(tmp_path / "turns.parquet", contributor=gone)
    with pytest.raises(ConfigError, match="nothing is left"):
        trained(recipe(tmp_path, sft='data = ["turns.parquet"]'))
    assert f"left out: 4 x {forgetting.FORGOTTEN}" in capsys.readouterr().out


def test_talks_are_rows_that_know_what_was_offered(tmp_path: Path) -> None:
    whole = {
        "tokens": [1, 5, 6, 7],
        "said": [False, True, False, True],
        "offered": [[], [5, 6], [], [7, 8]],
    }
    broken = {**whole, "offered": [[], [6, 8], [], [7, 8]]}
    path = tmp_path / "talks.jsonl"
    bad = [
        broken,
        {**whole, "advantages": [1.0]},
        {**whole, "advantages": [1.0, float("nan")]},
        "x",
    ]
    path.write_text("\n".join(map(json.dumps, [whole, *bad])))
    tally = Tally()
    (found,) = sources.dialog_examples(path, tally)
    assert found.prompt == (1,) and found.reply == (5, 6, 7) and found.counted == (0, 2)
    assert found.allowed == ((5, 6), (6,), (7, 8)) and tally.count(sources.BROKEN) == len(bad)


def test_a_step_whose_loss_is_not_finite_leaves_the_weights_as_they_are(tmp_path: Path) -> None:
    told = config.load(recipe(tmp_path))
    assert told.sft is not None
    world, _ = held_out.worlds_of(told, Tally())
    model, tokenizer = training_model(told, world)
    run = training.TrainingRun(recipe=told, kind="sft", model=model, tokenizer=tokenizer, steps=3)
    rows = list(sources.demonstrations(world, tokenizer))[:4]
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(FloatingPointError, match="step 1: loss nan"):
        run.update(
            rows, lambda batch, logprobs, places: logprobs.sum() * float("nan"), tokens=4096,
            kept=[True] * 4, temperature=1.0,
        )  # fmt: skip
    assert run.step == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def training_model(told: config.Recipe, world: Any) -> tuple[Any, Any]:
    from trainer.policies import models

    return models.load(told, world.texts())


def test_how_a_step_is_cut_changes_nothing(tmp_path: Path) -> None:
    """The same rows in one part and in many: gradients agree up to rounding."""
    told = config.load(recipe(tmp_path))
    assert told.sft is not None
    world, _ = held_out.worlds_of(told, Tally())
    found = []
    for tokens in (100_000, 300):
        model, tokenizer = training_model(told, world)
        run = training.TrainingRun(
            recipe=told, kind="sft", model=model, tokenizer=tokenizer, steps=3
        )
        rows = list(sources.demonstrations(world, tokenizer))[:6]
        metrics = sft.learn(run, config.Sft(tokens=tokens), rows, [], [])
        found.append((metrics["loss"], [parameter.detach() for parameter in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for one, two in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(one, two, atol=1e-4)


def test_what_is_trained_on_talks_runs_in_the_product(tmp_path: Path) -> None:
    """The compact form's words, this trainer's checkpoint, the shipped policy's own runtime."""
    from kernel_lsp.agents.backbones.small import shape, tensors
    from kernel_lsp.agents.backbones.small.network import KeyValueCache, Network
    from kernel_lsp.agents.prompt_encoding import tokenizer
    from trainer.algorithms import batches
    from trainer.policies import models

    def row(number: int) -> str:
        words = [3, 20 + number, 30, 40 + number % 3, 50]
        said, offered = [False, False, True, True, False], [[], [], [30, 31], [40, 41, 42], []]
        return json.dumps(
            {"tokens": words, "said": said, "offered": offered, "example": number != 5}
        )

    (tmp_path / "talks.jsonl").write_text("\n".join(row(number) for number in range(9)))
    told = recipe(tmp_path, sft='data = ["talks.jsonl"]')
    text = told.read_text().replace("vocabulary = 400", 'words = "compact"')
    told.write_text(text[: text.index("[rl]")] + text[text.index("[checkpoints]") :])
    place = evaluate.newest(trained(told))
    assert tokenizer.belongs(json.loads((place / "tokenizer.json").read_text()))
    network = Network(shape.read(place), tensors.load(place / "model.safetensors"))
    tokens = torch.tensor([3, 25, 30, 41])
    with torch.inference_mode():
        logits = network(tokens, KeyValueCache(network.shape))[-2].float()
        model, _ = models.load(config.read({"model": {"path": str(place)}, "sft": {}}, told), ())
        example = batches.Example(prompt=(3, 25, 30), reply=(41,), allowed=((40, 41, 42),))
        ours = models.logprobs(model, batches.collate([example], 0))
    assert ours.item() == pytest.approx(float(logits[[40, 41, 42]].log_softmax(0)[1]), abs=1e-4)
    # The eighth is no example: 8 rows by 4.
    assert len(training.curve(tmp_path / "out/out/sft")) == 2 * 2
