"""Recipes: one frozen tree of settings per run, read from TOML and checked by pydantic.

Every key is a field below, with its unit and limits; what a file leaves out has the default. A
file with a mistake starts nothing: all of its mistakes are named at once, each with key, value and
what is possible. Not covered: whether the machine can do it (`--dry-run`, planning.py)."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from kernel_lsp.errors import ConfigError
from trainer.papers import with_paper

CHECKED = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class ModelConfig:
    """A folder with a published checkpoint, or a Qwen3 of this shape with random weights."""

    path: str | None = None
    """Folder with config.json, safetensors and tokenizer; a checkpoint of ours too. None: made
    from below."""
    shape: str | None = None
    """Folder or id whose config.json alone is read; None: the numbers below."""
    words: Literal["own", "compact"] = "own"
    """The vocabulary: trained on the world's texts, or that of the compact form
    (kernel_lsp.agents.prompt_encoding), which the shipped policy reads; its size is then its
    own."""
    hidden: int = Field(default=128, ge=8, le=65536)
    layers: int = Field(default=2, ge=1, le=512)
    heads: int = Field(default=4, ge=1, le=1024)
    key_heads: int = Field(default=2, ge=1, le=1024)
    head: int = Field(default=32, ge=4, le=1024)
    inner: int = Field(default=384, ge=8, le=1_000_000)
    vocabulary: int = Field(default=1024, ge=300, le=1_000_000)
    """Of the tokenizer, which is trained on the world's own texts."""
    context: int = Field(default=1024, ge=64, le=1_000_000)
    tied: bool = True
    """One matrix for the first and the last layer."""
    attention: Literal["sdpa", "eager", "flash_attention_2", "flex_attention"] = "sdpa"
    checkpointing: bool = False
    """Activations are computed again in the backward pass: less memory, a third more time."""


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class Lora:
    """Low-rank adapters (PEFT); the weights below them stay as they are."""

    rank: int = Field(default=16, ge=1, le=1024)
    alpha: float = Field(default=32.0, ge=0.1, le=4096.0)
    dropout: float = Field(default=0.0, ge=0.0, le=0.9)
    targets: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class Optimizer:
    """AdamW."""

    rate: float = Field(default=1e-6, ge=0.0, le=1.0)
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: int = Field(default=0, ge=0, le=1_000_000)
    """Steps over which the rate rises from 0."""
    decay: float = Field(default=0.01, ge=0.0, le=10.0)
    beta1: float = Field(default=0.9, ge=0.0, le=0.9999)
    beta2: float = Field(default=0.999, ge=0.0, le=0.99999)
    clip: float = Field(default=1.0, ge=0.0, le=1e6)
    """Largest norm of the gradient; 0: none."""


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class World:
    """Where tasks and verdicts come from."""

    tables: tuple[str, ...] = ()
    """Recorded evaluations (benchmarks/record_spaces.py), files or glob patterns from the recipe's
    folder."""
    synthetic: int = Field(default=0, ge=0, le=100_000)
    """Tasks of a made-up table (spaces.synthetic), without a recording: for trying the trainer
    only."""
    live: str | None = None
    """Folder of tasks (Model and get_inputs, from the recipe's folder) that are rolled out as the
    product rolls them out: its prompts, tools, feedback and gate (live.py)."""
    shown: tuple[str, ...] = ()
    """Measured plans in the compact form (trainer.policies.plan_data), for model.words = "compact"."""
    orders: int = Field(default=0, ge=0, le=100)
    """Of ``shown``: in how many more orders than the ranked one a task's sites are listed in
    training."""
    weighings: int = Field(default=0, ge=0, le=1000)
    """Of ``shown``: times that every plan is written as a question of how much faster it is than the
    rule's (plan_values.py); 0: the model does not learn to weigh."""
    nameless: bool = False
    """Of ``shown``: without the names of skills, for comparing what knowing them is worth."""
    held_out: float = Field(default=0.25, ge=0.0, le=0.9)
    """Share of the families that training never sees."""


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class Sft:
    """Supervised training, also of logged sessions."""

    data: tuple[str, ...] = ()
    """Row files (JSON lines or Parquet), files or patterns from the recipe's folder; none: the
    world's own demonstrations."""
    loss: Literal["supervised", "advantage_weighted", "best_step"] = "supervised"
    temperature: float = Field(default=1.0, ge=0.01, le=100.0)
    """Of advantage_weighted: small follows the best rows alone."""
    preference: float = Field(default=0.0, ge=0.0, le=100.0)
    """Weight of the preference term; 0: none."""
    beta: float = Field(default=0.1, ge=0.001, le=10.0)
    """Of the preference term."""
    batch: int = Field(default=64, ge=1, le=1_000_000)
    """Rows per step, over all processes."""
    epochs: int = Field(default=4, ge=1, le=10_000)
    tokens: int = Field(default=16384, ge=64, le=10_000_000)
    """Padded tokens that one forward pass of one process may hold."""


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class Rl:
    """Multi-turn reinforcement learning of the three agents together."""

    paper: Literal["none", "dr_kernel", "davinci", "kevin", "kernel_smith"] = "none"
    """What this file leaves out, in [rl], [rollouts] and [optimizer], is as this paper has it
    (papers.py)."""
    start: Literal["model", "sft"] = "model"
    """Weights to begin with: the model's own, or this recipe's newest supervised checkpoint."""
    steps: int = Field(default=100, ge=1, le=1_000_000)
    tasks: int = Field(default=16, ge=1, le=100_000)
    """Per step."""
    schemes: int = Field(default=3, ge=0, le=64)
    """Draws of the selection agent per task."""
    null: bool = True
    """One more scheme without skills."""
    rollouts: int = Field(default=4, ge=1, le=256)
    """Per scheme."""
    parents: tuple[str, ...] = ()
    """Stored parents (trainer.rollouts.parents), files or patterns from the recipe's folder: each draw is
    ``rollouts`` fresh samples of one turn from one of them, instead of rollouts of a task from its
    start."""
    turns: int = Field(default=3, ge=1, le=64)
    summaries: int = Field(default=2, ge=0, le=64)
    """Samples per trigger; 0: the summary agent is not trained."""
    reward: Literal["davinci", "dr_kernel", "kevin", "parent_relative", "milestone", "bound"] = (
        "bound"
    )
    advantage: Literal["trloo", "grpo", "kevin", "shared"] = "trloo"
    scaled: bool = False
    """Advantages are divided by their mean size, task by task (daVinci-kernel's script does)."""
    gamma: float | None = Field(default=None, ge=0.0, le=1.0)
    """Of later turns' rewards in a turn's return; left out: what the advantage's paper has
    (advantages.GAMMAS: 0.4 for kevin, 1 for the others)."""
    aggregate: Literal["sum_rows", "constant_length", "mean_tokens"] = "sum_rows"
    clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    clip_high: float = Field(default=0.28, ge=0.0, le=10.0)
    dual: float = Field(default=3.0, ge=1.0, le=1e9)
    importance_cap: float = Field(default=0.0, ge=0.0, le=100.0)
    """Truncated importance weights up to this; 0: none."""
    band: float = Field(default=0.0, ge=0.0, le=10.0)
    """Trajectories stay within 1 +- this of the sampler's probability (published: 0.001); 0: no
    such rule."""
    veto: float = Field(default=0.0, ge=0.0, le=1.0)
    """Rows with a token less likely than this times the sampler's go (published: 1e-4); 0: no such
    rule."""
    profiling: bool = False
    """Right turns with little of the GPU time in their own kernels are thinned out."""
    staleness: int = Field(default=0, ge=0, le=1000)
    """Updates by which the weights that sampled a row may be older than the step's; older rows are
    left out."""
    updates: int = Field(default=1, ge=1, le=64)
    """Gradient steps per batch of rollouts; from the second on they are off policy."""
    tokens: int = Field(default=16384, ge=64, le=10_000_000)
    """Padded tokens that one forward pass of one process may hold."""


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class RolloutsConfig:
    """Who samples."""

    engine: Literal["transformers", "vllm"] = "transformers"
    temperature: float = Field(default=1.0, ge=0.01, le=10.0)
    top_p: float = Field(default=1.0, ge=0.01, le=1.0)
    """Only the likeliest tokens that have this much of the probability are sampled from; 1: all,
    as every paper trains (they evaluate with 0.95)."""
    max_tokens: int = Field(default=256, ge=1, le=1_000_000)
    """Of a reply that is not held to a list of calls."""
    batch: int = Field(default=256, ge=1, le=100_000)
    """Prompts at a time."""
    gpus: int = Field(default=1, ge=0, le=64)
    """Of vllm; they are not the trainer's."""
    memory_share: float = Field(default=0.85, ge=0.05, le=0.98)
    """Of each of its GPUs."""
    python: str | None = None
    """Interpreter that has vllm; None: this one."""


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class JudgingConfig:
    pool: Literal["table", "local", "cluster"] = "table"
    """Recorded evaluations, a gate on this machine, or a Ray cluster."""
    tasks: str | None = None
    """Folder of the tables' tasks, from the recipe's: local and cluster run their programs."""
    address: str = "auto"
    """Of the cluster: HOST:PORT of its head, auto (this machine's Ray) or local (this machine's
    GPUs)."""
    device: Literal["cpu", "cuda"] = "cpu"
    timeout_s: float = Field(default=120.0, ge=1.0, le=86400.0)


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class Checkpoints:
    every: int = Field(default=10, ge=1, le=1_000_000)
    """Steps."""
    keep: int = Field(default=2, ge=1, le=1000)
    """The newest ones."""


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class Hardware:
    gpus: int = Field(default=0, ge=0, le=4096)
    """Of the trainer, over all nodes; 0: the CPU."""
    memory_gb: float = Field(default=141.0, ge=1.0, le=10_000.0)
    """Of one GPU, for the estimate."""
    bf16: bool = True
    """Matrix products in bfloat16 on a GPU; weights and optimizer stay in float32."""
    fsdp: bool = False
    """Weights, gradients and optimizer state are divided among the GPUs."""
    threads: int = Field(default=0, ge=0, le=1024)
    """Of torch on the CPU; 0: as torch likes."""


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class ClusterConfig:
    """A Ray cluster on whose nodes `train rl` places the run (placement.py); the recipe and
    `output` lie in a folder that all nodes share."""

    address: str = "auto"
    """HOST:PORT of its head, or auto: the one of this machine."""
    nodes: int = Field(default=1, ge=1, le=512)
    gpus: int = Field(default=8, ge=0, le=64)
    """Of each node; 0: the run is one process on the CPU of one node."""
    trainer: tuple[int, ...] = ()
    """GPUs of each node that train, such as [4, 4]; empty: placed by itself, also below."""
    vllm: tuple[int, ...] = ()
    judges: tuple[int, ...] = ()
    losses: int = Field(default=8, ge=0, le=1000)
    """Lost processes or nodes after which the run is given up; each is followed by going on from
    the newest checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True, config=CHECKED)
class Recipe:
    name: str
    seed: int = Field(default=0, ge=0, le=2**31)
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
    cluster: ClusterConfig | None = None
    folder: str = "."
    """Of the recipe's file: what its relative paths start from. Not a key."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the numbers of a run; lengths and places of it do
        not."""
        data = dataclasses.asdict(self)
        for key in ("name", "output", "folder", "checkpoints", "cluster"):
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
    """The recipe that a file holds. Raises ConfigError."""
    data = {"name": path.stem} | {key: value for key, value in data.items() if key != "folder"}
    # As JSON, because there an array may become a tuple although types are strict.
    text = json.dumps(with_paper(data), default=str)
    try:
        recipe = TypeAdapter(Recipe).validate_json(text, strict=True)
    except ValidationError as error:
        problems = [_describe(one) for one in error.errors()]
    else:
        problems = list(_contradictions(recipe))
    if problems:
        listed = "\n  ".join(problems)
        raise ConfigError(
            f"{path}:\n  {listed}", "mend these keys; their meaning is in trainer/config.py"
        )
    return dataclasses.replace(recipe, folder=str(path.parent))


def _describe(error: ErrorDetails) -> str:
    """One mistake: key, value, what is possible."""
    *tables, key = (str(part) for part in error["loc"])
    name = ".".join([*tables, key])
    if error["type"] != "unexpected_keyword_argument":
        return f"{name} is {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"
    kind: Any = Recipe
    for table in tables:  # a table that may be left out is X | None
        hint = typing.get_type_hints(kind)[table]
        kind = next(iter(typing.get_args(hint)), hint)
    keys = [one.name for one in dataclasses.fields(kind)]
    near = difflib.get_close_matches(key, keys, 1)
    return f"{name} is no key: " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"
    )


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
        yield (
            'model.words is "compact", whose rollouts need world.shown (made by trainer.policies.plan_data)'
        )
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
