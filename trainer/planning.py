"""What a recipe would do and take, before anything is started: `--dry-run`.

Memory per GPU is counted from shapes: weights, gradients and AdamW's two moments in float32 (16
bytes a parameter, divided by the GPUs under FSDP), the weights that are gathered for one layer,
activations of the longest part, the last layer where replies are scored; for vLLM its share, and
what of it is left for the KV cache. Estimates, said as such: fragmentation and libraries take some
10 % more, which is added. Where the recipe has a ``[cluster]``, placement.py says which GPU does
what, and how long a step may take. Not covered: measuring any of it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from kernel_lsp.errors import ConfigError
from trainer import placement
from trainer.config import ModelConfig, Recipe
from trainer.policies import models
from trainer.training import checkpoints

GB = 1e9
OVERHEAD = 1.1
CONTEXT_GB = 2.0
"""CUDA context, NCCL buffers and libraries of one process."""
SAVED = 34
"""Bytes per token, hidden unit and layer that autograd keeps in bfloat16 with attention that
stores no matrix (Korthikanti et al. 2022, arXiv 2205.05198); with activation checkpointing it is
the 2 of a layer's input."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    parameters: int
    trained: int
    parts_gb: dict[str, float]
    """Of one trainer GPU (or process)."""
    vllm_gb: dict[str, float]
    """Of one vLLM GPU; empty: none."""
    steps: str
    seconds: placement.StepSeconds | None
    """Of one step, where it can be estimated."""
    problems: tuple[str, ...]

    @property
    def total_gb(self) -> float:
        """Memory of one GPU that everything takes together, with what is lost between."""
        return sum(self.parts_gb.values()) * OVERHEAD


def plan(recipe: Recipe, kind: str) -> Plan:
    """What a run needs, and what stands in its way. ``kind``: sft or rl. Raises ConfigError when
    the model's shape cannot be read."""
    shape = shape_of(recipe)
    parameters = models.num_parameters(shape, shape.vocabulary)
    trained = lora_parameters(shape, recipe) if recipe.lora else parameters
    tokens = (
        recipe.sft.tokens if kind == "sft" and recipe.sft else recipe.rl.tokens if recipe.rl else 0
    )
    parts = memory(shape, recipe, parameters, trained, tokens)
    served = (
        vllm(shape, recipe, parameters) if kind == "rl" and recipe.rollouts.engine == "vllm" else {}
    )
    problems = [*_problems(recipe, shape, kind, tokens)]
    total = sum(parts.values()) * OVERHEAD
    if recipe.hardware.gpus and total > recipe.hardware.memory_gb:
        problems.append(
            f"{total:.0f} GB are needed on each of {recipe.hardware.gpus} GPUs of "
            f"{recipe.hardware.memory_gb:g} GB: take more GPUs with hardware.fsdp, fewer "
            f"{kind}.tokens, "
            "model.checkpointing or [lora]"
        )
    if served and served["left for the KV cache"] < 1.0:
        problems.append(
            "vLLM has no room for a KV cache: raise rollouts.gpus or rollouts.memory_share"
        )
    return Plan(
        parameters=parameters,
        trained=trained,
        parts_gb=parts,
        vllm_gb=served,
        steps=_steps(recipe, kind),
        seconds=placement.seconds(recipe, shape, parameters) if kind == "rl" else None,
        problems=tuple(problems),
    )


def shape_of(recipe: Recipe) -> ModelConfig:
    """The shape of the model that is named, from its config.json alone; nothing is downloaded."""
    here = [name for name in (recipe.model.path, recipe.model.shape) if name]
    files = [_config(Path(recipe.folder, name).expanduser()) for name in here]
    file = next((file for file in files if file.is_file()), files[-1] if files else None)
    if file is None:
        return recipe.model
    try:
        data = json.loads(file.read_text())
        return models.shape_of(
            SimpleNamespace(**{"tie_word_embeddings": False, **data}), recipe.model
        )
    except (OSError, ValueError, AttributeError) as error:
        if recipe.model.shape is None:
            # A checkpoint that is not here (yet): the numbers of the recipe count.
            return recipe.model
        raise ConfigError(
            f"model.shape: {file}: {error}", "name a folder or file with a config.json"
        ) from error


def _config(path: Path) -> Path:
    return path if path.suffix == ".json" else path / "config.json"


def lora_parameters(shape: ModelConfig, recipe: Recipe) -> int:
    """How many parameters the adapters of a recipe have."""
    assert recipe.lora is not None
    heads, key = shape.heads * shape.head, shape.key_heads * shape.head
    sizes = {
        "q_proj": shape.hidden + heads,
        "k_proj": shape.hidden + key,
        "v_proj": shape.hidden + key,
        "o_proj": heads + shape.hidden,
        "gate_proj": shape.hidden + shape.inner,
        "up_proj": shape.hidden + shape.inner,
        "down_proj": shape.inner + shape.hidden,
    }
    return shape.layers * recipe.lora.rank * sum(sizes.get(name, 0) for name in recipe.lora.targets)


def memory(
    shape: ModelConfig, recipe: Recipe, parameters: int, trained: int, tokens: int
) -> dict[str, float]:
    """GB of one process of the trainer, at most at the same time."""
    hardware = recipe.hardware
    among = hardware.gpus if hardware.fsdp else 1
    half = 2 if hardware.gpus and hardware.bf16 else 4
    layer = (parameters - 2 * shape.vocabulary * shape.hidden) / max(1, shape.layers)
    kept = 2 if shape.checkpointing else SAVED
    live = SAVED if shape.checkpointing else 0  # of the layer that is computed again
    scored = min(tokens, models.CHUNK)
    return {
        "weights (float32)": 4 * parameters / among / GB,
        "gradients (float32)": 4 * trained / among / GB,
        "AdamW's moments (float32)": 8 * trained / among / GB,
        "gathered layers": half * (2 * layer + shape.vocabulary * shape.hidden) / GB
        if among > 1
        else 0.0,
        "activations": tokens * shape.hidden * (kept * shape.layers + live) * half / 2 / GB,
        "last layer": scored * shape.vocabulary * 4 * 3 / GB,
        "context and buffers": CONTEXT_GB if hardware.gpus else 0.3,
    }


def vllm(shape: ModelConfig, recipe: Recipe, parameters: int) -> dict[str, float]:
    """What a vLLM of the recipe has of one GPU's memory, in GB, by part."""
    share = recipe.hardware.memory_gb * recipe.rollouts.memory_share
    weights = 2 * parameters / recipe.rollouts.gpus / GB
    token = 2 * 2 * shape.layers * shape.key_heads * shape.head / recipe.rollouts.gpus / GB
    return {
        "its share": share,
        "weights (bfloat16)": weights,
        "left for the KV cache": share - weights - CONTEXT_GB,
        "tokens in the KV cache": max(0.0, share - weights - CONTEXT_GB) / token,
    }


def _steps(recipe: Recipe, kind: str) -> str:
    if kind == "sft" and recipe.sft is not None:
        return f"{recipe.sft.epochs} epochs in batches of {recipe.sft.batch} rows"
    rl = recipe.rl
    if rl is None:
        return "none"
    schemes = rl.schemes + rl.null
    return (
        f"{rl.steps} steps of {rl.tasks} tasks x {schemes} schemes x {rl.rollouts} rollouts x "
        f"{rl.turns} "
        f"turns: up to {rl.tasks * schemes * rl.rollouts * rl.turns} evaluations and "
        f"{rl.updates} update(s) each"
    )


def _problems(recipe: Recipe, shape: ModelConfig, kind: str, tokens: int) -> Iterator[str]:
    if recipe.model.path and not Path(recipe.folder, recipe.model.path).expanduser().is_dir():
        yield f"model.path: {recipe.model.path} is not here (nothing is downloaded)"
    if tokens < shape.context:
        yield (
            f"{kind}.tokens ({tokens}) is less than the context ({shape.context}): a long row is "
            f"alone then"
        )
    if kind == "rl" and recipe.rollouts.engine == "vllm" and recipe.rollouts.gpus == 0:
        yield "rollouts.engine is vllm, and rollouts.gpus is 0: vLLM on the CPU is for tests"
    world = (*recipe.world.tables, *recipe.world.shown)
    data = recipe.sft.data or world if kind == "sft" and recipe.sft else world
    yield from placement.problems(recipe)
    if recipe.cluster is not None and importlib.util.find_spec("ray") is None:
        yield "[cluster] is Ray, which is not installed: pip install ray"
    if kind == "rl":
        yield from _judging(recipe)
    for pattern in data:
        place = Path(recipe.folder, pattern)
        if not list(place.parent.glob(place.name)):
            yield f"{pattern} finds no file"


def _judging(recipe: Recipe) -> Iterator[str]:
    """What live judges lack."""
    settings = recipe.judging
    if settings.tasks is not None and not Path(recipe.folder, settings.tasks).is_dir():
        yield f"judging.tasks: {settings.tasks} is no folder"
    if settings.pool == "cluster" and importlib.util.find_spec("ray") is None:
        yield "judging.pool is cluster, and ray is not installed: pip install ray"


def show(recipe: Recipe, kind: str) -> int:
    """Print it. 0: it can be started; 1: something is in the way."""
    found = plan(recipe, kind)
    sizes = f"{found.parameters / 1e6:,.1f} M parameters, {found.trained / 1e6:,.1f} M trained"
    print(f"{recipe.name}, {kind}: {sizes}")
    print(f"steps: {found.steps}")
    where = f"{recipe.hardware.gpus} GPUs" if recipe.hardware.gpus else "the CPU"
    print(f"memory of one trainer process on {where} (estimate):")
    for name, size in found.parts_gb.items():
        print(f"  {size:8.1f} GB  {name}")
    print(f"  {found.total_gb:8.1f} GB  together, with 10 % for fragments")
    for name, size in found.vllm_gb.items():
        unit = "   " if name.startswith("tokens") else " GB"
        print(f"  {size:8,.1f}{unit}  vLLM, each of {recipe.rollouts.gpus} GPUs: {name}")
    _show_placement(recipe, found)
    places = checkpoints.find_checkpoints(Path(recipe.output, recipe.name, kind))
    print(f"goes on from: {places[0]}" if places else "starts from the beginning")
    for problem in found.problems:
        print(f"in the way: {problem}")
    print("nothing is in the way" if not found.problems else f"{len(found.problems)} in the way")
    return 1 if found.problems else 0


def _show_placement(recipe: Recipe, found: Plan) -> None:
    placed = placement.place(recipe)
    if placed is not None and len(set(map(len, placed.taken.values()))) == 1:
        print(f"placement on {placed.nodes} node(s) of {placed.gpus} GPUs:")
        print("\n".join(placement.table(placed, recipe, found.total_gb)))
    if (step := found.seconds) is not None:
        print(
            f"a step of {step.total:,.0f} s: sampling {step.sampling:,.0f}, judging "
            f"{step.judging:,.0f}, update {step.update:,.0f} (from shapes and an H200's peaks; not "
            f"measured)"
        )
