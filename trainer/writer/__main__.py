"""A small writer of kernels, from nothing to numbers, in stages that can each be repeated.

    python -m trainer.writer data train evaluate --work runs/writer --out $OUT

``data`` makes generated programs and the engine's rewrites of them on all cores, ``train`` a
vocabulary and a model, ``evaluate`` judges it on what it never saw. A stage that is done is not
done again; ``train`` goes on where it was ended, or from what an earlier run has kept
(``--start``), and with ``--more-seconds`` data is made beside it. What is worth keeping is copied
to ``--out``: results as JSON, the model in 8 bits, after ``data`` alone the rows. ``--tiny``:
everything small, on a CPU, in about two minutes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
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
from kernel_lsp.records import Json

STAGES = ("data", "train", "evaluate")
ROWS, RESULTS, MORE = "rows.jsonl.xz", "results.json", "more"
MAX_FILE_BYTES = 16 * 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    wrong = [stage for stage in options.stages if stage not in STAGES]
    if wrong:
        print(f"writer: {wrong[0]} is no stage; take {', '.join(STAGES)}", file=sys.stderr)
        return 2
    try:
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
    parser.add_argument("--start", type=Path, help="folder with a model's parts, to go on from")
    parser.add_argument("--train-seconds", type=float, default=170.0)
    parser.add_argument("--epochs", type=float, default=12.0)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--held-out", type=int, default=100, help="tasks of each held-out part")
    parser.add_argument("--generate-seconds", type=float, default=150.0)
    parser.add_argument("--judge-seconds", type=float, default=270.0)
    parser.add_argument("--time-seconds", type=float, default=90.0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tiny", action="store_true", help="everything small, on a CPU")
    return parser


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
            large=not options.tiny,
        )
        return data.make(options.work, plan)
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
        )
        made = _tiny(made) if options.tiny else made
        with _more_data(options):
            return training.run(options.work, made, device, options.start)
    from trainer.writer import evaluating
    from trainer.writer.sampling import SamplingPlan

    asked = evaluating.EvaluationPlan(
        tasks=options.held_out,
        generate_seconds=options.generate_seconds,
        judge_seconds=options.judge_seconds,
        time_seconds=options.time_seconds,
        at_once=max(1, options.jobs - 2),
    )
    if options.tiny:
        small = SamplingPlan(batch=16, new_tokens=60)
        asked = replace(asked, tasks=min(3, asked.tasks), samples=4, at_once=1, sampling=small)
    return asyncio.run(evaluating.run(options.work, asked, device))


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


def keep(work: Path, out: Path) -> None:
    """Copy what is worth it: results, the model in 8 bits, and the rows where they are not
    large."""
    out.mkdir(parents=True, exist_ok=True)
    results = {
        stage: json.loads((work / f"{stage}.json").read_text("utf-8"))
        for stage in STAGES
        if (work / f"{stage}.json").is_file()
    }
    (out / RESULTS).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if (work / "model").is_dir() and not (out / "model-small-files.tar").is_file():
        from trainer.writer import packing

        packing.pack(work / "model", out)
    elif (work / ROWS).is_file() and not (work / "train.json").is_file():
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
