"""Seconds of whole steps of reinforcement: `trainer.writer rl` against TRL's GRPOTrainer.

    python -m trainer.writer data --work runs/speed --small --tasks 400 --data-seconds 120
    PYTHONPATH=. python -m benchmarks.rl_step --work runs/speed --device cpu --out rl-step-cpu-DATE.json

A step samples a group of replies to each of some tasks, judges them and makes some updates with
PPO's clipping and a pull to the weights of the beginning. Both have the same Llama of random
weights, whose replies end by chance after as many tokens as its vocabulary has on average, the same
questions in the same order, temperature, rewards (0 or 1 by a checksum, in no time), rate, and
updates per step. They take turns in one process, with one thread on a CPU; a step is timed from one
judging to the next, so that what is made at first is left out. TRL generates by transformers, with
continuous batching where ``--paged`` says so; ours by `trainer.writer.decoding`. Not covered:
several GPUs, what a real judge takes, which is the same for both, vLLM."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import tempfile
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.reporting import circumstances, write_record
from kernel_lsp import wire
from kernel_lsp.records import EvalStatus
from trainer.writer import data, helpers, reinforcing
from trainer.writer.judging import WriterVerdict, WrittenCase
from trainer.writer.reinforcing import ReinforcementPlan
from trainer.writer.rows import WriterRow
from trainer.writer.sampling import SamplingPlan
from trainer.writer.split import WriterPart
from trainer.writer.tokens import train_tokenizer
from trainer.writer.training import LENGTHS, MODEL, TrainPlan, make_model

SEED = 5


@dataclass(kw_only=True)
class StepClock:
    """A step lasts from one judgement to the next: an update, then replies with the new weights."""

    judged: list[tuple[float, float]] = field(default_factory=list)
    """When replies were judged: wall and processor time."""
    tokens: list[int] = field(default_factory=list)
    """Of the replies that were judged then."""

    def tick(self) -> None:
        """Replies are about to be judged."""
        self.judged.append((time.perf_counter(), time.process_time()))

    def figures(self) -> dict[str, float]:
        """Medians over steps. Processor time is what a busy machine leaves alone."""
        wall, processor = (
            [after - before for before, after in itertools.pairwise(stamps)]
            for stamps in zip(*self.judged, strict=True)
        )
        tokens = self.tokens[1:]
        return {
            "seconds": statistics.median(wall),
            "cpu_seconds": statistics.median(processor),
            "tokens": statistics.median(tokens),
            "tokens_per_s": sum(tokens) / sum(wall),
            "tokens_per_cpu_s": sum(tokens) / sum(processor),
        }


def reward(text: str) -> float:
    """0 or 1 by a checksum: groups differ, nothing is learned, and it takes no time."""
    return float(zlib.crc32(text.encode()) % 2)


class InstantJudge:
    """Right where `reward` is 1."""

    def __init__(self) -> None:
        self.known: dict[str, WriterVerdict] = {}
        self.clock = StepClock()

    async def judge(self, cases: Sequence[WrittenCase], end: float, *, timed: bool = False) -> None:
        """Into `known`."""
        self.clock.tick()
        for case in cases:
            status = EvalStatus.PASSED if reward(case.reply) else EvalStatus.WRONG_RESULT
            self.known[case.key] = WriterVerdict(status=status.value, compiled=True)

    async def close(self) -> None:
        """Nothing is open."""


def prepare(work: Path, folder: Path, options: argparse.Namespace) -> list[WriterRow]:
    """Writes what the stage ``rl`` reads: tasks that all are kept for it, random weights."""
    rows = sorted(data.read(work), key=lambda row: len(row.question))[: options.pool]
    rows = [replace(row, part=WriterPart.REINFORCED) for row in rows]
    (folder / data.ROWS).write_text("".join(wire.dumps(row) + "\n" for row in rows), "utf-8")
    tokenizer = train_tokenizer([row.question for row in rows], options.vocabulary, LENGTHS[-1])
    torch.manual_seed(0)
    shape = TrainPlan(
        hidden=options.hidden,
        layers=options.layers,
        heads=options.hidden // 64,
        key_heads=max(1, options.hidden // 128),
        inner=options.hidden * 8 // 3 // 64 * 64,
    )
    make_model(shape, tokenizer).save_pretrained(folder / MODEL)
    tokenizer.save_pretrained(folder / MODEL)
    helpers.write(folder / MODEL, {})
    return rows


def plan_of(options: argparse.Namespace) -> ReinforcementPlan:
    sampling = SamplingPlan(
        temperature=1.0, top_p=1.0, new_tokens=options.new_tokens, places=options.places
    )
    return ReinforcementPlan(
        steps=options.steps, seconds=1e9, pool=options.pool, tasks=options.tasks,
        group=options.group, reward="right", advantage="grpo", rate=1e-5, warmup=0,
        epochs=options.epochs, kl=0.02, batch_tokens=options.batch_tokens, sampling=sampling,
        seed=SEED,
    )  # fmt: skip


def ours(folder: Path, options: argparse.Namespace) -> StepClock:
    judge = InstantJudge()
    result = asyncio.run(reinforcing.run(folder, plan_of(options), options.device, judge))
    updates = [entry["updates"] for entry in result["curve"]]
    if updates != [options.epochs] * options.steps:
        raise SystemExit(f"updates of ours were left out: {updates}")
    judge.clock.tokens = [entry["tokens"] for entry in result["curve"]]
    return judge.clock


def theirs(folder: Path, rows: Sequence[WriterRow], options: argparse.Namespace) -> StepClock:
    """GRPOTrainer's own loop over the same tasks."""
    import datasets
    import trl

    chosen = [
        row
        for step in range(options.steps)
        for row in random.Random(f"{SEED}/{step}").sample(list(rows), options.tasks)
    ]
    clock = StepClock()

    def judged(completions: Any, completion_ids: Any, **_: Any) -> list[float]:
        clock.tick()
        clock.tokens.append(sum(map(len, completion_ids)))
        return [reward(text) for text in completions]

    model, tokenizer = reinforcing.load_model(folder / MODEL, options.device)
    size = options.tasks * options.group
    with tempfile.TemporaryDirectory() as output:
        arguments = trl.GRPOConfig(
            output_dir=output, per_device_train_batch_size=size, num_generations=options.group,
            steps_per_generation=1, num_iterations=options.epochs,
            max_steps=options.steps * options.epochs, max_completion_length=options.new_tokens,
            temperature=1.0, top_p=1.0, top_k=0, beta=0.02, epsilon=0.2, epsilon_high=0.28,
            loss_type="dr_grpo", learning_rate=1e-5, lr_scheduler_type="constant", warmup_steps=0,
            weight_decay=0.0, max_grad_norm=1.0, gradient_checkpointing=False,
            shuffle_dataset=False, use_cpu=options.device == "cpu", bf16=options.device == "cuda",
            use_transformers_paged=options.paged, logging_steps=10_000, save_strategy="no",
            report_to=[], disable_tqdm=True, seed=SEED,
            optim="adamw_torch_fused" if options.device == "cuda" else "adamw_torch",
        )  # fmt: skip
        trl.GRPOTrainer(
            model=model,
            reward_funcs=judged,
            args=arguments,
            train_dataset=datasets.Dataset.from_list([{"prompt": row.question} for row in chosen]),
            processing_class=tokenizer,
        ).train()
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="of a run that has made data")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--vocabulary", type=int, default=300)
    parser.add_argument("--pool", type=int, default=64, help="tasks, with the shortest questions")
    parser.add_argument("--tasks", type=int, default=8, help="of a step")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2, help="updates of a step")
    parser.add_argument("--new-tokens", type=int, default=1000)
    parser.add_argument("--places", type=int, default=64, help="replies at once on a CPU")
    parser.add_argument("--batch-tokens", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=4, help="one more than are timed")
    parser.add_argument("--turns", type=int, default=1, help="of ours and TRL, by turns")
    parser.add_argument("--paged", action="store_true", help="TRL: transformers' paged generation")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # TRL's and transformers' own
    if options.device == "cpu":
        torch.set_num_threads(1)  # on two busy cores two threads are several times slower
    found: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
    for _ in range(options.turns):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            rows = prepare(options.work, folder, options)
            found["ours"].append(ours(folder, options).figures())
            print("ours", found["ours"][-1], flush=True)
            found["trl"].append(theirs(folder, rows, options).figures())
            print("TRL ", found["trl"][-1], flush=True)
    record: dict[str, Any] = {
        **circumstances(options.device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "options": {name: str(value) for name, value in vars(options).items()},
        **found,
        "ratios": {
            name: [a[name] / b[name] for a, b in zip(found["ours"], found["trl"], strict=True)]
            for name in ("tokens_per_s", "tokens_per_cpu_s")
        },
    }
    print(record["ratios"])
    write_record(options.out, record)


if __name__ == "__main__":
    main()
