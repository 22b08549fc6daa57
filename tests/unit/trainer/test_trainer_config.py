"""Recipes: what is wrong with one is said key by key, and nothing is guessed."""

from pathlib import Path

import pytest

from kernel_lsp.errors import ConfigError
from trainer import config

RECIPES = Path(__file__).resolve().parents[3] / "trainer" / "recipes"
GOOD = {"rl": {"steps": 3}, "world": {"synthetic": 8}}


def complaints(**data: object) -> str:
    with pytest.raises(ConfigError) as failed:
        config.read(data, Path("r.toml"))
    return failed.value.cause


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_of_ours_can_be_read(path: Path) -> None:
    assert config.load(path).name == path.stem


def test_what_is_left_out_has_a_default() -> None:
    recipe = config.read(GOOD, Path("a/b.toml"))
    assert recipe.name == "b" and recipe.folder == "a" and recipe.sft is None
    assert recipe.rl is not None and recipe.rl.steps == 3 and recipe.rl.clip_high == 0.28


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"rl": {"stepz": 3}}, "rl.stepz is no key: did you mean steps?"),
        ({"rl": {"steps": "3"}}, "rl.steps is '3': input should be a valid integer"),
        ({"rl": {"steps": True}}, "rl.steps is True: input should be a valid integer"),
        ({"rl": {"steps": 0}}, "rl.steps is 0: input should be greater than or equal to 1"),
        (
            {"rl": {"reward": "speed"}},
            "rl.reward is 'speed': input should be 'davinci', 'dr_kernel'",
        ),
        ({"rl": 3}, "rl is 3: input should be an object"),
        (
            {"world": {"tables": "x.json"}},
            "world.tables is 'x.json': input should be a valid array",
        ),
        (
            {"optimizer": {"rate": float("nan")}},
            "optimizer.rate is nan: input should be less than or equal to 1",
        ),
        ({"model": {"heads": 4, "key_heads": 3}}, "model.key_heads (3) does not divide"),
        ({"rl": {"schemes": 0, "null": False}}, "there is nothing to roll out"),
        ({"rl": {"schemes": 0, "rollouts": 1}}, "one rollout per task"),
        ({"hardware": {"fsdp": True}}, "hardware.fsdp needs several GPUs"),
        ({"hardware": {"fsdp": True, "gpus": 8}}, "cannot sample from divided weights"),
        ({"world": {}}, "none of world.tables, shown and synthetic"),
        ({"rl": {"reward": "dr_kernel"}}, "needs the share of time in own kernels"),
        ({"rl": {"reward": "milestone"}}, "needs the time of torch.compile"),
        ({"rl": {"profiling": True}}, "rl.profiling needs the share of time"),
        ({"rl": {"paper": "davinci"}}, "needs the share of time in own kernels"),
        ({"rl": {"paper": "kevin2"}}, "rl.paper is 'kevin2': input should be 'none', 'dr_kernel'"),
        ({"rl": {"parents": ["p.jsonl"]}}, "groups of samples of one turn"),
        ({"rollouts": {"engine": "vllm", "top_p": 0.9}}, "set it to 1"),
    ],
)
def test_complaints_name_key_value_and_what_is_possible(data: dict[str, object], said: str) -> None:
    assert said in complaints(**{**GOOD, **data})


LIVE = {"world": {"tables": ["t.json"]}, "judging": {"pool": "local", "tasks": "tasks"}}


@pytest.mark.parametrize(
    ("paper", "rl", "others"),
    [
        (
            "kevin",
            {"advantage": "kevin", "gamma": 0.4, "rollouts": 16, "turns": 4, "tasks": 8}
            | {"updates": 2, "clip_high": 0.28, "aggregate": "constant_length"},
            (0.9, 2e-6, 0.05),
        ),
        (
            "dr_kernel",
            {"reward": "dr_kernel", "advantage": "trloo", "gamma": 1.0, "rollouts": 16}
            | {"turns": 3, "band": 0.001, "veto": 1e-4, "profiling": True, "scaled": False},
            (1.0, 1e-6, 1.0),
        ),
        (
            "davinci",
            {"reward": "davinci", "schemes": 3, "null": True, "rollouts": 4, "turns": 3}
            | {"scaled": True, "summaries": 2, "band": 0.001},
            (1.0, 1e-6, 1.0),
        ),
        (
            "kernel_smith",
            {"reward": "parent_relative", "advantage": "grpo", "rollouts": 8, "turns": 1},
            (1.0, 1e-6, 1.0),
        ),
    ],
)
def test_a_paper_gives_what_the_file_leaves_out(
    paper: str, rl: dict[str, object], others: tuple[float, float, float]
) -> None:
    recipe = config.read({**LIVE, "rl": {"paper": paper}}, Path("r.toml"))
    assert recipe.rl is not None
    assert {name: getattr(recipe.rl, name) for name in rl} == rl
    optimizer = recipe.optimizer
    assert (recipe.rollouts.temperature, optimizer.rate, optimizer.clip) == others
    said = config.read({**LIVE, "rl": {"paper": paper, "rollouts": 5}}, Path("r.toml"))
    assert said.rl is not None and said.rl.rollouts == 5 and said.rl.turns == recipe.rl.turns


def test_all_mistakes_are_told_at_once() -> None:
    told = complaints(rl={"steps": 0, "turns": "x"}, nmae="x")
    assert told.count("\n") == 3 and "did you mean name?" in told


def test_a_recipe_that_does_nothing_is_refused() -> None:
    assert "nothing to do" in complaints(world={"synthetic": 1})


def test_a_file_that_is_missing_or_no_toml_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config.load(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match="is no TOML"):
        config.load(tmp_path / "broken.toml")


def test_the_fingerprint_is_of_what_decides_the_numbers() -> None:
    def of(**data: object) -> str:
        return config.read({**GOOD, **data}, Path("r.toml")).fingerprint

    assert of() == of(output="elsewhere") == of(checkpoints={"every": 3}) == of(name="other")
    assert of() != of(seed=1) and of() != of(optimizer={"rate": 0.5})
