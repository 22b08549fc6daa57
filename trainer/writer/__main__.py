"""A small writer of kernels, from nothing to numbers, in stages that can each be repeated.

    python -m trainer.writer data train rl evaluate --work runs/writer --out $OUT

``data`` makes generated programs and the engine's rewrites of them on all cores, ``train`` a
vocabulary and a model, ``rl`` reinforces it with the gate's verdicts, ``evaluate`` judges both on
what they never saw. A stage that is done is not done again; ``train`` and ``rl`` go on where they
were ended, from what an earlier run has kept with ``--start``, and with ``--more-seconds`` data is
made beside ``train``. What is worth keeping is copied to ``--out``: results as
JSON, the last model in 8 bits, after ``data`` alone the rows. ``--tiny``: everything small, on a CPU,
in about two minutes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_lsp.errors import KernelLspError
from kernel_lsp.files import replace_file
from kernel_lsp.records import Json
from trainer.algorithms.advantages import GAMMAS
from trainer.tasks.kinds import KINDS
from trainer.writer.turns import NAMES

STAGES = ("data", "train", "rl", "evaluate")
ROWS, RESULTS, MORE = "rows.jsonl.xz", "results.json", "more"
MAX_FILE_BYTES = 16 * 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the stages that were named, in their order; the exit code: 1 where one failed, 2 for a word
    that is no stage."""
    options = _parser().parse_args(arguments)
    wrong = [stage for stage in options.stages if stage not in STAGES]
    if wrong:
        print(f"writer: {wrong[0]} is no stage; take {', '.join(STAGES)}", file=sys.stderr)
        return 2
    try:
        if options.start is not None and "train" not in options.stages:
            _unpack(options.start, options.work)
        for stage in STAGES:
            if stage in options.stages:
                begun = time.monotonic()
                result = _run(stage, options)
                short = {
                    k: v for k, v in result.items() if k not in ("curve", "examples", "details")
                }
                print(f"{stage}: {time.monotonic() - begun:.0f} s {json.dumps(short)}", flush=True)
                if options.out is not None:
                    keep(options.work, options.out)
    except (KernelLspError, OSError) as error:
        print(f"writer: {error}", file=sys.stderr)
        return 1
    return 0


def _unpack(start: Path, work: Path) -> None:
    """What an earlier run has kept is the model that is asked; one that is there stays."""
    from trainer.writer import packing
    from trainer.writer.training import MODEL

    if not (work / MODEL).is_dir():
        packing.unpack(start, work / MODEL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.writer",
        description=__doc__.split("\n")[0],
    )
    parser.add_argument("stages", nargs="+", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--work", type=Path, required=True, help="folder of the run's state")
    parser.add_argument("--out", type=Path, help="folder for what is worth keeping")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--tasks", type=int, default=40_000, help="programs that are tried at most")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=sorted(set(KINDS.values())),
        default=[],
        help="of operators (trainer/tasks/kinds.py): only programs of these",
    )
    parser.add_argument("--small", action="store_true", help="programs with sizes for a CPU")
    parser.add_argument("--data-seconds", type=float, default=330.0)
    parser.add_argument(
        "--more-seconds",
        type=float,
        default=0.0,
        help="make data for so long while the model learns",
    )
    parser.add_argument(
        "--least-tasks", type=int, default=0, help="of these data, before the model begins"
    )
    parser.add_argument("--start", type=Path, help="folder with a kept model, to go on from")
    parser.add_argument("--train-seconds", type=float, default=170.0)
    parser.add_argument("--epochs", type=float, default=12.0)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--kernels", type=int, default=2000, help="plain ones, read at first")
    parser.add_argument("--batch-tokens", type=int, default=32_768)
    parser.add_argument(
        "--deal-names",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="give a row's names other numbers each time it is read",
    )
    _add_reinforcement(parser.add_argument_group("rl"))
    parser.add_argument("--held-out", type=int, default=100, help="tasks of each held-out part")
    parser.add_argument("--seen", type=int, default=0, help="tasks of the training part, beside")
    parser.add_argument("--samples", type=int, default=16, help="replies to a held-out task")
    parser.add_argument("--generate-seconds", type=float, default=150.0)
    parser.add_argument("--judge-seconds", type=float, default=270.0)
    parser.add_argument("--time-seconds", type=float, default=90.0)
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes, and threads on a CPU: fewer where others use it (1 instead of 2 wrote "
        "six replies in 10 s instead of 300)",
    )
    parser.add_argument("--tiny", action="store_true", help="everything small, on a CPU")
    return parser


def _add_reinforcement(group: Any) -> None:
    """Options of the stage ``rl``; what they mean: `reinforcing.ReinforcementPlan`."""
    group.add_argument("--steps", type=int, default=60)
    group.add_argument("--rl-seconds", type=float, default=420.0, help="of all steps")
    group.add_argument("--pool", type=int, default=2000, help="tasks that are drawn from")
    group.add_argument("--step-tasks", type=int, default=64, help="tasks of a step")
    group.add_argument("--group", type=int, default=16, help="replies to a task")
    group.add_argument("--turns", type=int, default=1, help="2: failed replies are asked again")
    group.add_argument("--reward", choices=NAMES, default="graded")
    group.add_argument("--advantage", choices=sorted(GAMMAS), default="trloo")
    group.add_argument("--gamma", type=float, help="of later turns; else as published")
    group.add_argument("--rl-rate", type=float, default=5e-5)
    group.add_argument("--rl-epochs", type=int, default=2, help="updates of a step")
    group.add_argument("--kl", type=float, default=0.02, help="weight of the pull to the start")
    group.add_argument("--temperature", type=float, default=1.0)
    group.add_argument("--new-tokens", type=int, default=1400)
    group.add_argument("--step-judge-seconds", type=float, default=60.0)


def _run(stage: str, options: argparse.Namespace) -> Json:
    """Stages are imported late: making data needs no transformers."""
    device = "cpu" if options.tiny else options.device
    if stage == "data":
        from trainer.writer import data

        plan = data.DataPlan(
            seed=options.seed,
            tasks=min(options.tasks, 200) if options.tiny else options.tasks,
            seconds=options.data_seconds,
            processes=options.jobs,
            large=not (options.tiny or options.small),
            kinds=frozenset(options.kinds),
        )
        return data.make(options.work, plan)
    if device == "cpu":
        import torch

        torch.set_num_threads(options.jobs)
    if stage == "train":
        from trainer.writer import training

        made = training.TrainPlan(
            seconds=options.train_seconds,
            epochs=options.epochs,
            hidden=options.hidden,
            layers=options.layers,
            heads=options.hidden // 64,
            key_heads=max(1, options.hidden // 128),
            inner=options.hidden * 8 // 3 // 64 * 64,
            least_tasks=options.least_tasks,
            batch_tokens=options.batch_tokens,
            kernels=options.kernels,
            deal_names=options.deal_names,
        )
        made = _tiny(made) if options.tiny else made
        with _more_data(options):
            return training.run(options.work, made, device, options.start)
    if stage == "rl":
        from trainer.writer import reinforcing

        return asyncio.run(reinforcing.run(options.work, _reinforcement(options), device))
    from trainer.writer import evaluating
    from trainer.writer.sampling import SamplingPlan

    asked = evaluating.EvaluationPlan(
        tasks=options.held_out,
        seen_tasks=options.seen,
        generate_seconds=options.generate_seconds,
        judge_seconds=options.judge_seconds,
        time_seconds=options.time_seconds,
        at_once=options.jobs,
        samples=options.samples,
        plain_samples=min(options.samples, 4),
    )
    if options.tiny:
        small = SamplingPlan(batch=16, new_tokens=60)
        asked = replace(asked, tasks=min(3, asked.tasks), samples=4, at_once=1, sampling=small)

    def kept() -> None:
        if options.out is not None:
            keep_results(options.work, options.out)

    return asyncio.run(evaluating.run(options.work, asked, device, kept))


def _reinforcement(options: argparse.Namespace) -> Any:
    from trainer.writer.reinforcing import ReinforcementPlan
    from trainer.writer.sampling import SamplingPlan

    sampling = SamplingPlan(
        temperature=options.temperature, top_p=1.0, new_tokens=options.new_tokens
    )
    plan = ReinforcementPlan(
        steps=options.steps,
        seconds=options.rl_seconds,
        pool=options.pool,
        tasks=options.step_tasks,
        group=options.group,
        turns=options.turns,
        reward=options.reward,
        advantage=options.advantage,
        gamma=options.gamma,
        rate=options.rl_rate,
        epochs=options.rl_epochs,
        kl=options.kl,
        judge_seconds=options.step_judge_seconds,
        at_once=options.jobs,
        sampling=sampling,
        batch_tokens=options.batch_tokens,
        seed=options.seed,
    )
    if not options.tiny:
        return plan
    return replace(
        plan, steps=2, pool=4, tasks=2, group=2, sampling=replace(sampling, new_tokens=60)
    )


@contextlib.contextmanager
def _more_data(options: argparse.Namespace) -> Iterator[None]:
    """Rows of another seed are made beside, by all cores but two; the judge needs them then."""
    if not options.more_seconds:
        yield
        return
    command = [sys.executable, "-m", "trainer.writer", "data"]
    command += ["--work", options.work / MORE, "--seed", options.seed + 1]
    command += ["--data-seconds", options.more_seconds, "--jobs", max(1, options.jobs - 2)]
    command += ["--tiny"] if options.tiny else []
    with subprocess.Popen([str(one) for one in command], start_new_session=True) as process:
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def _tiny(plan: Any) -> Any:
    """A model of a tenth of a million parameters."""
    return replace(
        plan, hidden=64, layers=2, heads=2, key_heads=1, inner=128, vocabulary=600,
        batch_tokens=4096, kernels=20, warmup=5,
    )  # fmt: skip


def keep_results(work: Path, out: Path) -> None:
    """Writes what the stages have found so far, and what was judged, packed."""
    from trainer.writer.data import REPLIES

    out.mkdir(parents=True, exist_ok=True)
    results = {
        stage: json.loads((work / f"{stage}.json").read_text("utf-8"))
        for stage in STAGES
        if (work / f"{stage}.json").is_file()
    }
    replace_file(out / RESULTS, (json.dumps(results, indent=1) + "\n").encode())
    if (work / REPLIES).is_file():
        replace_file(out / f"{REPLIES}.xz", lzma.compress((work / REPLIES).read_bytes(), preset=1))


def keep(work: Path, out: Path) -> None:
    """Copy what is worth it: results, the last model in 8 bits, and before there is one the rows.
    A model of 17 M parameters fills what comes back from a lent machine."""
    keep_results(work, out)
    models = [one for one in (work / "rl" / "model", work / "model") if one.is_dir()]
    if models:
        from trainer.writer import packing

        for rows in out.glob(f"{ROWS}*"):
            rows.unlink()
        packing.pack(models[0], out)
    elif (work / ROWS).is_file():
        _copy_parts(work / ROWS, out)


def _copy_parts(file: Path, out: Path) -> None:
    whole = file.read_bytes()
    if len(whole) <= MAX_FILE_BYTES:
        (out / file.name).write_bytes(whole)
        return
    for number, at in enumerate(range(0, len(whole), MAX_FILE_BYTES)):
        (out / f"{file.name}.{number}").write_bytes(whole[at : at + MAX_FILE_BYTES])


if __name__ == "__main__":
    sys.exit(main())
