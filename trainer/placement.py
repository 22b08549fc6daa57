"""Who has which GPU of which node: trainer, vLLM and judges, none of them twice.

`place` reads a recipe's ``[cluster]``; what it leaves open is placed by itself: vLLM on the first
node, because it reads its weights from the trainer's first process, then the trainer, and judges
have what is left. GPUs are counted here; which of a node's are meant by a number, Ray decides.
`problems` says what cannot work, `seconds` estimates a step from shapes and peaks. Standard library
only. Not covered: starting anything (cluster_run.py)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp.devices import H200
from trainer.config import ModelConfig, Recipe

TRAINER, VLLM, JUDGES = "trainer", "vllm", "judges"
DUTIES = {TRAINER: "trains", VLLM: "samples (vLLM)", JUDGES: "judges"}
TENSOR_FLOPS = 990e12
"""An H200's peak in bfloat16, by its maker."""
USED = 0.4
"""Of that peak while training; assumed, as published runs of this size say."""
REPLY_SHARE = 0.25
"""Of `rollouts.max_tokens` that a reply has on average; assumed."""
JUDGED_S, AT_ONCE = 10.0, 4
"""Seconds of the gate for one candidate (2 to 14 s), and how many it has under way on a GPU."""
IN_FLIGHT = 64
"""Requests that the trainer has open at vLLM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """GPUs of each node, by who has them: `taken[duty][node]`."""

    gpus: int
    """That each node has."""
    taken: dict[str, tuple[int, ...]]

    @property
    def nodes(self) -> int:
        """How many nodes the trainer takes."""
        return len(self.taken[TRAINER])

    def of(self, node: int) -> dict[str, int]:
        """What a node does, with how many of its GPUs; who has none there is left out."""
        counts = {duty: among[node] for duty, among in self.taken.items()}
        return {duty: count for duty, count in counts.items() if count}


def place(recipe: Recipe) -> Placement | None:
    """None: the recipe has no ``[cluster]``, or trains on the CPUs of one."""
    cluster = recipe.cluster
    if cluster is None or not cluster.gpus:
        return None
    wanted = {TRAINER: recipe.hardware.gpus, VLLM: _sampling(recipe), JUDGES: 0}
    free = [cluster.gpus] * cluster.nodes
    taken: dict[str, tuple[int, ...]] = {}
    for duty, named in ((VLLM, cluster.vllm), (TRAINER, cluster.trainer)):
        taken[duty] = named or _filled(wanted[duty], free)
        free = [left - used for left, used in itertools.zip_longest(free, taken[duty], fillvalue=0)]
    rest = tuple(max(0, left) for left in free[: cluster.nodes])
    taken[JUDGES] = cluster.judges or (rest if _judges(recipe) else (0,) * cluster.nodes)
    return Placement(gpus=cluster.gpus, taken={duty: taken[duty] for duty in DUTIES})


def _filled(wanted: int, free: Sequence[int]) -> tuple[int, ...]:
    """So many, from the first node on; what finds no place is left over on the last."""
    found = []
    for left in free:
        found.append(min(wanted, max(0, left)))
        wanted -= found[-1]
    return (*found[:-1], found[-1] + wanted)


def _sampling(recipe: Recipe) -> int:
    return recipe.rollouts.gpus if recipe.rollouts.engine == "vllm" and recipe.rl else 0


def _judges(recipe: Recipe) -> bool:
    """Whether any GPU judges."""
    judging = recipe.judging
    return recipe.rl is not None and judging.pool == "cluster" and judging.device == "cuda"


def problems(recipe: Recipe) -> Iterator[str]:
    """What cannot work, each with its remedy."""
    cluster, placed = recipe.cluster, place(recipe)
    if cluster is None or placed is None:
        return
    if wrong := [duty for duty in DUTIES if len(placed.taken[duty]) != cluster.nodes]:
        yield (
            f"cluster.{wrong[0]} has {len(placed.taken[wrong[0]])} numbers, and there are "
            f"{cluster.nodes} nodes: give one for each node, 0 where it has no GPU"
        )
        return
    yield from _overlaps(placed)
    yield from _sums(recipe, placed)
    if recipe.judging.pool == "local" and recipe.judging.device == "cuda":
        yield (
            "judging.pool is local, which would judge on a GPU that trains: set it to cluster, and "
            "leave GPUs for judges"
        )
    if _judges(recipe) and not sum(placed.taken[JUDGES]):
        yield (
            "no GPU is left for judges: take fewer for the trainer (hardware.gpus) or vLLM "
            "(rollouts.gpus), or more nodes (cluster.nodes)"
        )


def _overlaps(placed: Placement) -> Iterator[str]:
    for node in range(placed.nodes):
        counts = placed.of(node)
        if (needed := sum(counts.values())) > placed.gpus:
            asked = ", ".join(f"{duty} {count}" for duty, count in counts.items())
            yield (
                f"node {node} has {placed.gpus} GPUs and {needed} are asked for ({asked}): some "
                f"would do two things at once; take fewer there, or more nodes (cluster.nodes)"
            )


def _sums(recipe: Recipe, placed: Placement) -> Iterator[str]:
    trains, samples = sum(placed.taken[TRAINER]), sum(placed.taken[VLLM])
    if trains != recipe.hardware.gpus:
        yield (
            f"cluster.trainer has {trains} GPUs, and hardware.gpus is {recipe.hardware.gpus}: make "
            f"them equal"
        )
    if samples != _sampling(recipe):
        yield (
            f"cluster.vllm has {samples} GPUs, and rollouts.gpus is {_sampling(recipe)}: make them "
            f"equal"
        )
    elsewhere = sum(placed.taken[VLLM][1:])
    if elsewhere or (samples and not placed.taken[TRAINER][0]):
        yield (
            "vLLM reads its weights from the trainer's first process, beside which it must be: "
            "give both GPUs of node 0 (cluster.vllm, cluster.trainer), at most as many as it has"
        )


# --- how long -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSeconds:
    """An estimate from shapes and peaks; nothing of it was measured."""

    sampling: float
    judging: float
    update: float

    @property
    def total(self) -> float:
        """Seconds of a whole step."""
        return self.sampling + self.judging + self.update


def seconds(recipe: Recipe, shape: ModelConfig, parameters: int) -> StepSeconds | None:
    """Seconds of one step of reinforcement on H200s. None where no vLLM samples on GPUs."""
    rl, placed = recipe.rl, place(recipe)
    if rl is None or placed is None or not _sampling(recipe):
        return None
    replies = rl.tasks * (rl.schemes + rl.null) * rl.rollouts * rl.turns
    tokens = replies * recipe.rollouts.max_tokens * REPLY_SHARE
    # A token of each open reply takes one reading of the weights.
    reading = 2 * parameters / (_sampling(recipe) * H200.bytes_per_s)
    # Forward and backward, and forward once more for what is computed again or scored before.
    passes = 8 if shape.checkpointing else 6
    passes += 2 if rl.updates > 1 or rl.band or rl.veto or rl.importance_cap else 0
    read = replies * shape.context / 4 + tokens  # prompts are assumed to fill a quarter
    judged = replies if recipe.judging.pool != "table" else 0
    judges = sum(placed.taken[JUDGES]) * AT_ONCE
    return StepSeconds(
        sampling=tokens / min(replies, IN_FLIGHT) * reading,
        judging=judged * JUDGED_S / judges if judges else 0.0,
        update=rl.updates
        * passes
        * parameters
        * read
        / (recipe.hardware.gpus * TENSOR_FLOPS * USED),
    )


# --- to read --------------------------------------------------------------------------------------


def table(placed: Placement, recipe: Recipe, trainer_gb: float) -> list[str]:
    """Lines: node, GPUs, what they do, memory of each."""
    have = recipe.hardware.memory_gb
    memory = {
        TRAINER: f"{trainer_gb:.0f} of {have:g} GB",
        VLLM: f"{have * recipe.rollouts.memory_share:.0f} of {have:g} GB",
        JUDGES: "what the candidates take",
    }
    lines, rank = ["  node  GPUs  what they do         memory of each"], 0
    for node in range(placed.nodes):
        first = 0
        for duty, count in placed.of(node).items():
            does = DUTIES[duty]
            if duty == TRAINER:
                does, rank = f"trains, ranks {_span(rank, count)}", rank + count
            lines.append(f"  {node:<4}  {_span(first, count):<4}  {does:<19}  {memory[duty]}")
            first += count
        if first < placed.gpus:
            lines.append(f"  {node:<4}  {_span(first, placed.gpus - first):<4}  nothing")
    return lines


def _span(first: int, count: int) -> str:
    return f"{first}-{first + count - 1}" if count > 1 else str(first)
