"""Tokens per second of one supervised step: this trainer against TRL's SFTTrainer, in one run.

    PYTHONPATH=. python benchmarks/training.py --device cuda --size 0.6b --out
    training-h200-DATE.json PYTHONPATH=. python benchmarks/training.py --device cpu --size tiny

Same model (Qwen3 of random weights), same rows (prompts and replies of varied lengths, losses on
replies alone), same precision (bfloat16 products over float32 weights on a GPU), same batch, AdamW
(fused on a GPU), no activation checkpointing, no packing. Each is one process after the other; the
first steps are left out. The first loss of both must agree, or the comparison is worth nothing.
TRL is an optional program: what of it is missing is said, and ours is measured alone. Padded
tokens do not count. Not covered: several GPUs."""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.reporting import circumstances, write_record
from trainer import sft
from trainer.algorithms.batches import Example
from trainer.config import Hardware, ModelConfig, Optimizer, Recipe, Sft
from trainer.policies import models
from trainer.training.runs import TrainingRun

SIZES = {
    "tiny": ModelConfig(
        hidden=128,
        layers=2,
        heads=4,
        key_heads=2,
        head=32,
        inner=384,
        vocabulary=4096,
        context=1024,
    ),
    "20m": ModelConfig(
        hidden=384,
        layers=8,
        heads=6,
        key_heads=2,
        head=64,
        inner=1024,
        vocabulary=4096,
        context=4096,
    ),
    "0.6b": ModelConfig(
        hidden=1024,
        layers=28,
        heads=16,
        key_heads=8,
        head=128,
        inner=3072,
        vocabulary=151_936,
        context=4096,
    ),
}
"""20m: the shipped policy's; 0.6b: Qwen3-0.6B's."""
NEEDED = ("trl", "datasets", "accelerate", "pyarrow", "dill", "multiprocess", "xxhash", "pandas")
AGREE = 0.01
RATE = 1e-5


def rows(count: int, vocabulary: int, longest: int, seed: int) -> list[Example]:
    """Lengths as prompts of a search have them: most short, some several times as long."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        length = min(longest, max(32, int(draw.lognormvariate(0.0, 0.6) * longest / 4)))
        ids = tuple(draw.randrange(10, vocabulary) for _ in range(length))
        cut = int(length * draw.uniform(0.6, 0.9))
        found.append(Example(prompt=ids[:cut], reply=ids[cut:]))
    return found


def recipe(options: argparse.Namespace, folder: str) -> Recipe:
    return Recipe(
        name="speed",
        output=folder,
        model=SIZES[options.size],
        optimizer=Optimizer(rate=RATE, clip=1.0),
        sft=Sft(batch=options.batch, tokens=options.tokens),
        hardware=Hardware(gpus=int(options.device == "cuda")),
    )


class PlainTokenizer:
    """A tokenizer as far as a trainer looks at it."""

    pad_token_id = 0


def ours(options: argparse.Namespace, batches: Sequence[Sequence[Example]]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        figures = recipe(options, folder)
        assert figures.sft is not None
        run = TrainingRun(
            recipe=figures,
            kind="sft",
            model=model(options),
            tokenizer=PlainTokenizer(),
            steps=len(batches),
        )
        run.scorer.train()

        def step(batch: Sequence[Example]) -> float:
            assert figures.sft is not None
            return sft.learn(run, figures.sft, batch, [], [])["loss"]

        return timed(options, batches, step)


def model(options: argparse.Namespace) -> Any:
    import transformers

    torch.manual_seed(0)
    shape = SIZES[options.size]
    made = transformers.Qwen3ForCausalLM(models.make_config(shape, shape.vocabulary))
    return made.to(options.device)


def timed(
    options: argparse.Namespace,
    batches: Sequence[Sequence[Example]],
    step: Callable[[Sequence[Example]], float],
) -> dict[str, float]:
    speeds, first = [], 0.0
    for number, batch in enumerate(batches):
        settle(options)
        begun = time.perf_counter()
        value = step(batch)
        settle(options)
        took = time.perf_counter() - begun
        first = first or value
        if number >= options.warmup:
            speeds.append(sum(map(len, batch)) / took)
    return {
        "tokens_per_s": statistics.median(speeds),
        "first_loss": first,
        "peak_gb": peak(options),
    }


def theirs(options: argparse.Namespace, batches: Sequence[Sequence[Example]]) -> dict[str, float]:
    """SFTTrainer's own loop over the same batches in the same order."""
    import datasets
    import trl
    from transformers import TrainerCallback

    flat = [one for batch in batches for one in batch]
    data = datasets.Dataset.from_list(
        [
            {
                "input_ids": [*one.prompt, *one.reply],
                "labels": [-100] * len(one.prompt) + list(one.reply),
            }
            for one in flat
        ]
    )
    shape = SIZES[options.size]
    tokenizer = models.make_tokenizer(["a few words"], 300, shape.context)
    with tempfile.TemporaryDirectory() as folder:
        arguments = trl.SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=options.batch,
            max_steps=len(batches),
            learning_rate=RATE,
            weight_decay=0.01,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            bf16=options.device == "cuda",
            use_cpu=options.device == "cpu",
            gradient_checkpointing=False,
            packing=False,
            max_length=shape.context,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            optim="adamw_torch_fused" if options.device == "cuda" else "adamw_torch",
            dataset_kwargs={"skip_prepare_dataset": True},
            train_sampling_strategy="sequential",
            disable_tqdm=True,
        )

        class PhaseClock(TrainerCallback):
            def __init__(self) -> None:
                self.speeds: list[float] = []
                self.begun = 0.0
                self.first: float | None = None

            def on_step_begin(self, *_: Any, **__: Any) -> None:
                settle(options)
                self.begun = time.perf_counter()

            def on_step_end(self, arguments: Any, state: Any, control: Any, **__: Any) -> None:
                settle(options)
                took = time.perf_counter() - self.begun
                if state.global_step > options.warmup:
                    self.speeds.append(sum(map(len, batches[state.global_step - 1])) / took)

            def on_log(
                self, arguments: Any, state: Any, control: Any, logs: Any = None, **__: Any
            ) -> None:
                if self.first is None and logs and "loss" in logs:
                    self.first = float(logs["loss"])

        clock = PhaseClock()
        trainer = trl.SFTTrainer(
            model=model(options),
            args=arguments,
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.train()
    return {
        "tokens_per_s": statistics.median(clock.speeds),
        "first_loss": clock.first or float("nan"),
        "peak_gb": peak(options),
    }


def settle(options: argparse.Namespace) -> None:
    if options.device == "cuda":
        torch.cuda.synchronize()


def peak(options: argparse.Namespace) -> float:
    if options.device != "cuda":
        return float("nan")
    found = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.empty_cache()
    return found


def missing() -> list[str]:
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=tuple(SIZES), default="20m")
    parser.add_argument("--batch", type=int, default=32, help="rows per step")
    parser.add_argument(
        "--tokens", type=int, default=65536, help="padded tokens of one of our forward passes"
    )
    parser.add_argument(
        "--longest",
        type=int,
        default=0,
        help="tokens of the longest row; default: half the context",
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5, help="steps that are not counted")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # TRL's and transformers' own
    shape = SIZES[options.size]
    every = rows(
        options.batch * options.steps,
        shape.vocabulary,
        options.longest or shape.context // 2,
        seed=1,
    )
    batches = [every[i : i + options.batch] for i in range(0, len(every), options.batch)]
    record: dict[str, Any] = {
        "size": options.size,
        **circumstances(options.device),
        "torch": torch.__version__,
        "rows": options.batch,
        "tokens_per_step": sum(map(len, every)) / len(batches),
        "ours": ours(options, batches),
    }
    if lacking := missing():
        print(
            f"TRL is not measured: {', '.join(lacking)} not installed (carry their wheels: pip "
            f"download)"
        )
    else:
        record["trl"] = theirs(options, batches)
        record["ratio"] = record["ours"]["tokens_per_s"] / record["trl"]["tokens_per_s"]
    print(table(record))
    write_record(options.out, record)
    gap = (
        abs(record["ours"]["first_loss"] / record["trl"]["first_loss"] - 1)
        if "trl" in record
        else 0.0
    )
    if gap > AGREE:
        sys.exit(f"the first losses differ by {gap:.1%}: the two do not train on the same thing")


def table(figures: dict[str, Any]) -> str:
    head = "{size} on {device}, {tokens_per_step:.0f} tokens per step"
    lines = [head.format(**figures)]
    for name in ("ours", "trl"):
        if name in figures:
            one = figures[name]
            lines.append(
                f"  {name:5} {one['tokens_per_s']:10,.0f} tokens/s  first loss "
                f"{one['first_loss']:.4f}"
                f"  peak {one['peak_gb']:.1f} GB"
            )
    if "ratio" in figures:
        lines.append(f"  ours / TRL: {figures['ratio']:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
