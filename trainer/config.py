"""Recipes: one frozen tree of settings per run, read from TOML. Standard library only.

Every key is a field below, with its unit and limits; what a file leaves out has the default. A
file with a mistake starts nothing: all of its mistakes are told at once, each with key, value and
what is possible. Not covered: whether the machine can do it (`--dry-run`, planning.py)."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp.errors import ConfigError
from trainer.papers import PAPERS, with_paper


def _number(default: float | None, low: float, high: float) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


def _choice(default: str, *choices: str) -> Any:
    return field(default=default, metadata={"choices": choices})


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A folder with a published checkpoint, or a Qwen3 of this shape with random weights."""

    path: str | None = None
    """Folder with config.json, safetensors and tokenizer; a checkpoint of ours too. None: made
    from below."""
    shape: str | None = None
    """Folder or id whose config.json alone is read; None: the numbers below."""
    words: str = _choice("own", "own", "compact")
    """The vocabulary: trained on the world's texts, or that of the compact form
    (kernel_lsp.agents.prompt_encoding), which the shipped policy reads; its size is then its
    own."""
    hidden: int = _number(128, 8, 65536)
    layers: int = _number(2, 1, 512)
    heads: int = _number(4, 1, 1024)
    key_heads: int = _number(2, 1, 1024)
    head: int = _number(32, 4, 1024)
    inner: int = _number(384, 8, 1_000_000)
    vocabulary: int = _number(1024, 300, 1_000_000)
    """Of the tokenizer, which is trained on the world's own texts."""
    context: int = _number(1024, 64, 1_000_000)
    tied: bool = True
    """One matrix for the first and the last layer."""
    attention: str = _choice("sdpa", "sdpa", "eager", "flash_attention_2", "flex_attention")
    checkpointing: bool = False
    """Activations are computed again in the backward pass: less memory, a third more time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """Low-rank adapters (PEFT); the weights below them stay as they are."""

    rank: int = _number(16, 1, 1024)
    alpha: float = _number(32.0, 0.1, 4096.0)
    dropout: float = _number(0.0, 0.0, 0.9)
    targets: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """AdamW."""

    rate: float = _number(1e-6, 0.0, 1.0)
    schedule: str = _choice("constant", "constant", "cosine")
    warmup: int = _number(0, 0, 1_000_000)
    """Steps over which the rate rises from 0."""
    decay: float = _number(0.01, 0.0, 10.0)
    beta1: float = _number(0.9, 0.0, 0.9999)
    beta2: float = _number(0.999, 0.0, 0.99999)
    clip: float = _number(1.0, 0.0, 1e6)
    """Largest norm of the gradient; 0: none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Where tasks and verdicts come from."""

    tables: tuple[str, ...] = ()
    """Recorded evaluations (benchmarks/record_spaces.py), files or glob patterns from the recipe's
    folder."""
    synthetic: int = _number(0, 0, 100_000)
    """Tasks of a made-up table (spaces.synthetic), without a recording: for trying the trainer
    only."""
    live: str | None = None
    """Folder of tasks (Model and get_inputs, from the recipe's folder) that are rolled out as the
    product rolls them out: its prompts, tools, feedback and gate (live.py)."""
    shown: tuple[str, ...] = ()
    """Measured plans in the compact form (trainer.plan_data), for model.words = "compact"."""
    orders: int = _number(0, 0, 100)
    """Of ``shown``: in how many more orders than the ranked one a task's sites are told in
    training."""
    weighings: int = _number(0, 0, 1000)
    """Of ``shown``: times that every plan is told as a question of how much faster it is than the
    rule's (weighing.py); 0: the model does not learn to weigh."""
    nameless: bool = False
    """Of ``shown``: without the names of skills, for comparing what knowing them is worth."""
    held_out: float = _number(0.25, 0.0, 0.9)
    """Share of the families that training never sees."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sft:
    """Supervised training, also of logged sessions."""

    data: tuple[str, ...] = ()
    """Row files (JSON lines or Parquet), files or patterns from the recipe's folder; none: the
    world's own demonstrations."""
    loss: str = _choice("supervised", "supervised", "advantage_weighted", "best_step")
    temperature: float = _number(1.0, 0.01, 100.0)
    """Of advantage_weighted: small follows the best rows alone."""
    preference: float = _number(0.0, 0.0, 100.0)
    """Weight of the preference term; 0: none."""
    beta: float = _number(0.1, 0.001, 10.0)
    """Of the preference term."""
    batch: int = _number(64, 1, 1_000_000)
    """Rows per step, over all processes."""
    epochs: int = _number(4, 1, 10_000)
    tokens: int = _number(16384, 64, 10_000_000)
    """Padded tokens that one forward pass of one process may hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rl:
    """Multi-turn reinforcement learning of the three agents together."""

    paper: str = _choice("none", "none", *PAPERS)
    """What this file leaves out, in [rl], [rollouts] and [optimizer], is as this paper has it
    (papers.py)."""
    start: str = _choice("model", "model", "sft")
    """Weights to begin with: the model's own, or this recipe's newest supervised checkpoint."""
    steps: int = _number(100, 1, 1_000_000)
    tasks: int = _number(16, 1, 100_000)
    """Per step."""
    schemes: int = _number(3, 0, 64)
    """Draws of the selection agent per task."""
    null: bool = True
    """One more scheme without skills."""
    rollouts: int = _number(4, 1, 256)
    """Per scheme."""
    parents: tuple[str, ...] = ()
    """Stored parents (trainer.parents), files or patterns from the recipe's folder: each draw is
    ``rollouts`` fresh samples of one turn from one of them, instead of rollouts of a task from its
    start."""
    turns: int = _number(3, 1, 64)
    summaries: int = _number(2, 0, 64)
    """Samples per trigger; 0: the summary agent is not trained."""
    reward: str = _choice(
        "bound", "davinci", "dr_kernel", "kevin", "parent_relative", "milestone", "bound"
    )
    advantage: str = _choice("trloo", "trloo", "grpo", "kevin", "shared")
    scaled: bool = False
    """Advantages are divided by their mean size, task by task (daVinci-kernel's script does)."""
    gamma: float | None = _number(None, 0.0, 1.0)
    """Of later turns' rewards in a turn's return; left out: what the advantage's paper has
    (advantages.GAMMAS: 0.4 for kevin, 1 for the others)."""
    aggregate: str = _choice("sum_rows", "sum_rows", "constant_length", "mean_tokens")
    clip_low: float = _number(0.2, 0.0, 1.0)
    clip_high: float = _number(0.28, 0.0, 10.0)
    dual: float = _number(3.0, 1.0, 1e9)
    importance_cap: float = _number(0.0, 0.0, 100.0)
    """Truncated importance weights up to this; 0: none."""
    band: float = _number(0.0, 0.0, 10.0)
    """Trajectories stay within 1 +- this of the sampler's probability (published: 0.001); 0: no
    such rule."""
    veto: float = _number(0.0, 0.0, 1.0)
    """Rows with a token less likely than this times the sampler's go (published: 1e-4); 0: no such
    rule."""
    profiling: bool = False
    """Right turns with little of the GPU time in their own kernels are thinned out."""
    updates: int = _number(1, 1, 64)
    """Gradient steps per batch of rollouts; from the second on they are off policy."""
    tokens: int = _number(16384, 64, 10_000_000)
    """Padded tokens that one forward pass of one process may hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutsConfig:
    """Who samples."""

    engine: str = _choice("transformers", "transformers", "vllm")
    temperature: float = _number(1.0, 0.01, 10.0)
    top_p: float = _number(1.0, 0.01, 1.0)
    """Only the likeliest tokens that have this much of the probability are sampled from; 1: all,
    as every paper trains (they evaluate with 0.95)."""
    max_tokens: int = _number(256, 1, 1_000_000)
    """Of a reply that is not held to a list of calls."""
    batch: int = _number(256, 1, 100_000)
    """Prompts at a time."""
    gpus: int = _number(1, 0, 64)
    """Of vllm; they are not the trainer's."""
    memory_share: float = _number(0.85, 0.05, 0.98)
    """Of each of its GPUs."""
    python: str | None = None
    """Interpreter that has vllm; None: this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgingConfig:
    pool: str = _choice("table", "table", "local", "cluster")
    """Recorded evaluations, a gate on this machine, or a Ray cluster."""
    tasks: str | None = None
    """Folder of the tables' tasks, from the recipe's: local and cluster run their programs."""
    address: str = "auto"
    """Of the cluster: HOST:PORT of its head, auto (this machine's Ray) or local (this machine's
    GPUs)."""
    device: str = _choice("cpu", "cpu", "cuda")
    timeout_s: float = _number(120.0, 1.0, 86400.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    every: int = _number(10, 1, 1_000_000)
    """Steps."""
    keep: int = _number(2, 1, 1000)
    """The newest ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    gpus: int = _number(0, 0, 4096)
    """Of the trainer, over all nodes; 0: the CPU."""
    memory_gb: float = _number(141.0, 1.0, 10_000.0)
    """Of one GPU, for the estimate."""
    bf16: bool = True
    """Matrix products in bfloat16 on a GPU; weights and optimizer stay in float32."""
    fsdp: bool = False
    """Weights, gradients and optimizer state are divided among the GPUs."""
    threads: int = _number(0, 0, 1024)
    """Of torch on the CPU; 0: as torch likes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    name: str
    seed: int = _number(0, 0, 2**31)
    output: str = "runs"
    """Folder for checkpoints and curves, from the working directory; the run is a folder in it."""
    model: ModelConfig = ModelConfig()
    lora: Lora | None = None
    optimizer: Optimizer = Optimizer()
    world: World = World()
    sft: Sft | None = None
    rl: Rl | None = None
    rollouts: RolloutsConfig = RolloutsConfig()
    judging: JudgingConfig = JudgingConfig()
    checkpoints: Checkpoints = Checkpoints()
    hardware: Hardware = Hardware()
    folder: str = "."
    """Of the recipe's file: what its relative paths start from. Not a key."""

    @property
    def fingerprint(self) -> str:
        """Of everything that decides the numbers of a run; lengths and places of it do not."""
        data = dataclasses.asdict(self)
        for key in ("name", "output", "folder", "checkpoints"):
            data.pop(key)
        data["judging"].pop("address")
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def load(path: Path) -> Recipe:
    """A recipe's file. Raises ConfigError with everything that is wrong with it."""
    try:
        with path.open("rb") as stream:
            data = tomllib.load(stream)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", "name a recipe, e.g. one of trainer/recipes"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}", "mend the line") from error
    return read(data, path)


def read(data: Mapping[str, Any], path: Path) -> Recipe:
    """Raises ConfigError."""
    reader = TableReader()
    data = {"name": path.stem} | {key: value for key, value in data.items() if key != "folder"}
    data = with_paper(data)
    recipe, problems = reader.record(Recipe, data), reader.problems
    if recipe is not None:
        recipe = dataclasses.replace(recipe, folder=str(path.parent))
        problems += _contradictions(recipe)
    if problems or recipe is None:
        text = "\n  ".join(problems)
        raise ConfigError(
            f"{path}:\n  {text}", "mend these keys; their meaning is in trainer/config.py"
        )
    return recipe


def _contradictions(recipe: Recipe) -> Iterator[str]:
    """What no key says alone."""
    model, rl = recipe.model, recipe.rl
    if model.heads % model.key_heads:
        yield (
            f"model.heads is {model.heads}, which model.key_heads ({model.key_heads}) does "
            f"not divide"
        )
    if recipe.hardware.fsdp and recipe.hardware.gpus < 2:
        yield f"hardware.fsdp needs several GPUs, and hardware.gpus is {recipe.hardware.gpus}"
    if (model.words == "compact") < bool(recipe.world.shown):
        yield 'world.shown holds plans in the compact form: set model.words to "compact"'
    if recipe.world.shown and (
        recipe.rollouts.engine == "vllm" or (rl is not None and rl.summaries)
    ):
        yield (
            "plans in the compact form are rolled out by transformers and without rl.summaries (0)"
        )
    if rl is not None:
        yield from _about_groups(rl)
        yield from _about_sampling(recipe)
        yield from _about_judging(recipe, rl)
    if recipe.sft is None and rl is None:
        yield "there is neither [sft] nor [rl]: nothing to do"


def _about_groups(rl: Rl) -> Iterator[str]:
    """Whether every row has others that it can be compared with."""
    if not rl.schemes and not rl.null:
        yield "rl.schemes is 0 and rl.null is false: there is nothing to roll out"
    if (rl.schemes + rl.null) * rl.rollouts < 2:
        yield (
            "rl.schemes, rl.null and rl.rollouts make one rollout per task, which has nothing "
            "beside it"
        )
    if rl.parents and (rl.schemes or rl.summaries or rl.turns > 1):
        yield (
            "rl.parents are groups of samples of one turn, without selections and summaries: set "
            "rl.schemes and rl.summaries to 0, and rl.turns to 1"
        )


def _about_sampling(recipe: Recipe) -> Iterator[str]:
    rollouts = recipe.rollouts
    if recipe.hardware.fsdp and rollouts.engine == "transformers":
        yield (
            'rollouts.engine "transformers" cannot sample from divided weights (hardware.fsdp): '
            'use "vllm"'
        )
    if rollouts.engine == "vllm" and rollouts.top_p < 1.0:
        yield (
            "rollouts.top_p below 1 with vllm: the trainer cannot know which tokens were left out; "
            "set it to 1"
        )


def _about_judging(recipe: Recipe, rl: Rl) -> Iterator[str]:
    world, pool = recipe.world, recipe.judging.pool
    if world.live is not None:
        yield from _about_live(recipe, rl)
        return
    if recipe.model.words == "compact" and not world.shown:
        yield 'model.words is "compact", whose rollouts need world.shown (made by trainer.plan_data)'
    if pool == "table":
        if not (world.tables or world.synthetic or world.shown):
            yield 'judging.pool is "table", and none of world.tables, shown and synthetic gives one'
        yield from _unpaid(rl)
        return
    if recipe.judging.tasks is None or not world.tables:
        yield f'judging.pool is "{pool}", which runs programs: set world.tables and judging.tasks'
    if world.synthetic:
        yield "tasks of world.synthetic have no program that judging.pool could run: set it to 0"


def _about_live(recipe: Recipe, rl: Rl) -> Iterator[str]:
    world = recipe.world
    if recipe.judging.pool != "local":
        yield 'world.live is judged by the gate of this machine: set judging.pool to "local"'
    if world.tables or world.synthetic or world.shown or recipe.model.words == "compact":
        yield "world.live is a world of its own: leave out tables, synthetic, shown and compact"
    if rl.summaries:
        yield "world.live pays no summaries: set rl.summaries to 0"


_UNRECORDED = {
    "davinci": "the share of time in own kernels",
    "dr_kernel": "the share of time in own kernels",
    "milestone": "the time of torch.compile",
}
"""What a reward is made of, and no table holds."""


def _unpaid(rl: Rl) -> Iterator[str]:
    """Rewards that a table cannot pay: every right turn would be unknown, and only failures would
    be learned from."""
    if rl.reward in _UNRECORDED:
        yield (
            f'rl.reward "{rl.reward}" needs {_UNRECORDED[rl.reward]}, which no recorded table has: '
            f'set judging.pool to "local" or "cluster", or take "bound" or "kevin"'
        )
    if rl.profiling:
        yield (
            "rl.profiling needs the share of time in own kernels, which no recorded table has: "
            'set judging.pool to "local" or "cluster"'
        )


# --- from TOML to records -------------------------------------------------------------------------


class TableReader:
    """Makes records of tables, and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def record(self, kind: type[Any], data: Mapping[str, Any], where: str = "") -> Any:
        """A record from a table; None when something is wrong with it. ``where``: the table's key
        and a dot, for messages."""
        hints, before = typing.get_type_hints(kind), len(self.problems)
        fields = {one.name: one for one in dataclasses.fields(kind)}
        for key in data:
            if key not in fields:
                near = difflib.get_close_matches(key, fields, 1)
                meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
                self.problems.append(f"{where}{key} is no key: {meant}")
        given = {
            key: self._value(hints[key], fields[key].metadata, data[key], where + key)
            for key in fields
            if key in data
        }
        return kind(**given) if len(self.problems) == before else None

    def _value(self, hint: Any, limits: Mapping[str, Any], value: Any, key: str) -> Any:
        if isinstance(hint, types.UnionType):  # X | None: TOML has no null, so a value is an X
            hint = next(one for one in typing.get_args(hint) if one is not type(None))
        if dataclasses.is_dataclass(hint):
            if isinstance(value, dict):
                return self.record(typing.cast(type[Any], hint), value, f"{key}.")
            self.problems.append(f"{key} is {value!r} and should be a table: [{key}]")
            return None
        if typing.get_origin(hint) is tuple:
            if isinstance(value, list) and all(isinstance(one, str) for one in value):
                return tuple(value)
            self.problems.append(f"{key} is {value!r} and should be a list of texts")
            return None
        return self._plain(hint, limits, value, key)

    def _plain(self, hint: type, limits: Mapping[str, Any], value: Any, key: str) -> Any:
        if hint is float and type(value) is int:
            value = float(value)
        if type(value) is not hint:
            kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
            problem = f"is {value!r} and should be {kinds[hint]}"
        elif "choices" in limits and value not in limits["choices"]:
            problem = f"is {value!r} and should be one of {', '.join(limits['choices'])}"
        elif "low" in limits and not limits["low"] <= value <= limits["high"]:
            problem = f"is {value} and should be from {limits['low']} to {limits['high']}"
        else:
            return value
        self.problems.append(f"{key} {problem}")
        return value
