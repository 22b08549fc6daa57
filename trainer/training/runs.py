"""What both training scripts share: one optimizer step over parts of a batch, saving, going on,
curves.

A step is cut into parts by padded tokens; a part's loss is divided by the whole step's rows or
tokens, so how it is cut (or among how many processes) changes nothing but rounding. Everything
that a step needs is decided by the recipe's seed and the step's number, so a run that was killed
goes on with the same numbers. Curves are JSON lines beside TensorBoard's events; of a run that
goes on, what lies after its checkpoint is cut off. Not covered: what is learned (sft.py, rl.py).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import gather_object
from torch import Tensor
from torch.distributed.checkpoint import state_dict as distributed

from kernel_lsp.files import replace_file
from trainer.algorithms import batches
from trainer.algorithms.batches import Batch, Example
from trainer.config import Hardware, Optimizer, Recipe
from trainer.policies.models import Scorer
from trainer.training import checkpoints, tickets
from trainer.training.checkpoints import CheckpointError

FULL = distributed.StateDictOptions(full_state_dict=True, cpu_offload=True)
CURVE = "curve.jsonl"
Loss = Callable[[Batch, Tensor, Tensor], Tensor]
"""(batch, log-probabilities (r, T), places of its rows in the step (r,)) -> scalar, a share of the
step's."""


def say(text: str) -> None:
    """Prints a line, in the first of several processes only."""
    if int(os.environ.get("RANK", "0")) == 0:
        print(text, flush=True)


def accelerator_of(hardware: Hardware) -> Accelerator:
    """One process of the run; started by torchrun there are several."""
    if hardware.threads:
        torch.set_num_threads(hardware.threads)
    on_gpu = hardware.gpus > 0
    if on_gpu:
        # cuDNN's attention builds a plan for every new length, and each batch has one: 258 of the
        # 397 ms that a step of 20 M parameters took on an H200 (2026-11-23).
        torch.backends.cuda.enable_cudnn_sdp(False)
    plugin = None
    if hardware.fsdp:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            state_dict_type="FULL_STATE_DICT",
        )
    return Accelerator(
        cpu=not on_gpu,
        mixed_precision="bf16" if on_gpu and hardware.bf16 else "no",
        fsdp_plugin=plugin,
    )


def rate(optimizer: Optimizer, step: int, steps: int) -> float:
    """Learning rate of a step, from 1: warms up from 0, then stays, or falls to 0 along half a
    cosine."""
    if step <= optimizer.warmup:
        return optimizer.rate * step / max(1, optimizer.warmup)
    if optimizer.schedule == "constant":
        return optimizer.rate
    share = (step - optimizer.warmup) / max(1, steps - optimizer.warmup)
    return optimizer.rate * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


@dataclass(kw_only=True)
class TrainingRun:
    """A model that is being trained, with its place on disk."""

    recipe: Recipe
    kind: str
    """sft or rl: a recipe may have both, each with a folder of its own."""
    model: Any
    tokenizer: Any
    accelerator: Accelerator = field(init=False)
    step: int = 0
    steps: int
    """In all, for the schedule."""
    scorer: Any = field(init=False)
    _optimizer: Any = field(init=False)
    _curves: Any = field(init=False, default=None)
    _begun: tuple[float, int] = field(init=False)
    """When the first step of this process began, and its number: it may go on where another
    ended."""

    def __post_init__(self) -> None:
        self.accelerator = accelerator_of(self.recipe.hardware)
        settings = self.recipe.optimizer
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trained,
            lr=settings.rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.decay,
            fused=self.recipe.hardware.gpus > 0,
        )
        scorer = Scorer(self.model)
        self.scorer, self._optimizer = self.accelerator.prepare(scorer, optimizer)

    @property
    def folder(self) -> Path:
        """Where the run writes its curve and checkpoints."""
        return Path(self.recipe.output, self.recipe.name, self.kind)

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes files and lines."""
        return bool(self.accelerator.is_main_process)

    @property
    def pad(self) -> int:
        """The token that fills rows up."""
        return int(self.tokenizer.pad_token_id)

    def place(self) -> str:
        """``step 5 of 40, 0:03:20 left``."""
        began, first = self._begun
        seconds = (time.monotonic() - began) / max(1, self.step - first) * (self.steps - self.step)
        left = f", {timedelta(seconds=round(seconds))} left" if self.step < self.steps else ""
        return f"step {self.step} of {self.steps}{left}"

    # --- one step ---------------------------------------------------------------------------------

    def update(
        self,
        examples: Sequence[Example],
        loss: Loss,
        *,
        tokens: int,
        kept: Sequence[bool],
        temperature: float,
    ) -> dict[str, float]:
        """Gradient of all parts, then one step of the optimizer. Raises FloatingPointError before
        a step whose loss or gradient is not finite: the weights are as they were."""
        begun = time.perf_counter()
        total = torch.zeros((), device=self.accelerator.device)
        mine, counts = self._mine(examples, tokens)
        for number in range(counts):
            places = mine[number] if number < len(mine) else [0]
            alive = [number < len(mine) and kept[place] for place in places]
            batch = batches.collate([examples[p] for p in places], self.pad, alive).to(total.device)
            last = number == counts - 1
            with nullcontext() if last else self.accelerator.no_sync(self.scorer):
                logprobs = self.scorer(batch, temperature)
                share = loss(batch, logprobs, torch.tensor(places, device=total.device))
                # Processes' gradients are averaged, and each has a share of one sum.
                self.accelerator.backward(share * self.accelerator.num_processes)
            total += share.detach()
        summed = float(self.accelerator.reduce(total, reduction="sum"))
        norm = self._stepped(summed)
        seconds = time.perf_counter() - begun
        token_count = sum(len(examples[place]) for place in range(len(examples)))
        return {
            "loss": summed,
            "gradient_norm": norm,
            "tokens": token_count,
            "tokens_per_s": token_count / seconds,
        }

    def _mine(self, examples: Sequence[Example], tokens: int) -> tuple[list[list[int]], int]:
        """This process's parts, and how many the longest share has: FSDP wants equally many
        passes."""
        shares = batches.shares(examples, self.accelerator.num_processes)
        cut = [
            [
                [share[i] for i in part]
                for part in batches.parts([examples[p] for p in share], tokens)
            ]
            for share in shares
        ]
        return cut[self.accelerator.process_index], max(map(len, cut))

    def _stepped(self, loss: float) -> float:
        limit = self.recipe.optimizer.clip or math.inf
        clipped = self.accelerator.clip_grad_norm_(self.scorer.parameters(), limit)
        norm = float(clipped.full_tensor() if hasattr(clipped, "full_tensor") else clipped)
        if not math.isfinite(loss) or not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(f"step {self.step + 1}: loss {loss}, gradient {norm}")
        for group in self._optimizer.param_groups:
            group["lr"] = rate(self.recipe.optimizer, self.step + 1, self.steps)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return norm

    def logprobs(
        self, examples: Sequence[Example], tokens: int, temperature: float
    ) -> list[list[float]]:
        """Log-probabilities of each example's counted tokens under the present weights, without
        gradient."""
        mine, counts = self._mine(examples, tokens)
        found: list[tuple[int, list[float]]] = []
        with torch.no_grad():
            for number in range(counts):
                places = mine[number] if number < len(mine) else [0]
                batch = batches.collate([examples[place] for place in places], self.pad)
                values = self.scorer(batch.to(self.accelerator.device), temperature).float().cpu()
                if number < len(mine):
                    for place, row, mask in zip(places, values, batch.mask, strict=True):
                        found.append((place, row[mask].tolist()))
        gathered = gather_object(found) if self.accelerator.num_processes > 1 else found
        return [values for _, values in sorted(gathered)]

    # --- on disk ----------------------------------------------------------------------------------

    def save(self, position: dict[str, Any]) -> Path | None:
        """A checkpoint, by the main process; None: it could not be written, which was said, and
        the run goes on with the older ones."""
        weights = self.weights(merge=False)
        optimizer = distributed.get_optimizer_state_dict(
            self.scorer, self._optimizer.optimizer, options=FULL
        )
        if not self.main:
            return None
        moments = optimizer["state"]
        tensors = {
            f"{name}|{key}": value for name, own in moments.items() for key, value in own.items()
        }
        if self.recipe.lora is not None:
            tensors |= {
                f"adapter/{name}": value for name, value in weights.items() if "lora_" in name
            }
            weights = self._merged(weights)
        state = checkpoints.TrainingState(
            step=self.step,
            recipe=f"{self.kind}-{self.recipe.fingerprint}",
            position=position,
            scheduler={"step": self.step, "steps": self.steps},
            tensors=tensors,
            optimizer={"param_groups": optimizer["param_groups"]},
        )
        keep = self.recipe.checkpoints.keep
        tickets.check(self.folder)
        try:
            return checkpoints.save(self.folder, self.model, self.tokenizer, weights, state, keep)
        except CheckpointError as error:
            say(f"not saved: {error}")
            return None

    def weights(self, *, merge: bool = True) -> dict[str, Tensor]:
        """All of the model's, gathered on the CPU: a call that every process makes; empty but on
        the main one. ``merge``: adapters are added to what they adapt, under its names."""
        model = distributed.get_model_state_dict(self.scorer, options=FULL)
        if not self.main:
            return {}
        weights = {name.removeprefix("model."): tensor for name, tensor in model.items()}
        return self._merged(weights) if merge and self.recipe.lora is not None else weights

    def _merged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert self.recipe.lora is not None
        return merge_adapters(weights, self.recipe.lora.alpha / self.recipe.lora.rank)

    def restore(self) -> dict[str, Any] | None:
        """Go on from the newest checkpoint; its position, or None: there is none.

        Raises CheckpointError when the newest complete one must not be used.
        """
        places = checkpoints.find_checkpoints(self.folder)
        if not places:
            return None
        state = checkpoints.restore(
            places[0], f"{self.kind}-{self.recipe.fingerprint}", self.tokenizer
        )
        if self.recipe.lora is None:
            weights = checkpoints.weights_of(places[0])
        else:
            weights = {
                k.removeprefix("adapter/"): v for k, v in state.tensors.items() if "adapter/" in k
            }
        named = {f"model.{name}": tensor for name, tensor in weights.items()}
        whole = distributed.get_model_state_dict(
            self.scorer, options=distributed.StateDictOptions()
        )
        # Tied and frozen ones.
        loose = distributed.StateDictOptions(full_state_dict=True, strict=False)
        missing = [name for name in whole if name not in named and "lm_head" not in name]
        if missing and self.recipe.lora is None:
            raise CheckpointError(f"{places[0]} lacks {missing[0]}", "it belongs to another model")
        distributed.set_model_state_dict(self.scorer, named, options=loose)
        moments: dict[str, dict[str, Tensor]] = {}
        for key, tensor in state.tensors.items():
            name, _, kind = key.rpartition("|")
            if name:
                moments.setdefault(name, {})[kind] = tensor
        whole_state = {"state": moments, **state.optimizer}
        full = distributed.StateDictOptions(full_state_dict=self.accelerator.num_processes > 1)
        distributed.set_optimizer_state_dict(
            self.scorer, self._optimizer.optimizer, whole_state, options=full
        )
        self.step = state.step
        return state.position

    # --- curves -----------------------------------------------------------------------------------

    def open_curves(self) -> None:
        """Cuts off what a killed run wrote after its last checkpoint."""
        self._begun = time.monotonic(), self.step
        if not self.main:
            return
        from torch.utils.tensorboard import SummaryWriter

        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / CURVE
        kept = [line for line in _lines(path) if json.loads(line)["step"] <= self.step]
        replace_file(path, "".join(kept).encode())
        self._curves = SummaryWriter(str(self.folder / "tensorboard"), purge_step=self.step + 1)

    def log(self, metrics: Mapping[str, float]) -> None:
        """One line of the curve, for the step that was just made; NaN is left out: it is
        unknown."""
        if not self.main:
            return
        tickets.check(self.folder)
        known = {name: value for name, value in metrics.items() if math.isfinite(value)}
        with (self.folder / CURVE).open("a") as stream:
            stream.write(json.dumps({"step": self.step, **known}) + "\n")
        for name, value in known.items():
            self._curves.add_scalar(name, value, self.step)

    def close(self) -> None:
        """Ends what writes curves, and the processes' talk with each other."""
        if self._curves is not None:
            self._curves.close()
        self.accelerator.end_training()


def _lines(path: Path) -> Iterator[str]:
    """Whole ones: the last may have been cut by a kill."""
    if path.exists():
        yield from (
            line for line in path.read_text().splitlines(keepends=True) if line.endswith("}\n")
        )


def curve(folder: Path) -> list[dict[str, float]]:
    """What was logged, line by line."""
    return [json.loads(line) for line in _lines(folder / CURVE)]


def merge_adapters(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """A LoRA model's weights as those of the model below it: W + scale B A, under its own names."""
    found = {}
    for name, tensor in weights.items():
        if "lora_" in name:
            continue
        stem = name.removesuffix(".base_layer.weight")
        down, up = f"{stem}.lora_A.default.weight", f"{stem}.lora_B.default.weight"
        plain = name.replace(".base_layer", "").removeprefix("base_model.model.")
        found[plain] = tensor + scale * (weights[up] @ weights[down]) if down in weights else tensor
    return found
